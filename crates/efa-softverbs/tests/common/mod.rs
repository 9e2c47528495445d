//! Shared by the test programs.

#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod hang;
pub(crate) mod verbs;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A directory for all tests of this process, removed when it exits: what statics hold is not dropped.
pub(crate) fn directory_of_process() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    extern "C" fn remove() {
        if let Some(directory) = DIRECTORY.get() {
            let _ = std::fs::remove_dir_all(directory.path());
        }
    }
    let make = || {
        // SAFETY: `remove` has no preconditions.
        assert_eq!(unsafe { libc::atexit(remove) }, 0);
        TempDir::new().unwrap()
    };
    DIRECTORY.get_or_init(make).path()
}

/// A loopback address for a host on the tcp link. Other test processes get others.
pub(crate) fn loopback(number: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.max(1), low, number)
}

/// Whether `EFA_INTEROP=1` says that the C packages are installed.
pub(crate) fn with_c_packages() -> bool {
    std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1")
}

/// Reports that a test is skipped because something isn't installed; fails if it must be.
pub(crate) fn is_missing(what: &str) {
    assert!(!with_c_packages(), "{what} is missing although EFA_INTEROP=1 is set");
    eprintln!("skipped: {what} is not installed");
}

/// The C library, which cargo builds with these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library =
        [built, built.parent().unwrap()].map(|directory| directory.join("libefa_soft.so"));
    library.into_iter().find(|path| path.exists()).expect("libefa_soft.so was not built")
}
