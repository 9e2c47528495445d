//! What the driver of an endpoint with a connection does besides: its peer is known before its packets come,
//! and ends with the connection.

use efa_device::{DeviceError, QueuePair};

use super::Driver;
use crate::address_vector::FiAddr;
use crate::clock::Clock;
use crate::completion::StartError;
use crate::device::{ConcretePacket, ConcreteRegion};

/// Polls without a result after which nothing is left. The tcp link asks the system in every eighth at least.
const IDLE_POLLS: u32 = 64;
/// Most polls, for a peer that goes on sending. What arrived before takes fewer: a poll takes up to 64 packets or gives up to 64
/// completions, and a device has no more packets than were posted and the link holds.
const MOST_POLLS: u32 = 4096;

impl<Q: QueuePair<Region: ConcreteRegion, Packet: ConcretePacket>> Driver<Q> {
    /// Takes packets of a peer of the address vector from now on.
    pub(crate) fn admit_peer(&mut self, peer: FiAddr) -> Result<(), DeviceError> {
        match self.peer(peer) {
            Err(StartError::Device(error)) => Err(error),
            // A peer that was removed meanwhile.
            _ => Ok(()),
        }
    }

    /// Whether the only peer, to which nothing was sent yet, has sent something.
    pub(crate) fn has_heard(&self, peer: FiAddr) -> bool {
        self.peers.peer(peer).is_some_and(|peer| self.engine.has_exchanged(peer))
    }

    /// Takes all that has arrived from the device; of what arrives meanwhile something may be left. Returns `false` while a
    /// completion queue is full, as it takes nothing then.
    pub(crate) fn drain(&mut self, clock: &Clock) -> bool {
        let (mut idle, mut polls) = (0, 0);
        while idle < IDLE_POLLS && polls < MOST_POLLS {
            polls += 1;
            let before = self.engine.statistics().received_bytes;
            self.progress(clock);
            if !self.transmit.is_clear() || !self.receive.is_clear() {
                return false;
            }
            idle = if self.engine.statistics().received_bytes == before { idle + 1 } else { 0 };
        }
        true
    }

    /// Ends the connection with the only peer.
    pub(crate) fn end_connection(&mut self, peer: FiAddr) {
        let peer = self.peers.peer(peer);
        self.engine.end_connection(peer);
        self.deliver();
    }
}
