//! Single faults of a local fabric, injected by calls of [`LocalFabric`](super::LocalFabric).

use std::collections::VecDeque;
use std::time::Duration;

use efa_device::{Completion, DeviceError, Status, WorkId};

use super::endpoints::EndpointId;
use super::flight::{Content, Flight, Stale};
use super::network::{Due, Endpoint, Event, Network, Waiting};
use crate::record::{PacketEvent, QueuePairId};

/// Faults of one queue pair, each for a number of packets.
#[derive(Default)]
pub(super) struct OneShot {
    pub(super) not_ready: u32,
    pub(super) refused: u32,
    pub(super) late: (u32, Duration),
    pub(super) completes_late: (u32, Duration),
    pub(super) failing: Option<(u32, Status)>,
    pub(super) lack: Option<DeviceError>,
}

impl Network {
    fn endpoint(&mut self, at: QueuePairId) -> Result<&mut Endpoint, DeviceError> {
        let id = self.find(at);
        id.and_then(|id| self.endpoints.get_mut(id))
            .ok_or_else(|| DeviceError::Absent { reason: format!("no queue pair {at}") })
    }

    fn one_shot(&mut self, at: QueuePairId) -> Result<&mut OneShot, DeviceError> {
        Ok(&mut self.endpoint(at)?.one_shot)
    }

    pub(super) fn not_ready(&mut self, at: QueuePairId, count: u32) -> Result<(), DeviceError> {
        self.one_shot(at)?.not_ready = count;
        Ok(())
    }

    pub(super) fn drop_receive_buffers(
        &mut self,
        at: QueuePairId,
        count: usize,
    ) -> Result<usize, DeviceError> {
        let endpoint = self.endpoint(at)?;
        let count = count.min(endpoint.posted.len());
        endpoint.posted.drain(..count);
        endpoint.receives -= count;
        Ok(count)
    }

    pub(super) fn fail_receives(
        &mut self,
        at: QueuePairId,
        count: usize,
        status: Status,
    ) -> Result<usize, DeviceError> {
        let endpoint = self.endpoint(at)?;
        let count = count.min(endpoint.posted.len());
        let failed = endpoint.posted.drain(..count).collect::<Vec<_>>();
        let (now, owner) = (self.now, self.find(at));
        for packet in failed {
            if let Some(sender) = owner {
                let completion = Completion::Unfilled { packet, status };
                self.schedule(now, Event::Complete { sender, completion });
            }
        }
        Ok(count)
    }

    pub(super) fn refuse_sends(&mut self, at: QueuePairId, count: u32) -> Result<(), DeviceError> {
        self.one_shot(at)?.refused = count;
        Ok(())
    }

    pub(super) fn lack(
        &mut self,
        at: QueuePairId,
        error: Option<DeviceError>,
    ) -> Result<(), DeviceError> {
        self.one_shot(at)?.lack = error;
        Ok(())
    }

    pub(super) fn delay_sends(
        &mut self,
        at: QueuePairId,
        count: u32,
        by: Duration,
    ) -> Result<(), DeviceError> {
        self.one_shot(at)?.late = (count, by);
        Ok(())
    }

    pub(super) fn delay_completions(
        &mut self,
        at: QueuePairId,
        count: u32,
        by: Duration,
    ) -> Result<(), DeviceError> {
        self.one_shot(at)?.completes_late = (count, by);
        Ok(())
    }

    pub(super) fn fail_sends(
        &mut self,
        at: QueuePairId,
        count: u32,
        status: Status,
    ) -> Result<(), DeviceError> {
        self.one_shot(at)?.failing = (count > 0).then_some((count, status));
        Ok(())
    }

    pub(super) fn forbid_access(
        &mut self,
        at: QueuePairId,
        forbidden: bool,
    ) -> Result<(), DeviceError> {
        self.endpoint(at)?.access_forbidden = forbidden;
        Ok(())
    }

    pub(super) fn kill(&mut self, at: QueuePairId) -> Result<(), DeviceError> {
        let endpoint = self.endpoint(at)?;
        endpoint.killed = true;
        let waiting = std::mem::take(&mut endpoint.waiting);
        for Waiting { flight, give_up } in waiting {
            if let Some(due) = give_up {
                self.events.remove(&due);
            }
            let time = self.now + self.options.unresponsive_after;
            self.fail(time, flight, Status::UnresponsiveRemote);
        }
        let Some(me) = self.find(at) else { return Ok(()) };
        let mine = |sender: Option<(EndpointId, WorkId)>| sender.is_some_and(|s| s.0 == me);
        let arrivals: Vec<Due> = self
            .events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Arrive(flight) if mine(flight.sender)))
            .map(|(due, _)| *due)
            .collect();
        for due in arrivals {
            if let Some(Event::Arrive(flight)) = self.events.remove(&due) {
                self.fail(self.now, flight, Status::Flushed);
            }
        }
        let mut lost = Vec::new();
        for endpoint in self.endpoints.iter_mut() {
            let (gone, rest) = std::mem::take(&mut endpoint.waiting)
                .into_iter()
                .partition::<VecDeque<_>, _>(|waiting| mine(waiting.flight.sender));
            endpoint.waiting = rest;
            lost.extend(gone);
        }
        for Waiting { flight, give_up } in lost {
            if let Some(due) = give_up {
                self.events.remove(&due);
            }
            self.fail(self.now, flight, Status::Flushed);
        }
        Ok(())
    }

    pub(super) fn inject(&mut self, source: QueuePairId, destination: QueuePairId, bytes: &[u8]) {
        let serial = self.next_serial();
        let flight = Flight {
            serial,
            source,
            destination,
            qkey: None,
            content: Content::Packet { packet: bytes.into(), length: bytes.len(), immediate: None },
            rnr_retry: 0,
            completes_late: Duration::ZERO,
            sender: None,
        };
        self.statistics.injected += 1;
        self.tap(self.now, PacketEvent::Sent, &flight);
        let time = self.now + self.draw_delay();
        self.schedule(time, Event::Arrive(flight));
    }

    pub(super) fn deliver_stale(&mut self, to: QueuePairId) -> usize {
        let packets = self.stale.remove(&to).unwrap_or_default();
        let count = packets.len();
        for Stale { source, bytes } in packets {
            self.inject(source, to, &bytes);
        }
        count
    }
}
