//! Counters of a device: printed when it is closed or the process exits, if the program asks for it, and added up by
//! `efa soft-efa run` for the files of sysfs (see [`efa_soft_names::counters`]).

use std::ffi::c_int;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::Status;
use efa_soft_names::counters::{BLOCK, FILE, WORDS, Word, empty_block};

use crate::abi::{IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE};
use crate::boundary::{Errno, Outcome};
use crate::memory::MappedFile;

/// What a device did since it was opened.
#[derive(Debug)]
pub(crate) struct Statistics {
    /// In a file, or the library's own.
    words: NonNull<[AtomicU64; WORDS]>,
    /// What keeps the words, if they are in a file.
    file: Option<MappedFile>,
}

// SAFETY: the words are atomic integers, which all threads may share, and this value alone frees them.
#[allow(unsafe_code)]
unsafe impl Send for Statistics {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Statistics {}

impl Default for Statistics {
    fn default() -> Self {
        let words = Box::new([const { AtomicU64::new(0) }; WORDS]);
        Self { words: NonNull::from(Box::leak(words)), file: None }
    }
}

/// What others must know of a device to make sense of its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counting {
    pub(crate) index: usize,
    pub(crate) mtu: usize,
    /// Whether the peers of the device are processes on the same device.
    pub(crate) has_both_ends: bool,
}

impl Statistics {
    /// Counters that are added up for the files of sysfs, if `directory` has [their file](FILE).
    pub(crate) fn shared(directory: Option<&Path>, counting: Counting) -> io::Result<Self> {
        let file = directory.map(|directory| directory.join(FILE)).filter(|file| file.exists());
        let Some(file) = file else { return Ok(Self::default()) };
        let mut block = empty_block(counting.index);
        let words =
            [(Word::Mtu, counting.mtu as u64), (Word::HasBothEnds, counting.has_both_ends.into())];
        for (word, value) in words {
            block[word as usize * 8..][..8].copy_from_slice(&value.to_ne_bytes());
        }
        let mut file = OpenOptions::new().read(true).append(true).open(file)?;
        // The kernel appends at once, whoever else does.
        file.write_all(&block)?;
        let start = file.stream_position()? - BLOCK as u64;
        // After a full file system, parts of blocks may be in the file.
        if !start.is_multiple_of(BLOCK as u64) {
            return Err(io::Error::other(format!("a block begins at byte {start} of {FILE}")));
        }
        let mapped = MappedFile::new(file.as_fd(), start, BLOCK, true)
            .map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))?;
        // A block doesn't cross a page, and begins at a multiple of its length.
        let words = NonNull::new(mapped.base().cast()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { words, file: Some(mapped) })
    }

    #[inline]
    #[allow(unsafe_code)]
    fn word(&self, word: Word) -> &AtomicU64 {
        // SAFETY: the words are aligned and exist as long as this value: they are a box's or those of `file`. Any bits
        // are a value.
        let words = unsafe { self.words.as_ref() };
        &words[word as usize]
    }

    #[inline]
    fn count(&self, word: Word, by: u64) {
        self.word(word).fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn sent(&self, bytes: usize) {
        self.count(Word::Sends, 1);
        self.count(Word::SendBytes, bytes as u64);
    }

    #[inline]
    pub(crate) fn received(&self, bytes: usize) {
        self.count(Word::Receives, 1);
        self.count(Word::ReceiveBytes, bytes as u64);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.count(Word::Reads, 1);
        self.count(Word::ReadBytes, bytes);
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.count(Word::Writes, 1);
        self.count(Word::WriteBytes, bytes);
    }

    /// Counts how a send, read or write completed; `opcode` is that of its completion.
    #[inline]
    pub(crate) fn completed(&self, opcode: c_int, result: Result<(), Status>) {
        if let Err(status) = result {
            self.failed(opcode, status);
        }
    }

    #[cold]
    fn failed(&self, opcode: c_int, status: Status) {
        match status {
            Status::ReceiverNotReady => self.count(Word::ReceiverNotReady, 1),
            _ => self.count(Word::Failed, 1),
        }
        match opcode {
            IBV_WC_RDMA_READ => self.count(Word::ReadErrors, 1),
            IBV_WC_RDMA_WRITE => self.count(Word::WriteErrors, 1),
            _ => {}
        }
    }

    /// Counts that the progress thread found something to do, as the program didn't poll.
    pub(crate) fn progressed_unpolled(&self) {
        self.count(Word::BackgroundProgress, 1);
    }

    /// Counts doorbells of rings that were seen to have been rung.
    pub(crate) fn rung(&self, doorbells: u64) {
        self.count(Word::Doorbells, doorbells);
    }

    /// Counts descriptors that were read from rings.
    pub(crate) fn read_descriptors(&self, count: u64) {
        self.count(Word::Descriptors, count);
    }

    /// Counts that an object was changed or destroyed.
    pub(crate) fn commanded(&self) {
        self.count(Word::Commands, 1);
    }

    /// Counts that an object was created, or refused, and where.
    pub(crate) fn created<T>(&self, outcome: Outcome<T>, errors: Word) -> Outcome<T> {
        self.commanded();
        if outcome.is_err() {
            self.count(errors, 1);
        }
        outcome
    }

    /// Whether the device was not used.
    pub(crate) fn are_zero(&self) -> bool {
        let used = [Word::Sends, Word::Receives, Word::Reads, Word::Writes, Word::Failed];
        used.into_iter().all(|word| self.get(word) == 0)
    }
}

impl Drop for Statistics {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.file.is_none() {
            // SAFETY: without a file the words come from the box in `default`, which is freed here alone.
            drop(unsafe { Box::from_raw(self.words.as_ptr()) });
        }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |word| self.get(word);
        write!(f, "sends {} of {} B, ", get(Word::Sends), get(Word::SendBytes))?;
        write!(f, "receives {} of {} B, ", get(Word::Receives), get(Word::ReceiveBytes))?;
        write!(f, "reads {} of {} B, ", get(Word::Reads), get(Word::ReadBytes))?;
        write!(f, "writes {} of {} B, ", get(Word::Writes), get(Word::WriteBytes))?;
        write!(
            f,
            "receiver not ready {}, failed {}, ",
            get(Word::ReceiverNotReady),
            get(Word::Failed)
        )?;
        write!(f, "background progress {}, ", get(Word::BackgroundProgress))?;
        write!(f, "doorbells {}, descriptors {}", get(Word::Doorbells), get(Word::Descriptors))
    }
}

#[cfg(test)]
mod tests {
    use efa_soft_names::counters::totals;
    use tempfile::TempDir;

    use super::*;
    use crate::abi::IBV_WC_SEND;

    #[test]
    fn statistics_of_unused_device_are_zero() {
        let statistics = Statistics::default();
        statistics.progressed_unpolled();
        assert!(statistics.are_zero());
        statistics.completed(IBV_WC_SEND, Err(Status::BadLocalKey));
        assert!(!statistics.are_zero());
    }

    #[test]
    fn statistics_of_two_openings_of_a_device_are_added_up_in_the_file_and_apart_in_text() {
        let temporary = TempDir::new().unwrap();
        let directory = temporary.path();
        let counting = Counting { index: 3, mtu: 1000, has_both_ends: true };
        let own = Statistics::shared(Some(directory), counting).unwrap();
        assert!(own.file.is_none(), "there is no file");
        std::fs::write(directory.join(FILE), "").unwrap();
        let [first, second] =
            [0; 2].map(|_| Statistics::shared(Some(directory), counting).unwrap());
        first.sent(5);
        second.sent(6);
        second.read(7);
        second.completed(IBV_WC_RDMA_READ, Err(Status::BadLocalKey));
        let _ = first.created::<()>(Err(Errno(1)), Word::RegionErrors);
        assert!(first.to_string().starts_with("sends 1 of 5 B, "), "{first}");
        // What ended processes have counted remains.
        drop([first, second]);
        let totals = totals(&std::fs::read(directory.join(FILE)).unwrap());
        assert_eq!(totals.keys().collect::<Vec<_>>(), [&3]);
        for file in [("send_bytes", 11), ("tx_bytes", 18), ("rdma_read_wr_err", 1)] {
            assert!(totals[&3].port.contains(&file), "{file:?} of {totals:?}");
        }
        assert!(totals[&3].device.contains(&("reg_mr_err", 1)));
    }
}
