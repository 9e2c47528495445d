//! What two threads do to a connection at the same time, or both sides.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use efa::{ConnectError, ControlEvent, Fabric, TcpOptions};

use super::{Side, TIMEOUT};

fn side() -> Side {
    Side::on(Fabric::tcp(TcpOptions::new([127, 0, 0, 1])))
}

/// Two threads leave this at nearly the same time.
fn meet(arrived: &AtomicUsize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    while arrived.load(Ordering::Acquire) < 2 {
        std::hint::spin_loop();
    }
}

/// Reads until the other side closes.
fn ends(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn connection_that_is_begun_while_its_endpoint_is_closed_ends() {
    let side = side();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    for _ in 0..2000 {
        let endpoint = side.builder(0).enable().unwrap();
        let arrived = AtomicUsize::new(0);
        let connected = std::thread::scope(|scope| {
            let closes = scope.spawn(|| {
                meet(&arrived);
                endpoint.close(Duration::ZERO).unwrap();
            });
            meet(&arrived);
            let connected = endpoint.connect(to, b"");
            closes.join().unwrap();
            connected
        });
        if connected.is_ok() {
            assert!(ends(&listener.accept().unwrap().0), "the connection is left");
        }
    }
}

#[test]
fn caller_whose_callee_leaves_after_its_answer_is_connected_before_it_is_shut_down() {
    let side = side();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    let callee = side.builder(0).enable().unwrap();
    let answer = [b"EfaC\x01\x02\x20\x00".as_slice(), &callee.address().to_bytes()].concat();
    for round in 0..2000_u32 {
        let caller = side.builder(1).connect(to, b"").unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = [0; 40];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(&answer).unwrap();
                let leaves = Instant::now() + Duration::from_nanos(100) * (round % 200);
                while Instant::now() < leaves {}
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            });
            match side.events.wait(TIMEOUT) {
                Ok(ControlEvent::Connected { .. }) => {
                    let end = side.events.wait(TIMEOUT);
                    assert!(matches!(end, Ok(ControlEvent::Shutdown { .. })), "{end:?}");
                }
                Err(efa::EventWaitError::Failed(failed)) => {
                    assert_eq!(failed.error, ConnectError::Ended);
                }
                other => panic!("round {round}: {other:?}"),
            }
        });
        drop(caller);
    }
}
