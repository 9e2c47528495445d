//! Rings: of requests, which the program writes, and of completions, which the device writes.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::completion::{PHASE, SIZE, WORDS};
use super::memory::Pages;
use crate::boundary::{INVALID, Outcome};
use crate::memory::MappedFile;

/// Most entries of a ring of requests: a count of 16 bits tells a full ring from an empty one.
const MAX_REQUESTS: u32 = 1 << 15;
/// Bytes of the longest descriptor of a request.
pub(crate) const LONGEST: usize = 128;

/// A doorbell that counts more requests than the ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a doorbell counts {rung} requests after {read}, but the ring has {entries} entries")]
pub(crate) struct DoorbellError {
    /// The count that the program wrote.
    rung: u16,
    /// The count that the device has read.
    read: u16,
    entries: u32,
}

/// A ring of requests.
#[derive(Debug)]
pub(crate) struct RequestRing {
    pages: Pages,
    /// Bytes of a descriptor, a multiple of 8.
    size: usize,
    /// A power of two.
    entries: u32,
    /// How many the device has read, in 16 bits.
    read: u16,
}

/// A descriptor, copied from a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    bytes: [u8; LONGEST],
    size: usize,
    /// The phase bit of this turn of the ring: 0 in the first.
    pub(crate) phase: bool,
}

impl Copied {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

impl RequestRing {
    /// For at least `depth` descriptors of `size` bytes.
    pub(crate) fn new(depth: u32, size: usize) -> Outcome<Self> {
        let entries = depth.max(1).checked_next_power_of_two().ok_or(INVALID)?;
        if entries > MAX_REQUESTS || !size.is_multiple_of(8) || size > LONGEST {
            return Err(INVALID);
        }
        let pages = Pages::new(entries as usize * size)?;
        Ok(Self { pages, size, entries, read: 0 })
    }

    /// For the program.
    pub(crate) fn address(&self) -> *mut u8 {
        self.pages.address()
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Begins at the start again, with zeros.
    pub(crate) fn reset(&mut self) {
        self.read = 0;
        for word in self.pages.words() {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// How many descriptors are new, when the doorbell says `rung`. Its lower 16 bits count.
    #[inline]
    pub(crate) fn count(&self, rung: u32) -> Result<u16, DoorbellError> {
        let (rung, read) = (rung as u16, self.read);
        let count = rung.wrapping_sub(read);
        let entries = self.entries;
        if u32::from(count) > entries {
            Err(DoorbellError { rung, read, entries })
        } else {
            Ok(count)
        }
    }

    /// Copies the next descriptor, which is new by the [count](Self::count). The program may overwrite it
    /// meanwhile, against the rules; the copy then has bytes of both.
    #[inline]
    pub(crate) fn take(&mut self) -> Copied {
        let index = u32::from(self.read) & (self.entries - 1);
        let phase = (u32::from(self.read) / self.entries) & 1 != 0;
        let start = index as usize * self.size / 8;
        let mut bytes = [0; LONGEST];
        let words = self.pages.words().iter().skip(start).take(self.size / 8);
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        self.read = self.read.wrapping_add(1);
        Copied { bytes, size: self.size, phase }
    }
}

/// A part of a program's file for a ring of completions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingFile {
    pub(crate) descriptor: c_int,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Where the program has mapped it; 0 if nowhere.
    pub(crate) address: usize,
}

/// A ring of completions.
#[derive(Debug)]
pub(crate) struct CompletionRing {
    pages: Pages,
    /// A power of two.
    entries: u32,
    written: u64,
    /// For the program: 0 in a file that it has named no address of.
    address: usize,
}

impl CompletionRing {
    /// For at least `depth` completions.
    pub(crate) fn new(depth: u32) -> Outcome<Self> {
        let entries = depth.max(1).checked_next_power_of_two().ok_or(INVALID)?;
        let pages = Pages::new(entries as usize * SIZE)?;
        let address = pages.address().expose_provenance();
        Ok(Self { address, pages, entries, written: 0 })
    }

    /// For `entries` completions, a power of two, in a part of the program's file, which it has filled with zeros. Fails
    /// with `EINVAL` for a part that is too short.
    pub(crate) fn in_file(file: &RingFile, entries: u32) -> Outcome<Self> {
        let length = entries as usize * SIZE;
        if file.length < length as u64 {
            return Err(INVALID);
        }
        let mapped = MappedFile::of_descriptor(file.descriptor, file.offset, length, true)?;
        Ok(Self {
            address: file.address,
            pages: Pages::in_file(mapped, length)?,
            entries,
            written: 0,
        })
    }

    /// For the program.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether the program has taken all completions, when it has taken `taken` in 16 bits.
    pub(crate) fn is_drained(&self, taken: u16) -> bool {
        self.written as u16 == taken
    }

    /// Writes the next completion, whose phase is 0 in `words`. Overwrites the oldest one if the program has
    /// more requests outstanding than the ring has entries, as the hardware does.
    #[inline]
    pub(crate) fn write(&mut self, words: [u64; WORDS]) {
        let index = self.written & u64::from(self.entries - 1);
        let odd_turn = (self.written / u64::from(self.entries)) & 1 != 0;
        let phase = if odd_turn { 0 } else { PHASE };
        self.written += 1;
        let start = index as usize * WORDS;
        let Some([first, rest @ ..]) = self.pages.words().get(start..start + WORDS) else { return };
        for (into, word) in rest.iter().zip(&words[1..]) {
            into.store(*word, Ordering::Relaxed);
        }
        // By this word the program sees that the completion is new.
        first.store(words[0] & !PHASE | phase, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the number of a descriptor into it, as a program does.
    fn write(ring: &RequestRing, count: u16) {
        let index = usize::from(count) & (ring.entries as usize - 1);
        ring.pages.words()[index * ring.size / 8].store(count.into(), Ordering::Relaxed);
    }

    #[test]
    fn requests_are_read_in_order_across_turns_and_the_end_of_the_count() {
        let mut ring = RequestRing::new(3, 16).unwrap();
        assert_eq!((ring.entries(), ring.size()), (4, 16));
        let mut rung = 0_u16;
        for batch in (1..=4).cycle().take(30_000) {
            assert_eq!(ring.count(rung.into()), Ok(0));
            let before = rung;
            for _ in 0..batch {
                write(&ring, rung);
                rung = rung.wrapping_add(1);
            }
            assert_eq!(ring.count(rung.into()), Ok(batch));
            for number in 0..batch {
                let (copied, number) = (ring.take(), before.wrapping_add(number));
                assert_eq!(copied.bytes()[..2], number.to_le_bytes());
                assert_eq!(copied.phase, (number / 4) % 2 == 1);
            }
        }
    }

    #[test]
    fn doorbell_beyond_the_ring_is_an_error() {
        let ring = RequestRing::new(4, 64).unwrap();
        let error = ring.count(5).unwrap_err();
        assert_eq!(error, DoorbellError { rung: 5, read: 0, entries: 4 });
        assert!(ring.count(0xffff).is_err());
        assert_eq!(ring.count(0x1_0004), Ok(4));
    }

    #[test]
    fn ring_of_more_entries_than_can_be_counted_is_refused() {
        assert!(RequestRing::new(1 << 15, 16).is_ok());
        for (depth, size) in [((1 << 15) + 1, 16), (u32::MAX, 16), (4, 136), (4, 12)] {
            assert_eq!(RequestRing::new(depth, size).unwrap_err(), INVALID);
        }
    }

    #[test]
    fn phase_of_completions_is_one_in_the_first_turn_and_changes_with_each() {
        let mut ring = CompletionRing::new(2).unwrap();
        for turn in 0..3 {
            for index in 0..2 {
                ring.write([0xff00 | index, 1, 2, 3]);
                let words = &ring.pages.words()[index as usize * WORDS..];
                let phase = if turn % 2 == 0 { PHASE } else { 0 };
                assert_eq!(words[0].load(Ordering::Relaxed), 0xff00 | index | phase);
                assert_eq!(words[3].load(Ordering::Relaxed), 3);
            }
        }
    }
}
