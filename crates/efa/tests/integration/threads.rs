//! Objects used by several threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use efa::{
    CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message,
    OperationError, Receive,
};

use crate::world::pattern;

#[test]
fn objects_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Fabric>();
    shared::<efa::Domain>();
    shared::<efa::Endpoint>();
    shared::<efa::EndpointBuilder>();
    shared::<efa::CompletionQueue>();
    shared::<efa::AddressVector>();
    shared::<efa::MemoryRegion>();
    shared::<efa::Buffer>();
    shared::<efa::Completion>();
    shared::<efa::CompletionError>();
    shared::<efa::Refused>();
    shared::<efa::Counter>();
    shared::<efa::EventQueue>();
    shared::<efa::ControlEvent>();
    shared::<efa::PassiveEndpoint>();
    shared::<efa::Listener>();
    shared::<efa::ConnectionRequest>();
    shared::<efa::MsgEndpoint>();
    shared::<efa::MsgEndpointBuilder>();
    shared::<efa::ScalableEndpoint>();
    shared::<efa::ScalableEndpointBuilder>();
    shared::<efa::TransmitContext>();
    shared::<efa::ReceiveContext>();
    shared::<efa::SharedReceiveQueue>();
    shared::<efa::SendBudget>();
    shared::<efa::WaitSet>();
    shared::<efa::PollSet>();
    shared::<efa::Claim>();
    shared::<efa::Packet>();
    shared::<efa::RegionSlice>();
    shared::<efa::Reservation>();
    shared::<efa::Info>();
    shared::<efa::ManualClock>();
}

// conformance: C23
#[test]
fn threads_can_share_endpoints_and_queues() {
    const SENDERS: u64 = 3;
    const EACH: u64 = 200;
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let (alice, bob) = (endpoint(), endpoint());
    let to_bob = addresses.insert(bob.address()).unwrap();
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let length = |tag: u64| (tag * 7919 % 20_000) as usize;
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (alice, bob, length) = (&alice, &bob, &length);
            scope.spawn(move || {
                for tag in sender * EACH..(sender + 1) * EACH {
                    bob.receive(Receive::tagged(tag), vec![0; 20_000], tag).unwrap();
                    let data = pattern(length(tag), tag);
                    alice.send(Message::to(to_bob).tagged(tag), data, tag).unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let all = SENDERS * EACH;
                while sent.load(Ordering::Relaxed) < all || received.load(Ordering::Relaxed) < all {
                    let Ok(completion) = queue.wait(Duration::from_millis(1)) else { continue };
                    match completion.is_received() {
                        false => sent.fetch_add(1, Ordering::Relaxed),
                        true => {
                            let tag = completion.context;
                            assert_eq!(completion.into_message(), pattern(length(tag), tag));
                            received.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
    });
    assert_eq!((sent.into_inner(), received.into_inner()), (SENDERS * EACH, SENDERS * EACH));
}

#[test]
fn drop_and_close_return_buffers_while_another_thread_polls() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = || domain.completion_queue(CompletionQueueOptions::default());
    let (transmit, receive, addresses) = (queue(), queue(), domain.address_vector());
    let (polls, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut late = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = transmit.read();
                polls.fetch_add(1, Ordering::Relaxed);
            }
        });
        for run in 0..300 {
            let endpoint = domain
                .endpoint(EndpointOptions::default())
                .bind_completion_queue(&transmit, Direction::Transmit)
                .bind_completion_queue(&receive, Direction::Receive)
                .bind_address_vector(&addresses)
                .enable()
                .unwrap();
            endpoint.receive(Receive::tagged(1), vec![0; 8], run).unwrap();
            let polled = polls.load(Ordering::Relaxed);
            while polls.load(Ordering::Relaxed) == polled {
                thread::yield_now();
            }
            match run % 2 {
                0 => drop(endpoint),
                _ => endpoint.close(Duration::from_secs(20)).unwrap(),
            }
            let back = matches!(receive.read(), Some(Err(ended))
                if (ended.error, ended.completion.context) == (OperationError::Closed, run));
            late += u32::from(!back);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(late, 0);
}

#[test]
fn peers_can_be_inserted_and_removed_while_threads_send() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let (alice, bob, carol) = (endpoint(), endpoint(), endpoint());
    let to_bob = addresses.insert(bob.address()).unwrap();
    let (bobs, mut carols) = (1000_u64, 0_u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                let to_carol = addresses.insert(carol.address()).unwrap();
                assert_ne!(to_carol, to_bob);
                assert_eq!(addresses.remove(to_carol), Some(carol.address()));
            }
        });
        scope.spawn(|| {
            for i in 0..bobs {
                bob.receive(Receive::tagged(i), vec![0; 8], i).unwrap();
                alice.send(Message::to(to_bob).tagged(i), i.to_le_bytes().to_vec(), i).unwrap();
                // The next index stands for Carol or for no peer, but not for Bob.
                let other = efa::FiAddr(to_bob.0 + 1);
                let _ = alice.inject(Message::to(other).tagged(u64::MAX), b"for carol");
            }
        });
    });
    let mut received = 0;
    while received < bobs {
        match queue.wait(Duration::from_secs(20)) {
            Ok(completion) if completion.is_received() => {
                let bytes = completion.context.to_le_bytes();
                assert_eq!(completion.into_message(), bytes);
                received += 1;
            }
            Ok(_) => {}
            Err(efa::WaitError::Failed(failed)) => {
                assert_eq!(failed.completion.tag, Some(u64::MAX), "{failed}");
                carols += 1;
            }
            Err(timeout) => panic!("{timeout}, {received} received, {carols} failed"),
        }
    }
}
