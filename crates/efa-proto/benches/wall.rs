//! Time per packet, for information; the limits are in `instructions.rs`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use efa_proto::{Connid, MsgId, Packet, RawAddress, RawAddressForm, ReqOptions, Rtm, RtmKind};

const ADDRESS: RawAddress = RawAddress { gid: [0xfe; 16], qpn: 12, connid: Connid(0x2a) };

fn eager(options: ReqOptions) -> Rtm<'static> {
    Rtm { msg_id: MsgId(7), tag: Some(0x2a), kind: RtmKind::Eager, options }
}

fn benches(criterion: &mut Criterion) {
    let connid = ReqOptions { connid: Some(Connid(42)), ..ReqOptions::NONE };
    let raw_address = Some((ADDRESS, RawAddressForm::Padded));
    let address = ReqOptions { raw_address, ..ReqOptions::NONE };
    for (name, options) in [("bare", ReqOptions::NONE), ("connid", connid), ("address", address)] {
        let rtm = eager(options);
        let mut buf = [0; 128];
        criterion.bench_function(&format!("encode eager tagged, {name}"), |bencher| {
            bencher.iter(|| black_box(&rtm).emit(black_box(&mut buf)));
        });
        let len = rtm.len();
        criterion.bench_function(&format!("decode eager tagged, {name}"), |bencher| {
            bencher.iter(|| {
                black_box(&Packet::parse(black_box(&buf[..len])));
            });
        });
    }
}

criterion_group!(wall, benches);
criterion_main!(wall);
