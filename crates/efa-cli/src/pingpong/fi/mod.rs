//! A run with libfabric's `fi_pingpong` as the other side, by its control protocol.
//!
//! ```text
//!   efa pingpong --fi            fi_pingpong -p efa -e rdm -c      (under `efa soft-efa run`)
//!     control ◄──────────── TCP ────────────►
//!     session ◄═══ messages of the device ══►
//! ```
//!
//! Both sides have one receive for the longest message posted at any time, and post it again after each message.
//! The client sends first; at the end, each sends `fin`.

mod control;
mod data;
mod session;

use std::time::{Duration, Instant};

use indicatif::ProgressBar;

pub(crate) use self::control::FiControlError;
pub(super) use self::data::{DEFAULT_SIZES, ITERATIONS, all_sizes};

use self::control::FiControl;
use self::session::Session;
use super::client::Subprotocols;
use super::control::Stream;
use super::plan::{Direction, Step};
use super::report::{Report, Row, readable_size};
use super::run::{Device, Measured, insert, interruption, progress_bar};
use super::session::{RunError, Turn};
use super::{Args, PingpongError};
use crate::device::Objects;
use crate::interrupt::Interrupt;

/// Capacity of the completion queue: a send and a receive, and some more.
const CAPACITY: usize = 16;

/// The client: sends first, and measures.
pub(super) fn measure(args: &Args, stream: Stream) -> Result<Measured, PingpongError> {
    let mut control = FiControl::new(stream, args.timeout())?;
    let theirs = control.receive_name()?;
    let device = Device::open(args, control.local_address())?;
    let Objects { endpoint, queue, addresses, link } = Objects::new(&device.domain, CAPACITY)?;
    let peer = insert(&addresses, link, theirs, &endpoint)?;
    let plan = (args.fi_plan(), args.fi_prefix);
    let ours = endpoint.address();
    let mut session = Session::new(endpoint, queue, peer, control, plan, args.timeout())?;
    session.control.send_name(ours)?;
    session.interrupt = Interrupt::catch(|| {})?;
    let progress = progress_bar(session.plan.steps.len());
    let mut rows = Vec::new();
    let result = ask(&mut session, &progress, &mut rows);
    progress.finish_and_clear();
    let interrupted = interruption(result)?;
    if interrupted.is_ok() {
        session.exchange_fin(Direction::ToServer)?;
    }
    let report = Report::new(device.domain.attributes().name, &session.plan, rows);
    let captured = device.close(session.endpoint, interrupted);
    Ok(Measured { report, captured, interrupted })
}

/// The client's control protocol in a run of one size, without its messages.
pub(super) fn control_as_client(stream: Stream, timeout: Duration) -> Result<(), FiControlError> {
    let mut control = FiControl::new(stream, timeout)?;
    let theirs = control.receive_name()?;
    control.send_name(theirs)?;
    control.ask(&mut || {})?;
    control.is_closed()?;
    control.send_count(10, &mut || {})
}

/// The server's control protocol in such a run.
pub(super) fn control_as_server(stream: Stream, timeout: Duration) -> Result<(), FiControlError> {
    let mut control = FiControl::new(stream, timeout)?;
    let theirs = control.receive_name()?;
    control.send_name(theirs)?;
    control.answer(&mut || {})?;
    control.is_closed()?;
    control.receive_count(10, &mut || {})
}

/// The server: replies.
pub(super) fn serve(args: &Args, stream: Stream) -> Result<(), PingpongError> {
    let mut control = FiControl::new(stream, args.timeout())?;
    let device = Device::open(args, control.local_address())?;
    let Objects { endpoint, queue, addresses, link } = Objects::new(&device.domain, CAPACITY)?;
    control.send_name(endpoint.address())?;
    let theirs = control.receive_name()?;
    let peer = insert(&addresses, link, theirs, &endpoint)?;
    let plan = (args.fi_plan(), args.fi_prefix);
    let mut session = Session::new(endpoint, queue, peer, control, plan, args.timeout())?;
    session.interrupt = Interrupt::catch(|| {})?;
    tracing::info!("the run begins");
    let interrupted = interruption(answer(&mut session))?;
    if interrupted.is_ok() {
        session.exchange_fin(Direction::ToClient)?;
    }
    device.close(session.endpoint, interrupted)?;
    Ok(interrupted?)
}

fn ask(
    session: &mut Session,
    progress: &ProgressBar,
    rows: &mut Vec<Row>,
) -> Result<(), PingpongError> {
    for (step, sizes) in (0..).zip(session.plan.steps.clone()) {
        let Step { size, iterations, .. } = sizes;
        progress.set_message(readable_size(size));
        session.control_step(FiControl::ask)?;
        rows.push(round_trips(session, step, sizes)?);
        session.control_step(|control, idle| control.send_count(iterations, idle))?;
        progress.inc(1);
    }
    Ok(())
}

fn round_trips(session: &mut Session, step: u64, sizes: Step) -> Result<Row, RunError> {
    let Step { size, iterations, .. } = sizes;
    let mut subprotocols = Subprotocols::default();
    let mut times = Vec::new();
    let mut ping = vec![0; size as usize];
    for number in 0..iterations {
        let there = Turn { step, number, size, direction: Direction::ToServer };
        let back = Turn { direction: Direction::ToClient, ..there };
        session.fill(&mut ping);
        let begin = Instant::now();
        session.send(there, ping)?;
        let received = session.received(back)?;
        times.push(begin.elapsed());
        let sent = session.sent(there)?;
        subprotocols.add(&sent);
        ping = sent.buffer.into_vec();
        session.verify(back, received)?;
    }
    Ok(Row::of_round_trips(sizes, times, subprotocols.into_names()))
}

fn answer(session: &mut Session) -> Result<(), PingpongError> {
    for (step, Step { size, iterations, .. }) in (0..).zip(session.plan.steps.clone()) {
        let mut pong = vec![0; size as usize];
        session.control_step(FiControl::answer)?;
        for number in 0..iterations {
            let there = Turn { step, number, size, direction: Direction::ToServer };
            let back = Turn { direction: Direction::ToClient, ..there };
            let received = session.received(there)?;
            session.verify(there, received)?;
            session.fill(&mut pong);
            session.send(back, pong)?;
            pong = session.sent(back)?.buffer.into_vec();
        }
        session.control_step(|control, idle| control.receive_count(iterations, idle))?;
    }
    Ok(())
}
