//! Random programs with a ledger: each operation completes once, and each message arrives at most once and
//! unchanged.

use std::collections::{HashMap, HashSet};

use efa::{
    CompletionQueueOptions, Direction, Endpoint, Entry, FiAddr, Kind, LocalOptions, Message,
    OperationError, Receive, ReceiveId,
};
use fastrand::Rng;

use crate::world::{World, pattern, with};

const ENDS: usize = 3;
const LENGTHS: [usize; 6] = [0, 8, 300, 9_000, 40_000, 120_000];

/// The operations and messages of a program.
#[derive(Default)]
struct Ledger {
    next: u64,
    /// Contexts of operations that have not completed.
    open: HashMap<u64, Started>,
    /// Length of every message, by its number, which is its CQ data.
    sent: HashMap<u64, usize>,
    arrived: HashSet<u64>,
    cancelled: usize,
    failed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Started {
    Send,
    Receive,
    ReceiveMany,
}

impl Ledger {
    fn start(&mut self, started: Started) -> u64 {
        self.next += 1;
        self.open.insert(self.next, started);
        self.next
    }

    fn refuse(&mut self, context: u64) {
        self.open.remove(&context);
    }

    fn end(&mut self, entry: Entry) {
        let (completion, error) = match entry {
            Ok(completion) => (completion, None),
            Err(failed) => (*failed.completion, Some(failed.error)),
        };
        match error {
            Some(OperationError::Cancelled | OperationError::Closed) => self.cancelled += 1,
            Some(_) => self.failed += 1,
            None => {}
        }
        // A failed injected message has neither context nor buffer.
        if completion.kind == Kind::Send && completion.context == 0 {
            assert!(error.is_some() && completion.buffer.is_empty());
            return;
        }
        let context = completion.context;
        let started = match completion.kind {
            Kind::MultiReceive => self.open.get(&context).copied(),
            _ => self.open.remove(&context),
        };
        let started =
            started.unwrap_or_else(|| panic!("{context} completed twice: {completion:?}"));
        let expected = match completion.kind {
            Kind::Send => Started::Send,
            Kind::Receive => Started::Receive,
            _ => Started::ReceiveMany,
        };
        assert_eq!(started, expected, "{completion:?}");
        let whole = error.is_none() || matches!(error, Some(OperationError::Truncated { .. }));
        if completion.is_received() && whole {
            let number = completion.cq_data.unwrap();
            assert!(self.arrived.insert(number), "message {number} arrived twice");
            let length = self.sent[&number];
            if let Some(OperationError::Truncated { length: reported, .. }) = error {
                assert_eq!(reported, length as u64);
            } else {
                assert_eq!(completion.length, length as u64);
            }
            let received = completion.into_message();
            let intact = received == pattern(length, number)[..received.len()];
            assert!(intact, "message {number} of {length} bytes has changed");
        }
    }
}

struct Program {
    world: World,
    random: Rng,
    ledger: Ledger,
    posted: Vec<(usize, ReceiveId)>,
    connid: u32,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        for connid in 1..=ENDS as u32 {
            world.add_with(
                with(connid, |c| c.min_multi_receive = 500),
                CompletionQueueOptions::new().capacity(40),
            );
        }
        let random = Rng::with_seed(seed);
        Self { world, random, ledger: Ledger::default(), posted: Vec::new(), connid: 100 }
    }

    fn any_end(&mut self) -> usize {
        self.random.usize(..ENDS)
    }

    fn any_peer(&mut self, of: usize) -> FiAddr {
        let peer = self.any_end();
        self.world.introduce(of, peer)
    }

    fn step(&mut self) {
        let end = self.any_end();
        match self.random.u32(..300) {
            0..75 => self.send(end),
            75..95 => self.inject(end),
            95..180 => self.receive(end),
            180..190 => self.receive_many(end),
            190..200 => self.cancel(),
            200 => self.remove(end),
            201 => self.restart(end),
            _ => self.read(end),
        }
    }

    fn message(&mut self, from: usize) -> (Message, Vec<u8>) {
        let to = self.any_peer(from);
        let length = *self.random.choice(&LENGTHS).unwrap();
        self.ledger.next += 1;
        let number = self.ledger.next;
        self.ledger.sent.insert(number, length);
        let message = Message::to(to).with_data(number);
        let message = match self.random.bool() {
            true => message.tagged(self.random.u64(..4)),
            false => message,
        };
        (message, pattern(length, number))
    }

    fn send(&mut self, end: usize) {
        let (message, data) = self.message(end);
        let context = self.ledger.start(Started::Send);
        if let Err(refused) = self.world.end(end).send(message, data.clone(), context) {
            assert_eq!(refused.buffer, data);
            self.ledger.refuse(context);
        }
    }

    fn inject(&mut self, end: usize) {
        let (message, data) = self.message(end);
        let _ = self.world.end(end).inject(message, &data);
    }

    fn receive(&mut self, end: usize) {
        let receive = match self.random.u32(..3) {
            0 => Receive::untagged(),
            1 => Receive::tagged(self.random.u64(..4)),
            _ => Receive::masked(self.random.u64(..4), self.random.u64(..4)),
        };
        let receive = match self.random.bool() {
            true => receive.from(self.any_peer(end)),
            false => receive,
        };
        let capacity = *self.random.choice(&LENGTHS).unwrap();
        let context = self.ledger.start(Started::Receive);
        match self.world.end(end).receive(receive, vec![0; capacity], context) {
            Ok(id) => self.posted.push((end, id)),
            Err(_) => self.ledger.refuse(context),
        }
    }

    fn receive_many(&mut self, end: usize) {
        let context = self.ledger.start(Started::ReceiveMany);
        match self.world.end(end).receive_many(None, vec![0; 50_000], context) {
            Ok(id) => self.posted.push((end, id)),
            Err(_) => self.ledger.refuse(context),
        }
    }

    fn cancel(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let (end, receive) = self.posted.swap_remove(self.random.usize(..self.posted.len()));
        self.world.end(end).cancel(receive);
    }

    /// Removes a peer from the address vector and replaces the endpoint: a peer inserted again needs both
    /// sides to start anew.
    fn remove(&mut self, end: usize) {
        let peer = self.any_peer(end);
        assert!(self.world.ends[end].addresses.remove(peer).is_some());
        self.restart(end);
    }

    /// Replaces an endpoint.
    fn restart(&mut self, end: usize) {
        self.connid += 1;
        let end_of_world = &mut self.world.ends[end];
        let successor: Endpoint = end_of_world
            .domain
            .endpoint(with(self.connid, |c| c.min_multi_receive = 500))
            .bind_completion_queue(&end_of_world.queue, Direction::Both)
            .bind_address_vector(&end_of_world.addresses)
            .enable()
            .unwrap();
        drop(std::mem::replace(&mut end_of_world.endpoint, successor));
        self.posted.retain(|(of, _)| *of != end);
    }

    fn read(&mut self, end: usize) {
        let mut entries = Vec::new();
        let most = self.random.usize(..30);
        self.world.ends[end].queue.read_many(&mut entries, most);
        entries.into_iter().for_each(|entry| self.ledger.end(entry));
        self.world.tick();
    }
}

#[test]
fn random_operations_complete_once_and_messages_arrive_at_most_once() {
    let (mut arrived, mut cancelled, mut failed) = (0, 0, 0);
    for seed in 0..40 {
        let mut program = Program::new(seed);
        for _ in 0..600 {
            program.step();
        }
        program.world.drive();
        for end in program.world.ends.drain(..) {
            drop(end.endpoint);
            let mut entries = Vec::from(end.entries);
            while end.queue.read_many(&mut entries, 100) > 0 {}
            entries.into_iter().for_each(|entry| program.ledger.end(entry));
        }
        assert_eq!(program.ledger.open, HashMap::new(), "seed {seed}");
        arrived += program.ledger.arrived.len();
        cancelled += program.ledger.cancelled;
        failed += program.ledger.failed;
    }
    // The programs cover all outcomes.
    assert!(arrived > 1000 && cancelled > 100 && failed > 100, "{arrived} {cancelled} {failed}");
}
