//! The buffers that a receiving socket makes itself, and how many of them are posted at a time.
//!
//! Where a read is a copy that this processor makes (the `shm` link), a message in a buffer that was used just before
//! costs half of what it costs in one that has left the processor's cache. So the buffer that came back last is posted
//! next, and while messages are long only a few are posted: those behind them wait at the sender, where they are
//! anyhow until they are read. Elsewhere reads under way at the same time are what makes them fast, and all buffers are
//! posted.

use crate::options::Buffers;

/// Bytes of the buffers that are posted while messages are long: some of them fit the cache of a core beside what the
/// program does.
const WARM: usize = 512 << 10;

#[derive(Debug)]
pub(crate) struct Shelf {
    buffers: Buffers,
    /// Bytes from which on a message is long; `None` if all buffers are to be posted.
    long: Option<usize>,
    /// Those that aren't posted; the program gave back the last one last.
    free: Vec<Vec<u8>>,
    made: usize,
    /// Whether there was no memory for another one.
    lacks_memory: bool,
    /// Bytes of the message that arrived last.
    last: usize,
}

/// There is no memory for another buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl Shelf {
    pub(crate) fn new(buffers: Buffers, long: Option<usize>) -> Self {
        let buffers = Buffers { count: buffers.count.max(1), ..buffers };
        Self { buffers, long, free: Vec::new(), made: 0, lacks_memory: false, last: 0 }
    }

    /// A message of so many bytes has arrived.
    #[inline]
    pub(crate) fn arrived(&mut self, length: usize) {
        self.last = length;
    }

    /// How many buffers are to be posted.
    #[inline]
    pub(crate) fn wanted(&self) -> usize {
        match self.long {
            Some(long) if self.last >= long.max(1) => {
                (WARM / self.last).clamp(1, self.buffers.count)
            }
            _ => self.buffers.count,
        }
    }

    /// A buffer to be posted. `None` if all are with the device or the program.
    pub(crate) fn take(&mut self) -> Result<Option<Vec<u8>>, NoMemory> {
        if let Some(buffer) = self.free.pop() {
            return Ok(Some(buffer));
        }
        if self.made == self.buffers.count {
            return Ok(None);
        }
        let made = self.buffers.make();
        let lacked = std::mem::replace(&mut self.lacks_memory, made.is_none());
        let Some(made) = made else {
            if !lacked {
                let Buffers { count, size } = self.buffers;
                tracing::warn!(size, count, made = self.made, "no memory for a buffer of a socket");
            }
            return Err(NoMemory);
        };
        self.made += 1;
        Ok(Some(made))
    }

    /// A buffer came back.
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        self.free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(shelf: &mut Shelf) -> Vec<u8> {
        shelf.take().unwrap().unwrap()
    }

    #[test]
    fn shelf_of_a_device_that_copies_posts_few_buffers_while_messages_are_long() {
        let mut shelf = Shelf::new(Buffers { count: 64, size: 1 << 20 }, Some(32 << 10));
        assert_eq!(shelf.wanted(), 64, "nothing is known of the messages yet");
        for (length, wanted) in [(8, 64), (32 << 10, 16), (64 << 10, 8), (1 << 20, 1), (0, 64)] {
            shelf.arrived(length);
            assert_eq!(shelf.wanted(), wanted, "after {length} bytes");
        }
        let mut few = Shelf::new(Buffers { count: 4, size: 1 << 20 }, Some(32 << 10));
        few.arrived(32 << 10);
        assert_eq!(few.wanted(), 4);
    }

    #[test]
    fn shelf_of_another_device_posts_all_buffers_whatever_the_messages() {
        let mut shelf = Shelf::new(Buffers { count: 64, size: 1 << 20 }, None);
        shelf.arrived(1 << 20);
        assert_eq!(shelf.wanted(), 64);
    }

    #[test]
    fn shelf_gives_the_buffer_that_came_back_last_and_makes_no_more_than_its_count() {
        let mut shelf = Shelf::new(Buffers { count: 2, size: 8 }, None);
        let (mut one, mut two) = (taken(&mut shelf), taken(&mut shelf));
        assert_eq!(shelf.take(), Ok(None));
        (one[0], two[0]) = (1, 2);
        shelf.put(one);
        shelf.put(two);
        assert_eq!(taken(&mut shelf)[0], 2);
        assert_eq!(taken(&mut shelf)[0], 1);
        assert_eq!(shelf.take(), Ok(None));
    }

    #[test]
    fn shelf_whose_buffers_need_more_memory_than_there_is_says_so() {
        let mut shelf = Shelf::new(Buffers { count: 2, size: usize::MAX }, None);
        assert_eq!(shelf.take(), Err(NoMemory));
    }
}
