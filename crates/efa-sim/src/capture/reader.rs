//! Captures read: blocks of the file, then pseudo headers.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Chain, Read};
use std::path::Path;

use efa_device::{Gid, Qpn, Status, Time};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use super::{CaptureError, HEADER, LINK_TYPE, VERSION};
use crate::record::{PacketEvent, QueuePairId, Record};

/// Most interfaces and interface options in a section. The library keeps all of them, in more memory than
/// they take in the file.
pub(super) const MOST_DESCRIBED: usize = 4096;

pub(super) fn parse(time: Time, bytes: &[u8]) -> Result<Record<'static>, CaptureError> {
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

/// A record of a file, and how much of its packet the file has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The record; of a packet that was cut, with the bytes that are there.
    pub record: Record<'static>,
    /// Length of the whole packet in bytes.
    pub length: usize,
}

impl Captured {
    /// Number of bytes at the packet's end that the file doesn't have.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.length.saturating_sub(self.record.bytes.len())
    }
}

/// Records that were passed over, as they hold no packet of a capture.
#[derive(Debug)]
#[non_exhaustive]
pub struct Skipped {
    /// Number of them.
    pub records: u64,
    /// What was wrong with the first.
    pub reason: CaptureError,
}

/// Reads a capture.
///
/// As an iterator it gives the records of whole packets, and [`CaptureError::Cut`] in place of each that was cut;
/// [`next_captured`](Self::next_captured) gives both. Records of other interfaces and with unknown pseudo headers are
/// [skipped](Self::skipped). Damage of the file is the last item.
pub struct CaptureReader<R: Read> {
    reader: PcapNgReader<Chain<Beginning, R>>,
    /// Interfaces, and options of these, in this section so far.
    described: usize,
    skipped: Option<Skipped>,
    ended: bool,
}

impl<R: Read> fmt::Debug for CaptureReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureReader")
            .field("skipped", &self.skipped)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
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
        Ok(Self { reader, described: 0, skipped: None, ended: false })
    }

    /// The next record, whole or cut.
    ///
    /// # Errors
    /// [`CaptureError::Io`], [`CaptureError::Format`], each of which ends the file.
    pub fn next_captured(&mut self) -> Option<Result<Captured, CaptureError>> {
        while !self.ended {
            match self.read() {
                Some(Ok(captured)) => return Some(Ok(captured)),
                Some(Err(reason)) if is_of_one_record(&reason) => self.skip(reason),
                end => {
                    self.ended = true;
                    return end;
                }
            }
        }
        None
    }

    /// The records skipped so far, if there are any.
    #[must_use]
    pub fn skipped(&self) -> Option<&Skipped> {
        self.skipped.as_ref()
    }

    fn skip(&mut self, reason: CaptureError) {
        self.skipped.get_or_insert(Skipped { records: 0, reason }).records += 1;
    }

    fn read(&mut self) -> Option<Result<Captured, CaptureError>> {
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

    fn decode(&self, packet: &EnhancedPacketBlock<'_>) -> Result<Captured, CaptureError> {
        let number = packet.interface_id;
        let interfaces = self.reader.interfaces();
        let interface = usize::try_from(number).ok().and_then(|number| interfaces.get(number));
        let Some(interface) = interface else {
            return Err(CaptureError::Interface { interface: number });
        };
        if interface.linktype != LINK_TYPE {
            return Err(CaptureError::LinkType { found: interface.linktype.into() });
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
        let record = parse(shifted(time, offset.unwrap_or(0)), &packet.data)?;
        let missing = (packet.original_len as usize).saturating_sub(packet.data.len());
        let length = record.bytes.len().saturating_add(missing);
        Ok(Captured { record, length })
    }
}

/// Whether the error is one of a record, behind which the file goes on.
fn is_of_one_record(error: &CaptureError) -> bool {
    use CaptureError as E;
    matches!(
        error,
        E::Interface { .. }
            | E::Block { .. }
            | E::LinkType { .. }
            | E::Short { .. }
            | E::Version { .. }
            | E::Field { .. }
            | E::Time { .. }
    )
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
pub(super) fn to_time(ticks: u64, resolution: u8) -> Result<Time, CaptureError> {
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
        let whole = |captured: Captured| match captured.missing() {
            0 => Ok(captured.record),
            _ => Err(CaptureError::Cut {
                length: u32::try_from(HEADER + captured.length).unwrap_or(u32::MAX),
                captured: HEADER + captured.record.bytes.len(),
            }),
        };
        Some(self.next_captured()?.and_then(whole))
    }
}
