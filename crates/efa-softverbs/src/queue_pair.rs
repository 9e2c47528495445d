//! Queue pairs.
//!
//! | part | file |
//! |---|---|
//! | the states RESET to ERR, `ibv_modify_qp` | [`state`] |
//! | sends, reads and writes that have not completed | [`outstanding`] |
//! | posting, steps, completions | [`data_path`] |
//! | sleep until the link has something | [`sleep`] |
//! | requests that the program writes to rings | [`rings`] |
//! | what C calls | `c/queue_pair.rs`, `c/post.rs`, `c/wr.rs` |

mod data_path;
mod outstanding;
mod rings;
mod sleep;
mod state;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use efa_device::{
    Destination, DeviceError, Qkey, Qpn, QueuePairOptions, RdmaRequest, RegionRange, RemoteMemory,
    SendRequest, Status,
};
use efa_sim::faults::Faults;
use efa_sim::{KeptNumber, SoftRegion};

use self::outstanding::Outstanding;
pub(crate) use self::rings::RingInfo;
use self::rings::Rings;
pub(crate) use self::sleep::Look;
use self::sleep::NextLook;
pub(crate) use self::state::{ModifyRequest, QpState, Settable};
use crate::abi::*;
use crate::attributes::check_queues;
use crate::boundary::{BUSY, INVALID, Outcome, UNSUPPORTED};
use crate::clock::now;
use crate::completion_queue::CompletionQueue;
use crate::counter::{Counted, Counter};
use crate::device::{Device, MAX_RECEIVE_SGE};
use crate::domain::DomainRef;
use crate::link::{Link, LinkQueuePair};
use crate::message::{report, reported};
use crate::process::{generation, lock, lock_in_time, process};
use crate::settings::DirectPath;

/// `rnr_retry` that stands for retries without end.
const RETRY_FOREVER: u8 = 7;
/// Attempts at a receiver without buffers before a datagram of an unreliable queue pair is lost. Interfaces lose it at
/// once; here the receiver's thread may not have had the processor.
const UNRELIABLE_RETRIES: u8 = 1;

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Srd,
    Ud,
}

/// Identifies a queue pair within the process. Unlike a queue pair number it is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

impl Serial {
    /// Of no queue pair.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The queue pair that a program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpInitAttr {
    pub(crate) transport: Transport,
    pub(crate) cap: ibv_qp_cap,
    /// Whether every send completes, without a flag of its own.
    pub(crate) signals_all: bool,
    /// `IBV_QP_EX_WITH_…`: the operations that the program will build by calls; `None` if it only posts lists.
    pub(crate) operations: Option<u64>,
    /// Whether a peer's write with immediate data completes without using a receive buffer.
    pub(crate) unsolicited_writes: bool,
    /// Whether the data of RDMA writes may be inline.
    pub(crate) inline_writes: bool,
    /// Whether the program gives hints to the interface.
    pub(crate) processing_hints: bool,
}

/// A queue pair.
pub(crate) struct QueuePair {
    number: Qpn,
    serial: Serial,
    transport: Transport,
    generation: u32,
    device: Arc<Device>,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
    cap: ibv_qp_cap,
    signals_all: bool,
    inline_writes: bool,
    template: LinkTemplate,
    /// By [operation](Counted).
    counters: [OnceLock<Arc<Counter>>; Counted::ALL.len()],
    /// Whether the program polled since the progress thread checked.
    polled: AtomicBool,
    /// Whether the program posts by rings, so that completions are in rings too.
    uses_rings: AtomicBool,
    /// Whether its doorbells trap.
    traps: AtomicBool,
    /// When the progress thread must look at it.
    next_look: NextLook,
    locked: Mutex<Locked>,
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A send on its way to the link.
type Packet = SendRequest<Box<[u8]>>;

/// A request that others may overtake.
#[derive(Debug)]
enum Delayed {
    Send(Packet),
    Rdma(RdmaOpcode, RdmaRequest<SoftRegion>),
}

/// A receive buffer that a program posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// The buffers, by their keys: the program may deregister them. Those that it didn't give have no bytes.
    pub(crate) entries: [ibv_sge; MAX_RECEIVE_SGE],
}

impl Receive {
    /// Fails with `EINVAL` for more buffers than the device has for a receive.
    #[inline]
    pub(crate) fn new(wr_id: u64, list: &[ibv_sge]) -> Outcome<Self> {
        let mut entries = [ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_RECEIVE_SGE];
        entries.get_mut(..list.len()).ok_or(INVALID)?.copy_from_slice(list);
        Ok(Self { wr_id, entries })
    }

    /// The bytes of all buffers.
    #[inline]
    fn length(&self) -> usize {
        self.entries.iter().map(|entry| entry.length as usize).sum()
    }
}

/// An RDMA read or write that a program posts.
#[derive(Debug)]
pub(crate) struct RdmaWork {
    pub(crate) wr_id: u64,
    pub(crate) opcode: RdmaOpcode,
    pub(crate) destination: Destination,
    pub(crate) remote: RemoteMemory,
    /// Memory of this side, or the status with which the operation completes instead.
    pub(crate) local: Result<RegionRange<SoftRegion>, Status>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaOpcode {
    Read,
    Write { immediate: Option<u32> },
}

impl RdmaOpcode {
    /// The opcode of the completion.
    fn completion_opcode(self) -> c_int {
        match self {
            Self::Read => IBV_WC_RDMA_READ,
            Self::Write { .. } => IBV_WC_RDMA_WRITE,
        }
    }
}

/// The part of a queue pair that its lock guards.
#[derive(Debug)]
pub(crate) struct Locked {
    state: QpState,
    /// `None` in the state ERR.
    link: Option<LinkQueuePair>,
    /// The destination for which the link was prepared last.
    prepared: Option<Destination>,
    /// In the state ERR: reserves the number, by which programs find a queue pair until they destroy
    /// it.
    kept_number: Option<KeptNumber>,
    /// Posted buffers, in the order in which the link fills them.
    receives: VecDeque<Receive>,
    /// How many of `receives`, from the front, have a packet buffer posted to the link.
    preposted: usize,
    sends: Outstanding,
    /// Entries of the send queue known to be free. More may be, as polled completions are counted
    /// only when this runs out.
    send_credits: usize,
    /// Entries of the receive queue known to be free, in the same way.
    receive_credits: usize,
    /// Packet buffers to use again.
    free_packets: Vec<Box<[u8]>>,
    free_receive_packets: Vec<Box<[u8]>>,
    faults: Faults<Delayed>,
    rnr_retry: u8,
    sq_psn: u32,
    /// If the program has asked for them.
    rings: Option<Box<Rings>>,
}

/// How the link's queue pair is made, when a queue pair is created and when it is reset.
#[derive(Debug)]
struct LinkTemplate {
    send_depth: usize,
    receive_depth: usize,
    waitable: bool,
    takes_buffers_for_writes: bool,
    transport: Transport,
    /// That of the domain.
    link: Link,
}

impl LinkTemplate {
    /// Makes one, with the number of one that was retired if it is `again`.
    fn create(&self, again: Option<&KeptNumber>) -> Result<LinkQueuePair, DeviceError> {
        let options = QueuePairOptions::default().with(|options| {
            // Unpredictable, so no datagram is accepted before the program sets a key.
            options.qkey = Qkey(fastrand::u32(..));
            options.send_depth = self.send_depth;
            options.receive_depth = self.receive_depth;
            options.rnr_retry = match self.transport {
                Transport::Srd => RETRY_FOREVER,
                Transport::Ud => UNRELIABLE_RETRIES,
            };
            options.waitable = self.waitable;
            options.now = now();
        });
        let mut link = match again {
            None => self.link.create_queue_pair(options)?,
            Some(number) => self.link.create_queue_pair_again(number, options)?,
        };
        if self.takes_buffers_for_writes {
            link.take_buffers_for_writes();
        }
        if self.transport == Transport::Ud {
            link.limit_first_wait();
        }
        Ok(link)
    }
}

/// The operations that a queue pair of this device can be created for.
fn offered_operations(device: &Device, transport: Transport) -> u64 {
    let mut operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if transport == Transport::Srd && device.rdma().read {
        operations |= IBV_QP_EX_WITH_RDMA_READ;
    }
    if transport == Transport::Srd && device.rdma().write {
        operations |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }
    operations
}

impl QueuePair {
    /// Creates a queue pair in the state RESET.
    pub(crate) fn create(
        domain: &DomainRef,
        attributes: &QpInitAttr,
        send_queue: Arc<CompletionQueue>,
        receive_queue: Arc<CompletionQueue>,
    ) -> Outcome<Arc<Self>> {
        let &QpInitAttr { transport, cap, signals_all, inline_writes, .. } = attributes;
        let device = Arc::clone(domain.device());
        check_queues(&device, &cap, inline_writes)?;
        if attributes.operations.unwrap_or(0) & !offered_operations(&device, transport) != 0 {
            return Err(UNSUPPORTED);
        }
        let waits =
            [&send_queue, &receive_queue].into_iter().any(|queue| queue.notifier().is_some());
        let is_served = domain.link().is_served();
        if is_served {
            process().progress.provide_sleepers()?;
        }
        let waitable = waits || is_served || device.settings.direct == DirectPath::Trap;
        let template = LinkTemplate {
            link: domain.link().clone(),
            send_depth: cap.max_send_wr as usize,
            receive_depth: cap.max_recv_wr as usize,
            waitable,
            takes_buffers_for_writes: !attributes.unsolicited_writes,
            transport,
        };
        let link = template.create(None).map_err(reported)?;
        let number = link.address().qpn;
        let locked = Locked {
            state: QpState::Reset,
            link: Some(link),
            prepared: None,
            kept_number: None,
            receives: VecDeque::new(),
            preposted: 0,
            sends: Outstanding::default(),
            send_credits: 0,
            receive_credits: 0,
            free_packets: Vec::new(),
            free_receive_packets: Vec::new(),
            faults: Faults::new(device.settings.faults(), &device.draws),
            rnr_retry: RETRY_FOREVER,
            sq_psn: 0,
            rings: None,
        };
        let queue_pair = Arc::new(Self {
            number,
            serial: Serial::next(),
            transport,
            generation: generation(),
            device,
            send_queue,
            receive_queue,
            cap,
            signals_all,
            inline_writes,
            template,
            counters: Default::default(),
            polled: AtomicBool::new(false),
            uses_rings: AtomicBool::new(false),
            traps: AtomicBool::new(false),
            next_look: NextLook::default(),
            locked: Mutex::new(locked),
        });
        queue_pair.send_queue.add(&queue_pair);
        queue_pair.receive_queue.add(&queue_pair);
        Ok(queue_pair)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number.0.into()
    }

    pub(crate) fn serial(&self) -> Serial {
        self.serial
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

    /// Whether the data of RDMA writes may be inline.
    pub(crate) fn inline_writes(&self) -> bool {
        self.inline_writes
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether what arrives is taken by this process alone.
    pub(crate) fn is_served(&self) -> bool {
        self.template.link.is_served()
    }

    /// Whether this process created it, not its parent before a fork.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// Runs `f` with the lock held; fails with `EINVAL` for a queue pair of the parent process.
    #[inline]
    pub(crate) fn with_lock<T>(&self, f: impl FnOnce(&mut Locked) -> Outcome<T>) -> Outcome<T> {
        if !self.is_ours() {
            return Err(INVALID);
        }
        let mut locked = lock(&self.locked);
        let result = f(&mut locked);
        if self.is_asleep() {
            self.after_call(&mut locked);
        }
        result
    }

    /// Returns when the lock is free: a step that was running has ended. Fails with `EBUSY` if it doesn't
    /// end.
    pub(crate) fn wait_for_step(&self) -> Outcome<()> {
        lock_in_time(&self.locked).map(drop)
    }

    /// The state, Q_Key and `rnr_retry`.
    pub(crate) fn query(&self) -> Outcome<Settable> {
        self.with_lock(|locked| {
            let qkey = locked.link.as_ref().map_or(Qkey(0), |link| link.address().qkey);
            let (state, rnr_retry, sq_psn) = (locked.state, locked.rnr_retry, locked.sq_psn);
            Ok(Settable { state, qkey, rnr_retry, sq_psn })
        })
    }

    /// Applies `ibv_modify_qp`; returns the states before and after.
    pub(crate) fn modify(&self, request: &ModifyRequest) -> Outcome<(QpState, QpState)> {
        self.with_lock(|locked| {
            let before = locked.state;
            let after = request.check(before)?;
            if after == QpState::Reset && before != QpState::Reset {
                self.reset(locked)?;
            }
            locked.sq_psn = request.sq_psn.unwrap_or(locked.sq_psn);
            if let Some(link) = &mut locked.link {
                if let Some(qkey) = request.qkey {
                    link.set_qkey(qkey);
                }
                if let Some(rnr_retry) = request.rnr_retry {
                    link.set_rnr_retry(rnr_retry);
                    locked.rnr_retry = rnr_retry;
                }
            }
            match after {
                QpState::Error => self.fail(locked),
                _ => locked.state = after,
            }
            self.serve(locked);
            Ok((before, after))
        })
    }

    /// Has a counter count these operations. Fails with `EOPNOTSUPP` for one that isn't counted, with `EBUSY` for one that
    /// another counter counts, and with `EINVAL` in the states from RTR on.
    pub(crate) fn attach(&self, counter: &Arc<Counter>, operations: u32) -> Outcome<()> {
        self.with_lock(|locked| {
            if locked.state > QpState::Init {
                return Err(INVALID);
            }
            if operations & !Counted::flags() != 0 {
                return Err(UNSUPPORTED);
            }
            let places = Counted::ALL.iter().zip(&self.counters);
            let places = places.filter(|(operation, _)| operations & operation.flag() != 0);
            if places.clone().any(|(_, place)| place.get().is_some()) {
                return Err(BUSY);
            }
            for (_, place) in places {
                if place.set(Arc::clone(counter)).is_ok() {
                    counter.attach();
                }
            }
            Ok(())
        })
    }

    /// Counts a completion.
    #[inline]
    fn count(&self, operation: Counted, is_success: bool) {
        if let Some(counter) = self.counters[operation as usize].get() {
            counter.count(is_success);
        }
    }

    /// Moves to the state RESET. What is outstanding ends without completions, and those that the program hasn't polled
    /// are gone. In the state ERR if the link can't go on.
    #[cold]
    fn reset(&self, locked: &mut Locked) -> Outcome<()> {
        self.retire(locked);
        self.abandon(locked);
        for queue in [&self.send_queue, &self.receive_queue] {
            queue.forget(self.serial);
        }
        let number = locked.kept_number.as_ref().ok_or(INVALID)?;
        locked.link = Some(self.template.create(Some(number)).map_err(reported)?);
        locked.kept_number = None;
        locked.prepared = None;
        (locked.send_credits, locked.receive_credits) = (0, 0);
        locked.faults = Faults::new(self.device.settings.faults(), &self.device.draws);
        locked.rnr_retry = RETRY_FOREVER;
        if let Some(rings) = &mut locked.rings {
            rings.reset();
            self.uses_rings.store(true, Ordering::Relaxed);
        }
        locked.state = QpState::Reset;
        self.stay_awake();
        Ok(())
    }

    /// Moves to the state ERR, and completes everything outstanding as flushed.
    fn fail(&self, locked: &mut Locked) {
        self.retire(locked);
        self.flush(locked);
    }

    /// Moves to the state ERR: closes the link's queue pair and keeps the number.
    fn retire(&self, locked: &mut Locked) {
        locked.state = QpState::Error;
        match locked.link.take().map(LinkQueuePair::retire) {
            Some(Ok(number)) => locked.kept_number = Some(number),
            Some(Err(error)) => report(&error),
            None => {}
        }
    }

    /// Ends a queue pair that the program destroys. What is outstanding ends without completions. Fails with
    /// `EBUSY` if another thread doesn't release a lock.
    pub(crate) fn destroy(self: &Arc<Self>) -> Outcome<()> {
        if !self.is_ours() {
            return Err(INVALID);
        }
        let mut locked = lock_in_time(&self.locked)?;
        // A real device has transmitted them by now, and programs rely on that: they destroy a
        // queue pair without a poll for their last sends.
        self.post_rung(&mut locked);
        self.submit_delayed(&mut locked);
        self.retire(&mut locked);
        self.abandon(&mut locked);
        self.stay_awake();
        self.close_rings(&locked)?;
        drop(locked);
        self.counters.iter().filter_map(OnceLock::get).for_each(|counter| counter.detach());
        self.send_queue.remove(self)?;
        self.receive_queue.remove(self)?;
        // From here on nothing of it can be taken for the next queue pair with this number. The
        // progress thread may keep `self` a little longer.
        drop(lock_in_time(&self.locked)?.kept_number.take());
        Ok(())
    }
}
