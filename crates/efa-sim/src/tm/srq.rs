//! The TM-SRQ of the device ("RDMA tag matching offload", section "Tag Matching Verbs").
//!
//! ```text
//!              post_ops: ADD DEL SYNC                 post_receive: buffers for the unexpected
//!                   │                                        │
//!                   ▼ carry_out                              ▼
//!               ┌────────────┐  ── no entry fits ──►  ┌─────────────┐
//!  packets ───► │ MatchList  │                        │ SRQ buffers │ complete message with TMH
//!  of all       └────────────┘                        └─────────────┘
//!  connections      │ an entry fits                          │
//!                   ▼                                        │
//!        the entry's buffer ◄── READ (rendezvous) ──►        │
//!        payload alone          FIN, when it is done         │
//!                   │                                        │
//!                   └───────► one completion queue ◄─────────┘
//! ```
//!
//! Choices where the document doesn't specify:
//!
//! * [`TmSrq::carry_out`] carries out one command, in order, so that a test can put arrivals between any two
//!   of them.
//! * Every message reported as [`Report::Received`] counts as unexpected, also a FIN or an invalid message,
//!   so that both sides count alike. [`Report::NoTag`] doesn't count: it can't match an entry.
//! * A message is matched when its first packet arrives. An unexpected one is reported when it is complete.
//! * A message too long for its buffer fails that buffer only; the rest of the message is discarded.

use std::collections::{HashMap, VecDeque};
use std::mem;

use efa_match::{Entry, MatchList, Synchronisation};
use efa_proto::tm::{Message, Rvh, Tmh};
use slab::Slab;

use super::types::{
    BadWr, Completion, Connection, CreateError, NotReady, OpsOpcode, OpsWr, PostOpsError, Report,
    SgeList, SrqInit, SrqType, Status, TaggedReceive, TmCaps, TmFlags, TmInfo, TmLimits, Transport,
};
use super::wire::{Packet, Position, segments};

/// A device with tag matching.
#[derive(Clone, Copy, Debug)]
pub struct TmDevice {
    caps: TmCaps,
    mtu: usize,
    synchronisation: Synchronisation,
    first_count: u32,
}

impl TmDevice {
    /// A device with these capabilities and packets of at most `mtu` bytes.
    ///
    /// # Panics
    ///
    /// If both headers don't fit into one packet: they are parsed from the first.
    #[must_use]
    pub fn new(caps: TmCaps, mtu: usize) -> Self {
        assert!(mtu >= Tmh::SIZE + Rvh::SIZE, "TMH and RVH take 32 bytes, the MTU is {mtu}");
        Self { caps, mtu, synchronisation: Synchronisation::Required, first_count: 0 }
    }

    /// Sets whether new entries are held back until software has reported unexpected messages.
    #[must_use]
    pub fn with_synchronisation(mut self, synchronisation: Synchronisation) -> Self {
        self.synchronisation = synchronisation;
        self
    }

    /// Sets the initial count of unexpected messages.
    #[must_use]
    pub fn counting_from(mut self, count: u32) -> Self {
        self.first_count = count;
        self
    }

    /// The device's capabilities.
    #[must_use]
    pub fn caps(&self) -> TmCaps {
        self.caps
    }

    /// Creates a TM-SRQ.
    ///
    /// # Errors
    ///
    /// If an attribute is missing or exceeds the device's limit.
    pub fn create_srq(&self, init: SrqInit) -> Result<TmSrq, CreateError> {
        let SrqInit { srq_type, tm_cap, cq } = init;
        if srq_type != SrqType::TagMatching {
            return Err(CreateError::Type { found: srq_type });
        }
        if !self.caps.rc {
            return Err(CreateError::Transport { transport: Transport::Rc });
        }
        let limits = tm_cap.ok_or(CreateError::Missing { field: "tm_cap" })?;
        let cq = cq.ok_or(CreateError::Missing { field: "cq" })?;
        let within = |field, value, limit| match (1..=limit).contains(&value) {
            true => Ok(()),
            false => Err(CreateError::Limit { field, value, limit }),
        };
        within("max_num_tags", limits.max_num_tags, self.caps.max_num_tags)?;
        within("max_ops", limits.max_ops, self.caps.max_ops)?;
        Ok(TmSrq {
            limits,
            max_sge: self.caps.max_sge,
            mtu: self.mtu,
            list: MatchList::new(self.synchronisation, self.first_count),
            tagged: HashMap::new(),
            next_handle: 0,
            ops: VecDeque::new(),
            buffers: VecDeque::new(),
            connections: Vec::new(),
            reads: Slab::new(),
            cq: cq.0,
        })
    }
}

/// A message whose packets are arriving.
#[derive(Debug)]
enum Incoming {
    Nothing,
    /// Matched an entry; `received` includes bytes that didn't fit.
    Matched {
        receive: TaggedReceive,
        info: TmInfo,
        received: usize,
    },
    /// To an SRQ buffer.
    Unmatched {
        counted: bool,
        wr_id: u64,
        buffer: SgeList,
        received: usize,
    },
    /// Its packets are discarded: meta-data of a matched rendezvous.
    Skipped,
}

#[derive(Debug)]
struct ConnectionState {
    incoming: Incoming,
    transmit: VecDeque<Packet>,
}

/// An RDMA read of the device for a rendezvous.
#[derive(Debug)]
struct Read {
    connection: Connection,
    receive: TaggedReceive,
    header: Tmh,
    rendezvous: Rvh,
    received: usize,
}

/// A tag-matching shared receive queue, and the receiving ends of its connections. Their sends are
/// its own, for reads and FINs; nothing else can be posted there.
#[derive(Debug)]
pub struct TmSrq {
    limits: TmLimits,
    max_sge: u32,
    mtu: usize,
    list: MatchList,
    /// Receives by the handle of their entry.
    tagged: HashMap<u32, TaggedReceive>,
    next_handle: u32,
    /// Commands to be carried out, with the handle that an ADD will give its entry.
    ops: VecDeque<(OpsWr, u32)>,
    buffers: VecDeque<(u64, SgeList)>,
    connections: Vec<ConnectionState>,
    reads: Slab<Read>,
    cq: VecDeque<Completion>,
}

impl TmSrq {
    /// Adds a connection. Returns its number.
    ///
    /// # Errors
    ///
    /// If the transport has no tag matching.
    pub fn associate(&mut self, transport: Transport) -> Result<Connection, CreateError> {
        if transport != Transport::Rc {
            return Err(CreateError::Transport { transport });
        }
        let connection = Connection(self.connections.len() as u32);
        let transmit = VecDeque::new();
        self.connections.push(ConnectionState { incoming: Incoming::Nothing, transmit });
        Ok(connection)
    }

    /// Posts a buffer for an unexpected message (`ibv_post_srq_recv`).
    pub fn post_receive(&mut self, wr_id: u64, buffer: SgeList) {
        self.buffers.push_back((wr_id, buffer));
    }

    /// Posts a chain of commands; returns the handle of each that adds an entry
    /// (`ibv_post_srq_ops`).
    ///
    /// # Errors
    ///
    /// With the first refused command; those before it are queued.
    pub fn post_ops(&mut self, list: Vec<OpsWr>) -> Result<Vec<Option<u32>>, BadWr> {
        let mut handles = Vec::with_capacity(list.len());
        let mut rest = list.into_iter();
        while let Some(wr) = rest.next() {
            if let Err(error) = self.check(&wr) {
                let rest = std::iter::once(wr).chain(rest).collect();
                return Err(BadWr { handles, error, rest });
            }
            let handle = self.free_handle();
            handles.push(matches!(wr.opcode, OpsOpcode::Add(_)).then_some(handle));
            self.ops.push_back((wr, handle));
        }
        Ok(handles)
    }

    fn check(&self, wr: &OpsWr) -> Result<(), PostOpsError> {
        if self.ops.len() >= self.limits.max_ops as usize {
            return Err(PostOpsError::TooManyOps { limit: self.limits.max_ops });
        }
        match &wr.opcode {
            OpsOpcode::Add(receive) if receive.sg_list.0.len() > self.max_sge as usize => {
                let value = receive.sg_list.0.len();
                Err(PostOpsError::TooManySges { value, limit: self.max_sge })
            }
            _ => Ok(()),
        }
    }

    /// A handle that no entry has, also after 2^32 additions.
    fn free_handle(&mut self) -> u32 {
        loop {
            self.next_handle = self.next_handle.wrapping_add(1);
            if !self.tagged.contains_key(&self.next_handle) {
                return self.next_handle;
            }
        }
    }

    /// Carries out the next command, if there is one.
    pub fn carry_out(&mut self) -> bool {
        let Some((wr, handle)) = self.ops.pop_front() else { return false };
        let OpsWr { wr_id, opcode, signalled, unexpected_cnt } = wr;
        let report = match opcode {
            OpsOpcode::Add(receive) => {
                let (result, receive) = self.add(handle, receive, unexpected_cnt);
                Report::Added { wr_id, result, receive }
            }
            OpsOpcode::Delete(handle) => {
                let deleted = self.list.delete(handle, unexpected_cnt);
                let receive = deleted.and_then(|entry| self.tagged.remove(&entry.handle));
                let result = if receive.is_some() { Ok(()) } else { Err(Status::TmError) };
                Report::Deleted { wr_id, result, receive }
            }
            OpsOpcode::Sync => {
                self.list.sync(unexpected_cnt);
                Report::Synced { wr_id }
            }
        };
        let failed = matches!(
            report,
            Report::Added { result: Err(_), .. } | Report::Deleted { result: Err(_), .. }
        );
        if signalled || failed {
            self.complete(report);
        }
        true
    }

    fn add(
        &mut self,
        handle: u32,
        receive: TaggedReceive,
        handled: u32,
    ) -> (Result<(), Status>, Option<TaggedReceive>) {
        if self.list.len() >= self.limits.max_num_tags as usize {
            return (Err(Status::TmError), Some(receive));
        }
        self.list.add(Entry { handle, tag: receive.tag, mask: receive.mask }, handled);
        self.tagged.insert(handle, receive);
        (Ok(()), None)
    }

    fn complete(&mut self, report: Report) {
        self.cq.push_back(Completion { sync_req: self.list.sync_required(), report });
    }

    /// Handles a packet of a connection.
    ///
    /// # Errors
    ///
    /// If the message needs an SRQ buffer and none is posted. Nothing has changed then; the packet is
    /// returned and must be passed again before any other of this connection.
    ///
    /// # Panics
    ///
    /// If there is no such connection.
    pub fn receive(&mut self, connection: Connection, packet: Packet) -> Result<(), NotReady> {
        match packet {
            Packet::Send(position, bytes) if position.begins() => {
                self.abandon(connection);
                self.begin_message(connection, position, bytes)?;
            }
            Packet::Send(position, bytes) => self.go_on(connection, position, &bytes),
            Packet::ReadResponse { read, bytes } => self.read_answered(connection, read, &bytes),
            Packet::ReadRefused { read } => self.read_refused(connection, read),
            // The TM-SRQ has no readable memory.
            Packet::ReadRequest { read, .. } => {
                self.state(connection).transmit.push_back(Packet::ReadRefused { read });
            }
        }
        Ok(())
    }

    fn state(&mut self, connection: Connection) -> &mut ConnectionState {
        &mut self.connections[connection.0 as usize]
    }

    /// Matches a message by its first packet.
    fn begin_message(
        &mut self,
        connection: Connection,
        position: Position,
        bytes: Vec<u8>,
    ) -> Result<(), NotReady> {
        let message = Message::parse(&bytes);
        let tag = match message {
            Ok(Message::Eager { header, .. } | Message::Rndv { header, .. }) => Some(header.tag),
            _ => None,
        };
        let Some(at) = tag.and_then(|tag| self.list.find(tag)) else {
            let counted = !matches!(message, Ok(Message::NoTag(_)));
            return self.begin_unmatched(connection, counted, position, bytes);
        };
        let Some(entry) = self.list.remove(at) else { return Ok(()) };
        let Some(receive) = self.tagged.remove(&entry.handle) else { return Ok(()) };
        match message {
            Ok(Message::Eager { header, payload }) => {
                self.begin_eager(connection, receive, header, position, payload);
            }
            Ok(Message::Rndv { header, rendezvous, .. }) => {
                if !position.ends() {
                    self.state(connection).incoming = Incoming::Skipped;
                }
                self.begin_rendezvous(connection, receive, header, rendezvous, &bytes);
            }
            _ => {}
        }
        Ok(())
    }

    fn begin_unmatched(
        &mut self,
        connection: Connection,
        counted: bool,
        position: Position,
        bytes: Vec<u8>,
    ) -> Result<(), NotReady> {
        let Some((wr_id, buffer)) = self.buffers.pop_front() else {
            return Err(NotReady(Packet::Send(position, bytes)));
        };
        if counted {
            self.list.count_unexpected();
        }
        self.state(connection).incoming =
            Incoming::Unmatched { counted, wr_id, buffer, received: 0 };
        self.go_on(connection, position, &bytes);
        Ok(())
    }

    fn begin_eager(
        &mut self,
        connection: Connection,
        receive: TaggedReceive,
        header: Tmh,
        position: Position,
        payload: &[u8],
    ) {
        let info = TmInfo { tag: header.tag, app_ctx: header.app_ctx };
        if !position.ends() {
            self.complete_match(connection, receive.recv_wr_id, info, payload.len());
        }
        self.state(connection).incoming = Incoming::Matched { receive, info, received: 0 };
        self.go_on(connection, position, payload);
    }

    /// Reports a match before its data.
    fn complete_match(
        &mut self,
        connection: Connection,
        recv_wr_id: u64,
        info: TmInfo,
        byte_len: usize,
    ) {
        let flags = TmFlags { matched: true, data_valid: false };
        let (buffer, result) = (None, Ok(()));
        self.complete(Report::TmReceived {
            recv_wr_id,
            connection,
            flags,
            info,
            byte_len,
            buffer,
            result,
        });
    }

    /// Stores more bytes of a message, perhaps the last ones.
    fn go_on(&mut self, connection: Connection, position: Position, bytes: &[u8]) {
        let incoming = &mut self.state(connection).incoming;
        match incoming {
            Incoming::Matched { receive: TaggedReceive { sg_list: to, .. }, received, .. }
            | Incoming::Unmatched { buffer: to, received, .. } => {
                to.scatter(*received, bytes);
                *received += bytes.len();
            }
            Incoming::Nothing | Incoming::Skipped => {}
        }
        if position.ends() {
            let whole = mem::replace(incoming, Incoming::Nothing);
            self.end_message(connection, position, whole);
        }
    }

    fn end_message(&mut self, connection: Connection, position: Position, whole: Incoming) {
        let fits = |buffer: &SgeList, received| match received <= buffer.len() {
            true => Ok(()),
            false => Err(Status::Length),
        };
        match whole {
            Incoming::Matched { receive, info, received } => {
                let TaggedReceive { recv_wr_id, sg_list, .. } = receive;
                let matched = position == Position::Only;
                self.complete(Report::TmReceived {
                    recv_wr_id,
                    connection,
                    flags: TmFlags { matched, data_valid: true },
                    info,
                    byte_len: received,
                    result: fits(&sg_list, received),
                    buffer: Some(sg_list),
                });
            }
            Incoming::Unmatched { counted, wr_id, buffer, received: byte_len } => {
                let result = fits(&buffer, byte_len);
                self.complete(match counted {
                    true => Report::Received { wr_id, connection, buffer, byte_len, result },
                    false => Report::NoTag { wr_id, connection, buffer, byte_len, result },
                });
            }
            Incoming::Nothing | Incoming::Skipped => {}
        }
    }

    /// Reads the payload of a matched rendezvous request, if it fits the buffer.
    fn begin_rendezvous(
        &mut self,
        connection: Connection,
        mut receive: TaggedReceive,
        header: Tmh,
        rendezvous: Rvh,
        request: &[u8],
    ) {
        let info = TmInfo { tag: header.tag, app_ctx: header.app_ctx };
        let Rvh { va, rkey, len } = rendezvous;
        if receive.sg_list.len() < len as usize {
            receive.sg_list.scatter(0, &request[..Tmh::SIZE + Rvh::SIZE]);
            let flags = TmFlags { matched: true, data_valid: true };
            return self.complete(Report::TmReceived {
                recv_wr_id: receive.recv_wr_id,
                connection,
                flags,
                info,
                byte_len: receive.sg_list.len().min(Tmh::SIZE + Rvh::SIZE),
                buffer: Some(receive.sg_list),
                result: Err(Status::RndvIncomplete),
            });
        }
        self.complete_match(connection, receive.recv_wr_id, info, len as usize);
        let read = Read { connection, receive, header, rendezvous, received: 0 };
        let read = self.reads.insert(read) as u32;
        self.state(connection).transmit.push_back(Packet::ReadRequest { read, va, rkey, len });
    }

    fn read_answered(&mut self, connection: Connection, read: u32, bytes: &[u8]) {
        let Some(under_way) = self.reads.get_mut(read as usize) else { return };
        let Read { connection: asked, receive, rendezvous, received, .. } = under_way;
        if *asked != connection {
            return;
        }
        // Bytes beyond the request are dropped.
        let wanted = bytes.len().min(rendezvous.len as usize - *received);
        receive.sg_list.scatter(*received, &bytes[..wanted]);
        *received += wanted;
        if *received == rendezvous.len as usize {
            let Read { header, rendezvous, .. } = *under_way;
            let mut fin = [0; Tmh::SIZE + Rvh::SIZE];
            if header.emit_fin(&rendezvous, &mut fin).is_ok() {
                let mtu = self.mtu;
                self.state(connection).transmit.extend(segments(&fin, mtu));
            }
            self.end_read(read, Ok(()));
        }
    }

    fn read_refused(&mut self, connection: Connection, read: u32) {
        if self.reads.get(read as usize).is_some_and(|read| read.connection == connection) {
            self.end_read(read, Err(Status::RemoteAccess));
        }
    }

    fn end_read(&mut self, read: u32, result: Result<(), Status>) {
        let Read { connection, receive, header, received, .. } = self.reads.remove(read as usize);
        self.complete(Report::TmReceived {
            recv_wr_id: receive.recv_wr_id,
            connection,
            flags: TmFlags { matched: false, data_valid: true },
            info: TmInfo { tag: header.tag, app_ctx: header.app_ctx },
            byte_len: received,
            buffer: Some(receive.sg_list),
            result,
        });
    }

    /// Flushes the message that is arriving.
    fn abandon(&mut self, connection: Connection) {
        let result = Err(Status::Flushed);
        match mem::replace(&mut self.state(connection).incoming, Incoming::Nothing) {
            Incoming::Matched { receive, info, received: byte_len } => {
                self.complete(Report::TmReceived {
                    recv_wr_id: receive.recv_wr_id,
                    connection,
                    flags: TmFlags { matched: false, data_valid: true },
                    info,
                    byte_len,
                    buffer: Some(receive.sg_list),
                    result,
                });
            }
            // It is reported because it was counted.
            Incoming::Unmatched { counted, wr_id, buffer, received: byte_len } => {
                self.complete(match counted {
                    true => Report::Received { wr_id, connection, buffer, byte_len, result },
                    false => Report::NoTag { wr_id, connection, buffer, byte_len, result },
                });
            }
            Incoming::Nothing | Incoming::Skipped => {}
        }
    }

    /// Ends a connection: its incomplete messages are reported as flushed.
    ///
    /// # Panics
    ///
    /// If there is no such connection.
    pub fn disconnect(&mut self, connection: Connection) {
        self.abandon(connection);
        self.state(connection).transmit.clear();
        let reads: Vec<usize> = self
            .reads
            .iter()
            .filter(|(_, read)| read.connection == connection)
            .map(|(at, _)| at)
            .collect();
        for read in reads {
            self.end_read(read as u32, Err(Status::Flushed));
        }
    }

    /// The next packet for the other end of a connection.
    ///
    /// # Panics
    ///
    /// If there is no such connection.
    pub fn poll_transmit(&mut self, connection: Connection) -> Option<Packet> {
        self.state(connection).transmit.pop_front()
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        self.cq.pop_front()
    }

    /// The matching list.
    #[must_use]
    pub fn list(&self) -> &MatchList {
        &self.list
    }

    /// Posted SRQ buffers.
    #[must_use]
    pub fn buffers_len(&self) -> usize {
        self.buffers.len()
    }

    /// Commands that are not carried out yet.
    #[must_use]
    pub fn ops_len(&self) -> usize {
        self.ops.len()
    }
}
