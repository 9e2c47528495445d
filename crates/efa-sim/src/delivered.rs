//! What a link between processes hands to a queue pair.

use efa_device::{Completion, Source};

/// What was put into a posted buffer, or took one.
#[derive(Debug)]
pub(crate) enum Delivered {
    Datagram {
        packet: Box<[u8]>,
        length: usize,
        immediate: Option<u32>,
    },
    /// Memory was written.
    Written {
        packet: Option<Box<[u8]>>,
        length: u64,
        immediate: u32,
    },
}

impl Delivered {
    /// What its receiver is told.
    #[inline]
    pub(crate) fn completion(self, source: Source) -> Completion<Box<[u8]>> {
        match self {
            Self::Datagram { packet, length, immediate } => {
                Completion::Receive { packet, length, source, immediate }
            }
            Self::Written { packet, length, immediate } => {
                Completion::Written { immediate, length, source, packet }
            }
        }
    }
}
