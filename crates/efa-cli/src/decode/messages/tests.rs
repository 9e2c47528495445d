use std::borrow::Cow;

use efa_device::{Gid, Qpn, Status, Time};
use efa_proto::{
    AtomRsp, Connid, Cts, CtsData, Eor, EorForm, ExtraInfo, Handshake, MsgId, OpId, Packet,
    PeerError, ReadNack, ReadRsp, Receipt, ReqOptions, RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtr,
    RtrKind, Rtw, RtwKind,
};
use efa_sim::record::PacketEvent::{Failed, Received, Sent};

use super::*;
use crate::decode::content::Content;

const A: u16 = 1;
const B: u16 = 2;
const NOT_READY: PacketEvent = Failed(Status::ReceiverNotReady);
const IOV: &[RmaIov] = &[RmaIov::new(64, 1 << 20, 5)];

/// Packets one nanosecond after the other, and the operations that they are.
struct Story {
    messages: Messages,
    elapsed: i128,
    out: Vec<u8>,
}

impl Story {
    fn new() -> Self {
        Self { messages: Messages::new(Form::Lines, false), elapsed: 0, out: Vec::new() }
    }

    fn packet(
        &mut self,
        event: PacketEvent,
        (source, destination): (u16, u16),
        header: &Header<'_>,
        payload: usize,
    ) -> &mut Self {
        let id = |qpn| QueuePairId { gid: Gid::ZERO, qpn: Qpn(qpn) };
        let mut bytes = vec![0; header.len() + payload];
        header.emit(&mut bytes).unwrap();
        let (source, destination) = (id(source), id(destination));
        let bytes = Cow::Owned(bytes);
        let record = Record { time: Time::ZERO, event, source, destination, bytes };
        let entry = Entry {
            record: &record,
            length: record.bytes.len(),
            content: Content::Packet(Packet::parse(&record.bytes).unwrap()),
            elapsed: self.elapsed,
        };
        self.elapsed += 1;
        self.messages.take(&entry, true, &mut self.out).unwrap();
        self
    }

    /// What is left of the lines behind the queue pairs, and the notes.
    fn end(self) -> (Vec<String>, Vec<String>) {
        let Self { messages, mut out, .. } = self;
        let mut notes = Vec::new();
        messages.finish(&mut out, &mut notes).unwrap();
        let lines = String::from_utf8(out).unwrap();
        let behind =
            |line: &str| line.split_once(" → ").unwrap().1.split_once(' ').unwrap().1.to_owned();
        (lines.lines().map(behind).collect(), notes)
    }

    #[track_caller]
    fn expect(self, lines: &[&str]) {
        let (found, notes) = self.end();
        assert_eq!(
            (&found[..], &notes[..]),
            (&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()[..], &[][..])
        );
    }
}

fn rtm(msg_id: u32, kind: RtmKind<'_>) -> Header<'_> {
    Header::Rtm(Rtm { msg_id: MsgId(msg_id), tag: None, kind, options: ReqOptions::NONE })
}

fn eager(msg_id: u32) -> Header<'static> {
    rtm(msg_id, RtmKind::Eager)
}

fn medium(msg_id: u32, seg_offset: u64) -> Header<'static> {
    rtm(msg_id, RtmKind::Medium { msg_length: 300, seg_offset })
}

fn long_cts(msg_id: u32, send_id: u32, read_nack: bool) -> Header<'static> {
    let (send_id, credit_request) = (OpId(send_id), 32);
    rtm(msg_id, RtmKind::LongCts { msg_length: 1000, send_id, credit_request, read_nack })
}

fn long_read(msg_id: u32, send_id: u32) -> Header<'static> {
    rtm(msg_id, RtmKind::LongRead { msg_length: 1000, send_id: OpId(send_id), read_iov: IOV })
}

fn cts(send_id: u32, recv_id: u32, recv_length: u64) -> Header<'static> {
    let (send_id, recv_id) = (OpId(send_id), OpId(recv_id));
    Header::Cts(Cts { connid: None, send_id, recv_id, recv_length, emulated_read: false })
}

fn data(recv_id: u32, seg_offset: u64, seg_length: u64) -> Header<'static> {
    Header::CtsData(CtsData { connid: None, recv_id: OpId(recv_id), seg_length, seg_offset })
}

fn eor(send_id: u32, recv_id: u32) -> Header<'static> {
    let (send_id, recv_id) = (OpId(send_id), OpId(recv_id));
    Header::Eor(Eor { send_id, recv_id, form: EorForm::Short })
}

fn receipt(send_id: u32, msg_id: u32) -> Header<'static> {
    Header::Receipt(Receipt { send_id: OpId(send_id), msg_id: MsgId(msg_id), connid: None })
}

#[test]
fn long_cts_message_waits_for_each_step_in_turn_until_it_is_complete() {
    let steps: [(_, Header<'_>, usize); 4] = [
        ((A, B), long_cts(7, 3, false), 200),
        ((B, A), cts(3, 8, 800), 0),
        ((A, B), data(8, 200, 500), 500),
        ((A, B), data(8, 700, 300), 300),
    ];
    let states = [
        "LONGCTS_MSGRTM msg_id=7 send_id=0x3 length=1000 packets=1 waits for CTS",
        "LONGCTS_MSGRTM msg_id=7 send_id=0x3 recv_id=0x8 length=1000 packets=2 waits for data: 200 of 1000 bytes",
        "LONGCTS_MSGRTM msg_id=7 send_id=0x3 recv_id=0x8 length=1000 packets=3 waits for data: 700 of 1000 bytes",
        "LONGCTS_MSGRTM msg_id=7 send_id=0x3 recv_id=0x8 length=1000 packets=4 complete",
    ];
    for (count, state) in (1..).zip(states) {
        let mut story = Story::new();
        for (ends, header, payload) in &steps[..count] {
            story.packet(Sent, *ends, header, *payload);
        }
        story.expect(&[state]);
    }
}

#[test]
fn sender_that_used_its_grant_waits_for_another() {
    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_cts(0, 3, false), 200);
    story.packet(Received, (B, A), &cts(3, 8, 400), 0);
    story.packet(Sent, (A, B), &data(8, 200, 400), 400);
    story.expect(&[
        "LONGCTS_MSGRTM msg_id=0 send_id=0x3 recv_id=0x8 length=1000 packets=3 waits for CTS",
    ]);
}

#[test]
fn packet_in_captures_of_both_sides_counts_once() {
    let mut story = Story::new();
    for offset in [0, 100, 200] {
        story.packet(Sent, (A, B), &medium(0, offset), 100);
    }
    for offset in [200, 0, 100] {
        story.packet(Received, (A, B), &medium(0, offset), 100);
    }
    story.expect(&["MEDIUM_MSGRTM msg_id=0 length=300 packets=3 complete"]);
}

#[test]
fn message_that_was_sent_and_not_taken_waits_for_its_receiver_if_the_receiver_is_captured() {
    let mut story = Story::new();
    story.packet(Sent, (A, B), &eager(0), 5);
    story.packet(Received, (A, B), &eager(0), 5);
    story.packet(Sent, (A, B), &eager(1), 5);
    story.packet(Sent, (B, A), &eager(0), 5);
    story.expect(&[
        "EAGER_MSGRTM msg_id=0 length=5 packets=1 complete",
        "EAGER_MSGRTM msg_id=1 length=5 packets=1 waits for its receiver: 0 of 1 packets taken",
        "EAGER_MSGRTM msg_id=0 length=5 packets=1 complete",
    ]);
}

#[test]
fn number_that_is_used_again_is_another_message() {
    let mut story = Story::new();
    story.packet(Sent, (A, B), &eager(0), 5).packet(Sent, (A, B), &eager(0), 6);
    for offset in [0, 100, 200, 0] {
        story.packet(Received, (B, A), &medium(0, offset), 100);
    }
    story.packet(Sent, (A, B), &long_read(1, 3), 0).packet(Sent, (A, B), &long_read(2, 3), 0);
    story.packet(Received, (B, A), &eor(3, 8), 0);
    story.expect(&[
        "EAGER_MSGRTM msg_id=0 length=5 packets=1 complete",
        "EAGER_MSGRTM msg_id=0 length=6 packets=1 complete",
        "MEDIUM_MSGRTM msg_id=0 length=300 packets=3 complete",
        "MEDIUM_MSGRTM msg_id=0 length=300 packets=1 waits for data: 100 of 300 bytes",
        "LONGREAD_MSGRTM msg_id=1 send_id=0x3 length=1000 packets=1 waits for EOR",
        "LONGREAD_MSGRTM msg_id=2 send_id=0x3 recv_id=0x8 length=1000 packets=2 complete",
    ]);
}

#[test]
fn packet_that_met_a_receiver_that_was_not_ready_waits_until_it_is_sent_again() {
    let mut story = Story::new();
    for msg_id in 0..2 {
        story.packet(Sent, (A, B), &eager(msg_id), 5).packet(NOT_READY, (A, B), &eager(msg_id), 5);
    }
    story.packet(Sent, (A, B), &eager(0), 5);
    story.packet(Sent, (A, B), &medium(2, 0), 100).packet(Sent, (A, B), &medium(2, 100), 100);
    story.packet(NOT_READY, (A, B), &medium(2, 0), 100);
    story.packet(Sent, (A, B), &medium(2, 200), 100).packet(Sent, (A, B), &medium(2, 0), 100);
    story.expect(&[
        "EAGER_MSGRTM msg_id=0 length=5 packets=1 not_ready=1 complete",
        "EAGER_MSGRTM msg_id=1 length=5 packets=0 not_ready=1 waits to be sent again (receiver not ready)",
        "MEDIUM_MSGRTM msg_id=2 length=300 packets=3 not_ready=1 complete",
    ]);
}

#[test]
fn undeliverable_packet_fails_its_message() {
    let failed = Failed(Status::UnresponsiveRemote);
    let mut story = Story::new();
    story.packet(Sent, (A, B), &eager(0), 5).packet(failed, (A, B), &eager(0), 5);
    // The capture began after it was sent.
    story.packet(failed, (A, B), &eager(1), 5);
    let (lines, _) = story.end();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains(" failed (")), "{lines:?}");
}

#[test]
fn refused_read_goes_on_by_long_cts_as_the_same_message() {
    let nack = ReadNack { send_id: OpId(3), recv_id: OpId(8), connid: None };
    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_read(0, 3), 0);
    story.packet(Received, (B, A), &Header::ReadNack(nack), 0);
    let refused = "LONGREAD_MSGRTM msg_id=0 send_id=0x3 recv_id=0x8 length=1000 packets=2 waits for LONGCTS_MSGRTM";
    assert_eq!(story.end().0, [refused]);

    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_read(0, 3), 0);
    story.packet(Received, (B, A), &Header::ReadNack(nack), 0);
    story.packet(Sent, (A, B), &long_cts(0, 3, true), 400);
    story.packet(Received, (B, A), &cts(3, 8, 600), 0);
    story.packet(Sent, (A, B), &data(8, 400, 600), 600);
    story.expect(&[
        "LONGREAD_MSGRTM msg_id=0 send_id=0x3 recv_id=0x8 length=1000 packets=5 complete",
    ]);
}

#[test]
fn runting_read_takes_its_leading_part_and_the_end_of_the_read() {
    let runt = |seg_offset| {
        let (msg_length, send_id, runt_length) = (1000, OpId(3), 200);
        rtm(0, RtmKind::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov: IOV })
    };
    let mut story = Story::new();
    story.packet(Sent, (A, B), &runt(0), 100);
    let waits = "RUNTREAD_MSGRTM msg_id=0 send_id=0x3 length=1000 packets=1 waits for data: 100 of 200 bytes";
    assert_eq!(story.end().0, [waits]);
    let mut story = Story::new();
    story.packet(Sent, (A, B), &runt(0), 100).packet(Sent, (A, B), &runt(100), 100);
    story.packet(Sent, (B, A), &eor(3, 8), 0);
    story.expect(&[
        "RUNTREAD_MSGRTM msg_id=0 send_id=0x3 recv_id=0x8 length=1000 packets=3 complete",
    ]);
}

#[test]
fn delivery_complete_operations_and_atomics_wait_for_their_answers() {
    let dc = |msg_id, send_id| rtm(msg_id, RtmKind::DcEager { send_id: OpId(send_id) });
    let rta = |msg_id, kind| {
        let (rma_iov, datatype, op) = (IOV, 7, 2);
        Header::Rta(Rta {
            msg_id: MsgId(msg_id),
            rma_iov,
            datatype,
            op,
            kind,
            options: ReqOptions::NONE,
        })
    };
    let answer =
        |recv_id| Header::AtomRsp(AtomRsp { connid: None, recv_id: OpId(recv_id), seg_length: 8 });
    let fetch = |recv_id| RtaKind::Fetch { recv_id: OpId(recv_id) };
    let mut story = Story::new();
    story.packet(Sent, (A, B), &dc(0, 3), 5).packet(Sent, (A, B), &dc(1, 4), 5);
    story.packet(Sent, (A, B), &rta(2, fetch(5)), 8).packet(Sent, (A, B), &rta(3, fetch(6)), 8);
    story.packet(Sent, (A, B), &rta(4, RtaKind::Write), 8);
    story.packet(Received, (B, A), &receipt(4, 1), 0).packet(Received, (B, A), &answer(5), 8);
    story.expect(&[
        "DC_EAGER_MSGRTM msg_id=0 send_id=0x3 length=5 packets=1 waits for RECEIPT",
        "DC_EAGER_MSGRTM msg_id=1 send_id=0x4 length=5 packets=2 complete",
        "FETCH_RTA msg_id=2 recv_id=0x5 length=8 packets=2 complete",
        "FETCH_RTA msg_id=3 recv_id=0x6 length=8 packets=1 waits for ATOMRSP",
        "WRITE_RTA msg_id=4 length=8 packets=1 complete",
    ]);
}

#[test]
fn emulated_reads_and_writes_are_followed_by_their_ids() {
    let rtr = |recv_id, msg_length, kind| {
        let (rma_iov, recv_length, recv_id) = (IOV, 400, OpId(recv_id));
        Header::Rtr(Rtr {
            rma_iov,
            kind,
            msg_length,
            recv_id,
            recv_length,
            options: ReqOptions::NONE,
        })
    };
    let response = |send_id, recv_id, seg_length| {
        let (send_id, recv_id) = (OpId(send_id), OpId(recv_id));
        Header::ReadRsp(ReadRsp { connid: None, send_id, recv_id, seg_length })
    };
    let kind = RtwKind::LongCts { msg_length: 1000, send_id: OpId(3), credit_request: 8 };
    let write = Header::Rtw(Rtw { rma_iov: IOV, kind, options: ReqOptions::NONE });
    let mut story = Story::new();
    story.packet(Sent, (A, B), &rtr(5, 300, RtrKind::Short), 0);
    story.packet(Sent, (A, B), &rtr(6, 1000, RtrKind::LongCts), 0);
    story.packet(Sent, (A, B), &rtr(7, 1000, RtrKind::LongCts), 0);
    story.packet(Received, (B, A), &response(1, 5, 300), 300);
    story.packet(Received, (B, A), &response(2, 6, 400), 400);
    story.packet(Sent, (A, B), &write, 100).packet(Received, (B, A), &cts(3, 8, 900), 0);
    story.packet(Sent, (A, B), &data(8, 100, 900), 900);
    story.expect(&[
        "SHORT_RTR send_id=0x1 recv_id=0x5 length=300 packets=2 complete",
        "LONGCTS_RTR send_id=0x2 recv_id=0x6 length=1000 packets=2 waits for CTS",
        "LONGCTS_RTR recv_id=0x7 length=1000 packets=1 waits for READRSP",
        "LONGCTS_RTW send_id=0x3 recv_id=0x8 length=1000 packets=3 complete",
    ]);
}

#[test]
fn equal_writes_without_a_number_are_as_many_as_were_sent() {
    let write = Header::Rtw(Rtw { rma_iov: IOV, kind: RtwKind::Eager, options: ReqOptions::NONE });
    let mut story = Story::new();
    for _ in 0..3 {
        story.packet(Sent, (A, B), &write, 8);
    }
    story.packet(Received, (A, B), &write, 8).packet(NOT_READY, (A, B), &write, 8);
    story.packet(Sent, (A, B), &write, 8).packet(Received, (A, B), &write, 8);
    story.packet(Received, (B, A), &write, 8);
    story.expect(&[
        "EAGER_RTW length=8 packets=1 complete",
        "EAGER_RTW length=8 packets=1 not_ready=1 complete",
        "EAGER_RTW length=8 packets=1 waits for its receiver: 0 of 1 packets taken",
        "EAGER_RTW length=8 packets=1 complete",
    ]);
}

#[test]
fn operation_that_the_peer_gave_up_is_refused() {
    let error =
        PeerError { op_id: OpId(3), ref_kind: 0, prov_errno: 4107, connid: Some(Connid(1)) };
    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_read(0, 3), 0);
    story.packet(Received, (B, A), &Header::PeerError(error), 0);
    story.expect(&[
        "LONGREAD_MSGRTM msg_id=0 send_id=0x3 length=1000 packets=2 refused by PEER_ERROR 4107",
    ]);
}

#[test]
fn packets_without_their_request_are_noted_and_handshakes_are_none() {
    let handshake = Handshake {
        extra_info: ExtraInfo::new(&[1]).unwrap(),
        connid: Some(Connid(1)),
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    };
    let mut story = Story::new();
    story.packet(Sent, (A, B), &Header::Handshake(handshake), 0);
    story.packet(Sent, (A, B), &data(8, 0, 500), 500).packet(Sent, (A, B), &data(8, 500, 500), 500);
    let note = "packets of operations that began before the captures: 2";
    assert_eq!(story.end(), (Vec::new(), vec![note.to_owned()]));
}

#[test]
fn operations_beyond_the_bound_are_printed_in_order_and_none_is_kept() {
    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_read(0, 3), 0);
    for msg_id in 1..MOST as u32 + 10 {
        story.packet(Sent, (A, B), &eager(msg_id), 0);
    }
    let Messages { followed, by_key, .. } = &story.messages;
    assert!(followed.len() == MOST && by_key.len() <= 2 * MOST);
    let (lines, notes) = story.end();
    assert_eq!(lines.len(), MOST + 10);
    assert!(lines[0].ends_with(" waits for EOR") && lines[1].starts_with("EAGER_MSGRTM msg_id=1 "));
    let note = format!("operations shown as they were when {MOST} others had begun after them: 1");
    assert_eq!(notes, [note]);
}

#[test]
fn operation_that_changes_its_id_again_and_again_is_found_by_the_last_one_alone() {
    let mut story = Story::new();
    story.packet(Sent, (A, B), &long_cts(0, 3, false), 0);
    for recv_id in 0..100 {
        story.packet(Received, (B, A), &cts(3, recv_id, 1), 0);
    }
    assert!(story.messages.by_key.len() <= 3);
    story.packet(Sent, (A, B), &data(99, 0, 1), 1).packet(Sent, (A, B), &data(98, 1, 1), 1);
    let (lines, notes) = story.end();
    assert!(lines.len() == 1 && lines[0].contains("packets=102 "), "{lines:?}");
    assert_eq!(notes.len(), 1);
}
