//! Tests of the TM-SRQ alone: messages and commands in, completions out.

use efa_proto::tm::{Rvh, Tmh};
use efa_sim::tm::{
    BadWr, Completion, CompletionQueue, Connection, CreateError, NotReady, OpsOpcode, OpsWr,
    Packet, Position, PostOpsError, Report, SgeList, SrqInit, SrqType, Status, TaggedReceive,
    TmCaps, TmDevice, TmFlags, TmInfo, TmLimits, TmSrq, Transport,
};

const MTU: usize = 64;
const CAPS: TmCaps =
    TmCaps { max_rndv_hdr_size: 48, max_num_tags: 4, max_ops: 4, max_sge: 2, rc: true };
const BUFFER: usize = 160;
const BOTH: TmFlags = TmFlags { matched: true, data_valid: true };

const DATA_VALID: TmFlags = TmFlags { matched: false, data_valid: true };

fn init() -> SrqInit {
    SrqInit {
        srq_type: SrqType::TagMatching,
        tm_cap: Some(TmLimits { max_num_tags: 4, max_ops: 4 }),
        cq: Some(CompletionQueue::default()),
    }
}

/// A TM-SRQ with one connection and `buffers` buffers for unexpected messages.
fn srq(buffers: u64) -> (TmSrq, Connection) {
    let mut srq = TmDevice::new(CAPS, MTU).create_srq(init()).unwrap();
    let connection = srq.associate(Transport::Rc).unwrap();
    (0..buffers).for_each(|wr_id| srq.post_receive(wr_id, SgeList::zeroed(BUFFER)));
    (srq, connection)
}

fn eager(tag: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[0; 16][..], payload].concat();
    Tmh { app_ctx: 0xa0 + tag as u32, tag }.emit_eager(&mut message).unwrap();
    message
}

const RVH: Rvh = Rvh { va: 0x1000, rkey: 9, len: 100 };

fn rndv(tag: u64, rendezvous: Rvh, metadata: &[u8]) -> Vec<u8> {
    let mut message = [&[0; 32][..], metadata].concat();
    Tmh { app_ctx: 0xa0 + tag as u32, tag }.emit_rndv(&rendezvous, &mut message).unwrap();
    message
}

fn info(tag: u64) -> TmInfo {
    TmInfo { tag, app_ctx: 0xa0 + tag as u32 }
}

/// Delivers a message in packets of at most one MTU.
fn deliver(srq: &mut TmSrq, connection: Connection, message: &[u8]) {
    for packet in packets(message) {
        srq.receive(connection, packet).unwrap();
    }
}

fn packets(message: &[u8]) -> Vec<Packet> {
    let count = message.len().div_ceil(MTU).max(1);
    let position = |n| match (n, count) {
        (0, 1) => Position::Only,
        (0, _) => Position::First,
        (n, count) if n + 1 == count => Position::Last,
        _ => Position::Middle,
    };
    let piece = |n: usize| message[n * MTU..message.len().min((n + 1) * MTU)].to_vec();
    (0..count).map(|n| Packet::Send(position(n), piece(n))).collect()
}

fn wr(wr_id: u64, opcode: OpsOpcode, unexpected_cnt: u32) -> OpsWr {
    OpsWr { wr_id, opcode, signalled: true, unexpected_cnt }
}

fn unsignalled_wr(wr_id: u64, opcode: OpsOpcode, unexpected_cnt: u32) -> OpsWr {
    OpsWr { signalled: false, ..wr(wr_id, opcode, unexpected_cnt) }
}

fn receive(recv_wr_id: u64, tag: u64, len: usize) -> OpsOpcode {
    let sg_list = SgeList::zeroed(len);
    OpsOpcode::Add(TaggedReceive { recv_wr_id, sg_list, tag, mask: u64::MAX })
}

/// Posts one command, carries it out and returns its handle.
fn post(srq: &mut TmSrq, wr: OpsWr) -> Option<u32> {
    let handles = srq.post_ops(vec![wr]).unwrap();
    assert!(srq.carry_out());
    handles[0]
}

/// Adds an entry without a completion.
fn add(srq: &mut TmSrq, recv_wr_id: u64, tag: u64, handled: u32) -> u32 {
    post(srq, unsignalled_wr(0, receive(recv_wr_id, tag, BUFFER), handled)).unwrap()
}

fn reports(srq: &mut TmSrq) -> Vec<Report> {
    std::iter::from_fn(|| srq.poll()).map(|completion| completion.report).collect()
}

/// The reports in short form: completion opcode, id and flags.
fn names(srq: &mut TmSrq) -> Vec<String> {
    let name = |report: &Report| match report {
        Report::Added { wr_id, .. } => format!("TM_ADD {wr_id}"),
        Report::Deleted { wr_id, .. } => format!("TM_DEL {wr_id}"),
        Report::Synced { wr_id } => format!("TM_SYNC {wr_id}"),
        Report::Received { wr_id, .. } => format!("RECV {wr_id}"),
        Report::NoTag { wr_id, .. } => format!("TM_NO_TAG {wr_id}"),
        Report::TmReceived { recv_wr_id, flags, .. } => {
            let (matched, valid) = (flags.matched, flags.data_valid);
            let flag = |set, name| if set { name } else { "" };
            format!("TM_RECV {recv_wr_id}{}{}", flag(matched, " MATCH"), flag(valid, " DATA_VALID"))
        }
    };
    reports(srq).iter().map(name).collect()
}

// conformance: B15 B34 B38
#[test]
fn create_srq_refuses_missing_attributes_and_values_above_limits() {
    let device = TmDevice::new(CAPS, MTU);
    let refused = |init| device.create_srq(init).unwrap_err();
    let basic = SrqInit { srq_type: SrqType::Basic, ..init() };
    assert_eq!(refused(basic), CreateError::Type { found: SrqType::Basic });
    assert_eq!(
        refused(SrqInit { tm_cap: None, ..init() }),
        CreateError::Missing { field: "tm_cap" }
    );
    assert_eq!(refused(SrqInit { cq: None, ..init() }), CreateError::Missing { field: "cq" });
    for (max_num_tags, max_ops, field, value) in
        [(5, 4, "max_num_tags", 5), (4, 5, "max_ops", 5), (0, 4, "max_num_tags", 0)]
    {
        let tm_cap = Some(TmLimits { max_num_tags, max_ops });
        let error = refused(SrqInit { tm_cap, ..init() });
        assert_eq!(error, CreateError::Limit { field, value, limit: 4 });
    }
    let without = TmDevice::new(TmCaps { rc: false, ..CAPS }, MTU);
    let error = without.create_srq(init()).unwrap_err();
    assert_eq!(error, CreateError::Transport { transport: Transport::Rc });
    let mut srq = device.create_srq(init()).unwrap();
    let error = srq.associate(Transport::Srd).unwrap_err();
    assert_eq!(error.to_string(), "the device has no tag matching on Srd");
}

// conformance: B41 B42 B43 B44 B45
#[test]
fn device_reports_its_capabilities() {
    let caps = TmDevice::new(CAPS, MTU).caps();
    assert_eq!((caps.max_rndv_hdr_size, caps.max_num_tags, caps.max_ops), (48, 4, 4));
    assert_eq!((caps.max_sge, caps.rc), (2, true));
}

// conformance: B36 B56 B68 B69 B72
#[test]
fn eager_message_of_one_packet_completes_its_entry_at_once() {
    let (mut srq, connection) = srq(1);
    post(&mut srq, wr(70, receive(7, 0x2a, 8), 0));
    deliver(&mut srq, connection, &eager(0x2a, b"hello"));
    let added = Report::Added { wr_id: 70, result: Ok(()), receive: None };
    let received = Report::TmReceived {
        recv_wr_id: 7,
        connection,
        flags: BOTH,
        info: info(0x2a),
        byte_len: 5,
        buffer: Some(SgeList(vec![b"hello\0\0\0".as_slice().into()])),
        result: Ok(()),
    };
    assert_eq!(reports(&mut srq), [added, received]);
    assert_eq!(srq.buffers_len(), 1, "no SRQ buffer was used");
}

// conformance: B37 B66
#[test]
fn unmatched_message_goes_with_headers_to_an_srq_buffer() {
    let (mut srq, connection) = srq(1);
    add(&mut srq, 7, 1, 0);
    let message = eager(2, b"hello");
    deliver(&mut srq, connection, &message);
    let reports = reports(&mut srq);
    let [Report::Received { wr_id: 0, buffer, byte_len: 21, result: Ok(()), .. }] = &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(buffer.gather(21), message);
    assert_eq!((srq.buffers_len(), srq.list().len()), (0, 1));
}

// conformance: B26 B67
#[test]
fn no_tag_message_is_not_matched_and_not_counted() {
    let (mut srq, connection) = srq(3);
    let any = TaggedReceive { recv_wr_id: 7, sg_list: SgeList::zeroed(8), tag: 0, mask: 0 };
    post(&mut srq, unsignalled_wr(0, OpsOpcode::Add(any), 0));
    // One byte, and a message whose bytes at the tag's offset equal the entry's tag.
    for message in [vec![0], [&[0], &eager(0, b"")[1..]].concat()] {
        deliver(&mut srq, connection, &message);
        let completion = srq.poll().unwrap();
        let Report::NoTag { buffer, byte_len, .. } = completion.report else { panic!() };
        assert_eq!(buffer.gather(byte_len), message);
        assert!(!completion.sync_req);
    }
    assert_eq!((srq.list().unexpected(), srq.list().live_len()), (0, 1));
}

// conformance: B70
#[test]
fn eager_message_of_several_packets_reports_match_then_data() {
    let (mut srq, connection) = srq(1);
    add(&mut srq, 7, 1, 0);
    let payload: Vec<u8> = (0..150).collect();
    let mut packets = packets(&eager(1, &payload)).into_iter();
    srq.receive(connection, packets.next().unwrap()).unwrap();
    assert_eq!(names(&mut srq), ["TM_RECV 7 MATCH"]);
    srq.receive(connection, packets.next().unwrap()).unwrap();
    assert_eq!(names(&mut srq), [""; 0]);
    srq.receive(connection, packets.next().unwrap()).unwrap();
    let reports = reports(&mut srq);
    let [Report::TmReceived { recv_wr_id: 7, flags: DATA_VALID, byte_len: 150, buffer, .. }] =
        &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(buffer.as_ref().unwrap().gather(150), payload);
}

// conformance: B12 B25 B36 B39 B70
#[test]
fn device_reads_rendezvous_payload_and_sends_fin() {
    let (mut srq, connection) = srq(1);
    add(&mut srq, 7, 1, 0);
    let request = rndv(1, RVH, b"metadata");
    deliver(&mut srq, connection, &request);
    assert_eq!(names(&mut srq), ["TM_RECV 7 MATCH"]);
    let asked = srq.poll_transmit(connection).unwrap();
    assert_eq!(asked, Packet::ReadRequest { read: 0, va: 0x1000, rkey: 9, len: 100 });
    let payload: Vec<u8> = (0..100).collect();
    for piece in payload.chunks(MTU) {
        assert_eq!(srq.poll_transmit(connection), None, "no FIN before the data is read");
        let bytes = piece.to_vec();
        srq.receive(connection, Packet::ReadResponse { read: 0, bytes }).unwrap();
    }
    let mut fin = request[..32].to_vec();
    fin[0] = 2;
    assert_eq!(srq.poll_transmit(connection), Some(Packet::Send(Position::Only, fin)));
    assert_eq!(srq.poll_transmit(connection), None);
    let reports = reports(&mut srq);
    let [Report::TmReceived { recv_wr_id: 7, flags: DATA_VALID, byte_len: 100, buffer, .. }] =
        &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(buffer.as_ref().unwrap().gather(BUFFER)[..100], payload);
    assert_eq!(buffer.as_ref().unwrap().gather(BUFFER)[100..], [0; 60]);
}

// conformance: B73
#[test]
fn rendezvous_longer_than_its_entry_leaves_headers_in_the_buffer() {
    let (mut srq, connection) = srq(1);
    post(&mut srq, unsignalled_wr(0, receive(7, 1, 40), 0));
    let request = rndv(1, RVH, b"metadata");
    deliver(&mut srq, connection, &request);
    let reports = reports(&mut srq);
    let [Report::TmReceived { flags: BOTH, buffer: Some(buffer), byte_len: 32, result, .. }] =
        &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!(*result, Err(Status::RndvIncomplete));
    assert_eq!(buffer.gather(40), [&request[..32], &[0; 8]].concat());
    assert_eq!(srq.poll_transmit(connection), None, "software reads the payload and sends the FIN");
    assert_eq!(srq.list().len(), 0, "the matched entry is consumed");
}

// conformance: B74
#[test]
fn incomplete_rendezvous_in_a_short_buffer_gets_part_of_the_headers() {
    let (mut srq, connection) = srq(1);
    post(&mut srq, unsignalled_wr(0, receive(7, 1, 8), 0));
    let request = rndv(1, RVH, b"");
    deliver(&mut srq, connection, &request);
    let reports = reports(&mut srq);
    let [Report::TmReceived { buffer: Some(buffer), byte_len: 8, result, info, .. }] = &reports[..]
    else {
        panic!("{reports:?}")
    };
    assert_eq!((*result, buffer.gather(8)), (Err(Status::RndvIncomplete), request[..8].to_vec()));
    assert_eq!(*info, self::info(1));
}

// conformance: B75
#[test]
fn eager_message_longer_than_its_entry_fails_with_its_length() {
    for len in [17, 150] {
        let (mut srq, connection) = srq(1);
        // Two SGEs, to detect an overrun of either.
        let sg_list = SgeList(vec![vec![0; 10].into(), vec![0; 6].into()]);
        let receive = TaggedReceive { recv_wr_id: 7, sg_list, tag: 1, mask: u64::MAX };
        post(&mut srq, unsignalled_wr(0, OpsOpcode::Add(receive), 0));
        add(&mut srq, 8, 1, 0);
        deliver(&mut srq, connection, &eager(1, &vec![0xee; len]));
        let last = reports(&mut srq).pop().unwrap();
        let Report::TmReceived { recv_wr_id: 7, buffer, byte_len, result, .. } = last else {
            panic!("{last:?}")
        };
        assert_eq!((byte_len, result), (len, Err(Status::Length)));
        assert_eq!(buffer.unwrap().gather(BUFFER), [0xee; 16]);
        // The failed message consumes its entry and leaves the next one unchanged.
        deliver(&mut srq, connection, &eager(1, b"next"));
        assert_eq!(names(&mut srq), ["TM_RECV 8 MATCH DATA_VALID"]);
    }
}

// conformance: B40
#[test]
fn unexpected_message_without_srq_buffer_is_refused_as_not_ready() {
    let (mut srq, connection) = srq(0);
    let message = eager(2, b"hello");
    let packet = Packet::Send(Position::Only, message.clone());
    assert_eq!(srq.receive(connection, packet.clone()), Err(NotReady(packet.clone())));
    assert_eq!(
        (srq.list().unexpected(), srq.poll()),
        (0, None),
        "the refused packet changes nothing"
    );
    srq.post_receive(5, SgeList::zeroed(BUFFER));
    srq.receive(connection, packet.clone()).unwrap();
    assert_eq!(names(&mut srq), ["RECV 5"]);
    // If a matching entry is added before the retry, no buffer is needed.
    assert_eq!(srq.receive(connection, packet.clone()), Err(NotReady(packet.clone())));
    add(&mut srq, 7, 2, 1);
    srq.receive(connection, packet).unwrap();
    assert_eq!(names(&mut srq), ["TM_RECV 7 MATCH DATA_VALID"]);
}

// conformance: B42
#[test]
fn add_to_a_full_list_fails_and_changes_nothing() {
    let (mut srq, connection) = srq(0);
    for id in 0..4 {
        add(&mut srq, id, id, 0);
    }
    let before = srq.list().clone();
    post(&mut srq, unsignalled_wr(9, receive(4, 4, 8), 0));
    let refused = srq.poll().unwrap().report;
    let Report::Added { wr_id: 9, result, receive: Some(receive) } = refused else { panic!() };
    assert_eq!((result, receive.recv_wr_id), (Err(Status::TmError), 4));
    assert_eq!(*srq.list(), before);
    deliver(&mut srq, connection, &eager(3, b""));
    add(&mut srq, 4, 4, 0);
    assert_eq!(srq.list().len(), 4);
}

// conformance: B43
#[test]
fn command_beyond_max_ops_is_refused_until_one_completes() {
    let (mut srq, _) = srq(0);
    let sync = |wr_id| wr(wr_id, OpsOpcode::Sync, 0);
    srq.post_ops((0..4).map(sync).collect()).unwrap();
    let refused = srq.post_ops(vec![sync(4)]).unwrap_err();
    assert_eq!(refused.error, PostOpsError::TooManyOps { limit: 4 });
    srq.carry_out();
    srq.post_ops(refused.rest).unwrap();
    while srq.carry_out() {}
    assert_eq!(names(&mut srq), [0, 1, 2, 3, 4].map(|wr_id| format!("TM_SYNC {wr_id}")));
}

// conformance: B44 B46
#[test]
fn bad_wr_names_first_refused_command_and_earlier_ones_are_queued() {
    let (mut srq, _) = srq(0);
    let in_pieces = |count| {
        let sg_list = SgeList(vec![vec![0; 4].into(); count]);
        OpsOpcode::Add(TaggedReceive { recv_wr_id: count as u64, sg_list, tag: 1, mask: 0 })
    };
    let chain = [2, 3, 1].map(|count| wr(count as u64, in_pieces(count), 0));
    let BadWr { handles, error, rest } = srq.post_ops(chain.to_vec()).unwrap_err();
    assert!(matches!(handles[..], [Some(_)]));
    assert_eq!(error, PostOpsError::TooManySges { value: 3, limit: 2 });
    assert_eq!(rest, chain[1..]);
    while srq.carry_out() {}
    assert_eq!(names(&mut srq), ["TM_ADD 2"]);
}

// conformance: B47 B48
#[test]
fn handles_are_unique_and_independent_of_work_request_ids() {
    let (mut srq, connection) = srq(0);
    let mut live = Vec::new();
    for n in 0..100 {
        let add = OpsWr {
            wr_id: 5,
            opcode: OpsOpcode::Add(TaggedReceive {
                recv_wr_id: 6,
                sg_list: SgeList::zeroed(1),
                tag: n,
                mask: u64::MAX,
            }),
            signalled: false,
            unexpected_cnt: 0,
        };
        let handle = post(&mut srq, add).unwrap();
        assert!(!live.contains(&handle));
        live.push(handle);
        if live.len() == 3 {
            deliver(&mut srq, connection, &eager(n - 2, b""));
            live.remove(0);
        }
    }
}

// conformance: B50 B57
#[test]
fn message_for_a_deleted_entry_is_unexpected() {
    let (mut srq, connection) = srq(1);
    let handle = add(&mut srq, 7, 1, 0);
    post(&mut srq, wr(9, OpsOpcode::Delete(handle), 0));
    let deleted = srq.poll().unwrap().report;
    let Report::Deleted { wr_id: 9, result: Ok(()), receive: Some(receive) } = deleted else {
        panic!("{deleted:?}")
    };
    assert_eq!((receive.recv_wr_id, receive.sg_list.len()), (7, BUFFER));
    deliver(&mut srq, connection, &eager(1, b""));
    assert_eq!(names(&mut srq), ["RECV 0"]);
}

// conformance: B51 B55
#[test]
fn delete_of_a_consumed_entry_fails_and_its_receive_completes() {
    let (mut srq, connection) = srq(0);
    let handle = add(&mut srq, 7, 1, 0);
    srq.post_ops(vec![unsignalled_wr(9, OpsOpcode::Delete(handle), 0)]).unwrap();
    deliver(&mut srq, connection, &eager(1, b""));
    srq.carry_out();
    let reports = reports(&mut srq);
    let [
        Report::TmReceived { recv_wr_id: 7, result: Ok(()), .. },
        Report::Deleted { wr_id: 9, result: Err(Status::TmError), receive: None },
    ] = &reports[..]
    else {
        panic!("{reports:?}")
    };
}

// conformance: B52 B55
#[test]
fn delete_of_an_unknown_handle_fails_and_changes_nothing() {
    let (mut srq, _) = srq(0);
    let handle = add(&mut srq, 7, 1, 0);
    let other = add(&mut srq, 8, 2, 0);
    post(&mut srq, wr(1, OpsOpcode::Delete(handle), 0));
    reports(&mut srq);
    let before = srq.list().clone();
    for gone in [handle, other + 1000] {
        post(&mut srq, unsignalled_wr(2, OpsOpcode::Delete(gone), 0));
        let report = srq.poll().unwrap().report;
        let failed = Report::Deleted { wr_id: 2, result: Err(Status::TmError), receive: None };
        assert_eq!(report, failed);
    }
    assert_eq!(*srq.list(), before);
}

// conformance: B54 B57
#[test]
fn successful_commands_complete_only_if_signalled() {
    for signalled in [false, true] {
        let (mut srq, _) = srq(0);
        let command = |wr_id, opcode| OpsWr { signalled, ..wr(wr_id, opcode, 0) };
        let handle = post(&mut srq, command(1, receive(7, 1, 8))).unwrap();
        post(&mut srq, command(2, OpsOpcode::Sync));
        post(&mut srq, command(3, OpsOpcode::Delete(handle)));
        let expected: &[&str] =
            if signalled { &["TM_ADD 1", "TM_SYNC 2", "TM_DEL 3"] } else { &[] };
        assert_eq!(names(&mut srq), expected);
    }
}

// conformance: B59 B60 B61
#[test]
fn new_entries_are_held_back_until_the_unexpected_count_is_reported() {
    for resume in 0..3 {
        let (mut srq, connection) = srq(4);
        add(&mut srq, 1, 1, 0);
        deliver(&mut srq, connection, &eager(9, b""));
        // These commands carry a count that misses the unexpected message.
        let held = [add(&mut srq, 2, 2, 0), add(&mut srq, 3, 2, 0)];
        assert_eq!((srq.list().live_len(), srq.list().len()), (1, 3));
        deliver(&mut srq, connection, &eager(2, b""));
        deliver(&mut srq, connection, &eager(1, b""));
        assert_eq!(names(&mut srq), ["RECV 0", "RECV 1", "TM_RECV 1 MATCH DATA_VALID"]);
        // A stale count keeps the entries held back; the current count in any command resumes them.
        post(&mut srq, unsignalled_wr(0, OpsOpcode::Sync, 1));
        assert_eq!(srq.list().live_len(), 0);
        match resume {
            0 => post(&mut srq, unsignalled_wr(0, OpsOpcode::Sync, 2)),
            1 => post(&mut srq, unsignalled_wr(0, receive(4, 4, 8), 2)),
            _ => post(&mut srq, unsignalled_wr(0, OpsOpcode::Delete(held[0]), 2)),
        };
        assert_eq!(srq.list().live_len(), srq.list().len());
        deliver(&mut srq, connection, &eager(2, b""));
        let first = if resume == 2 { 3 } else { 2 };
        assert_eq!(names(&mut srq), [format!("TM_RECV {first} MATCH DATA_VALID")]);
    }
}

// conformance: B53 B62
#[test]
fn completions_request_sync_while_the_count_is_behind() {
    let (mut srq, connection) = srq(1);
    add(&mut srq, 1, 1, 0);
    add(&mut srq, 2, 1, 0);
    let flag = |srq: &mut TmSrq| srq.poll().unwrap().sync_req;
    deliver(&mut srq, connection, &eager(1, b""));
    assert!(!flag(&mut srq), "no unexpected message yet");
    deliver(&mut srq, connection, &eager(9, b""));
    assert!(flag(&mut srq), "the unexpected message itself");
    deliver(&mut srq, connection, &eager(1, b""));
    assert!(flag(&mut srq), "a match after it");
    post(&mut srq, wr(5, receive(3, 3, 8), 0));
    assert!(flag(&mut srq), "a command with a stale count");
    post(&mut srq, wr(6, OpsOpcode::Sync, 1));
    assert!(!flag(&mut srq), "a command with the current count");
}

// conformance: B63
#[test]
fn unexpected_count_wraps() {
    let mut srq = TmDevice::new(CAPS, MTU).counting_from(u32::MAX - 2).create_srq(init()).unwrap();
    let connection = srq.associate(Transport::Rc).unwrap();
    (0..4).for_each(|wr_id| srq.post_receive(wr_id, SgeList::zeroed(BUFFER)));
    (0..4).for_each(|_| deliver(&mut srq, connection, &eager(9, b"")));
    assert_eq!(srq.list().unexpected(), 1);
    add(&mut srq, 1, 1, u32::MAX);
    assert_eq!(srq.list().live_len(), 0);
    add(&mut srq, 2, 2, 1);
    assert_eq!(srq.list().live_len(), 2);
}

// conformance: B33 B71
#[test]
fn matches_and_unexpected_messages_are_reported_in_arrival_order() {
    let device = TmDevice::new(TmCaps { max_num_tags: 64, max_ops: 64, ..CAPS }, MTU);
    let tm_cap = Some(TmLimits { max_num_tags: 64, max_ops: 64 });
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut srq = device.create_srq(SrqInit { tm_cap, ..init() }).unwrap();
        let connections: Vec<_> = (0..8).map(|_| srq.associate(Transport::Rc).unwrap()).collect();
        (0..64).for_each(|wr_id| srq.post_receive(wr_id, SgeList::zeroed(BUFFER)));
        for id in 0..32 {
            add(&mut srq, id, id % 4, 0);
        }
        // The second packets of matched messages are delayed; reports of other messages must not wait.
        let mut late: Vec<(usize, Packet)> = Vec::new();
        let mut expected = Vec::new();
        let mut free: Vec<usize> = (0..8).collect();
        for _ in 0..40 {
            if free.is_empty() || (random.bool() && !late.is_empty()) {
                let (of, packet) = late.swap_remove(random.usize(..late.len()));
                srq.receive(connections[of], packet).unwrap();
                free.push(of);
                continue;
            }
            let of = free.swap_remove(random.usize(..free.len()));
            let tag = random.u64(..6);
            let hit = srq.list().find(tag).is_some();
            let long = hit && random.bool();
            let message = eager(tag, &vec![0; if long { 100 } else { 8 }]);
            let mut packets = packets(&message).into_iter();
            srq.receive(connections[of], packets.next().unwrap()).unwrap();
            match packets.next() {
                Some(packet) => late.push((of, packet)),
                None => free.push(of),
            }
            expected.push((hit, of as u32));
        }
        let order: Vec<(bool, u32)> = reports(&mut srq)
            .into_iter()
            .filter_map(|report| match report {
                Report::TmReceived { connection, flags, .. } => {
                    flags.matched.then_some((true, connection.0))
                }
                Report::Received { connection, .. } => Some((false, connection.0)),
                _ => None,
            })
            .collect();
        assert_eq!(order, expected, "seed {seed}");
    }
}

// conformance: B34 B35
#[test]
fn connections_share_one_cq_and_each_buffer_is_used_once() {
    let (mut srq, one) = srq(5);
    let two = srq.associate(Transport::Rc).unwrap();
    for id in 0..3 {
        add(&mut srq, id, 1, 0);
    }
    for connection in [one, two] {
        for tag in [1, 2, 1] {
            deliver(&mut srq, connection, &eager(tag, b"x"));
        }
    }
    post(&mut srq, wr(9, OpsOpcode::Sync, 3));
    let names = names(&mut srq);
    let count = |name| names.iter().filter(|report| report.starts_with(name)).count();
    assert_eq!((count("TM_RECV"), count("RECV"), count("TM_SYNC"), names.len()), (3, 3, 1, 7));
    assert_eq!((srq.list().len(), srq.buffers_len()), (0, 2));
}

#[test]
fn ended_connection_flushes_its_incomplete_messages() {
    let (mut srq, matched) = srq(1);
    let [unmatched, reading] = [(); 2].map(|()| srq.associate(Transport::Rc).unwrap());
    add(&mut srq, 7, 1, 0);
    add(&mut srq, 8, 2, 0);
    let first = |tag| packets(&eager(tag, &[0; 100])).remove(0);
    srq.receive(matched, first(1)).unwrap();
    srq.receive(unmatched, first(9)).unwrap();
    deliver(&mut srq, reading, &rndv(2, RVH, b""));
    reports(&mut srq);
    for connection in [matched, unmatched, reading] {
        srq.disconnect(connection);
    }
    let results: Vec<_> = std::iter::from_fn(|| srq.poll())
        .map(|Completion { report, .. }| match report {
            Report::TmReceived { recv_wr_id, buffer: Some(_), result, .. } => (recv_wr_id, result),
            Report::Received { wr_id, result, .. } => (wr_id, result),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(results, [7, 0, 8].map(|id| (id, Err(Status::Flushed))));
    assert_eq!(srq.poll_transmit(reading), None);
}
