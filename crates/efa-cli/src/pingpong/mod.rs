//! `efa pingpong`: two processes exchange messages of all sizes and tell how long it took.
//!
//! ```text
//!                     plan, addresses (control)
//!   client process ◄─────────────────────────────► server process
//!   mod ► client                                   mod ► server
//!     └─► session ◄══ messages over the device ══► session
//!     └─► report
//! ```
//!
//! * `mod`: arguments, who is who, and how a run begins and ends
//! * `sizes`, `plan`, `pattern`: which messages, how many, of which bytes
//! * `control`, `process`: the other side, and the channel to it
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
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use efa::{Domain, EndpointAttributes};
use efa_sim::capture::CaptureError;

use self::connect::{ConnectError, HostPort, Listening};
use self::control::ControlError;
use self::fi::FiControlError;
use self::plan::{MAX_ITERATIONS, MAX_WINDOW, Mode, Plan, PlanError, Step};
use self::process::{ProcessError, ServerProcess};
use self::report::Report;
use self::session::RunError;
use self::sizes::Sizes;
use crate::device::{CaptureFile, DeviceArgs, Kind, PropertyArgs, SoftLink, TcpHost, host_address};
use crate::output;

/// Repetitions before those that count, if nothing else is asked for.
const WARMUP: u64 = 10;
/// How long to wait for the reason why the other side is gone.
const LAST_WORDS: Duration = Duration::from_millis(500);

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
It agrees on nothing beforehand, so that both sides need the same options: -c is our default (else \
--no-check), -I --iterations, -S --sizes (-S all: --all-sizes), -m tagged --tagged.

With --device verbs the packets go by an interface of this machine, which reaches other hosts: start \
`efa pingpong --device verbs --listen 0.0.0.0` there and `efa pingpong --device verbs THERE` here.

Sizes are in bytes or with k, M, G; a range doubles from its first size up to its last. Sizes, \
repetitions and all that messages are like is for the client to say.")]
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
    /// Be the server for the client at the other end of standard input
    #[arg(long, hide = true, conflicts_with = "listen")]
    serve_inherited: bool,
    /// The other side is libfabric's `fi_pingpong -p efa -e rdm -c`
    #[arg(long, requires = "side", conflicts_with_all = ["warmup", "cq_data", "bandwidth"])]
    fi: bool,
    /// The sizes of `fi_pingpong -S all`: powers of two, and those and a half, up to 6M
    #[arg(long, requires = "fi", conflicts_with = "sizes")]
    all_sizes: bool,
    /// Sizes of messages, such as `0,8,1k,64K,1M-6M` [default: up to 6M, with those around each
    /// change of the subprotocol]
    #[arg(long, value_name = "LIST")]
    sizes: Option<Sizes>,
    /// Repetitions of each size [default: 5000, fewer of long messages]
    #[arg(long, value_name = "N",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=MAX_ITERATIONS))]
    iterations: Option<u64>,
    /// Repetitions of each size before those that count
    #[arg(long, value_name = "N", conflicts_with = "listen", default_value_t = WARMUP,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_ITERATIONS))]
    warmup: u64,
    /// Send tagged messages, each with a tag of its own
    #[arg(long)]
    tagged: bool,
    /// Send 64 bits of completion data along with each message
    #[arg(long, conflicts_with = "listen")]
    cq_data: bool,
    /// Don't write and check all bytes of all messages
    #[arg(long)]
    no_check: bool,
    /// Measure one-way streams instead of round trips
    #[arg(long, conflicts_with = "listen")]
    bandwidth: bool,
    /// Messages under way at a time [default: 64, fewer of long messages]
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
    /// Write all packets that this side sends and receives into a file for `efa decode`
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// How long to wait for the other side in any one place
    #[arg(long, value_name = "SECONDS", default_value = "30",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=86400))]
    timeout: u64,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    properties: PropertyArgs,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PingpongError {
    /// The device doesn't open.
    #[error("cannot open the device")]
    Device(#[source] efa::Error),
    /// The endpoint can't be had.
    #[error("cannot make an endpoint")]
    Endpoint(#[from] efa::EnableError),
    /// The other side's endpoint has no address.
    #[error("the other side's address makes no sense")]
    Address(#[from] efa::AddressError),
    /// The other side's endpoint can't be addressed.
    #[error("cannot address the other side")]
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
    /// One side is at an address that reaches only its own host.
    #[error(
        "this side's device is at {ours} and the other's at {theirs}: a loopback address reaches its own \
         host only; give both sides --link tcp with the --address by which the other reaches them"
    )]
    Loopback {
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
    Run(#[from] RunError),
    /// The capture can't be written.
    #[error("{}: cannot write the capture", file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: CaptureError,
    },
    /// The result can't be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl Args {
    /// What clap can't refuse: options that are for the client to say, unless the server speaks
    /// with `fi_pingpong`, where both need them.
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
        match self.link {
            Some(SoftLink::Tcp) if self.properties.rnr.is_some() => {
                Some("--rnr is of the shm link".into())
            }
            None | Some(SoftLink::Shm) if self.address.is_some() => {
                Some("--address is of the tcp link".into())
            }
            _ => self.device.conflict(&self.properties, self.of_soft()),
        }
    }

    /// An option that is of the software device alone, beside those of the device.
    fn of_soft(&self) -> Option<&'static str> {
        let capture = self.capture.is_some().then_some("--capture");
        capture.or(self.link.is_some().then_some("--link"))
    }

    fn kind(&self) -> Kind {
        self.device.kind(&self.properties, self.of_soft())
    }

    /// Opens the device for a run with the side at the other end of a control connection from `local`;
    /// if there is a capture file, all packets go into that.
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

    /// How long to wait for the other side in any one place.
    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// What to do, on a device with datagrams of `mtu` bytes and endpoints like this one.
    fn plan(&self, mtu: u64, endpoint: &EndpointAttributes) -> Plan {
        let sizes = match &self.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None => {
                let longest_eager = plan::longest_eager(mtu, self.tagged, self.cq_data);
                plan::usual_sizes(longest_eager, endpoint.max_medium)
            }
        };
        // Each side sends or receives a whole window at a time.
        let widest = endpoint.transmit_size.min(endpoint.receive_size) as u64;
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

    /// What to do with `fi_pingpong`.
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

    /// The arguments of a server process for this client.
    fn for_server(&self) -> Vec<OsString> {
        let DeviceArgs { interface, soft, .. } = &self.device;
        let kind = self.kind();
        let mut arguments: Vec<OsString> = ["pingpong", "--serve-inherited"].map(Into::into).into();
        arguments.extend(["--timeout".into(), self.timeout.to_string().into()]);
        arguments.extend(["--device".into(), kind.setting().into()]);
        if let Some(interface) = interface {
            arguments.extend(["--interface".into(), interface.into()]);
        }
        if kind != Kind::Verbs {
            arguments.extend(["--device-name".into(), soft.name().into()]);
        }
        if let Some(directory) = &soft.directory {
            arguments.extend(["--directory".into(), directory.into()]);
        }
        let PropertyArgs { device_rdma, reorder, rnr } = &self.properties;
        for (option, value) in [
            ("--device-rdma", device_rdma.map(|which| which.setting().to_owned())),
            ("--reorder", reorder.map(|seed| seed.to_string())),
            ("--rnr", rnr.map(|rate| rate.to_string())),
            ("--link", self.link.map(|link| link.setting().to_owned())),
            ("--address", self.address.map(|address| address.to_string())),
        ] {
            if let Some(value) = value {
                arguments.extend([option.into(), value.into()]);
            }
        }
        arguments
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), PingpongError> {
    if args.serve_inherited {
        serve_parent(args)
    } else if let Some(at) = &args.listen {
        let listening = Listening::at(at)?;
        // Whoever knows the address need not be told.
        output::tolerate_closed(announce(args, listening.address))?;
        let stream = listening.accept()?;
        if args.fi { fi::serve(args, stream) } else { run::serve(args, stream) }
    } else if let Some(host) = &args.host {
        let stream = connect::connect(host, args.patience())?;
        let report = if args.fi { fi::measure(args, stream)? } else { run::measure(args, stream)? };
        print(args, &report)
    } else {
        print(args, &with_own_server(args)?)
    }
}

/// Measures against a server process that lives as long as the run.
fn with_own_server(args: &Args) -> Result<Report, PingpongError> {
    let (mut server, stream) = ServerProcess::start(args.for_server())?;
    match run::measure(args, stream) {
        Ok(report) => {
            let status = server.wait(args.patience())?;
            let ended_well = status.success().then_some(report);
            ended_well.ok_or_else(|| ProcessError::Failed { status }.into())
        }
        // How it ended tells more than that it did.
        Err(PingpongError::Control(ControlError::Closed)) => match server.wait(LAST_WORDS) {
            Ok(status) => Err(ProcessError::EndedEarly { status }.into()),
            Err(_) => Err(ControlError::Closed.into()),
        },
        Err(error) => {
            // It has been told, or has told it, and ends. Killed now, it would leave its part of the device.
            let _ = server.wait(LAST_WORDS);
            Err(error)
        }
    }
}

/// Serves the process that started this one. What goes wrong is told to it and to nobody else; if
/// it is gone, that is no failure of ours.
fn serve_parent(args: &Args) -> Result<(), PingpongError> {
    let parent = process::Parent::this();
    let stream = process::inherited()?;
    if let Err(error) = run::serve(args, stream) {
        tracing::debug!(error = &error as &dyn std::error::Error, "the server ends early");
        let told = matches!(error, PingpongError::Control(ControlError::PeerFailed { .. }));
        if !told && parent.ends_within(LAST_WORDS) {
            // It was killed. Whoever opens the device removes what dead processes left there.
            args.open_device(None, None)?;
        }
    }
    Ok(())
}

/// Tells where the server listens.
fn announce(args: &Args, address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "listening": address.to_string() }))?;
    } else {
        writeln!(out, "listening on {address}")?;
    }
    out.flush()
}

/// Prints the result.
fn print(args: &Args, report: &Report) -> Result<(), PingpongError> {
    let text = if args.json { report.json() } else { report.table() };
    Ok(output::tolerate_closed(writeln!(io::stdout(), "{text}"))?)
}
