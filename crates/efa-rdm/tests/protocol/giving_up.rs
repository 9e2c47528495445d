//! One side gives an operation up, and the other learns of it: the rows of docs/giving-up.md. The sender that
//! gives up is in `abandoned`, the peer that ends in `peer_end`.
//!
//! End 0 is the requester, end 1 the responder.

use std::time::Duration;

use efa_device::{Status, Time};
use efa_handshake::{Extras, Release};
use efa_proto::{
    ExtraInfo, Handshake, Header, MsgId, OpId, Packet, PacketType, PeerError, RawAddressForm,
    ReqOptions, RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtr, RtrKind,
};
use efa_rdm::{
    Accept, Bounds, Config, DropReason, Event, Level, OperationError, Payload, Statistics,
};
use efa_sim::SoftRegion;

use crate::longread::Memory;
use crate::peer_end::config;
use crate::peer_end::operations::{
    Kind, LONG, Operation, RECEIVE, Receive, SOURCE, TAG, UnderWay, operations,
};
use crate::world::{Net, World as Bytes, pattern, place};

type World = Net<Memory>;

/// libfabric's number for errors without a number of their own.
const OTHER: u32 = 4096;

/// Which side, if any, lacks PEER_ERROR.
const LACKING: [Option<usize>; 3] = [None, Some(0), Some(1)];

/// The settings of both ends with PEER_ERROR, except for that which lacks it.
fn configs(operation: &Operation, lacking: Option<usize>) -> [Config; 2] {
    [0, 1].map(|end| {
        let mut config = config(operation.runt_size);
        config.profile.extras.set(Extras::PEER_ERROR_20, lacking != Some(end));
        config
    })
}

fn given_up(code: u32) -> OperationError {
    OperationError::GivenUp { code }
}

impl Operation {
    fn is_direct(&self) -> bool {
        self.request.is_none()
    }

    /// Whether the requester waits for an answer of the responder.
    fn waits(&self) -> bool {
        !matches!(
            (self.kind, self.length),
            (Kind::Send(Level::Transmit) | Kind::Write(Level::Transmit), ..LONG)
                | (Kind::AtomicWrite(Level::Transmit) | Kind::Inject, _)
        )
    }

    fn is_read(&self) -> bool {
        let read =
            |request| matches!(request, PacketType::LongReadTagRtm | PacketType::RuntReadTagRtm);
        self.request.is_some_and(read)
    }
}

/// Steps until end 1 has done something, or fails.
fn step_until<B>(world: &mut Net<B>, done: impl Fn(&Statistics) -> bool)
where
    B: Payload<SoftRegion> + std::fmt::Debug,
{
    for _ in 0..100_000 {
        if done(world.endpoint(1).statistics()) {
            return;
        }
        world.step();
    }
    panic!("it doesn't come to that");
}

/// Exchanges HANDSHAKEs: both ends know each other's features.
fn shake_hands(world: &mut World) {
    world.receive_into(1, Memory::Heap(vec![0]), 0);
    world.send(0, 1, Memory::Heap(vec![1]), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world.forget_packets();
}

/// The results of all operations that have ended at the requester.
fn ended(world: &mut World) -> Vec<Result<(), OperationError>> {
    let end = &mut world.ends[0];
    end.collect();
    let sends = end.sends.drain(..).map(|done| done.result);
    let rma = end.rma.drain(..).map(|done| done.result);
    let atomics = end.atomics.drain(..).map(|done| done.result);
    sends.chain(rma).chain(atomics).collect()
}

/// Asserts that operations still wait, and end when the application removes the peer.
fn assert_waits_until_removal(world: &mut World, count: usize) {
    assert_eq!(ended(world), [], "nothing tells the requester");
    let peer = world.peer(0, 1);
    world.endpoint(0).remove_peer(peer);
    world.drive();
    assert_eq!(ended(world), vec![Err(OperationError::PeerRemoved); count]);
}

fn no_peer_is_lost<B>(world: &Net<B>) -> bool
where
    B: Payload<SoftRegion> + std::fmt::Debug,
{
    let mut events = world.ends.iter().flat_map(|end| &end.events);
    !events.any(|event| matches!(event, Event::PeerLost { .. } | Event::PeerExcluded { .. }))
}

#[test]
fn one_sided_operation_without_access_ends_at_the_requester_by_peer_error() {
    for operation in operations().into_iter().filter(|operation| !operation.is_message()) {
        for lacking in LACKING {
            let mut world = operation.world_of(configs(&operation, lacking));
            let UnderWay { memory, .. } = operation.start(&mut world, Receive::None);
            // The key isn't valid any more when the request arrives.
            drop(memory);
            world.drive();
            let refused = Status::RemoteBadAddress;
            let told = lacking.is_none();
            match () {
                () if operation.is_direct() => {
                    assert_eq!(ended(&mut world), [Err(OperationError::Device(refused))]);
                }
                () if !operation.waits() => assert_eq!(ended(&mut world), [Ok(())]),
                () if told => {
                    let error = given_up(refused.code().into());
                    assert_eq!(ended(&mut world), [Err(error)], "{operation:?}");
                }
                () => {}
            }
            let seen = world.ends[1]
                .events
                .iter()
                .any(|event| matches!(event, Event::AccessRefused { .. }));
            assert_eq!(seen, !operation.is_direct(), "{operation:?}");
            assert!(no_peer_is_lost(&world), "{operation:?}");
            if !told && operation.waits() && !operation.is_direct() {
                assert_waits_until_removal(&mut world, 1);
            }
        }
    }
}

#[test]
fn request_beyond_the_bound_ends_at_the_requester_by_peer_error() {
    let mut refusals = 0;
    for operation in operations().into_iter().filter(|operation| !operation.is_message()) {
        let bounds = Bounds::default().with(|bounds| bounds.requests = 1);
        let [requester, responder] = configs(&operation, None);
        let responder = responder.with(|config| config.bounds = bounds);
        let mut world = operation.world_of([requester, responder]);
        let _memory = [(); 3].map(|()| operation.start(&mut world, Receive::None));
        world.drive();
        let ended = ended(&mut world);
        let refused = world.drop_reasons(1);
        assert!(refused.iter().all(|reason| *reason == DropReason::TooManyOperations));
        assert_eq!(ended.len(), 3, "{operation:?}");
        let failed = ended.iter().filter(|result| **result == Err(given_up(OTHER))).count();
        let ok = ended.iter().filter(|result| result.is_ok()).count();
        assert_eq!((failed, ok), (refused.len(), 3 - refused.len()), "{operation:?}: {ended:?}");
        refusals += failed;
    }
    assert!(refusals >= 10, "{refusals}");
}

/// What the peers have for a message that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    ReadNack,
    PeerError,
    None,
}

#[test]
fn message_that_cannot_be_read_goes_on_in_packets_or_ends_on_both_sides() {
    for operation in operations().into_iter().filter(Operation::is_read) {
        for answer in [Answer::ReadNack, Answer::PeerError, Answer::None] {
            let lacking = (answer == Answer::None).then_some(0);
            let configs = configs(&operation, lacking).map(|mut config| {
                config.profile.extras.set(Extras::READ_NACK, answer == Answer::ReadNack);
                config
            });
            let mut world = operation.world_of(configs);
            shake_hands(&mut world);
            world.network.forbid_access(place(&world.ends[0]), true).unwrap();
            operation.start(&mut world, Receive::Posted);
            world.drive();
            let received = world.receive_done(1);
            let not_permitted = Err(OperationError::Device(Status::NotPermitted));
            match answer {
                Answer::ReadNack => {
                    assert_eq!(received.result, Ok(()), "{operation:?}");
                    assert!(received.buffer.bytes() == pattern(operation.length, SOURCE));
                    assert_eq!(ended(&mut world), [Ok(())]);
                }
                Answer::PeerError => {
                    assert_eq!(received.result, not_permitted, "{operation:?}");
                    let code = Status::NotPermitted.code().into();
                    assert_eq!(ended(&mut world), [Err(given_up(code))]);
                }
                Answer::None => assert_eq!(received.result, not_permitted, "{operation:?}"),
            }
            assert!(no_peer_is_lost(&world), "{operation:?}, {answer:?}");
            if answer == Answer::None {
                assert_waits_until_removal(&mut world, 1);
            }
        }
    }
}

#[test]
fn message_whose_memory_becomes_unreadable_during_the_read_goes_on_in_packets() {
    for operation in operations().into_iter().filter(Operation::is_read) {
        for reads in 1..6 {
            let configs = configs(&operation, None).map(|mut config| {
                (config.max_rdma, config.rdma_segment) = (1, 20_000);
                config
            });
            let mut world = operation.world_of(configs);
            shake_hands(&mut world);
            operation.start(&mut world, Receive::Posted);
            step_until(&mut world, |statistics| statistics.rdma_reads >= reads);
            world.network.forbid_access(place(&world.ends[0]), true).unwrap();
            world.drive();
            assert!(world.types_from(1).contains(&PacketType::ReadNack));
            let received = world.receive_done(1);
            assert_eq!(received.result, Ok(()), "{operation:?} after {reads}");
            assert!(received.buffer.bytes() == pattern(operation.length, SOURCE));
            assert_eq!(ended(&mut world), [Ok(())]);
            world.assert_clean();
        }
    }
}

/// The sender's HANDSHAKE says whether it takes a READ_NACK, and may arrive after the message.
#[test]
fn refusal_of_a_read_waits_for_the_handshake_of_the_sender() {
    for has in [true, false] {
        let sender = if has { Release::V1_20 } else { Release::V1_18 };
        let mut world = Bytes::pair_with(2, Config::as_release(sender), Config::default());
        world.acquaint();
        let by = Duration::from_millis(1);
        world.network.delay_sends(place(&world.ends[0]), 1, by).unwrap();
        let address = world.ends[0].endpoint.address();
        let raw_address = Some((address, RawAddressForm::Padded));
        let iov = [RmaIov::new(8, 200_000, 1)];
        let (msg_length, send_id) = (200_000, RECV_ID);
        let header = Header::Rtm(Rtm {
            msg_id: MsgId(0),
            tag: None,
            kind: RtmKind::LongRead { msg_length, send_id, read_iov: &iov },
            options: ReqOptions { raw_address, cq_data: None, connid: None },
        });
        world.receive(1, 200_000, 1);
        world.inject(0, 1, header, &[]);
        step_until(&mut world, |statistics| statistics.rdma_reads == 4);
        while world.now < Time::ZERO + by / 2 {
            world.step();
        }
        assert_eq!(world.types_from(1), [PacketType::Handshake]);
        world.drive();
        let (types, received) = (world.types_from(1), world.take_receives(1));
        if has {
            assert_eq!(types, [PacketType::Handshake, PacketType::ReadNack]);
            assert_eq!(received.len(), 0, "the sender goes on");
        } else {
            assert_eq!(types, [PacketType::Handshake]);
            let refused = OperationError::Device(Status::RemoteBadAddress);
            assert_eq!(received[0].result, Err(refused));
        }
    }
}

/// Polls for long enough for packets to arrive, and not until something else is due.
fn pass(world: &mut Bytes) {
    for _ in 0..100 {
        let now = world.now;
        world.step();
        world.now = now + Duration::from_micros(1);
    }
}

/// The HANDSHAKE of the sender arrives, and with it the last part of the runt, which allows the READ_NACK as well.
#[test]
fn refusal_that_waited_for_the_handshake_sends_one_read_nack() {
    let [sender, receiver] = [Release::V1_20, Release::V2_6].map(Config::as_release);
    let mut world = Bytes::pair_with(2, sender, receiver);
    world.acquaint();
    world.network.delay_sends(place(&world.ends[0]), 1, Duration::from_secs(20)).unwrap();
    let raw_address = Some((world.ends[0].endpoint.address(), RawAddressForm::Padded));
    let iov = [RmaIov::new(8, 200_000, 1)];
    let runt = |seg_offset| {
        let (msg_length, runt_length) = (200_000, 2_000);
        let kind = RtmKind::RuntRead {
            msg_length,
            send_id: RECV_ID,
            seg_offset,
            runt_length,
            read_iov: &iov,
        };
        let options = ReqOptions { raw_address, cq_data: None, connid: None };
        Header::Rtm(Rtm { msg_id: MsgId(0), tag: None, kind, options })
    };
    world.receive(1, 200_000, 1);
    world.inject(0, 1, runt(0), &[7; 1_000]);
    step_until(&mut world, |statistics| statistics.rdma_reads == 4);
    pass(&mut world);
    assert_eq!(world.types_from(1), [PacketType::Handshake]);
    let extra_info = ExtraInfo::new(&[Config::as_release(Release::V1_20).profile.extras.bits()]);
    let connid = Some(world.ends[0].endpoint.address().connid);
    let handshake = Handshake {
        extra_info: extra_info.unwrap(),
        connid,
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    };
    // Both arrive, in this order, before the receiver looks again.
    for (header, payload) in [(Header::Handshake(handshake), &[][..]), (runt(1_000), &[7; 1_000])] {
        world.inject(0, 1, header, payload);
        world.now += Duration::from_micros(100);
        let now = world.now;
        world.endpoint(0).progress(now);
    }
    pass(&mut world);
    assert_eq!(world.types_from(1), [PacketType::Handshake, PacketType::ReadNack]);
}

#[test]
fn write_that_the_target_cannot_read_ends_on_both_sides_by_peer_error() {
    let is_read = |operation: &Operation| operation.request == Some(PacketType::LongReadRtw);
    let operation = operations().into_iter().find(is_read).unwrap();
    for lacking in LACKING {
        let mut world = operation.world_of(configs(&operation, lacking));
        world.network.forbid_access(place(&world.ends[0]), true).unwrap();
        let _memory = operation.start(&mut world, Receive::None);
        world.drive();
        let error = OperationError::Device(Status::NotPermitted);
        let failed =
            |event: &Event| matches!(event, Event::WriteFailed { error: of, .. } if *of == error);
        assert!(world.ends[1].events.iter().any(failed));
        assert!(no_peer_is_lost(&world));
        match lacking {
            None => {
                let code = Status::NotPermitted.code().into();
                assert_eq!(ended(&mut world), [Err(given_up(code))]);
            }
            Some(_) => assert_waits_until_removal(&mut world, 1),
        }
    }
}

#[test]
fn direct_operation_on_forbidden_memory_fails_and_its_peer_stays() {
    for operation in operations().into_iter().filter(Operation::is_direct) {
        let mut world = operation.world(Bounds::default());
        world.network.forbid_access(place(&world.ends[1]), true).unwrap();
        let _memory = operation.start(&mut world, Receive::None);
        world.drive();
        let error = OperationError::Device(Status::NotPermitted);
        assert_eq!(ended(&mut world), [Err(error)], "{operation:?}");
        assert!(no_peer_is_lost(&world));
        world.network.forbid_access(place(&world.ends[1]), false).unwrap();
        operation.carry_out(&mut world);
    }
}

#[test]
fn truncated_message_is_complete_for_its_sender() {
    for operation in operations().into_iter().filter(Operation::is_message) {
        let mut world = operation.world(Bounds::default());
        let accept = Accept::Tagged { source: None, tag: TAG, ignore: 0 };
        let (length, capacity) = (operation.length as u64, operation.length as u64 / 2);
        let buffer = Memory::Heap(vec![0; capacity as usize]);
        world.endpoint(1).receive(accept, buffer, RECEIVE).unwrap();
        operation.start(&mut world, Receive::None);
        world.drive();
        let received = world.receive_done(1);
        let error = OperationError::Truncated { length, capacity };
        assert_eq!((received.context, received.result), (RECEIVE, Err(error)), "{operation:?}");
        let expected = if operation.kind == Kind::Inject { vec![] } else { vec![Ok(())] };
        assert_eq!(ended(&mut world), expected, "{operation:?}");
    }
}

/// Nothing is sent to a removed peer, and no packet of the protocol says that it was removed.
#[test]
fn operation_with_an_endpoint_that_removed_this_one_waits_until_it_is_removed_too() {
    for operation in operations().into_iter().filter(|operation| !operation.is_direct()) {
        let mut world = operation.world(Bounds::default());
        let _memory = operation.start(&mut world, Receive::Posted);
        world.step();
        let requester = world.peer(1, 0);
        world.endpoint(1).remove_peer(requester);
        world.drive();
        let (peer, sent) = (world.peer(0, 1), ended(&mut world));
        world.endpoint(0).remove_peer(peer);
        world.drive();
        let expected = usize::from(operation.kind != Kind::Inject);
        assert_eq!(sent.len() + ended(&mut world).len(), expected, "{operation:?}");
    }
}

/// The address has the same connid, so the other side doesn't see that its peer was inserted anew.
#[test]
fn address_inserted_again_on_one_side_loses_messages_until_it_is_on_both() {
    let mut world = Bytes::pair(6);
    for round in 0..3 {
        exchange(&mut world, 0, 1, round);
        exchange(&mut world, 1, 0, round);
    }
    insert_again(&mut world, 0, 1);
    // Message 0 is an old one there.
    world.receive(1, 10, 7);
    world.send(0, 1, pattern(10, 7), 7);
    world.drive();
    assert_eq!(world.send_done(0).result, Ok(()));
    assert_eq!(world.drop_reasons(1), [DropReason::OldMessageId]);
    // Message 3 is ahead here.
    world.receive(0, 10, 8);
    world.send(1, 0, pattern(10, 8), 8);
    world.drive();
    assert_eq!(world.send_done(1).result, Ok(()));
    assert!(world.take_receives(0).is_empty() && world.take_receives(1).is_empty());
    assert!(no_peer_is_lost(&world));
    // Both begin anew; the receives are still posted.
    insert_again(&mut world, 0, 1);
    insert_again(&mut world, 1, 0);
    for (from, to, context) in [(0, 1, 7), (1, 0, 8)] {
        world.send(from, to, pattern(10, context), context);
        world.drive();
        let received = world.receive_done(to);
        assert_eq!((received.context, received.result), (context, Ok(())));
        assert_eq!(world.send_done(from).result, Ok(()));
    }
    exchange(&mut world, 0, 1, 9);
}

fn exchange(world: &mut Bytes, from: usize, to: usize, context: u64) {
    world.receive(to, 10, context);
    world.send(from, to, pattern(10, context), context);
    world.drive();
    assert_eq!(world.receive_done(to).buffer, pattern(10, context));
    assert_eq!(world.send_done(from).result, Ok(()));
}

fn insert_again(world: &mut Bytes, at: usize, which: usize) {
    let peer = world.peer(at, which);
    world.endpoint(at).remove_peer(peer);
    assert_ne!(world.peer(at, which), peer);
}

// ---- requests of a stranger -----------------------------------------------------------------------

const RECV_ID: OpId = OpId(77);

/// A stranger's read of memory that doesn't exist.
fn read_of_nothing(world: &Bytes) -> Header<'static> {
    const IOV: &[RmaIov] = &[RmaIov::new(8, 100, 1)];
    let address = world.ends[0].endpoint.address();
    Header::Rtr(Rtr {
        rma_iov: IOV,
        kind: RtrKind::Short,
        msg_length: 100,
        recv_id: RECV_ID,
        recv_length: 100,
        options: ReqOptions {
            raw_address: Some((address, RawAddressForm::Padded)),
            cq_data: None,
            connid: None,
        },
    })
}

fn with_peer_error(has: bool) -> Config {
    let mut config = Config::default();
    config.profile.extras.set(Extras::PEER_ERROR_20, has);
    config
}

/// The operations and codes of the PEER_ERRORs that end 1 sent.
fn peer_errors(world: &mut Bytes) -> Vec<(OpId, u32)> {
    let packets = world.packets_from(1);
    let errors = packets.iter().filter_map(|bytes| match Packet::parse(bytes).unwrap().header {
        Header::PeerError(PeerError { op_id, ref_kind: 0, prov_errno, .. }) => {
            Some((op_id, prov_errno))
        }
        _ => None,
    });
    errors.collect()
}

#[test]
fn refusal_waits_for_the_handshake_of_its_peer() {
    for has in [true, false] {
        let mut world = Bytes::pair_with(2, with_peer_error(has), with_peer_error(true));
        world.acquaint();
        let request = read_of_nothing(&world);
        world.inject(0, 1, request, &[]);
        step_until(&mut world, |statistics| statistics.access_refused == 1);
        assert_eq!(world.types_from(1), [PacketType::Handshake]);
        world.drive();
        let code = Status::RemoteBadAddress.code().into();
        let expected: &[_] = if has { &[(RECV_ID, code)] } else { &[] };
        assert_eq!(peer_errors(&mut world), expected);
    }
}

#[test]
fn refusals_that_wait_for_a_handshake_are_bounded() {
    let bounds = Bounds::default().with(|bounds| bounds.responses = 10);
    let config = with_peer_error(true).with(|config| config.bounds = bounds);
    let mut world = Bytes::pair_with(2, with_peer_error(true), config);
    world.acquaint();
    // End 0 sends no HANDSHAKE for so long.
    world.network.delay_sends(place(&world.ends[0]), 1, Duration::from_millis(1)).unwrap();
    let request = read_of_nothing(&world);
    for _ in 0..100 {
        world.inject(0, 1, request, &[]);
    }
    step_until(&mut world, |statistics| statistics.access_refused == 100);
    assert_eq!(peer_errors(&mut world), []);
    world.drive();
    assert_eq!(peer_errors(&mut world).len(), 10);
}

#[test]
fn atomic_that_the_responder_does_not_know_is_answered_by_peer_error() {
    let mut world = Bytes::pair_with(2, with_peer_error(true), with_peer_error(true));
    world.acquaint();
    let request = |kind, msg_id, world: &Bytes| {
        const IOV: &[RmaIov] = &[RmaIov::new(8, 8, 1)];
        let address = world.ends[0].endpoint.address();
        let raw_address = Some((address, RawAddressForm::Padded));
        let options = ReqOptions { raw_address, cq_data: None, connid: None };
        let (msg_id, rma_iov) = (MsgId(msg_id), IOV);
        Header::Rta(Rta { msg_id, rma_iov, datatype: 99, op: 0, kind, options })
    };
    let kinds = [
        RtaKind::Fetch { recv_id: OpId(1) },
        RtaKind::Compare { recv_id: OpId(2) },
        RtaKind::DcWrite { send_id: OpId(3) },
        RtaKind::Write,
    ];
    for (msg_id, kind) in (0..).zip(kinds) {
        let header = request(kind, msg_id, &world);
        world.inject(0, 1, header, &[0; 16]);
    }
    world.drive();
    let code = Status::UnsupportedOperation.code().into();
    let mut errors = peer_errors(&mut world);
    errors.sort_unstable_by_key(|(id, _)| id.0);
    assert_eq!(errors, [1, 2, 3].map(|id| (OpId(id), code)));
    assert_eq!(world.drop_reasons(1), [DropReason::BadAtomic; 4]);
}

#[test]
fn given_up_operation_says_why() {
    let text = given_up(Status::RemoteBadAddress.code().into()).to_string();
    let expected =
        "the peer gave the operation up: remote address, key or access not valid (its error 7)";
    assert_eq!(text, expected);
    assert_eq!(given_up(OTHER).to_string(), "the peer gave the operation up: its error 4096");
}
