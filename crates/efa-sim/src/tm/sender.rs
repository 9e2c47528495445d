//! The sending side ("RDMA tag matching offload", section "Sending TM messages"): a protocol over ordinary
//! connections, without tag matching in the sender's device.
//!
//! ```text
//!   eager         TMH │ payload ──►                          done at once
//!   rendezvous    TMH │ RVH │ meta-data ──►
//!                 ◄── RDMA read, answered by the device
//!                 ◄── FIN                                    done, the memory may be freed
//! ```
//!
//! There are two connections to a receiver: its device owns the send queue of one.

use std::collections::VecDeque;

use efa_proto::tm::{Message, Opcode, Rvh, Tmh};
use thiserror::Error;

use super::wire::{Memory, Packet, RcEnd, RcEvent, Region};

/// One of the two connections between a sender and a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Messages to the TM-SRQ, and the device's reads and FINs.
    Matching,
    /// Reads and FINs of the receiver's software.
    Software,
}

/// Id of a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub u64);

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The length doesn't fit an RVH.
    #[error("the payload has {len} bytes, a rendezvous moves at most {}", u32::MAX)]
    Payload {
        /// Bytes of the payload.
        len: u64,
    },
    /// The request is longer than the receiver's `max_rndv_hdr_size`.
    #[error("the rendezvous request takes {len} bytes, the receiver accepts {limit}")]
    Request {
        /// Bytes of headers and meta-data.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The payload isn't in registered memory.
    #[error("{len} bytes at {va:#x} aren't registered under key {rkey:#x}")]
    Unregistered {
        /// Address of the payload.
        va: u64,
        /// The key.
        rkey: u32,
        /// Length of the payload.
        len: u32,
    },
    /// A rendezvous with the memory isn't done.
    #[error("a rendezvous with the memory of key {rkey:#x} isn't done")]
    InUse {
        /// The key.
        rkey: u32,
    },
}

/// A rendezvous whose FIN has not arrived.
#[derive(Clone, Debug)]
struct Outstanding {
    id: SendId,
    header: Tmh,
    rendezvous: Rvh,
}

/// A sender of tagged messages.
#[derive(Clone, Debug)]
pub struct TmSender {
    memory: Memory,
    matching: RcEnd,
    software: RcEnd,
    max_request: usize,
    next_id: u64,
    outstanding: Vec<Outstanding>,
    done: VecDeque<SendId>,
    stray: u64,
}

impl TmSender {
    /// A sender whose receiver accepts rendezvous requests of at most `max_rndv_hdr_size` bytes.
    #[must_use]
    pub fn new(mtu: usize, max_rndv_hdr_size: u32) -> Self {
        Self {
            memory: Memory::default(),
            matching: RcEnd::new(mtu),
            software: RcEnd::new(mtu),
            max_request: max_rndv_hdr_size as usize,
            next_id: 0,
            outstanding: Vec::new(),
            done: VecDeque::new(),
            stray: 0,
        }
    }

    /// Sends a message without a tag.
    pub fn no_tag(&mut self, bytes: &[u8]) {
        self.matching.post_send(&[&[Opcode::NoTag as u8], bytes].concat());
    }

    /// Sends a tag and the payload.
    pub fn eager(&mut self, header: Tmh, payload: &[u8]) {
        let mut message = [[0; Tmh::SIZE].as_slice(), payload].concat();
        header.emit_eager(&mut message).expect("the TMH fits");
        self.matching.post_send(&message);
    }

    /// Registers memory for rendezvous.
    pub fn register(&mut self, memory: Vec<u8>) -> Region {
        self.memory.register(memory)
    }

    /// Deregisters and returns memory; `None` if the key is unknown.
    ///
    /// # Errors
    ///
    /// If a rendezvous with it isn't done: the receiver may be reading it.
    pub fn deregister(&mut self, rkey: u32) -> Result<Option<Vec<u8>>, SendError> {
        match self.outstanding.iter().any(|send| send.rendezvous.rkey == rkey) {
            true => Err(SendError::InUse { rkey }),
            false => Ok(self.memory.deregister(rkey)),
        }
    }

    /// Sends a rendezvous request: a tag, the region with the payload, and meta-data that software gets if the
    /// request is unexpected. The region may be part of a registered one.
    ///
    /// # Errors
    ///
    /// If the region is too large or not registered, or the request is too large.
    pub fn rendezvous(
        &mut self,
        header: Tmh,
        region: Region,
        metadata: &[u8],
    ) -> Result<SendId, SendError> {
        let Region { va, rkey, len } = region;
        let len = u32::try_from(len).map_err(|_| SendError::Payload { len })?;
        if self.memory.get(va, rkey, len).is_none() {
            return Err(SendError::Unregistered { va, rkey, len });
        }
        let mut request = [[0; Tmh::SIZE + Rvh::SIZE].as_slice(), metadata].concat();
        if request.len() > self.max_request {
            return Err(SendError::Request { len: request.len(), limit: self.max_request });
        }
        let rendezvous = Rvh { va, rkey, len };
        header.emit_rndv(&rendezvous, &mut request).expect("both headers fit");
        self.matching.post_send(&request);
        let id = SendId(self.next_id);
        self.next_id += 1;
        self.outstanding.push(Outstanding { id, header, rendezvous });
        Ok(id)
    }

    fn end(&mut self, link: Link) -> &mut RcEnd {
        match link {
            Link::Matching => &mut self.matching,
            Link::Software => &mut self.software,
        }
    }

    /// Handles a packet of the receiver.
    pub fn receive(&mut self, link: Link, packet: Packet) {
        match link {
            Link::Matching => self.matching.receive(packet, &self.memory),
            Link::Software => self.software.receive(packet, &self.memory),
        }
        while let Some(event) = self.end(link).poll_event() {
            let RcEvent::Message(bytes) = event else { continue };
            match self.finished(&bytes) {
                Some(at) => self.done.push_back(self.outstanding.remove(at).id),
                None => self.stray += 1,
            }
        }
    }

    /// The rendezvous that a FIN completes. A FIN without RVH must fit exactly one.
    fn finished(&self, message: &[u8]) -> Option<usize> {
        let Ok(Message::Fin { header, rendezvous }) = Message::parse(message) else { return None };
        let fits = |send: &Outstanding| {
            send.header == header && rendezvous.is_none_or(|rvh| send.rendezvous == rvh)
        };
        let first = self.outstanding.iter().position(fits)?;
        let ambiguous = rendezvous.is_none() && self.outstanding[first + 1..].iter().any(fits);
        (!ambiguous).then_some(first)
    }

    /// The next rendezvous that is done: its memory may be deregistered.
    pub fn poll_done(&mut self) -> Option<SendId> {
        self.done.pop_front()
    }

    /// The next packet for the receiver.
    pub fn poll_transmit(&mut self, link: Link) -> Option<Packet> {
        self.end(link).poll_transmit()
    }

    /// Number of rendezvous that aren't done.
    #[must_use]
    pub fn outstanding_len(&self) -> usize {
        self.outstanding.len()
    }

    /// Number of messages that were not the FIN of a rendezvous.
    #[must_use]
    pub fn stray(&self) -> u64 {
        self.stray
    }
}
