//! Messages of several packets between threads that sleep.

use std::thread;
use std::time::{Duration, Instant};

use efa::{Fabric, Message, Progress, Receive, ShmOptions};
use efa_device::Rdma;
use tempfile::TempDir;

use super::{Network, TIMEOUT, pair};

#[test]
fn sender_asleep_goes_on_as_a_slower_receiver_makes_room() {
    const MESSAGES: u64 = 100;
    const LENGTH: usize = 64 << 10;
    let directory = TempDir::new().unwrap();
    let fabric = || {
        Fabric::shm(ShmOptions::new("test").with(|options| {
            options.directory = Some(directory.path().join("hosts"));
            // So they go in packets, and more than a ring has room for.
            options.rdma = Rdma::NONE;
        }))
    };
    let fabrics = [fabric(), fabric()];
    let network = Network { fabrics, _directory: None, progress: Progress::Manual };
    let ([a, b], [to_b, _]) = pair(&network);
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                a.endpoint.send(Message::to(to_b), vec![number as u8; LENGTH], number).unwrap();
            }
            for number in 0..MESSAGES {
                assert_eq!(a.transmit.wait(TIMEOUT).unwrap().context, number);
            }
        });
        scope.spawn(|| {
            for number in 0..MESSAGES {
                b.endpoint.receive(Receive::untagged(), vec![0; LENGTH], number).unwrap();
                let received = b.receive.wait(TIMEOUT).unwrap().into_message().into_vec();
                assert_eq!(received, vec![number as u8; LENGTH]);
                thread::sleep(Duration::from_millis(1));
            }
        });
    });
    // The link looks by itself once a second, which would be enough for some of them.
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}
