//! Limits of long messages: the receiver copies each once from the memory of the sender, which says by a
//! [ring](crate::ring) that it is there. A copy is a memcpy from a mapping of both processes, or one by the kernel from
//! memory of the sender alone (`process_vm_readv`).
//!
//! ```text
//!   sender    [MESSAGE, offset] ──────────────► receiver   copies from offset
//!                               ◄── [COPIED] ──
//! ```

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::measure::{Point, SENT, Transport, UNSENT};
use crate::ours::{PAGE, PATIENCE, to_page};
use crate::ring::Lanes;

/// First words of lines.
const MESSAGE: u64 = 1;
const COPIED: u64 = 2;
const NUMBER: u64 = 3;

/// The memory that the other side sends from.
enum Source {
    /// Mapped here, too.
    Mapped(NonNull<u8>),
    /// At an address of another process.
    Process(i32, usize),
}

impl Source {
    fn copy(&self, at: usize, into: &mut [u8]) -> Result<()> {
        match *self {
            Self::Mapped(base) => {
                // SAFETY: the other side has mapped all its buffers before it sends, never unmaps them, and has not
                // written to them since; `into` is memory of this process alone.
                unsafe {
                    base.add(at)
                        .copy_to_nonoverlapping(NonNull::from(&mut *into).cast::<u8>(), into.len());
                }
                Ok(())
            }
            Self::Process(process, address) => {
                let base = std::ptr::without_provenance_mut(address + at);
                let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
                let remote = libc::iovec { iov_base: base, iov_len: into.len() };
                // SAFETY: `local` is `into`, which is borrowed mutably; the kernel checks what is remote.
                let count = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
                match usize::try_from(count) {
                    Ok(count) if count == into.len() => Ok(()),
                    Ok(count) => bail!("process_vm_readv read {count} bytes of {}", into.len()),
                    Err(_) => Err(std::io::Error::last_os_error()).context("process_vm_readv"),
                }
            }
        }
    }
}

/// How bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Memcpy,
    Kernel,
}

pub(crate) struct Copies {
    lanes: Lanes,
    source: Source,
    into: Vec<u8>,
    /// Where its first page begins.
    into_at: usize,
    /// Sends that were copied, and whose completion nobody has waited for.
    copied: u64,
    /// What the other side reads.
    _out: Vec<u8>,
}

impl Copies {
    pub(crate) fn open(by: By, directory: &Path, role: &str, bytes: usize) -> Result<Self> {
        let theirs = directory.join(if role == "client" { "server.out" } else { "client.out" });
        let (ours, unfinished) = (format!("{role}.out"), directory.join(format!("{role}.new")));
        let mut out = Vec::new();
        if by == By::Memcpy {
            std::fs::write(&unfinished, vec![SENT; bytes])?;
        } else {
            out = vec![SENT; bytes];
            // SAFETY: changes nothing but who may read this process's memory. It fails where nobody is restricted.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
            std::fs::write(&unfinished, format!("{} {}", std::process::id(), out.as_ptr().addr()))?;
        }
        std::fs::rename(unfinished, directory.join(ours))?;
        let begin = Instant::now();
        while !theirs.is_file() {
            ensure!(begin.elapsed() < PATIENCE, "no {}", theirs.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        let source = match by {
            By::Memcpy => Source::Mapped(map(&theirs, bytes)?),
            By::Kernel => {
                let said = std::fs::read_to_string(theirs)?;
                let (process, address) =
                    said.split_once(' ').context("what the other side said")?;
                Source::Process(process.parse()?, address.parse()?)
            }
        };
        let lanes = Lanes::open(directory, role)?;
        let into = vec![UNSENT; bytes + PAGE];
        let into_at = to_page(&into);
        Ok(Self { lanes, source, into, into_at, copied: 0, _out: out })
    }

    /// The value of the next line of this kind. Copies that are told before it are counted.
    fn next(&mut self, kind: u64) -> Result<u64> {
        loop {
            let mut words = [0; 2];
            self.lanes.take(&mut words);
            match words {
                [found, value] if found == kind => return Ok(value),
                [COPIED, _] => self.copied += 1,
                [found, _] => bail!("a line of kind {found} instead of {kind}"),
            }
        }
    }
}

/// Maps the file, all its pages.
fn map(path: &Path, bytes: usize) -> Result<NonNull<u8>> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    ensure!(file.metadata()?.len() as usize >= bytes, "{} is too short", path.display());
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    let length = bytes.max(1);
    // SAFETY: the kernel chooses the place.
    let base = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, &file, 0)? };
    NonNull::new(base.cast()).context("a mapping at 0")
}

impl Transport for Copies {
    fn receive(&mut self, _point: Point, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        self.lanes.put(&[MESSAGE, point.offset(slot) as u64]);
        Ok(())
    }

    fn await_receive(&mut self, point: Point, slot: usize) -> Result<()> {
        let from = self.next(MESSAGE)? as usize;
        if point.size > 0 {
            let at = self.into_at + point.offset(slot);
            self.source.copy(from, &mut self.into[at..at + point.size])?;
        }
        self.lanes.put(&[COPIED, 0]);
        Ok(())
    }

    /// Messages are copied in their order, and so waited for.
    fn await_send(&mut self, _slot: usize) -> Result<()> {
        if self.copied > 0 {
            self.copied -= 1;
            return Ok(());
        }
        self.next(COPIED).map(|_| ())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        self.lanes.put(&[NUMBER, number]);
        Ok(())
    }

    fn hear(&mut self) -> Result<u64> {
        self.next(NUMBER)
    }

    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8 {
        self.into[self.into_at + point.offset(slot) + at]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        let at = self.into_at + point.offset(slot);
        self.into[at..at + point.size].fill(UNSENT);
    }
}
