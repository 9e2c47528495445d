//! A model of the hand-over between a queue pair that sleeps and those that wake it: loom tries its interleavings,
//! with all values that the memory model allows each load to read. All of one packet, and of a packet and its
//! acknowledgement; of two packets those with at most three preemptions, and of two senders with at most two.
//!
//! The descriptor is a flag with a condition variable. A lost wake-up leaves all threads blocked, which loom
//! reports as a deadlock.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

/// What `shm/handover.rs` is compiled against here.
mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

#[path = "../src/shm/handover.rs"]
#[allow(unreachable_pub, dead_code)]
mod handover;

use atomic::{AtomicU64, Ordering};
use handover::{Sleeper, Waker};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// A pipe: readable from a write on, until it is emptied.
#[derive(Default)]
struct Descriptor {
    readable: Mutex<bool>,
    changed: Condvar,
}

impl Descriptor {
    fn write(&self) {
        *self.readable.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn sleep(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.changed.wait(readable).unwrap();
        }
    }

    fn empty(&self) {
        *self.readable.lock().unwrap() = false;
    }
}

/// A sleeper, and one word for each sender with the number of packets that it has published.
struct World {
    word: AtomicU64,
    descriptor: Descriptor,
    published: Vec<AtomicU64>,
}

impl World {
    fn new(senders: usize) -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(0),
            descriptor: Descriptor::default(),
            published: (0..senders).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn publish(&self, sender: usize, waker: &mut Waker, number: u64) {
        self.published[sender].store(number, Ordering::Release);
        if waker.must_wake(|| self.word.load(Ordering::Acquire)) {
            self.descriptor.write();
        }
    }

    fn found(&self) -> u64 {
        self.published.iter().map(|published| published.load(Ordering::Acquire)).sum()
    }

    /// Sleeps, as `ShmLink::arm` does, until `all` packets were found.
    fn receive(&self, all: u64) {
        let mut sleeper = Sleeper::default();
        let mut taken = self.found();
        while taken < all {
            sleeper.withdraw(&self.word);
            self.descriptor.empty();
            sleeper.announce(&self.word);
            let found = self.found();
            if found > taken {
                taken = found;
                continue;
            }
            self.descriptor.sleep();
            taken = self.found();
        }
    }
}

#[test]
fn packet_of_a_sender_wakes_the_receiver_in_every_interleaving() {
    loom::model(|| {
        let world = World::new(1);
        let there = Arc::clone(&world);
        let sender = thread::spawn(move || there.publish(0, &mut Waker::default(), 1));
        world.receive(1);
        sender.join().unwrap();
    });
}

#[test]
fn two_packets_of_a_sender_always_wake_the_receiver() {
    let mut model = loom::model::Builder::new();
    // Without a bound it takes minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new(1);
        let there = Arc::clone(&world);
        let sender = thread::spawn(move || {
            let mut waker = Waker::default();
            there.publish(0, &mut waker, 1);
            there.publish(0, &mut waker, 2);
        });
        world.receive(2);
        sender.join().unwrap();
    });
}

#[test]
fn packets_of_two_senders_always_wake_the_receiver() {
    let mut model = loom::model::Builder::new();
    // Two preemptions find each of the mistakes that were tried; without a bound it takes minutes.
    model.preemption_bound = Some(2);
    model.check(|| {
        let world = World::new(2);
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let there = Arc::clone(&world);
                thread::spawn(move || there.publish(sender, &mut Waker::default(), 1))
            })
            .collect();
        world.receive(2);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

/// Each side sleeps: the receiver until the packet comes, the sender until its acknowledgement does.
#[test]
fn packet_and_acknowledgement_always_wake_both_sides() {
    loom::model(|| {
        let (receiver, sender) = (World::new(1), World::new(1));
        let (there, back) = (Arc::clone(&receiver), Arc::clone(&sender));
        let thread = thread::spawn(move || {
            there.publish(0, &mut Waker::default(), 1);
            back.receive(1);
        });
        receiver.receive(1);
        sender.publish(0, &mut Waker::default(), 1);
        thread.join().unwrap();
    });
}
