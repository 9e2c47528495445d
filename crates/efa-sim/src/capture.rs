//! Captures: pcapng files of the packets that passed on a link, written and read.
//!
//! The file opens in Wireshark, and any pcapng library reads it. It has one section with one interface:
//! `if_name` is the device's name, the link type 147 (`LINKTYPE_USER0`), `if_tsresol` 9 (nanoseconds).
//! Each enhanced packet block is one [event](PacketEvent) of one packet, never cut. Its data is a pseudo
//! header of 40 bytes, then the packet. Integers are little-endian; GIDs are in network byte order, as in
//! an IPv6 header.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version of this header: 1 |
//! | 1 | 1 | event: 0 sent, 1 received, 2 failed |
//! | 2 | 1 | if failed, the [status number](Status::code) of the EFA device, 1 to 15; else 0 |
//! | 3 | 1 | reserved: written as 0, ignored when read |
//! | 4 | 2 | queue pair number of the source |
//! | 6 | 2 | queue pair number of the destination |
//! | 8 | 16 | GID of the source |
//! | 24 | 16 | GID of the destination |
//! | 40 | | the packet: EFA RDM protocol headers and payload |
//!
//! Only datagrams are captured: RDMA reads and writes move bytes without packets. Immediate data of a
//! send is not part of the packet and not in the file. Where the capture has both ends, a packet is
//! there twice: `sent` and then `received` or `failed`.
//!
//! # Times
//!
//! A time is a [`Time`] that the program gave to a poll, so its origin and precision are the program's.
//!
//! * On the shm and tcp links all events bear the time of the queue pair's latest poll that had to look
//!   for completions (a poll that returns one already queued doesn't count). A packet that was received
//!   or failed bears the time of the poll that found it. A packet that was sent bears the time of the
//!   last such poll *before* it was posted: all packets posted between two polls, as the segments of
//!   one message, bear the same time, and the differences of their times are no measure of bandwidth.
//! * On the local link the time is virtual: `sent` is the fabric's time, `received` and `failed` the
//!   simulated moment of the event, to the nanosecond.
//!
//! # Example
//!
//! ```
//! use efa_device::{Device, QueuePair, QueuePairOptions};
//! use efa_sim::capture::{Capture, CaptureReader};
//! use efa_sim::local::{LocalFabric, LocalOptions};
//! use efa_sim::record::PacketEvent;
//!
//! let path = std::env::temp_dir().join(format!("efa-capture-{}.pcapng", std::process::id()));
//! let fabric = LocalFabric::new(LocalOptions::default());
//! fabric.capture(Capture::create(&path, "local")?);
//! let a = fabric.open().create_queue_pair(QueuePairOptions::default())?.address();
//! fabric.inject(a, a, b"hello");
//! fabric.stop_capture();
//!
//! let records: Vec<_> = CaptureReader::open(&path)?.collect::<Result<_, _>>()?;
//! std::fs::remove_file(&path)?;
//! assert_eq!(records.len(), 1);
//! assert_eq!((records[0].event, &*records[0].bytes), (PacketEvent::Sent, &b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Chain, Read, Write};
use std::path::Path;
use std::time::Duration;

use efa_device::{Gid, Qpn, Status, Time};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, PcapError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::record::{PacketEvent, QueuePairId, Record, Sink};

/// Link type of the file's interface.
const LINK_TYPE: DataLink = DataLink::USER0;
/// Version of the pseudo header.
const VERSION: u8 = 1;
/// Length of the pseudo header.
const HEADER: usize = 40;
/// Most interfaces and interface options in a section. The library keeps all of them, in more memory than
/// they take in the file.
const MOST_DESCRIBED: usize = 4096;
/// `if_tsresol` for nanoseconds; the format's own default is 6, microseconds.
const NANOSECONDS: u8 = 9;

/// Why a capture could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not a pcapng file, or a damaged one.
    #[error("not a valid pcapng file: {reason}")]
    Format {
        /// What is wrong.
        reason: String,
    },
    /// A packet names an interface that the file doesn't describe.
    #[error("interface {interface} is not described")]
    Interface {
        /// The interface's number.
        interface: u32,
    },
    /// A packet is in a block of another kind, which has neither a source and destination nor an event.
    #[error("a packet is in {kind}, expected an enhanced packet block")]
    Block {
        /// The kind.
        kind: &'static str,
    },
    /// The file's link type is another.
    #[error("link type {found}, expected 147 (USER0)")]
    LinkType {
        /// The file's link type.
        found: u32,
    },
    /// A packet was captured in part.
    #[error("only {captured} of a packet's {length} bytes were captured")]
    Cut {
        /// Its length with the pseudo header.
        length: u32,
        /// Captured bytes.
        captured: usize,
    },
    /// Shorter than the pseudo header.
    #[error("packet of {length} bytes, shorter than the pseudo header of 40")]
    Short {
        /// Its length.
        length: usize,
    },
    /// A pseudo header of another version.
    #[error("pseudo header has version {found}, expected 1")]
    Version {
        /// The version.
        found: u8,
    },
    /// A field of the pseudo header has an undefined value.
    #[error("pseudo header: {field} is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u8,
    },
    /// A time beyond 2^64 nanoseconds, or an invalid resolution.
    #[error("time out of range: {ticks} units of resolution {resolution:#04x}")]
    Time {
        /// The file's number.
        ticks: u64,
        /// The file's `if_tsresol`.
        resolution: u8,
    },
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Format { reason: "it ends within a block".into() }
            }
            PcapError::IoError(error) => Self::Io(error),
            PcapError::IncompleteBuffer => Self::Format { reason: "it ends too early".into() },
            other => Self::Format { reason: other.to_string() },
        }
    }
}

/// A capture file being written. Dropping it flushes the file.
///
/// As a [`Sink`] it stops at the first error, which [`finish`](Self::finish) returns.
pub struct Capture<W: Write> {
    writer: PcapNgWriter<BufWriter<W>>,
    scratch: Vec<u8>,
    failed: Option<CaptureError>,
}

impl Capture<File> {
    /// Creates the file `path` for the device named `interface`. An existing file is overwritten.
    ///
    /// # Errors
    /// [`CaptureError::Io`], also if another process is writing a capture to this file.
    pub fn create(path: impl AsRef<Path>, interface: &str) -> Result<Self, CaptureError> {
        let file = File::options().create(true).write(true).truncate(false).open(path)?;
        if file.metadata()?.is_file() {
            if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
                return Err(io::Error::other("another process writes to it").into());
            }
            file.set_len(0)?;
        }
        Self::new(file, interface)
    }
}

impl<W: Write> Capture<W> {
    /// Writes to `writer`, for the device named `interface`.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn new(writer: W, interface: &str) -> Result<Self, CaptureError> {
        let mut writer = PcapNgWriter::new(BufWriter::new(writer))?;
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: LINK_TYPE,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(interface)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        Ok(Self { writer, scratch: Vec::new(), failed: None })
    }

    /// Writes one record.
    ///
    /// # Errors
    /// [`CaptureError::Io`].
    pub fn write(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        self.scratch.clear();
        emit(record, &mut self.scratch);
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(record.time.as_nanos()),
            original_len: u32::try_from(self.scratch.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.scratch),
            options: Vec::new(),
        })?;
        Ok(())
    }

    /// Writes what is still in memory, so that a reader finds it now. An error is one of [`finish`](Self::finish).
    pub fn flush(&mut self) {
        if self.failed.is_none() {
            let flushed = self.writer.get_mut().flush();
            self.keep(flushed.map_err(CaptureError::from));
        }
    }

    /// Keeps an error, which ends the capture.
    fn keep(&mut self, result: Result<(), CaptureError>) {
        if let Err(error) = result {
            tracing::warn!(%error, "the capture file is incomplete: writing failed");
            self.failed = Some(error);
        }
    }

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// The first error, also one of [`Sink::record`].
    pub fn finish(self) -> Result<W, CaptureError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.writer.into_inner().into_inner().map_err(|e| e.into_error())?),
        }
    }
}

impl<W: Write + Send> Sink for Capture<W> {
    fn record(&mut self, record: &Record<'_>) {
        if self.failed.is_none() {
            let written = self.write(record);
            self.keep(written);
        }
    }
}

fn emit(record: &Record<'_>, into: &mut Vec<u8>) {
    let (event, status) = match record.event {
        PacketEvent::Sent => (0, 0),
        PacketEvent::Received => (1, 0),
        PacketEvent::Failed(status) => (2, status.code()),
    };
    into.extend([VERSION, event, status, 0]);
    into.extend(record.source.qpn.0.to_le_bytes());
    into.extend(record.destination.qpn.0.to_le_bytes());
    into.extend(record.source.gid.0);
    into.extend(record.destination.gid.0);
    into.extend(&*record.bytes);
}

fn parse(time: Time, bytes: &[u8]) -> Result<Record<'static>, CaptureError> {
    let Some((header, packet)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(CaptureError::Short { length: bytes.len() });
    };
    if header[0] != VERSION {
        return Err(CaptureError::Version { found: header[0] });
    }
    let event = match (header[1], header[2]) {
        (0, 0) => PacketEvent::Sent,
        (1, 0) => PacketEvent::Received,
        (2, code) => PacketEvent::Failed(
            Status::from_code(code).ok_or(CaptureError::Field { field: "status", found: code })?,
        ),
        (0 | 1, code) => return Err(CaptureError::Field { field: "status", found: code }),
        (found, _) => return Err(CaptureError::Field { field: "event", found }),
    };
    let qpn = |at: usize| Qpn(u16::from_le_bytes([header[at], header[at + 1]]));
    let gid = |at: usize| Gid(std::array::from_fn(|i| header[at + i]));
    Ok(Record {
        time,
        event,
        source: QueuePairId { gid: gid(8), qpn: qpn(4) },
        destination: QueuePairId { gid: gid(24), qpn: qpn(6) },
        bytes: Cow::Owned(packet.to_vec()),
    })
}

/// Reads a capture: an iterator over its records, which ends after an error.
pub struct CaptureReader<R: Read> {
    reader: PcapNgReader<Chain<Beginning, R>>,
    /// Interfaces, and options of these, in this section so far.
    described: usize,
    ended: bool,
}

impl CaptureReader<File> {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`CaptureError::Io`], [`CaptureError::Format`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        Self::new(File::open(path)?)
    }
}

impl<R: Read> CaptureReader<R> {
    /// Reads from `reader`, which it buffers itself.
    ///
    /// # Errors
    /// [`CaptureError::Io`], [`CaptureError::Format`].
    pub fn new(mut reader: R) -> Result<Self, CaptureError> {
        let beginning = begin(&mut reader)?;
        let reader = PcapNgReader::new(beginning.chain(reader))?;
        Ok(Self { reader, described: 0, ended: false })
    }

    fn read(&mut self) -> Option<Result<Record<'static>, CaptureError>> {
        loop {
            let packet = match self.reader.next_block()? {
                Ok(Block::EnhancedPacket(packet)) => packet.into_owned(),
                Ok(Block::SectionHeader(_)) => {
                    self.described = 0;
                    continue;
                }
                Ok(Block::InterfaceDescription(interface)) => {
                    self.described += 1 + interface.options.len();
                    if self.described > MOST_DESCRIBED {
                        let reason = format!("more than {MOST_DESCRIBED} interfaces and options");
                        return Some(Err(CaptureError::Format { reason }));
                    }
                    continue;
                }
                Ok(Block::SimplePacket(_)) => {
                    return Some(Err(CaptureError::Block { kind: "a simple packet block" }));
                }
                Ok(Block::Packet(_)) => {
                    return Some(Err(CaptureError::Block { kind: "an obsolete packet block" }));
                }
                Ok(_) => continue,
                Err(error) => return Some(Err(error.into())),
            };
            return Some(self.decode(&packet));
        }
    }

    fn decode(&self, packet: &EnhancedPacketBlock<'_>) -> Result<Record<'static>, CaptureError> {
        let number = packet.interface_id;
        let interfaces = self.reader.interfaces();
        let interface = usize::try_from(number).ok().and_then(|number| interfaces.get(number));
        let Some(interface) = interface else {
            return Err(CaptureError::Interface { interface: number });
        };
        if interface.linktype != LINK_TYPE {
            return Err(CaptureError::LinkType { found: interface.linktype.into() });
        }
        if packet.original_len as usize > packet.data.len() {
            let length = packet.original_len;
            return Err(CaptureError::Cut { length, captured: packet.data.len() });
        }
        let resolution = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        let offset = interface.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsOffset(offset) => Some(offset.cast_signed()),
            _ => None,
        });
        // The library gives the file's number as if it always were nanoseconds.
        let ticks = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
        let time = to_time(ticks, resolution.unwrap_or(6))?;
        parse(shifted(time, offset.unwrap_or(0)), &packet.data)
    }
}

/// The first bytes of a file, which were looked at.
type Beginning = io::Cursor<[u8; 4]>;

/// Looks whether a file begins as pcapng files do, in either order of bytes. The library would read on for
/// the end of a block, and have no better words for any other file than that there is none.
fn begin(reader: &mut impl Read) -> Result<Beginning, CaptureError> {
    let mut bytes = Vec::with_capacity(4);
    reader.by_ref().take(4).read_to_end(&mut bytes)?;
    let reason = match bytes[..] {
        [0x0a, 0x0d, 0x0d, 0x0a] => return Ok(io::Cursor::new([0x0a, 0x0d, 0x0d, 0x0a])),
        [] => "it is empty".into(),
        [0xa1, 0xb2, 0xc3, 0xd4]
        | [0xd4, 0xc3, 0xb2, 0xa1]
        | [0xa1, 0xb2, 0x3c, 0x4d]
        | [0x4d, 0x3c, 0xb2, 0xa1] => "it is of the older format pcap".into(),
        _ => format!("it begins with {bytes:02x?}"),
    };
    Err(CaptureError::Format { reason })
}

/// The time `ticks` units after the origin; the top bit of `resolution` tells powers of two from
/// powers of ten.
fn to_time(ticks: u64, resolution: u8) -> Result<Time, CaptureError> {
    let error = CaptureError::Time { ticks, resolution };
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let Some(per_second) = base.checked_pow(exponent) else { return Err(error) };
    let nanos = u128::from(ticks) * 1_000_000_000 / per_second;
    u64::try_from(nanos).map(Time::from_nanos).map_err(|_| error)
}

/// The time so many seconds later, or the earliest or latest that there is.
fn shifted(time: Time, seconds: i64) -> Time {
    let nanos = i128::from(time.as_nanos()) + i128::from(seconds) * 1_000_000_000;
    let latest = if nanos < 0 { 0 } else { u64::MAX };
    Time::from_nanos(u64::try_from(nanos).unwrap_or(latest))
}

impl<R: Read> Iterator for CaptureReader<R> {
    type Item = Result<Record<'static>, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.read();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
mod tests {
    use efa_device::Status;
    use proptest::prelude::*;

    use super::*;

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
        emit(&sample(), &mut bytes);
        let mut expected = vec![1, 2, 10, 0, 2, 1, 4, 3];
        expected.extend([0x11; 16]);
        expected.extend([0x22; 16]);
        expected.extend(b"packet");
        assert_eq!(bytes, expected);
    }

    #[test]
    fn each_invalid_packet_has_its_error() {
        let mut good = Vec::new();
        emit(&sample(), &mut good);
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
        let path = std::env::temp_dir().join(format!("efa-sim-capture-{:016x}", fastrand::u64(..)));
        let mut first = Capture::create(&path, "first").unwrap();
        let refused = Capture::create(&path, "second").err().unwrap();
        assert_eq!(refused.to_string(), "another process writes to it");
        first.write(&sample()).unwrap();
        first.finish().unwrap();
        assert_eq!(CaptureReader::open(&path).unwrap().count(), 1);
        Capture::create(&path, "second").unwrap().finish().unwrap();
        assert_eq!(CaptureReader::open(&path).unwrap().count(), 0);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn flushed_capture_can_be_read_while_it_is_written() {
        let path = std::env::temp_dir().join(format!("efa-sim-capture-{:016x}", fastrand::u64(..)));
        let mut capture = Capture::create(&path, "flushed").unwrap();
        capture.record(&sample());
        assert!(CaptureReader::open(&path).is_err(), "it is in memory");
        capture.flush();
        assert_eq!(CaptureReader::open(&path).unwrap().count(), 1);
        capture.record(&sample());
        capture.finish().unwrap();
        assert_eq!(CaptureReader::open(&path).unwrap().count(), 2);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_link_type_and_missing_interface_are_errors() {
        let packet = |interface_id, original_len| EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::ZERO,
            original_len,
            data: Cow::Borrowed(&[0; 44]),
            options: Vec::new(),
        };
        let file = |linktype, packet: EnhancedPacketBlock<'_>| {
            let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
            let options = Vec::new();
            let interface = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
            writer.write_pcapng_block(interface).unwrap();
            writer.write_pcapng_block(packet).unwrap();
            writer.into_inner()
        };
        let error = read(&file(DataLink::ETHERNET, packet(0, 44))).unwrap_err();
        assert!(matches!(error, CaptureError::LinkType { found: 1 }));
        let error = read(&file(LINK_TYPE, packet(0, 45))).unwrap_err();
        assert!(matches!(error, CaptureError::Cut { length: 45, captured: 44 }));
        let mut bytes = file(LINK_TYPE, packet(0, 44));
        // The interface number: behind the file header (28), the interface (20), the block's head (8).
        bytes[56] = 7;
        assert!(matches!(read(&bytes), Err(CaptureError::Interface { interface: 7 })));
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
            emit(&sample(), &mut data);
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
    fn packets_in_blocks_of_other_kinds_are_errors_that_name_the_kind() {
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
            let error = records.next().unwrap().unwrap_err().to_string();
            assert_eq!(error, format!("a packet is in {name}, expected an enhanced packet block"));
            assert!(records.next().is_none());
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
}
