//! The file of a queue pair: its number, whether it is open, and the queue pairs that send to it.
//!
//! ```text
//!  first page, which others map for reading
//!    0  magic | version | peers, MTU | queue pair number | generation, process
//!   40  number in the name of the FIFO that wakes it, 0 if it can't sleep
//!  128  state: 1 open, 2 closed
//!  192  odd while it may sleep
//!  other pages, the board, which others map for writing too
//!    0  doorbell: one bit for each word below that isn't 0 ┐ set by senders,
//!  128  64 words: one bit for each sender that rang        ┘ cleared by the owner
//!  640  one entry of 64 bytes for each sender: state | from | generation, nonce of its ring
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
//!
//! Any sender can damage the board. So each side keeps what it knows of an entry in its own memory, and
//! repairs the entry when it finds another content: a sender that wasn't attached announces its ring again,
//! the owner notes that a sender is attached. Once attached, the ring itself says whether it is watched
//! and until when; the first page counts for senders that aren't attached only.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use efa_device::{DeviceError, Qpn};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::param::page_size;

use super::directory::{FileName, HostDirectory, is_locked};
use crate::fork::Descriptor;
use crate::map::{Map, View, WatchedMap};

const MAGIC: u64 = u64::from_le_bytes(*b"efa-qp\r\n");
const VERSION: u64 = 3;
/// Bytes that are used of the first page.
const HEADER: usize = 256;
const PEERS: usize = 16;
const NUMBER: usize = 24;
const OWNER: usize = 32;
const WAKE: usize = 40;
const STATE: usize = 128;
const ASLEEP: usize = 192;

// Offsets in the board.
const DOORBELL: usize = 0;
const DOORBELL_WORDS: usize = 128;
const ENTRIES: usize = 640;
const ENTRY: usize = 64;

/// Most entries: as many as the doorbell has bits.
pub(super) const MAX_PEERS: usize = 64 * 64;

const OPEN: u64 = 1;
const CLOSED: u64 = 2;

fn board_length(peers: usize) -> usize {
    ENTRIES + ENTRY * peers
}

/// Where the board begins in the file.
fn board_at() -> usize {
    page_size()
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
    /// Whether the entry has the number of a ring, which its owner maps or has mapped.
    fn names_ring(self) -> bool {
        matches!(self, Self::Announced | Self::Attached)
    }

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

/// The part of a file that senders write too.
#[derive(Debug)]
struct Board {
    /// Watches the doorbell.
    map: WatchedMap,
    peers: usize,
}

impl Board {
    fn new(file: impl AsFd, peers: usize) -> Result<Self, Errno> {
        let map = Map::part(file, board_at(), board_length(peers))?;
        Ok(Self { map: WatchedMap::new(map, DOORBELL), peers })
    }

    #[inline(always)]
    fn doorbell(&self) -> &AtomicU64 {
        self.map.word()
    }

    fn doorbell_words(&self) -> &[AtomicU64; 64] {
        self.map.words(DOORBELL_WORDS)
    }

    /// State and nonce of entry `slot`, which is less than `peers`.
    fn words(&self, slot: usize) -> &[AtomicU64; 2] {
        self.map.words(ENTRIES + ENTRY * slot)
    }

    /// State and sender of entry `slot`, and the nonce of its ring.
    fn entry(&self, slot: usize) -> (EntryState, Sender, u64) {
        let [word, nonce] = self.words(slot);
        let (state, sender) = EntryState::decode(word.load(Ordering::Acquire));
        (state, sender, nonce.load(Ordering::Relaxed))
    }
}

/// The file of this process's queue pair. Dropping it closes the queue pair.
#[derive(Debug)]
pub(super) struct Mailbox {
    header: Map,
    board: Board,
    name: Arc<Name>,
    generation: u32,
}

/// Reserves a queue pair number by the name of its file. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Name {
    directory: Arc<HostDirectory>,
    qpn: Qpn,
    /// Whether the file of this name is another's now.
    is_replaced: AtomicBool,
    /// Holds the lock.
    _file: Descriptor,
}

impl Mailbox {
    /// Creates the file; with `again` in the place of one that was closed.
    pub(super) fn create(
        directory: &Arc<HostDirectory>,
        peers: usize,
        mtu: usize,
        wake: u64,
        again: Option<&Name>,
    ) -> Result<Self, DeviceError> {
        let peers = peers.clamp(1, MAX_PEERS);
        let generation = fastrand::u32(1..);
        let length = board_at() + board_length(peers);
        let store =
            |header: &Map, at, value| header.words::<1>(at)[0].store(value, Ordering::Release);
        let fill = |file: &Descriptor| {
            let (header, board) = (Map::new(file, HEADER)?, Board::new(file, peers)?);
            store(&header, 8, VERSION);
            store(&header, PEERS, peers as u64 | (mtu as u64) << 32);
            let process = u64::from(std::process::id());
            store(&header, OWNER, u64::from(generation) | process << 32);
            store(&header, WAKE, wake);
            store(&header, STATE, OPEN);
            Ok((header, board))
        };
        let publish = |(header, _): &(Map, Board), qpn: Qpn| {
            store(header, NUMBER, u64::from(qpn.0));
            store(header, 0, MAGIC);
        };
        let (file, (header, board), qpn) = match again {
            None => directory.create_queue_pair(length, fill, publish)?,
            Some(Name { qpn, .. }) => {
                let (file, filled) = directory.replace_queue_pair(length, fill, publish, *qpn)?;
                (file, filled, *qpn)
            }
        };
        if let Some(name) = again {
            name.is_replaced.store(true, Ordering::Relaxed);
        }
        let (directory, is_replaced) = (Arc::clone(directory), AtomicBool::new(false));
        let name = Name { directory, qpn, is_replaced, _file: file };
        Ok(Self { header, board, name: Arc::new(name), generation })
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

    /// The word of the [hand-over](super::handover) to sleep.
    pub(super) fn asleep(&self) -> &AtomicU64 {
        &self.header.words::<1>(ASLEEP)[0]
    }

    /// Whether the doorbell was rung. An idle queue pair reads nothing else.
    #[inline(always)]
    pub(super) fn doorbell_rang(&self) -> bool {
        self.board.doorbell().load(Ordering::Relaxed) != 0
    }

    /// Clears the doorbell and calls `f` with each entry that rang.
    pub(super) fn take_rung(&self, mut f: impl FnMut(usize)) {
        // First the doorbell, then the words; senders set them in the opposite order, with a fence between them. So a bit
        // that is set meanwhile is either seen now or sets the doorbell again.
        let mut words = self.board.doorbell().swap(0, Ordering::Acquire);
        fence(Ordering::SeqCst);
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let mut bits = self.board.doorbell_words()[word].swap(0, Ordering::Acquire);
            // So that a sender which finds its bit still set has published before the look that follows.
            fence(Ordering::SeqCst);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if slot < self.board.peers {
                    f(slot);
                }
            }
        }
    }

    pub(super) fn peers(&self) -> usize {
        self.board.peers
    }

    /// State and sender of entry `slot`, and the nonce of its ring.
    pub(super) fn entry(&self, slot: usize) -> (EntryState, Sender, u64) {
        self.board.entry(slot)
    }

    pub(super) fn set_entry(&self, slot: usize, state: EntryState, sender: Sender) {
        self.board.words(slot)[0].store(state.encode(sender), Ordering::Release);
    }

    /// Accepts no more senders.
    pub(super) fn close(&self) {
        self.header.words::<1>(STATE)[0].store(CLOSED, Ordering::Release);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if !*self.is_replaced.get_mut() {
            self.directory.remove(FileName::QueuePair(self.qpn));
        }
    }
}

/// The file of a peer, for a sender.
#[derive(Debug)]
pub(super) struct PeerMailbox {
    header: View,
    board: Board,
    /// Open for reading, to ask for the lock.
    file: OwnedFd,
}

impl PeerMailbox {
    /// The mailbox of `qpn`; `None` if it doesn't exist or its process is dead.
    pub(super) fn open(directory: &HostDirectory, qpn: Qpn) -> Result<Option<Self>, DeviceError> {
        let name = FileName::QueuePair(qpn);
        let Some((file, writable)) = directory.find_both(name)? else { return Ok(None) };
        let error = |errno| crate::link::system(format!("mapping {name}"), errno);
        if !is_locked(&file).map_err(error)? {
            return Ok(None);
        }
        let inconsistent = |reason| DeviceError::Inconsistent { object: name.to_string(), reason };
        let (header, peers) = Self::header(&file, qpn).map_err(error)?.map_err(inconsistent)?;
        let board = Board::new(&writable, peers).map_err(error)?;
        Ok(Some(Self { header, board, file }))
    }

    /// Maps the first page. Returns it with the number of peers, or what is wrong with it.
    fn header(file: &OwnedFd, qpn: Qpn) -> Result<Result<(View, usize), String>, Errno> {
        let size = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
        if size < HEADER {
            return Ok(Err("not a queue pair".into()));
        }
        let header = View::new(file, HEADER)?;
        let version = header.load(8);
        let peers = usize::try_from(header.load(PEERS) & 0xffff_ffff).unwrap_or(usize::MAX);
        if header.load(0) != MAGIC {
            return Ok(Err("not a queue pair".into()));
        }
        if version != VERSION {
            return Ok(Err(format!(
                "made by another version of efa: its layout has version {version}, not {VERSION}"
            )));
        }
        let valid = (1..=MAX_PEERS).contains(&peers) && size == board_at() + board_length(peers);
        if !valid || header.load(NUMBER) != u64::from(qpn.0) {
            return Ok(Err("a queue pair with another number or size".into()));
        }
        Ok(Ok((header, peers)))
    }

    /// Whether this is the queue pair `sender`.
    pub(super) fn is(&self, sender: Sender) -> bool {
        self.header.load(OWNER) as u32 == sender.generation
    }

    pub(super) fn is_closed(&self) -> bool {
        self.header.load(STATE) != OPEN
    }

    /// The header of queue pair `qpn` and the number of its FIFO; `None` if it isn't there with this
    /// generation, or can't sleep.
    pub(super) fn wake_word(
        directory: &HostDirectory,
        qpn: Qpn,
        generation: u32,
    ) -> Result<Option<(View, u64)>, DeviceError> {
        let name = FileName::QueuePair(qpn);
        let Some(file) = directory.find(name)? else { return Ok(None) };
        let header = Self::header(&file, qpn)
            .map_err(|errno| crate::link::system(format!("mapping {name}"), errno))?;
        let Ok((header, _)) = header else { return Ok(None) };
        let nonce = header.load(WAKE);
        let is_it = header.load(OWNER) as u32 == generation && nonce != 0;
        Ok(is_it.then_some((header, nonce)))
    }

    /// The word of the [hand-over](super::handover) to sleep.
    pub(super) fn asleep(header: &View) -> u64 {
        header.load(ASLEEP)
    }

    /// Its generation if it may sleep.
    pub(super) fn sleeps(&self) -> Option<u32> {
        (self.header.load(WAKE) != 0).then(|| self.header.load(OWNER) as u32)
    }

    /// Whether its process is alive; true if the system can't report it.
    pub(super) fn is_alive(&self) -> bool {
        is_locked(&self.file).unwrap_or(true)
    }

    /// Claims a free entry for `sender`.
    pub(super) fn claim(&self, sender: Sender) -> Option<usize> {
        let claimed = EntryState::Claimed.encode(sender);
        (0..self.board.peers).find(|&slot| {
            let word = &self.board.words(slot)[0];
            word.compare_exchange(0, claimed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Announces the ring with `nonce` to the owner.
    pub(super) fn announce(&self, slot: usize, sender: Sender, nonce: u64) {
        let [word, ring] = self.board.words(slot);
        ring.store(nonce, Ordering::Relaxed);
        word.store(EntryState::Announced.encode(sender), Ordering::Release);
        self.ring_doorbell(slot);
    }

    /// Rings the doorbell for entry `slot`, if there is one, unless that was done already.
    pub(super) fn ring_doorbell(&self, slot: usize) {
        if slot >= self.board.peers {
            return;
        }
        // What was published comes before the looks at the doorbell, as in `Mailbox::take_rung`.
        fence(Ordering::SeqCst);
        let (word, bit) = (slot / 64, 1 << (slot % 64));
        let bits = &self.board.doorbell_words()[word];
        if bits.load(Ordering::Relaxed) & bit == 0 {
            bits.fetch_or(bit, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.board.doorbell().load(Ordering::Relaxed) & (1 << word) == 0 {
            self.board.doorbell().fetch_or(1 << word, Ordering::Release);
        }
    }

    /// Whether the entry still announces the ring `nonce` of `sender`, or says that it is attached.
    pub(super) fn has_entry(&self, slot: usize, sender: Sender, nonce: u64) -> bool {
        let (state, from, ring) = self.board.entry(slot);
        state.names_ring() && (from, ring) == (sender, nonce)
    }

    /// Whether an entry leads the owner to the ring with `nonce`, or led it there.
    pub(super) fn names(&self, nonce: u64) -> bool {
        (0..self.board.peers).any(|slot| {
            let (state, _, ring) = self.board.entry(slot);
            state.names_ring() && ring == nonce
        })
    }

    /// Frees the entry if the owner refused the ring of `sender`. Returns whether it did.
    pub(super) fn take_refusal(&self, slot: usize, sender: Sender) -> bool {
        let refused = EntryState::Refused.encode(sender);
        let word = &self.board.words(slot)[0];
        word.compare_exchange(refused, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
