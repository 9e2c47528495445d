//! What the tests share.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod verbs;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A directory of its own, removed at the end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let name = format!("efa-softverbs-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An address of this machine that no other test program has, for a host on the tcp link.
pub(crate) fn loopback(number: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high.max(1), low, number)
}

/// Whether the C packages are said to be there, and their tests wanted.
pub(crate) fn with_c_packages() -> bool {
    std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1")
}

/// Ends a test for want of something; that is a failure where it must be there.
pub(crate) fn is_missing(what: &str) {
    assert!(!with_c_packages(), "{what} is missing, and EFA_INTEROP=1 says that it is there");
    eprintln!("skipped: {what} is not installed");
}

/// The C library, which cargo has built for these tests.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = [built, built.parent().unwrap()].map(|place| place.join("libefa_soft.so"));
    library.into_iter().find(|path| path.exists()).expect("libefa_soft.so was not built")
}
