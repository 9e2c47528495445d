//! A signal handler that ends the process, in a thread that sends and polls.
//!
//! `std::process::exit` runs no destructor of the program's objects, so nothing of this crate waits for a lock
//! that the interrupted thread holds. A child is this test program again.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use efa::{
    CompletionQueueOptions, Direction, EndpointOptions, Fabric, Message, Receive, ShmOptions,
    TcpOptions,
};
use tempfile::TempDir;

/// What the handler's `exit` ends the process with.
const LEFT: i32 = 3;
/// Marks the line with the number of the child's thread, among those of the test harness.
const MARK: &str = "thread ";
/// Where the child of the shm link has its files; on the tcp link it isn't set.
const DIRECTORY: &str = "EFA_TEST_DIRECTORY";

extern "C" fn leave(_signal: c_int) {
    std::process::exit(LEFT);
}

/// Sends messages to itself, of one packet and of many, until a signal arrives.
#[test]
#[ignore = "a child"]
fn child_exchanges_until_its_handler_exits() {
    let fabric = match std::env::var_os(DIRECTORY) {
        Some(directory) => {
            let set = |options: &mut ShmOptions| options.directory = Some(directory.into());
            Fabric::shm(ShmOptions::new("test").with(set))
        }
        None => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
    };
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let [one, two] = std::array::from_fn(|_| {
        let endpoint = domain.endpoint(EndpointOptions::default());
        let endpoint = endpoint.bind_completion_queue(&queue, Direction::Both);
        endpoint.bind_address_vector(&addresses).enable().unwrap()
    });
    let peer = addresses.insert(two.address()).unwrap();
    let handler = leave as extern "C" fn(c_int);
    // SAFETY: the handler has the type that `signal` asks for; the other calls have no preconditions. The alarm
    // ends a child whose parent is gone.
    let thread = unsafe {
        libc::signal(libc::SIGTERM, handler as *const () as libc::sighandler_t);
        libc::alarm(120);
        libc::gettid()
    };
    // Not by `println!`: if the signal comes before that returns, `exit` finds the standard output in use.
    let mut output = File::from(std::io::stdout().as_fd().try_clone_to_owned().unwrap());
    writeln!(output, "\n{MARK}{thread}").unwrap();
    for i in 0.. {
        let length = [8, 70_000, 2_000_000][i as usize % 3];
        two.receive(Receive::untagged(), vec![0; length], i).unwrap();
        one.send(Message::to(peer), vec![1; length], i).unwrap();
        let ends = [queue.wait(Duration::from_secs(60)), queue.wait(Duration::from_secs(60))];
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    }
}

#[test]
fn process_whose_handler_exits_under_traffic_ends() {
    for round in 0..40_u32 {
        let directory = TempDir::new().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "child_exchanges_until_its_handler_exits";
        command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
        if round.is_multiple_of(2) {
            command.env(DIRECTORY, directory.path().join("hosts"));
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let thread = lines.find_map(|line| Some(line.unwrap().strip_prefix(MARK)?.to_owned()));
        let thread: libc::pid_t = thread.unwrap().parse().unwrap();
        let pause = Duration::from_micros(fastrand::u64(..20_000));
        sleep(pause);
        // SAFETY: the process is a child that was not waited for, so the numbers are its own.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, child.id(), thread, libc::SIGTERM) };
        assert_eq!(sent, 0, "{:?}", child.wait());
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > Duration::from_secs(15) {
                child.kill().unwrap();
                panic!("it still ran {pause:?} after its traffic began: {:?}", child.wait());
            }
            sleep(Duration::from_millis(1));
        };
        assert_eq!(status.code(), Some(LEFT), "{status}");
    }
}
