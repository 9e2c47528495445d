//! The generations of EFA interfaces that the device can be like.
//!
//! | generation | 1 | 2 | 3 | 4 |
//! |---|---|---|---|---|
//! | like the interfaces of | p4d | p5 | p5en | the newest |
//! | vendor part id | 0xefa1 | 0xefa2 | 0xefa3 | 0xefa4 |
//! | RDMA read | yes | yes | yes | yes |
//! | RDMA write | no | yes | yes | yes |
//! | unsolicited writes (`UNSOLICITED_WRITE_RECV`) | no | no | yes | yes |
//! | most inline bytes (`inline_buf_size_ex`) | 32 | 32 | 32 | 80 |
//! | inline data of RDMA writes (`INLINE_WRITE`) | no | no | no | yes |
//! | request ids of sends in rings, bits | 16 | 16 | 16 | 64 |
//! | speed of the port, Gbit/s | 100 | 100 | 200 | 400 |
//!
//! Receiver-not-ready retries and GIDs of unknown senders are in all, as are the MTU (8,928) and the depths of queues.
//!
//! Where the numbers come from: part ids from the list in rdma-core, which doesn't say what the interfaces can do; the
//! attributes of an interface 0xefa1 as UCX's tests have them; the order in which rdma-core and libfabric learned of
//! the other abilities. No interface was asked, and firmware changes abilities: some interfaces 0xefa1 write.

/// A generation of interfaces; a later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// As in p4d: reads.
    First,
    /// As in p5: reads and writes.
    Second,
    /// As in p5en: writes with immediate data may use no receive buffer.
    Third,
    /// The newest: 80 inline bytes, also in writes.
    #[default]
    Fourth,
}

/// `active_speed` in InfiniBand's encoding, of a lane; ports have four.
const SPEED_EDR: u8 = 32;
const SPEED_HDR: u8 = 64;
const SPEED_NDR: u8 = 128;

impl Generation {
    /// All, in order.
    pub const ALL: [Self; 4] = [Self::First, Self::Second, Self::Third, Self::Fourth];

    /// The generation of this number, 1 to 4.
    ///
    /// ```
    /// use efa_soft::generation::Generation;
    ///
    /// assert_eq!(Generation::from_number(4), Some(Generation::default()));
    /// assert_eq!(Generation::from_number(5), None);
    /// ```
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|generation| generation.number() == number)
    }

    /// 1 for the first.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::First => 1,
            Self::Second => 2,
            Self::Third => 3,
            Self::Fourth => 4,
        }
    }

    /// The PCI device ID.
    #[must_use]
    pub fn vendor_part_id(self) -> u32 {
        0xefa0 + u32::from(self.number())
    }

    /// Whether interfaces carry out RDMA writes.
    #[must_use]
    pub fn writes(self) -> bool {
        self >= Self::Second
    }

    /// Whether a write with immediate data may complete without a receive buffer.
    #[must_use]
    pub fn unsolicited_writes(self) -> bool {
        self >= Self::Third
    }

    /// Whether send queues may have descriptors of 128 bytes, with 80 inline bytes and with inline data of writes.
    #[must_use]
    pub fn has_long_descriptors(self) -> bool {
        self >= Self::Fourth
    }

    /// Whether request ids in rings of sends have 64 bits.
    #[must_use]
    pub fn has_long_ids(self) -> bool {
        self >= Self::Fourth
    }

    /// The speed of a port in Gbit/s.
    #[must_use]
    pub fn gigabits(self) -> u64 {
        match self {
            Self::First | Self::Second => 100,
            Self::Third => 200,
            Self::Fourth => 400,
        }
    }

    /// `active_speed` of a port.
    pub(crate) fn lane_speed(self) -> u8 {
        match self {
            Self::First | Self::Second => SPEED_EDR,
            Self::Third => SPEED_HDR,
            Self::Fourth => SPEED_NDR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_from_1_to_4_names_a_generation() {
        let numbers: Vec<_> = (0..=255).filter_map(Generation::from_number).collect();
        assert_eq!(numbers, Generation::ALL);
        let parts = Generation::ALL.map(Generation::vendor_part_id);
        assert_eq!(parts, [0xefa1, 0xefa2, 0xefa3, 0xefa4]);
    }

    #[test]
    fn later_generation_can_what_earlier_ones_can() {
        let abilities = |generation: Generation| {
            [
                generation.writes(),
                generation.unsolicited_writes(),
                generation.has_long_descriptors(),
                generation.has_long_ids(),
            ]
        };
        for pair in Generation::ALL.windows(2) {
            let (earlier, later) = (abilities(pair[0]), abilities(pair[1]));
            assert!(
                earlier.iter().zip(later).all(|(earlier, later)| later >= *earlier),
                "{pair:?}"
            );
        }
    }
}
