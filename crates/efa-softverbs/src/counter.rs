//! Completion counters: how many requests of queue pairs have completed, and how many of them in error.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::abi::*;
use crate::boundary::{BUSY, INVALID, Outcome, UNSUPPORTED};
use crate::memory::{MappedFile, check_accessible};

/// The operations that are counted. Reads and writes of peers aren't: the kernel copies them, and nobody here sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Send,
    Receive,
    Read,
    Write,
}

impl Counted {
    pub(crate) const ALL: [Self; 4] = [Self::Send, Self::Receive, Self::Read, Self::Write];

    /// `IBV_QP_ATTACH_COMP_CNTR_OP_…`
    pub(crate) const fn flag(self) -> u32 {
        match self {
            Self::Send => IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
            Self::Receive => IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
            Self::Read => IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
            Self::Write => IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        }
    }

    /// The flags of all.
    pub(crate) fn flags() -> u32 {
        Self::ALL.into_iter().map(Self::flag).sum()
    }
}

/// Most counters of a context.
pub(crate) const MAX_COUNTERS: usize = 1024;

/// The largest value of a counter, after which it is 0. libfabric takes a device whose counters hold all 64 bits for one
/// without counters.
pub(crate) const MAX_VALUE: u64 = u64::MAX >> 1;

/// A counter.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) completed: Value,
    pub(crate) failed: Value,
    /// Number of queue pairs that count here.
    attached: AtomicUsize,
}

impl Counter {
    pub(crate) fn new(completed: Value, failed: Value) -> Self {
        Self { completed, failed, attached: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn count(&self, is_success: bool) {
        let value = if is_success { &self.completed } else { &self.failed };
        value.add(1);
    }

    pub(crate) fn attach(&self) {
        self.attached.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn detach(&self) {
        self.attached.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fails with `EBUSY` while a queue pair counts here.
    pub(crate) fn check_unused(&self) -> Outcome<()> {
        if self.attached.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(BUSY) }
    }
}

/// One of the values of a counter, which begin at 0.
#[derive(Debug)]
pub(crate) enum Value {
    /// In the library.
    Own(AtomicU64),
    /// At an address of the program.
    At(NonNull<AtomicU64>),
    /// In a file.
    In {
        /// What is mapped of it.
        file: MappedFile,
        /// Whether the program has it mapped too: otherwise libefa doesn't read it.
        is_readable: bool,
    },
}

// SAFETY: `At` points to an atomic integer, which all threads may share.
#[allow(unsafe_code)]
unsafe impl Send for Value {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Value {}

const LENGTH: usize = size_of::<u64>();

impl Value {
    /// At the place that the program names. Fails with `EFAULT` or `EINVAL` if there is no writable number.
    ///
    /// # Safety
    /// As `efadv_create_comp_cntr(3)` asks: the memory is left to the device until the counter is destroyed.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn at(place: &efadv_memory_location) -> Outcome<Self> {
        let value = match place.kind {
            EFADV_MEMORY_LOCATION_VA => {
                let word: *mut AtomicU64 = std::ptr::with_exposed_provenance_mut(place.ptr);
                let word = NonNull::new(word).ok_or(INVALID)?;
                if !word.is_aligned() || place.ptr.checked_add(LENGTH).is_none() {
                    return Err(INVALID);
                }
                check_accessible(word.cast(), LENGTH, true)?;
                Self::At(word)
            }
            EFADV_MEMORY_LOCATION_DMABUF => {
                let file = MappedFile::of_descriptor(place.fd, place.offset, LENGTH, true)?;
                if !place.offset.is_multiple_of(LENGTH as u64) {
                    return Err(INVALID);
                }
                Self::In { file, is_readable: place.ptr != 0 }
            }
            _ => return Err(UNSUPPORTED),
        };
        value.word().store(0, Ordering::Release);
        Ok(value)
    }

    /// Wraps after [`MAX_VALUE`].
    #[inline]
    pub(crate) fn add(&self, number: u64) {
        let add = |value: u64| Some(value.wrapping_add(number) & MAX_VALUE);
        let _always = self.word().fetch_update(Ordering::AcqRel, Ordering::Relaxed, add);
    }

    /// Fails with `EINVAL` beyond [`MAX_VALUE`].
    pub(crate) fn set(&self, number: u64) -> Outcome<()> {
        if number > MAX_VALUE {
            return Err(INVALID);
        }
        self.word().store(number, Ordering::Release);
        Ok(())
    }

    #[allow(unsafe_code)]
    #[inline]
    fn word(&self) -> &AtomicU64 {
        let word = match self {
            Self::Own(word) => return word,
            Self::At(word) => word.as_ptr().cast_const(),
            Self::In { file, .. } => file.base().cast_const().cast(),
        };
        // SAFETY: the word is aligned, and mapped as long as this value exists: by `at`'s caller, or here. Any bits are
        // a value.
        unsafe { &*word }
    }

    /// Fails with `EOPNOTSUPP` for a value that the program has in a file alone.
    pub(crate) fn read(&self) -> Outcome<u64> {
        match self {
            Self::In { is_readable: false, .. } => Err(UNSUPPORTED),
            _ => Ok(self.word().load(Ordering::Acquire)),
        }
    }
}
