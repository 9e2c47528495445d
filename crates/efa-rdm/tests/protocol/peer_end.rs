//! Peers that end in the middle of an operation: for each reason, in each subprotocol, on both
//! sides, at many moments.
//!
//! One endpoint *survives*; its peer ends. What must hold at the survivor:
//!
//! * Operations that were complete before the end complete with `Ok`. Pending ones fail with the
//!   reason.
//! * Each operation has one completion.
//! * The endpoint keeps nothing of the peer: no packets, no bytes of unexpected messages, no operations that
//!   count against the limits.
//! * The same operation with the next incarnation of the peer succeeds.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::Status;
use efa_proto::{Header, MsgId, PacketType, RawAddress, ReqOptions, Rtm, RtmKind};
use efa_rdm::{
    Accept, Bounds, Config, Endpoint, Event, Excess, Level, Message, OperationError, PacketsHeld,
    PeerId, ReceiveId, StartError,
};
use efa_sim::local::Faults;

use crate::leaving::Leaving;
use crate::longread::Memory;
use crate::rma::bytes_of;
use crate::world::{Net, pattern, place};

pub(crate) mod operations;

use self::operations::{
    CQ_DATA, Kind, LONG, OPERATION, Operation, PROBE, READ_ONLY, RECEIVE, Receive, SOURCE,
    UnderWay, operations, post_receive,
};

type World = Net<Memory>;

// ---- the ends -------------------------------------------------------------------------------------

/// Why a peer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Its queue pair was created again, with another connid.
    Restarted,
    /// The application removes it.
    Removed,
    /// The application removes it while packets to it wait for an RNR retry.
    RemovedInBackoff,
    /// It exceeds a limit on the bytes that the survivor stores for it.
    Excluded,
    /// The survivor's device fails to deliver a packet, although the peer is alive.
    Lost,
    /// The peer's device stops answering.
    Dead,
    /// The survivor's HANDSHAKE can't be delivered.
    HandshakeUndeliverable,
}

/// Reasons that can occur at any moment.
const REASONS: [Reason; 5] =
    [Reason::Restarted, Reason::Removed, Reason::Excluded, Reason::Lost, Reason::Dead];

const LOST: Status = Status::UnreachableRemote;
const DEAD: Status = Status::UnresponsiveRemote;
/// Bytes of out-of-order packets beyond which a peer is excluded.
const EARLY: usize = 10_000;
/// Limit of pending operations at an endpoint.
const LIMIT: usize = 8;

impl Reason {
    /// The error of failed operations.
    fn error(self, survivor: &[Event]) -> OperationError {
        match self {
            Self::Restarted => OperationError::PeerRestarted,
            Self::Removed | Self::RemovedInBackoff => OperationError::PeerRemoved,
            Self::Lost | Self::HandshakeUndeliverable => OperationError::Device(LOST),
            Self::Dead => OperationError::Device(DEAD),
            Self::Excluded => {
                let excess = survivor.iter().find_map(|event| match event {
                    Event::PeerExcluded { excess, .. } => Some(*excess),
                    _ => None,
                });
                let excess = excess.expect("an event with the number of bytes");
                assert!(matches!(excess, Excess::Ahead { limit: EARLY, .. }), "{excess:?}");
                OperationError::PeerExcluded(excess)
            }
        }
    }

    /// Whether an event reports this reason.
    fn is_event(self, event: &Event) -> bool {
        match event {
            Event::PeerRestarted { .. } => self == Self::Restarted,
            Event::PeerExcluded { .. } => self == Self::Excluded,
            Event::PeerLost { status, .. } => match self {
                Self::Lost => *status == LOST,
                Self::Dead => *status == DEAD,
                _ => false,
            },
            _ => false,
        }
    }

    /// The number of such events.
    fn events(self) -> usize {
        usize::from(matches!(self, Self::Restarted | Self::Excluded | Self::Lost | Self::Dead))
    }

    /// Makes the peer end for this reason, at once or within some steps.
    fn apply(self, world: &mut World, survivor: usize, peer: PeerId) {
        let other = 1 - survivor;
        let me = place(&world.ends[survivor]);
        match self {
            Self::Restarted => {
                restart(world, other);
                assert_ne!(world.peer(survivor, other), peer);
            }
            Self::Removed | Self::RemovedInBackoff => {
                world.endpoint(survivor).remove_peer(peer);
            }
            Self::Excluded => {
                let connid = Some(world.endpoint(other).address().connid);
                let options = ReqOptions { connid, ..ReqOptions::NONE };
                // Its responses arrive later than that.
                let from = place(&world.ends[other]);
                world.network.delay_sends(from, u32::MAX, Duration::from_micros(50)).unwrap();
                for msg_id in [1000, 1001] {
                    let kind = RtmKind::Eager;
                    let rtm = Rtm { msg_id: MsgId(msg_id), tag: None, kind, options };
                    world.inject(other, survivor, Header::Rtm(rtm), &[1; 6000]);
                }
            }
            Self::Lost => {
                world.network.fail_sends(me, 1, LOST).unwrap();
                probe(world, survivor, peer);
            }
            Self::Dead => {
                let target = place(&world.ends[other]);
                world.network.kill(target).unwrap();
                probe(world, survivor, peer);
            }
            Self::HandshakeUndeliverable => {}
        }
    }
}

/// Posts a message, so that the device can fail to send it.
fn probe(world: &mut World, survivor: usize, peer: PeerId) {
    let (tag, cq_data, level, context) = (None, None, Level::Transmit, PROBE);
    let buffer = Memory::Heap(vec![1]);
    let message = Message { peer, tag, cq_data, level, buffer, context };
    world.endpoint(survivor).send(message).unwrap();
}

/// Replaces an endpoint by its next incarnation, which has no peers.
fn restart(world: &mut World, end: usize) {
    let connid = world.endpoint(end).address().connid.0;
    world.restart(end, connid + 1, config(0));
    let end = &mut world.ends[end];
    end.sends.clear();
    end.receives.clear();
    end.rma.clear();
    end.atomics.clear();
    end.remote_writes.clear();
    end.events.clear();
}

pub(crate) fn config(runt_size: u64) -> Config {
    Config::default().with(|config| {
        config.max_medium = 40_000;
        config.min_read = Some(100_000);
        config.min_read_write = 100_000;
        config.runt_size = runt_size;
        config.cts_window = 2;
        config.max_sends = LIMIT;
        config.max_receives = LIMIT;
        // The pools are not trimmed.
        config.trim_interval = Duration::from_secs(3600);
    })
}

// ---- a run ----------------------------------------------------------------------------------------

/// The operation, the surviving side, and the reason for the end of the other.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: Operation,
    survivor: usize,
    receive: Receive,
    reason: Reason,
    /// Steps of the world before it happens.
    moment: usize,
}

/// What the survivor reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Completed,
    Failed,
    /// The operation has no completion at this side, or had not started.
    Nothing,
}

impl Case {
    fn world(&self) -> World {
        let mut world = self.operation.world(Bounds::default().with(|bounds| bounds.ahead = EARLY));
        // If the HANDSHAKE is to fail, the survivor has not sent it yet.
        if self.reason != Reason::HandshakeUndeliverable {
            exchange(&mut world, 1);
        }
        world
    }

    /// Steps until the operation is complete, if no peer ends.
    fn steps(&self) -> usize {
        let mut world = self.world();
        let _memory = self.operation.start(&mut world, self.receive);
        for steps in 1..10_000 {
            world.step();
            if self.operation.is_complete(&world, self.receive)
                || (self.receive == Receive::None && world.network.next_event().is_none())
            {
                return steps;
            }
        }
        panic!("{self:?} does not complete");
    }

    fn run(&self) -> Outcome {
        let Self { operation, survivor, reason, .. } = *self;
        let mut world = self.world();
        let other = 1 - survivor;
        let (peer, address) = (world.peer(survivor, other), world.endpoint(other).address());
        let (under_way, packets) = self.begin(&mut world);
        let before = world.endpoint(survivor).packets_held();
        let packets_before = self.packets_received(&mut world);
        reason.apply(&mut world, survivor, peer);
        let at_once = self.has_ended(&mut world, peer, &address);
        let completed = self.step_until_ended(&mut world, peer, &address);
        if reason == Reason::HandshakeUndeliverable {
            // The other endpoint is removed from the network and sends no further HANDSHAKE.
            let target = place(&world.ends[other]);
            world.network.kill(target).unwrap();
            world.network.set_faults(Faults::default());
        }
        world.drive();

        let error = reason.error(world.ends[survivor].events.make_contiguous());
        self.check_probe(&mut world, error);
        let events = world.ends[survivor].events.drain(..).collect::<Vec<_>>();
        let ends = events.iter().filter(|event| is_end(event)).collect::<Vec<_>>();
        assert_eq!(ends.len(), reason.events(), "{ends:?}");
        assert!(ends.iter().all(|event| reason.is_event(event)), "{ends:?}");
        let outcome = if survivor == 0 {
            self.check_requester(&mut world, completed, error)
        } else {
            let complete_message = at_once.then(|| packets_before == operation.packets);
            self.check_responder(
                &mut world,
                &under_way,
                &events,
                (completed, complete_message),
                error,
            )
        };
        check_nothing_left(world.endpoint(survivor), before);
        assert!(
            world.endpoint(survivor).packets_held().send_pool >= packets,
            "packets of the send pool were lost"
        );
        self.check_next_incarnation(&mut world, peer);
        outcome
    }

    /// Starts the operation and runs to the chosen step; returns the most packets that the send pool of the
    /// survivor had.
    fn begin(&self, world: &mut World) -> (UnderWay, usize) {
        let Self { operation, survivor, receive, reason, moment } = *self;
        if reason == Reason::RemovedInBackoff {
            let target = place(&world.ends[1 - survivor]);
            world.network.not_ready(target, u32::MAX).unwrap();
        }
        if reason != Reason::HandshakeUndeliverable {
            let under_way = operation.start(world, receive);
            let packets = |world: &mut World| {
                let held = world.endpoint(survivor).packets_held();
                held.sending + held.send_pool
            };
            let mut most = packets(world);
            for _ in 0..moment {
                world.step();
                most = most.max(packets(world));
            }
            return (under_way, most);
        }
        let me = place(&world.ends[survivor]);
        world.network.fail_sends(me, 1, LOST).unwrap();
        if survivor == 1 {
            // The packets of a message arrive one by one; the device delays the HANDSHAKE.
            world.network.set_faults(Faults::default().with(|faults| faults.send_limit = Some(1)));
            world.network.refuse_sends(me, moment as u32).unwrap();
            return (operation.start(world, receive), 0);
        }
        world.receive_into(0, Memory::Heap(vec![0]), RECEIVE);
        world.send(1, 0, Memory::Heap(vec![1]), 0);
        while world.endpoint(0).statistics().sent.of(PacketType::Handshake) == 0 {
            world.step();
        }
        assert_eq!(world.receive_done(0).result, Ok(()));
        (operation.start(world, receive), 0)
    }

    /// Packets of the operation that the survivor has received.
    fn packets_received(&self, world: &mut World) -> Option<u64> {
        Some(world.endpoint(self.survivor).statistics().received.of(self.operation.request?))
    }

    fn has_ended(&self, world: &mut World, peer: PeerId, address: &RawAddress) -> bool {
        world.endpoint(self.survivor).find_peer(address) != Some(peer)
    }

    /// Steps until the peer is removed; returns whether the operation completed before.
    fn step_until_ended(&self, world: &mut World, peer: PeerId, address: &RawAddress) -> bool {
        let mut completed = self.reports(world) > 0;
        for _ in 0..10_000 {
            if self.has_ended(world, peer, address) {
                return completed;
            }
            completed = self.reports(world) > 0;
            world.step();
        }
        panic!("the peer does not end");
    }

    /// Completions of the operation at the survivor so far.
    fn reports(&self, world: &World) -> usize {
        let end = &world.ends[self.survivor];
        let sends = end.sends.iter().filter(|sent| sent.context != PROBE).count();
        sends + end.rma.len() + end.atomics.len() + end.receives.len() + end.remote_writes.len()
    }

    fn check_probe(&self, world: &mut World, error: OperationError) {
        let sends = &mut world.ends[self.survivor].sends;
        let (probes, others): (Vec<_>, Vec<_>) =
            sends.drain(..).partition(|sent| sent.context == PROBE);
        *sends = others.into();
        let expected = usize::from(matches!(self.reason, Reason::Lost | Reason::Dead));
        assert_eq!(probes.len(), expected, "completions of the probe");
        assert!(probes.iter().all(|sent| sent.result == Err(error)), "{probes:?}");
    }

    /// The operation has one completion: `Ok` if it completed before the end, the reason otherwise.
    fn check_requester(
        &self,
        world: &mut World,
        completed: bool,
        error: OperationError,
    ) -> Outcome {
        let end = &mut world.ends[0];
        let sends = end.sends.drain(..).map(|sent| (sent.context, sent.result));
        let mut results: Vec<_> = sends.collect();
        results.extend(end.rma.drain(..).map(|done| (done.context, done.result)));
        results.extend(end.atomics.drain(..).map(|done| (done.context, done.result)));
        let injected = self.operation.kind == Kind::Inject;
        let context = if injected { 0 } else { OPERATION };
        match results[..] {
            // Of an injected message, only a failure is reported.
            [] if injected => Outcome::Completed,
            [(0, Err(found))] if injected => {
                // It completes with its packet, for any status of the packet.
                let of_packet = match self.reason {
                    Reason::Restarted => OperationError::Device(Status::BadDestinationQpn),
                    Reason::RemovedInBackoff => OperationError::Device(Status::ReceiverNotReady),
                    _ => error,
                };
                assert!(found == error || found == of_packet, "{found:?}");
                Outcome::Failed
            }
            [(of, Ok(()))] if of == context => {
                assert!(!injected);
                assert!(completed || !self.ends_at_once(), "Ok for an incomplete operation");
                Outcome::Completed
            }
            [(of, Err(found))] if of == context => {
                assert_eq!(found, error);
                assert!(!completed, "error for a complete operation");
                Outcome::Failed
            }
            _ => panic!("{results:?}"),
        }
    }

    /// Whether the peer ends before anything else can happen.
    fn ends_at_once(&self) -> bool {
        matches!(self.reason, Reason::Restarted | Reason::Removed | Reason::RemovedInBackoff)
    }

    /// A receive, or a write to the survivor's memory, has one completion. `complete_message` is whether
    /// a message without a receive is complete, if that is certain.
    fn check_responder(
        &self,
        world: &mut World,
        under_way: &UnderWay,
        events: &[Event],
        (completed, complete_message): (bool, Option<bool>),
        error: OperationError,
    ) -> Outcome {
        let outcome = match self.operation.kind {
            Kind::Send(_) | Kind::Inject => match under_way.posted {
                Some(id) => self.check_posted(world, id, completed, error),
                None => self.check_unexpected(world, complete_message),
            },
            _ => {
                let written = world.ends[1].remote_writes.drain(..).count();
                let failed = events.iter().filter_map(|event| match event {
                    Event::WriteFailed { error, .. } => Some(*error),
                    _ => None,
                });
                match (written, &failed.collect::<Vec<_>>()[..]) {
                    (1, []) => Outcome::Completed,
                    (0, []) => Outcome::Nothing,
                    (0, [found]) => {
                        assert_eq!(*found, error);
                        assert!(!completed, "error for a complete operation");
                        Outcome::Failed
                    }
                    others => panic!("{others:?}"),
                }
            }
        };
        let end = &world.ends[1];
        let other = end.sends.len() + end.rma.len() + end.atomics.len() + end.receives.len();
        assert_eq!(other, 0, "completions without an operation");
        outcome
    }

    fn check_posted(
        &self,
        world: &mut World,
        id: ReceiveId,
        completed: bool,
        error: OperationError,
    ) -> Outcome {
        let mut received = world.take_receives(1);
        let Some(first) = received.pop() else {
            // No message has arrived: the receive is still posted.
            assert!(world.endpoint(1).cancel(id), "the receive is lost");
            assert_eq!(world.receive_done(1).result, Err(OperationError::Cancelled));
            assert!(!completed);
            return Outcome::Nothing;
        };
        assert!(received.is_empty(), "two completions");
        assert!(!world.endpoint(1).cancel(id), "a completed receive is still posted");
        assert_eq!(first.context, RECEIVE);
        match first.result {
            Ok(()) => {
                assert!(completed || !self.ends_at_once(), "Ok for an incomplete operation");
                assert!(first.buffer.bytes() == pattern(self.operation.length, SOURCE));
                Outcome::Completed
            }
            Err(found) => {
                assert_eq!(found, error);
                assert!(!completed, "error for a complete operation");
                Outcome::Failed
            }
        }
    }

    /// A complete message can still be received, unless its sender was excluded; an incomplete one is
    /// discarded.
    fn check_unexpected(&self, world: &mut World, complete_message: Option<bool>) -> Outcome {
        let id = post_receive(world, self.operation.length);
        let received = world.take_receives(1);
        let can_stay = self.operation.packets.is_some() && self.reason != Reason::Excluded;
        match &received[..] {
            [] => {
                assert!(
                    complete_message != Some(true) || !can_stay,
                    "a complete message was discarded"
                );
                assert!(world.endpoint(1).cancel(id));
                assert_eq!(world.receive_done(1).result, Err(OperationError::Cancelled));
                Outcome::Nothing
            }
            [received] => {
                assert!(
                    complete_message != Some(false) && can_stay,
                    "an incomplete message was kept"
                );
                assert_eq!(received.result, Ok(()));
                assert!(received.buffer.bytes() == pattern(self.operation.length, SOURCE));
                Outcome::Completed
            }
            _ => panic!("{received:?}"),
        }
    }

    /// The next incarnation is another peer. All operations with it succeed, up to the same limits.
    fn check_next_incarnation(&self, world: &mut World, old: PeerId) {
        let other = 1 - self.survivor;
        restart(world, other);
        let new = world.peer(self.survivor, other);
        assert_ne!(new, old);
        let message = message_of(old, 1);
        let refused = world.endpoint(self.survivor).send(message).unwrap_err();
        assert_eq!(refused.error, StartError::PeerGone(old));
        world.peer(other, self.survivor);
        exchange(world, 2);
        self.operation.carry_out(world);
        let buffer = || Memory::Heap(vec![0; LONG]);
        let endpoint = world.endpoint(self.survivor);
        for accepted in 0..=LIMIT {
            let sent = endpoint.send(message_of(new, LONG)).map_err(|refused| refused.error);
            let accept = Accept::Untagged { source: None };
            let posted = endpoint.receive(accept, buffer(), 0).map_err(|refused| refused.error);
            let busy = StartError::Busy { limit: LIMIT };
            let expected = if accepted < LIMIT { (None, None) } else { (Some(busy), Some(busy)) };
            assert_eq!((sent.err(), posted.err()), expected, "after {accepted} others");
        }
    }
}

/// Checks that an endpoint keeps nothing of a removed peer, and that all packets are in its pools again.
fn check_nothing_left(endpoint: &Endpoint<Leaving, Memory>, before: PacketsHeld) {
    assert!(endpoint.is_quiet());
    assert_eq!(endpoint.next_timeout(), None);
    let after = endpoint.packets_held();
    assert_eq!((after.sending, after.held, after.unexpected_bytes), (0, 0, 0));
    assert!(after.send_pool >= before.send_pool + before.sending, "{before:?} {after:?}");
    let received = |held: PacketsHeld| held.posted + held.receive_pool;
    assert!(received(after) >= received(before), "{before:?} {after:?}");
}

fn message_of(peer: PeerId, length: usize) -> Message<Memory> {
    let (tag, cq_data, level, context) = (None, None, Level::Transmit, 0);
    Message { peer, tag, cq_data, level, buffer: Memory::Heap(vec![1; length]), context }
}

/// A message in both directions.
fn exchange(world: &mut World, salt: u64) {
    for (from, to) in [(0, 1), (1, 0)] {
        world.receive_into(to, Memory::Heap(vec![0; 10]), 0);
        world.send(from, to, Memory::Heap(pattern(10, salt)), 0);
        world.drive();
        let received = world.receive_done(to);
        assert_eq!((received.result, received.buffer.bytes()), (Ok(()), pattern(10, salt)));
        assert_eq!(world.send_done(from).result, Ok(()));
    }
}

fn is_end(event: &Event) -> bool {
    matches!(
        event,
        Event::PeerRestarted { .. } | Event::PeerLost { .. } | Event::PeerExcluded { .. }
    )
}

/// Prints the case that fails.
struct Printed(Case);

impl Drop for Printed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}", self.0);
        }
    }
}

/// Moments at which a peer ends, at most so many.
const MOMENTS: usize = 8;

/// Runs every operation with one receive setting and reason, at moments from its start to its end.
fn run_all(survivor: usize, reason: Reason) {
    for operation in operations() {
        for receive in [Receive::Posted, Receive::None] {
            if receive == Receive::None && !(survivor == 1 && operation.is_message()) {
                continue;
            }
            let case = Case { operation, survivor, receive, reason, moment: 0 };
            let moments = match reason {
                Reason::HandshakeUndeliverable if survivor == 0 => vec![0],
                Reason::HandshakeUndeliverable if !operation.needs_no_handshake() => continue,
                Reason::HandshakeUndeliverable => vec![0, 1, 2],
                Reason::RemovedInBackoff => vec![0, 2, 5, 10, 20, 40],
                _ => {
                    let steps = case.steps();
                    let count = MOMENTS.min(steps + 1);
                    (0..count).map(|i| steps * i / (count - 1)).collect()
                }
            };
            let mut outcomes = Vec::new();
            for moment in moments {
                let printed = Printed(Case { moment, ..case });
                outcomes.push(printed.0.run());
            }
            if operation.can_fail(survivor, receive, reason) {
                assert!(outcomes.contains(&Outcome::Failed), "{case:?}: {outcomes:?}");
            }
        }
    }
}

#[test]
fn requester_survives_end_of_responder() {
    for reason in REASONS {
        run_all(0, reason);
    }
}

#[test]
fn responder_survives_end_of_requester() {
    for reason in REASONS {
        run_all(1, reason);
    }
}

#[test]
fn requester_survives_removal_of_responder_that_is_not_ready() {
    run_all(0, Reason::RemovedInBackoff);
}

#[test]
fn responder_survives_removal_of_requester_that_is_not_ready() {
    run_all(1, Reason::RemovedInBackoff);
}

#[test]
fn requester_survives_failed_handshake_to_responder() {
    run_all(0, Reason::HandshakeUndeliverable);
}

#[test]
fn responder_survives_failed_handshake_to_requester() {
    run_all(1, Reason::HandshakeUndeliverable);
}

/// The last step of an operation queues a response to the peer, which exceeds the bound on those.
#[test]
fn operation_whose_response_excludes_the_peer_is_complete() {
    let mut responses = BTreeSet::new();
    for operation in operations() {
        let response = match operation.kind {
            Kind::Send(_) | Kind::Write(_) if operation.rdma == READ_ONLY => PacketType::Eor,
            Kind::Send(Level::Delivery) | Kind::Write(Level::Delivery) => PacketType::Receipt,
            _ => continue,
        };
        responses.insert(response.as_u8());
        let mut world = operation.world(Bounds::default().with(|bounds| bounds.responses = 0));
        exchange(&mut world, 1);
        let before = world.endpoint(1).packets_held();
        let peer = world.peer(1, 0);
        let under_way = operation.start(&mut world, Receive::Posted);
        if response == PacketType::Eor {
            while world.endpoint(1).statistics().rdma_reads == 0 {
                world.step();
            }
            // It is posted at once, and queued if the device takes nothing.
            let responder = place(&world.ends[1]);
            world.network.refuse_sends(responder, 1).unwrap();
        }
        world.drive();
        let excluded =
            Event::PeerExcluded { peer, excess: Excess::Responses { packets: 1, limit: 0 } };
        let events: Vec<_> = world.ends[1].events.drain(..).filter(is_end).collect();
        assert_eq!(events, [excluded], "{operation:?}");
        assert_eq!(world.endpoint(1).statistics().sent.of(response), 0, "{operation:?}");
        let expected = pattern(operation.length, SOURCE);
        if operation.is_message() {
            let received = world.receive_done(1);
            assert_eq!(received.result, Ok(()), "{operation:?}");
            assert!(received.buffer.bytes() == expected);
        } else {
            let written = world.ends[1].remote_writes.pop_front();
            assert_eq!(written.map(|written| written.cq_data), Some(CQ_DATA), "{operation:?}");
            assert!(bytes_of(&under_way.memory) == expected);
        }
        let end = &world.ends[1];
        assert_eq!((end.receives.len(), end.remote_writes.len()), (0, 0), "a second completion");
        check_nothing_left(&end.endpoint, before);
        restart(&mut world, 0);
        world.acquaint();
        exchange(&mut world, 2);
    }
    assert_eq!(responses.len(), 2);
}
