//! Collects one packet of each shape from captures in a file.
//!
//! ```text
//!   efa-interop-corpus FILE CAPTURE…
//!
//!   sent packets ──► shape: type, flags, length of the header ──► the shortest of each, its
//!                                                                 payload cut ──► FILE
//! ```
//!
//! The file has a line for each shape: its name, and the bytes in hexadecimal. `#` begins a comment.
//! Packets that are in the file stay there, unless a shorter one of their shape is found. `cargo xtask
//! interop --corpus` runs it on what libfabric sends.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use efa_proto::{Header, Packet, Rtw, RtwKind};
use efa_sim::capture::CaptureReader;
use efa_sim::record::PacketEvent;

/// Payload bytes kept where the packet doesn't hold their number.
const PAYLOAD: usize = 16;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let file = arguments.next().context("efa-interop-corpus FILE CAPTURE…");
    match file.and_then(|file| run(&file, arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A packet of each shape.
type Corpus = BTreeMap<String, Vec<u8>>;

/// The beginning of the file.
const HEAD: &str = "\
# Packets of libfabric 1.17 on the software device, one of each shape that it sent: type, flags (the
# 16 bits of the base header) and length of the header; and the bytes. Payloads are cut where a packet
# says nothing of their length. Written by `cargo xtask interop --corpus`.
";

fn run(file: &Path, captures: impl Iterator<Item = PathBuf>) -> Result<()> {
    let mut shortest = match std::fs::read_to_string(file) {
        Ok(text) => parse(&text).with_context(|| format!("{} is no corpus", file.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Corpus::new(),
        Err(error) => bail!("cannot read {}: {error}", file.display()),
    };
    for capture in captures {
        collect(&capture, &mut shortest)
            .with_context(|| format!("cannot read {}", capture.display()))?;
    }
    let mut text = HEAD.to_owned();
    for (shape, packet) in shortest {
        let hex: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{shape} {hex}")?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn parse(text: &str) -> Result<Corpus> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let packets = lines.map(|line| {
        let (shape, hex) = line.split_once(' ').with_context(|| format!("`{line}`"))?;
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        ensure!(rest.is_empty(), "`{line}`");
        let byte = |pair: &[u8; 2]| -> Result<u8> {
            Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)
        };
        Ok((shape.to_owned(), pairs.iter().map(byte).collect::<Result<_>>()?))
    });
    packets.collect()
}

fn collect(capture: &Path, shortest: &mut Corpus) -> Result<()> {
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

/// The packet with as little payload as parses.
fn kept<'a>(bytes: &'a [u8], packet: &Packet<'_>) -> &'a [u8] {
    let payload = match packet.header {
        // The packet doesn't hold the length of this part.
        Header::Rtm(_) => PAYLOAD,
        Header::Rtw(Rtw { kind: RtwKind::LongCts { .. } | RtwKind::DcLongCts { .. }, .. }) => {
            PAYLOAD
        }
        // Here the packet holds it, or it follows from other fields.
        _ => usize::MAX,
    };
    &bytes[..packet.header.len() + packet.payload.len().min(payload)]
}
