//! What keeps account of an endpoint's operations: counters, and a budget of sends.

use crate::completion::{Kind, StartError};
use crate::counter::Counters;
use crate::send_budget::SendBudget;

/// Counters and budget. In a box of its own, as few endpoints have any.
#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) counters: Counters,
    budget: Option<SendBudget>,
}

impl Accounts {
    /// `None` if there is nothing to be counted.
    pub(super) fn new(counters: Counters, budget: Option<SendBudget>) -> Option<Box<Self>> {
        let some = !counters.is_empty() || budget.is_some();
        some.then(|| Box::new(Self { counters, budget }))
    }

    /// Takes a share of the budget for an operation that is about to start.
    #[cold]
    pub(super) fn start(&self) -> Result<(), StartError> {
        self.budget.as_ref().map_or(Ok(()), SendBudget::start)
    }

    /// Counts an operation of the transmit side that ended, and returns its share if it has one.
    #[cold]
    pub(super) fn ended(&self, kind: Kind, ok: bool, has_share: bool) {
        self.counters.ended(kind, ok);
        if has_share {
            self.end();
        }
    }

    /// Returns the share of an operation that did not start.
    #[cold]
    pub(super) fn end(&self) {
        if let Some(budget) = &self.budget {
            budget.end();
        }
    }
}
