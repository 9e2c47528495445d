//! A peer that is stopped (SIGSTOP) and goes on (SIGCONT).

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use efa::{DomainOptions, Fabric, Kind, Progress, TcpOptions, WaitError};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::{End, LOST, TIMEOUT, rounds, shm_fabric};
use crate::spent::Spent;

/// Where the files of the shm link are; on the tcp link it isn't set.
const DIRECTORY: &str = "EFA_TEST_DIRECTORY";
const PEER: &str = "EFA_TEST_PEER";
const AUTOMATIC: &str = "EFA_TEST_AUTOMATIC";
/// How long the peer is stopped.
const STOPPED: Duration = Duration::from_millis(300);

/// A child process, killed and reaped at the end.
struct Process(Child);

impl Process {
    /// Stops it, and waits until it has stopped.
    fn stop(&self) {
        let process = Pid::from_child(&self.0);
        kill_process(process, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(process), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fabric(directory: Option<PathBuf>) -> Fabric {
    match directory {
        Some(directory) => shm_fabric(&directory),
        None => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
    }
}

fn end(fabric: &Fabric, progress: Progress) -> End {
    End::new(fabric.domain_with(DomainOptions::new().progress(progress)).unwrap())
}

/// Messages go to and fro, and now and then the peer is stopped amid them.
fn sleeper_outlasts_stops(directory: Option<&TempDir>, progress: Progress) {
    let directory = directory.map(|directory| directory.path().to_owned());
    let a = end(&fabric(directory.clone()), progress);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stopped::child_that_echoes", "--ignored", "--nocapture"]);
    command.env(PEER, a.endpoint.address().to_string()).stdout(std::process::Stdio::null());
    if let Some(directory) = directory {
        command.env(DIRECTORY, directory);
    }
    if progress == Progress::Automatic {
        command.env(AUTOMATIC, "1");
    }
    let child = Process(command.spawn().unwrap());
    a.post();
    let hello = a.receive.wait(TIMEOUT).unwrap();
    let to = hello.peer_address.map(|address| a.insert(address)).unwrap();
    // An answer, and the end of the send.
    let exchange = |is_first: bool| {
        for _ in 0..2 {
            let begin = Instant::now();
            a.receive.wait(TIMEOUT).unwrap();
            assert!(is_first || begin.elapsed() < LOST, "{:?}", begin.elapsed());
        }
    };
    let stops = (rounds() / 1000).clamp(3, 200);
    for stop in 0..stops {
        for round in 0..rounds() / stops {
            a.post();
            a.send(to, round);
            exchange(stop == 0 && round == 0);
        }
        child.stop();
        a.post();
        a.send(to, stop);
        let mut left = 2;
        let (begin, before) = (Instant::now(), Spent::by_this_thread());
        // With a thread of its own the stopped process may have taken the message, but not answered.
        while let Some(time) = STOPPED.checked_sub(begin.elapsed()) {
            match a.receive.wait(time) {
                Ok(completion) => {
                    assert_eq!(completion.kind, Kind::Send);
                    left -= 1;
                }
                Err(WaitError::TimedOut(_)) => break,
                Err(other) => panic!("{other}"),
            }
        }
        // The link looks now and then whether the peer, which has a packet, is still alive.
        Spent::by_this_thread().check_ran_little(before);
        child.go_on();
        for _ in 0..left {
            let begin = Instant::now();
            a.receive.wait(TIMEOUT).unwrap();
            assert!(begin.elapsed() < LOST, "{:?}", begin.elapsed());
        }
    }
}

#[test]
fn sleeper_outlasts_a_stopped_peer_and_is_woken_when_that_goes_on_over_shm() {
    let directory = TempDir::new().unwrap();
    sleeper_outlasts_stops(Some(&directory), Progress::Manual);
}

#[test]
fn sleeper_outlasts_a_stopped_peer_and_is_woken_when_that_goes_on_over_tcp() {
    sleeper_outlasts_stops(None, Progress::Manual);
}

#[test]
fn sleeper_under_automatic_progress_outlasts_a_stopped_peer_over_shm() {
    let directory = TempDir::new().unwrap();
    sleeper_outlasts_stops(Some(&directory), Progress::Automatic);
}

#[test]
fn sleeper_under_automatic_progress_outlasts_a_stopped_peer_over_tcp() {
    sleeper_outlasts_stops(None, Progress::Automatic);
}

/// Not a test of its own: the peer of those above.
#[test]
#[ignore = "the child process of another test"]
fn child_that_echoes() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let progress = match std::env::var_os(AUTOMATIC) {
        Some(_) => Progress::Automatic,
        None => Progress::Manual,
    };
    let end = end(&fabric(std::env::var_os(DIRECTORY).map(PathBuf::from)), progress);
    let to = end.insert(peer.parse().unwrap());
    end.post();
    end.send(to, 99);
    loop {
        // The parent kills this process; if that is gone, it ends by itself.
        match end.receive.wait(Duration::from_secs(60)) {
            Ok(completion) if completion.kind == Kind::Receive => {
                end.post();
                end.send(to, 0);
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
