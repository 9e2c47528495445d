//! Takes one packet of each shape out of captures, and keeps it in a file.
//!
//! ```text
//!   efa-interop-corpus DIRECTORY CAPTURE…
//!
//!   sent packets ──► shape: type, flags, length of the header ──► the shortest of each, its
//!                                                                 payload cut ──► DIRECTORY
//! ```
//!
//! Files that are there stay, unless a shorter packet of their shape is found. `cargo xtask interop
//! --corpus` runs it on what libfabric sends.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use efa_proto::{Header, Packet, Rtw, RtwKind};
use efa_sim::capture::CaptureReader;
use efa_sim::record::PacketEvent;

/// Bytes of a payload that are kept where any number is right.
const PAYLOAD: usize = 16;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let directory = arguments.next().context("efa-interop-corpus DIRECTORY CAPTURE…");
    match directory.and_then(|directory| run(&directory, arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(directory: &Path, captures: impl Iterator<Item = PathBuf>) -> Result<()> {
    let mut shortest = BTreeMap::new();
    for capture in captures {
        collect(&capture, &mut shortest)
            .with_context(|| format!("cannot read {}", capture.display()))?;
    }
    for (shape, packet) in shortest {
        let file = directory.join(format!("{shape}.bin"));
        let known = std::fs::metadata(&file).map_or(u64::MAX, |metadata| metadata.len());
        if (packet.len() as u64) < known {
            std::fs::write(&file, packet)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

fn collect(capture: &Path, shortest: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for record in CaptureReader::open(capture)? {
        let record = record?;
        if record.event != PacketEvent::Sent {
            continue;
        }
        let packet = Packet::parse(&record.bytes)
            .with_context(|| format!("a packet of {} bytes", record.bytes.len()))?;
        let kept = kept(&record.bytes, &packet);
        let cut = Packet::parse(kept)?;
        ensure!(cut.header == packet.header, "the header of {packet} isn't whole without payload");
        let known = shortest.entry(shape(&record.bytes, &packet)).or_default();
        if known.is_empty() || kept.len() < known.len() {
            *known = kept.to_vec();
        }
    }
    Ok(())
}

/// Type, flags, and length of the header: `eager_tagrtm-800c-20`.
fn shape(bytes: &[u8], packet: &Packet<'_>) -> String {
    let name = packet.packet_type().name().to_lowercase();
    let flags = bytes.get(2..4).map_or([0; 2], |flags| [flags[0], flags[1]]);
    format!("{name}-{:04x}-{}", u16::from_le_bytes(flags), packet.header.len())
}

/// The packet with as much of its payload as must be.
fn kept<'a>(bytes: &'a [u8], packet: &Packet<'_>) -> &'a [u8] {
    let payload = match packet.header {
        // The length of this part is told nowhere in the packet.
        Header::Rtm(_) => PAYLOAD,
        Header::Rtw(Rtw { kind: RtwKind::LongCts { .. } | RtwKind::DcLongCts { .. }, .. }) => {
            PAYLOAD
        }
        // Here it is told, or follows from what is.
        _ => usize::MAX,
    };
    &bytes[..packet.header.len() + packet.payload.len().min(payload)]
}
