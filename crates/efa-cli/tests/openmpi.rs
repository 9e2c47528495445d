//! Debian's Open MPI on Debian's libfabric, both unmodified, under `efa soft-efa run`: what people run
//! on EFA.
//!
//! Needs the packages openmpi-bin and libopenmpi-dev, and runs only with `EFA_INTEROP=1`, which says
//! that they are there, as `cargo xtask test` does: without, the test says so and passes.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::process::Command;

use common::{Running, Scratch, efa, run, with_c_packages};

/// The way of Open MPI's messages, and those of its windows, that leads to libfabric's EFA provider.
const BY_EFA: &str =
    "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include efa --mca osc pt2pt";

/// As many processes as it takes on few processors, all on this machine.
const HERE: &str = "-n 3 --oversubscribe --bind-to none --mca plm isolated --mca btl self,vader";

/// Runs `program` in three processes; gives the summary of what one of them has sent.
fn ranks(program: &Scratch, options: &[&str]) -> String {
    let (directory, captures) = (Scratch::new("ranks"), Scratch::new("seen"));
    std::fs::create_dir(&captures).unwrap();
    let capture = captures.as_ref().join("%p.pcapng");
    let mut command = efa(["soft-efa", "run"]);
    if !options.contains(&"tcp") {
        command.args(["--directory", directory.as_str()]);
    }
    command.arg("--capture").arg(capture).args(options).args(["--", "mpirun", "--timeout", "110"]);
    command.args(HERE.split(' ')).args(BY_EFA.split(' ')).arg(program.as_ref());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let outcome = Running::start(&mut command).finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("3 ranks: every byte was right"), "{outcome:?}");

    let files: Vec<_> = captures.as_ref().read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 3, "one of each process");
    run(["decode".as_ref(), files[0].as_os_str(), "--summary".as_ref()]).success()
}

#[test]
fn mpi_programs_run_on_the_software_device() {
    if !with_c_packages() {
        return;
    }
    let program = Scratch::new("ranks-of-mpi");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/ranks.c");
    let mut compiler = Command::new("mpicc.openmpi");
    compiler.args(["-O1", "-Wall", "-Werror", source, "-o", program.as_str()]);
    assert!(compiler.status().unwrap().success());

    let everything = ["EAGER_TAGRTM", "MEDIUM_TAGRTM", "HANDSHAKE"];
    let long = ["LONGCTS_TAGRTM", "CTSDATA"];
    let read = ["LONGREAD_TAGRTM", "EOR"];
    // None with RNR: where a packet that was sent again is delivered after its peer was removed, as at the end of
    // MPI_Finalize, libfabric 1.17 reads memory at 0x868 (`rxr_pkt_entry_release_tx`).
    for (options, types) in [
        (&[][..], &read),
        (&["--device-rdma", "none", "--reorder", "5"], &long),
        (&["--device-rdma", "read", "--reorder", "6"], &read),
        (&["--link", "tcp", "--address", "127.0.0.1"], &read),
    ] {
        let summary = ranks(&program, options);
        for name in everything.iter().chain(types) {
            assert!(summary.contains(name), "{options:?}: no {name}: {summary}");
        }
    }
}
