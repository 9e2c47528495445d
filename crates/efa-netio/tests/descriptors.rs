//! Open descriptors, which all tests of a process share: so there is one test here.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use efa::{Fabric, ShmOptions};
use efa_netio::{
    ClosedReason, Event, ListenOptions, Message, Netio, Options, SendOptions, Sent, Wait,
};
use tempfile::TempDir;

const HOST: &str = "127.0.0.1";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Connects, sends, disconnects, and waits for both ends.
fn cycle(netio: &mut Netio, send: efa_netio::SendSocket, port: u16, message: &Message) {
    netio.connect(send, HOST, port).unwrap();
    let (mut received, mut closed) = (0, 0);
    while closed < 2 {
        match netio.poll(Wait::For(Duration::from_secs(60))).unwrap().expect("an event in time") {
            Event::Connected(_) => {
                assert!(matches!(netio.send(send, message.clone()), Sent::Accepted));
                netio.disconnect(send).unwrap();
            }
            Event::Received { .. } => received += 1,
            Event::SendCompleted { result, .. } => assert_eq!(result, Ok(())),
            Event::Closed { reason, .. } => {
                let is_orderly =
                    matches!(reason, ClosedReason::Disconnected | ClosedReason::DisconnectedByPeer);
                assert!(is_orderly, "{reason:?}");
                closed += 1;
            }
            Event::Accepted { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received, 1);
}

// conformance: D9 D15
#[test]
fn thousand_cycles_over_shm_leave_descriptors_and_counts_as_they_were() {
    let directory = TempDir::new().unwrap();
    let hosts = Some(directory.path().join("hosts"));
    let fabric = Fabric::shm(ShmOptions::new("test").with(|options| options.directory = hosts));
    let mut netio = Netio::new(&fabric.domain().unwrap(), Options::default()).unwrap();
    let listener = netio.listen_socket(ListenOptions::default());
    netio.listen(listener, HOST, 0).unwrap();
    let port = netio.local_address(listener).unwrap().port();
    let send = netio.send_socket(SendOptions::default());
    let pool = netio.allocate(100_000).unwrap();
    let lengths = [10, 60_000];
    let messages = lengths.map(|length| Message::of(pool.part(0..length).unwrap()));
    messages.iter().for_each(|message| cycle(&mut netio, send, port, message));
    let before = descriptors();
    for number in 0..1000 {
        cycle(&mut netio, send, port, &messages[number % 2]);
    }
    let counts = netio.counts();
    assert_eq!((counts.connections, counts.operations, counts.ignored), (0, 0, 0));
    assert_eq!(descriptors(), before);
}
