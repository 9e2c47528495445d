//! Debian's programs for libfabric, unmodified, on our provider: `fi_info`, `fi_pingpong`, Open MPI.
//!
//! Needs the packages libfabric-bin, openmpi-bin, libopenmpi-dev, python3-mpi4py and netpipe-openmpi, and runs only
//! with `EFA_INTEROP=1`, which says that they are there, as `cargo xtask test` does: without, the tests say so and pass.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Running, Scratch, efa, until, with_c_packages};

/// A directory with the provider as libfabric looks for it, and one for the hosts of the software device.
struct Place {
    provider: Scratch,
    hosts: Scratch,
}

impl Place {
    fn new() -> Self {
        let provider = Scratch::new("provider");
        std::fs::create_dir(&provider).unwrap();
        std::os::unix::fs::symlink(library(), provider.as_ref().join("libefars-fi.so")).unwrap();
        // The device creates it, for this user alone.
        Self { provider, hosts: Scratch::new("hosts") }
    }

    /// A program of libfabric on our provider, over shared memory.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        command.env("FI_EFARS_DEVICE", "shm").env("FI_EFARS_SHM_DIRECTORY", self.hosts.as_str());
        self.set_up(command)
    }

    /// A program under `efa soft-efa run`.
    fn soft_efa(&self, program: &[&str]) -> Command {
        let mut command = efa(["soft-efa", "run", "--directory", self.hosts.as_str(), "--"]);
        command.args(program);
        self.set_up(command)
    }

    /// A program under `efa soft-efa run`, with our provider in place of Amazon's.
    fn in_place(&self, program: &[&str]) -> Command {
        let mut command = self.soft_efa(program);
        command.env("EFARS_NAME", "efa").env("FI_EFARS_DEVICE", "verbs");
        command
    }

    /// A program under `efa soft-efa run` on Amazon's provider.
    fn amazons(&self, program: &[&str]) -> Command {
        let mut command = self.soft_efa(program);
        // No provider is there.
        command.env("FI_PROVIDER_PATH", "/");
        command
    }

    /// `fi_info` shows which provider `efa` is: ours has version 300.0, Amazon's that of libfabric.
    #[track_caller]
    fn shows_who_efa_is(&self) {
        let arguments = ["fi_info", "-p", "efa"];
        let versions = |command: &mut Command| {
            let text = Running::start(command).finish().success();
            assert!(text.contains("type: FI_EP_RDM"), "{text}");
            let versions = text.lines().filter_map(|line| line.trim().strip_prefix("version: "));
            let mut versions: Vec<_> = versions.map(str::to_owned).collect();
            versions.dedup();
            versions
        };
        assert_eq!(versions(&mut self.in_place(&arguments)), ["300.0"]);
        let amazons = versions(&mut self.amazons(&arguments));
        assert!(!amazons.is_empty() && !amazons.contains(&"300.0".to_owned()), "{amazons:?}");
    }

    fn set_up(&self, mut command: Command) -> Command {
        command.env("FI_PROVIDER_PATH", self.provider.as_str());
        for name in ["FI_PROVIDER", "FI_LOG_LEVEL", "FI_LOG_PROV", "FI_LOG_SUBSYS", "EFARS_NAME"] {
            command.env_remove(name);
        }
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        Running::start(&mut self.command(program, arguments)).finish().success()
    }
}

/// The library, which cargo builds with these tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = |directory: &Path| directory.join("libefars_fi.so");
    let found = [built, built.parent().unwrap()].map(library).into_iter().find(|it| it.exists());
    found.expect("libefars_fi.so was not built")
}

#[test]
fn fi_info_lists_both_kinds_of_endpoints_and_nothing_stacked_on_them() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    let text = place.run("fi_info", &["-p", "efars"]);
    for line in ["provider: efars", "fabric: efa-shm", "type: FI_EP_RDM", "type: FI_EP_MSG"] {
        assert!(text.contains(line), "no `{line}` in {text}");
    }
    let connected = place.run("fi_info", &["-p", "efars", "-t", "FI_EP_MSG"]);
    assert!(connected.contains("FI_EP_MSG") && !connected.contains("FI_EP_RDM"), "{connected}");
    let all = place.run("fi_info", &[]);
    assert!(all.contains("provider: efars") && !all.contains("efars;"), "{all}");
}

#[test]
fn fi_info_lists_every_parameter_of_the_tool_and_the_devices() {
    if !with_c_packages() {
        return;
    }
    let text = Place::new().run("fi_info", &["-e"]);
    let listed: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# FI_EFARS_")?.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect();

    let parameters = Running::start(&mut efa(["info", "--parameters"])).finish().success();
    // The rest is known and has no effect.
    let (with_effect, _) = parameters.split_once("without effect here").expect("two lists");
    let mut expected: BTreeSet<_> = with_effect
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|name| name.strip_prefix("FI_EFARS_").or(name.strip_prefix("FI_EFA_")))
        .map(str::to_owned)
        .collect();
    assert!(expected.len() > 60, "{parameters}");
    // Those that libfabric's programs alone have.
    expected.extend(["DEVICE", "CLOSE_TIMEOUT"].map(str::to_owned));
    assert_eq!(listed, expected);
}

#[test]
fn setting_counts_by_amazons_name_where_ours_is_not_set() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    let size = |variables: &[(&str, &str)]| {
        let mut command = place.command("fi_info", &["-p", "efars", "-t", "FI_EP_RDM", "-v"]);
        command.envs(variables.iter().copied());
        let text = Running::start(&mut command).finish().success();
        let (_, transmit) = text.split_once("fi_tx_attr").expect("attributes of sends");
        let (transmit, _) = transmit.split_once("fi_rx_attr").expect("attributes of receives");
        let size = transmit.lines().find_map(|line| line.trim().strip_prefix("size: "));
        size.expect("a size").to_owned()
    };
    let amazons = ("FI_EFA_TX_SIZE", "1017");
    assert_ne!(size(&[]), "1017");
    assert_eq!(size(&[amazons]), "1017");
    assert_eq!(size(&[amazons, ("FI_EFARS_TX_SIZE", "513")]), "513");
}

#[test]
fn log_of_libfabric_names_a_mistaken_setting_unless_this_provider_is_left_out() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    let logged = |variables: &[(&str, &str)]| {
        let mut command = place.command("fi_info", &["-p", "efars"]);
        command.env("FI_EFARS_TX_SIZE", "few").envs(variables.iter().copied());
        let outcome = Running::start(&mut command).finish();
        let text = outcome.stderr.clone();
        outcome.success();
        text
    };
    let is_ours = |line: &str| line.contains(":efars:") && line.contains("FI_EFARS_TX_SIZE=few");
    let warned = logged(&[("FI_LOG_LEVEL", "warn")]);
    assert!(warned.lines().any(is_ours), "{warned}");
    let others = logged(&[("FI_LOG_LEVEL", "warn"), ("FI_LOG_PROV", "^efars")]);
    assert!(!others.contains("efars:") && !others.contains("FI_EFARS_TX_SIZE"), "{others}");
    assert_eq!(logged(&[]), "");
}

#[test]
fn device_is_an_interface_where_there_is_one_or_that_with_the_name() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    let listed = |device: Option<&str>| {
        let mut command = place.soft_efa(&["fi_info", "-p", "efars", "-t", "FI_EP_RDM"]);
        command.env_remove("FI_EFARS_DEVICE");
        command.envs(device.map(|device| ("FI_EFARS_DEVICE", device)));
        Running::start(&mut command).finish()
    };
    let domain = |text: &str| {
        let domain = text.lines().find_map(|line| line.trim().strip_prefix("domain: "));
        domain.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let unset = listed(None).success();
    assert!(unset.contains("fabric: efa-verbs"), "{unset}");
    let name = domain(&unset);
    let named = listed(Some(&format!("verbs:{name}"))).success();
    assert_eq!(domain(&named), name);
    let missing = listed(Some("verbs:no-such-interface"));
    assert_ne!(missing.code, Some(0), "{missing:?}");
    // Without an interface it is shared memory.
    let mut command = place.command("fi_info", &["-p", "efars"]);
    command.env_remove("FI_EFARS_DEVICE");
    let text = Running::start(&mut command).finish().success();
    assert!(text.contains("fabric: efa-shm"), "{text}");
}

/// `fi_pingpong` with all sizes over shared memory.
#[track_caller]
fn pingpong(options: &[&str]) {
    if with_c_packages() {
        let (place, options) = (Place::new(), [&["-p", "efars"], options].concat());
        let command = |arguments: &[&str]| place.command("fi_pingpong", arguments);
        pingpong_between(&options, command, command);
    }
}

/// `fi_pingpong` with all sizes between programs that get these options; both sides check the data.
#[track_caller]
fn pingpong_between(
    options: &[&str],
    server: impl Fn(&[&str]) -> Command,
    client: impl Fn(&[&str]) -> Command,
) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let common = [&["-c", "-S", "all", "-I", "3"], options].concat();
    let mut server = Running::start(&mut server(&[&common[..], &["-B", &port]].concat()));
    until("listening", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{:04X} 00000000:0000 0A", port.parse::<u16>().unwrap());
        assert!(server.is_running(), "the server has ended");
        table.contains(&local)
    });
    let mut client = client(&[&common[..], &["-P", &port, "127.0.0.1"]].concat());
    let rows = |text: &str| {
        text.lines().filter(|line| line.split_whitespace().nth(2) == Some("=3")).count()
    };
    let sent = Running::start(&mut client).finish().success();
    let received = server.finish().success();
    assert!(rows(&sent) > 40 && rows(&sent) == rows(&received), "{sent}\n{received}");
}

#[test]
fn fi_pingpong_sends_messages_of_all_sizes_by_datagrams() {
    pingpong(&["-e", "rdm"]);
}

#[test]
fn fi_pingpong_sends_tagged_messages_of_all_sizes_by_datagrams() {
    pingpong(&["-e", "rdm", "-m", "tagged"]);
}

#[test]
fn fi_pingpong_sends_messages_of_all_sizes_over_a_connection() {
    pingpong(&["-e", "msg"]);
}

#[test]
fn fi_pingpong_sends_messages_of_all_sizes_over_tcp() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    let command = |arguments: &[&str]| {
        let mut command = place.command("fi_pingpong", arguments);
        command.env("FI_EFARS_DEVICE", "tcp:127.0.0.1");
        command
    };
    let listed = {
        let mut command = place.command("fi_info", &["-p", "efars"]);
        command.env("FI_EFARS_DEVICE", "tcp:127.0.0.1");
        Running::start(&mut command).finish().success()
    };
    assert!(listed.contains("fabric: efa-tcp"), "{listed}");
    pingpong_between(&["-p", "efars", "-e", "rdm"], command, command);
}

/// Ours under the name of Amazon's provider at one side.
#[test]
fn fi_pingpong_sends_messages_of_all_sizes_between_amazons_provider_and_ours() {
    if !with_c_packages() {
        return;
    }
    let place = Place::new();
    place.shows_who_efa_is();
    let program = ["fi_pingpong"];
    let ours = |arguments: &[&str]| place.in_place(&[&program[..], arguments].concat());
    let amazons = |arguments: &[&str]| place.amazons(&[&program[..], arguments].concat());
    pingpong_between(&["-p", "efa", "-e", "rdm"], ours, amazons);
}

/// As many processes as it takes on few processors, all on this machine.
const HERE: &str = "--timeout 110 --oversubscribe --bind-to none --mca plm isolated";
/// The way of Open MPI's messages that leads to libfabric.
const BY_LIBFABRIC: &str = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include";

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// The MPI program, which checks every byte.
fn ranks() -> Scratch {
    let program = Scratch::new("ranks-of-mpi");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/ranks.c");
    let mut compiler = Command::new("mpicc.openmpi");
    compiler.args(["-O1", "-Wall", "-Werror", source, "-o", program.as_str()]);
    assert!(compiler.status().unwrap().success());
    program
}

#[test]
fn open_mpi_sends_messages() {
    if !with_c_packages() {
        return;
    }
    let program = ranks();
    let options = format!("{HERE} {BY_LIBFABRIC} efars --mca btl self --mca osc pt2pt -n 3");
    let arguments = [words(&options), vec![program.as_str()]].concat();
    let text = Place::new().run("mpirun", &arguments);
    assert!(text.contains("3 ranks: every byte was right"), "{text}");
}

/// Windows are read and written by the module `ofi` of Open MPI's byte transfer layer, messages sent by the one for
/// matching.
#[test]
fn open_mpi_accesses_windows_by_remote_memory_access() {
    if !with_c_packages() {
        return;
    }
    let program = ranks();
    let options = format!("{HERE} {BY_LIBFABRIC} efars --mca btl self,ofi --mca osc rdma -n 3");
    let include = ["--mca", "opal_common_ofi_provider_include", "efars"];
    let arguments = [words(&options), include.to_vec(), vec![program.as_str()]].concat();
    let text = Place::new().run("mpirun", &arguments);
    assert!(text.contains("3 ranks: every byte was right"), "{text}");
}

/// The MPI program with Amazon's provider in the first of three processes, and ours under its name in the others.
fn mixed_mpi(options: &str) {
    if !with_c_packages() {
        return;
    }
    let (place, program) = (Place::new(), ranks());
    place.shows_who_efa_is();
    let options = format!("mpirun {HERE} {BY_LIBFABRIC} efa {options}");
    let first = ["-n", "1", "-x", "FI_PROVIDER_PATH=/", program.as_str(), ":"];
    let ours = "-n 2 -x EFARS_NAME=efa -x FI_EFARS_DEVICE=verbs";
    let arguments = [words(&options), first.to_vec(), words(ours), vec![program.as_str()]].concat();
    let mut command = place.soft_efa(&arguments);
    // It would look for the others in its own shared memory.
    command.env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    // Ours says in each process that there is no such setting; Amazon's doesn't know the prefix.
    command.env("FI_EFARS_NO_SUCH_SETTING", "1").env("FI_LOG_LEVEL", "warn");
    let outcome = Running::start(&mut command).finish();
    let logged = outcome.stderr.clone();
    let text = outcome.success();
    assert!(text.contains("3 ranks: every byte was right"), "{text}\n{logged}");
    let warnings = logged.lines().filter(|line| line.contains("FI_EFARS_NO_SUCH_SETTING"));
    assert_eq!(warnings.count(), 2, "{logged}");
}

#[test]
fn open_mpi_sends_messages_between_amazons_provider_and_ours() {
    mixed_mpi("--mca btl self --mca osc pt2pt");
}

/// Windows are read and written by the module `ofi` of Open MPI's byte transfer layer.
#[test]
fn open_mpi_accesses_windows_between_amazons_provider_and_ours() {
    mixed_mpi("--mca btl self,ofi --mca osc rdma --mca opal_common_ofi_provider_include efa");
}

#[test]
fn mpi4py_runs_collectives_and_sends_objects() {
    if !with_c_packages() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/collectives.py");
    let options = format!("{HERE} {BY_LIBFABRIC} efars --mca btl self -n 3 /usr/bin/python3");
    let text = Place::new().run("mpirun", &[words(&options), vec![script]].concat());
    assert!(text.contains("3 ranks: every value was right"), "{text}");
}

#[test]
fn netpipe_finds_the_bytes_of_all_sizes_as_they_were_sent() {
    if !with_c_packages() {
        return;
    }
    let figures = Scratch::new("netpipe");
    let options = format!("{HERE} {BY_LIBFABRIC} efars --mca btl self -n 2 NPopenmpi");
    let check = ["-u", "2000000", "-i", "-n", "3", "-o", figures.as_str()];
    let place = Place::new();
    let mut command = place.command("mpirun", &[&words(&options)[..], &check].concat());
    let output = Running::start(&mut command).finish();
    // It says so on standard error.
    let text = output.stderr.clone();
    output.success();
    let sizes = text.lines().filter(|line| line.contains(" bytes ")).count();
    let passed = text.lines().filter(|line| line.contains("Integrity check passed")).count();
    assert!(sizes > 30 && passed == sizes, "{passed} of {sizes}: {text}");
}
