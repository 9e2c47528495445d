//! A pool of free buffers that grows on demand and shrinks when buffers aren't used.

/// Free buffers. At the end of each period the pool drops as many as were never taken in it.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// The first `len` slots hold a buffer. (With a `Vec<T>` each `put` would contain a call to the
    /// allocator, and save registers for it.)
    slots: Vec<Option<T>>,
    len: usize,
    /// The smallest `len` of this period.
    low: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), len: 0, low: 0 }
    }
}

impl<T> Pool<T> {
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.low = self.low.min(self.len);
        self.slots.get_mut(self.len)?.take()
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, buffer: T) {
        if let Err(buffer) = self.put_at_once(buffer) {
            self.grow(buffer);
        }
    }

    /// Puts a buffer back if there is a free slot; returns it if the pool would have to allocate.
    #[inline(always)]
    pub(crate) fn put_at_once(&mut self, buffer: T) -> Result<(), T> {
        let Some(slot) = self.slots.get_mut(self.len) else { return Err(buffer) };
        // The slot is empty, so no buffer is leaked; without `forget` the compiler adds a drop.
        core::mem::forget(slot.replace(buffer));
        self.len += 1;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, buffer: T) {
        self.slots.push(Some(buffer));
        self.len += 1;
    }

    /// Passes up to `count` buffers to `to`, until it refuses one, which stays in the pool. Returns the
    /// number of buffers passed, and the error of the one refused.
    #[inline(always)]
    pub(crate) fn give<E>(
        &mut self,
        count: usize,
        mut to: impl FnMut(T) -> Result<(), (T, E)>,
    ) -> (usize, Option<E>) {
        let mut given = 0;
        let mut refused = None;
        let first = self.len.saturating_sub(count);
        for slot in self.slots[first..self.len].iter_mut().rev() {
            let Some(buffer) = slot.take() else { break };
            if let Err((buffer, error)) = to(buffer) {
                *slot = Some(buffer);
                refused = Some(error);
                break;
            }
            given += 1;
        }
        self.len -= given;
        self.low = self.low.min(self.len);
        (given, refused)
    }

    /// Ends a period: drops the buffers that were never taken in it.
    pub(crate) fn trim(&mut self) {
        let keep = self.len - self.low;
        self.slots.truncate(keep);
        self.slots.shrink_to(keep);
        (self.len, self.low) = (keep, keep);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_trim_drops_buffers_not_taken_in_the_period() {
        let mut pool = Pool::default();
        for i in 0..10 {
            pool.put(i);
        }
        pool.trim();
        assert_eq!(pool.len(), 10, "the first period began empty");
        for _ in 0..3 {
            let taken: Vec<_> = (0..4).filter_map(|_| pool.take()).collect();
            taken.into_iter().for_each(|buffer| pool.put(buffer));
        }
        pool.trim();
        assert_eq!(pool.len(), 4);
        pool.trim();
        assert_eq!(pool.len(), 0, "an idle period drops everything");
        assert_eq!(pool.take(), None);
    }
}
