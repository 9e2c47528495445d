//! How many objects a process has on a device, and how much memory it registers.
//!
//! An interface refuses what exceeds its limits with `ENOMEM`. These are far above those of interfaces, so that programs
//! don't meet them; `EFA_SOFT_LIMITS` sets lower ones for tests of what a program does then. An interface counts the
//! objects of all processes, this device those of one.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use efa_device::{DeviceAttributes, DeviceError};
use efa_sim::region::MAX_REGIONS;

/// The limits of a device. Those of queues are with their attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs. The link has limits of its own.
    pub queue_pairs: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Protection domains.
    pub domains: u64,
    /// Address handles: interfaces, as all handles of one are the same.
    pub address_handles: u64,
    /// Memory regions.
    pub regions: u64,
    /// Bytes of all memory regions together.
    pub registered: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_pairs: u64::MAX,
            completion_queues: 1024,
            domains: 1024,
            address_handles: DeviceAttributes::default().max_address_handles as u64,
            // One is the device's own.
            regions: MAX_REGIONS as u64 - 1,
            registered: u64::MAX,
        }
    }
}

/// Not a list of limits such as `qp=2,mr=10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a list of NAME=NUMBER, with the names qp, cq, pd, ah, mr and bytes, and numbers up to the default"
)]
pub struct NoLimits;

impl FromStr for Limits {
    type Err = NoLimits;

    fn from_str(text: &str) -> Result<Self, NoLimits> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (name, number) = part.split_once('=').ok_or(NoLimits)?;
            let limit = match name {
                "qp" => &mut limits.queue_pairs,
                "cq" => &mut limits.completion_queues,
                "pd" => &mut limits.domains,
                "ah" => &mut limits.address_handles,
                "mr" => &mut limits.regions,
                "bytes" => &mut limits.registered,
                _ => return Err(NoLimits),
            };
            let number = number.parse().map_err(|_| NoLimits)?;
            if number > *limit {
                return Err(NoLimits);
            }
            *limit = number;
        }
        Ok(limits)
    }
}

/// What the objects of a process may take of one thing.
#[derive(Debug)]
pub(crate) struct Quota {
    object: &'static str,
    limit: u64,
    used: AtomicU64,
}

impl Quota {
    fn new(object: &'static str, limit: u64) -> Arc<Self> {
        Arc::new(Self { object, limit, used: AtomicU64::new(0) })
    }

    /// Takes `count` of it until the result is dropped.
    ///
    /// # Errors
    /// [`DeviceError::LimitReached`].
    pub(crate) fn take(self: &Arc<Self>, count: u64) -> Result<Share, DeviceError> {
        let more = |used: u64| used.checked_add(count).filter(|&used| used <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Share { quota: Arc::clone(self), count }),
            Err(_) => {
                let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                Err(DeviceError::LimitReached { object: self.object, limit })
            }
        }
    }
}

/// What one object has taken.
#[derive(Debug)]
pub(crate) struct Share {
    quota: Arc<Quota>,
    count: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// What is counted above the link.
#[derive(Debug)]
pub(crate) struct Quotas {
    pub(crate) queue_pairs: Arc<Quota>,
    pub(crate) completion_queues: Arc<Quota>,
    pub(crate) domains: Arc<Quota>,
    pub(crate) registered: Arc<Quota>,
}

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            queue_pairs: Quota::new("queue pair", limits.queue_pairs),
            completion_queues: Quota::new("completion queue", limits.completion_queues),
            domains: Quota::new("protection domain", limits.domains),
            registered: Quota::new("byte of registered memory", limits.registered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_is_taken_up_to_its_limit_and_free_again_when_a_share_is_dropped() {
        let quota = Quota::new("thing", 5);
        let (three, _two) = (quota.take(3).unwrap(), quota.take(2).unwrap());
        let full = DeviceError::LimitReached { object: "thing", limit: 5 };
        assert_eq!(quota.take(1).unwrap_err(), full);
        assert_eq!(quota.take(u64::MAX).unwrap_err(), full);
        drop(three);
        let _three = quota.take(3).unwrap();
        assert_eq!(quota.take(1).unwrap_err(), full);
    }

    #[test]
    fn limits_are_read_by_name_and_may_not_exceed_those_of_the_device() {
        let limits: Limits = "qp=2,mr=0,bytes=4096".parse().unwrap();
        let expected = Limits { queue_pairs: 2, regions: 0, registered: 4096, ..Limits::default() };
        assert_eq!(limits, expected);
        for bad in ["", "qp", "qp=", "qp=-1", "QP=1", "qp=1,", "cq=1025", "mr=16384", "mtu=1"] {
            assert_eq!(bad.parse::<Limits>(), Err(NoLimits), "{bad}");
        }
    }
}
