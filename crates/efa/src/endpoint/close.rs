//! How an endpoint ends.

use std::time::Duration;

use super::Endpoint;
use crate::any_driver::{AnyDriver, each_driver};
use crate::error::CloseError;
use crate::injected::Copies;

impl Endpoint {
    /// Closes the endpoint: finishes the sends under way and sends queued responses, then ends
    /// receives and destroys the queue pair. It polls, and blocks the thread, as
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait) does.
    ///
    /// From the call on, operations fail to start with [`StartError::Closed`](crate::StartError::Closed).
    /// Completions stay in their queues. Closing a closed endpoint does nothing.
    ///
    /// # Errors
    /// Not all was sent in time. The endpoint is closed nevertheless; sends under way fail too.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        self.shared.transmittable.clear();
        self.shared.receivable.clear();
        let result = self.finish_sends(timeout);
        self.end();
        result
    }

    /// Removes the endpoint from the objects that know it, and destroys its queue pair. Operations under way complete
    /// as closed. A thread that still knows the endpoint finds it closed.
    fn end(&self) {
        self.unbind();
        let mut driver = self.shared.driver.lock();
        let last = each_driver!(
            &mut *driver,
            driver => driver.statistics(),
            last => std::mem::take(last)
        );
        let open = std::mem::replace(&mut *driver, AnyDriver::closed(last));
        drop(driver);
        drop(open);
        *self.shared.copies.lock() = Copies::default();
    }

    /// Polls until no send is under way and no packet waits to be sent.
    pub(crate) fn finish_sends(&self, timeout: Duration) -> Result<(), CloseError> {
        let clock = self.shared.domain.fabric().clock();
        let deadline = clock.now() + timeout;
        let mut polls = 0_u32;
        loop {
            self.shared.progress();
            if drive!(self.shared, driver => driver.is_quiet(), _ => true) {
                return Ok(());
            }
            if clock.now() >= deadline {
                return Err(CloseError { timeout });
            }
            polls = polls.wrapping_add(1);
            clock.pass(self.shared.next_timeout().map(|next| next.min(deadline)), polls);
        }
    }

    /// Removes the endpoint from the objects that know it.
    fn unbind(&self) {
        if let Some(background) = self.shared.domain.background() {
            background.unbind(&self.shared);
        }
        self.transmit.shared().unbind(&self.shared);
        self.receive.shared().unbind(&self.shared);
        self.addresses.shared().unbind(&self.shared);
        for counter in &self.counters {
            counter.unbind(&self.shared);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // So that the queue pair is destroyed now, and not when others drop their handles.
        self.end();
    }
}
