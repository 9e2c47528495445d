//! The server's side of a run: it replies.
//!
//! So that the client doesn't measure writing and checking, the server writes a reply before the message
//! arrives, and checks a message after it has replied.

use std::collections::VecDeque;

use super::plan::{Direction, Mode, Step};
use super::session::{RunError, Session, Turn, mapped_buffer};

/// Runs the whole plan.
pub(crate) fn run(session: &mut Session<'_>) -> Result<(), RunError> {
    for (index, step) in (0..).zip(session.plan.steps.clone()) {
        match session.plan.mode {
            Mode::Latency => answer(session, index, step)?,
            Mode::Bandwidth => take(session, index, step)?,
        }
    }
    Ok(())
}

fn answer(session: &mut Session<'_>, step: u64, sizes: Step) -> Result<(), RunError> {
    let Step { size, iterations, .. } = sizes;
    let count = session.plan.warmup + iterations;
    let there = |number| Turn { step, number, size, direction: Direction::ToServer };
    let back = |number| Turn { step, number, size, direction: Direction::ToClient };
    let buffer = || mapped_buffer(size);
    // The next message may arrive while one is checked.
    let (mut spare, mut pong) = (buffer(), buffer());
    session.fill(back(0), &mut pong);
    session.post(there(0), buffer())?;
    for number in 0..count {
        let received = session.received(there(number))?;
        if number + 1 < count {
            session.post(there(number + 1), spare)?;
        }
        session.send(back(number), pong)?;
        spare = session.verify(there(number), received)?;
        pong = session.sent(back(number))?.buffer.into_vec();
        session.fill(back(number + 1), &mut pong);
    }
    Ok(())
}

fn take(session: &mut Session<'_>, step: u64, sizes: Step) -> Result<(), RunError> {
    let Step { size, iterations, window } = sizes;
    let count = session.plan.warmup + iterations;
    let there = |number| Turn { step, number, size, direction: Direction::ToServer };
    let mut posted = count.min(window);
    for number in 0..posted {
        session.post(there(number), mapped_buffer(size))?;
    }
    // The client waits here until all messages so far are received.
    let mut ends: VecDeque<u64> = [session.plan.warmup, count].into();
    ends.retain(|end| *end > 0);
    for done in 1..=count {
        let received = session.received(there(done - 1))?;
        // Short messages may complete before long ones; the context identifies the receive.
        let number = received.context;
        let buffer = session.verify(there(number), received)?;
        if posted < count {
            session.post(there(posted), buffer)?;
            posted += 1;
        }
        if ends.front() == Some(&done) {
            ends.pop_front();
            let end = Turn { step, number: done, size: 0, direction: Direction::ToClient };
            session.send(end, Vec::new())?;
            session.sent(end)?;
        }
    }
    Ok(())
}
