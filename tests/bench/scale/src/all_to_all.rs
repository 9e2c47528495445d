//! Processes of a host that all send to all others, on the link `shm`.
//!
//! ```text
//!   address in the directory ─► all there ─► first messages ─► all done ─► 8 B ─► all done ─► 64 KiB ─► all done
//! ```

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use efa::{Address, Fabric, FiAddr, Kind, Message, Receive, ShmOptions};
use efa_counted_heap::live_bytes;
use rustix::time::{ClockId, clock_gettime};

use crate::say;
use crate::world::Program;

/// Bytes of a message in each phase; the first one makes the peers known to each other.
const PHASES: [(&str, usize); 3] = [("first", 8), ("small", 8), ("long", 64 << 10)];
/// The measures of a phase, as processes print them.
const MEASURES: [&str; 4] = ["seconds", "processor", "bytes", "resident"];

/// Ended when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the processes, and sums up what they say.
pub(crate) fn run(count: usize, time: Duration) -> Result<()> {
    ensure!(count >= 2, "two processes are needed at least");
    let place = tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?;
    let program = std::env::current_exe()?;
    let seconds = time.as_secs().max(1);
    let mut processes = Vec::new();
    for rank in 0..count {
        let mut command = Command::new(&program);
        command.arg("all-to-all-process").arg(place.path());
        command.args([rank, count].map(|number| number.to_string())).arg(seconds.to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        processes.push(Process(child));
    }
    let mut said = Vec::new();
    for process in &mut processes {
        // Each ends itself when its time is over, and its output is short.
        let status = loop {
            if let Some(status) = process.0.try_wait()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        ensure!(status.success(), "a process failed with {status}");
        let output = process.0.stdout.take().context("no output")?;
        said.push(std::io::read_to_string(output)?);
    }
    let each = |phase: &str, measure: &str| -> Result<Vec<f64>> {
        let name = format!("{phase} {measure} ");
        let of = |said: &String| {
            let line = said.lines().find_map(|line| line.strip_prefix(&name));
            line.with_context(|| format!("a process says no {name}"))?.parse().context("a number")
        };
        said.iter().map(of).collect()
    };
    for (phase, bytes) in PHASES {
        let messages = (count * (count - 1)) as f64;
        let what = format!("all-to-all-{phase}-{bytes}");
        let [times, used, live, resident] = MEASURES.map(|measure| each(phase, measure));
        say(&what, count, "seconds", times?.into_iter().fold(0.0, f64::max));
        say(&what, count, "microseconds", used?.iter().sum::<f64>() * 1e6 / messages);
        say(&what, count, "bytes", live?.iter().sum::<f64>() / count as f64);
        say(&what, count, "resident", resident?.iter().sum::<f64>() / count as f64);
    }
    Ok(())
}

/// Waits until all processes have come so far.
fn meet(directory: &Path, at: &str, rank: usize, count: usize, text: &str) -> Result<()> {
    let place = directory.join(at);
    std::fs::create_dir_all(&place)?;
    let unfinished = directory.join(format!("{at}-{rank}.new"));
    std::fs::write(&unfinished, text)?;
    std::fs::rename(unfinished, place.join(rank.to_string()))?;
    while std::fs::read_dir(&place)?.count() < count {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// One of the processes.
pub(crate) fn process(directory: &Path, rank: usize, count: usize) -> Result<()> {
    let hosts = Some(directory.join("hosts"));
    let options = ShmOptions::new("scale").with(|options| options.directory = hosts);
    let program = Program::new(Fabric::shm(options).domain()?)?;
    let endpoint = program.endpoint(<_>::default(), rank)?;
    meet(directory, "there", rank, count, &endpoint.address().to_string())?;
    let mut peers = Vec::new();
    for other in (0..count).filter(|other| *other != rank) {
        let text = std::fs::read_to_string(directory.join("there").join(other.to_string()))?;
        peers.push(program.addresses.insert(text.parse::<Address>()?)?);
    }
    for (phase, bytes) in PHASES {
        let (mut out, mut into) = (Vec::new(), Vec::new());
        for peer in &peers {
            out.push((*peer, vec![rank as u8; bytes]));
            into.push((*peer, vec![u8::MAX; bytes]));
        }
        for (context, (peer, buffer)) in into.into_iter().enumerate() {
            let receive = Receive::tagged(bytes as u64).from(peer);
            endpoint.receive(receive, buffer, context as u64)?;
        }
        meet(directory, phase, rank, count, "")?;
        let (begin, used) = (Instant::now(), clock_gettime(ClockId::ProcessCPUTime));
        // Not all to the same one at first.
        let first = rank % peers.len();
        out.rotate_left(first);
        exchange(&program, &endpoint, out, bytes)?;
        let seconds = begin.elapsed().as_secs_f64();
        let now = clock_gettime(ClockId::ProcessCPUTime);
        let used = (now.tv_sec - used.tv_sec) as f64 + (now.tv_nsec - used.tv_nsec) as f64 / 1e9;
        let values = [seconds, used, live_bytes() as f64, resident()?];
        for (measure, value) in MEASURES.into_iter().zip(values) {
            println!("{phase} {measure} {value}");
        }
        // The last answers of others may need this process.
        let until = format!("{phase}-over");
        let place = directory.join(&until);
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join(rank.to_string()), "")?;
        while std::fs::read_dir(&place)?.count() < count {
            ensure!(program.queue.read().is_none(), "a completion of nothing");
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Sends all messages, and waits for these and as many others.
fn exchange(
    program: &Program,
    endpoint: &efa::Endpoint,
    out: Vec<(FiAddr, Vec<u8>)>,
    bytes: usize,
) -> Result<()> {
    let mut left = 2 * out.len();
    let read = || -> Result<usize> {
        let Some(entry) = program.queue.read() else {
            std::thread::yield_now();
            return Ok(0);
        };
        let completion = entry.map_err(|failed| failed.error)?;
        if completion.kind != Kind::Send {
            let into = completion.buffer.into_vec();
            let sender = into.first().copied().context("an empty message")?;
            ensure!(into.len() == bytes && into.last() == Some(&sender), "a wrong message");
        }
        Ok(1)
    };
    for (peer, mut buffer) in out {
        let message = Message::to(peer).tagged(bytes as u64);
        while let Err(refused) = endpoint.send(message, buffer, u64::MAX) {
            ensure!(refused.error.is_busy(), "{}", refused.error);
            buffer = refused.buffer.into_vec();
            left -= read()?;
        }
    }
    while left > 0 {
        left -= read()?;
    }
    Ok(())
}

/// Bytes of memory that this process has in use, shared ones divided among those that share them.
fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes = line.context("no Pss")?.trim().trim_end_matches("kB").trim();
    Ok(kibibytes.parse::<f64>()? * 1024.0)
}
