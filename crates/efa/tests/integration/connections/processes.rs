//! A connected process that is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use efa::{ControlEvent, Fabric, Message, OperationError, Receive, ShmOptions, TcpOptions};
use tempfile::TempDir;

use super::{PEER, Side, TIMEOUT, connected, shut_down};
use crate::world::pattern;

/// For the process that is killed: where the listener is, and the directory of the shm link, if it is that.
const TO: &str = "EFA_TEST_CONNECT_TO";
const DIRECTORY: &str = "EFA_TEST_CONNECT_DIRECTORY";

fn fabric(directory: Option<PathBuf>) -> Fabric {
    match directory {
        Some(directory) => Fabric::shm(ShmOptions::new("test").with(|options| {
            options.directory = Some(directory);
        })),
        None => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
    }
}

#[test]
#[ignore = "the process that is killed, started by another test"]
fn process_that_is_killed() {
    let to = std::env::var(TO).unwrap();
    let side = Side::on(fabric(std::env::var_os(DIRECTORY).map(PathBuf::from)));
    let endpoint = side.builder(0).connect(to.parse().unwrap(), b"").unwrap();
    connected(side.events.wait(TIMEOUT).map_err(|error| panic!("{error}")));
    for context in 0..5 {
        endpoint.send(Message::to(PEER), pattern(20_000, context), context).unwrap();
    }
    for _ in 0..5 {
        side.queue.wait(TIMEOUT).unwrap();
    }
    println!("\nsent");
    // It is killed before; a test that fails to do so doesn't leave it for ever.
    std::thread::sleep(TIMEOUT);
}

// conformance: C43
#[test]
fn killed_process_is_one_shutdown_event_after_all_that_it_had_sent() {
    let directory = TempDir::new().unwrap();
    for directory in [Some(directory.path().join("hosts")), None] {
        let mut side = Side::on(fabric(directory.clone()));
        let listener = side.listen("127.0.0.1:0");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "connections::processes::process_that_is_killed"]);
        command.args(["--ignored", "--nocapture"]);
        command.env(TO, listener.local_address().to_string()).stdout(Stdio::piped());
        if let Some(directory) = directory {
            command.env(DIRECTORY, directory);
        }
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let has_sent = std::thread::spawn(move || {
            output.lines().map_while(Result::ok).any(|line| line == "sent")
        });
        let begin = std::time::Instant::now();
        let mut callee = None;
        while !has_sent.is_finished() && begin.elapsed() < TIMEOUT {
            side.read();
            match side.happened.pop_front() {
                Some(Ok(ControlEvent::ConnectionRequest(request))) => {
                    callee = Some(side.builder(3).accept(request, b"").unwrap());
                }
                Some(event) => drop(connected(event)),
                None => {}
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_sent.join().unwrap());
        let callee = callee.unwrap();
        let event = side.events.wait(TIMEOUT).map_err(|error| panic!("{error}"));
        assert_eq!(shut_down(event), (callee.id(), 3));
        for context in 0..6 {
            callee.receive(Receive::untagged(), vec![0; 20_000], context).unwrap();
        }
        for context in 0..5 {
            let received = side.queue.wait(TIMEOUT).unwrap();
            assert_eq!((received.context, received.peer), (context, Some(PEER)));
            assert_eq!(received.into_message(), pattern(20_000, context));
        }
        let ended = side.queue.read().unwrap().unwrap_err();
        assert_eq!((ended.error, ended.completion.context), (OperationError::ConnectionEnded, 5));
        assert!(side.events.wait(Duration::from_millis(50)).is_err(), "one event");
    }
}
