//! `cargo xtask aarch64`: whether the workspace builds for 64-bit ARM (Graviton), and tests of it under QEMU's user emulation.
//!
//! It is no part of `cargo xtask test`: not every machine has the target, and emulation takes ten times as long. QEMU has no
//! `process_vm_readv`, so tests that copy between processes are left out; and its memory order is that of this machine.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::setup::{self, Tool};
use crate::steps::OFF_BY_DEFAULT;
use crate::workspace::Workspace;

const TOOLS: [Tool; 5] =
    [Tool::Clippy, Tool::Aarch64Target, Tool::Aarch64Compiler, Tool::Aarch64Libc, Tool::Qemu];

pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The arguments of `cargo test` for what QEMU can run, and of the tests themselves.
const TESTS: [(&[&str], &[&str]); 4] = [
    (
        &[
            "--package=efa-proto",
            "--package=efa-handshake",
            "--package=efa-match",
            "--package=efa-device",
            "--package=efa-lock",
            "--package=efa-rdm",
            "--lib",
            "--test=*",
        ],
        &["--skip=message_whose_memory_the_system_forbids_to_read"],
    ),
    (
        &["--package=efa-sim", "--all-features", "--lib"],
        &[
            "--skip=pins::",
            "--skip=sharing::",
            "--skip=shm::memory::",
            "--skip=shm::pays::",
            "--skip=shm::permission::",
        ],
    ),
    (
        &["--package=efa-sim", "--test=local", "--test=tcp", "--test=shm", "--test=tm"],
        &["--skip=reorder_fault_reorders_reads_and_writes"],
    ),
    (&["--package=efa", "--test=integration"], &[]),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Builds and lints everything for aarch64-unknown-linux-gnu, and runs tests of the protocol, the matcher, the engine, the facade \
and the links of the software device under QEMU: some 20 minutes on two processors. It adds the target by rustup, \
and as root it installs the packages that are missing (gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user).")]
pub(crate) struct Args {
    /// Only build and lint
    #[arg(long)]
    no_tests: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::provide(workspace, TOOLS)?;
    let mut clippy = cargo(workspace);
    clippy.args(["clippy", "--workspace", "--all-targets", OFF_BY_DEFAULT, "--target", TARGET]);
    process::run(clippy.args(["--", "--deny=warnings"]))?;
    let mut build = cargo(workspace);
    process::run(build.args(["build", "--workspace", OFF_BY_DEFAULT, "--target", TARGET]))?;
    if args.no_tests {
        return Ok(());
    }
    for (of_cargo, of_tests) in TESTS {
        let mut test = cargo(workspace);
        test.args(["test", "--no-fail-fast", "--target", TARGET]).args(of_cargo);
        process::run(test.arg("--").args(of_tests))?;
    }
    say!("aarch64: ok");
    Ok(())
}

/// `cargo` with the compiler of the target, and QEMU for its programs.
fn cargo(workspace: &Workspace) -> Command {
    const COMPILER: &str = "aarch64-linux-gnu-gcc";
    let mut cargo = workspace.cargo();
    cargo
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
        .env("CC_aarch64_unknown_linux_gnu", COMPILER)
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64 -L /usr/aarch64-linux-gnu",
        );
    cargo
}
