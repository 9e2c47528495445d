//! The task that reads the completions of an endpoint, and gives them to futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::endpoint::{Ended, RECEIVE, Shared, TRANSMIT};
use super::slots::of;
use super::streams::CompletionStream;
use crate::completion::{Completion, Kind};
use crate::completion_queue::{Entry, WaitError};

/// Completions that are handed out before other tasks get their turn.
const IN_A_ROW: usize = 64;

/// The task that reads completions.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    /// `None` once the endpoint was closed and all completions were read.
    pub(super) others: Option<mpsc::UnboundedSender<Entry>>,
}

impl Reader {
    pub(super) async fn run(mut self, mut completions: CompletionStream) {
        loop {
            for _ in 0..IN_A_ROW {
                let entry = match self.next(&mut completions).await {
                    Ok(completion) => Ok(completion),
                    Err(WaitError::Failed(failed)) => Err(failed),
                    Err(WaitError::Device(error)) => return self.shared.end(Ended::Device(error)),
                    // Nobody else has the queue.
                    Err(_) => continue,
                };
                self.hand_out(entry).await;
            }
            yield_now().await;
        }
    }

    /// The next completion. Sends that have completed at the level inject end without another one, and whoever waits for
    /// their room tries again when there is nothing to be read.
    async fn next(&mut self, completions: &mut CompletionStream) -> Result<Completion, WaitError> {
        let Self { shared, others } = self;
        let mut closed = pin!(shared.closed.notified());
        poll_fn(|cx| {
            let polled = completions.poll(cx);
            if shared.signal.take() {
                shared.event.notify_waiters();
            }
            if polled.is_pending() {
                shared.give_turns();
                // A close wakes this task. What it has completed is in the queue then, if it wasn't read yet.
                let is_closed =
                    closed.as_mut().poll(cx).is_ready() || shared.state.lock().is_closed;
                if is_closed && !completions.has_entries() {
                    *others = None;
                }
            }
            polled
        })
        .await
    }

    async fn hand_out(&self, entry: Entry) {
        let Some(key) = of(&entry).context.checked_sub(1) else {
            if let Some(others) = &self.others {
                // Without a permit once the endpoint is closed.
                if let Ok(permit) = self.shared.kept_others.acquire().await {
                    permit.forget();
                }
                // It fails only when the endpoint is gone.
                let _ = others.send(entry);
            }
            return;
        };
        let side = match of(&entry).kind {
            Kind::Receive | Kind::Released => Some(RECEIVE),
            Kind::MultiReceive => {
                self.shared.room_for(key as usize).await;
                None
            }
            _ => Some(TRANSMIT),
        };
        // Those who wait are woken first: the task of this operation may begin the next at once.
        if let Some(side) = side {
            self.shared.permits[side].add_permits(1);
        }
        self.shared.give_turns();
        self.shared.change(|slots| ((), [slots.completed(key as usize, entry)]));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.end(Ended::Runtime);
    }
}
