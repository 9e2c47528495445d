//! Captures written and read, and files that other programs wrote or damaged.

use efa_device::{Gid, Qpn, Status, Time};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use proptest::prelude::*;
use tempfile::TempDir;

use super::reader::{MOST_DESCRIBED, parse, to_time};
use super::*;
use crate::record::{QueuePairId, SharedSink};

fn status() -> impl Strategy<Value = Status> {
    (1..=15u8).prop_map(|code| Status::from_code(code).unwrap())
}

prop_compose! {
    fn queue_pair()(gid in any::<[u8; 16]>(), qpn in any::<u16>()) -> QueuePairId {
        QueuePairId { gid: Gid(gid), qpn: Qpn(qpn) }
    }
}

prop_compose! {
    fn record()(
        time in any::<u64>(),
        event in prop_oneof![
            Just(PacketEvent::Sent),
            Just(PacketEvent::Received),
            status().prop_map(PacketEvent::Failed),
        ],
        source in queue_pair(),
        destination in queue_pair(),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) -> Record<'static> {
        let time = Time::from_nanos(time);
        Record { time, event, source, destination, bytes: Cow::Owned(bytes) }
    }
}

fn write(records: &[Record<'_>]) -> Vec<u8> {
    let mut capture = Capture::new(Vec::new(), "test").unwrap();
    for record in records {
        capture.record(record);
    }
    capture.finish().unwrap()
}

fn read(file: &[u8]) -> Result<Vec<Record<'static>>, CaptureError> {
    CaptureReader::new(file)?.collect()
}

fn sample() -> Record<'static> {
    let source = QueuePairId { gid: Gid([0x11; 16]), qpn: Qpn(0x0102) };
    let destination = QueuePairId { gid: Gid([0x22; 16]), qpn: Qpn(0x0304) };
    let event = PacketEvent::Failed(Status::ReceiverNotReady);
    let bytes = Cow::Borrowed(&b"packet"[..]);
    Record { time: Time::from_nanos(5), event, source, destination, bytes }
}

#[test]
fn pseudo_header_has_the_documented_layout() {
    let mut bytes = Vec::new();
    emit(&sample(), usize::MAX, &mut bytes);
    let mut expected = vec![1, 2, 10, 0, 2, 1, 4, 3];
    expected.extend([0x11; 16]);
    expected.extend([0x22; 16]);
    expected.extend(b"packet");
    assert_eq!(bytes, expected);
}

#[test]
fn each_invalid_packet_has_its_error() {
    let mut good = Vec::new();
    emit(&sample(), usize::MAX, &mut good);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(Time::ZERO, &bytes).unwrap_err()
    };
    assert!(matches!(with(0, 2), CaptureError::Version { found: 2 }));
    assert!(matches!(with(1, 3), CaptureError::Field { field: "event", found: 3 }));
    assert!(matches!(with(1, 1), CaptureError::Field { field: "status", found: 10 }));
    assert!(matches!(with(2, 99), CaptureError::Field { field: "status", found: 99 }));
    for length in 0..HEADER {
        let error = parse(Time::ZERO, &good[..length]).unwrap_err();
        assert!(matches!(error, CaptureError::Short { length: l } if l == length));
    }
    assert!(matches!(read(b"no capture at all, whatever"), Err(CaptureError::Format { .. })));
    let file = write(&[sample()]);
    assert!(matches!(read(&file[..file.len() - 1]), Err(CaptureError::Format { .. })));
    let error = |file: &[u8]| read(file).unwrap_err().to_string();
    assert_eq!(error(b""), "not a valid pcapng file: it is empty");
    let pcap = [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..], &[0; 100]].concat();
    assert_eq!(error(&pcap), "not a valid pcapng file: it is of the older format pcap");
    assert_eq!(error(b"text"), "not a valid pcapng file: it begins with [74, 65, 78, 74]");
    assert_eq!(error(&file[..3]), "not a valid pcapng file: it begins with [0a, 0d, 0d]");
    let missing = std::env::temp_dir().join("efa-sim-no-such-capture");
    assert!(matches!(CaptureReader::open(missing), Err(CaptureError::Io(_))));
}

#[test]
fn second_capture_to_the_same_file_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("capture");
    let mut first = Capture::create(&path, "first").unwrap();
    let refused = Capture::create(&path, "second").err().unwrap();
    assert_eq!(refused.to_string(), "another process writes to it");
    first.write(&sample()).unwrap();
    first.finish().unwrap();
    assert_eq!(CaptureReader::open(&path).unwrap().count(), 1);
    Capture::create(&path, "second").unwrap().finish().unwrap();
    assert_eq!(CaptureReader::open(&path).unwrap().count(), 0);
}

#[test]
fn flushed_capture_can_be_read_while_it_is_written() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("capture");
    let mut capture = Capture::create(&path, "flushed").unwrap();
    capture.record(&sample());
    assert!(CaptureReader::open(&path).is_err(), "it is in memory");
    capture.flush().unwrap();
    assert_eq!(CaptureReader::open(&path).unwrap().count(), 1);
    capture.record(&sample());
    let shared = SharedSink::new(capture);
    shared.flush().unwrap();
    assert_eq!(CaptureReader::open(&path).unwrap().count(), 2);
    shared.clone().record(&sample());
    drop(shared);
    assert_eq!(CaptureReader::open(&path).unwrap().count(), 3);
}

#[test]
fn flush_of_a_capture_on_a_full_disk_returns_its_first_error_and_its_path() {
    let shared = SharedSink::new(Capture::create("/dev/full", "full").unwrap());
    let is_full = |error: &SinkError| {
        error.path.as_deref() == Some(Path::new("/dev/full"))
            && error.source.kind() == io::ErrorKind::StorageFull
    };
    // Its failure is one of a record, more of them than are kept in memory, or of the flush.
    let mut sink = shared.clone();
    (0..1000).for_each(|_| sink.record(&sample()));
    for _ in 0..2 {
        let error = shared.flush().unwrap_err();
        assert!(is_full(&error), "{error:?}");
        assert_eq!(error.to_string(), "/dev/full: records are missing");
    }
    let mut capture = Capture::create("/dev/full", "full").unwrap();
    assert!(capture.flush().is_err_and(|error| is_full(&error)));
    assert!(matches!(capture.finish(), Err(CaptureError::Io(_))));
}

/// A packet of another interface, of one that isn't described, of another pseudo header's version, of one that is
/// cut, and of a time that is out of range.
fn foreign() -> Vec<(EnhancedPacketBlock<'static>, &'static str)> {
    let mut good = Vec::new();
    emit(&sample(), usize::MAX, &mut good);
    let with = |interface_id, change: &dyn Fn(&mut Vec<u8>)| {
        let mut data = good.clone();
        change(&mut data);
        let (timestamp, original_len) = (Duration::from_nanos(u64::MAX), data.len() as u32);
        let (data, options) = (Cow::Owned(data), Vec::new());
        EnhancedPacketBlock { interface_id, timestamp, original_len, data, options }
    };
    vec![
        (with(1, &|_| ()), "link type 1, expected 147 (USER0)"),
        (with(7, &|_| ()), "interface 7 is not described"),
        (with(0, &|data| data[0] = 2), "pseudo header has version 2, expected 1"),
        (with(0, &|data| data[1] = 9), "pseudo header: event is 9"),
        (
            with(0, &|data| data.truncate(39)),
            "packet of 39 bytes, shorter than the pseudo header of 40",
        ),
        (with(2, &|_| ()), "time out of range: 18446744073709551615 units of resolution 0x06"),
    ]
}

/// A file whose interfaces are one of the device, one of Ethernet, and one of the device with microseconds.
fn mixed(packets: impl IntoIterator<Item = EnhancedPacketBlock<'static>>) -> Vec<u8> {
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    for (linktype, resolution) in [(LINK_TYPE, 9), (DataLink::ETHERNET, 9), (LINK_TYPE, 6)] {
        let options = vec![InterfaceDescriptionOption::IfTsResol(resolution)];
        let interface = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
        writer.write_pcapng_block(interface).unwrap();
    }
    for mut packet in packets {
        // The writer refuses an interface that is not described.
        let interface = std::mem::replace(&mut packet.interface_id, 0);
        let at = writer.get_ref().len() + 8;
        writer.write_pcapng_block(packet).unwrap();
        writer.get_mut()[at..at + 4].copy_from_slice(&interface.to_le_bytes());
    }
    writer.into_inner()
}

fn block(record: &Record<'_>) -> EnhancedPacketBlock<'static> {
    let mut data = Vec::new();
    emit(record, usize::MAX, &mut data);
    EnhancedPacketBlock {
        interface_id: 0,
        timestamp: Duration::from_nanos(record.time.as_nanos()),
        original_len: data.len() as u32,
        data: Cow::Owned(data),
        options: Vec::new(),
    }
}

#[test]
fn foreign_and_bad_records_between_others_are_skipped_and_counted() {
    for (packet, reason) in foreign() {
        let bytes = mixed([block(&sample()), packet.clone(), packet, block(&sample())]);
        let mut reader = CaptureReader::new(&bytes[..]).unwrap();
        for _ in 0..2 {
            let Captured { record, length } = reader.next_captured().unwrap().unwrap();
            assert_eq!((record, length), (sample(), sample().bytes.len()));
        }
        assert!(reader.next_captured().is_none());
        let skipped = reader.skipped().unwrap();
        assert_eq!((skipped.records, skipped.reason.to_string().as_str()), (2, reason));
        assert_eq!(read(&bytes).unwrap(), [sample(), sample()]);
    }
    let bytes = mixed(foreign().into_iter().map(|(packet, _)| packet));
    let mut reader = CaptureReader::new(&bytes[..]).unwrap();
    assert!(reader.next_captured().is_none());
    assert_eq!(reader.skipped().unwrap().records, foreign().len() as u64);
    let bytes = mixed([block(&sample())]);
    assert!(CaptureReader::new(&bytes[..]).unwrap().skipped().is_none());
}

#[test]
fn damage_behind_skipped_records_is_an_error() {
    let bytes = mixed([foreign().swap_remove(0).0, block(&sample())]);
    let mut reader = CaptureReader::new(&bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(reader.next_captured(), Some(Err(CaptureError::Format { .. }))));
    assert!(reader.next_captured().is_none() && reader.next().is_none());
    assert_eq!(reader.skipped().unwrap().records, 1);
}

/// Of each packet the first bytes, the length of the whole one, and what the interface says.
#[test]
fn bounded_capture_has_the_beginnings_of_packets_and_their_lengths() {
    let long = Record { bytes: Cow::Owned(vec![7; 9000]), ..sample() };
    for most in [0, 3, 6, 64, 9000, usize::MAX] {
        let mut capture = Capture::bounded(Vec::new(), "bounded", most).unwrap();
        for record in [&sample(), &long] {
            capture.write(record).unwrap();
        }
        let bytes = capture.finish().unwrap();
        assert!(bytes.len() < 400 + 2 * most.min(9000));
        // Behind the file header (28), the block's head (8), link type and reserved field.
        let snaplen = u32::from_le_bytes(bytes[40..44].try_into().unwrap());
        assert_eq!(snaplen, if most == usize::MAX { 0 } else { most as u32 + 40 });
        let mut reader = CaptureReader::new(&bytes[..]).unwrap();
        for whole in [sample(), long.clone()] {
            let captured = reader.next_captured().unwrap().unwrap();
            let stored = whole.bytes.len().min(most);
            assert_eq!(captured.length, whole.bytes.len());
            assert_eq!(captured.missing(), whole.bytes.len() - stored);
            let bytes = Cow::Borrowed(&whole.bytes[..stored]);
            assert_eq!(captured.record, Record { bytes, ..whole });
        }
        assert!(reader.next_captured().is_none());
    }
}

/// Whoever parses what it gives must not take a part for a packet.
#[test]
fn iterator_gives_an_error_for_a_cut_packet_and_goes_on() {
    let mut capture = Capture::bounded(Vec::new(), "bounded", 10).unwrap();
    let long = Record { bytes: Cow::Owned(vec![7; 11]), ..sample() };
    for record in [&sample(), &long, &sample()] {
        capture.write(record).unwrap();
    }
    let bytes = capture.finish().unwrap();
    let mut records = CaptureReader::new(&bytes[..]).unwrap();
    assert_eq!(records.next().unwrap().unwrap(), sample());
    let error = records.next().unwrap().unwrap_err();
    assert!(matches!(error, CaptureError::Cut { length: 51, captured: 50 }), "{error}");
    assert_eq!(records.next().unwrap().unwrap(), sample());
    assert!(records.next().is_none());
}

#[test]
fn lengths_of_other_programs_that_make_no_sense_are_no_overflow() {
    for original_len in [0, 1, u32::MAX] {
        let bytes = mixed([EnhancedPacketBlock { original_len, ..block(&sample()) }]);
        let captured = CaptureReader::new(&bytes[..]).unwrap().next_captured().unwrap().unwrap();
        let length = (original_len as usize).saturating_sub(40).max(sample().bytes.len());
        assert_eq!((captured.length, captured.record), (length, sample()));
    }
}

#[test]
fn number_of_interfaces_and_options_is_bounded() {
    let section = |interfaces: usize, options: usize| {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        for _ in 0..interfaces {
            let options = vec![InterfaceDescriptionOption::IfName("x".into()); options];
            let (linktype, snaplen) = (LINK_TYPE, 0);
            let interface = InterfaceDescriptionBlock { linktype, snaplen, options };
            writer.write_pcapng_block(interface).unwrap();
        }
        writer.into_inner()
    };
    assert_eq!(read(&section(MOST_DESCRIBED, 0)).unwrap(), []);
    assert_eq!(read(&section(MOST_DESCRIBED, 0).repeat(2)).unwrap(), []);
    for (interfaces, options) in [(MOST_DESCRIBED + 1, 0), (1, MOST_DESCRIBED), (2048, 2)] {
        let error = read(&section(interfaces, options)).unwrap_err().to_string();
        assert!(error.ends_with("more than 4096 interfaces and options"), "{error}");
    }
}

#[test]
fn times_of_other_resolutions_are_converted() {
    assert_eq!(to_time(3, 9).unwrap(), Time::from_nanos(3));
    assert_eq!(to_time(3, 6).unwrap(), Time::from_nanos(3000));
    assert_eq!(to_time(3, 0x81).unwrap(), Time::from_nanos(1_500_000_000));
    assert!(matches!(to_time(u64::MAX, 0), Err(CaptureError::Time { .. })));
    assert!(matches!(to_time(1, 0x7f), Err(CaptureError::Time { .. })));
}

#[test]
fn offset_of_the_interface_is_added_to_times_as_far_as_they_go() {
    let time = |seconds: i64| {
        let mut data = Vec::new();
        emit(&sample(), usize::MAX, &mut data);
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let options = vec![
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            InterfaceDescriptionOption::IfTsOffset(seconds.cast_unsigned()),
        ];
        let interface = InterfaceDescriptionBlock { linktype: LINK_TYPE, snaplen: 0, options };
        writer.write_pcapng_block(interface).unwrap();
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_secs(5),
            original_len: data.len() as u32,
            data: data.into(),
            options: Vec::new(),
        };
        writer.write_pcapng_block(packet).unwrap();
        read(&writer.into_inner()).unwrap()[0].time
    };
    assert_eq!(time(0), Time::from_nanos(5_000_000_000));
    assert_eq!(time(2), Time::from_nanos(7_000_000_000));
    assert_eq!(time(-2), Time::from_nanos(3_000_000_000));
    assert_eq!(time(-6), Time::ZERO);
    assert_eq!(time(i64::MIN), Time::ZERO);
    assert_eq!(time(i64::MAX), Time::from_nanos(u64::MAX));
}

#[test]
fn packets_in_blocks_of_other_kinds_are_skipped_and_the_kind_is_named() {
    let file = |kind: u32, body: &[u8]| {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&write(&[sample()])[..], &kind.to_le_bytes(), &length, body, &length].concat()
    };
    for (kind, length, name) in
        [(3, 8, "a simple packet block"), (2, 20, "an obsolete packet block")]
    {
        let bytes = file(kind, &vec![0; length]);
        let mut records = CaptureReader::new(&bytes[..]).unwrap();
        assert_eq!(records.next().unwrap().unwrap(), sample());
        assert!(records.next().is_none());
        let reason = records.skipped().unwrap().reason.to_string();
        assert_eq!(reason, format!("a packet is in {name}, expected an enhanced packet block"));
    }
}

#[test]
fn sink_error_is_returned_by_finish() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut capture = Capture::new(Full, "test").unwrap();
    let long = Record { bytes: Cow::Owned(vec![0; 100_000]), ..sample() };
    capture.record(&long);
    capture.record(&long);
    let error = capture.finish().err().unwrap();
    assert!(
        matches!(error, CaptureError::Io(e) if e.kind() == io::ErrorKind::StorageFull),
        "the first error is kept"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..<_>::default() })]

    #[test]
    fn written_capture_reads_back_equal(
        records in proptest::collection::vec(record(), 0..8)
    ) {
        prop_assert_eq!(read(&write(&records)).unwrap(), records);
    }

    #[test]
    fn reading_any_bytes_does_not_panic(
        records in proptest::collection::vec(record(), 1..4),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = write(&records);
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        // Whatever comes is fine, as long as it comes and ends.
        let _ = read(&file);
        let _ = read(&file[..cut.index(file.len())]);
    }
}
