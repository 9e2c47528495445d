//! The TCP side spoken by hand, from raw bytes: what others may send to a listener or answer to a caller.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use efa::{
    ConnectError, ControlError, ControlEvent, FrameError, FrameKind, ManualClock, ProtocolError,
};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use tempfile::TempDir;

use super::net::shm;
use super::{Side, TIMEOUT, connected, shut_down};

/// CONNECT of an endpoint at GID 1, with the data "hi".
fn connect_frame() -> Vec<u8> {
    [b"EfaC\x01\x01\x22\x00".as_slice(), &[1; 32], b"hi"].concat()
}

fn side() -> (Side, ManualClock, TempDir) {
    let (clock, directory) = (ManualClock::new(), TempDir::new().unwrap());
    let side = Side::on(shm(&directory).with_clock(&clock));
    (side, clock, directory)
}

/// Reads the event queue until it reports something.
fn event(side: &Side) -> Result<ControlEvent, ControlError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(event) = side.events.read() {
            return event;
        }
        assert!(Instant::now() < deadline, "nothing happens");
    }
}

/// What the other side sends until it closes, while `side` reads its events, of which there are none.
fn until_closed(side: &Side, stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let (mut bytes, deadline) = (Vec::new(), Instant::now() + TIMEOUT);
    loop {
        assert!(side.events.read().is_none());
        match stream.read_to_end(&mut bytes) {
            Ok(_) => return bytes,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return bytes,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(Instant::now() < deadline, "the connection stays open");
    }
}

fn caller(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Asserts that a listener still takes requests.
fn takes_a_request(side: &Side, to: SocketAddr) {
    let mut honest = caller(to, &connect_frame());
    let Ok(ControlEvent::ConnectionRequest(request)) = event(side) else { panic!("no request") };
    assert_eq!((request.data(), request.caller()), (&b"hi"[..], honest.local_addr().unwrap()));
    assert_eq!(request.address().to_bytes()[..18], [1; 18]);
    request.reject(b"no").unwrap();
    assert_eq!(until_closed(side, &mut honest), b"EfaC\x01\x04\x02\x00no");
}

#[test]
fn callers_that_send_no_request_are_closed_at_once_and_the_listener_goes_on() {
    let (side, _, _directory) = side();
    let listener = side.listen("127.0.0.1:0");
    let to = listener.local_address();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        // Another version; no such kind; frames of the other side.
        b"EfaC\x02",
        b"EfaC\x01\x63",
        b"EfaC\x01\x03\x00\x00",
        b"EfaC\x01\x04\x00\x00",
        // Data of 257 bytes, of 65,503 bytes; no complete address.
        b"EfaC\x01\x01\x21\x01",
        b"EfaC\x01\x01\xff\xff",
        b"EfaC\x01\x01\x1f\x00",
    ] {
        assert_eq!(until_closed(&side, &mut caller(to, bytes)), b"", "{bytes:x?}");
    }
    takes_a_request(&side, to);
}

#[test]
fn half_a_request_is_dropped_after_5_seconds() {
    let (side, clock, _directory) = side();
    let listener = side.listen("127.0.0.1:0");
    let mut half = caller(listener.local_address(), &connect_frame()[..20]);
    half.set_nonblocking(true).unwrap();
    for _ in 0..200 {
        assert!(side.events.read().is_none());
    }
    clock.advance(Duration::from_millis(4999));
    assert!(side.events.read().is_none());
    assert_eq!(half.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    clock.advance(Duration::from_millis(1));
    assert_eq!(until_closed(&side, &mut half), b"");
    takes_a_request(&side, listener.local_address());
}

#[test]
fn request_of_a_caller_that_has_given_up_is_not_reported() {
    let (side, _, _directory) = side();
    let listener = side.listen("127.0.0.1:0");
    let to = listener.local_address();
    drop(caller(to, &connect_frame()));
    let mut says_more = caller(to, &[connect_frame(), connect_frame()].concat());
    takes_a_request(&side, to);
    assert_eq!(until_closed(&side, &mut says_more), b"");
}

#[test]
fn ten_thousand_silent_callers_take_64_connections_and_the_listener_goes_on() {
    let (side, _, _directory) = side();
    let listener = side.listen("127.0.0.1:0");
    let mut kept = VecDeque::new();
    for n in 0..10_000 {
        kept.push_back(TcpStream::connect(listener.local_address()).unwrap());
        if kept.len() > 200 {
            kept.pop_front();
        }
        if n % 50 == 0 {
            assert!(side.events.read().is_none());
        }
    }
    takes_a_request(&side, listener.local_address());
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    let open = kept.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count();
    // The oldest made room for the honest one, too.
    assert_eq!(open, 63);
}

/// A TCP connection from another address of this host.
fn caller_from(from: &str, to: SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    net::bind(&socket, &SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
    net::connect(&socket, &to).unwrap();
    socket.into()
}

#[test]
fn ten_thousand_silent_callers_of_one_host_do_not_make_a_slow_one_of_another_give_way() {
    let (side, _, _directory) = side();
    let listener = side.listen("127.0.0.1:0");
    let request = connect_frame();
    let mut slow = caller_from("127.0.0.2", listener.local_address());
    slow.write_all(&request[..20]).unwrap();
    let mut kept = VecDeque::new();
    for n in 0..10_000 {
        kept.push_back(TcpStream::connect(listener.local_address()).unwrap());
        if kept.len() > 200 {
            kept.pop_front();
        }
        if n % 50 == 0 {
            assert!(side.events.read().is_none());
        }
    }
    slow.write_all(&request[20..]).unwrap();
    let Ok(ControlEvent::ConnectionRequest(request)) = event(&side) else { panic!("no request") };
    assert_eq!(request.caller(), slow.local_addr().unwrap());
}

#[test]
fn caller_and_callee_speak_these_bytes() {
    let (side, _, _directory) = side();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = side.builder(5).connect(listener.local_addr().unwrap(), b"abc").unwrap();
    assert!(side.events.read().is_none());
    let (mut stream, _) = listener.accept().unwrap();
    for _ in 0..20 {
        assert!(side.events.read().is_none());
    }
    let mut request = [0; 43];
    stream.read_exact(&mut request).unwrap();
    let address = caller.address().to_bytes();
    assert_eq!(request[..], [b"EfaC\x01\x01\x23\x00".as_slice(), &address, b"abc"].concat());
    // Its own address will do for a peer.
    stream.write_all(&[b"EfaC\x01\x02\x21\x00".as_slice(), &address, b"!"].concat()).unwrap();
    assert_eq!(connected(event(&side)), (caller.id(), 5, b"!".to_vec()));
    let mut ready = [0; 8];
    stream.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"EfaC\x01\x03\x00\x00");
    stream.write_all(b"EfaC\x01\x05\x00\x00").unwrap();
    assert_eq!(shut_down(event(&side)), (caller.id(), 5));

    // The other side: a request by hand.
    let listener = side.listen("127.0.0.1:0");
    let mut stream = self::caller(listener.local_address(), &[]);
    let frame = [b"EfaC\x01\x01\x20\x00".as_slice(), &caller.address().to_bytes()].concat();
    stream.write_all(&frame).unwrap();
    let Ok(ControlEvent::ConnectionRequest(request)) = event(&side) else { panic!("no request") };
    let callee = side.builder(6).accept(request, b"+").unwrap();
    let mut accepted = [0; 41];
    stream.read_exact(&mut accepted).unwrap();
    let address = callee.address().to_bytes();
    assert_eq!(accepted[..], [b"EfaC\x01\x02\x21\x00".as_slice(), &address, b"+"].concat());
    stream.write_all(b"EfaC\x01\x03\x00\x00").unwrap();
    assert_eq!(connected(event(&side)), (callee.id(), 6, Vec::new()));
    callee.shutdown(TIMEOUT).unwrap();
    assert_eq!(until_closed(&side, &mut stream), b"EfaC\x01\x05\x00\x00");
}

#[test]
fn answers_that_are_none_fail_a_connect_with_what_is_wrong() {
    let (side, _, _directory) = side();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = side.builder(5).enable().unwrap();
    let accept = |gid| [b"EfaC\x01\x02\x20\x00".as_slice(), &[gid; 32]].concat();
    let frame = |error| ConnectError::Protocol(ProtocolError::Frame(error));
    for (answer, expected) in [
        (b"HTTP/1.1 400".to_vec(), Some(frame(FrameError::Magic { at: 0, first: b'H' }))),
        (b"EfaC\x07".to_vec(), Some(frame(FrameError::Version { theirs: 7 }))),
        (
            b"EfaC\x01\x03\x00\x00".to_vec(),
            Some(ConnectError::Protocol(ProtocolError::OutOfTurn(FrameKind::Ready))),
        ),
        (accept(9)[..30].to_vec(), Some(ConnectError::Ended)),
        // No interface has GID 0.
        (accept(0), None),
    ] {
        caller.connect(listener.local_addr().unwrap(), b"").unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&answer).unwrap();
        // So that it ends without a reset, which could overtake the answer.
        let deadline = Instant::now() + TIMEOUT;
        let mut request = [0; 40];
        stream.set_nonblocking(true).unwrap();
        let mut happened = None;
        while stream.peek(&mut request).unwrap_or(0) < 40 && happened.is_none() {
            happened = side.events.read();
            assert!(Instant::now() < deadline);
        }
        let _ = stream.read(&mut request);
        drop(stream);
        let error = happened.unwrap_or_else(|| event(&side)).unwrap_err();
        match expected {
            Some(expected) => assert_eq!(error.error, expected),
            None => assert!(matches!(error.error, ConnectError::Device(_)), "{error}"),
        }
    }
}
