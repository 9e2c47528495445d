//! The descriptors of a receive: 16 bytes of the receive ring for each buffer.
//!
//! ```text
//!   0 address | 8 request id | 10 length | 12 local key 0–23, first 30, last 31     little-endian
//! ```

use efa_device::Status;

use super::send::{Buffer, LOCAL_KEY_BITS};
use crate::device::MAX_RECEIVE_SGE;

/// Bytes of a descriptor.
pub const SIZE: usize = 16;
/// Most buffers of a receive.
pub const MAX_BUFFERS: usize = MAX_RECEIVE_SGE;

const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;
const KEY: u32 = (1 << LOCAL_KEY_BITS) - 1;

/// What is wrong with a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// Bits that no descriptor has.
    #[error("control bits {control:#010x} of a receive are unknown")]
    Control {
        /// The bits above the key.
        control: u32,
    },
    /// A descriptor that isn't marked as the first of a receive, after the last of another.
    #[error("a receive has no first buffer")]
    NoFirst,
    /// The first descriptor of a receive, before the last of another.
    #[error("a receive of {buffers} buffers has no last one")]
    NoLast {
        /// How many buffers it has.
        buffers: usize,
    },
    /// More buffers than the device has for a receive.
    #[error("a receive has more than {MAX_BUFFERS} buffers")]
    TooMany,
}

impl ReceiveError {
    /// The status with which the receive completes.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Control { .. } | Self::NoFirst | Self::NoLast { .. } | Self::TooMany => {
                Status::UnsupportedOperation
            }
        }
    }
}

/// Takes the request id of a receive, and its buffers.
pub type Done<'a> = dyn FnMut(u16, Result<&[Buffer], ReceiveError>) + 'a;

/// Collects the buffers of a receive from its descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveBuffers {
    request_id: u16,
    buffers: [Buffer; MAX_BUFFERS],
    count: usize,
    next: Next,
}

/// What the next descriptor belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// A new receive.
    #[default]
    New,
    /// The receive that is being collected.
    Same,
    /// A receive that has failed; its other descriptors are passed over.
    Failed,
}

impl ReceiveBuffers {
    /// Adds a descriptor. Calls `done` with the request id for each receive that is complete or wrong now.
    pub fn add(&mut self, descriptor: &[u8; SIZE], done: &mut Done<'_>) {
        let [address @ .., _, _, _, _, _, _, _, _] = *descriptor;
        let [_, _, _, _, _, _, _, _, i0, i1, l0, l1, k0, k1, k2, k3] = *descriptor;
        let request_id = u16::from_le_bytes([i0, i1]);
        let key = u32::from_le_bytes([k0, k1, k2, k3]);
        let (control, first, last) = (key & !KEY, key & FIRST != 0, key & LAST != 0);
        if first {
            if self.next == Next::Same {
                done(self.request_id, Err(ReceiveError::NoLast { buffers: self.count }));
            }
            *self = Self { request_id, next: Next::Same, ..Self::default() };
        }
        let error = if control & !(FIRST | LAST) != 0 {
            Some(ReceiveError::Control { control })
        } else if self.next == Next::New {
            self.request_id = request_id;
            Some(ReceiveError::NoFirst)
        } else if self.count == MAX_BUFFERS {
            Some(ReceiveError::TooMany)
        } else {
            None
        };
        match error {
            _ if self.next == Next::Failed => {}
            Some(error) => {
                let id = if self.next == Next::New { request_id } else { self.request_id };
                done(id, Err(error));
                self.next = Next::Failed;
            }
            None => {
                if let Some(into) = self.buffers.get_mut(self.count) {
                    *into = Buffer {
                        address: u64::from_le_bytes(address),
                        length: u16::from_le_bytes([l0, l1]).into(),
                        key: key & KEY,
                    };
                    self.count += 1;
                }
                if last {
                    done(self.request_id, Ok(&self.buffers[..self.count]));
                }
            }
        }
        if last {
            self.next = Next::New;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rustfmt::skip]
    const RECEIVE: [u8; SIZE] = [
        0x00, 0x10, 0x00, 0x00, 0x7f, 0x00, 0x00, 0x00,
        0x34, 0x12,  0xe0, 0x22,  0x01, 0x02, 0x03, 0xc0,
    ];
    const BUFFER: Buffer = Buffer { address: 0x7f_0000_1000, length: 8928, key: 0x03_0201 };
    const ONLY: u8 = 0xc0;
    const FIRST: u8 = 0x40;
    const LAST: u8 = 0x80;
    const MIDDLE: u8 = 0;

    type Seen = (u16, Result<usize, ReceiveError>);

    /// What descriptors with these ids and control bits give: ids with numbers of buffers.
    fn collect(descriptors: &[(u8, u8)]) -> Vec<Seen> {
        let mut collected = ReceiveBuffers::default();
        let mut all = Vec::new();
        for &(id, control) in descriptors {
            let mut descriptor = RECEIVE;
            [descriptor[8], descriptor[9], descriptor[15]] = [id, 0, control];
            collected.add(&descriptor, &mut |id, buffers| {
                let buffers = buffers.inspect(|buffers| {
                    assert!(buffers.iter().all(|buffer| *buffer == BUFFER));
                });
                all.push((id, buffers.map(<[_]>::len)));
            });
        }
        all
    }

    #[test]
    fn receive_has_address_length_and_key_of_each_buffer() {
        let mut seen = Vec::new();
        ReceiveBuffers::default().add(&RECEIVE, &mut |id, buffers| {
            seen.push((id, buffers.map(<[_]>::to_vec)));
        });
        assert_eq!(seen, [(0x1234, Ok(vec![BUFFER]))]);
        assert_eq!(collect(&[(1, FIRST), (1, LAST), (2, ONLY)]), [(1, Ok(2)), (2, Ok(1))]);
        assert_eq!(collect(&[(1, FIRST), (1, MIDDLE), (1, LAST)]), [(1, Ok(3))]);
        assert_eq!(collect(&[(1, FIRST), (1, MIDDLE)]), []);
    }

    #[test]
    fn wrong_receive_is_an_error_with_its_id_and_the_next_is_read() {
        let control = |control| Err(ReceiveError::Control { control });
        for (descriptors, expected) in [
            (&[(1, 0xc1)][..], (1, control(0xc100_0000))),
            (&[(1, 0xe0)], (1, control(0xe000_0000))),
            (&[(1, FIRST), (7, 0x01), (1, LAST)], (1, control(0x0100_0000))),
            (&[(1, LAST)], (1, Err(ReceiveError::NoFirst))),
            (&[(1, MIDDLE), (1, LAST)], (1, Err(ReceiveError::NoFirst))),
            (&[(1, FIRST), (1, MIDDLE)], (1, Err(ReceiveError::NoLast { buffers: 2 }))),
            (
                &[(1, FIRST), (1, MIDDLE), (1, MIDDLE), (1, MIDDLE), (1, LAST)],
                (1, Err(ReceiveError::TooMany)),
            ),
        ] {
            let next = [descriptors, &[(2, ONLY)]].concat();
            assert_eq!(collect(&next), [expected, (2, Ok(1))], "{descriptors:?}");
        }
        assert_eq!(ReceiveError::TooMany.status(), Status::UnsupportedOperation);
    }
}
