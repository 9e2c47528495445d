//! Files of other kinds where the shm link has its own.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use efa_device::{Destination, Device, DeviceError, QueuePair, QueuePairOptions};
use efa_sim::shm::{ShmDevice, ShmOptions};
use tempfile::TempDir;

/// The directory of a host, removed when dropped.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn open(&self) -> ShmDevice {
        let options = ShmOptions::new("host")
            .with(|options| options.directory = Some(self.0.path().join("hosts")));
        ShmDevice::open(options).unwrap()
    }

    /// Puts a FIFO in the place of a file.
    fn make_fifo(&self, name: &str) -> PathBuf {
        let path = self.0.path().join("hosts/host").join(name);
        let _ = std::fs::remove_file(&path);
        make_fifo(&path);
        path
    }
}

fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Opening a FIFO for writing waits for a reader, unless the link says otherwise.
#[test]
fn fifo_in_place_of_the_next_number_is_passed_over() {
    let host = Host::new();
    let device = host.open();
    let fifo = host.make_fifo("next");
    let first = device.create_queue_pair(QueuePairOptions::default()).unwrap();
    let second = host.open().create_queue_pair(QueuePairOptions::default()).unwrap();
    assert_ne!(first.address().qpn, second.address().qpn);
    let kind = std::fs::symlink_metadata(fifo).unwrap();
    assert!(!kind.is_file(), "it is not replaced");
}

#[test]
fn fifo_in_place_of_a_queue_pair_is_refused_with_what_it_is() {
    let host = Host::new();
    let device = host.open();
    let mut sender = device.create_queue_pair(QueuePairOptions::default()).unwrap();
    let target = device.create_queue_pair(QueuePairOptions::default()).unwrap().address();
    let name = format!("qp-{}", target.qpn.0);
    let fifo = host.make_fifo(&name);
    let address_handle = sender.create_address_handle(target.gid).unwrap();
    let destination = Destination { address_handle, qpn: target.qpn, qkey: target.qkey };
    let error = sender.prepare(destination).unwrap_err();
    let words = format!("{}: is a FIFO, not a regular file; remove it", fifo.display());
    assert_eq!(error.to_string(), words);
    assert!(matches!(error, DeviceError::Inconsistent { .. }) && error.shortage().is_none());
    // The next process that opens the host leaves it alone, too.
    for _ in 0..2 {
        host.open().create_queue_pair(QueuePairOptions::default()).unwrap();
    }
}
