//! The rings of a queue pair by the number of their peer.

use efa_device::Qpn;

/// Keys by queue pair number, in blocks: a queue pair with few peers has few of them.
#[derive(Debug, Default)]
pub(in crate::shm) struct Keys(Vec<Option<Box<[u16; 256]>>>);

impl Keys {
    #[inline]
    pub(in crate::shm) fn get(&self, number: Qpn) -> Option<usize> {
        let block = self.0.get(usize::from(number.0 >> 8))?.as_ref()?;
        // 0 stands for none.
        usize::from(block[usize::from(number.0 & 0xff)]).checked_sub(1)
    }

    pub(in crate::shm) fn set(&mut self, number: Qpn, key: Option<usize>) {
        let block = usize::from(number.0 >> 8);
        if block >= self.0.len() {
            self.0.resize_with(block + 1, || None);
        }
        let block = self.0[block].get_or_insert_with(|| Box::new([0; 256]));
        // There are fewer keys than numbers, since 0 is no queue pair's.
        let key = key.and_then(|key| u16::try_from(key + 1).ok());
        block[usize::from(number.0 & 0xff)] = key.unwrap_or(0);
    }
}
