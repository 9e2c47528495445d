//! A run from the hellos to the end, for both sides.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use efa::{Address, AddressVector, DeviceError, Domain, Endpoint, FiAddr, Link};
use indicatif::{ProgressBar, ProgressStyle};

use super::control::{Channel, ControlError, Message, Stream};
use super::plan::{MAX_WINDOW, Plan};
use super::report::Report;
use super::session::{Early, Problem, RunError, Session};
use super::{Args, FAILURE_TIMEOUT, PingpongError, client, server};
use crate::capture::CaptureFile;
use crate::device::Objects;
use crate::interrupt::{Interrupt, Interrupted};

/// How long to deliver queued packets at the end of a run.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Capacity of the completion queue: a window of receives and of sends, and the replies.
const CAPACITY: usize = 2 * MAX_WINDOW as usize + 4;

/// What a client has measured. An incomplete capture is a failure, and leaves the report valid; so is a signal, which leaves
/// it with the sizes that were finished.
pub(super) struct Measured {
    pub(super) report: Report,
    pub(super) captured: Result<(), PingpongError>,
    pub(super) interrupted: Result<(), Interrupted>,
}

/// The client: plans, runs and measures.
pub(super) fn measure(args: &Args, stream: Stream) -> Result<Measured, PingpongError> {
    let mut channel = Channel::open(stream, args.timeout())?;
    let result = as_client(args, &mut channel);
    conclude(&mut channel, result)
}

/// The server: runs the client's plan.
pub(super) fn serve(args: &Args, mut channel: Channel) -> Result<(), PingpongError> {
    let result = as_server(args, &mut channel);
    conclude(&mut channel, result)
}

fn as_client(args: &Args, channel: &mut Channel) -> Result<Measured, PingpongError> {
    let device = Device::open(args, channel.local_address())?;
    let objects = Objects::new(&device.domain, CAPACITY)?;
    let attributes = device.domain.attributes();
    let plan = args.plan(&attributes, &objects.endpoint);
    let address = objects.endpoint.address().to_string();
    channel.send(&Message::Start { plan: plan.clone(), address })?;
    let theirs = channel.receive_ready()?;
    let mut session = session(objects, &theirs, channel, plan, &device)?;
    session.interrupt = Interrupt::catch(|| {})?;
    let progress = progress_bar(session.plan.steps.len());
    let mut rows = Vec::new();
    let result = client::run(&mut session, &progress, &mut rows);
    progress.finish_and_clear();
    let interrupted = interruption(result)?;
    match &interrupted {
        Ok(()) => {
            session.channel.send(&Message::Done)?;
            session.receive_done()?;
        }
        Err(interrupted) => fail(session.channel, interrupted.to_string()),
    }
    let report = Report::new(attributes.name, &session.plan, rows);
    let captured = device.close(session.endpoint, interrupted);
    Ok(Measured { report, captured, interrupted })
}

fn as_server(args: &Args, channel: &mut Channel) -> Result<(), PingpongError> {
    let (plan, theirs) = channel.receive_start()?;
    plan.check_bounds()?;
    let device = Device::open(args, channel.local_address())?;
    let objects = Objects::new(&device.domain, CAPACITY)?;
    let address = objects.endpoint.address().to_string();
    let mut session = session(objects, &theirs, channel, plan, &device)?;
    session.channel.send(&Message::Ready { address })?;
    // A signal ends the process that a client started: the client tells how.
    if !args.serve_inherited {
        session.interrupt = Interrupt::catch(|| {})?;
    }
    tracing::info!("the run begins");
    let interrupted = interruption(server::run(&mut session))?;
    if interrupted.is_ok() {
        session.receive_done()?;
        session.channel.send(&Message::Done)?;
    }
    device.close(session.endpoint, interrupted)?;
    Ok(interrupted?)
}

/// Tells a signal that has ended a run from its failure.
pub(super) fn interruption(
    result: Result<(), impl Into<PingpongError>>,
) -> Result<Result<(), Interrupted>, PingpongError> {
    match result.map_err(Into::into) {
        Ok(()) => Ok(Ok(())),
        Err(PingpongError::Interrupted(interrupted)) => Ok(Err(interrupted)),
        Err(error) => Err(error),
    }
}

/// Tells the other side why this one has failed.
fn fail(channel: &mut Channel, reason: String) {
    if let Err(error) = channel.send(&Message::Failed { reason }) {
        tracing::debug!(%error, "the failure can't be sent to the other side");
    }
}

/// Ends a run: reports a failure to the other side, or returns the other side's failure if that is the cause.
pub(super) fn conclude<T>(
    channel: &mut Channel,
    result: Result<T, PingpongError>,
) -> Result<T, PingpongError> {
    let error = match result {
        Ok(value) => return Ok(value),
        Err(PingpongError::Run(RunError { source: Problem::Control(error), .. })) => error.into(),
        Err(error) => error,
    };
    if let PingpongError::Control(ControlError::Closed | ControlError::PeerFailed { .. }) = error {
        return Err(error);
    }
    // A failed message may be caused by a failure of the other side. Any other error is this side's, and the
    // other side waits for it.
    if let PingpongError::Run(RunError { source: Problem::Operation(_), .. }) = error
        && let Some(cause) = channel.wait_for_failure(FAILURE_TIMEOUT)
    {
        return Err(cause.into());
    }
    fail(channel, describe(&error));
    Err(error)
}

/// An error with its causes in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The device of one side, and the capture of its packets.
pub(super) struct Device<'a> {
    pub(super) domain: Domain,
    args: &'a Args,
    capture: Option<CaptureFile>,
}

impl<'a> Device<'a> {
    /// `local` is this side's address in the control connection.
    pub(super) fn open(args: &'a Args, local: Option<SocketAddr>) -> Result<Self, PingpongError> {
        let capture = args.capture.file();
        let domain = args.open_device(local, capture.as_ref())?;
        // There is no endpoint yet, and so no packet.
        if let Some(capture) = &capture {
            capture.start(&args.device.soft.name())?;
        }
        Ok(Self { domain, args, capture })
    }

    /// Closes the endpoint, and ends the capture. After an interruption nobody waits for what is under way.
    pub(super) fn close(
        self,
        endpoint: Endpoint,
        interrupted: Result<(), Interrupted>,
    ) -> Result<(), PingpongError> {
        match interrupted {
            Err(_) => drop(endpoint.close(Duration::ZERO)),
            Ok(()) => {
                if let Err(error) = endpoint.close(CLOSE_TIMEOUT) {
                    tracing::warn!(%error, "the endpoint is closed too early");
                }
            }
        }
        match &self.capture {
            Some(capture) => Ok(capture.finish()?),
            None => Ok(()),
        }
    }
}

/// Creates the session with the endpoint at the address `theirs`.
fn session<'a>(
    objects: Objects,
    theirs: &str,
    channel: &'a mut Channel,
    plan: Plan,
    device: &Device<'_>,
) -> Result<Session<'a>, PingpongError> {
    let Objects { endpoint, queue, addresses, link } = objects;
    let theirs: Address = theirs.parse()?;
    let peer = insert(&addresses, link, theirs, &endpoint)?;
    let (timeout, early) = (device.args.timeout(), Early::default());
    let interrupt = Interrupt::default();
    Ok(Session { endpoint, queue, peer, channel, plan, interrupt, timeout, early })
}

/// Inserts the other side's endpoint into the address vector.
pub(super) fn insert(
    addresses: &AddressVector,
    link: Link,
    theirs: Address,
    endpoint: &Endpoint,
) -> Result<FiAddr, PingpongError> {
    endpoint.domain().check_reach(theirs).map_err(|error| not_reached(link, error))?;
    addresses.insert(theirs).map_err(PingpongError::Peer)
}

/// The words for a device that does not reach the other side's: on the shm link it is one device, on the tcp link it depends
/// on the addresses.
fn not_reached(link: Link, error: DeviceError) -> PingpongError {
    let DeviceError::Unreachable { ours, theirs } = error else {
        return PingpongError::Peer(error);
    };
    let [ours, theirs] = [ours, theirs].map(|gid| Ipv6Addr::from(gid.0));
    match link {
        Link::Tcp => {
            let [ours, theirs] = [ours, theirs].map(|address| address.to_canonical());
            PingpongError::NotReached { ours, theirs }
        }
        _ => PingpongError::NotOneHost { ours, theirs },
    }
}

/// A progress bar on standard error, if that is a terminal.
pub(super) fn progress_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} sizes, now {msg}");
    let bar = ProgressBar::new(steps as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use efa::{OperationError, StartError};
    use efa_device::Gid;

    use super::super::plan::Direction;
    use super::super::session::Turn;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The error shown for a failure of this side if the other side reports one too.
    fn error_of(source: Problem) -> String {
        let (a, b) = UnixStream::pair().unwrap();
        let opened = thread::spawn(|| Channel::open(Stream::Unix(a), TIMEOUT).unwrap());
        let mut channel = Channel::open(Stream::Unix(b), TIMEOUT).unwrap();
        let mut other = opened.join().unwrap();
        other.send(&Message::Failed { reason: "theirs".into() }).unwrap();
        let turn = Turn { step: 0, number: 0, size: 8, direction: Direction::ToServer };
        let error = conclude(&mut channel, Err::<(), _>(turn.failed(source).into())).unwrap_err();
        crate::one_line(&error.into())
    }

    #[test]
    fn side_that_is_not_reached_is_named_by_what_its_link_has() {
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().unwrap().octets());
        let words = |link, ours, theirs| {
            let (ours, theirs) = (gid(ours), gid(theirs));
            not_reached(link, DeviceError::Unreachable { ours, theirs }).to_string()
        };
        let shm = words(Link::Shm, "fe80::1", "fe80::2");
        assert!(shm.contains("fe80::1 and fe80::2: both must run on one host"), "{shm}");
        let tcp = words(Link::Tcp, "::ffff:127.0.0.1", "2001:db8::1");
        assert!(tcp.contains("at 127.0.0.1 does not reach the other's at 2001:db8::1"), "{tcp}");
    }

    #[test]
    fn failed_message_reports_the_error_of_the_other_side() {
        assert_eq!(
            error_of(Problem::Start(StartError::Busy { limit: 1 })),
            "message 0 of size 8 to the server: busy: 1 operations under way"
        );
        assert_eq!(
            error_of(Problem::Operation(OperationError::Cancelled)),
            "the other side failed: theirs"
        );
    }
}
