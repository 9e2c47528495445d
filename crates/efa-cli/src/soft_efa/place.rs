//! The private directory of a run, removed when the last process of the run has ended.
//!
//! ```text
//!  run: makes PLACE, locks PLACE/lock ─► becomes PROGRAM ─► its children       all hold the lock
//!   └─ detach PLACE ─► attend PLACE: waits until the lock is free, removes PLACE
//!                        └─ meanwhile writes the files of the device's counters
//! ```
//!
//! The kernel releases the lock with its last holder. The process that waits for it is not a child of the
//! program, which may wait for all of its children. The lock is there first and removed last: a directory that can't be
//! removed is found by the next run.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::counters::{Counters, PERIOD};

const PREFIX: &str = "efa-run-";
const LOCK: &str = "lock";
/// This program, even if its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Creates a directory in `base`, with the counters of so many devices, that is removed when this process and all its
/// descendants have ended.
pub(super) fn make(base: &Path, devices: usize) -> io::Result<PathBuf> {
    sweep(base);
    let name = format!("{PREFIX}{}-{:016x}", std::process::id(), fastrand::u64(..));
    let place = base.join(name);
    DirBuilder::new().mode(0o700).create(&place)?;
    let made = lock(&place).and_then(|lock| {
        Counters::create(&place, devices)?;
        hold(&place, lock)
    });
    match made {
        Ok(()) => Ok(place),
        Err(error) => {
            let _ = remove(&place);
            Err(error)
        }
    }
}

/// Locks the directory.
fn lock(place: &Path) -> io::Result<File> {
    // Locked before it gets its name: another process may sweep at this moment.
    let new = place.join("new-lock");
    let lock = File::create(&new)?;
    flock(&lock, FlockOperation::LockExclusive)?;
    fs::rename(&new, place.join(LOCK))?;
    Ok(lock)
}

/// Keeps the lock until this process and its descendants have ended, and starts the process that removes the directory
/// then.
fn hold(place: &Path, lock: File) -> io::Result<()> {
    if !aside("detach", place).spawn()?.wait()?.success() {
        return Err(io::Error::other("the process that removes it doesn't start"));
    }
    // Only now, so that the process that waits for the lock doesn't inherit it.
    fcntl_setfd(&lock, FdFlags::empty())?;
    let _ = lock.into_raw_fd();
    Ok(())
}

/// This program with a hidden command, detached from the run: it holds no pipe open, and is in another process
/// group than the terminal's.
fn aside(what: &str, place: &Path) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("efa").args(["soft-efa", what]).arg(place).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts the process that will [`attend`] the directory.
pub(super) fn detach(place: &Path) -> io::Result<Child> {
    aside("attend", place).spawn()
}

/// Writes the counters until no process holds the lock, and removes the directory.
pub(super) fn attend(place: &Path) -> io::Result<()> {
    let lock = File::open(place.join(LOCK))?;
    let mut counters = Counters::of(place);
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if counters.write().is_err() {
            // A full disk, or somebody has removed it: the rest can still be done.
            flock(&lock, FlockOperation::LockExclusive)?;
            break;
        }
        thread::sleep(PERIOD);
    }
    // A run may have few descriptors, and the directory is deep.
    let descriptors = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: descriptors.maximum, ..descriptors });
    remove(place)
}

/// Removes the directory, the lock last.
fn remove(place: &Path) -> io::Result<()> {
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == LOCK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir_all(place)
}

/// Removes this user's directories that no process holds: the processes that were to remove them were killed.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let me = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let ours = entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == me);
        if named
            && ours
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn directory_is_removed_when_no_process_holds_its_lock() {
        let base = TempDir::new().unwrap();
        let [dead, held, alien] =
            [format!("{PREFIX}dead"), format!("{PREFIX}held"), "other".into()].map(|name| {
                let place = base.path().join(name);
                fs::create_dir(&place).unwrap();
                File::create(place.join(LOCK)).unwrap();
                place
            });
        let lock = File::open(held.join(LOCK)).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        sweep(base.path());
        assert_eq!([&dead, &held, &alien].map(|place| place.exists()), [false, true, true]);
        drop(lock);
        attend(&held).unwrap();
        assert!(!held.exists());
        assert!(attend(&dead).is_err());
    }
}
