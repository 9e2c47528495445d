//! libfabric's `fi_pingpong` and our `efa pingpong --fi`, with the control protocol between them. The
//! first of a pair is the client.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{Faults, Known, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Rdma, Stack};
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
    &[Known::of(Pair::WITH_C, [Release(2, 4), Release::NEVER], PREFIXED_REASON)];
const PREFIXED_REASON: &str = "libfabric 2.6 puts a message behind the room that fi_pingpong leaves \
    before it, and sends that room along";

/// The first release with `efa-direct`, which it would choose: endpoints without this protocol.
const CHOICE: Release = Release(2, 1);
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
    for (name, stack) in [("server", server), ("client", client)] {
        let traces = programs.traces(name, stack);
        let mut command: Command;
        match stack {
            Stack::C => {
                command = programs.place.soft_efa(programs.host, &programs.cell, &traces);
                command.args(["fi_pingpong", "-p", "efa", "-e", "rdm", "-c", "-S", "all"]);
                command.args(["-I", ITERATIONS]).args(of_c);
                if programs.place.libfabric() >= CHOICE {
                    command.args(["-f", "efa"]);
                }
                match name {
                    "server" => command.args(["-B", &number]),
                    _ => command.args(["-P", &number, "127.0.0.1"]),
                };
            }
            Stack::Rust => {
                command = programs.place.efa_pingpong(programs.host, &programs.cell, &traces);
                command.args(["--fi", "--all-sizes", "--iterations", ITERATIONS]).args(of_rust);
                match name {
                    "server" => command.args(["--listen", &there]),
                    _ => command.args(["--json", &there]),
                };
            }
        }
        programs.start(name, command, traces)?;
        if name == "server" {
            programs.await_port(name, port)?;
        }
    }
    for (name, stack) in [("client", client), ("server", server)] {
        let output = programs.finish(name)?;
        let rows = match (name, stack) {
            (_, Stack::C) => {
                let acknowledged = format!("={ITERATIONS}");
                let is_row = |line: &&str| line.split_whitespace().nth(2) == Some(&acknowledged);
                output.lines().filter(is_row).count()
            }
            ("client", Stack::Rust) => output.matches("\"one_way_seconds\":").count(),
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
