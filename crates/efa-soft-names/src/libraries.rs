//! `libibverbs.so.1` and `libefa.so.1` for programs that open libraries by these names.
//!
//! ```text
//!   dlopen("libibverbs.so.1"), or linked with it
//!        │ LD_LIBRARY_PATH
//!        ▼
//!   libibverbs.so.1  versioned functions, which jump through the table of
//!        ├── libefa_soft.so           the device
//!        └── libefa_soft_machine.so   no functions; the loader searches before it, where there is one,
//!              └── the machine's libibverbs.so.1: everything that isn't the device's
//! ```
//!
//! The loader asks a handle of `dlopen` and what the library depends on, in this order, and no preloaded library.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::elf::{Object, Processor, Version};
use crate::{EFA, IBVERBS, IBVERBS_PRIVATE, Node, TABLE};

/// File name of the device library.
pub const DEVICE_LIBRARY: &str = "libefa_soft.so";
const LIBIBVERBS: &str = "libibverbs.so.1";
const LIBEFA: &str = "libefa.so.1";
const MACHINE: &str = "libefa_soft_machine.so";
/// Where the machine's libibverbs may be. The loader replaces `$LIB`, for example by `lib/x86_64-linux-gnu`.
const USUAL: [&str; 5] = ["/usr/local/$LIB", "/usr/$LIB", "/$LIB", "/usr/lib64", "/usr/lib"];

/// Writes the libraries into a directory. `device` is the device library as the loader is to find it: an absolute
/// path, or one that starts with `$ORIGIN`, which is the directory. The machine's libibverbs is looked for in
/// `others`, such as [`with_libibverbs`], then in the usual places, whenever a program loads the libraries.
///
/// # Errors
/// If a file can't be written, or the processor is none of x86-64 and 64-bit Arm.
pub fn write(directory: &Path, device: &str, others: &[PathBuf]) -> io::Result<()> {
    let processor = Processor::of_this_program()?;
    let others = others.iter().filter_map(|path| path.to_str());
    let auxiliary: Vec<_> =
        others.chain(USUAL).map(|place| format!("{place}/{LIBIBVERBS}")).collect();
    let machine = Object {
        soname: MACHINE,
        needed: &[],
        auxiliary: &auxiliary,
        table: TABLE,
        first: 0,
        versions: &[],
    };
    let private = IBVERBS_PRIVATE.iter().map(|name| Version { name, parent: None, functions: &[] });
    let ibverbs = Object {
        soname: LIBIBVERBS,
        needed: &[device.to_owned(), format!("$ORIGIN/{MACHINE}")],
        auxiliary: &[],
        table: TABLE,
        first: 0,
        versions: &versions(IBVERBS).chain(private).collect::<Vec<_>>(),
    };
    let efa = Object {
        soname: LIBEFA,
        // The real one needs libibverbs too, so programs may look for its functions here.
        needed: &[device.to_owned(), format!("$ORIGIN/{LIBIBVERBS}")],
        auxiliary: &[],
        table: TABLE,
        first: IBVERBS.iter().map(|node| node.functions.len()).sum(),
        versions: &versions(EFA).collect::<Vec<_>>(),
    };
    for object in [machine, ibverbs, efa] {
        put(directory, object.soname, |new| fs::write(new, object.write(processor)))?;
    }
    // Some programs open them by the names that `cc` links with.
    for (name, target) in [("libibverbs.so", LIBIBVERBS), ("libefa.so", LIBEFA)] {
        put(directory, name, |new| symlink(target, new))?;
    }
    Ok(())
}

/// Versions, each on top of the one before it.
fn versions(nodes: &'static [Node]) -> impl Iterator<Item = Version> {
    let parents = [None].into_iter().chain(nodes.iter().map(|node| Some(node.version)));
    let version = |(node, parent): (&Node, _)| Version {
        name: node.version,
        parent,
        functions: node.functions,
    };
    nodes.iter().zip(parents).map(version)
}

/// Makes a file. Programs that have an older one loaded keep it.
fn put(directory: &Path, name: &str, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = directory.join(format!(".{name}.new"));
    // What an interrupted call left.
    let _ = fs::remove_file(&new);
    make(&new)?;
    fs::rename(&new, directory.join(name))
}

/// The directories with a libibverbs that the loader would find without the libraries of [`write()`]: those of
/// `search`, the value of `LD_LIBRARY_PATH`, and those in the loader's cache.
#[must_use]
pub fn with_libibverbs(search: &OsStr) -> Vec<PathBuf> {
    let parts = search.as_bytes().split(|byte| b":;".contains(byte));
    let named =
        parts.filter(|part| !part.is_empty()).map(|part| Path::new(OsStr::from_bytes(part)));
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let cached = crate::cache::find(&cache, LIBIBVERBS).into_iter();
    let cached = cached.filter_map(|path| Path::new(OsStr::from_bytes(path)).parent());
    let is_real = |directory: &&Path| {
        directory.join(LIBIBVERBS).exists() && !directory.join(MACHINE).exists()
    };
    let found = named.chain(cached).filter(is_real);
    found.filter_map(|directory| std::path::absolute(directory).ok()).collect()
}
