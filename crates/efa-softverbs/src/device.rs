//! The devices of a process: listed, opened, queried.
//!
//! ```text
//!  ibv_get_device_list ─► DeviceEntry (an ibv_device, for the life of the process)
//!                              │ ibv_open_device
//!                              ▼
//!                         Device: the link with its memory keys, shared by all contexts of the
//!                                 process, closed with the last of them
//! ```

use std::ffi::c_char;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use efa_device::{Access, DeviceError, Gid, Rdma};
use efa_sim::SoftRegion;
use efa_sim::record::SharedSink;

use crate::abi::{
    IBV_NODE_UNSPECIFIED, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, IBV_TRANSPORT_UNSPECIFIED,
    ibv_device,
};
use crate::boundary::{Errno, Outcome};
use crate::capture::CaptureFile;
use crate::link::Link;
use crate::process::{Kind, START, lock, process};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::sysfs::Sysfs;

/// Amazon.
pub(crate) const VENDOR_ID: u32 = 0x1d0f;
/// Most gather entries of a send.
pub(crate) const MAX_SEND_SGE: usize = 2;
/// Most scatter entries of a receive.
pub(crate) const MAX_RECEIVE_SGE: usize = 1;
/// Longest inline data of a send in bytes.
pub(crate) const MAX_INLINE: usize = 32;

/// How long the end of the process waits for a packet that is being written to the capture.
const PATIENCE: Duration = Duration::from_secs(1);

/// A device that can be opened.
#[repr(C)]
pub(crate) struct DeviceEntry {
    /// First, so that a pointer to the one is a pointer to the other.
    ibv: ibv_device,
    index: usize,
    settings: Arc<Settings>,
    capture: Option<CaptureFile>,
    opened: Mutex<Weak<Device>>,
}

/// The devices of a process.
#[derive(Debug)]
pub(crate) struct DeviceList {
    entries: Vec<&'static DeviceEntry>,
    sysfs: Option<Sysfs>,
}

// SAFETY: the obsolete pointers in `ibv_device` are null and everything else is plain data.
unsafe impl Sync for DeviceEntry {}
// SAFETY: as above.
unsafe impl Send for DeviceEntry {}

impl std::fmt::Debug for DeviceEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceEntry").field("index", &self.index).finish_non_exhaustive()
    }
}

fn copy_text(into: &mut [c_char], text: &str) {
    // One shorter, so that a zero stays at the end.
    let room = into.len() - 1;
    for (to, &from) in into[..room].iter_mut().zip(text.as_bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

impl DeviceEntry {
    fn new(
        index: usize,
        settings: &Arc<Settings>,
        sysfs: &Sysfs,
        capture: Option<CaptureFile>,
    ) -> Self {
        let name = name(index);
        let mut ibv = ibv_device {
            _ops: [0; 2],
            node_type: IBV_NODE_UNSPECIFIED,
            transport_type: IBV_TRANSPORT_UNSPECIFIED,
            name: [0; IBV_SYSFS_NAME_MAX],
            dev_name: [0; IBV_SYSFS_NAME_MAX],
            dev_path: [0; IBV_SYSFS_PATH_MAX],
            ibdev_path: [0; IBV_SYSFS_PATH_MAX],
        };
        copy_text(&mut ibv.name, &name);
        copy_text(&mut ibv.dev_name, &format!("uverbs{index}"));
        let verbs = sysfs.root().join("class/infiniband_verbs").join(format!("uverbs{index}"));
        copy_text(&mut ibv.dev_path, &verbs.to_string_lossy());
        copy_text(&mut ibv.ibdev_path, &sysfs.device(&name).to_string_lossy());
        let settings = Arc::clone(settings);
        Self { ibv, index, settings, capture, opened: Mutex::default() }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        (&raw const self.ibv).cast_mut()
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The name as C text.
    pub(crate) fn name(&self) -> *const c_char {
        self.ibv.name.as_ptr()
    }

    /// The entry that a program names.
    pub(crate) fn find(device: *const ibv_device) -> Outcome<&'static Self> {
        process().check(device, Kind::Device)?;
        // SAFETY: the handle is one of ours, so it points to an entry, which is never freed.
        Ok(unsafe { &*device.cast() })
    }

    /// The device, opened if it isn't.
    pub(crate) fn open(&self) -> Outcome<Arc<Device>> {
        let mut opened = lock(&self.opened);
        if let Some(device) = opened.upgrade() {
            return Ok(device);
        }
        let capture = self.capture.clone().map(SharedSink::new);
        let device = Device::open(self.index, &self.settings, capture).map_err(|error| {
            complain(&error);
            Errno::from(error)
        })?;
        let device = Arc::new(device);
        *opened = Arc::downgrade(&device);
        Ok(device)
    }
}

fn name(index: usize) -> String {
    format!("efa_soft{index}")
}

/// Tells the user; without the lock of standard error, which another thread may have had when this
/// process was forked.
pub(crate) fn complain(error: &dyn std::fmt::Display) {
    let text = format!("efa-soft: {error}\n");
    // SAFETY: C programs have this descriptor for this purpose.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    // Where nobody can be told, nobody is.
    let _ = rustix::io::write(stderr, text.as_bytes());
}

impl DeviceList {
    /// The devices that the environment asks for; none, and a message, if it can't be.
    fn new() -> Self {
        let made =
            Settings::from_environment().map_err(|error| complain(&error)).and_then(|settings| {
                let names: Vec<_> = (0..settings.devices).map(name).collect();
                let base = settings.sysfs.clone().unwrap_or_else(std::env::temp_dir);
                let sysfs = std::path::absolute(&base)
                    .and_then(|base| Sysfs::create(&base, names.iter().map(String::as_str)));
                let sysfs = sysfs.map_err(|error| {
                    complain(&format_args!("no sysfs tree in {}: {error}", base.display()));
                })?;
                Ok((Arc::new(settings), sysfs))
            });
        let Ok((settings, sysfs)) = made else {
            return Self { entries: Vec::new(), sysfs: None };
        };
        let capture = settings.capture.as_deref().map(CaptureFile::new);
        let entry = |index| {
            let entry = DeviceEntry::new(index, &settings, &sysfs, capture.clone());
            let entry: &'static _ = Box::leak(Box::new(entry));
            process().enter(entry.as_ptr(), Kind::Device, std::ptr::null_mut());
            entry
        };
        let entries = (0..settings.devices).map(entry).collect();
        set_sysfs_path(sysfs.root());
        Self { entries, sysfs: Some(sysfs) }
    }

    /// The devices of this process.
    pub(crate) fn get() -> Vec<&'static DeviceEntry> {
        let _start = lock(&START);
        lock(&process().devices).get_or_insert_with(Self::new).entries.clone()
    }

    /// At the end of the process.
    pub(crate) fn at_exit(&self) {
        if let Some(sysfs) = &self.sysfs {
            sysfs.remove();
        }
        for entry in &self.entries {
            // Whoever has the lock may be interrupted by what ends the process.
            let opened = entry.opened.try_lock().ok().and_then(|opened| opened.upgrade());
            if let Some(device) = opened {
                device.report();
            }
            if let Some(capture) = &entry.capture {
                capture.finish(PATIENCE);
            }
        }
    }
}

/// Tells programs that look for sysfs themselves where it is.
fn set_sysfs_path(root: &Path) {
    // SAFETY: not safe if another thread reads the environment at this very moment through C. It
    // happens once in a process, at its first look for devices, where programs that use verbs
    // initialise; libfabric itself sets variables at that stage.
    unsafe { std::env::set_var("SYSFS_PATH", root) };
}

/// An opened device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) link: Link,
    /// For RDMA operations of no bytes, which name no region.
    pub(crate) nothing: SoftRegion,
    pub(crate) settings: Arc<Settings>,
    pub(crate) statistics: Statistics,
    name: String,
    reported: AtomicBool,
}

impl Device {
    fn open(
        index: usize,
        settings: &Arc<Settings>,
        capture: Option<SharedSink>,
    ) -> Result<Self, DeviceError> {
        let link = Link::open(settings, index, capture)?;
        let nothing = link.register(Box::default(), Access::default());
        let nothing = nothing.map_err(|refused| refused.error)?;
        link.keys().refuse(settings.refusals);
        let settings = Arc::clone(settings);
        Ok(Self {
            link,
            nothing,
            settings,
            statistics: Statistics::default(),
            name: name(index),
            reported: AtomicBool::new(false),
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.link.gid()
    }

    /// What it does to memory of others.
    pub(crate) fn rdma(&self) -> Rdma {
        self.link.attributes().rdma
    }

    /// Prints the counters, if that is wished and was not done.
    fn report(&self) {
        if self.settings.statistics && !self.reported.swap(true, Ordering::Relaxed) {
            complain(&format_args!("{} {}: {}", self.name, std::process::id(), self.statistics));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.report();
    }
}
