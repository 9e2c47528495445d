//! The descriptor of a completion: 32 bytes of the completion ring.
//!
//! ```text
//!   0 request id, bits 0–15    2 status     3 phase 0 | queue 1–2 | immediate 3 | operation 4–6 | unsolicited 7
//!   4 queue pair
//!   of the send queue          6 request id, bits 16–63, of queues with 64-bit ids
//!   of the receive queue       6 length, bits 0–15     8 address handle of the sender, 0xffff: none
//!                             10 queue pair of the sender               12 immediate data
//!                             16 write: length, bits 16–31; else the sender's GID, if it has no handle
//! ```
//!
//! The phase is 1 in the first turn of the ring and changes with each turn: a program sees by it that a
//! descriptor is new. So the word that has it is written last.

/// Bytes of a descriptor.
pub const SIZE: usize = 32;
/// Words of a descriptor.
pub const WORDS: usize = SIZE / 8;

/// The phase bit in the first word.
pub const PHASE: u64 = 1 << 24;

const SEND_QUEUE: u8 = 1;
const RECEIVE_QUEUE: u8 = 2;
const WRITE: u8 = 2;
const UNKNOWN_HANDLE: u16 = 0xffff;

/// What a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A send (0), read (1) or write (2).
    Sent {
        /// Of the request.
        request_id: u64,
        /// The operation.
        operation: u8,
    },
    /// A datagram, or a receive that failed.
    Received {
        /// Of the receive.
        request_id: u16,
        /// Length in bytes.
        length: u32,
        /// The sender.
        sender: Sender,
        /// Immediate data, in the byte order of this machine.
        immediate: Option<u32>,
    },
    /// A peer's write with immediate data.
    Written {
        /// Of the receive that it used; `None` if it used none.
        request_id: Option<u16>,
        /// Length in bytes.
        length: u32,
        /// The sender.
        sender: Sender,
        /// Immediate data, in the byte order of this machine.
        immediate: u32,
    },
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Number of its address handle, if there is one.
    pub address_handle: Option<u16>,
    /// Its queue pair.
    pub queue_pair: u16,
    /// Its GID.
    pub gid: [u8; 16],
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionDescriptor {
    /// The queue pair of this side.
    pub queue_pair: u16,
    /// 0, or what went wrong.
    pub status: u8,
    /// What completed.
    pub event: Event,
}

impl CompletionDescriptor {
    /// The words of the descriptor, with [`PHASE`] 0.
    #[must_use]
    pub fn encode(&self) -> [u64; WORDS] {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(into) = bytes.get_mut(at..at + value.len()) {
                into.copy_from_slice(value);
            }
        };
        put(2, &[self.status]);
        put(4, &self.queue_pair.to_le_bytes());
        match self.event {
            Event::Sent { request_id, operation } => {
                let [a, b, rest @ ..] = request_id.to_le_bytes();
                put(0, &[a, b]);
                put(3, &[SEND_QUEUE << 1 | (operation & 7) << 4]);
                put(6, &rest);
            }
            Event::Received { request_id, length, sender, immediate } => {
                put(0, &request_id.to_le_bytes());
                put(3, &[RECEIVE_QUEUE << 1 | u8::from(immediate.is_some()) << 3]);
                put(6, &length.to_le_bytes()[..2]);
                put(8, &sender.address_handle.unwrap_or(UNKNOWN_HANDLE).to_le_bytes());
                put(10, &sender.queue_pair.to_le_bytes());
                put(12, &immediate.unwrap_or(0).to_le_bytes());
                if sender.address_handle.is_none() {
                    put(16, &sender.gid);
                }
            }
            Event::Written { request_id, length, sender, immediate } => {
                put(0, &request_id.unwrap_or(0).to_le_bytes());
                let unsolicited = u8::from(request_id.is_none()) << 7;
                put(3, &[RECEIVE_QUEUE << 1 | 1 << 3 | WRITE << 4 | unsolicited]);
                put(6, &length.to_le_bytes()[..2]);
                put(8, &sender.address_handle.unwrap_or(UNKNOWN_HANDLE).to_le_bytes());
                put(10, &sender.queue_pair.to_le_bytes());
                put(12, &immediate.to_le_bytes());
                put(16, &length.to_le_bytes()[2..]);
            }
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(status: u8, event: Event) -> Vec<u8> {
        let words = CompletionDescriptor { queue_pair: 0x0102, status, event }.encode();
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn completion_of_a_send_has_its_id_of_64_bits() {
        let sent = Event::Sent { request_id: 0x0807_0605_0403_0201, operation: 1 };
        let expected = [1, 2, 10, 0x12, 2, 1, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0];
        assert_eq!(encoded(10, sent), [&expected[..], &[0; 16]].concat());
    }

    #[test]
    fn completion_of_a_receive_has_the_sender() {
        let gid = [0xfe; 16];
        let sender = Sender { address_handle: None, queue_pair: 0x0304, gid };
        let received = |sender| Event::Received {
            request_id: 0x1234,
            length: 0x22e0,
            sender,
            immediate: Some(0xdead_beef),
        };
        let start = [0x34, 0x12, 0, 0x0c, 2, 1, 0xe0, 0x22];
        let end = [0xff, 0xff, 4, 3, 0xef, 0xbe, 0xad, 0xde];
        assert_eq!(encoded(0, received(sender)), [&start[..], &end, &gid].concat());
        let sender = Sender { address_handle: Some(9), ..sender };
        let end = [9, 0, 4, 3, 0xef, 0xbe, 0xad, 0xde];
        assert_eq!(encoded(0, received(sender)), [&start[..], &end, &[0; 16]].concat());
    }

    #[test]
    fn completion_of_a_peers_write_has_a_length_of_32_bits() {
        let sender = Sender { address_handle: Some(9), queue_pair: 3, gid: [0; 16] };
        let written =
            |request_id| Event::Written { request_id, length: 0x0012_3456, sender, immediate: 7 };
        let end = [9, 0, 3, 0, 7, 0, 0, 0, 0x12, 0];
        let start = [0x34, 0x12, 0, 0x2c, 2, 1, 0x56, 0x34];
        let expected = [&start[..], &end, &[0; 14]].concat();
        assert_eq!(encoded(0, written(Some(0x1234))), expected);
        let start = [0, 0, 0, 0xac, 2, 1, 0x56, 0x34];
        assert_eq!(encoded(0, written(None)), [&start[..], &end, &[0; 14]].concat());
    }

    #[test]
    fn phase_is_bit_24_of_the_first_word() {
        let first = encoded(0, Event::Sent { request_id: 0, operation: 0 });
        let mut with_phase = first.clone();
        with_phase[3] |= 1;
        let word = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(word(&first) | PHASE, word(&with_phase));
    }
}
