//! The devices of a process: listed, opened, closed.
//!
//! ```text
//!  ibv_get_device_list ─► DeviceEntry (an ibv_device, until the process exits)
//!                              │ ibv_open_device
//!                              ▼
//!                         Device: the link with its memory keys, shared by all contexts of the
//!                                 process, closed with the last of them
//! ```

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use efa_device::{Access, DeviceError, Gid, Rdma};
use efa_sim::SoftRegion;
use efa_sim::faults::Draws;
use efa_sim::record::SharedSink;

use crate::abi::{
    IBV_NODE_UNSPECIFIED, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, IBV_TRANSPORT_UNSPECIFIED,
    ibv_device,
};
use crate::boundary::{INVALID, Outcome};
use crate::capture::CaptureFile;
use crate::limits::Quotas;
use crate::link::Link;
use crate::message::{print, report, reported};
use crate::process::{DEVICE_LISTING, lock, process};
use crate::settings::Settings;
use crate::statistics::{Counting, Statistics};
use crate::sysfs::{self, Sysfs};

/// Amazon's PCI vendor ID.
pub(crate) const VENDOR_ID: u32 = 0x1d0f;
/// Most gather entries of a send.
pub(crate) const MAX_SEND_SGE: usize = 2;
/// Most scatter entries of a receive, as interfaces report.
pub(crate) const MAX_RECEIVE_SGE: usize = 3;
/// Most entries of all receives that a queue pair has posted.
pub(crate) const MAX_RECEIVE_ENTRIES: usize = 1 << 15;
/// Bytes of the longest ring of sends.
pub(crate) const MAX_SEND_RING: usize = 1 << 18;
/// Most inline data of a send in bytes, with descriptors of 128 bytes.
pub(crate) const MAX_INLINE: usize = 80;
/// The same of queue pairs with descriptors of 64 bytes, which all programs know.
pub(crate) const USUAL_INLINE: usize = 32;

/// How long the exit of the process waits for a packet that is being written to the capture.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(1);

/// A device that can be opened.
#[repr(C)]
pub(crate) struct DeviceEntry {
    /// First, so that the address of an entry is that of its `ibv_device`.
    ibv: ibv_device,
    index: usize,
    settings: Arc<Settings>,
    opened: Mutex<Weak<Device>>,
}

/// The devices of a process.
#[derive(Debug)]
pub(crate) struct DeviceList {
    entries: Vec<&'static DeviceEntry>,
    sysfs: Option<Sysfs>,
}

impl std::fmt::Debug for DeviceEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceEntry").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Copies as much text as fits in front of the terminating zero, which is there already.
fn copy_text(into: &mut [c_char], text: &str) {
    let capacity = into.len() - 1;
    for (to, &from) in into[..capacity].iter_mut().zip(text.as_bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

impl DeviceEntry {
    fn new(index: usize, settings: &Arc<Settings>, sysfs: &Sysfs) -> Self {
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
        Self { ibv, index, settings, opened: Mutex::default() }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        (&raw const self.ibv).cast_mut()
    }

    /// The name as C text.
    pub(crate) fn name(&self) -> *const c_char {
        self.ibv.name.as_ptr()
    }

    /// The entry behind a pointer that a program got from `ibv_get_device_list`.
    pub(crate) fn find(device: *const ibv_device) -> Outcome<&'static Self> {
        let devices = lock(&process().devices);
        let mut entries = devices.iter().flat_map(|list| &list.entries);
        entries.find(|entry| entry.as_ptr().cast_const() == device).copied().ok_or(INVALID)
    }

    /// The device; opens it unless a context of this process has it open.
    pub(crate) fn open(&self) -> Outcome<Arc<Device>> {
        let mut opened = lock(&self.opened);
        if let Some(device) = opened.upgrade() {
            return Ok(device);
        }
        let capture = process().capture.get().cloned().map(SharedSink::new);
        let device = Arc::new(Device::open(self.index, &self.settings, capture).map_err(reported)?);
        *opened = Arc::downgrade(&device);
        Ok(device)
    }
}

fn name(index: usize) -> String {
    format!("efa_soft{index}")
}

impl DeviceList {
    /// The devices that the environment asks for; none, and a message, if they can't be made.
    fn new() -> Self {
        let Some((settings, sysfs)) = Self::prepare() else {
            return Self { entries: Vec::new(), sysfs: None };
        };
        if let Some(warning) = settings.warning() {
            report(&warning);
        }
        let settings = Arc::new(settings);
        if let Some(capture) = &settings.capture {
            // Nobody else sets it: the devices of a process are listed once.
            let _ = process().capture.set(CaptureFile::new(capture));
        }
        let entry = |index| -> &'static DeviceEntry {
            Box::leak(Box::new(DeviceEntry::new(index, &settings, &sysfs)))
        };
        let entries = (0..settings.devices).map(entry).collect();
        sysfs::set_path_variable(sysfs.root());
        Self { entries, sysfs: Some(sysfs) }
    }

    /// The settings, and the sysfs tree for their devices.
    fn prepare() -> Option<(Settings, Sysfs)> {
        let settings = Settings::from_environment().map_err(|error| report(&error)).ok()?;
        let names: Vec<_> = (0..settings.devices).map(name).collect();
        let base = settings.sysfs.clone().unwrap_or_else(std::env::temp_dir);
        let sysfs = std::path::absolute(&base)
            .and_then(|base| Sysfs::create(&base, names.iter().map(String::as_str)));
        match sysfs {
            Ok(sysfs) => Some((settings, sysfs)),
            Err(error) => {
                let base = base.display();
                report(&format_args!("cannot create the sysfs tree in {base}: {error}"));
                None
            }
        }
    }

    /// The devices of this process.
    pub(crate) fn get() -> Vec<&'static DeviceEntry> {
        let _listing = DEVICE_LISTING.lock_in_time();
        lock(&process().devices).get_or_insert_with(Self::new).entries.clone()
    }

    /// When the process exits.
    pub(crate) fn at_exit(&self) {
        if let Some(sysfs) = &self.sysfs {
            sysfs.remove();
        }
        for entry in &self.entries {
            // A thread that holds the lock may have been interrupted by what ends the process.
            let opened = entry.opened.try_lock().ok().and_then(|opened| opened.upgrade());
            if let Some(device) = opened {
                device.report_statistics("at exit");
            }
        }
        if let Some(capture) = process().capture.get() {
            capture.finish(CAPTURE_TIMEOUT);
        }
    }
}

/// An opened device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) link: Link,
    /// For RDMA operations of no bytes, which name no region.
    pub(crate) empty_region: SoftRegion,
    pub(crate) settings: Arc<Settings>,
    pub(crate) quotas: Quotas,
    pub(crate) statistics: Statistics,
    pub(crate) draws: Draws,
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
        if let Some(reason) = link.rdma_obstacle() {
            report(&format_args!("{} offers no RDMA: {reason}", name(index)));
        }
        let empty_region = link.register(Box::default(), Access::default());
        let empty_region = empty_region.map_err(|refused| refused.error)?;
        link.keys().refuse(settings.refusals);
        let settings = Arc::clone(settings);
        let counting =
            Counting { index, mtu: settings.mtu, has_both_ends: matches!(link, Link::Shm(_)) };
        let statistics = Statistics::shared(settings.sysfs.as_deref(), counting);
        let statistics = statistics.unwrap_or_else(|error| {
            report(&format_args!("the files in hw_counters lack this process: {error}"));
            Statistics::default()
        });
        Ok(Self {
            link,
            empty_region,
            quotas: Quotas::new(&settings.limits),
            settings,
            statistics,
            draws: Draws::default(),
            name: name(index),
            reported: AtomicBool::new(false),
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.link.gid()
    }

    /// Which RDMA operations the device offers.
    pub(crate) fn rdma(&self) -> Rdma {
        self.link.attributes().rdma
    }

    /// Most inline data of a send in bytes.
    pub(crate) fn max_inline(&self) -> usize {
        if self.settings.generation.has_long_descriptors() { MAX_INLINE } else { USUAL_INLINE }
    }

    /// Whether the data of RDMA writes may be inline.
    pub(crate) fn offers_inline_writes(&self) -> bool {
        self.rdma().write && self.settings.generation.has_long_descriptors()
    }

    /// Prints the counters once, if the settings ask for that and the device was used.
    fn report_statistics(&self, when: &str) {
        if self.settings.statistics
            && !self.statistics.are_zero()
            && !self.reported.swap(true, Ordering::Relaxed)
        {
            let (name, process) = (&self.name, std::process::id());
            print(&format_args!("{name} of process {process}, {when}: {}", self.statistics));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.report_statistics("closed");
    }
}
