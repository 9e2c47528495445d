//! Completions that no send and no datagram has, and receives that fail.

use efa_device::{QueuePair as _, WorkId};
use efa_handshake::Release;
use efa_rdm::{
    Accept, Completion as EngineCompletion, Config, Endpoint, Event, InPlaceQueue, Level, Message,
    OperationError,
};

use super::*;
use crate::common;
use crate::completion_queue::NOTHING;

const NAME: &str = "device::tests::";

/// Two queue pairs of one interface.
fn pair() -> [VerbsQueuePair; 2] {
    let device = VerbsDevice::open(None).unwrap();
    [(); 2].map(|()| device.create_queue_pair(QueuePairOptions::default()).unwrap())
}

fn next(pair: &mut VerbsQueuePair) -> Completion<Packet> {
    loop {
        if let Some(completion) = pair.poll(Time::ZERO) {
            return completion;
        }
    }
}

fn post_receive(pair: &mut VerbsQueuePair) {
    let packet = pair.allocate_packet().unwrap();
    pair.post_receive(packet).unwrap();
}

fn send(from: &mut VerbsQueuePair, to: QueuePairAddress) {
    let address_handle = from.create_address_handle(to.gid).unwrap();
    let destination = Destination { address_handle, qpn: to.qpn, qkey: to.qkey };
    let packet = from.allocate_packet().unwrap();
    let id = WorkId(7);
    let request = SendRequest { id, packet, length: 8, destination, immediate: None };
    from.post_send(request).unwrap();
}

#[test]
fn failed_unsolicited_write_ends_no_send() {
    let name = &format!("{NAME}failed_unsolicited_write_ends_no_send");
    common::on_soft_device(name, &[], || {
        let [mut a, mut b] = pair();
        post_receive(&mut b);
        send(&mut a, b.address());
        assert!(a.outstanding.sends.contains(0), "the send has the key 0");
        for outcome in [
            Outcome::FailedUnsolicited(Status::RemoteBadAddress),
            // As libraries report it that don't tell them apart.
            Outcome::Failed(Status::RemoteBadAddress),
        ] {
            let entry = WorkCompletion { outcome, ..NOTHING };
            assert!(a.outstanding.complete(&entry).is_none());
            assert!(a.complete_other(&entry).is_none());
        }
        assert_eq!(a.counters.writes_failed, 1);
        assert!(matches!(next(&mut a), Completion::Send { id: WorkId(7), result: Ok(()), .. }));
        assert!(matches!(next(&mut b), Completion::Receive { length: 8, .. }));
    });
}

#[test]
fn buffer_of_failed_receive_comes_back_with_the_status() {
    let name = &format!("{NAME}buffer_of_failed_receive_comes_back_with_the_status");
    common::on_soft_device(name, &[], || {
        let [mut a, mut b] = pair();
        for failed in [Status::BadLength, Status::Flushed] {
            // The interface doesn't have the buffer, as after a failure: it was not posted.
            let packet = b.allocate_packet().unwrap();
            let wr_id = RECEIVE | b.outstanding.receives.insert(packet) as u64;
            let outcome = Outcome::Failed(failed);
            b.batch = Batch::of(WorkCompletion { wr_id, outcome, ..NOTHING });
            let Some(Completion::Unfilled { packet, status }) = b.poll(Time::ZERO) else {
                panic!("the buffer is lost")
            };
            assert!(status == failed && b.outstanding.receives.is_empty());
            b.post_receive(packet).unwrap();
            send(&mut a, b.address());
            assert!(matches!(next(&mut b), Completion::Receive { length: 8, .. }));
        }
        assert_eq!(b.counters.receives_failed, 2);
    });
}

#[test]
fn receives_refused_with_their_batch_come_back() {
    let name = &format!("{NAME}receives_refused_with_their_batch_come_back");
    common::on_soft_device(name, &[], || {
        let [_, mut b] = pair();
        // One that is posted lets none wait. Sixteen let others wait, which share a doorbell.
        (0..16).for_each(|_| post_receive(&mut b));
        b.post_waiting();
        (0..3).for_each(|_| post_receive(&mut b));
        assert_eq!(b.pair.waiting_receives(), 3);
        b.pair.fail().unwrap();
        // These were posted before, and those were accepted.
        let mut flushed = 0;
        let mut refused = 0;
        while flushed + refused < 19 {
            let done = next(&mut b);
            let Completion::Unfilled { status, .. } = done else { panic!("{done:?}") };
            flushed += usize::from(status == Status::Flushed);
            refused += usize::from(status == Status::QueuePairInternal);
        }
        assert_eq!((flushed, refused), (16, 3));
        let packet = b.allocate_packet().unwrap();
        let refused = b.post_receive(packet).unwrap_err().error;
        assert!(matches!(refused, DeviceError::System { .. }), "{refused}");
        assert!(b.outstanding.receives.is_empty());
        assert_eq!(b.counters.receives_failed, 19);
    });
}

/// libefa holds a lock of the send queue while a batch is open, and a poll that finds completions takes it. The software
/// device has no such lock.
#[test]
fn poll_and_arm_of_a_held_queue_pair_ring_the_doorbell_first() {
    let name = &format!("{NAME}poll_and_arm_of_a_held_queue_pair_ring_the_doorbell_first");
    common::on_soft_device(name, &[], || {
        let device = VerbsDevice::open(None).unwrap();
        let options = QueuePairOptions::default().with(|options| options.waitable = true);
        let [mut a, b] = [(); 2].map(|()| device.create_queue_pair(options).unwrap());
        a.hold();
        send(&mut a, b.address());
        assert!(a.pair.has_batched());
        a.poll(Time::ZERO);
        assert!(!a.pair.has_batched());
        send(&mut a, b.address());
        assert!(a.pair.has_batched());
        a.arm(Time::ZERO).unwrap();
        assert!(!a.pair.has_batched());
    });
}

#[test]
fn endpoint_whose_queue_pair_the_interface_aborts_ends_with_its_status() {
    let name =
        &format!("{NAME}endpoint_whose_queue_pair_the_interface_aborts_ends_with_its_status");
    common::on_soft_device(name, &[], || {
        let [a, b] = pair().map(|pair| Endpoint::new(pair, Config::default()).unwrap());
        let (mut a, b): (Endpoint<_, Vec<u8>>, Endpoint<_, Vec<u8>>) = (a, b);
        let peer = a.insert_peer(b.address()).unwrap();
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let buffer = vec![0; 1 << 20];
        a.send(Message { peer, tag, cq_data, level, buffer, context: 1 }).unwrap();
        a.receive(Accept::Untagged { source: None }, vec![0; 8], 2).unwrap();
        a.progress(Time::ZERO);
        a.queue_pair().pair.fail().unwrap();
        let mut ended = Vec::new();
        while ended.len() < 2 {
            a.progress(Time::ZERO);
            ended.extend(std::iter::from_fn(|| a.poll_completion()).map(|done| match done {
                EngineCompletion::Send(sent) => (sent.context, sent.result),
                EngineCompletion::Receive(received) => (received.context, received.result),
                other => panic!("{other:?}"),
            }));
        }
        ended.sort_by_key(|(context, _)| *context);
        let flushed = Err(OperationError::Device(Status::Flushed));
        assert_eq!(ended, [(1, flushed), (2, flushed)]);
        let failed = |event: &Event| matches!(event, Event::QueuePairFailed(Status::Flushed));
        assert!(std::iter::from_fn(|| a.poll_event()).any(|event| failed(&event)));
    });
}

#[test]
fn endpoint_whose_user_queue_pair_the_interface_aborts_ends_with_its_status() {
    let name =
        &format!("{NAME}endpoint_whose_user_queue_pair_the_interface_aborts_ends_with_its_status");
    common::on_soft_device(name, &[], || {
        let [protocol, user] = pair().map(InPlaceQueue);
        let config = Config::as_release(Release::V2_1);
        let mut a: Endpoint<_, Vec<u8>> =
            Endpoint::with_user_queue(protocol, user, config).unwrap();
        for context in 0..3 {
            let packet = a.allocate_packet().unwrap();
            a.receive_in_place(packet, context).unwrap();
        }
        a.progress(Time::ZERO);
        a.user_queue_pair().unwrap().0.pair.fail().unwrap();
        let mut ended = Vec::new();
        while ended.len() < 3 {
            a.progress(Time::ZERO);
            let done = std::iter::from_fn(|| a.poll_in_place());
            ended.extend(done.map(|done| (done.context, done.result.unwrap_err())));
        }
        let flushed = OperationError::Device(Status::Flushed);
        assert_eq!(ended, [(0, flushed), (1, flushed), (2, flushed)]);
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        assert_eq!(events, [Event::QueuePairFailed(Status::Flushed)]);
    });
}
