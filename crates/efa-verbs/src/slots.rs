//! Places for what the device has at the moment, found again by the number that comes back with a
//! completion.

/// A fixed number of places. Nothing is allocated after it was made.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Box<[Option<T>]>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new(count: usize) -> Self {
        let places = (0..count).map(|_| None).collect();
        // The lowest first: few places are in use, and always the same.
        let free = (0..u32::try_from(count).unwrap_or(u32::MAX)).rev().collect();
        Self { places, free }
    }

    /// The place that the next [`put`](Self::put) takes, if there is one.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Puts something into the next place; call it only when there is one.
    #[inline(always)]
    pub(crate) fn put(&mut self, value: T) {
        let Some(place) = self.free.pop() else { return };
        if let Some(place @ None) = self.places.get_mut(place as usize) {
            *place = Some(value);
        }
    }

    /// Empties a place.
    #[inline]
    pub(crate) fn take(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(value)
    }

    /// How many places are taken.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again_and_used_again() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.next(), Some(0));
        slots.put('a');
        slots.put('b');
        assert_eq!((slots.next(), slots.len()), (None, 2));
        slots.put('c');
        assert_eq!((slots.take(0), slots.take(0), slots.take(7)), (Some('a'), None, None));
        assert_eq!((slots.next(), slots.len()), (Some(0), 1));
        assert_eq!(slots.take(1), Some('b'));
    }
}
