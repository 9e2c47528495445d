//! The files of sysfs that programs look for to recognise a device.
//!
//! ```text
//! <EFA_SOFT_SYSFS or temporary directory>/efa-soft-<process>-<nonce>/   SYSFS_PATH
//!     class/infiniband_verbs/abi_version                 6
//!     class/infiniband/efa_soft0/device ─► devices/pci0000:00/0000:00:03.0
//!     devices/pci0000:00/0000:00:03.0/driver ─► bus/pci/drivers/efa
//!     class/infiniband/efa_soft0/ports, hw_counters ─► ../class/infiniband/efa_soft0/… of the run, if it counts
//! ```
//!
//! Each device has the PCI address of a device of the machine, as long as there are any: programs that
//! choose interfaces by distance look the address up, and Intel MPI crashes if it isn't found.
//!
//! The tree belongs to one process, which removes it when it exits. Trees of killed processes are
//! removed by the next process that creates one, or by `efa soft-efa run` with the directory of the run.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use efa_soft_names::counters;
use rustix::fs::{FlockOperation, flock};

use crate::abi::IBV_SYSFS_PATH_MAX;

/// Without the terminating zero.
const MAX_PATH: usize = IBV_SYSFS_PATH_MAX - 1;
const PREFIX: &str = "efa-soft-";
const CLASS: &str = "class/infiniband";
/// The file that the process keeps locked while it exists.
const LOCK: &str = "lock";

/// A sysfs tree.
#[derive(Debug)]
pub(crate) struct Sysfs {
    /// Where the tree is, and the files of [`counters`] if the process is part of a run.
    base: PathBuf,
    root: PathBuf,
    process: u32,
    /// Locked until the process exits.
    _lock: File,
}

/// The machine's PCI devices.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// PCI addresses for `count` devices: first those of the machine's devices, listed in `devices`, network
/// interfaces first and bridges last; then unused ones from slot 6 on, where instances have their first
/// EFA interface.
fn pci_addresses(devices: &Path, count: usize) -> Vec<String> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut known: Vec<(u8, String)> = entries
        .filter_map(|entry| {
            let address = entry.file_name().into_string().ok()?;
            let class = fs::read_to_string(entry.path().join("class")).unwrap_or_default();
            let rank = match class.get(..4) {
                Some("0x02") => 0,
                Some("0x06") => 2,
                _ => 1,
            };
            // Programs read a domain of 16 bits.
            (address.len() == "0000:00:00.0".len()).then_some((rank, address))
        })
        .collect();
    known.sort_unstable();
    let mut addresses: Vec<String> = known.into_iter().map(|(_, address)| address).collect();
    let unused = (6..).map(|slot| format!("0000:00:{slot:02x}.0"));
    let unused: Vec<String> =
        unused.filter(|address| !addresses.contains(address)).take(count).collect();
    addresses.extend(unused);
    addresses.truncate(count);
    addresses
}

impl Sysfs {
    /// Creates the tree of devices with these names in `base`.
    pub(crate) fn create<'a>(
        base: &Path,
        names: impl Iterator<Item = &'a str>,
    ) -> io::Result<Self> {
        remove_stale_trees(base);
        let process = std::process::id();
        let root = base.join(format!("{PREFIX}{process}-{:016x}", fastrand::u64(..)));
        DirBuilder::new().mode(0o700).create(&root)?;
        fs::set_permissions(&root, Permissions::from_mode(0o700))?;
        // Locked before it has its name: another process may be removing trees without a lock.
        let lock = File::create(root.join("new-lock"))?;
        lock.set_permissions(Permissions::from_mode(0o600))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        fs::rename(root.join("new-lock"), root.join(LOCK))?;
        let sysfs = Self { base: base.to_owned(), root, process, _lock: lock };
        match sysfs.fill(names) {
            Ok(()) => Ok(sysfs),
            Err(error) => {
                sysfs.remove();
                Err(error)
            }
        }
    }

    fn fill<'a>(&self, names: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let version = self.make("class/infiniband_verbs")?.join("abi_version");
        fs::write(&version, "6\n")?;
        fs::set_permissions(&version, Permissions::from_mode(0o600))?;
        let driver = self.make("bus/pci/drivers/efa")?;
        let names: Vec<&str> = names.collect();
        let counters = self.base.join(counters::FILE);
        let addresses = pci_addresses(Path::new(PCI_DEVICES), names.len());
        for (name, address) in names.into_iter().zip(addresses) {
            let device = self.make(Path::new("devices/pci0000:00").join(address))?;
            symlink(&driver, device.join("driver"))?;
            let entry = self.device(name);
            if entry.as_os_str().len() > MAX_PATH {
                let limit = format!(
                    "{} is longer than {MAX_PATH} bytes, the most that verbs allow",
                    entry.display()
                );
                return Err(io::Error::other(limit));
            }
            self.make(Path::new(CLASS).join(name))?;
            symlink(&device, entry.join("device"))?;
            if counters.exists() {
                for directory in ["ports", "hw_counters"] {
                    symlink(
                        self.base.join(CLASS).join(name).join(directory),
                        entry.join(directory),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Creates a directory of the tree and those above it, accessible to this user whatever the umask is.
    fn make(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let mut directory = self.root.clone();
        for part in path.as_ref() {
            directory.push(part);
            match fs::create_dir(&directory) {
                Ok(()) => fs::set_permissions(&directory, Permissions::from_mode(0o700))?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(directory)
    }

    /// The root of the tree.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of a device in the tree.
    pub(crate) fn device(&self, name: &str) -> PathBuf {
        self.root.join(CLASS).join(name)
    }

    /// Removes the tree, unless it belongs to a parent process.
    pub(crate) fn remove(&self) {
        if std::process::id() == self.process {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Sets `SYSFS_PATH`, by which programs that read sysfs themselves find the tree.
#[allow(unsafe_code)]
pub(crate) fn set_path_variable(root: &Path) {
    // SAFETY: unsound only if another thread reads the environment through C at this moment, which
    // the library can't exclude. This runs once in a process, when it first lists devices. Programs
    // do that when they initialise, and libfabric sets variables at that stage itself.
    unsafe { std::env::set_var("SYSFS_PATH", root) };
}

/// Removes trees of this user whose process has ended.
fn remove_stale_trees(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && entry.metadata().is_ok_and(|data| data.uid() == rustix::process::geteuid().as_raw());
        if !ours {
            continue;
        }
        // Its process is still creating the tree if there is no lock yet.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn sysfs_links_resolve_to_pci_address_and_driver() {
        let base = TempDir::new().unwrap();
        let sysfs = Sysfs::create(base.path(), ["efa_soft0", "efa_soft1"].into_iter()).unwrap();
        let addresses = pci_addresses(Path::new(PCI_DEVICES), 2);
        for (name, address) in ["efa_soft0", "efa_soft1"].into_iter().zip(addresses) {
            let device = fs::canonicalize(sysfs.device(name).join("device")).unwrap();
            assert_eq!(device.file_name().unwrap(), address.as_str());
            let driver = fs::canonicalize(device.join("driver")).unwrap();
            assert_eq!(driver.file_name().unwrap(), "efa");
        }
        let version = sysfs.root().join("class/infiniband_verbs/abi_version");
        assert_eq!(fs::read_to_string(version).unwrap(), "6\n");
        sysfs.remove();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn pci_addresses_of_the_machine_come_before_unused_ones() {
        let base = TempDir::new().unwrap();
        for (address, class) in [
            ("0000:00:00.0", "0x060000\n"),
            ("0000:00:07.0", "0x018000\n"),
            ("0000:3a:00.1", "0x020000\n"),
            ("10000:00:01.0", "0x020000\n"),
        ] {
            fs::create_dir(base.path().join(address)).unwrap();
            fs::write(base.path().join(address).join("class"), class).unwrap();
        }
        let expected =
            ["0000:3a:00.1", "0000:00:07.0", "0000:00:00.0", "0000:00:06.0", "0000:00:08.0"];
        for count in 0..=expected.len() {
            assert_eq!(pci_addresses(base.path(), count), expected[..count]);
        }
        assert_eq!(pci_addresses(&base.path().join("none"), 1), ["0000:00:06.0"]);
    }

    /// Other users can create files in the temporary directory. Opening a pipe waits for its writer.
    #[test]
    fn removal_of_stale_trees_does_not_open_files_of_others() {
        let base = TempDir::new().unwrap();
        let other = base.path().join("somebody-else");
        fs::create_dir(&other).unwrap();
        let (pipe, mode) = (other.join(LOCK), rustix::fs::Mode::RWXU);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        std::thread::scope(|scope| {
            let created = scope.spawn(|| Sysfs::create(base.path(), ["a"].into_iter()).unwrap());
            while !created.is_finished() {
                // Fails unless another thread reads it.
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
                assert!(rustix::fs::open(&pipe, flags, mode).is_err(), "it was opened");
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn trees_of_ended_processes_are_removed_and_others_stay() {
        let base = TempDir::new().unwrap();
        let dead = Sysfs::create(base.path(), ["a"].into_iter()).unwrap();
        let dead_root = dead.root().to_path_buf();
        drop(dead);
        assert!(dead_root.is_dir());
        let first = Sysfs::create(base.path(), ["a"].into_iter()).unwrap();
        let second = Sysfs::create(base.path(), ["a"].into_iter()).unwrap();
        assert!(!dead_root.exists());
        assert!(first.root().is_dir() && second.root().is_dir());
    }
}
