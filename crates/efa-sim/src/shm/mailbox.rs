//! The file of a queue pair: who it is, whether it still takes packets, and who sends to it.
//!
//! ```text
//!    0  magic | version | peers, MTU | queue pair number | generation, process
//!  128  state: 1 open, 2 closed                          written by the owner
//!  256  bell: one bit for each word below with a bit set  ┐ set by senders,
//!  384  64 words: one bit for each sender that rings      ┘ cleared by the owner
//! 1024  one entry of 64 bytes for each sender: state | from | generation, nonce of its ring
//! ```
//!
//! A sender claims a free entry, names its ring there and rings. Bells are for senders that the
//! owner doesn't watch: it watches the rings on which something came lately, so that in traffic
//! nobody rings.
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
const BELL: usize = 256;
const BELL_WORDS: usize = 384;
const ENTRIES: usize = 1024;
const ENTRY: usize = 64;

/// Most entries: as many as the bell has bits.
pub(super) const MAX_PEERS: usize = 64 * 64;

const OPEN: u64 = 1;
const CLOSED: u64 = 2;

fn length_for(peers: usize) -> usize {
    ENTRIES + ENTRY * peers
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Free,
    Claimed,
    Announced,
    Attached,
    Refused,
}

/// Who an entry belongs to: a queue pair number may be another's later, its generation not.
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

/// The mapped file, as both sides use it.
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

    fn bell(&self) -> &AtomicU64 {
        &self.map.words::<1>(BELL)[0]
    }

    fn bells(&self) -> &[AtomicU64; 64] {
        self.map.words(BELL_WORDS)
    }

    /// State and nonce of entry `slot`, which is less than `peers`.
    fn entry(&self, slot: usize) -> &[AtomicU64; 2] {
        self.map.words(ENTRIES + ENTRY * slot)
    }
}

/// Our own queue pair's file. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Mailbox {
    shared: Shared,
    name: Arc<Name>,
    generation: u32,
}

/// The name of a queue pair's file, and so its number. Dropping it removes the file.
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
            let [_, version, sizes, _, life] = shared.header();
            version.store(VERSION, Ordering::Relaxed);
            sizes.store(peers as u64 | (mtu as u64) << 32, Ordering::Relaxed);
            life.store(
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

    /// Keeps the number from others also when this is dropped.
    pub(super) fn name(&self) -> Arc<Name> {
        Arc::clone(&self.name)
    }

    /// Us, as a sender to others.
    pub(super) fn as_sender(&self) -> Sender {
        Sender { qpn: self.qpn(), generation: self.generation }
    }

    /// Whether anybody rang. This is all that an idle queue pair looks at.
    #[inline]
    pub(super) fn rings(&self) -> bool {
        self.shared.bell().load(Ordering::Relaxed) != 0
    }

    /// Stops the bell; calls `f` with each entry that rang.
    pub(super) fn answer(&self, mut f: impl FnMut(usize)) {
        // Word by word after the bell, as senders set them the other way round: a bit that comes
        // meanwhile is either seen now or rings again.
        let mut words = self.shared.bell().swap(0, Ordering::Acquire);
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let mut bits = self.shared.bells()[word].swap(0, Ordering::Acquire);
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

    /// What entry `slot` says, and the nonce of its ring.
    pub(super) fn entry(&self, slot: usize) -> (EntryState, Sender, u64) {
        let [word, nonce] = self.shared.entry(slot);
        let (state, sender) = EntryState::decode(word.load(Ordering::Acquire));
        (state, sender, nonce.load(Ordering::Relaxed))
    }

    pub(super) fn set_entry(&self, slot: usize, state: EntryState, sender: Sender) {
        self.shared.entry(slot)[0].store(state.encode(sender), Ordering::Release);
    }

    /// No sender comes any more.
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

/// Another queue pair's file, as a sender sees it.
#[derive(Debug)]
pub(super) struct PeerMailbox {
    shared: Shared,
    file: OwnedFd,
}

impl PeerMailbox {
    /// The mailbox of `qpn`; `None` if there is none, or only that of a dead process.
    pub(super) fn open(directory: &HostDirectory, qpn: Qpn) -> Result<Option<Self>, DeviceError> {
        let name = FileName::QueuePair(qpn);
        let Some(file) = directory.find(name)? else { return Ok(None) };
        let error = |errno| super::directory::system(format!("mapping {name}"), errno);
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

    /// Maps the file if everything in it is as we would have written it.
    fn map(file: &OwnedFd, qpn: Qpn) -> Result<Option<Shared>, Errno> {
        let size = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
        if !(length_for(1)..=length_for(MAX_PEERS)).contains(&size) {
            return Ok(None);
        }
        let mut shared = Shared { map: Map::new(file, size)?, peers: 0 };
        let [magic, version, sizes, number, _] =
            shared.header().each_ref().map(|word| word.load(Ordering::Acquire));
        let peers = usize::try_from(sizes & 0xffff_ffff).unwrap_or(usize::MAX);
        let ours = magic == MAGIC && version == VERSION && number == u64::from(qpn.0);
        if !ours || peers > MAX_PEERS || length_for(peers) != size {
            return Ok(None);
        }
        shared.peers = peers;
        Ok(Some(shared))
    }

    /// Whether this is the queue pair that `sender` tells of.
    pub(super) fn is(&self, sender: Sender) -> bool {
        self.shared.header()[4].load(Ordering::Relaxed) as u32 == sender.generation
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.state().load(Ordering::Acquire) != OPEN
    }

    /// Whether its process is still there. If the system can't tell, it is.
    pub(super) fn is_alive(&self) -> bool {
        is_locked(&self.file).unwrap_or(true)
    }

    /// A free entry, now of `sender`.
    pub(super) fn claim(&self, sender: Sender) -> Option<usize> {
        let claimed = EntryState::Claimed.encode(sender);
        (0..self.shared.peers).find(|&slot| {
            let word = &self.shared.entry(slot)[0];
            word.compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Tells the owner of the ring with `nonce`.
    pub(super) fn announce(&self, slot: usize, sender: Sender, nonce: u64) {
        let [word, place] = self.shared.entry(slot);
        place.store(nonce, Ordering::Relaxed);
        word.store(EntryState::Announced.encode(sender), Ordering::Release);
        self.ring(slot);
    }

    /// Rings for entry `slot`, if it doesn't ring already.
    pub(super) fn ring(&self, slot: usize) {
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let bells = &self.shared.bells()[word];
        if bells.load(Ordering::Relaxed) & bit == 0 {
            bells.fetch_or(bit, Ordering::Release);
        }
        if self.shared.bell().load(Ordering::Relaxed) & (1 << word) == 0 {
            self.shared.bell().fetch_or(1 << word, Ordering::Release);
        }
    }

    /// Whether the owner refused the ring of `sender`; then the entry is given back.
    pub(super) fn take_refusal(&self, slot: usize, sender: Sender) -> bool {
        let refused = EntryState::Refused.encode(sender);
        let word = &self.shared.entry(slot)[0];
        word.compare_exchange(refused, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
