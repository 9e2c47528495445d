//! What libfabric calls first: the provider, its discovery, and its fabrics.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use efa::{Address, EndpointKind, Info, Query};

use crate::abi::later::FI_SOCKADDR_IP;
use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, status};
use crate::c;
use crate::c::domain::Domain;
use crate::c::fabric::Fabric;
use crate::info::{Answer, ProgramHints, RequestedAttributes, answer, query};
use crate::libfabric::{self, Libfabric, OwnedInfo, libfabric};
use crate::lookup::HostPort;
use crate::object::{Object, Use};
use crate::settings::Settings;
use crate::threads;

/// `fi_provider` has pointers, which only C reads.
struct Provider(fi_provider);

// SAFETY: nothing is changed through it but `context`, which belongs to libfabric.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

static PROVIDER: OnceLock<Provider> = OnceLock::new();

/// The version of this provider. libfabric's own have the version of libfabric, as 206.0: the built-in `efa` gives way
/// to a higher one of that name. Open MPI's `btl ofi` refuses each provider before 112.0 whose name begins with `efa`.
const VERSION: u32 = FI_VERSION(300, 0);

/// The flag of libfabric's utility providers, which look for core providers to stack on.
const CORE_ONLY: u64 = 1 << 59;

/// Describes this provider (`FI_EXT_INI`). Null if the process has no libfabric.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let Some(libfabric) = libfabric() else { return std::ptr::null_mut() };
    let Provider(provider) = PROVIDER.get_or_init(|| {
        let in_place = crate::settings::takes_the_place_of_efa();
        Provider(fi_provider {
            version: VERSION,
            fi_version: libfabric.version(),
            // SAFETY: zeros are a valid value: four null pointers.
            context: unsafe { std::mem::zeroed() },
            name: if in_place { c"efa".as_ptr() } else { c"efars".as_ptr() },
            getinfo: Some(getinfo),
            fabric: Some(c::fabric::open),
            cleanup: Some(cleanup),
        })
    });
    libfabric::attach(provider);
    Settings::define();
    std::ptr::from_ref(provider).cast_mut()
}

unsafe extern "C" fn cleanup() {}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    status(|| {
        // SAFETY: libfabric passes strings or null, hints or null, and a place for the answer.
        unsafe {
            let info = info.as_mut().ok_or(INVALID)?;
            let (node, service) = (text(node)?, text(service)?);
            if flags & CORE_ONLY != 0 {
                return Err(Errno(FI_ENODATA));
            }
            let hints = hints.as_ref().map(|hints| asked(hints)).transpose()?;
            let open = hints.map(|hints| OpenObjects::of(hints)).transpose()?.unwrap_or_default();
            let inquiry = Inquiry { version, node, service, flags, hints, open };
            // A host may take its time to be found.
            *info = threads::asleep(|| inquiry.discover())?.into_raw();
        }
        Ok(())
    })
}

/// A string of C, if there is one.
///
/// # Safety
/// It is null or ends with a zero.
pub(super) unsafe fn text<'a>(at: *const c_char) -> Outcome<Option<&'a str>> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(at) }.to_str().map(Some).map_err(|_| INVALID)
}

/// The hints, and what they point to.
///
/// # Safety
/// All pointers in `hints` are null or as libfabric's programs set them.
unsafe fn asked(hints: &fi_info) -> Outcome<ProgramHints<'_>> {
    // SAFETY: the caller's promise.
    unsafe {
        let (fabric, domain) = (hints.fabric_attr.as_ref(), hints.domain_attr.as_ref());
        let name = |name: Option<*mut c_char>| text(name.unwrap_or_default().cast_const());
        Ok(ProgramHints {
            info: hints,
            transmit: hints.tx_attr.as_ref(),
            receive: hints.rx_attr.as_ref(),
            endpoint: hints.ep_attr.as_ref(),
            domain,
            fabric,
            fabric_name: name(fabric.map(|fabric| fabric.name))?,
            domain_name: name(domain.map(|domain| domain.name))?,
        })
    }
}

/// A call of `fi_getinfo`.
struct Inquiry<'a> {
    version: u32,
    node: Option<&'a str>,
    service: Option<&'a str>,
    flags: u64,
    hints: Option<ProgramHints<'a>>,
    open: OpenObjects,
}

impl Inquiry<'_> {
    /// What is asked of `efa`.
    ///
    /// # Safety
    /// Addresses in the hints have the lengths that they say.
    unsafe fn query(&self, settings: &Settings) -> Outcome<Query> {
        let mut query =
            query(self.version, self.hints)?.options(settings.environment.endpoint.clone());
        if settings.is_in_place() && query.hints.fabric.as_deref() == Some("efa") {
            query.hints.fabric = None;
        }
        if let Some(node) = self.node {
            if self.flags & FI_NUMERICHOST != 0 && node.parse::<IpAddr>().is_err() {
                return Err(Errno(FI_ENODATA));
            }
            query = query.node(node);
        }
        if let Some(service) = self.service {
            query = query.service(number_of(service)?);
        }
        if self.flags & FI_SOURCE != 0 {
            query = query.source();
        }
        if let Some(ProgramHints { info, .. }) = self.hints {
            // SAFETY: the caller's promise.
            let [source, destination] = unsafe {
                [
                    socket_address(info.src_addr, info.src_addrlen),
                    socket_address(info.dest_addr, info.dest_addrlen),
                ]
            };
            query.hints.source =
                source.filter(|source| !source.ip().is_unspecified() || source.port() != 0);
            query.hints.destination = destination;
        }
        Ok(query)
    }

    /// What entries repeat of the hints. Where a node or a service says it, an address of the hints doesn't.
    ///
    /// # Safety
    /// As for [`query`](Self::query).
    unsafe fn requested(&self) -> RequestedAttributes {
        let mut requested = RequestedAttributes::of(self.version, self.hints);
        if let Some(ProgramHints { info, .. }) = self.hints
            && info.addr_format == FI_ADDR_EFA
        {
            let is_source = self.flags & FI_SOURCE != 0;
            let is_named = self.node.is_some() || self.service.is_some();
            // SAFETY: the caller's promise.
            unsafe {
                if !is_source {
                    requested.source = address(info.src_addr, info.src_addrlen);
                }
                if is_source || !is_named {
                    requested.destination = address(info.dest_addr, info.dest_addrlen);
                }
            }
        }
        requested
    }

    /// The entries, the best first: a list of libfabric.
    ///
    /// # Errors
    /// `FI_ENODATA` if there is none.
    ///
    /// # Safety
    /// As for [`query`](Self::query).
    unsafe fn discover(&self) -> Outcome<OwnedInfo<'static>> {
        let settings = Settings::read()?;
        // SAFETY: the caller's promise.
        let (query, requested) = unsafe { (self.query(&settings)?, self.requested()) };
        let entries = settings.device.discover(query)?;
        let hints = self.hints;
        let asked_domain = hints.and_then(|hints| hints.domain_name);
        let libfabric = libfabric().ok_or(Errno(FI_ENODATA))?;
        let mut first: Option<OwnedInfo<'static>> = None;
        for entry in entries.iter().rev() {
            if asked_domain.is_some_and(|asked| asked != settings.domain_name(entry)) {
                continue;
            }
            let filled = fill(libfabric, entry, &requested, &settings, self.version)?;
            // SAFETY: it is an entry of libfabric, which nobody else has.
            let info = unsafe { &mut *filled.as_ptr() };
            if hints.is_some_and(|hints| !is_format(info.addr_format, hints.info.addr_format)) {
                continue;
            }
            // SAFETY: as above; it has all attributes.
            unsafe {
                if !self.open.take(&entry.domain.name, info) {
                    continue;
                }
                self.open.put_into(info);
            }
            if let (Some(hints), EndpointKind::Connected) = (hints, entry.endpoint.kind) {
                info.handle = hints.info.handle;
            }
            info.next = first.map_or_else(std::ptr::null_mut, OwnedInfo::into_raw);
            first = Some(filled);
        }
        first.ok_or(Errno(FI_ENODATA))
    }
}

/// A service as `efa` takes it, which knows no names.
///
/// # Errors
/// `FI_ENODATA` for a name that the system doesn't know.
fn number_of(service: &str) -> Outcome<String> {
    if service.bytes().all(|digit| digit.is_ascii_digit()) {
        return Ok(service.to_owned());
    }
    let port = crate::socket::port_of(service).ok_or_else(|| {
        crate::log::info(format_args!("no entry: the system knows no TCP service {service}"));
        Errno(FI_ENODATA)
    })?;
    Ok(port.to_string())
}

/// The source of entries for which nothing was asked.
pub(super) const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The address of an endpoint in hints, or a [`HostPort`].
///
/// # Safety
/// `at` is null, or `length` bytes are there.
pub(super) unsafe fn address(at: *const c_void, length: usize) -> Option<[u8; Address::SIZE]> {
    let is_one = !at.is_null() && length == Address::SIZE;
    // SAFETY: the caller's promise.
    is_one.then(|| unsafe { at.cast::<[u8; Address::SIZE]>().read_unaligned() })
}

/// The internet address in hints, or that of a [`HostPort`].
///
/// # Safety
/// As for [`address`].
unsafe fn socket_address(at: *const c_void, length: usize) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    unsafe {
        match address(at, length) {
            Some(bytes) => HostPort::from_bytes(&bytes).map(|HostPort(address)| address),
            None if at.is_null() => None,
            None => crate::socket::read(at.cast(), length),
        }
    }
}

/// The open fabric and domain that the entries must be of.
#[derive(Default)]
struct OpenObjects {
    fabric: Option<Use<Fabric>>,
    domain: Option<Use<Domain>>,
}

impl OpenObjects {
    /// Those of the hints. A domain brings its fabric along.
    ///
    /// # Errors
    /// `FI_ENODATA` if one is another provider's, or the domain is of another fabric.
    ///
    /// # Safety
    /// The objects in the hints are open, or null.
    unsafe fn of(asked: ProgramHints<'_>) -> Outcome<Self> {
        let none = |_| Errno(FI_ENODATA);
        let fabric = asked.fabric.map(|fabric| fabric.fabric).filter(|fabric| !fabric.is_null());
        let domain = asked.domain.map(|domain| domain.domain).filter(|domain| !domain.is_null());
        // SAFETY: the caller's promise.
        let (fabric, domain) = unsafe {
            let fabric = fabric.map(|fabric| Object::<Fabric>::argument(fabric.cast()));
            let domain = domain.map(|domain| Object::<Domain>::argument(domain.cast()));
            (fabric.transpose().map_err(none)?, domain.transpose().map_err(none)?)
        };
        let Some(domain) = domain else {
            return Ok(Self { fabric: fabric.map(Use::new), domain: None });
        };
        let domain = Use::new(domain);
        if fabric.is_some_and(|fabric| !domain.fabric.is(fabric)) {
            return Err(Errno(FI_ENODATA));
        }
        Ok(Self { fabric: Some(domain.fabric.clone()), domain: Some(domain) })
    }

    /// Whether an endpoint of this entry may be opened on the domain.
    ///
    /// # Safety
    /// The entry's attributes are valid.
    unsafe fn take(&self, device: &str, info: &fi_info) -> bool {
        self.domain.as_ref().is_none_or(|domain| {
            // SAFETY: the caller's promise.
            let attributes = unsafe { info.domain_attr.as_ref() };
            domain.is_on(device) && domain.takes_keys_of(info.caps, attributes).is_ok()
        })
    }

    /// Names them in an entry.
    ///
    /// # Safety
    /// The entry has its attributes, and nobody else has them.
    unsafe fn put_into(&self, info: &mut fi_info) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(fabric) = &self.fabric {
                (*info.fabric_attr).fabric = fabric.object().address();
            }
            if let Some(domain) = &self.domain {
                (*info.domain_attr).domain = domain.object().address();
            }
        }
    }
}

/// Whether addresses of this format are of the one that was asked for.
fn is_format(format: u32, asked: u32) -> bool {
    match asked {
        FI_FORMAT_UNSPEC => true,
        FI_SOCKADDR | FI_SOCKADDR_IP => matches!(format, FI_SOCKADDR_IN | FI_SOCKADDR_IN6),
        _ => format == asked,
    }
}

/// The entry as libfabric's structure.
fn fill(
    libfabric: &'static Libfabric,
    entry: &Info,
    requested: &RequestedAttributes,
    settings: &Settings,
    version: u32,
) -> Outcome<OwnedInfo<'static>> {
    let filled = libfabric.allocate_info().ok_or(Errno(FI_ENOMEM))?;
    // SAFETY: libfabric allocated the entry with all attributes, and nobody else has them.
    unsafe {
        let info = &mut *filled.as_ptr();
        let mut to = Answer {
            transmit: &mut *info.tx_attr,
            receive: &mut *info.rx_attr,
            endpoint: &mut *info.ep_attr,
            domain: &mut *info.domain_attr,
            info,
        };
        answer(entry, requested, &mut to);
        to.domain.name = libfabric::string(&settings.domain_name(entry));
        let info = to.info;
        let fabric = &mut *info.fabric_attr;
        fabric.name = libfabric::string(&settings.fabric_name(entry));
        // libfabric sets the name of the provider itself.
        fabric.prov_version = VERSION;
        fabric.api_version = version;
        let anywhere = match requested.is_ipv6 {
            true => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            false => ANYWHERE,
        };
        let source = entry.source.unwrap_or(anywhere);
        let (source, destination) = match entry.endpoint.kind {
            EndpointKind::Connected => {
                let (source, destination) =
                    (crate::socket::bytes(source), entry.destination.map(crate::socket::bytes));
                info.addr_format = crate::socket::format(destination.as_ref().unwrap_or(&source));
                (source, destination)
            }
            _ => {
                let host_port = |address| HostPort(address).to_bytes();
                let source = requested.source.unwrap_or_else(|| host_port(source));
                let destination = requested.destination.or(entry.destination.map(host_port));
                (source.to_vec(), destination.map(|destination| destination.to_vec()))
            }
        };
        (info.src_addr, info.src_addrlen) = (libfabric::bytes(&source), source.len());
        if let Some(destination) = destination {
            (info.dest_addr, info.dest_addrlen) =
                (libfabric::bytes(&destination), destination.len());
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use efa::AddressFormat;

    use super::*;

    /// What `efa` is asked for by hints with this format alone.
    fn queried(addr_format: u32) -> Outcome<Option<AddressFormat>> {
        // SAFETY: zeros are a valid value: null pointers and numbers.
        let info = fi_info { addr_format, ..unsafe { std::mem::zeroed() } };
        // SAFETY: the hints have no pointers.
        let asked = unsafe { asked(&info) }.unwrap();
        query(FI_VERSION(2, 3), Some(asked)).map(|query| query.hints.address_format)
    }

    #[test]
    fn hint_for_socket_addresses_of_any_family_is_met_by_both() {
        for asked in [FI_SOCKADDR, FI_SOCKADDR_IP] {
            assert_eq!(queried(asked), Ok(Some(AddressFormat::Socket)), "{asked}");
            let formats = [FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_ADDR_EFA, FI_SOCKADDR_IB];
            let met = formats.map(|format| is_format(format, asked));
            assert_eq!(met, [true, true, false, false], "{asked}");
        }
        assert_eq!(queried(FI_SOCKADDR_IB), Err(Errno(FI_ENODATA)));
    }
}
