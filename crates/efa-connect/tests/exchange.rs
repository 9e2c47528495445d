//! Two exchanges joined by a pipe that hands over pieces of any length.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::Duration;

use efa_connect::{
    Data, Exchange, Failure, Frame, FrameError, FrameKind, Happening, ProtocolError,
};
use efa_device::Time;
use proptest::prelude::*;

const CALLER: [u8; 32] = [1; 32];
const CALLEE: [u8; 32] = [2; 32];

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn data(text: &str) -> Data {
    Data::new(text.as_bytes()).unwrap()
}

/// Moves all that `from` has to say, in pieces of `piece` bytes.
fn carry(from: &mut Exchange, to: &mut Exchange, piece: usize) {
    while !from.to_send().is_empty() {
        let count = from.to_send().len().min(piece);
        to.received(&from.to_send()[..count]);
        from.sent(count);
    }
}

fn bytes(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.emit(&mut bytes));
    bytes
}

fn pair() -> (Exchange, Exchange) {
    (Exchange::caller(CALLER, &data("please"), at(10)), Exchange::callee(at(5)))
}

/// A pair that has come to be connected.
fn connected(piece: usize) -> (Exchange, Exchange) {
    let (mut caller, mut callee) = pair();
    carry(&mut caller, &mut callee, piece);
    let request = Happening::Requested { address: CALLER, data: data("please") };
    assert_eq!((callee.next(at(0)), callee.next(at(100))), (Some(request), None));
    callee.accept(CALLEE, &data("welcome"), at(110));
    carry(&mut callee, &mut caller, piece);
    let accepted = Happening::Accepted { address: CALLEE, data: data("welcome") };
    assert_eq!((caller.next(at(0)), caller.next(at(100))), (Some(accepted), None));
    caller.ready();
    carry(&mut caller, &mut callee, piece);
    assert_eq!(callee.next(at(0)), Some(Happening::Connected));
    assert_eq!((caller.next_timeout(), callee.next_timeout()), (None, None));
    (caller, callee)
}

#[test]
fn connection_is_made_and_shut_down_in_pieces_of_any_length() {
    for piece in [1, 3, 8, 500] {
        let (mut caller, mut callee) = connected(piece);
        caller.shut_down();
        carry(&mut caller, &mut callee, piece);
        callee.ended();
        assert_eq!((callee.next(at(0)), callee.next(at(0))), (Some(Happening::Shutdown), None));
        assert_eq!((caller.next(at(0)), caller.is_over()), (None, true));
    }
}

#[test]
fn end_of_the_stream_shuts_a_connection_down() {
    let (mut caller, mut callee) = connected(500);
    for side in [&mut caller, &mut callee] {
        side.ended();
        assert_eq!((side.next(at(0)), side.next(at(0))), (Some(Happening::Shutdown), None));
    }
}

#[test]
fn rejection_brings_its_data() {
    let (mut caller, mut callee) = pair();
    carry(&mut caller, &mut callee, 500);
    callee.next(at(0)).unwrap();
    callee.reject(&data("no room"));
    carry(&mut callee, &mut caller, 500);
    let rejected = Happening::Failed(Failure::Rejected(data("no room")));
    assert_eq!((caller.next(at(0)), caller.next(at(0))), (Some(rejected), None));
    assert!(caller.is_over() && callee.is_over());
}

#[test]
fn each_wait_for_the_other_side_ends_at_its_deadline() {
    let late = |mut side: Exchange, before: u64| {
        assert_eq!(side.next_timeout(), Some(at(before + 1)));
        assert_eq!(side.next(at(before)), None);
        assert_eq!(side.next(at(before + 1)), Some(Happening::Failed(Failure::TimedOut)));
        assert_eq!(side.next(at(before + 2)), None);
    };
    let (mut caller, mut callee) = pair();
    carry(&mut caller, &mut callee, 500);
    late(caller, 9);
    callee.next(at(0)).unwrap();
    callee.accept(CALLEE, &Data::default(), at(70));
    late(callee, 69);
    late(Exchange::callee(at(5)), 4);
}

#[test]
fn frame_out_of_turn_fails_the_exchange_with_its_kind() {
    let connect = || Frame::Connect { address: CALLER, data: Data::default() };
    let accept = || Frame::Accept { address: CALLEE, data: Data::default() };
    for (mut side, frame) in [
        (Exchange::callee(at(5)), Frame::Ready),
        (Exchange::callee(at(5)), accept()),
        (Exchange::callee(at(5)), Frame::Shutdown),
        (pair().0, connect()),
        (pair().0, Frame::Ready),
    ] {
        side.received(&bytes(std::slice::from_ref(&frame)));
        let error = ProtocolError::OutOfTurn(frame.kind());
        assert_eq!(side.next(at(0)), Some(Happening::Failed(error.into())), "{frame:?}");
    }
    // A second request comes to the first one's program, and ends it.
    let mut callee = Exchange::callee(at(5));
    callee.received(&bytes(&[connect(), connect()]));
    assert!(matches!(callee.next(at(0)), Some(Happening::Requested { .. })));
    let error = ProtocolError::OutOfTurn(FrameKind::Connect);
    assert_eq!(callee.next(at(0)), Some(Happening::Failed(error.into())));
}

#[test]
fn other_version_fails_the_exchange_before_its_frame_is_complete() {
    let mut callee = Exchange::callee(at(5));
    callee.received(b"EfaC\x02");
    let error = ProtocolError::Frame(FrameError::Version { theirs: 2 });
    assert_eq!(callee.next(at(0)), Some(Happening::Failed(error.into())));
}

proptest! {
    /// Whatever arrives, at any time: an exchange keeps less than a frame, says how it ended once, and
    /// a connection that was made ends by `Shutdown`.
    #[test]
    fn any_bytes_end_an_exchange_at_most_once(
        start in 0..3_u8,
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::sample::select(vec![
                    bytes(&[Frame::Connect { address: CALLER, data: Data::default() }]),
                    bytes(&[Frame::Accept { address: CALLEE, data: Data::default() }]),
                    bytes(&[Frame::Ready]), bytes(&[Frame::Shutdown]),
                    bytes(&[Frame::Reject { data: Data::default() }]),
                    bytes(&[Frame::Connect { address: CALLER, data: Data::default() }])[..20].to_vec(),
                ]),
            ],
            0..8,
        ),
    ) {
        let mut side = match start {
            0 => Exchange::callee(at(5)),
            1 => pair().0,
            _ => connected(500).0,
        };
        let mut is_connected = start == 2;
        let mut ends = 0;
        for piece in pieces {
            side.received(&piece);
            while let Some(happened) = side.next(at(1)) {
                prop_assert_eq!(ends, 0, "nothing happens after the end");
                match happened {
                    Happening::Requested { .. } => side.accept(CALLEE, &Data::default(), at(5)),
                    Happening::Accepted { .. } => {
                        side.ready();
                        is_connected = !side.is_over();
                    }
                    Happening::Connected => is_connected = true,
                    Happening::Shutdown => {
                        prop_assert!(is_connected);
                        ends += 1;
                    }
                    Happening::Failed(_) => {
                        prop_assert!(!is_connected);
                        ends += 1;
                    }
                }
            }
            side.sent(side.to_send().len());
        }
    }
}
