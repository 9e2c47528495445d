//! Reads the bytes of a fuzzer as decisions. After the last byte, every decision is the first choice.

/// The unread part of an input.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// At most `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// True with a probability of 1 in `among`.
    pub(crate) fn one_in(&mut self, among: usize) -> bool {
        self.below(among) == among - 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub(crate) fn number(&mut self, bytes: usize) -> u64 {
        let mut number = [0; 8];
        let taken = self.take(bytes);
        number[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(number)
    }

    /// In most cases `near`, else a boundary value.
    pub(crate) fn about(&mut self, near: u64) -> u64 {
        match self.byte() {
            0..=159 => near,
            160..=171 => near.wrapping_sub(1),
            172..=183 => near.wrapping_add(1),
            184..=191 => 0,
            192..=199 => 1,
            200..=203 => near.wrapping_mul(2),
            204..=207 => near / 2,
            208..=211 => u64::from(u32::MAX),
            212..=215 => u64::MAX,
            216..=217 => 1 << 32,
            218..=219 => i64::MAX as u64,
            220..=221 => u64::MAX - near,
            222..=235 => near.wrapping_add(self.number(1)),
            236..=245 => self.number(2),
            _ => self.number(8),
        }
    }

    /// As [`Self::about`], for 32 bits.
    pub(crate) fn about32(&mut self, near: u32) -> u32 {
        self.about(near.into()) as u32
    }
}
