//! Queue pairs: their life, and the steps in which their work gets done.
//!
//! ```text
//!  RESET ──► INIT ──► RTR ──► RTS ──► ERR       (ERR from INIT on; nothing leads back)
//!            queue    │       can send
//!            key      can receive
//! ```
//!
//! A send is copied at once, so the program's memory is read only while it posts; a receive is
//! copied to the program's buffer when its completion is made. Programs post thousands of buffers
//! at the start. The link gets packets for the [first few](LENT) alone, always the same ones, so
//! that they stay in the cache and cost nothing to begin with.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::{offset_of, zeroed};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use efa_device::{
    Completion as LinkCompletion, Destination, DeviceError, Qkey, Qpn, QueuePairOptions,
    RdmaRequest, RegionRange, RemoteMemory, SendRequest, Source, Status, Time, WorkId,
};
use efa_sim::faults::Faults;
use efa_sim::region::Use;
use efa_sim::{KeptNumber, SoftRegion};

use crate::abi::*;
use crate::boundary::{FULL, INVALID, Outcome, UNSUPPORTED, code, pointer};
use crate::completion_queue::{Completion, Queue, queue};
use crate::context::{Context, not_null, take};
use crate::device::{Device, MAX_INLINE, MAX_RECEIVE_SGE, MAX_SEND_SGE, complain};
use crate::domain::Membership;
use crate::link::LinkQueuePair;
use crate::process::{Kind as Handle, generation, lock, process};
use crate::work::{self, Build};

/// Most completions that one step takes from the link.
const STEP: usize = 16;
/// Steps at a time for a program that doesn't poll. Some things take several polls, which come in quick
/// succession from one that does: what is held back to be overtaken, and sockets, which aren't looked
/// at in each.
const HELP: usize = 32;
/// Most receives that the link has a packet for. It takes some at a time from a ring, and gets new
/// ones as each completion is taken; with so many it never finds none where the program has more.
const LENT: usize = 64;
/// Bytes that a UD receive leaves free in front, for a header that is not there.
const UD_HEADROOM: usize = 40;
/// `rnr_retry` that means for ever.
const FOR_EVER: u8 = 7;
/// Bits of an RNR count and of a queue pair number.
const MAX_RNR_RETRY: u8 = 7;

/// Which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Srd,
    Ud,
}

/// How far a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    Error,
}

impl Phase {
    fn number(self) -> c_int {
        match self {
            Self::Reset => IBV_QPS_RESET,
            Self::Init => IBV_QPS_INIT,
            Self::ReadyToReceive => IBV_QPS_RTR,
            Self::ReadyToSend => IBV_QPS_RTS,
            Self::Error => IBV_QPS_ERR,
        }
    }

    fn from_number(number: c_int) -> Outcome<Self> {
        Ok(match number {
            IBV_QPS_RESET => Self::Reset,
            IBV_QPS_INIT => Self::Init,
            IBV_QPS_RTR => Self::ReadyToReceive,
            IBV_QPS_RTS => Self::ReadyToSend,
            IBV_QPS_ERR => Self::Error,
            _ => return Err(INVALID),
        })
    }
}

/// Which queue pair of this process, counted from 1. A number is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

impl Serial {
    pub(crate) const NONE: Self = Self(0);

    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A queue pair.
pub(crate) struct QueuePair {
    number: Qpn,
    serial: Serial,
    transport: Transport,
    generation: u32,
    device: Arc<Device>,
    sends_to: Arc<Queue>,
    receives_to: Arc<Queue>,
    cap: ibv_qp_cap,
    /// Whether all sends complete, so that none has to say so.
    signals_all: bool,
    /// Since the helping thread looked.
    polled: AtomicBool,
    state: Mutex<State>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A datagram on its way.
type Packet = SendRequest<Box<[u8]>>;

/// A buffer that a program posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Where it is, by its key: the program may deregister it.
    pub(crate) entry: ibv_sge,
}

impl Receive {
    fn length(&self) -> usize {
        self.entry.length as usize
    }
}

/// An RDMA operation.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) wr_id: u64,
    pub(crate) direction: Direction,
    pub(crate) to: Destination,
    pub(crate) memory: RemoteMemory,
    /// Our side, or what is wrong with it.
    pub(crate) local: Result<RegionRange<SoftRegion>, Status>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    /// With immediate data, if any.
    Write(Option<u32>),
}

/// What changes. Guarded by the queue pair's lock.
#[derive(Debug)]
pub(crate) struct State {
    phase: Phase,
    /// `None` after an error.
    link: Option<LinkQueuePair>,
    /// After an error, as programs find queue pairs by their numbers until they destroy them.
    number: Option<KeptNumber>,
    /// The program's buffers, in the order of the link's.
    receives: VecDeque<Receive>,
    /// How many of them, from the front, the link has a packet for.
    lent: usize,
    sends: Outstanding,
    /// Places in the queues that are surely free. There may be more: those of which the program has
    /// seen the completion since they were counted.
    send_room: usize,
    receive_room: usize,
    spare: Vec<Box<[u8]>>,
    spare_receives: Vec<Box<[u8]>>,
    faults: Faults<Packet>,
    rnr_retry: u8,
}

/// Sends and RDMA operations that were posted and did not complete.
#[derive(Debug, Default)]
struct Outstanding {
    works: Vec<Option<Outgoing>>,
    free: Vec<usize>,
}

/// How the program knows what it posted.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    wr_id: u64,
    opcode: c_int,
}

impl Outstanding {
    #[inline]
    fn add(&mut self, wr_id: u64, opcode: c_int) -> WorkId {
        let work = Some(Outgoing { wr_id, opcode });
        let place = match self.free.pop() {
            Some(place) => {
                self.works[place] = work;
                place
            }
            None => {
                self.works.push(work);
                self.works.len() - 1
            }
        };
        WorkId(place as u64)
    }

    #[inline]
    fn remove(&mut self, id: WorkId) -> Option<Outgoing> {
        let place = usize::try_from(id.0).ok()?;
        let work = self.works.get_mut(place)?.take()?;
        self.free.push(place);
        Some(work)
    }

    fn len(&self) -> usize {
        self.works.len() - self.free.len()
    }

    fn drain(&mut self) -> impl Iterator<Item = Outgoing> {
        self.free.clear();
        std::mem::take(&mut self.works).into_iter().flatten()
    }
}

/// The monotonic clock, the same in all processes, so that captures can be merged.
fn now() -> Time {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // By the C library, which asks the kernel under valgrind, where the kernel's page for it isn't.
    // SAFETY: there is room for a time, and the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Time::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

impl QueuePair {
    pub(crate) fn number(&self) -> u32 {
        self.number.0.into()
    }

    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }

    /// Whether it is this process's, and not a parent's.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn cap(&self) -> &ibv_qp_cap {
        &self.cap
    }

    #[inline]
    pub(crate) fn signals_all(&self) -> bool {
        self.signals_all
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Runs `f` with the state, unless it is a parent process's.
    #[inline]
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
        if !self.is_ours() {
            return Err(INVALID);
        }
        f(&mut lock(&self.state))
    }

    /// A step, because a completion queue was polled.
    #[inline]
    pub(crate) fn poll(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
        self.step(&mut lock(&self.state));
    }

    /// Some steps, if nobody polled since the last call; true if something came of them.
    pub(crate) fn help(&self) -> bool {
        if self.polled.swap(false, Ordering::Relaxed) {
            return false;
        }
        // Whoever has the lock works at this very moment.
        let Ok(mut state) = self.state.try_lock() else { return false };
        let mut moved = false;
        for _ in 0..HELP {
            moved |= self.step(&mut state);
        }
        if moved {
            self.device().statistics.helped();
        }
        moved
    }

    /// Returns when no step is under way that began before.
    pub(crate) fn wait_for_step(&self) {
        drop(lock(&self.state));
    }

    /// Moves the work on; true if anything completed.
    #[inline]
    fn step(&self, state: &mut State) -> bool {
        if state.phase < Phase::ReadyToReceive {
            return false;
        }
        state.faults.poll();
        while let Some(packet) = state.faults.due() {
            self.launch(state, packet);
        }
        let now = now();
        let mut moved = false;
        for _ in 0..STEP {
            let Some(link) = &mut state.link else { break };
            let Some(completion) = link.poll(now) else { break };
            moved = true;
            match completion {
                LinkCompletion::Send { id, packet, result } => {
                    state.spare.push(packet);
                    self.end_send(state, id, result);
                }
                LinkCompletion::Receive { packet, length, source, immediate } => {
                    self.end_receive(state, packet, length, (source, immediate));
                }
                LinkCompletion::Rdma { id, result } => self.end_send(state, id, result),
                LinkCompletion::Written { immediate, length, source, packet } => {
                    self.end_written(state, packet, length, (source, immediate));
                }
            }
        }
        moved
    }

    fn complete(&self, wr_id: u64, opcode: c_int, result: Result<(), Status>) {
        self.device().statistics.ended(result);
        self.sends_to.push(Completion {
            wr_id,
            result,
            opcode,
            length: 0,
            qpn: self.number(),
            of: self.serial,
            source: None,
            immediate: None,
            unsolicited: false,
        });
    }

    #[inline]
    fn end_send(&self, state: &mut State, id: WorkId, result: Result<(), Status>) {
        if let Some(Outgoing { wr_id, opcode }) = state.sends.remove(id) {
            self.complete(wr_id, opcode, result);
        }
    }

    #[inline]
    fn end_receive(
        &self,
        state: &mut State,
        packet: Box<[u8]>,
        length: usize,
        (source, immediate): (Source, Option<u32>),
    ) {
        let Some(receive) = state.receives.pop_front() else { return };
        let headroom = self.headroom();
        let filled = self.fill(&receive, &packet[..length]);
        state.spare_receives.push(packet);
        state.lent -= 1;
        self.lend(state);
        if !filled {
            return self.end_unfilled(receive.wr_id, Status::BadLocalKey);
        }
        self.device().statistics.received(length);
        self.receives_to.push(Completion {
            wr_id: receive.wr_id,
            result: Ok(()),
            opcode: IBV_WC_RECV,
            length: u32::try_from(length + headroom).unwrap_or(u32::MAX),
            qpn: self.number(),
            of: self.serial,
            source: Some(source),
            immediate,
            unsolicited: false,
        });
    }

    /// Puts a datagram into a buffer of the program; `false` if that was deregistered.
    #[inline]
    fn fill(&self, receive: &Receive, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let keys = self.device().link.keys();
        let Some(into) = work::find(keys, &receive.entry, Use::LocalWrite) else { return false };
        // SAFETY: the program registered this memory for local writing, gave it to the device until
        // this completion, and has not deregistered it, which waits for the lock that is held here.
        // The link took no datagram longer than the buffer without its headroom.
        unsafe {
            let into = std::ptr::with_exposed_provenance_mut::<u8>(into as usize);
            let into = into.add(self.headroom());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len());
        }
        true
    }

    /// Tells of a write into memory of the program; it takes a receive, whose buffer stays as it is.
    #[cold]
    fn end_written(
        &self,
        state: &mut State,
        packet: Option<Box<[u8]>>,
        length: u64,
        (source, immediate): (Source, u32),
    ) {
        let unsolicited = packet.is_none();
        let mut wr_id = 0;
        if let Some(packet) = packet {
            let Some(receive) = state.receives.pop_front() else { return };
            wr_id = receive.wr_id;
            state.spare_receives.push(packet);
            state.lent -= 1;
            self.lend(state);
        }
        self.device().statistics.received(0);
        self.receives_to.push(Completion {
            wr_id,
            result: Ok(()),
            opcode: IBV_WC_RECV_RDMA_WITH_IMM,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            qpn: self.number(),
            of: self.serial,
            source: Some(source),
            immediate: Some(immediate),
            unsolicited,
        });
    }

    fn headroom(&self) -> usize {
        match self.transport {
            Transport::Srd => 0,
            Transport::Ud => UD_HEADROOM,
        }
    }

    // ---- posting -----------------------------------------------------------------------------

    /// Takes the places of `count` more sends.
    pub(crate) fn take_room(&self, state: &mut State, count: usize) -> Outcome<()> {
        if state.phase != Phase::ReadyToSend {
            return Err(INVALID);
        }
        if state.send_room < count {
            let taken = state.sends.len() + self.sends_to.unseen_sends(self.serial);
            state.send_room = (self.cap.max_send_wr as usize).saturating_sub(taken);
        }
        state.send_room = state.send_room.checked_sub(count).ok_or(FULL)?;
        Ok(())
    }

    /// Posts a send of what `gather` writes to a packet buffer; it gives the length.
    #[inline]
    pub(crate) fn send(
        &self,
        state: &mut State,
        wr_id: u64,
        destination: Destination,
        immediate: Option<u32>,
        gather: impl FnOnce(&mut [u8]) -> Result<usize, Status>,
    ) {
        let mtu = self.device().settings.mtu;
        let mut packet = state.spare.pop().unwrap_or_else(|| vec![0; mtu].into());
        match gather(&mut packet) {
            Ok(length) => {
                self.device().statistics.posted(length);
                let id = state.sends.add(wr_id, IBV_WC_SEND);
                let request = SendRequest { id, packet, length, destination, immediate };
                if let Some(request) = state.faults.hold(request) {
                    self.launch(state, request);
                }
            }
            Err(status) => {
                state.spare.push(packet);
                self.complete(wr_id, IBV_WC_SEND, Err(status));
            }
        }
    }

    /// Hands a send to the link.
    #[inline]
    fn launch(&self, state: &mut State, request: Packet) {
        let id = request.id;
        let datagram = &request.packet[..request.length];
        let not_ready = state.rnr_retry < FOR_EVER && state.faults.draw_not_ready(datagram);
        let Some(link) = &mut state.link else { return };
        let posted = if not_ready { link.bounce(request) } else { link.post_send(request) };
        if let Err(refused) = posted {
            state.spare.push(refused.packet);
            self.end_send(state, id, Err(status_of(&refused.error)));
        }
    }

    /// Posts an RDMA operation.
    pub(crate) fn start_remote(&self, state: &mut State, remote: Remote) {
        let Remote { wr_id, direction, to: destination, memory: remote, local } = remote;
        let opcode = direction.opcode();
        let Some(link) = &mut state.link else {
            return self.complete(wr_id, opcode, Err(Status::Flushed));
        };
        let local = match local {
            Ok(local) => local,
            Err(status) => return self.complete(wr_id, opcode, Err(status)),
        };
        let length = local.length as u64;
        let id = state.sends.add(wr_id, opcode);
        let request = RdmaRequest { id, local, remote, destination };
        let posted = match direction {
            Direction::Read => {
                self.device().statistics.read(length);
                link.post_read(request)
            }
            Direction::Write(immediate) => {
                self.device().statistics.wrote(length);
                link.post_write(request, immediate)
            }
        };
        if let Err(error) = posted {
            self.end_send(state, id, Err(status_of(&error)));
        }
    }

    /// Posts a buffer that was checked.
    #[inline]
    pub(crate) fn receive(&self, state: &mut State, receive: Receive) -> Outcome<()> {
        if matches!(state.phase, Phase::Reset | Phase::Error) {
            return Err(INVALID);
        }
        self.room(&receive).ok_or(INVALID)?;
        if state.receive_room == 0 {
            let unseen = self.receives_to.unseen_receives(self.serial);
            let taken = state.receives.len() + unseen;
            state.receive_room = (self.cap.max_recv_wr as usize).saturating_sub(taken);
        }
        state.receive_room = state.receive_room.checked_sub(1).ok_or(FULL)?;
        state.receives.push_back(receive);
        self.lend(state);
        Ok(())
    }

    /// How long a datagram the buffer has room for.
    fn room(&self, receive: &Receive) -> Option<usize> {
        let room = receive.length().checked_sub(self.headroom())?;
        Some(room.min(self.device().settings.mtu))
    }

    /// Gives the link packets for the program's next buffers.
    #[inline]
    fn lend(&self, state: &mut State) {
        let Some(link) = &mut state.link else { return };
        while state.lent < LENT
            && let Some(room) = state.receives.get(state.lent).and_then(|next| self.room(next))
        {
            // The link refuses what is longer than the buffer, so this one has the same length.
            let spare = state.spare_receives.pop().filter(|spare| spare.len() == room);
            let packet = spare.unwrap_or_else(|| vec![0; room].into());
            if let Err(refused) = link.post_receive(packet) {
                // Its queue is as long as ours, so this doesn't happen; the next completion retries.
                state.spare_receives.push(refused.packet);
                return;
            }
            state.lent += 1;
        }
    }

    /// Gives a buffer back in which there is nothing.
    #[cold]
    fn end_unfilled(&self, wr_id: u64, why: Status) {
        self.receives_to.push(Completion {
            wr_id,
            result: Err(why),
            opcode: IBV_WC_RECV,
            length: 0,
            qpn: self.number(),
            of: self.serial,
            source: None,
            immediate: None,
            unsolicited: false,
        });
    }

    // ---- life --------------------------------------------------------------------------------

    /// Ends everything that is outstanding; nobody reaches this queue pair any more.
    fn fail(&self, state: &mut State) {
        state.phase = Phase::Error;
        match state.link.take().map(LinkQueuePair::retire) {
            Some(Ok(number)) => state.number = Some(number),
            Some(Err(error)) => complain(&error),
            None => {}
        }
        state.faults.take_all().for_each(drop);
        for Outgoing { wr_id, opcode } in state.sends.drain() {
            self.complete(wr_id, opcode, Err(Status::Flushed));
        }
        state.lent = 0;
        for receive in state.receives.drain(..) {
            self.end_unfilled(receive.wr_id, Status::Flushed);
        }
    }

    fn modify(&self, state: &mut State, change: &Change) -> Outcome<()> {
        let to = change.phase.unwrap_or(state.phase);
        change.check(state.phase, to)?;
        if let Some(link) = &mut state.link {
            if let Some(qkey) = change.qkey {
                link.set_qkey(qkey);
            }
            if let Some(rnr_retry) = change.rnr_retry {
                link.set_rnr_retry(rnr_retry);
                state.rnr_retry = rnr_retry;
            }
        }
        match to {
            Phase::Error => self.fail(state),
            _ => state.phase = to,
        }
        Ok(())
    }
}

impl Direction {
    /// Reads are told as sends: a habit of the real library that programs rely on.
    fn opcode(self) -> c_int {
        match self {
            Self::Read => IBV_WC_SEND,
            Self::Write(_) => IBV_WC_RDMA_WRITE,
        }
    }
}

/// How something ends that the link refuses.
fn status_of(error: &DeviceError) -> Status {
    match error {
        DeviceError::BadAddressHandle { .. } => Status::BadAddressHandle,
        DeviceError::TooLong { .. } => Status::BadLength,
        DeviceError::OutOfRegion { .. } => Status::BadLocalKey,
        DeviceError::Unsupported { .. } => Status::UnsupportedOperation,
        _ => Status::QueuePairInternal,
    }
}

/// What `ibv_modify_qp` asks for.
struct Change {
    mask: c_int,
    phase: Option<Phase>,
    /// That the program thinks it is in.
    current: Option<Phase>,
    qkey: Option<Qkey>,
    rnr_retry: Option<u8>,
}

impl Change {
    fn new(attributes: &ibv_qp_attr, mask: c_int, transport: Transport) -> Outcome<Self> {
        let known = IBV_QP_STATE
            | IBV_QP_CUR_STATE
            | IBV_QP_PKEY_INDEX
            | IBV_QP_PORT
            | IBV_QP_QKEY
            | IBV_QP_SQ_PSN
            | IBV_QP_RNR_RETRY;
        if mask & !known != 0 {
            return Err(UNSUPPORTED);
        }
        let has = |flag| mask & flag != 0;
        let bad_port = has(IBV_QP_PORT) && attributes.port_num != 1;
        let bad_pkey = has(IBV_QP_PKEY_INDEX) && attributes.pkey_index != 0;
        let rnr_retry = has(IBV_QP_RNR_RETRY).then_some(attributes.rnr_retry);
        let bad_rnr =
            rnr_retry.is_some_and(|count| count > MAX_RNR_RETRY || transport == Transport::Ud);
        if bad_port || bad_pkey || bad_rnr {
            return Err(INVALID);
        }
        let phase = has(IBV_QP_STATE).then(|| Phase::from_number(attributes.qp_state));
        let current = has(IBV_QP_CUR_STATE).then(|| Phase::from_number(attributes.cur_qp_state));
        Ok(Self {
            mask,
            phase: phase.transpose()?,
            current: current.transpose()?,
            qkey: has(IBV_QP_QKEY).then_some(Qkey(attributes.qkey)),
            rnr_retry,
        })
    }

    /// Whether this leads from one phase to another: by the table of the kernel's driver, but for the
    /// way back to the beginning.
    fn check(&self, from: Phase, to: Phase) -> Outcome<()> {
        use Phase::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let (needed, possible) = match (from, to) {
            (Reset, Reset) | (Init | ReadyToReceive | ReadyToSend | Error, Error) => (0, 0),
            (Reset, Init) => (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0),
            (Init, Init) => (0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
            (Init, ReadyToReceive) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
            (ReadyToReceive, ReadyToSend) => {
                (IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY | IBV_QP_RNR_RETRY)
            }
            (ReadyToSend, ReadyToSend) => (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
            (_, Reset) => return Err(UNSUPPORTED),
            _ => return Err(INVALID),
        };
        let complete = self.mask & needed == needed;
        let beyond = self.mask & !(needed | possible | IBV_QP_STATE) != 0;
        let mistaken = self.current.is_some_and(|current| current != from);
        if complete && !beyond && !mistaken { Ok(()) } else { Err(INVALID) }
    }
}

// ---- the C side ---------------------------------------------------------------------------------

/// What an `ibv_qp` is part of.
#[repr(C)]
pub(crate) struct QueuePairObject {
    /// First, so that a pointer to the one is a pointer to the other.
    pub(crate) ex: ibv_qp_ex,
    efa: efadv_qp,
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(crate) build: Build,
    /// Here, because it must end when the program destroys the queue pair, which the helping thread
    /// may keep a little longer.
    _domain: Membership,
}

/// The operations that a queue pair can be made for.
fn possible_operations(device: &Device, transport: Transport) -> u64 {
    let mut operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if transport == Transport::Srd && device.rdma().read {
        operations |= IBV_QP_EX_WITH_RDMA_READ;
    }
    if transport == Transport::Srd && device.rdma().write {
        operations |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }
    operations
}

fn check_cap(cap: &ibv_qp_cap, device: &Device) -> Outcome<()> {
    let limits = device.link.attributes();
    let fits = cap.max_send_wr as usize <= limits.max_send
        && cap.max_recv_wr as usize <= limits.max_receive
        && cap.max_send_sge as usize <= MAX_SEND_SGE
        && cap.max_recv_sge as usize <= MAX_RECEIVE_SGE
        && cap.max_inline_data as usize <= MAX_INLINE;
    if fits { Ok(()) } else { Err(INVALID) }
}

/// The queue pair that a program asks for.
struct Wish {
    domain: *mut ibv_pd,
    qp_context: *mut std::ffi::c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    has_srq: bool,
    cap: ibv_qp_cap,
    signals_all: bool,
    transport: Transport,
    operations: u64,
    /// Immediate data of writes to it takes no receive buffer.
    unsolicited: bool,
}

fn create(wish: &Wish) -> Outcome<*mut ibv_qp> {
    let &Wish { domain, cap, signals_all, transport, operations, .. } = wish;
    let membership = Membership::new(domain)?;
    let device = Arc::clone(membership.device());
    check_cap(&cap, &device)?;
    if wish.has_srq || operations & !possible_operations(&device, transport) != 0 {
        return Err(UNSUPPORTED);
    }
    let (sends_to, receives_to) = (queue(wish.send_cq)?, queue(wish.recv_cq)?);
    // The kernel knows no handles of other contexts, which may be closed earlier.
    let context = crate::domain::context_of(domain);
    process().check_made_of(wish.send_cq, context)?;
    process().check_made_of(wish.recv_cq, context)?;
    let options = QueuePairOptions {
        // Nobody can know it, so nobody gets through before the program sets its own.
        qkey: Qkey(fastrand::u32(..)),
        send_depth: cap.max_send_wr as usize,
        receive_depth: cap.max_recv_wr as usize,
        rnr_retry: FOR_EVER,
    };
    let mut link = device.link.create_queue_pair(options)?;
    if !wish.unsolicited {
        link.take_buffers_for_writes();
    }
    let number = link.address().qpn;
    let state = State {
        phase: Phase::Reset,
        link: Some(link),
        number: None,
        receives: VecDeque::new(),
        lent: 0,
        sends: Outstanding::default(),
        send_room: 0,
        receive_room: 0,
        spare: Vec::new(),
        spare_receives: Vec::new(),
        faults: Faults::new(device.settings.faults(), number),
        rnr_retry: FOR_EVER,
    };
    let queue_pair = Arc::new(QueuePair {
        number,
        serial: Serial::next(),
        transport,
        generation: generation(),
        device,
        sends_to,
        receives_to,
        cap,
        signals_all,
        polled: AtomicBool::new(false),
        state: Mutex::new(state),
    });
    queue_pair.sends_to.join(&queue_pair);
    queue_pair.receives_to.join(&queue_pair);
    // SAFETY: a structure of C for which all zero is valid: pointers and options are null.
    let mut ex: ibv_qp_ex = unsafe { zeroed() };
    ex.qp_base = ibv_qp {
        context,
        qp_context: wish.qp_context,
        pd: domain,
        send_cq: wish.send_cq,
        recv_cq: wish.recv_cq,
        srq: std::ptr::null_mut(),
        handle: number.0.into(),
        qp_num: number.0.into(),
        state: IBV_QPS_RESET,
        qp_type: match transport {
            Transport::Srd => IBV_QPT_DRIVER,
            Transport::Ud => IBV_QPT_UD,
        },
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    work::offer(&mut ex);
    let build = Build::default();
    let efa = efadv_qp { comp_mask: 0, wr_set_processing_hints: Some(ignore_hints) };
    let object = QueuePairObject { ex, efa, queue_pair, build, _domain: membership };
    let qp = Box::into_raw(Box::new(object)).cast();
    process().enter(qp, Handle::QueuePair, context);
    Ok(qp)
}

/// # Safety
/// `attributes` must be null or valid.
unsafe fn create_basic(
    domain: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
    transport: Transport,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: not null, so valid by the caller's promise.
    let attributes = unsafe { &*not_null(attributes)? };
    let &ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } =
        attributes;
    let expected = match transport {
        Transport::Srd => IBV_QPT_DRIVER,
        Transport::Ud => IBV_QPT_UD,
    };
    if qp_type != expected {
        return Err(UNSUPPORTED);
    }
    create(&Wish {
        domain,
        qp_context,
        send_cq,
        recv_cq,
        has_srq: !srq.is_null(),
        cap,
        signals_all: sq_sig_all != 0,
        transport,
        operations: IBV_QP_EX_WITH_SEND,
        unsolicited: false,
    })
}

/// # Safety
/// `attributes` must be null or valid, and its `comp_mask` tell which members are set.
unsafe fn create_extended(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: Option<&efadv_qp_init_attr>,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: not null, so valid by the caller's promise.
    let attributes = unsafe { &*not_null(attributes)? };
    let transport = match (attributes.qp_type, efa.map(|efa| efa.driver_qp_type)) {
        (IBV_QPT_DRIVER, Some(EFADV_QP_DRIVER_TYPE_SRD)) => Transport::Srd,
        (IBV_QPT_UD, _) => Transport::Ud,
        _ => return Err(UNSUPPORTED),
    };
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if attributes.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(INVALID);
    }
    if attributes.comp_mask & !known != 0 {
        return Err(UNSUPPORTED);
    }
    let operations = match attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS {
        0 => IBV_QP_EX_WITH_SEND,
        _ => attributes.send_ops_flags,
    };
    let &ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, pd: domain, .. } =
        attributes;
    process().check_made_of(domain, context)?;
    create(&Wish {
        domain,
        qp_context,
        send_cq,
        recv_cq,
        has_srq: !srq.is_null(),
        cap,
        signals_all: attributes.sq_sig_all != 0,
        transport,
        operations,
        unsolicited: efa.is_some_and(|efa| efa.flags & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV != 0),
    })
}

/// See `ibv_create_qp(3)`; UD only.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    domain: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    pointer(|| unsafe { create_basic(domain, attributes, Transport::Ud) })
}

/// See `efadv_create_driver_qp(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_driver_qp(
    domain: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
    driver_type: u32,
) -> *mut ibv_qp {
    pointer(|| {
        if driver_type != EFADV_QP_DRIVER_TYPE_SRD {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the caller's promise.
        unsafe { create_basic(domain, attributes, Transport::Srd) }
    })
}

/// `ibv_create_qp_ex`, which calls it through the context; UD only.
///
/// # Safety
/// `attributes` must be null or valid.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    pointer(|| unsafe { create_extended(context, attributes, None) })
}

/// See `efadv_create_qp_ex(3)`.
///
/// # Safety
/// `attributes` must be null or valid, `efa` null or valid for `length` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    length: u32,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: valid for `length` bytes by the caller's promise.
        let asked = unsafe {
            let efa: *mut efadv_qp_init_attr_newer = efa.cast();
            take(efa, length, offset_of!(efadv_qp_init_attr, flags))?
        };
        let efadv_qp_init_attr_newer { first: asked, wr_flags } = asked;
        // SAFETY: null or valid by the caller's promise.
        let qp_type = unsafe { attributes.as_ref() }.map(|attributes| attributes.qp_type);
        if asked.comp_mask != 0 || asked.reserved != 0 || qp_type != Some(IBV_QPT_DRIVER) {
            return Err(INVALID);
        }
        let unsolicited = Context::device(context)?.rdma().unsolicited_write_receive;
        let known = if unsolicited { EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV } else { 0 };
        if asked.flags & !known != 0 || wr_flags & !EFADV_WR_EX_WITH_PROCESSING_HINTS != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the caller's promise.
        unsafe { create_extended(context, attributes, Some(&asked)) }
    })
}

/// The object behind a handle.
fn object(qp: *mut ibv_qp) -> Outcome<*mut QueuePairObject> {
    process().check(qp, Handle::QueuePair)?;
    Ok(qp.cast())
}

/// See `ibv_qp_to_qp_ex(3)`.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| Ok(object(qp)?.cast()))
}

/// The extension of libefa: hints how to process sends can be given.
#[unsafe(no_mangle)]
extern "C" fn efadv_qp_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut efadv_qp {
    pointer(|| Ok(object(qp.cast())?.wrapping_byte_add(offset_of!(QueuePairObject, efa)).cast()))
}

extern "C" fn ignore_hints(_qp: *mut efadv_qp, _hints: u32) {
    // A hint promises nothing.
}

/// See `ibv_modify_qp(3)`.
///
/// # Safety
/// `attributes` must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        let object = object(qp)?;
        // SAFETY: the handle is one of ours; the attributes are not null, so valid by the caller's
        // promise.
        let (queue_pair, attributes) =
            unsafe { (Arc::clone(&(*object).queue_pair), &*not_null(attributes)?) };
        let change = Change::new(attributes, mask, queue_pair.transport)?;
        let (before, after) = queue_pair.with(|state| {
            let before = state.phase;
            queue_pair.modify(state, &change)?;
            Ok((before, state.phase))
        })?;
        // SAFETY: as above; C reads it without a lock, as it does with the real library.
        unsafe { (*qp).state = after.number() };
        if before < Phase::ReadyToReceive && after == Phase::ReadyToReceive {
            process().progress.care(&queue_pair);
        }
        Ok(())
    })
}

/// See `ibv_query_qp(3)`.
///
/// # Safety
/// The pointers must be null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        let object = object(qp)?;
        // SAFETY: the handle is one of ours.
        let (queue_pair, ibv) = unsafe { (&(*object).queue_pair, &(*object).ex.qp_base) };
        let (phase, qkey, rnr_retry) = queue_pair.with(|state| {
            let qkey = state.link.as_ref().map_or(0, |link| link.address().qkey.0);
            Ok((state.phase.number(), qkey, state.rnr_retry))
        })?;
        // SAFETY: a structure of numbers, for which all zero is valid.
        let mut answer: ibv_qp_attr = unsafe { zeroed() };
        answer.qp_state = phase;
        answer.cur_qp_state = phase;
        answer.qkey = qkey;
        answer.cap = queue_pair.cap;
        answer.port_num = 1;
        answer.rnr_retry = rnr_retry;
        let made = ibv_qp_init_attr {
            qp_context: ibv.qp_context,
            send_cq: ibv.send_cq,
            recv_cq: ibv.recv_cq,
            srq: std::ptr::null_mut(),
            cap: queue_pair.cap,
            qp_type: ibv.qp_type,
            sq_sig_all: queue_pair.signals_all.into(),
        };
        // SAFETY: not null, so valid by the caller's promise.
        unsafe {
            not_null(attributes)?.write(answer);
            not_null(init)?.write(made);
        }
        Ok(())
    })
}

/// Data of a message is not promised to arrive in order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _operation: c_int,
    _flags: u32,
) -> c_int {
    0
}

/// See `ibv_destroy_qp(3)`. What is outstanding ends without a completion.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    code(|| {
        process().leave(qp, Handle::QueuePair)?;
        // SAFETY: it came from a box and nobody else can take it any more.
        let object = unsafe { Box::from_raw(qp.cast::<QueuePairObject>()) };
        let queue_pair = &object.queue_pair;
        queue_pair.with(|state| {
            // The real device has them on the wire by now: programs leave without a look at how their
            // last sends end.
            let held: Vec<Packet> = state.faults.take_all().collect();
            held.into_iter().for_each(|packet| queue_pair.launch(state, packet));
            queue_pair.fail(state);
            Ok(())
        })?;
        queue_pair.sends_to.part(queue_pair);
        queue_pair.receives_to.part(queue_pair);
        // Now, whoever still has the queue pair, and not before: nothing of it is left that could be
        // taken for the next one's.
        queue_pair.with(|state| {
            drop(state.number.take());
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use efa_sim::faults::FaultOptions;

    use super::*;
    use crate::completion_queue::create_cq_ex;
    use crate::context::TestHost;
    use crate::domain::{ibv_alloc_pd, ibv_dealloc_pd};

    /// One after the other, as a process has one host.
    #[test]
    fn the_helping_thread_and_queue_pairs() {
        let host = TestHost::new();
        help_sends_what_is_held_back(&host);
        a_destroyed_queue_pair_leaves_its_domain_whoever_still_has_it(&host);
    }

    /// A domain and a queue pair in it.
    fn create(host: &TestHost) -> (*mut ibv_pd, *mut ibv_qp, Arc<QueuePair>) {
        let context = host.open();
        let domain = ibv_alloc_pd(context);
        // SAFETY: structures of C for which all zero is valid, with valid pointers put in.
        let qp = unsafe {
            let mut cq: ibv_cq_init_attr_ex = zeroed();
            cq.cqe = 16;
            let cq = create_cq_ex(context, &raw mut cq).cast();
            let mut attributes: ibv_qp_init_attr = zeroed();
            (attributes.send_cq, attributes.recv_cq) = (cq, cq);
            attributes.qp_type = IBV_QPT_UD;
            ibv_create_qp(domain, &raw mut attributes)
        };
        assert!(!qp.is_null());
        // SAFETY: the queue pair is alive.
        let queue_pair = unsafe { Arc::clone(&(*qp.cast::<QueuePairObject>()).queue_pair) };
        (domain, qp, queue_pair)
    }

    /// The helping thread may have a queue pair in its hands when the program destroys it. The
    /// program can free the domain all the same, as libfabric does at once.
    fn a_destroyed_queue_pair_leaves_its_domain_whoever_still_has_it(host: &TestHost) {
        let (domain, qp, held) = create(host);
        assert_eq!(ibv_dealloc_pd(domain), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_dealloc_pd(domain), 0);
        assert!(!held.help(), "nothing is left to be done");
        assert!(lock(&held.state).number.is_none(), "the next one may have it");
    }

    /// What is held back is so for a number of polls. Each look of the helping thread is worth all of
    /// them, or a send of a program that doesn't poll would take half a second.
    fn help_sends_what_is_held_back(host: &TestHost) {
        let (_, qp, queue_pair) = create(host);
        {
            let mut state = lock(&queue_pair.state);
            // Without the thread, which cares for those that a program has made ready.
            state.phase = Phase::ReadyToSend;
            let reorder = FaultOptions { reorder: Some(1), ..FaultOptions::NONE };
            state.faults = Faults::new(reorder, Qpn(1));
            for wr_id in 0..16 {
                queue_pair.send(&mut state, wr_id, Destination::default(), None, |_| Ok(0));
            }
        }
        queue_pair.help();
        assert_eq!(lock(&queue_pair.state).faults.take_all().count(), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
}
