//! A process that is killed while its connection is in use.
//!
//! The children are this program again, with a role and a directory in the environment.

#![allow(clippy::unwrap_used)]

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use efa::{Fabric, ShmOptions, TcpOptions};
use efa_netio::{
    ClosedReason, Event, ListenOptions, Message, Netio, Options, SendOptions, SendSocket, Sent,
    Wait,
};
use tempfile::TempDir;

const HOST: &str = "127.0.0.1";
const LENGTHS: [usize; 4] = [10, 60_000, 0, 9_000];

/// A context on the link that the environment or the test names.
fn context(link: &str, directory: &Path) -> Netio {
    let fabric = match link {
        "shm" => {
            let directory = Some(directory.join("hosts"));
            Fabric::shm(ShmOptions::new("test").with(|options| options.directory = directory))
        }
        _ => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
    };
    Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap()
}

fn event(netio: &mut Netio) -> Event {
    netio.poll(Wait::For(Duration::from_secs(60))).unwrap().expect("an event in time")
}

/// Listens, and says at which port.
fn listen(netio: &mut Netio) -> u16 {
    let listener = netio.listen_socket(ListenOptions::default());
    netio.listen(listener, HOST, 0).unwrap();
    netio.local_address(listener).unwrap().port()
}

fn connected(netio: &mut Netio, port: u16) -> SendSocket {
    let send = netio.send_socket(SendOptions::default());
    netio.connect(send, HOST, port).unwrap();
    let connected = event(netio);
    assert!(matches!(connected, Event::Connected(_)), "{connected:?}");
    send
}

/// Sends numbered messages until the connection is closed. Returns how many came back as sent and as failed.
fn send_on_and_on(netio: &mut Netio, send: SendSocket, told: impl FnOnce()) -> (u64, u64) {
    let pool = netio.allocate(60_000).unwrap();
    let (mut number, mut sent, mut failed) = (0, 0, 0);
    let mut told = Some(told);
    loop {
        let length = LENGTHS[number as usize % 4];
        let message = Message::of(pool.part(0..length).unwrap()).data(number);
        match netio.send(send, message) {
            Sent::Accepted => number += 1,
            Sent::Again(_) | Sent::Refused(..) => match event(netio) {
                Event::Writable(_) => {}
                Event::SendCompleted { result: Ok(()), .. } => sent += 1,
                Event::SendCompleted { .. } => failed += 1,
                Event::Closed { reason, .. } => {
                    assert_eq!(reason, ClosedReason::PeerGone);
                    assert_eq!(sent + failed, number, "each comes back");
                    return (sent, failed);
                }
                other => panic!("{other:?}"),
            },
        }
        if sent > 1000
            && let Some(told) = told.take()
        {
            told();
        }
    }
}

/// Receives numbered messages until the connection is closed. Returns the number after the last one.
fn receive_on_and_on(netio: &mut Netio, told: impl FnOnce()) -> u64 {
    let mut number = 0;
    let mut told = Some(told);
    loop {
        match event(netio) {
            Event::Accepted { .. } => {}
            Event::Received { message, data, .. } => {
                let found = data.unwrap();
                assert_eq!(message.len(), LENGTHS[found as usize % 4]);
                // In order; without gaps while the sender lives.
                assert!(found == number || told.is_none() && found > number, "{found}");
                number = found + 1;
            }
            Event::Closed { reason, .. } => {
                assert_eq!(reason, ClosedReason::PeerGone);
                return number;
            }
            other => panic!("{other:?}"),
        }
        if number > 1000
            && let Some(told) = told.take()
        {
            told();
        }
    }
}

fn start(role: &str, link: &str, directory: &Path, port: u16) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env("EFA_NETIO_ROLE", role)
        .env("EFA_NETIO_LINK", link)
        .env("EFA_NETIO_DIRECTORY", directory)
        .env("EFA_NETIO_PORT", port.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other process of a test"]
fn child() {
    let of = |name: &str| env::var(format!("EFA_NETIO_{name}"));
    let Ok(role) = of("ROLE") else { return };
    let directory = of("DIRECTORY").unwrap();
    let mut netio = context(&of("LINK").unwrap(), Path::new(&directory));
    match &*role {
        "send" => {
            let send = connected(&mut netio, of("PORT").unwrap().parse().unwrap());
            send_on_and_on(&mut netio, send, || {});
        }
        _ => {
            println!("\nport {}", listen(&mut netio));
            receive_on_and_on(&mut netio, || {});
        }
    }
}

fn sender_is_killed(link: &str) {
    let directory = TempDir::new().unwrap();
    let mut netio = context(link, directory.path());
    let port = listen(&mut netio);
    // What a killed process leaves doesn't disturb the next one.
    for _ in 0..3 {
        let mut sender = start("send", link, directory.path(), port);
        let received = receive_on_and_on(&mut netio, || sender.kill().unwrap());
        assert!(received > 1000);
        sender.wait().unwrap();
        let counts = netio.counts();
        assert_eq!((counts.connections, counts.operations), (0, 0));
    }
}

fn receiver_is_killed(link: &str) {
    let directory = TempDir::new().unwrap();
    let mut netio = context(link, directory.path());
    for _ in 0..3 {
        let mut receiver = start("receive", link, directory.path(), 0);
        let output = BufReader::new(receiver.stdout.take().unwrap());
        let port = output
            .lines()
            .find_map(|line| line.unwrap().strip_prefix("port ")?.parse().ok())
            .unwrap();
        let send = connected(&mut netio, port);
        let (sent, _) = send_on_and_on(&mut netio, send, || receiver.kill().unwrap());
        assert!(sent > 1000);
        receiver.wait().unwrap();
        netio.close(send);
        let counts = netio.counts();
        assert_eq!((counts.connections, counts.operations), (0, 0));
    }
}

// conformance: D15
#[test]
fn receiver_learns_that_the_process_of_its_sender_was_killed_and_serves_the_next_one() {
    ["shm", "tcp"].into_iter().for_each(sender_is_killed);
}

// conformance: D15
#[test]
fn sender_learns_that_the_process_of_its_receiver_was_killed_and_gets_its_messages_back() {
    ["shm", "tcp"].into_iter().for_each(receiver_is_killed);
}
