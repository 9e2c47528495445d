//! `cargo xtask provider`: the library by which programs written for libfabric use this stack.
//!
//! ```text
//!   cargo build -p efa-provider ──► target/release/libefars_fi.so
//!                                       └► target/provider/libefars-fi.so   what libfabric looks for
//! ```
//!
//! libfabric takes files whose names end with `-fi.so` from the directories in `FI_PROVIDER_PATH`; cargo can't
//! name a library so.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::profile::Profile;
use crate::workspace::Workspace;
use crate::{install, process};

pub(crate) const PACKAGE: &str = "efa-provider";
const BUILT: &str = "libefars_fi.so";
const LIBRARY: &str = "libefars-fi.so";

/// Arguments of `cargo xtask provider`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Copy the library into DIR [default: target/provider]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Build without optimization, which is faster to build and slower to run
    #[arg(long)]
    debug: bool,
}

/// Builds the library, and says how a program finds it.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let profile = if args.debug { Profile::Dev } else { Profile::Release };
    let directory = match &args.directory {
        Some(directory) => std::path::absolute(directory)
            .with_context(|| format!("cannot resolve {}", directory.display()))?,
        None => workspace.metadata()?.target_directory.join("provider"),
    };
    build(workspace, profile, &directory)?;
    say!("built {}", directory.join(LIBRARY).display());
    say!("use it: export FI_PROVIDER_PATH={} FI_PROVIDER=efars", directory.display());
    say!("see it: fi_info -p efars; if it is missing there: efa doctor");
    Ok(())
}

/// Builds the library, and copies it into a directory for `FI_PROVIDER_PATH`.
fn build(workspace: &Workspace, profile: Profile, directory: &Path) -> Result<()> {
    let mut build = workspace.cargo();
    build.args(["build", "--locked", "--lib", "--package", PACKAGE, profile.argument()]);
    process::run(&mut build)?;
    copy(&profile.directory(workspace)?, directory)
}

/// Copies a library that was built into a directory for `FI_PROVIDER_PATH`.
pub(crate) fn copy(built: &Path, directory: &Path) -> Result<()> {
    install::replace(&built.join(BUILT), &directory.join(LIBRARY))
}
