//! Where a process that doesn't end is waiting: told from what the kernel shows, without a debugger.

use std::os::unix::fs::FileExt;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a process that was told to end may take on a busy machine. The library itself waits for at most
/// some seconds.
const GRACE: Duration = Duration::from_secs(8);
/// How often a thread that doesn't end is looked at.
const LOOKS: usize = 20;
/// Code addresses taken from a stack.
const DEPTH: usize = 8;

/// Waits for the process at most [`GRACE`]. One that still lives then is killed; the result is where `thread`
/// was.
pub(crate) fn wait(child: &mut Child, thread: libc::pid_t) -> Result<ExitStatus, Waiting> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Ok(status);
        }
        if begun.elapsed() > GRACE {
            let waiting = Waiting::of(child, thread);
            let _ = child.kill();
            child.wait().unwrap();
            return Err(waiting);
        }
        sleep(Duration::from_millis(1));
    }
}

/// Where a thread was each time that it was looked at: the files whose code is on its stack, the innermost
/// first. The first is where it was, the second is what the function there returns to if the function has
/// no frame, as those that make a system call for Rust's locks.
#[derive(Debug)]
pub(crate) struct Waiting(Vec<Vec<String>>);

impl Waiting {
    fn of(child: &Child, thread: libc::pid_t) -> Self {
        let process = libc::pid_t::try_from(child.id()).unwrap();
        let stack = |_| {
            // The kernel shows no stack of a thread that runs.
            // SAFETY: the process is a child that was not waited for, so the number is its own.
            unsafe { libc::kill(process, libc::SIGSTOP) };
            sleep(Duration::from_millis(5));
            let stack = Self::stack(thread);
            // SAFETY: as above.
            unsafe { libc::kill(process, libc::SIGCONT) };
            sleep(Duration::from_millis(5));
            stack
        };
        let mut stacks: Vec<_> = (0..LOOKS).filter_map(stack).collect();
        stacks.dedup();
        Self(stacks)
    }

    fn stack(thread: libc::pid_t) -> Option<Vec<String>> {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{thread}/{name}")).ok();
        // The number, six arguments, the stack pointer and the program counter; -1 and the last two outside
        // of system calls; or `running`.
        let call = file("syscall")?;
        let numbers: Vec<u64> = call
            .split_whitespace()
            .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
            .collect();
        let &[.., pointer, counter] = numbers.as_slice() else { return None };
        let code: Vec<(u64, u64, String)> = file("maps")?.lines().filter_map(code_of).collect();
        let name = |address: u64| {
            let found = code.iter().find(|(from, to, _)| (*from..*to).contains(&address));
            found.map(|(.., name)| name.clone())
        };
        let memory = std::fs::File::open(format!("/proc/{thread}/mem")).ok()?;
        let mut bytes = vec![0; 1 << 15];
        let count = memory.read_at(&mut bytes, pointer).ok()?;
        let words = bytes[..count].chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        Some(std::iter::once(counter).chain(words).filter_map(name).take(DEPTH).collect())
    }

    /// Whether `library` waits for a lock of its own, or runs without end. Where the C library waits for one of
    /// its locks, as that of `malloc`, more of its code lies between.
    pub(crate) fn is_in(&self, library: &str) -> bool {
        let innermost =
            |stack: &Vec<String>| stack.iter().take(2).any(|name| name.starts_with(library));
        self.0.is_empty() || self.0.iter().any(innermost)
    }
}

/// Address range and file name of code, from a line of `/proc/PID/maps`.
fn code_of(line: &str) -> Option<(u64, u64, String)> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let executable = words.next()?.contains('x');
    let path = words.nth(3).unwrap_or("[anonymous]");
    let name = path.rsplit('/').next()?.to_owned();
    executable.then_some((hexadecimal(from)?, hexadecimal(to)?, name))
}
