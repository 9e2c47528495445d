//! `efa pingpong`: two processes exchange messages of all sizes and measure the time.
//!
//! ```text
//!                     plan, addresses (control)
//!   client process ◄─────────────────────────────► server process
//!   mod ► client                                   mod ► server
//!     └─► session ◄══ messages over the device ══► session
//!     └─► report
//! ```
//!
//! * `mod`: arguments, and the choice of client or server
//! * `sizes`, `plan`, `pattern`: sizes, counts and bytes of the messages
//! * `connect`, `control`, `process`: finding or starting the other side, and the control channel to it
//! * `run`, `session`, `client`, `server`: the run itself
//! * `fi`: the run with libfabric's `fi_pingpong` as the other side
//! * `report`: the table and its JSON form

mod client;
mod connect;
mod control;
mod fi;
pub(crate) mod hostile;
mod pattern;
mod plan;
mod process;
mod report;
mod run;
mod server;
mod session;
mod sizes;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use efa::{Domain, DomainAttributes, Endpoint};

pub(crate) use self::connect::why_no_port;
use self::connect::{ConnectError, HostPort, Listening};
use self::control::{Channel, ControlError};
use self::fi::FiControlError;
use self::plan::{MAX_ITERATIONS, MAX_WINDOW, Mode, Plan, PlanError, Step};
use self::process::{ProcessError, ServerProcess};
pub(crate) use self::report::readable_size;
use self::run::Measured;
use self::session::{Problem, RunError};
use self::sizes::Sizes;
pub(crate) use self::sizes::size;
use crate::capture::{CaptureArgs, CaptureFailed, CaptureFile};
use crate::child::option;
use crate::device::{DeviceArgs, Kind, PropertyArgs, SoftLink, TcpHost, host_address};
use crate::interrupt::{CatchError, Interrupted};
use crate::output;

/// Default of `--warmup`.
const WARMUP: u64 = 10;
/// How long to wait for the error of a side that has closed the connection.
const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);

/// Arguments of `efa pingpong`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without HOST and --listen, the server is started as a second process on this host, and ended with \
the run. By hand, start `efa pingpong --listen` first and `efa pingpong HOST` then, both on the same \
host; or on two hosts, both with --link tcp:
  there$ efa pingpong --link tcp --listen 0.0.0.0
  here$  efa pingpong --link tcp THERE

With --fi, the other side is libfabric's fi_pingpong, on the same software device:
  efa soft-efa run -- fi_pingpong -p efa -e rdm -c & efa pingpong --fi 127.0.0.1
fi_pingpong doesn't exchange its options, so both sides need the same: -c is the default here (else \
--no-check), -I --iterations, -S --sizes (-S all: --all-sizes), -m tagged --tagged.
From libfabric 2.1 on it prefers the fabric efa-direct, whose messages have no protocol: give it -f efa. \
From 2.4 on it also sends the space that it leaves before a message: give this side --fi-prefix 176.

With --device verbs the packets go by an interface of this machine, which reaches other hosts: start \
`efa pingpong --device verbs --listen 0.0.0.0` there and `efa pingpong --device verbs THERE` here.

Ctrl-C or SIGTERM during the measurement ends it: the sizes that are finished are printed, with \
\"complete\":false in JSON, and the capture is complete up to there. The other side fails.

Sizes are in bytes or with k, M, G; a range doubles from its first size up to its last. Sizes, \
repetitions and properties of the messages are options of the client.

Exit codes: 0 success, 1 failure, 2 invalid command line, 130 interrupted by Ctrl-C, 143 by SIGTERM.")]
pub(crate) struct Args {
    /// Connect to a server that was started by hand [default port: 47592]
    #[arg(value_name = "HOST[:PORT]", conflicts_with = "listen", group = "side")]
    host: Option<HostPort>,
    /// Be the server for one client [default: 127.0.0.1:47592; port 0 picks one]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1",
        group = "side",
    )]
    listen: Option<HostPort>,
    /// Be the server of the client connected to standard input
    #[arg(long, hide = true, conflicts_with = "listen")]
    serve_inherited: bool,
    /// The other side is libfabric's `fi_pingpong -p efa -e rdm -c`
    #[arg(long, requires = "side", conflicts_with_all = ["warmup", "cq_data", "bandwidth"])]
    fi: bool,
    /// Bytes that `fi_pingpong` sends before each message: 176 from libfabric 2.4 on, with `-f efa`
    #[arg(
        long,
        value_name = "BYTES",
        requires = "fi",
        default_value = "0",
        hide_default_value = true
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(..=4096))]
    fi_prefix: u16,
    /// The sizes of `fi_pingpong -S all`: powers of two, and one and a half times them, up to 6M
    #[arg(long, requires = "fi", conflicts_with = "sizes")]
    all_sizes: bool,
    /// Message sizes, such as `0,8,1k,64K,1M-6M` [default: up to 6M, with the sizes around each change of
    /// the subprotocol]
    #[arg(long, value_name = "LIST")]
    sizes: Option<Sizes>,
    /// Measured repetitions of each size [default: 5000, fewer for long messages]
    #[arg(long, value_name = "N",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=MAX_ITERATIONS))]
    iterations: Option<u64>,
    /// Repetitions of each size before the measured ones
    #[arg(long, value_name = "N", conflicts_with = "listen", default_value_t = WARMUP,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_ITERATIONS))]
    warmup: u64,
    /// Send tagged messages, each with a tag of its own
    #[arg(long)]
    tagged: bool,
    /// Send 64 bits of CQ data with each message
    #[arg(long, conflicts_with = "listen")]
    cq_data: bool,
    /// Don't write and check the bytes of the messages
    #[arg(long)]
    no_check: bool,
    /// Measure one-way streams instead of round trips
    #[arg(long, conflicts_with = "listen")]
    bandwidth: bool,
    /// Messages under way at a time [default: 64, fewer for long messages]
    #[arg(long, value_name = "N", conflicts_with = "listen", requires = "bandwidth",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=MAX_WINDOW))]
    window: Option<u64>,
    /// What connects the software devices of the two sides: shared memory of this host, or TCP
    /// [default: shm]
    #[arg(long)]
    link: Option<SoftLink>,
    /// With --link tcp, the address by which the other side reaches this host [default: this host's
    /// address in the connection to HOST or from the client]
    #[arg(long, value_name = "IP", requires = "link", value_parser = host_address)]
    address: Option<IpAddr>,
    #[command(flatten)]
    capture: CaptureArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Seconds to wait for the other side at any one point; --listen waits for its client without end
    #[arg(long, value_name = "SECONDS", default_value = "30",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=86400))]
    timeout: u64,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    properties: PropertyArgs,
}

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PingpongError {
    /// The device can't be opened.
    #[error("cannot open the device")]
    Device(#[source] efa::Error),
    /// The endpoint can't be created.
    #[error("cannot create an endpoint")]
    Endpoint(#[from] efa::EnableError),
    /// The other side's address is invalid.
    #[error("invalid address of the other side")]
    Address(#[from] efa::AddressError),
    /// The address vector refuses the other side's address.
    #[error("cannot insert the other side's address")]
    Peer(#[source] efa::DeviceError),
    /// The other side is not on this host, or uses another device.
    #[error(
        "the two sides use different devices, {ours} and {theirs}: both must run on one host, by one user, \
         with the same --device-name and --directory, or both with --link tcp"
    )]
    NotOneHost {
        /// The other side's.
        theirs: Ipv6Addr,
        /// This side's.
        ours: Ipv6Addr,
    },
    /// This side is at an address that doesn't reach the other one's.
    #[error(
        "this side's device at {ours} does not reach the other's at {theirs}: a loopback address reaches its own host \
         only, and an address of IPv4 none of IPv6; give both sides --link tcp with the --address by which the other \
         reaches them"
    )]
    NotReached {
        /// The other side's.
        theirs: IpAddr,
        /// This side's.
        ours: IpAddr,
    },
    /// The plan is refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No connection to the other side.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The control channel failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The control channel to `fi_pingpong` failed.
    #[error(transparent)]
    FiControl(#[from] FiControlError),
    /// The server process failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A message failed.
    #[error(transparent)]
    Run(RunError),
    /// Signals can't be caught.
    #[error(transparent)]
    Signals(#[from] CatchError),
    /// A signal came before the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The capture can't be written.
    #[error(transparent)]
    Capture(#[from] CaptureFailed),
    /// The result can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<RunError> for PingpongError {
    /// A signal has nothing to do with the message.
    fn from(error: RunError) -> Self {
        match error.source {
            Problem::Interrupted(interrupted) => interrupted.into(),
            _ => Self::Run(error),
        }
    }
}

impl PingpongError {
    /// The exit code of the process.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Interrupted(interrupted) => interrupted.code(),
            _ => 1,
        }
    }
}

impl Args {
    /// A message about options that exclude each other, beyond what clap checks: options of the client that
    /// the server needs with `fi_pingpong` only.
    pub(crate) fn conflict(&self) -> Option<String> {
        let clients = [
            ("--sizes", self.sizes.is_some()),
            ("--iterations", self.iterations.is_some()),
            ("--tagged", self.tagged),
            ("--no-check", self.no_check),
        ];
        let given = clients.into_iter().find(|(_, given)| *given);
        if let Some((option, _)) = given.filter(|_| self.listen.is_some() && !self.fi) {
            return Some(format!(
                "the argument '{option}' cannot be used with '--listen' without '--fi'"
            ));
        }
        let of_link = self.device.conflict_of_link(self.link, self.address, &self.properties);
        of_link.or_else(|| self.device.conflict(&self.properties, self.of_soft()))
    }

    /// The first option given here that needs the software device.
    fn of_soft(&self) -> Option<&'static str> {
        self.capture.given().or(self.link.is_some().then_some("--link"))
    }

    fn kind(&self) -> Kind {
        self.device.kind(&self.properties, self.of_soft())
    }

    /// Opens the device. `local` is this side's address in the control connection, the default for the tcp
    /// link; packets are captured into `capture`.
    fn open_device(
        &self,
        local: Option<SocketAddr>,
        capture: Option<&CaptureFile>,
    ) -> Result<Domain, PingpongError> {
        let opened = match (self.kind(), self.link) {
            (Kind::Verbs, _) => self.device.open_interface(),
            (_, Some(SoftLink::Tcp)) => {
                let of_connection = local.map_or(TcpHost::LOOPBACK, TcpHost::from);
                let host = self.address.map_or(of_connection, TcpHost::from);
                host.open(&self.properties, capture)
            }
            _ => self.device.soft.open(&self.properties, capture),
        };
        opened.map_err(PingpongError::Device)
    }

    /// Seconds to wait for the other side at any one point.
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// The plan of a run on a device with these attributes.
    fn plan(&self, device: &DomainAttributes, endpoint: &Endpoint) -> Plan {
        let sizes = match &self.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None => {
                let longest_eager =
                    plan::longest_eager(device.mtu as u64, self.tagged, self.cq_data);
                let max_medium = endpoint.attributes().max_medium;
                plan::usual_sizes([longest_eager, max_medium, device.reads_pay_from])
            }
        };
        // Each side posts a whole window at a time.
        let (transmit, receive) = (endpoint.transmit_attributes(), endpoint.receive_attributes());
        let widest = transmit.size.min(receive.size) as u64;
        let mode = if self.bandwidth { Mode::Bandwidth } else { Mode::Latency };
        let step = |size| Step {
            size,
            iterations: self.iterations.unwrap_or_else(|| plan::usual_iterations(size)),
            window: match mode {
                Mode::Latency => 1,
                Mode::Bandwidth => {
                    self.window.unwrap_or_else(|| plan::usual_window(size)).min(widest)
                }
            },
        };
        Plan {
            mode,
            tagged: self.tagged,
            cq_data: self.cq_data,
            check: !self.no_check,
            warmup: self.warmup,
            steps: sizes.into_iter().map(step).collect(),
        }
    }

    /// The plan of a run with `fi_pingpong`.
    fn fi_plan(&self) -> Plan {
        let sizes = match &self.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None if self.all_sizes => fi::all_sizes(),
            None => fi::DEFAULT_SIZES.into(),
        };
        let iterations = self.iterations.unwrap_or(fi::ITERATIONS);
        let step = |size| Step { size, iterations, window: 1 };
        Plan {
            mode: Mode::Latency,
            tagged: self.tagged,
            cq_data: false,
            check: !self.no_check,
            warmup: 0,
            steps: sizes.into_iter().map(step).collect(),
        }
    }

    /// The arguments for the server process of this client.
    fn for_server(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["pingpong", "--serve-inherited"].map(Into::into).into();
        arguments.push(option("--timeout", self.timeout.to_string()));
        let Self { link, address, device, properties, .. } = self;
        arguments.extend(device.for_child(self.kind(), *link, *address, properties));
        arguments
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), PingpongError> {
    if args.serve_inherited {
        serve_parent(args)
    } else if let Some(at) = &args.listen {
        let listening = Listening::at(at)?;
        // A reader that has closed the pipe doesn't need the address.
        output::tolerate_closed(announce(args, listening.address))?;
        if args.fi {
            fi::serve(args, listening.accept()?)
        } else {
            run::serve(args, accept_client(&listening, args.timeout())?)
        }
    } else if let Some(host) = &args.host {
        let stream = connect::connect(host, args.timeout())?;
        let measure = if args.fi { fi::measure } else { run::measure };
        print(args, measure(args, stream)?)
    } else {
        print(args, with_own_server(args)?)
    }
}

/// How long a connection may say nothing before others are served.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Waits for a client. Connections of other programs, which may look for open ports, are closed.
fn accept_client(listening: &Listening<'_>, timeout: Duration) -> Result<Channel, PingpongError> {
    loop {
        let opened = Channel::open(listening.accept()?, timeout.min(FIRST_WORD));
        match opened.and_then(|channel| channel.with_timeout(timeout)) {
            Ok(channel) => return Ok(channel),
            Err(error @ ControlError::Version { .. }) => return Err(error.into()),
            Err(error) => {
                let error = crate::one_line(&error.into());
                output::print_error(format_args!("warning: a connection of no client: {error}"));
            }
        }
    }
}

/// Measures with a server process started for the run.
fn with_own_server(args: &Args) -> Result<Measured, PingpongError> {
    let (mut server, stream) = ServerProcess::start(args.for_server())?;
    match run::measure(args, stream) {
        Ok(measured) if measured.interrupted.is_err() => {
            // It knows, and its exit status is of no interest.
            let _ = server.wait(FAILURE_TIMEOUT);
            Ok(measured)
        }
        Ok(measured) => {
            let status = server.wait(args.timeout())?;
            let ended_well = status.success().then_some(measured);
            ended_well.ok_or_else(|| ProcessError::Failed { status }.into())
        }
        // The exit status says more than the closed channel.
        Err(PingpongError::Control(ControlError::Closed)) => match server.wait(FAILURE_TIMEOUT) {
            Ok(status) => Err(ProcessError::EndedEarly { status }.into()),
            Err(_) => Err(ControlError::Closed.into()),
        },
        Err(error) => {
            // It knows of the failure and ends. Killed now, it would leave files of the device.
            let _ = server.wait(FAILURE_TIMEOUT);
            Err(error)
        }
    }
}

/// Serves the process that started this one. Errors are sent to that process only; its end is no error.
fn serve_parent(args: &Args) -> Result<(), PingpongError> {
    let parent = process::Parent::this();
    let stream = process::inherited()?;
    let served = Channel::open(stream, args.timeout()).map_err(PingpongError::from);
    if let Err(error) = served.and_then(|channel| run::serve(args, channel)) {
        tracing::debug!(error = &error as &dyn std::error::Error, "the server ends early");
        let known = matches!(error, PingpongError::Control(ControlError::PeerFailed { .. }));
        if !known && parent.ends_within(FAILURE_TIMEOUT) {
            // It was killed. Opening the device removes the files of dead processes.
            args.open_device(None, None)?;
        }
    }
    Ok(())
}

/// Prints where the server listens.
fn announce(args: &Args, address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "listening": address.to_string() }))?;
    } else {
        writeln!(out, "listening on {address}")?;
    }
    out.flush()
}

/// Prints the result, and then fails if the capture is incomplete or the run was interrupted.
fn print(args: &Args, measured: Measured) -> Result<(), PingpongError> {
    let Measured { report, captured, interrupted } = measured;
    let text = if args.json { report.json() } else { report.table() };
    output::tolerate_closed(writeln!(io::stdout(), "{text}"))?;
    captured?;
    Ok(interrupted?)
}
