//! Instructions per packet, with hard limits: `cargo bench -p efa-proto --bench instructions`
//! fails when one is exceeded. Needs valgrind and gungraun-runner of the same version as gungraun.
//!
//! Each benchmark repeats one operation 10 000 times. Its limit is the allowed number of instructions, loop
//! and barriers included, times that, plus a constant for the start and end.
//!
//! The limits defend the crate's `inline(always)`: with `inline` an eager message takes two to four times the
//! instructions to decode or encode.

#![allow(missing_docs, unused_qualifications, reason = "written by the macros of gungraun")]

use std::hint::black_box;

use efa_proto::{
    Connid, Cts, CtsData, Header, MsgId, OpId, Packet, RawAddress, RawAddressForm, ReqOptions,
    RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtw, RtwKind,
};
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};

const ROUNDS: u64 = 10_000;

// Goals for an eager tagged message.
const ENCODE: u64 = 25;
const DECODE: u64 = 40;
/// Instructions of the loop over datagrams (`loop_alone`), not part of a decode.
const LOOP: u64 = 6;
/// For an optional header, or an array of memory vectors.
const OPTION: u64 = 12;
/// For a raw address header that is optional at run time. Only the first packets to a peer have it.
const ADDRESS: u64 = 22;
/// For the further fields of requests that begin a long transfer.
const LONG: u64 = 16;
/// For a header with no field known at compile time.
const ANY: u64 = 32;

/// A limit of `instructions` for each repetition.
fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, ROUNDS * instructions + 200)]));
    config
}

const ADDRESS_OF_SENDER: RawAddress = RawAddress { gid: [0xfe; 16], qpn: 12, connid: Connid(0x2a) };
const IOV: [RmaIov; 1] = [RmaIov::new(0x7f00_0000, 4096, 17)];

fn no_option() -> ReqOptions {
    ReqOptions::NONE
}

fn with_address() -> ReqOptions {
    ReqOptions {
        raw_address: Some((ADDRESS_OF_SENDER, RawAddressForm::Padded)),
        ..ReqOptions::NONE
    }
}

fn with_cq_data() -> ReqOptions {
    ReqOptions { cq_data: Some(99), ..ReqOptions::NONE }
}

fn with_connid() -> ReqOptions {
    ReqOptions { connid: Some(Connid(42)), ..ReqOptions::NONE }
}

fn with_cq_data_and_connid() -> ReqOptions {
    ReqOptions { cq_data: Some(99), ..with_connid() }
}

fn with_all() -> ReqOptions {
    ReqOptions { cq_data: Some(99), connid: Some(Connid(42)), ..with_address() }
}

fn eager(options: ReqOptions) -> Rtm<'static> {
    Rtm { msg_id: MsgId(7), tag: Some(0x2a), kind: RtmKind::Eager, options }
}

/// A datagram of `header` and eight bytes.
fn datagram(header: Header<'_>) -> Vec<u8> {
    let mut bytes = vec![0; header.len() + 8];
    header.emit(&mut bytes).expect("fits");
    bytes
}

fn tagged(options: ReqOptions) -> Vec<u8> {
    datagram(Header::Rtm(eager(options)))
}

fn longcts() -> Vec<u8> {
    let kind = RtmKind::LongCts {
        msg_length: 1 << 20,
        send_id: OpId(1),
        credit_request: 32,
        read_nack: false,
    };
    datagram(Header::Rtm(Rtm { kind, ..eager(ReqOptions::NONE) }))
}

fn longread() -> Vec<u8> {
    let kind = RtmKind::LongRead { msg_length: 1 << 20, send_id: OpId(1), read_iov: &IOV };
    datagram(Header::Rtm(Rtm { kind, ..eager(ReqOptions::NONE) }))
}

fn write() -> Vec<u8> {
    let (rma_iov, options) = (&IOV[..], ReqOptions::NONE);
    datagram(Header::Rtw(Rtw { rma_iov, kind: RtwKind::Eager, options }))
}

fn atomic() -> Vec<u8> {
    let (rma_iov, options, kind) = (&IOV[..], ReqOptions::NONE, RtaKind::Write);
    let (datatype, op) = (7, 2);
    datagram(Header::Rta(Rta { msg_id: MsgId(7), rma_iov, datatype, op, kind, options }))
}

fn cts() -> Vec<u8> {
    datagram(Header::Cts(Cts {
        connid: Some(Connid(42)),
        send_id: OpId(1),
        recv_id: OpId(2),
        recv_length: 1 << 18,
        emulated_read: false,
    }))
}

fn ctsdata() -> Vec<u8> {
    datagram(Header::CtsData(CtsData {
        connid: Some(Connid(42)),
        recv_id: OpId(2),
        seg_length: 8,
        seg_offset: 8192,
    }))
}

/// `tagged` cut inside the tag.
fn cut() -> Vec<u8> {
    tagged(no_option())[..12].to_vec()
}

fn cut_base() -> Vec<u8> {
    tagged(no_option())[..3].to_vec()
}

fn wrong_version() -> Vec<u8> {
    let mut bytes = tagged(no_option());
    bytes[1] = 3;
    bytes
}

fn unknown_type() -> Vec<u8> {
    let mut bytes = tagged(no_option());
    bytes[0] = 200;
    bytes
}

fn too_many_iov() -> Vec<u8> {
    let mut bytes = write();
    bytes[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes
}

fn short_address() -> Vec<u8> {
    let mut bytes = tagged(with_address());
    bytes[16..20].copy_from_slice(&31_u32.to_le_bytes());
    bytes
}

/// Addresses and lengths of datagrams, as from a completion queue: all the same.
fn queue(datagram: Vec<u8>) -> Vec<&'static [u8]> {
    vec![datagram.leak(); ROUNDS as usize]
}

// Kind and options are constant where the packet is built, as in the engine.
#[library_benchmark(config = at_most(ENCODE))]
fn encode_eager_tagged() {
    let mut buf = [0; 128];
    for _ in 0..ROUNDS {
        let (msg_id, tag) = (black_box(MsgId(7)), Some(black_box(0x2a)));
        let rtm = Rtm { msg_id, tag, kind: RtmKind::Eager, options: ReqOptions::NONE };
        black_box(&rtm.emit(black_box(&mut buf)));
    }
}

#[library_benchmark(config = at_most(ENCODE + 2 * OPTION))]
fn encode_eager_tagged_cq_data_connid() {
    let mut buf = [0; 128];
    for _ in 0..ROUNDS {
        let (msg_id, tag) = (black_box(MsgId(7)), Some(black_box(0x2a)));
        let (cq_data, connid) = (Some(black_box(99)), Some(black_box(Connid(42))));
        let options = ReqOptions { raw_address: None, cq_data, connid };
        let rtm = Rtm { msg_id, tag, kind: RtmKind::Eager, options };
        black_box(&rtm.emit(black_box(&mut buf)));
    }
}

#[library_benchmark(config = at_most(ENCODE + OPTION))]
fn encode_eager_tagged_address() {
    let mut buf = [0; 128];
    for _ in 0..ROUNDS {
        let (msg_id, tag) = (black_box(MsgId(7)), Some(black_box(0x2a)));
        let address = *black_box(&ADDRESS_OF_SENDER);
        let raw_address = Some((address, RawAddressForm::Padded));
        let options = ReqOptions { raw_address, ..ReqOptions::NONE };
        let rtm = Rtm { msg_id, tag, kind: RtmKind::Eager, options };
        black_box(&rtm.emit(black_box(&mut buf)));
    }
}

#[library_benchmark]
#[bench::no_option(args = [eager(no_option())], config = at_most(ENCODE + ANY))]
#[bench::connid(args = [eager(with_connid())], config = at_most(ENCODE + ANY + OPTION))]
#[bench::address(args = [eager(with_address())], config = at_most(ENCODE + ANY + ADDRESS))]
#[bench::all(args = [eager(with_all())], config = at_most(ENCODE + ANY + ADDRESS + 2 * OPTION))]
fn encode_any(rtm: Rtm<'static>) {
    let mut buf = [0; 128];
    for _ in 0..ROUNDS {
        black_box(&black_box(&rtm).emit(black_box(&mut buf)));
    }
}

#[library_benchmark]
#[bench::eager_tagged(args = [queue(tagged(no_option()))], config = at_most(DECODE))]
#[bench::cq_data(args = [queue(tagged(with_cq_data()))], config = at_most(DECODE + OPTION))]
#[bench::connid(args = [queue(tagged(with_connid()))], config = at_most(DECODE + OPTION))]
#[bench::cq_data_connid(args = [queue(tagged(with_cq_data_and_connid()))], config = at_most(DECODE + 2 * OPTION))]
#[bench::address(args = [queue(tagged(with_address()))], config = at_most(LOOP + DECODE + OPTION))]
#[bench::all(args = [queue(tagged(with_all()))], config = at_most(LOOP + DECODE + 3 * OPTION))]
#[bench::longcts(args = [queue(longcts())], config = at_most(DECODE + LONG))]
#[bench::longread(args = [queue(longread())], config = at_most(DECODE + LONG + OPTION))]
#[bench::write(args = [queue(write())], config = at_most(DECODE + OPTION))]
#[bench::atomic(args = [queue(atomic())], config = at_most(DECODE + LONG + OPTION))]
#[bench::cts(args = [queue(cts())], config = at_most(DECODE))]
#[bench::ctsdata(args = [queue(ctsdata())], config = at_most(DECODE + OPTION))]
fn decode(datagrams: Vec<&'static [u8]>) {
    for datagram in datagrams {
        black_box(&Packet::parse(datagram));
    }
}

#[library_benchmark]
#[bench::datagrams(args = [queue(tagged(no_option()))], config = at_most(LOOP))]
fn loop_alone(datagrams: Vec<&'static [u8]>) {
    for datagram in datagrams {
        black_box(&datagram);
    }
}

// A malformed packet costs no more than a well-formed one of its type.
#[library_benchmark]
#[bench::cut(args = [queue(cut())], config = at_most(DECODE))]
#[bench::cut_base(args = [queue(cut_base())], config = at_most(DECODE))]
#[bench::version(args = [queue(wrong_version())], config = at_most(DECODE))]
#[bench::unknown_type(args = [queue(unknown_type())], config = at_most(DECODE))]
#[bench::too_many_iov(args = [queue(too_many_iov())], config = at_most(DECODE + OPTION))]
#[bench::short_address(args = [queue(short_address())], config = at_most(DECODE + OPTION))]
fn refuse(datagrams: Vec<&'static [u8]>) {
    for datagram in datagrams {
        black_box(&Packet::parse(datagram));
    }
}

library_benchmark_group!(
    name = packets,
    benchmarks = [
        encode_eager_tagged,
        encode_eager_tagged_cq_data_connid,
        encode_eager_tagged_address,
        encode_any,
        decode,
        loop_alone,
        refuse,
    ]
);
main!(library_benchmark_groups = packets);
