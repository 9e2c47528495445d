//! A stock of buffers that grows on demand and is given back when it wasn't needed.

/// Free buffers.
///
/// The stock remembers its lowest level: what lay unused through a whole period is dropped at its
/// end.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    free: Vec<T>,
    low: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { free: Vec::new(), low: 0 }
    }
}

impl<T> Pool<T> {
    pub(crate) fn take(&mut self) -> Option<T> {
        let taken = self.free.pop();
        self.low = self.low.min(self.free.len());
        taken
    }

    pub(crate) fn put(&mut self, buffer: T) {
        self.free.push(buffer);
    }

    /// Ends a period: drops what it never needed.
    pub(crate) fn trim(&mut self) {
        let keep = self.free.len() - self.low;
        self.free.truncate(keep);
        self.free.shrink_to(keep);
        self.low = keep;
    }

    pub(crate) fn len(&self) -> usize {
        self.free.len()
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
