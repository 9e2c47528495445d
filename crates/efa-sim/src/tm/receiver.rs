//! The receiving software: [`Offload`] keeps the matching order across software and the [`TmSrq`]; this
//! module moves the data of unexpected messages.
//!
//! ```text
//!   post, cancel ──► Offload ──ADD DEL SYNC──► TmSrq ◄── packets
//!                      ▲                         │
//!                      └──────── completions ────┤ matched:    the buffer is filled
//!                                                │ unexpected: kept in its SRQ buffer; when a
//!   poll ◄── one completion per receive          ▼ receive is posted: copied, or read by software
//! ```
//!
//! Software sends its reads and FINs over a second connection to each sender: the TM-SRQ owns the send
//! queue of the first.

use std::collections::{HashMap, VecDeque};

use efa_match::{
    Cancelled, Change, Handled, ListLimits, Offload, Outcome, Pattern, PostId, Posted, Source,
    Violation,
};
use efa_proto::tm::{Message, Rvh, Tmh};
use slab::Slab;
use thiserror::Error;

use super::sender::Link;
use super::srq::{TmDevice, TmSrq};
use super::types::{
    Completion, CompletionQueue, Connection, CreateError, NotReady, OpsOpcode, OpsWr, Report,
    SgeList, SrqInit, SrqType, Status, TaggedReceive, TmInfo, TmLimits, Transport,
};
use super::wire::{Memory, Packet, RcEnd, RcEvent};

/// Options of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct TmReceiverOptions {
    /// Limits of the device's list. `None`: all matching is in software.
    pub list: Option<TmLimits>,
    /// SRQ buffers, and so most unexpected messages held.
    pub buffers: usize,
    /// Length of each SRQ buffer in bytes, headers included.
    pub buffer_len: usize,
    /// Largest packet in bytes.
    pub mtu: usize,
    /// Initial count of unexpected messages.
    pub first_count: u32,
    /// Seed of the hash functions.
    pub seed: u64,
}

/// A completed receive.
#[derive(Debug, PartialEq, Eq)]
pub struct Received {
    /// The context given when it was posted.
    pub context: u64,
    /// Its buffer.
    pub buffer: SgeList,
    /// Tag and payload length of the message in the buffer.
    pub result: Result<(TmInfo, usize), ReceiveError>,
}

/// Why a receive failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReceiveError {
    /// The message is longer than the buffer.
    #[error("the message has {} bytes, the buffer {available}", shown(*len))]
    Truncated {
        /// Bytes of the payload, or `None` if its RVH didn't fit either.
        len: Option<usize>,
        /// Bytes of the buffer.
        available: usize,
    },
    /// The payload could not be read.
    #[error("the payload couldn't be had: {0}")]
    Data(Status),
    /// It was cancelled.
    #[error("the receive was cancelled")]
    Cancelled,
}

/// A pending receive.
#[derive(Debug)]
struct Receive {
    context: u64,
    /// Empty while the buffer is in the device.
    buffer: SgeList,
}

/// An unexpected message, in its SRQ buffer.
#[derive(Debug)]
struct Unexpected {
    connection: Connection,
    buffer: SgeList,
    byte_len: usize,
}

/// A rendezvous whose payload software reads.
#[derive(Debug)]
struct SoftwareRead {
    receive: Receive,
    header: Tmh,
    rendezvous: Rvh,
}

/// A receiver of tagged messages, with one completion per receive.
#[derive(Debug)]
pub struct TmReceiver {
    srq: TmSrq,
    max_sge: usize,
    offload: Offload<u32, u32>,
    receives: Slab<Receive>,
    messages: Slab<Unexpected>,
    /// Matched by the device and waiting for data, by `recv_wr_id`.
    filling: HashMap<u64, u32>,
    /// Software's own connections, by number.
    ends: Vec<RcEnd>,
    reads: HashMap<(u32, u32), SoftwareRead>,
    done: VecDeque<Received>,
    no_tag: VecDeque<(Connection, Vec<u8>)>,
    malformed: u64,
    syncs: u64,
    mtu: usize,
}

impl TmReceiver {
    /// A receiver on this device.
    ///
    /// # Errors
    ///
    /// If the device refuses the TM-SRQ.
    pub fn new(device: &TmDevice, options: TmReceiverOptions) -> Result<Self, CreateError> {
        let TmReceiverOptions { list, buffers, buffer_len, mtu, first_count, seed } = options;
        // Without a list the queue still receives unexpected messages.
        let tm_cap = list.unwrap_or(TmLimits { max_num_tags: 1, max_ops: 1 });
        let mut srq = device.counting_from(first_count).create_srq(SrqInit {
            srq_type: SrqType::TagMatching,
            tm_cap: Some(tm_cap),
            cq: Some(CompletionQueue::default()),
        })?;
        for wr_id in 0..buffers {
            srq.post_receive(wr_id as u64, SgeList::zeroed(buffer_len));
        }
        let max_tags = list.map_or(0, |list| list.max_num_tags);
        let limits = ListLimits { max_tags, max_ops: tm_cap.max_ops };
        Ok(Self {
            srq,
            max_sge: device.caps().max_sge as usize,
            offload: Offload::new(limits, seed).counting_from(first_count),
            receives: Slab::new(),
            messages: Slab::new(),
            filling: HashMap::new(),
            ends: Vec::new(),
            reads: HashMap::new(),
            done: VecDeque::new(),
            no_tag: VecDeque::new(),
            malformed: 0,
            syncs: 0,
            mtu,
        })
    }

    /// Accepts the connections of one more sender: that of the TM-SRQ, and software's own.
    ///
    /// # Errors
    ///
    /// If the device has no tag matching on reliable connections.
    pub fn connect(&mut self) -> Result<Connection, CreateError> {
        self.ends.push(RcEnd::new(self.mtu));
        self.srq.associate(Transport::Rc)
    }

    /// Posts a receive. Returns its id if it has to wait for a message.
    ///
    /// # Errors
    ///
    /// If the device violated the tag-list protocol.
    pub fn post(
        &mut self,
        context: u64,
        tag: u64,
        ignore: u64,
        buffer: SgeList,
    ) -> Result<Option<PostId>, Violation> {
        let pattern = Pattern { source: None, tag, ignore };
        let fits_device = buffer.0.len() <= self.max_sge;
        let key = self.receives.insert(Receive { context, buffer }) as u32;
        let posted = match fits_device {
            true => self.offload.post(pattern, key),
            false => self.offload.post_in_software(pattern, key),
        };
        let waiting = match posted {
            Posted::Waiting(post) => Some(post),
            Posted::Matched(key, message) => {
                self.join(key, message);
                None
            }
        };
        self.command();
        Ok(waiting)
    }

    /// Cancels a receive. It completes as cancelled, or with the message that matched it before.
    pub fn cancel(&mut self, post: PostId) {
        if let Cancelled::Now(key) = self.offload.cancel(post) {
            self.end_cancelled(key);
        }
        self.command();
    }

    fn end_cancelled(&mut self, key: u32) {
        let Receive { context, buffer } = self.receives.remove(key as usize);
        self.done.push_back(Received { context, buffer, result: Err(ReceiveError::Cancelled) });
    }

    /// Handles a packet of a sender.
    ///
    /// # Errors
    ///
    /// If no SRQ buffer is posted: see [`TmSrq::receive`].
    pub fn receive(
        &mut self,
        connection: Connection,
        link: Link,
        packet: Packet,
    ) -> Result<(), NotReady> {
        match link {
            Link::Matching => self.srq.receive(connection, packet),
            Link::Software => {
                self.receive_software(connection, packet);
                Ok(())
            }
        }
    }

    fn receive_software(&mut self, connection: Connection, packet: Packet) {
        // This side has no readable memory.
        self.ends[connection.0 as usize].receive(packet, &Memory::default());
        while let Some(event) = self.ends[connection.0 as usize].poll_event() {
            if let RcEvent::Read { read, result } = event {
                self.end_read(connection, read, result.ok());
            }
        }
    }

    fn end_read(&mut self, connection: Connection, read: u32, bytes: Option<Vec<u8>>) {
        let Some(under_way) = self.reads.remove(&(connection.0, read)) else { return };
        let SoftwareRead { receive: Receive { context, mut buffer }, header, rendezvous } =
            under_way;
        let result = match bytes {
            Some(bytes) => {
                buffer.scatter(0, &bytes);
                self.finish(connection, header, Some(rendezvous));
                Ok((info(header), bytes.len()))
            }
            None => Err(ReceiveError::Data(Status::RemoteAccess)),
        };
        self.done.push_back(Received { context, buffer, result });
    }

    /// Carries out the device's next command, if there is one.
    pub fn carry_out(&mut self) -> bool {
        self.srq.carry_out()
    }

    /// Handles the device's next completion. Call [`command`](Self::command) when there is none.
    ///
    /// # Errors
    ///
    /// If the device violated the tag-list protocol.
    pub fn handle_completion(&mut self) -> Result<bool, Violation> {
        let Some(Completion { sync_req, report }) = self.srq.poll() else { return Ok(false) };
        match report {
            Report::Added { wr_id, result, .. } => {
                self.op_completed(wr_id, result.is_ok(), sync_req, None)?;
            }
            Report::Deleted { wr_id, result, receive } => {
                self.op_completed(wr_id, result.is_ok(), sync_req, receive)?;
            }
            Report::Synced { wr_id } => self.op_completed(wr_id, true, sync_req, None)?,
            Report::Received { connection, buffer, byte_len, result, .. } => {
                self.unexpected(Unexpected { connection, buffer, byte_len }, result);
            }
            Report::NoTag { wr_id, connection, buffer, byte_len, result } => {
                match result {
                    Ok(()) => self.no_tag.push_back((connection, buffer.gather(byte_len))),
                    Err(_) => self.malformed += 1,
                }
                self.srq.post_receive(wr_id, buffer);
            }
            Report::TmReceived {
                recv_wr_id,
                connection,
                flags,
                info,
                byte_len,
                buffer,
                result,
            } => {
                let key = match flags.matched {
                    true => self.offload.matched(PostId::from_bits(recv_wr_id))?,
                    false => self.filling.remove(&recv_wr_id),
                };
                let Some(key) = key else { return Ok(true) };
                match buffer {
                    None => drop(self.filling.insert(recv_wr_id, key)),
                    Some(buffer) => {
                        self.end_matched(key, connection, info, byte_len, buffer, result);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Completes a matched receive, with its data or a failure.
    fn end_matched(
        &mut self,
        key: u32,
        connection: Connection,
        info: TmInfo,
        byte_len: usize,
        buffer: SgeList,
        result: Result<(), Status>,
    ) {
        let Receive { context, .. } = self.receives.remove(key as usize);
        let available = buffer.len();
        let result = match result {
            Ok(()) => Ok((info, byte_len)),
            Err(Status::Length) => Err(ReceiveError::Truncated { len: Some(byte_len), available }),
            Err(Status::RndvIncomplete) => {
                // The headers are in the buffer if they fit; if not, the FIN is sent without RVH.
                let bytes = buffer.gather(byte_len);
                let header = Tmh { app_ctx: info.app_ctx, tag: info.tag };
                let rendezvous = match Message::parse(&bytes) {
                    Ok(Message::Rndv { rendezvous, .. }) => Some(rendezvous),
                    _ => None,
                };
                self.finish(connection, header, rendezvous);
                let len = rendezvous.map(|rvh| rvh.len as usize);
                Err(ReceiveError::Truncated { len, available })
            }
            Err(status) => Err(ReceiveError::Data(status)),
        };
        self.done.push_back(Received { context, buffer, result });
    }

    fn op_completed(
        &mut self,
        wr_id: u64,
        succeeded: bool,
        sync_req: bool,
        receive: Option<TaggedReceive>,
    ) -> Result<(), Violation> {
        let outcome = self.offload.op_completed(wr_id as u32, succeeded, sync_req)?;
        let (key, message) = match outcome {
            None => return Ok(()),
            Some(Outcome::Matched(key, message)) => (key, Some(message)),
            Some(Outcome::Cancelled(key)) => (key, None),
        };
        if let Some(TaggedReceive { sg_list, .. }) = receive {
            self.receives[key as usize].buffer = sg_list;
        }
        match message {
            Some(message) => self.join(key, message),
            None => self.end_cancelled(key),
        }
        Ok(())
    }

    fn unexpected(&mut self, message: Unexpected, result: Result<(), Status>) {
        let Unexpected { connection, ref buffer, byte_len } = message;
        let bytes = buffer.gather(byte_len);
        let tag = match (Message::parse(&bytes), result) {
            (Ok(Message::Eager { header, .. } | Message::Rndv { header, .. }), Ok(())) => {
                header.tag
            }
            _ => {
                self.malformed += 1;
                self.offload.unexpected_other();
                return self.reuse(message.buffer);
            }
        };
        let key = self.messages.insert(message) as u32;
        if let Handled::Matched(found) = self.offload.unexpected(Source(connection.0), tag, key) {
            // Other reports are not kept.
            if let Some(receive) = found.once() {
                self.join(receive, key);
            }
        }
    }

    /// Delivers an unexpected message to its receive.
    fn join(&mut self, key: u32, message: u32) {
        let Receive { context, mut buffer } = self.receives.remove(key as usize);
        let Unexpected { connection, buffer: held, byte_len } =
            self.messages.remove(message as usize);
        let bytes = held.gather(byte_len);
        self.reuse(held);
        let available = buffer.len();
        let too_long = |len| ReceiveError::Truncated { len: Some(len), available };
        let result = match Message::parse(&bytes) {
            Ok(Message::Eager { header, payload }) => {
                buffer.scatter(0, payload);
                let fits = payload.len() <= available;
                if fits { Ok((info(header), payload.len())) } else { Err(too_long(payload.len())) }
            }
            Ok(Message::Rndv { header, rendezvous, .. }) => {
                if rendezvous.len as usize <= available {
                    let Rvh { va, rkey, len } = rendezvous;
                    let read = self.ends[connection.0 as usize].post_read(va, rkey, len);
                    let receive = Receive { context, buffer };
                    let under_way = SoftwareRead { receive, header, rendezvous };
                    self.reads.insert((connection.0, read), under_way);
                    return;
                }
                self.finish(connection, header, Some(rendezvous));
                Err(too_long(rendezvous.len as usize))
            }
            // Only these two kinds are kept.
            _ => Err(ReceiveError::Data(Status::Length)),
        };
        self.done.push_back(Received { context, buffer, result });
    }

    /// Sends the FIN: the sender may free its memory.
    fn finish(&mut self, connection: Connection, header: Tmh, rendezvous: Option<Rvh>) {
        let mut fin = [0; Tmh::SIZE + Rvh::SIZE];
        let emitted = match rendezvous {
            Some(rendezvous) => header.emit_fin(&rendezvous, &mut fin),
            None => header.emit_short_fin(&mut fin),
        };
        let len = emitted.expect("both headers fit");
        self.ends[connection.0 as usize].post_send(&fin[..len]);
    }

    fn reuse(&mut self, buffer: SgeList) {
        self.srq.post_receive(0, buffer);
    }

    /// Posts due commands to the device.
    pub fn command(&mut self) {
        while let Some(command) = self.offload.poll_command() {
            let opcode = match command.change {
                Change::Add { post, tag, mask } => {
                    let key = *self.offload.receive(post).expect("it is posted");
                    let sg_list = std::mem::take(&mut self.receives[key as usize].buffer);
                    let recv_wr_id = post.to_bits();
                    OpsOpcode::Add(TaggedReceive { recv_wr_id, sg_list, tag, mask })
                }
                Change::Delete { handle, .. } => OpsOpcode::Delete(handle),
                Change::Sync => {
                    self.syncs += 1;
                    OpsOpcode::Sync
                }
            };
            let wr = OpsWr {
                wr_id: command.op.into(),
                opcode,
                signalled: command.signalled,
                unexpected_cnt: command.unexpected,
            };
            let handles = self.srq.post_ops(vec![wr]).expect("within the limits of the list");
            if let (Change::Add { post, .. }, [Some(handle)]) = (command.change, &handles[..]) {
                self.offload.added(post, *handle);
            }
        }
    }

    /// The next completed receive.
    pub fn poll(&mut self) -> Option<Received> {
        self.done.pop_front()
    }

    /// The next message without tag, opcode included.
    pub fn poll_no_tag(&mut self) -> Option<(Connection, Vec<u8>)> {
        self.no_tag.pop_front()
    }

    /// The next packet for a sender.
    pub fn poll_transmit(&mut self, connection: Connection, link: Link) -> Option<Packet> {
        match link {
            Link::Matching => self.srq.poll_transmit(connection),
            Link::Software => self.ends[connection.0 as usize].poll_transmit(),
        }
    }

    /// The matcher.
    #[must_use]
    pub fn offload(&self) -> &Offload<u32, u32> {
        &self.offload
    }

    /// The TM-SRQ.
    #[must_use]
    pub fn srq(&self) -> &TmSrq {
        &self.srq
    }

    /// The meta-data of unexpected rendezvous requests, in no order.
    pub fn unexpected_metadata(&self) -> impl Iterator<Item = Vec<u8>> {
        self.messages.iter().filter_map(|(_, message)| {
            match Message::parse(&message.buffer.gather(message.byte_len)) {
                Ok(Message::Rndv { metadata, .. }) => Some(metadata.to_vec()),
                _ => None,
            }
        })
    }

    /// SYNC commands sent.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs
    }

    /// Number of invalid messages.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

fn info(header: Tmh) -> TmInfo {
    TmInfo { tag: header.tag, app_ctx: header.app_ctx }
}

fn shown(len: Option<usize>) -> String {
    len.map_or_else(|| "more".to_owned(), |len| len.to_string())
}
