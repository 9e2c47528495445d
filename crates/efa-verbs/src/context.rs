//! The device list of libibverbs, opened interfaces, and their attributes.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::zeroed;
use std::ptr::NonNull;

use efa_device::{DeviceError, Gid, Rdma};

use crate::abi::*;
use crate::failure::{check, destroy_failed, object};
use crate::fork::generation;
use crate::library::{Libraries, LoadError, libraries};

/// An EFA interface has one port.
const PORT: u8 = 1;
/// Largest datagram in bytes that the protocol uses, whatever the interface allows.
const MAX_MTU: u32 = 32 << 10;

/// The interfaces that libibverbs finds on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// Names of EFA interfaces.
    Interfaces(Vec<String>),
    /// Names of RDMA interfaces; none is of EFA.
    OthersOnly(Vec<String>),
    /// The device list is empty.
    Empty,
    /// `ibv_get_device_list` failed.
    NoList {
        /// Error number; `ENOSYS` where the kernel has no RDMA.
        errno: i32,
    },
    /// A library of rdma-core is missing or too old.
    NoLibrary(LoadError),
}

impl Presence {
    /// One line that says what is missing and what to do; `None` where there are EFA interfaces.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let (problem, remedy) = match self {
            Self::Interfaces(_) => return None,
            Self::OthersOnly(names) => {
                let problem = format!("none of the interfaces {} is of EFA", names.join(", "));
                (problem, "install ibverbs-providers, and run on an instance with EFA")
            }
            Self::Empty => (
                "ibv_get_device_list finds no RDMA interface".to_owned(),
                "attach an EFA interface to the instance and load the driver (modprobe efa)",
            ),
            Self::NoList { errno: libc::ENOSYS } => (
                "the kernel has no RDMA (ibv_get_device_list: ENOSYS)".to_owned(),
                "load the driver (modprobe ib_uverbs efa) on an instance with EFA",
            ),
            Self::NoList { errno } => (
                format!("ibv_get_device_list failed: errno {errno}"),
                "read the messages of libibverbs on standard error",
            ),
            Self::NoLibrary(error) => return Some(format!("{error}, or use the software device")),
        };
        Some(format!("{problem}: {remedy}, or use the software device"))
    }

    fn into_error(self) -> DeviceError {
        DeviceError::Absent { reason: self.trouble().unwrap_or_default() }
    }
}

/// Looks for the interfaces of this machine.
#[must_use]
pub fn presence() -> Presence {
    let list = match DeviceList::get() {
        Ok(list) => list,
        Err(absent) => return absent,
    };
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for entry in list.entries() {
        let name = entry.name();
        // One that can't be opened counts as EFA: opening it again reports the error.
        let other = entry.open().is_ok_and(|context| context.efa_attributes().is_err());
        if other { others.push(name) } else { ours.push(name) }
    }
    match (ours.is_empty(), others.is_empty()) {
        (false, _) => Presence::Interfaces(ours),
        (true, false) => Presence::OthersOnly(others),
        (true, true) => Presence::Empty,
    }
}

/// The names of the EFA interfaces of this machine.
///
/// # Errors
/// [`DeviceError::Absent`] where there are none, with a line that says why and what to do.
pub fn interfaces() -> Result<Vec<String>, DeviceError> {
    match presence() {
        Presence::Interfaces(names) => Ok(names),
        absent => Err(absent.into_error()),
    }
}

/// The device list of libibverbs, freed on drop.
struct DeviceList {
    list: NonNull<*mut ibv_device>,
    count: usize,
    libraries: &'static Libraries,
}

impl DeviceList {
    /// The list, or why there is none.
    fn get() -> Result<Self, Presence> {
        let libraries = libraries().map_err(Presence::NoLibrary)?;
        let mut count: c_int = 0;
        // SAFETY: `count` may be written.
        let list = unsafe { (libraries.ibverbs.ibv_get_device_list)(&mut count) };
        let list = NonNull::new(list).ok_or_else(|| {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOSYS);
            Presence::NoList { errno }
        })?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0), libraries })
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        // SAFETY: `ibv_get_device_list` made an array of `count` pointers, which is freed when `self`
        // is dropped.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        devices
            .iter()
            .filter_map(|device| NonNull::new(*device))
            .map(|device| Entry { device, list: self })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is of `ibv_get_device_list` and freed here alone. Contexts that were opened
        // from it hold references of their own to their devices.
        unsafe { (self.libraries.ibverbs.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// A device of the list.
struct Entry<'a> {
    device: NonNull<ibv_device>,
    list: &'a DeviceList,
}

impl Entry<'_> {
    fn name(&self) -> String {
        // SAFETY: the device is valid until its list is freed, and `list` is borrowed.
        let name =
            unsafe { (self.list.libraries.ibverbs.ibv_get_device_name)(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the name is a zero-terminated array within the device, which is valid as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    fn open(&self) -> Result<Context, DeviceError> {
        let (name, libraries) = (self.name(), self.list.libraries);
        // SAFETY: the device is valid until its list is freed, and `list` is borrowed.
        let raw = unsafe { (libraries.ibverbs.ibv_open_device)(self.device.as_ptr()) };
        let raw = object(raw, "ibv_open_device", &name)?;
        Ok(Context { raw, name, libraries, generation: generation() })
    }
}

/// An opened interface, closed on drop.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ibv_context>,
    name: String,
    libraries: &'static Libraries,
    /// Of the process that opened it.
    generation: u32,
}

// SAFETY: libibverbs and libefa have no thread-local state, so any thread may use the context.
unsafe impl Send for Context {}
// SAFETY: the calls that take a context (queries, ibv_alloc_pd, efadv_create_cq) are thread-safe in
// libibverbs.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: `raw` is of `ibv_open_device` and closed here alone. Domains and completion queues
        // hold the context, so none is left in it.
        let code = unsafe { (self.libraries.ibverbs.ibv_close_device)(self.raw.as_ptr()) };
        destroy_failed(code, "ibv_close_device", &self.name);
    }
}

/// Attributes of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) vendor_part_id: u32,
    /// In bytes.
    pub(crate) mtu: usize,
    pub(crate) max_queue_pairs: usize,
    pub(crate) max_address_handles: usize,
    pub(crate) max_regions: usize,
    /// In bytes.
    pub(crate) max_region_size: u64,
    /// Deepest queues of sends, receives and completions that can be made.
    pub(crate) max_send: usize,
    pub(crate) max_receive: usize,
    pub(crate) max_completions: usize,
    pub(crate) efa: efadv_device_attr,
}

impl Limits {
    fn has(&self, capability: u32) -> bool {
        self.efa.device_caps & capability != 0
    }

    pub(crate) fn rdma(&self) -> Rdma {
        Rdma {
            read: self.has(EFADV_DEVICE_ATTR_CAPS_RDMA_READ),
            write: self.has(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE),
            unsolicited_write_receive: self.has(EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV),
        }
    }

    pub(crate) fn retries_rnr(&self) -> bool {
        self.has(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY)
    }

    pub(crate) fn reports_source_gid(&self) -> bool {
        self.has(EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID)
    }
}

impl Context {
    /// The interface `name`, or the first EFA interface.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, DeviceError> {
        let list = DeviceList::get().map_err(Presence::into_error)?;
        let mut names = Vec::new();
        for entry in list.entries() {
            if name.is_some_and(|name| name != entry.name()) {
                names.push(entry.name());
                continue;
            }
            let context = entry.open()?;
            match context.efa_attributes() {
                Ok(_) => return Ok(context),
                // The caller named this one, so its error is what the caller needs.
                Err(error) if name.is_some() => return Err(error),
                Err(_) => names.push(entry.name()),
            }
        }
        Err(match name {
            _ if names.is_empty() => Presence::Empty.into_error(),
            Some(name) => {
                let reason = format!("no interface {name}, but {}", names.join(", "));
                DeviceError::Absent { reason }
            }
            None => Presence::OthersOnly(names).into_error(),
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Whether this is a forked child, and the parent opened it. Then its objects must not be destroyed here.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn libraries(&self) -> &'static Libraries {
        self.libraries
    }

    fn efa_attributes(&self) -> Result<efadv_device_attr, DeviceError> {
        let mut efa = efadv_device_attr::default();
        let length = size_of::<efadv_device_attr>() as u32;
        // SAFETY: the context is open, and `efa` has room for the `length` bytes that may be written.
        let code = unsafe { (self.libraries.efa.efadv_query_device)(self.raw(), &mut efa, length) };
        check(code, "efadv_query_device", &self.name).map(|()| efa)
    }

    pub(crate) fn limits(&self) -> Result<Limits, DeviceError> {
        let ibverbs = &self.libraries.ibverbs;
        let efa = self.efa_attributes()?;
        // SAFETY: both are structures of numbers, for which zeros are valid.
        let (mut device, mut port): (ibv_device_attr, ibv_port_attr) = unsafe { zeroed() };
        // SAFETY: the context is open, and `device` has the layout that `ibv_query_device` of version
        // 1.1 fills, which never grew.
        let code = unsafe { (ibverbs.ibv_query_device)(self.raw(), &mut device) };
        check(code, "ibv_query_device", &self.name)?;
        // SAFETY: the context is open, and `ibv_query_port` of version 1.1 fills no member behind
        // `flags`, which `port` has.
        let code = unsafe { (ibverbs.ibv_query_port)(self.raw(), PORT, &mut port) };
        check(code, "ibv_query_port", &self.name)?;
        let count = |number: c_int| usize::try_from(number).unwrap_or(0);
        let depth = |number: u32| usable_depth(number as usize);
        Ok(Limits {
            vendor_part_id: device.vendor_part_id,
            mtu: port.max_msg_sz.min(MAX_MTU) as usize,
            // Address handle numbers have 16 bits, and 65535 means none.
            max_address_handles: match count(device.max_ah) {
                0 => usize::from(u16::MAX),
                limit => limit.min(usize::from(u16::MAX)),
            },
            max_queue_pairs: count(device.max_qp),
            max_regions: count(device.max_mr),
            max_region_size: device.max_mr_size,
            max_send: depth(efa.max_sq_wr),
            max_receive: depth(efa.max_rq_wr),
            max_completions: usable_depth(count(device.max_cqe)),
            efa,
        })
    }

    pub(crate) fn gid(&self) -> Result<Gid, DeviceError> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and `gid` may be written.
        let code = unsafe { (self.libraries.ibverbs.ibv_query_gid)(self.raw(), PORT, 0, &mut gid) };
        check(code, "ibv_query_gid", &self.name)?;
        Ok(Gid(gid.raw))
    }
}

/// The deepest queue that can be made where the interface has `limit` entries. libefa rounds depths up to
/// powers of two, and the driver refuses what is then beyond the limit.
fn usable_depth(limit: usize) -> usize {
    limit.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_depth_is_a_power_of_two_within_the_limit() {
        let depths = [0, 1, 3, 4096, 12_288, 32_767].map(usable_depth);
        assert_eq!(depths, [0, 1, 2, 4096, 8192, 16_384]);
    }

    #[test]
    fn each_reason_for_no_interface_is_one_line_with_a_remedy() {
        let missing = LoadError::Missing {
            library: "libefa.so.1",
            package: "ibverbs-providers",
            reason: "libefa.so.1: cannot open shared object file".into(),
        };
        for (presence, problem, remedy) in [
            (Presence::NoList { errno: libc::ENOSYS }, "ENOSYS", "modprobe ib_uverbs efa"),
            (Presence::NoList { errno: libc::EACCES }, "errno 13", "standard error"),
            (Presence::Empty, "no RDMA interface", "modprobe efa"),
            (Presence::OthersOnly(vec!["mlx5_0".into()]), "mlx5_0", "ibverbs-providers"),
            (Presence::NoLibrary(missing), "libefa.so.1", "install ibverbs-providers"),
        ] {
            let trouble = presence.trouble().unwrap();
            assert!(trouble.contains(problem) && trouble.contains(remedy), "{trouble}");
            assert!(trouble.ends_with("or use the software device"), "{trouble}");
            assert!(!trouble.contains('\n'), "{trouble}");
        }
        assert_eq!(Presence::Interfaces(vec!["efa_0".into()]).trouble(), None);
    }
}
