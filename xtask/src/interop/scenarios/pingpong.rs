//! libfabric's `fi_pingpong` and our `efa pingpong --fi`, with the control protocol between them. On our provider ours
//! is `fi_pingpong` too. The first of a pair is the client.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{Faults, Known, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Rdma};
use crate::interop::programs::{self, Programs};

pub(super) static ALL: &[Scenario] = &[
    Scenario {
        known: PREFIXED,
        ..Scenario::of_programs(
            "pingpong",
            "fi_pingpong and efa pingpong --fi, every size",
            untagged,
        )
    },
    Scenario {
        known: PREFIXED,
        ..Scenario::of_programs("pingpong-tagged", "the same, tagged", tagged)
    },
    Scenario {
        known: PREFIXED,
        faults: Faults { reorder: Some(7), ..Faults::NONE },
        ..Scenario::of_programs("pingpong-reordered", "tagged, with packets reordered", tagged)
    },
];

/// Sizes of `-S all`, and how often each goes to and fro: captures hold every byte.
const SIZES: usize = 46;
const ITERATIONS: &str = "2";
/// Seen with 2.6, tagged and untagged; 2.3 has it right.
const PREFIXED: &[Known] =
    &[Known::of(&[Pair::CC], [PREFIX_SENT, Release::NEVER], PREFIXED_REASON)];
const PREFIXED_REASON: &str = "libfabric 2.6 puts a message behind the room that fi_pingpong leaves \
    before it, and sends that room along";
/// The first release that sends the room before a message, and its length in bytes.
const PREFIX_SENT: Release = Release(2, 4);
const PREFIX: &str = "176";

/// What the decoder calls the packets of messages that are read.
const READ: &str = " LONGREAD_";

fn untagged(programs: &mut Programs<'_>) -> Result<()> {
    pingpong(programs, &[], &[])
}

fn tagged(programs: &mut Programs<'_>) -> Result<()> {
    pingpong(programs, &["-m", "tagged"], &["--tagged"])
}

fn pingpong(programs: &mut Programs<'_>, of_c: &[&str], of_rust: &[&str]) -> Result<()> {
    let port = programs::free_port()?;
    let there = format!("127.0.0.1:{port}");
    let number = port.to_string();
    let [client, server] = programs.cell.pair.stacks();
    let mut are_of_libfabric = Vec::new();
    for (name, stack) in [("server", server), ("client", client)] {
        let traces = programs.traces(name, stack);
        let of_libfabric = programs.place.fi_pingpong(programs.host, &programs.cell, &traces);
        let is_of_libfabric = of_libfabric.is_some();
        let mut command: Command;
        match of_libfabric {
            Some(of_libfabric) => {
                command = of_libfabric;
                command.args(["-e", "rdm", "-c", "-S", "all", "-I", ITERATIONS]).args(of_c);
                match name {
                    "server" => command.args(["-B", &number]),
                    _ => command.args(["-P", &number, "127.0.0.1"]),
                };
            }
            None => {
                command = programs.place.efa_pingpong(programs.host, &programs.cell, &traces);
                command.args(["--fi", "--all-sizes", "--iterations", ITERATIONS]).args(of_rust);
                if programs.place.libfabric() >= PREFIX_SENT {
                    command.args(["--fi-prefix", PREFIX]);
                }
                match name {
                    "server" => command.args(["--listen", &there]),
                    _ => command.args(["--json", &there]),
                };
            }
        }
        are_of_libfabric.push((name, is_of_libfabric));
        programs.start(name, command, traces)?;
        if name == "server" {
            programs.await_port(name, port)?;
        }
    }
    for (name, is_of_libfabric) in are_of_libfabric.into_iter().rev() {
        let output = programs.finish(name)?;
        let rows = match (name, is_of_libfabric) {
            (_, true) => {
                let acknowledged = format!("={ITERATIONS}");
                let is_row = |line: &&str| line.split_whitespace().nth(2) == Some(&acknowledged);
                output.lines().filter(is_row).count()
            }
            ("client", false) => output.matches("\"one_way_seconds\":").count(),
            // It prints nothing.
            _ => continue,
        };
        ensure!(rows == SIZES, "{name}: {rows} rows, {SIZES} expected, in\n{output}");
    }
    for name in ["client", "server"] {
        let read = programs.sent(name, READ)?;
        match programs.cell.rdma {
            Rdma::On => ensure!(read > 0, "the {name} has asked for no read"),
            Rdma::Off => ensure!(read == 0, "the {name} has asked for {read} reads"),
        }
    }
    Ok(())
}
