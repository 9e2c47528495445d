//! Measures the latency of small messages between two queue pairs of one process, by calls and by the rings of the
//! direct data path: what a message costs where one thread does what the program does, and the library's thread has
//! a processor of its own.
//!
//! `cargo run --release -p efa-softverbs --example latency_rings -- off|thread|trap EXCHANGES` prints the one-way
//! time in microseconds, the least of five runs, and nothing else. With a further number `BYTES` it prints the time of a read
//! of so many bytes by the device.

#![allow(clippy::unwrap_used, reason = "uses the helpers of the tests")]

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/rings/program.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod program;

use std::sync::OnceLock;
use std::time::Instant;

use common::verbs::{Endpoint, Memory, QpOptions, null_mut, sge, verbs};
use efa_soft::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, ibv_ah, ibv_mr};
use program::{Program, READ, Request, handle_number};

const LINK: &str = "shm";
/// Length of the packet of libfabric's provider for a message of 8 B, in bytes.
const PACKET: usize = 34;
const RUNS: usize = 5;

static DIRECT: OnceLock<String> = OnceLock::new();

fn direct() -> &'static str {
    DIRECT.get().map_or("off", String::as_str)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mode, count, bytes) = match arguments.as_slice() {
        [mode, count] => (mode, count, None),
        [mode, count, bytes] => (mode, count, Some(bytes.parse::<usize>().unwrap())),
        _ => panic!("usage: latency_rings off|thread|trap EXCHANGES [BYTES]"),
    };
    DIRECT.set(mode.clone()).unwrap();
    program::set_up();
    let count: u32 = count.parse().unwrap();
    let by_calls = mode == "off";
    let runs = (0..RUNS).map(|_| match (bytes, by_calls) {
        (None, true) => calls(count),
        (None, false) => rings(count),
        (Some(bytes), true) => reads_by_calls(count, bytes),
        (Some(bytes), false) => reads_by_rings(count, bytes),
    });
    println!("{:.3}", runs.fold(f64::MAX, f64::min));
}

/// Memory of a side, and the address of the other.
struct Place {
    region: *mut ibv_mr,
    handle: *mut ibv_ah,
    memory: Memory,
}

impl Place {
    fn new(end: &Endpoint, peer: &Endpoint) -> Self {
        Self::of(2 * PACKET, end, peer)
    }

    fn of(bytes: usize, end: &Endpoint, peer: &Endpoint) -> Self {
        let memory = Memory::of(&vec![0; bytes]);
        let region = end.register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        Self { region, handle: end.handle(peer.gid()), memory }
    }

    /// Where the other side reads.
    fn remote(&self) -> (u64, u32) {
        // SAFETY: the region is registered.
        unsafe { (self.memory.address() as u64, (*self.region).rkey) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: neither is used afterwards.
        unsafe {
            assert_eq!((verbs().ibv_dereg_mr)(self.region), 0);
            assert_eq!((verbs().ibv_destroy_ah)(self.handle), 0);
        }
    }
}

/// One-way time in microseconds.
fn time(count: u32, mut exchange: impl FnMut(usize)) -> f64 {
    (0..100).for_each(|_| (0..2).for_each(&mut exchange));
    let begun = Instant::now();
    for _ in 0..count {
        (0..2).for_each(&mut exchange);
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(2 * count)
}

fn rings(count: u32) -> f64 {
    let mut ends = [Program::new(QpOptions::default()), Program::new(QpOptions::default())];
    let places = [Place::new(&ends[0].end, &ends[1].end), Place::new(&ends[1].end, &ends[0].end)];
    time(count, |from| {
        let to = 1 - from;
        ends[to].post_receive(1, sge(places[to].region, PACKET, PACKET));
        ends[to].ring_receives();
        let number = handle_number_once(&places[from], from);
        let (qpn, qkey) = (ends[to].end.number() as u16, ends[to].end.qkey);
        let request = Request::new(2, number, qpn, qkey);
        ends[from].post(request.buffers(&[sge(places[from].region, 0, PACKET)]));
        ends[from].ring_sends();
        assert_eq!((spin(&mut ends[to]), spin(&mut ends[from])), (0, 0));
    })
}

/// Time of a read in microseconds.
fn time_of_read(count: u32, mut read: impl FnMut()) -> f64 {
    (0..100).for_each(|_| read());
    let begun = Instant::now();
    (0..count).for_each(|_| read());
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

fn reads_by_rings(count: u32, bytes: usize) -> f64 {
    let (mut a, b) = (Program::new(QpOptions::default()), Program::new(QpOptions::default()));
    let here = Place::of(bytes, &a.end, &b.end);
    let there = Place::of(bytes, &b.end, &a.end);
    let (number, qpn, qkey) = (handle_number(here.handle), b.end.number() as u16, b.end.qkey);
    time_of_read(count, || {
        let entry = [sge(here.region, 0, bytes)];
        a.post(Request::new(1, number, qpn, qkey).remote(READ, there.remote(), &entry));
        a.ring_sends();
        assert_eq!(spin(&mut a), 0);
    })
}

fn reads_by_calls(count: u32, bytes: usize) -> f64 {
    let (a, b) = (Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default()));
    let (here, there) = (Place::of(bytes, &a, &b), Place::of(bytes, &b, &a));
    let to = (here.handle, b.number(), b.qkey);
    time_of_read(count, || {
        let entry = [sge(here.region, 0, bytes)];
        assert_eq!(a.post_remote(1, to, false, there.remote(), &entry), 0);
        assert_eq!(a.wait().status, 0);
    })
}

/// Without a call in the exchange.
fn handle_number_once(place: &Place, side: usize) -> u16 {
    static NUMBERS: [OnceLock<u16>; 2] = [const { OnceLock::new() }; 2];
    *NUMBERS[side].get_or_init(|| handle_number(place.handle))
}

/// The status of the next completion, for which the ring is read without a pause.
fn spin(program: &mut Program) -> u8 {
    loop {
        if let Some(seen) = program.poll() {
            return seen.status;
        }
        std::hint::spin_loop();
    }
}

fn calls(count: u32) -> f64 {
    let ends = [Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default())];
    let places = [Place::new(&ends[0], &ends[1]), Place::new(&ends[1], &ends[0])];
    let wait = |end: &Endpoint| loop {
        if let Some(seen) = end.poll() {
            return seen.status;
        }
    };
    assert_ne!(places[0].handle, null_mut());
    time(count, |from| {
        let to = 1 - from;
        assert_eq!(ends[to].post_receive(1, sge(places[to].region, PACKET, PACKET)), 0);
        let address = (places[from].handle, ends[to].number(), ends[to].qkey);
        let entry = sge(places[from].region, 0, PACKET);
        assert_eq!(ends[from].post_send(2, address, &[entry], 0), 0);
        assert_eq!((wait(&ends[to]), wait(&ends[from])), (0, 0));
    })
}
