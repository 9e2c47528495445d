//! The descriptor of a receive: 16 bytes of the receive ring.
//!
//! ```text
//!   0 address | 8 request id | 10 length | 12 local key 0–23, first 30, last 31     little-endian
//! ```

use efa_device::Status;

use super::send::{Buffer, LOCAL_KEY_BITS};

/// Bytes of a descriptor.
pub const SIZE: usize = 16;

const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;
const KEY: u32 = (1 << LOCAL_KEY_BITS) - 1;

/// A receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveDescriptor {
    /// What the completion repeats.
    pub request_id: u16,
    /// The buffer.
    pub buffer: Buffer,
}

/// What is wrong with the descriptor of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// A part of a receive with several buffers; the device has one for each.
    #[error("control bits {control:#010x} are none of a receive with one buffer")]
    Control {
        /// The bits above the key.
        control: u32,
    },
}

impl ReceiveError {
    /// The status with which the receive completes.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Control { .. } => Status::UnsupportedOperation,
        }
    }
}

impl ReceiveDescriptor {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// The request id, and what is wrong.
    pub fn parse(descriptor: &[u8; SIZE]) -> Result<Self, (u16, ReceiveError)> {
        let [address @ .., _, _, _, _, _, _, _, _] = *descriptor;
        let [_, _, _, _, _, _, _, _, i0, i1, l0, l1, k0, k1, k2, k3] = *descriptor;
        let request_id = u16::from_le_bytes([i0, i1]);
        let key = u32::from_le_bytes([k0, k1, k2, k3]);
        let control = key & !KEY;
        if control != FIRST | LAST {
            return Err((request_id, ReceiveError::Control { control }));
        }
        let buffer = Buffer {
            address: u64::from_le_bytes(address),
            length: u16::from_le_bytes([l0, l1]).into(),
            key: key & KEY,
        };
        Ok(Self { request_id, buffer })
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

    #[test]
    fn receive_has_address_length_and_key() {
        let expected = ReceiveDescriptor {
            request_id: 0x1234,
            buffer: Buffer { address: 0x7f_0000_1000, length: 8928, key: 0x03_0201 },
        };
        assert_eq!(ReceiveDescriptor::parse(&RECEIVE), Ok(expected));
    }

    #[test]
    fn receive_of_several_buffers_is_an_error_with_its_id() {
        for control in [0x40, 0x80, 0x00, 0xc1, 0xe0] {
            let mut receive = RECEIVE;
            receive[15] = control;
            let (id, error) = ReceiveDescriptor::parse(&receive).unwrap_err();
            let expected = ReceiveError::Control { control: u32::from(control) << 24 };
            assert_eq!((id, error), (0x1234, expected));
            assert_eq!(error.status(), Status::UnsupportedOperation);
        }
    }
}
