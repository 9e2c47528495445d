//! How a thread sleeps until an endpoint has something to do.

use std::os::fd::BorrowedFd;

use efa_device::{Armed, DeviceError, QueuePair, Time};

use crate::endpoint::Endpoint;
use crate::payload::Payload;

impl<Q: QueuePair, B: Payload<Q::Region>> Endpoint<Q, B> {
    /// The descriptors to sleep on, if the queue pairs are [waitable](efa_device::QueuePairOptions::waitable):
    /// one, and with a user queue pair two.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let user = self.in_place.as_deref().and_then(|in_place| in_place.user_queue());
        let user = user.and_then(QueuePair::wait_fd);
        self.queue_pair().wait_fd().into_iter().chain(user)
    }

    /// Whether an operation has ended whose completion was not taken yet, also of a receive in place.
    #[must_use]
    pub fn has_ended_operations(&self) -> bool {
        let in_place = self.in_place.as_ref();
        self.has_completions() || in_place.is_some_and(|in_place| in_place.has_completions())
    }

    /// Prepares for sleep on the descriptors, as [`QueuePair::arm`] does. [`Armed::Pending`]: call
    /// [`poll`](Self::poll) again, as the device has something, an operation has ended, or a packet waits to be
    /// sent that can be. Otherwise `until` also counts what the endpoint itself has to do later.
    ///
    /// It holds until the next call. If an operation is started meanwhile that ends at once, or must be
    /// tried again, [`has_ended_operations`](Self::has_ended_operations) or
    /// [`next_timeout`](Self::next_timeout) say so.
    ///
    /// # Errors
    /// The device's.
    pub fn arm(&mut self, now: Time) -> Result<Armed, DeviceError> {
        self.core_mut().now = now;
        if self.has_ended_operations() {
            return Ok(Armed::Pending);
        }
        let mut next = None;
        let user = self.in_place.as_deref_mut().and_then(|in_place| in_place.user_queue_mut());
        let user = user.map(|user| user.arm(now)).transpose()?;
        for armed in [Some(self.device_mut().arm(now)?), user].into_iter().flatten() {
            match armed {
                Armed::Pending => return Ok(Armed::Pending),
                Armed::Quiet { until } => next = earlier(next, until),
            }
        }
        // After the device was armed: it may have found completions on the way.
        let until = earlier(next, self.next_timeout());
        Ok(match until {
            Some(until) if until <= now => Armed::Pending,
            until => Armed::Quiet { until },
        })
    }
}

fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    [one, other].into_iter().flatten().min()
}
