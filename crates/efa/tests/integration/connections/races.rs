//! What two threads do to a connection at the same time, or both sides.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use efa::{Fabric, TcpOptions};

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
