//! The file of a queue pair: its number, whether it is open, and the queue pairs that send to it.
//!
//! ```text
//!    0  magic | version | peers, MTU | queue pair number | generation, process
//!  128  state: 1 open, 2 closed                          written by the owner
//!  256  doorbell: one bit for each word below that isn't 0 ┐ set by senders,
//!  384  64 words: one bit for each sender that rang        ┘ cleared by the owner
//! 1024  one entry of 64 bytes for each sender: state | from | generation, nonce of its ring
//! ```
//!
//! A sender claims a free entry, writes the nonce of its ring there and rings the doorbell. The owner
//! polls (*watches*) the rings with recent packets; only the senders of other rings ring the doorbell.
//!
//! ```text
//!         sender              owner             owner
//!  free ─────────► claimed                 ┌► attached ──► free
//!                     │ sender             │
//!                     └──────► announced ──┴► refused ──► free (by the sender)
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::{DeviceError, Qpn};
use rustix::fs::fstat;
use rustix::io::Errno;

use super::directory::{FileName, HostDirectory, is_locked};
use crate::map::Map;

const MAGIC: u64 = u64::from_le_bytes(*b"efa-qp\r\n");
const VERSION: u64 = 1;
const STATE: usize = 128;
const DOORBELL: usize = 256;
const DOORBELL_WORDS: usize = 384;
const ENTRIES: usize = 1024;
const ENTRY: usize = 64;

/// Most entries: as many as the doorbell has bits.
pub(super) const MAX_PEERS: usize = 64 * 64;

const OPEN: u64 = 1;
const CLOSED: u64 = 2;

fn length_for(peers: usize) -> usize {
    ENTRIES + ENTRY * peers
}

/// The state of a sender's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Free,
    Claimed,
    Announced,
    Attached,
    Refused,
}

/// The owner of an entry. Queue pair numbers are reused; the generation is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub(super) qpn: Qpn,
    pub(super) generation: u32,
}

impl EntryState {
    fn encode(self, sender: Sender) -> u64 {
        let state = match self {
            Self::Free => return 0,
            Self::Claimed => 1,
            Self::Announced => 2,
            Self::Attached => 3,
            Self::Refused => 4,
        };
        state | u64::from(sender.qpn.0) << 16 | u64::from(sender.generation) << 32
    }

    fn decode(word: u64) -> (Self, Sender) {
        let state = match word & 0xffff {
            1 => Self::Claimed,
            2 => Self::Announced,
            3 => Self::Attached,
            4 => Self::Refused,
            _ => Self::Free,
        };
        (state, Sender { qpn: Qpn((word >> 16) as u16), generation: (word >> 32) as u32 })
    }
}

/// The mapped file, for both sides.
#[derive(Debug)]
struct Shared {
    map: Map,
    peers: usize,
}

impl Shared {
    fn header(&self) -> &[AtomicU64; 5] {
        self.map.words(0)
    }

    fn state(&self) -> &AtomicU64 {
        &self.map.words::<1>(STATE)[0]
    }

    fn doorbell(&self) -> &AtomicU64 {
        &self.map.words::<1>(DOORBELL)[0]
    }

    fn doorbell_words(&self) -> &[AtomicU64; 64] {
        self.map.words(DOORBELL_WORDS)
    }

    /// State and nonce of entry `slot`, which is less than `peers`.
    fn entry(&self, slot: usize) -> &[AtomicU64; 2] {
        self.map.words(ENTRIES + ENTRY * slot)
    }
}

/// The file of this process's queue pair. Dropping it closes the queue pair.
#[derive(Debug)]
pub(super) struct Mailbox {
    shared: Shared,
    name: Arc<Name>,
    generation: u32,
}

/// Reserves a queue pair number by the name of its file. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Name {
    directory: Arc<HostDirectory>,
    qpn: Qpn,
    /// Holds the lock.
    _file: OwnedFd,
}

impl Mailbox {
    pub(super) fn create(
        directory: &Arc<HostDirectory>,
        peers: usize,
        mtu: usize,
    ) -> Result<Self, DeviceError> {
        let peers = peers.clamp(1, MAX_PEERS);
        let generation = fastrand::u32(1..);
        let length = length_for(peers);
        let fill = |file: &OwnedFd| {
            let shared = Shared { map: Map::new(file, length)?, peers };
            let [_, version, sizes, _, owner] = shared.header();
            version.store(VERSION, Ordering::Relaxed);
            sizes.store(peers as u64 | (mtu as u64) << 32, Ordering::Relaxed);
            owner.store(
                u64::from(generation) | u64::from(std::process::id()) << 32,
                Ordering::Relaxed,
            );
            shared.state().store(OPEN, Ordering::Relaxed);
            Ok(shared)
        };
        let publish = |shared: &Shared, qpn: Qpn| {
            let [magic, _, _, number, _] = shared.header();
            number.store(u64::from(qpn.0), Ordering::Relaxed);
            magic.store(MAGIC, Ordering::Release);
        };
        let (file, shared, qpn) = directory.create_queue_pair(length, fill, publish)?;
        let name = Name { directory: Arc::clone(directory), qpn, _file: file };
        Ok(Self { shared, name: Arc::new(name), generation })
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.name.qpn
    }

    /// Reserves the number, also after this is dropped.
    pub(super) fn name(&self) -> Arc<Name> {
        Arc::clone(&self.name)
    }

    /// This queue pair as a sender.
    pub(super) fn as_sender(&self) -> Sender {
        Sender { qpn: self.qpn(), generation: self.generation }
    }

    /// Whether the doorbell was rung. An idle queue pair reads nothing else.
    #[inline]
    pub(super) fn doorbell_rang(&self) -> bool {
        self.shared.doorbell().load(Ordering::Relaxed) != 0
    }

    /// Clears the doorbell and calls `f` with each entry that rang.
    pub(super) fn take_rung(&self, mut f: impl FnMut(usize)) {
        // First the doorbell, then the words; senders set them in the opposite order. So a bit that is set
        // meanwhile is either seen now or sets the doorbell again.
        let mut words = self.shared.doorbell().swap(0, Ordering::Acquire);
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let mut bits = self.shared.doorbell_words()[word].swap(0, Ordering::Acquire);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if slot < self.shared.peers {
                    f(slot);
                }
            }
        }
    }

    pub(super) fn peers(&self) -> usize {
        self.shared.peers
    }

    /// State and sender of entry `slot`, and the nonce of its ring.
    pub(super) fn entry(&self, slot: usize) -> (EntryState, Sender, u64) {
        let [word, nonce] = self.shared.entry(slot);
        let (state, sender) = EntryState::decode(word.load(Ordering::Acquire));
        (state, sender, nonce.load(Ordering::Relaxed))
    }

    pub(super) fn set_entry(&self, slot: usize, state: EntryState, sender: Sender) {
        self.shared.entry(slot)[0].store(state.encode(sender), Ordering::Release);
    }

    /// Accepts no more senders.
    pub(super) fn close(&self) {
        self.shared.state().store(CLOSED, Ordering::Release);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.directory.remove(FileName::QueuePair(self.qpn));
    }
}

/// The file of a peer, for a sender.
#[derive(Debug)]
pub(super) struct PeerMailbox {
    shared: Shared,
    file: OwnedFd,
}

impl PeerMailbox {
    /// The mailbox of `qpn`; `None` if it doesn't exist or its process is dead.
    pub(super) fn open(directory: &HostDirectory, qpn: Qpn) -> Result<Option<Self>, DeviceError> {
        let name = FileName::QueuePair(qpn);
        let Some(file) = directory.find(name)? else { return Ok(None) };
        let error = |errno| crate::link::system(format!("mapping {name}"), errno);
        if !is_locked(&file).map_err(error)? {
            return Ok(None);
        }
        let shared = Self::map(&file, qpn).map_err(error)?;
        let Some(shared) = shared else {
            return Err(DeviceError::Inconsistent {
                object: name.to_string(),
                reason: "not a queue pair of this version".into(),
            });
        };
        Ok(Some(Self { shared, file }))
    }

    /// Maps the file; `None` if its header isn't valid.
    fn map(file: &OwnedFd, qpn: Qpn) -> Result<Option<Shared>, Errno> {
        let size = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
        if !(length_for(1)..=length_for(MAX_PEERS)).contains(&size) {
            return Ok(None);
        }
        let mut shared = Shared { map: Map::new(file, size)?, peers: 0 };
        let [magic, version, sizes, number, _] =
            shared.header().each_ref().map(|word| word.load(Ordering::Acquire));
        let peers = usize::try_from(sizes & 0xffff_ffff).unwrap_or(usize::MAX);
        let is_valid = magic == MAGIC && version == VERSION && number == u64::from(qpn.0);
        if !is_valid || peers > MAX_PEERS || length_for(peers) != size {
            return Ok(None);
        }
        shared.peers = peers;
        Ok(Some(shared))
    }

    /// Whether this is the queue pair `sender`.
    pub(super) fn is(&self, sender: Sender) -> bool {
        self.shared.header()[4].load(Ordering::Relaxed) as u32 == sender.generation
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.state().load(Ordering::Acquire) != OPEN
    }

    /// Whether its process is alive; true if the system can't report it.
    pub(super) fn is_alive(&self) -> bool {
        is_locked(&self.file).unwrap_or(true)
    }

    /// Claims a free entry for `sender`.
    pub(super) fn claim(&self, sender: Sender) -> Option<usize> {
        let claimed = EntryState::Claimed.encode(sender);
        (0..self.shared.peers).find(|&slot| {
            let word = &self.shared.entry(slot)[0];
            word.compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Announces the ring with `nonce` to the owner.
    pub(super) fn announce(&self, slot: usize, sender: Sender, nonce: u64) {
        let [word, ring] = self.shared.entry(slot);
        ring.store(nonce, Ordering::Relaxed);
        word.store(EntryState::Announced.encode(sender), Ordering::Release);
        self.ring_doorbell(slot);
    }

    /// Rings the doorbell for entry `slot`, unless that was done already.
    pub(super) fn ring_doorbell(&self, slot: usize) {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let bits = &self.shared.doorbell_words()[word];
        if bits.load(Ordering::Relaxed) & bit == 0 {
            bits.fetch_or(bit, Ordering::Release);
        }
        if self.shared.doorbell().load(Ordering::Relaxed) & (1 << word) == 0 {
            self.shared.doorbell().fetch_or(1 << word, Ordering::Release);
        }
    }

    /// Frees the entry if the owner refused the ring of `sender`. Returns whether it did.
    pub(super) fn take_refusal(&self, slot: usize, sender: Sender) -> bool {
        let refused = EntryState::Refused.encode(sender);
        let word = &self.shared.entry(slot)[0];
        word.compare_exchange(refused, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
