//! `cargo xtask install`: the tool `efa` and the C library of the software device, in places where the
//! tool finds the library.
//!
//! ```text
//!   PREFIX/bin/efa                 looks for the library in ../lib
//!   PREFIX/lib/libefa_soft.so      what `efa soft-efa run` preloads
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::profile::Profile;
use crate::workspace::Workspace;

const TOOL: &str = "efa";
const LIBRARY: &str = "libefa_soft.so";

/// Arguments of `cargo xtask install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Install into DIR/bin and DIR/lib [default: where `cargo install` does: $CARGO_HOME, or ~/.cargo]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Build without optimization, which is faster to build and slower to run
    #[arg(long)]
    debug: bool,
}

impl Args {
    /// Where to install; a relative path counts from where the command was called.
    fn prefix(&self) -> Result<PathBuf> {
        let prefix = match &self.prefix {
            Some(prefix) => prefix.clone(),
            None => cargo_home().context("no home directory is known: name one by --prefix")?,
        };
        std::path::absolute(&prefix).with_context(|| format!("cannot resolve {}", prefix.display()))
    }
}

fn cargo_home() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(variable("HOME")?).join(".cargo"));
    variable("CARGO_HOME").map(PathBuf::from).or_else(home)
}

/// Builds both, copies them, and runs the tool with the library once.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let prefix = args.prefix()?;
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    let mut build = workspace.cargo();
    build.args(["build", "--locked", "--package=efa-cli", "--package=efa-softverbs"]);
    process::run(build.arg(profile.argument()))?;
    let built = profile.directory(workspace)?;
    let bin = prefix.join("bin");
    install(&built.join(LIBRARY), &prefix.join("lib"))?;
    let tool = install(&built.join(TOOL), &bin)?;

    let mut check = Command::new(&tool);
    process::run(check.args(["soft-efa", "run", "--"]).arg(&tool).arg("--version"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|directory| directory == bin) {
        say!("{} is not in PATH: add it, or call {}", bin.display(), tool.display());
    }
    Ok(())
}

/// Copies a file into a directory.
fn install(file: &Path, directory: &Path) -> Result<PathBuf> {
    let target = directory.join(file.file_name().context("a file has a name")?);
    replace(file, &target)?;
    say!("installed {}", target.display());
    Ok(target)
}

/// Copies a file. Programs that run keep the file that was there before.
pub(crate) fn replace(file: &Path, target: &Path) -> Result<()> {
    let (directory, name) =
        target.parent().zip(target.file_name()).context("a file is in a directory")?;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let new = directory.join(format!(".{}.new", name.to_string_lossy()));
    fs::copy(file, &new)
        .with_context(|| format!("cannot copy {} to {}", file.display(), new.display()))?;
    fs::rename(&new, target).with_context(|| format!("cannot replace {}", target.display()))
}
