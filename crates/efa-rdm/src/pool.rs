//! A stock of buffers that grows on demand and is given back when it wasn't needed.

/// Free buffers.
///
/// The stock remembers its lowest level: what lay unused through a whole period is dropped at its
/// end.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    /// The first `len` places have one. A vector of buffers would call its allocator's code, and save
    /// registers for that, where a buffer is only put back.
    places: Vec<Option<T>>,
    len: usize,
    low: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { places: Vec::new(), len: 0, low: 0 }
    }
}

impl<T> Pool<T> {
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.low = self.low.min(self.len);
        self.places.get_mut(self.len)?.take()
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, buffer: T) {
        if let Err(buffer) = self.put_at_once(buffer) {
            self.put_otherwise(buffer);
        }
    }

    /// Keeps a buffer, if the stock needn't grow for it.
    #[inline(always)]
    pub(crate) fn put_at_once(&mut self, buffer: T) -> Result<(), T> {
        let Some(place) = self.places.get_mut(self.len) else { return Err(buffer) };
        // It is empty: nothing is forgotten.
        core::mem::forget(place.replace(buffer));
        self.len += 1;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn put_otherwise(&mut self, buffer: T) {
        self.places.push(Some(buffer));
        self.len += 1;
    }

    /// Gives `count` buffers away, fewer if there aren't as many, or until one is refused, which stays;
    /// gives how many went, and why one was refused.
    #[inline(always)]
    pub(crate) fn give<E>(
        &mut self,
        count: usize,
        mut to: impl FnMut(T) -> Result<(), (T, E)>,
    ) -> (usize, Option<E>) {
        let mut given = 0;
        let mut refused = None;
        let first = self.len.saturating_sub(count);
        for place in self.places[first..self.len].iter_mut().rev() {
            let Some(buffer) = place.take() else { break };
            if let Err((buffer, error)) = to(buffer) {
                *place = Some(buffer);
                refused = Some(error);
                break;
            }
            given += 1;
        }
        self.len -= given;
        self.low = self.low.min(self.len);
        (given, refused)
    }

    /// Ends a period: drops what it never needed.
    pub(crate) fn trim(&mut self) {
        let keep = self.len - self.low;
        self.places.truncate(keep);
        self.places.shrink_to(keep);
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
    fn what_a_period_never_needed_is_given_back() {
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
        assert_eq!(pool.len(), 0, "an idle period gives everything back");
        assert_eq!(pool.take(), None);
    }
}
