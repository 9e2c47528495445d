//! One side of a connection's TCP exchange, in any state, against any bytes from the other side.

use std::time::Duration;

use efa_connect::{Data, Exchange, Frame, Happening, MAX_DATA};
use efa_device::Time;

use crate::input::Input;

const ADDRESS: [u8; 32] = [7; 32];
/// When each side under test gives up, in seconds.
const DEADLINE: u64 = 10;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// A frame of any kind.
fn frame(input: &mut Input<'_>) -> Vec<u8> {
    let length = input.below(MAX_DATA + 1);
    let data = Data::new(&vec![input.byte(); length]).unwrap_or_default();
    let frame = match input.below(5) {
        0 => Frame::Connect { address: ADDRESS, data },
        1 => Frame::Accept { address: ADDRESS, data },
        2 => Frame::Ready,
        3 => Frame::Reject { data },
        _ => Frame::Shutdown,
    };
    let mut bytes = Vec::new();
    frame.emit(&mut bytes);
    bytes
}

/// The first byte selects the side. Then frames, also cut or with one byte changed, any bytes, the end of the
/// TCP connection, and time that passes.
pub(crate) fn run(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let mut side = match input.below(2) {
        0 => Exchange::callee(at(DEADLINE)),
        _ => Exchange::caller(ADDRESS, &Data::default(), at(DEADLINE)),
    };
    let (mut now, mut ends, mut connected) = (0, 0, false);
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => side.received(&frame(input)),
            2 => {
                let mut bytes = frame(input);
                let at = input.below(bytes.len());
                bytes[at] = input.byte();
                side.received(&bytes);
            }
            3 => {
                let mut bytes = frame(input);
                bytes.truncate(input.below(bytes.len()));
                side.received(&bytes);
            }
            4 => {
                let count = input.below(40);
                side.received(input.take(count));
            }
            _ if input.one_in(3) => side.ended(),
            _ => now += input.below(DEADLINE as usize) as u64,
        }
        while let Some(happened) = side.next(at(now)) {
            assert_eq!(ends, 0, "nothing happens after the end: {happened:?}");
            match happened {
                Happening::Requested { data, .. } => {
                    assert!(data.as_slice().len() <= MAX_DATA && !connected);
                    side.accept(ADDRESS, &data, at(now + DEADLINE));
                }
                Happening::Accepted { data, .. } => {
                    assert!(data.as_slice().len() <= MAX_DATA && !connected);
                    side.ready();
                    connected = !side.is_over();
                }
                Happening::Connected => connected = true,
                Happening::Shutdown => {
                    assert!(connected, "what was not connected fails");
                    ends += 1;
                }
                Happening::Failed(_) => {
                    assert!(!connected, "a connection is shut down");
                    ends += 1;
                }
            }
        }
        let waits = !side.is_over() && !connected && !side.is_requested();
        assert_eq!(side.next_timeout().is_some(), waits, "whoever waits has a deadline: {side:?}");
        side.sent(side.to_send().len());
    }
    if side.next_timeout().is_some() {
        assert!(matches!(side.next(at(now + 2 * DEADLINE)), Some(Happening::Failed(_))));
    }
}
