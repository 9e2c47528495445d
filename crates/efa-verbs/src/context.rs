//! The list of devices, and one of them opened.

use std::ffi::{CStr, c_int};
use std::io;
use std::mem::zeroed;
use std::ptr::NonNull;

use efa_device::{DeviceError, Gid, Rdma};
use rdma_sys::{
    ___ibv_query_port, ibv_close_device, ibv_context, ibv_device, ibv_device_attr,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_gid, ibv_open_device,
    ibv_port_attr, ibv_query_device, ibv_query_gid,
};

use crate::efadv::*;
use crate::failure::{check, object, stays};

/// An interface has one.
const PORT: u8 = 1;
/// Largest datagram that the protocol uses, whatever the device could.
const MAX_MTU: u32 = 32 << 10;

/// What libibverbs finds on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// EFA interfaces, by name.
    Interfaces(Vec<String>),
    /// Interfaces, but none that libefa knows.
    OthersOnly(Vec<String>),
    /// The list is empty.
    Empty,
    /// There is no list.
    NoList {
        /// Why not; `ENOSYS` where the kernel has no RDMA.
        errno: i32,
    },
}

impl Presence {
    /// What is the matter in one line, with what to do; `None` where there are EFA interfaces.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let (found, remedy) = match self {
            Self::Interfaces(_) => return None,
            Self::OthersOnly(names) => {
                let found = format!("libefa knows none of the interfaces {}", names.join(", "));
                (found, "install ibverbs-providers, and run on an instance with EFA")
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
                "look for what libibverbs says on standard error",
            ),
        };
        Some(format!("{found}: {remedy}, or use the software device"))
    }
}

/// What libibverbs finds on this machine.
#[must_use]
pub fn presence() -> Presence {
    let list = match DeviceList::get() {
        Ok(list) => list,
        Err(errno) => return Presence::NoList { errno },
    };
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for entry in list.entries() {
        let name = entry.name();
        // One that can't be opened is told by who opens it.
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
/// [`DeviceError::Absent`] says why there are none, and what to do.
pub fn interfaces() -> Result<Vec<String>, DeviceError> {
    match presence() {
        Presence::Interfaces(names) => Ok(names),
        nothing => Err(absent(nothing.trouble().unwrap_or_default())),
    }
}

fn absent(reason: String) -> DeviceError {
    DeviceError::Absent { reason }
}

/// The list of libibverbs, freed at the end.
struct DeviceList {
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    /// The list, or the error number why there is none.
    fn get() -> Result<Self, i32> {
        let mut count: c_int = 0;
        // SAFETY: the count is a number that may be written.
        let list = unsafe { ibv_get_device_list(&mut count) };
        let list = NonNull::new(list);
        let list =
            list.ok_or_else(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOSYS))?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        // SAFETY: the list has so many entries, none null, and lives as long as `self`.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        devices
            .iter()
            .filter_map(|device| NonNull::new(*device))
            .map(|device| Entry { device, _list: self })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_get_device_list` and is freed once; opened devices keep theirs.
        unsafe { ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// A device of the list.
struct Entry<'a> {
    device: NonNull<ibv_device>,
    _list: &'a DeviceList,
}

impl Entry<'_> {
    fn name(&self) -> String {
        // SAFETY: the list is not freed yet, so the device is valid.
        let name = unsafe { ibv_get_device_name(self.device.as_ptr()) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: not null, so a text that ends in zero.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    fn open(&self) -> Result<Context, DeviceError> {
        let name = self.name();
        // SAFETY: as in `name`.
        let raw =
            object(unsafe { ibv_open_device(self.device.as_ptr()) }, "ibv_open_device", &name);
        raw.map(|raw| Context { raw, name })
    }
}

/// An opened interface, closed at the end.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: libibverbs lets any thread use a context, several at a time too.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_open_device`, and all that was made from it holds it.
        stays(unsafe { ibv_close_device(self.raw.as_ptr()) }, "ibv_close_device", &self.name);
    }
}

/// What an interface is and can do, as it says itself.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) vendor_part_id: u32,
    pub(crate) mtu: usize,
    pub(crate) max_address_handles: usize,
    pub(crate) max_regions: usize,
    pub(crate) max_region_size: u64,
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

    pub(crate) fn retries_receiver_not_ready(&self) -> bool {
        self.has(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY)
    }

    pub(crate) fn tells_source_gid(&self) -> bool {
        self.has(EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID)
    }
}

impl Context {
    /// The interface `name`, or the first EFA interface.
    pub(crate) fn open(name: Option<&str>) -> Result<Self, DeviceError> {
        let nothing = |presence: Presence| absent(presence.trouble().unwrap_or_default());
        let list = DeviceList::get().map_err(|errno| nothing(Presence::NoList { errno }))?;
        let mut names = Vec::new();
        for entry in list.entries() {
            if name.is_some_and(|name| name != entry.name()) {
                names.push(entry.name());
                continue;
            }
            let context = entry.open()?;
            match context.efa_attributes() {
                Ok(_) => return Ok(context),
                // Asked for by name, so this is what is wrong.
                Err(error) if name.is_some() => return Err(error),
                Err(_) => names.push(entry.name()),
            }
        }
        Err(match name {
            _ if names.is_empty() => nothing(Presence::Empty),
            Some(name) => absent(format!("no interface {name}, but {}", names.join(", "))),
            None => nothing(Presence::OthersOnly(names)),
        })
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn efa_attributes(&self) -> Result<efadv_device_attr, DeviceError> {
        let mut efa = efadv_device_attr::default();
        let length = size_of::<efadv_device_attr>() as u32;
        // SAFETY: the context is open, and there is room for `length` bytes.
        let code = unsafe { efadv_query_device(self.raw(), &mut efa, length) };
        check(code, "efadv_query_device", &self.name).map(|()| efa)
    }

    pub(crate) fn limits(&self) -> Result<Limits, DeviceError> {
        let efa = self.efa_attributes()?;
        // SAFETY: structures of C for which all zero is valid.
        let (mut device, mut port): (ibv_device_attr, ibv_port_attr) = unsafe { zeroed() };
        // SAFETY: the context is open, and the structure is of libibverbs's own length.
        let code = unsafe { ibv_query_device(self.raw(), &mut device) };
        check(code, "ibv_query_device", &self.name)?;
        // SAFETY: as above; this form passes the length.
        let code = unsafe { ___ibv_query_port(self.raw(), PORT, &mut port) };
        check(code, "ibv_query_port", &self.name)?;
        let count = |number: c_int| usize::try_from(number).unwrap_or(0);
        Ok(Limits {
            vendor_part_id: device.vendor_part_id,
            mtu: port.max_msg_sz.min(MAX_MTU) as usize,
            // The numbers are of 16 bits, and 65535 is none.
            max_address_handles: match count(device.max_ah) {
                0 => usize::from(u16::MAX),
                limit => limit.min(usize::from(u16::MAX)),
            },
            max_regions: count(device.max_mr),
            max_region_size: device.max_mr_size,
            max_completions: count(device.max_cqe),
            efa,
        })
    }

    pub(crate) fn gid(&self) -> Result<Gid, DeviceError> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and there is room for a GID.
        let code = unsafe { ibv_query_gid(self.raw(), PORT, 0, &mut gid) };
        check(code, "ibv_query_gid", &self.name)?;
        // SAFETY: a GID is any 16 bytes.
        Ok(Gid(unsafe { gid.raw }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_missing_is_one_line_with_a_remedy() {
        for (presence, says, remedy) in [
            (Presence::NoList { errno: libc::ENOSYS }, "ENOSYS", "modprobe ib_uverbs efa"),
            (Presence::NoList { errno: libc::EACCES }, "errno 13", "standard error"),
            (Presence::Empty, "no RDMA interface", "modprobe efa"),
            (Presence::OthersOnly(vec!["mlx5_0".into()]), "mlx5_0", "ibverbs-providers"),
        ] {
            let trouble = presence.trouble().unwrap();
            assert!(trouble.contains(says) && trouble.contains(remedy), "{trouble}");
            assert!(trouble.ends_with("or use the software device"), "{trouble}");
            assert!(!trouble.contains('\n'), "{trouble}");
        }
        assert_eq!(Presence::Interfaces(vec!["efa_0".into()]).trouble(), None);
    }
}
