//! What no publisher can exceed: processes that copy messages from one mapping, each into buffers of its own.

use std::ffi::c_void;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_bench_netio_harness::{Job, now, processor_time};
use rustix::mm::{MapFlags, ProtFlags, mmap};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs them; prints the sum of what they said.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let job = Job::of(words)?;
    let file = job.directory.join("mapping");
    let length = job.size * job.depth();
    std::fs::write(&file, vec![7; length]).with_context(|| format!("{}", file.display()))?;
    // All begin at the same time.
    let begin = now() + 200_000_000;
    let start = |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("copy-one").args(words).arg(begin.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map(Copier)
    };
    let mut copiers = (0..job.subscribers).map(start).collect::<Result<Vec<_>, _>>()?;
    let until = Instant::now() + PATIENCE + job.time;
    let (mut count, mut processor) = (0, 0);
    for copier in &mut copiers {
        let said = copier.end(until)?;
        match *said.split_whitespace().collect::<Vec<_>>() {
            ["copied", copied, "processor", used] => {
                count += copied.parse::<u64>()?;
                processor += used.parse::<u64>()?;
            }
            _ => bail!("a process said `{}`", said.trim()),
        }
    }
    println!("copied {count} nanoseconds {} processor {processor}", job.time.as_nanos());
    Ok(())
}

/// One of them.
pub(crate) fn one(words: &[String]) -> Result<()> {
    let Some((begin, words)) = words.split_last() else { bail!("words are missing") };
    let (job, begin) = (Job::of(words)?, begin.parse::<u64>().context("when to begin")?);
    let ring = map(&job.directory.join("mapping"), job.size * job.depth())?;
    let mut buffers = vec![vec![0_u8; job.size]; job.depth()];
    std::thread::sleep(Duration::from_nanos(begin.saturating_sub(now())));
    let (end, before) = (begin + job.time.as_nanos() as u64, processor_time());
    let mut count = 0;
    while now() < end {
        let slot = count as usize % buffers.len();
        let buffer = &mut buffers[slot];
        buffer.copy_from_slice(&ring[slot * job.size..(slot + 1) * job.size]);
        if job.reads {
            std::hint::black_box(efa_bench_netio_harness::sum_of(buffer));
        }
        std::hint::black_box(buffer);
        count += 1;
    }
    println!("copied {count} processor {}", processor_time() - before);
    Ok(())
}

fn map(path: &Path, length: usize) -> Result<&'static [u8]> {
    let file = File::open(path).with_context(|| format!("{}", path.display()))?;
    ensure!(file.metadata()?.len() as usize >= length, "{} is too short", path.display());
    let (to, access, flags) = (std::ptr::null_mut::<c_void>(), ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: the kernel chooses the place. The file is as long, nobody writes or shortens it after this program has
    // written it, and it stays mapped.
    let bytes = unsafe {
        let mapped = mmap(to, length, access, flags | MapFlags::POPULATE, &file, 0)?;
        std::slice::from_raw_parts(mapped.cast::<u8>(), length)
    };
    Ok(bytes)
}

/// A child, killed and reaped when dropped.
pub(crate) struct Copier(pub(crate) Child);

impl Copier {
    /// What it said, in time.
    pub(crate) fn end(&mut self, until: Instant) -> Result<String> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "a process failed with {status}");
                break;
            }
            ensure!(Instant::now() < until, "a process runs beyond its deadline");
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = self.0.stdout.take().context("no output")?;
        Ok(std::io::read_to_string(output)?)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // Both fail only if it is reaped already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
