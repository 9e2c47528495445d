//! Limits: copies within a process (memcpy), and from another one by the kernel (`process_vm_readv`). One way and in a
//! stream is the same for them; a window is a number of buffers on each side.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::measure::{Point, SENT, UNSENT, long_enough};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// Copies all buffers in turn; `copy` is given where a buffer begins, and where to copy it.
fn measure(
    points: &[Point],
    bytes: usize,
    least: Duration,
    mut copy: impl FnMut(usize, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut into = vec![UNSENT; bytes];
    for &point in points {
        let mut exchange = |count: u64| {
            let begin = Instant::now();
            for number in 0..count {
                let at = point.offset(number as usize % point.window);
                copy(at, &mut into[at..at + point.size])?;
            }
            Ok(begin.elapsed())
        };
        exchange(point.window as u64)?;
        point.report(long_enough(point.window as u64, least, exchange)?);
        let last = (point.offset(point.buffers() - 1) + point.size).wrapping_sub(1);
        ensure!(point.size == 0 || into[last] == SENT, "{point}: the copy is wrong");
        into[..point.bytes()].fill(UNSENT);
    }
    Ok(())
}

/// By memcpy.
pub(crate) fn memcpy(points: &[Point], bytes: usize, least: Duration) -> Result<()> {
    let from = vec![SENT; bytes];
    measure(points, bytes, least, |at, into| {
        let from = std::hint::black_box(&from[at..at + into.len()]);
        into.copy_from_slice(from);
        std::hint::black_box(into);
        Ok(())
    })
}

/// The process whose memory is read: tells where it is, and sleeps until it isn't needed.
pub(crate) fn owner(directory: &Path, bytes: usize) -> Result<()> {
    let memory = vec![SENT; bytes];
    // SAFETY: changes nothing but who may read this process's memory. It fails where nobody is restricted.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    let unfinished = directory.join("owner.new");
    std::fs::write(&unfinished, format!("{} {}", std::process::id(), memory.as_ptr().addr()))?;
    std::fs::rename(unfinished, directory.join("owner"))?;
    while !directory.join("read").exists() {
        std::thread::sleep(PAUSE);
    }
    drop(memory);
    Ok(())
}

/// By `process_vm_readv` from the owner.
pub(crate) fn readv(
    directory: &Path,
    points: &[Point],
    bytes: usize,
    least: Duration,
) -> Result<()> {
    let begin = Instant::now();
    let said = loop {
        if let Ok(text) = std::fs::read_to_string(directory.join("owner")) {
            break text;
        }
        ensure!(begin.elapsed() < PATIENCE, "the owner of the memory doesn't come");
        std::thread::sleep(PAUSE);
    };
    let (process, address) = said.split_once(' ').context("what the owner said")?;
    let (process, address) = (process.parse::<i32>()?, address.parse::<usize>()?);
    measure(points, bytes, least, |at, into| {
        if into.is_empty() {
            return Ok(());
        }
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let base = std::ptr::without_provenance_mut(address + at);
        let remote = libc::iovec { iov_base: base, iov_len: into.len() };
        // SAFETY: `local` is `into`, which is borrowed mutably; the kernel checks what is remote.
        let count = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
        match usize::try_from(count) {
            Ok(count) if count == into.len() => Ok(()),
            Ok(count) => bail!("process_vm_readv read {count} bytes of {}", into.len()),
            Err(_) => Err(std::io::Error::last_os_error()).context("process_vm_readv"),
        }
    })?;
    std::fs::write(directory.join("read"), "")?;
    Ok(())
}
