//! Address vectors (`fi_av`), whose addresses are the 32 bytes of EFA.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use efa::{Address, AddressVectorKind, AddressVectorOptions, DeviceError, FiAddr};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, number, status, value};
use crate::c::domain::Domain;
use crate::c::entry;
use crate::c::eq::{EventQueue, Insertion};
use crate::c::event::Pointer;
use crate::errors;
use crate::lookup::{self, HostPort, PATIENCE};
use crate::object::{Class, Object, Pool, Use};
use crate::threads::{self, with_signals_blocked};

/// An address vector.
pub(crate) struct AddressVector {
    pub(crate) addresses: efa::AddressVector,
    pub(crate) domain: Use<Domain>,
    /// What the first peer in each slot is called, if another process inserts (`map_addr`).
    first: Box<[fi_addr_t]>,
    /// Whether insertions end with an event (`FI_EVENT`).
    is_async: bool,
    events: OnceLock<Use<EventQueue>>,
}

/// The upper half of the first address of a slot in an [`AddressVectorKind::Map`].
const FIRST_OF_SLOT: fi_addr_t = 1 << 32;

/// Addresses that `map_addr` lists of a named address vector opened without a count.
const LISTED_BY_DEFAULT: usize = 4096;
/// Most addresses that `map_addr` lists.
const MOST_LISTED: usize = 1 << 20;

static FID: fi_ops =
    fi_ops { close: Some(close), bind: Some(bind), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_av = fi_ops_av {
    insert: Some(insert),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    ..fi_ops_av::failing::<FI_ENOSYS>()
};
static CLOSED: fi_ops_av = fi_ops_av::failing::<FI_EBADF>();

// SAFETY: `fid_av` begins with a `fid`.
unsafe impl Class for AddressVector {
    type C = fid_av;

    const NUMBER: usize = FI_CLASS_AV;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_av {
        fid_av { fid, ops: &TABLE }
    }

    fn closed(fid: fid) -> fid_av {
        fid_av { fid, ops: &CLOSED }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<AddressVector> = Pool::new();
        &POOL
    }
}

/// `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a domain; the program passes attributes and a place for the object.
        unsafe {
            let domain = Object::<Domain>::of(domain);
            let attr = attr.as_mut().ok_or(INVALID)?;
            let to = av.as_mut().ok_or(INVALID)?;
            let opened = AddressVector::new(domain, attr)?;
            let object = Object::create(opened, context).as_ref();
            if !object.first.is_empty() {
                attr.map_addr = object.first.as_ptr().cast_mut().cast();
            }
            *to = object.address();
        }
        Ok(())
    })
}

impl AddressVector {
    /// Opens one, and sets its type in the attributes.
    ///
    /// # Safety
    /// The name in the attributes is null or a string of C.
    unsafe fn new(domain: &Object<Domain>, attr: &mut fi_av_attr) -> Outcome<Self> {
        if attr.flags & !(FI_READ | FI_SYMMETRIC | FI_EVENT) != 0 {
            return Err(INVALID);
        }
        let kind = match attr.type_ {
            FI_AV_UNSPEC => domain.addresses,
            FI_AV_MAP => AddressVectorKind::Map,
            FI_AV_TABLE => AddressVectorKind::Table,
            _ => return Err(INVALID),
        };
        let bits = u8::try_from(attr.rx_ctx_bits).map_err(|_| INVALID)?;
        let mut options = AddressVectorOptions::new()
            .kind(kind)
            .count(attr.count)
            .endpoints_per_node(attr.ep_per_node)
            .receive_context_bits(bits);
        // SAFETY: the caller's promise.
        match unsafe { entry::text(attr.name) }? {
            Some(name) => options = options.name(name),
            None if attr.flags & FI_READ != 0 => return Err(INVALID),
            None => {}
        }
        let mut first = Box::default();
        if attr.flags & FI_READ != 0 {
            options = options.read_only();
            let count =
                if attr.count == 0 { LISTED_BY_DEFAULT } else { attr.count.min(MOST_LISTED) };
            let upper = if kind == AddressVectorKind::Map { FIRST_OF_SLOT } else { 0 };
            first = (0..count as fi_addr_t).map(|index| upper | index).collect();
        }
        let opened = domain.domain.address_vector_with(options);
        let addresses = opened.map_err(|error| errors::of_error(&error))?;
        attr.type_ = match kind {
            AddressVectorKind::Map => FI_AV_MAP,
            _ => FI_AV_TABLE,
        };
        Ok(Self {
            addresses,
            domain: Use::new(domain),
            first,
            is_async: attr.flags & FI_EVENT != 0,
            events: OnceLock::new(),
        })
    }
}

impl Object<AddressVector> {
    /// Begins to insert addresses; an event says how it went. The call doesn't wait for servers.
    fn insert_async(
        &self,
        events: &EventQueue,
        all: Vec<[u8; Address::SIZE]>,
        to: *mut fi_addr_t,
        context: *mut c_void,
    ) -> Outcome<usize> {
        let found = Arc::new(OnceLock::new());
        let number = events.register_insertion(Insertion {
            of: Pointer::of(self.fid()),
            context: Pointer::of(context),
            to: Pointer::of(to),
            found: found.clone(),
        });
        let (has_servers, addresses) = (has_servers(&all), self.addresses.clone());
        // It may go on when the objects are closed: then there is no event.
        let insert = move || {
            let all = endpoints_at(&all);
            let known: Vec<Address> = all.iter().filter_map(|found| found.ok()).collect();
            // Nobody else sets it.
            let _ = found.set(all);
            addresses.insert_async(&known, number)
        };
        let begun = match has_servers {
            false => insert().map_err(|error| errors::of_insertion(&error)),
            true => {
                let thread = std::thread::Builder::new().name("efars-look-up".to_owned());
                // An event queue is bound.
                let asks = move || {
                    let _ = insert();
                };
                let started = with_signals_blocked(|| thread.spawn(asks));
                started.map(drop).map_err(|error| errors::of_io(&error))
            }
        };
        begun.map(|()| 0).inspect_err(|_| events.forget_insertion(number))
    }
}

/// `fi_av_bind`, to an event queue.
unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of an address vector; a program passes null or an object of libfabric.
        unsafe {
            let av = Object::<AddressVector>::of(fid.cast());
            let events = Object::<EventQueue>::argument(bfid)?;
            if !av.is_async {
                return Err(INVALID);
            }
            let bound = av.addresses.bind_event_queue(&events.events);
            bound.map_err(|error| errors::of_insertion(&error))?;
            // Nobody else has set it, as `bind_event_queue` fails the second time.
            let _ = av.events.set(Use::new(events));
        }
        Ok(())
    })
}

/// `fi_av_insert`: returns how many addresses were inserted, or 0 if an event will say it.
unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    number(|| {
        if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
            return Err(INVALID);
        }
        // SAFETY: the table is that of an address vector.
        let av = unsafe { Object::<AddressVector>::of(av) };
        if av.is_async && av.events.get().is_none() {
            return Err(Errno(FI_ENOEQ));
        }
        if count == 0 && !av.is_async {
            return Ok(0);
        }
        if (addr.is_null() && count > 0) || count > c_int::MAX as usize {
            return Err(INVALID);
        }
        // SAFETY: the program passes `count` addresses of 32 bytes, room for as many indices or null, and with
        // `FI_SYNC_ERR` room for as many error numbers.
        unsafe {
            let all: Vec<_> = (0..count)
                .map(|index| addr.cast::<[u8; Address::SIZE]>().add(index).read_unaligned())
                .collect();
            if let Some(events) = av.events.get() {
                return av.insert_async(events, all, fi_addr, context);
            }
            let found = match has_servers(&all) {
                false => endpoints_at(&all),
                true => {
                    // It isn't closed meanwhile.
                    let _used = Use::new(av);
                    threads::asleep(|| endpoints_at(&all))
                }
            };
            let addresses: Vec<Address> = found.iter().filter_map(|found| found.ok()).collect();
            let results = av.addresses.insert_many(&addresses);
            let mut inserted = 0;
            for (index, result) in indices(found, results).enumerate() {
                let (fi, errno) = match result {
                    Ok(fi) => (fi, 0),
                    Err(Errno(errno)) => (FI_ADDR_NOTAVAIL, errno),
                };
                inserted += usize::from(errno == 0);
                if !fi_addr.is_null() {
                    fi_addr.add(index).write_unaligned(fi);
                }
                if flags & FI_SYNC_ERR != 0 && !context.is_null() {
                    context.cast::<c_int>().add(index).write_unaligned(errno);
                }
            }
            Ok(inserted)
        }
    })
}

/// The index of each address. `results` are those of the ones that were found.
pub(crate) fn indices(
    found: Vec<Outcome<Address>>,
    results: Vec<Result<FiAddr, DeviceError>>,
) -> impl Iterator<Item = Outcome<u64>> {
    let mut results = results.into_iter();
    found.into_iter().map(move |found| {
        found.and_then(|_| match results.next() {
            Some(Ok(FiAddr(fi))) => Ok(fi),
            Some(Err(error)) => Err(errors::of_device(&error)),
            None => Err(INVALID),
        })
    })
}

fn has_servers(all: &[[u8; Address::SIZE]]) -> bool {
    all.iter().any(|bytes| HostPort::from_bytes(bytes).is_some())
}

/// The addresses of endpoints. Those of which only host and port are known are asked for.
fn endpoints_at(all: &[[u8; Address::SIZE]]) -> Vec<Outcome<Address>> {
    let servers: Vec<HostPort> = all.iter().filter_map(HostPort::from_bytes).collect();
    let mut answers = servers.iter().zip(lookup::look_up(&servers, PATIENCE));
    let endpoint = |bytes: &[u8; Address::SIZE]| match HostPort::from_bytes(bytes) {
        None => Ok(Address::from_bytes(*bytes)),
        Some(_) => {
            let (server, answer) = answers.next().ok_or(INVALID)?;
            let address = answer.map_err(|error| {
                crate::log::warn(format_args!("no address from {}: {error}", server.0));
                errors::of_io(&error)
            });
            address.map(Address::from_bytes)
        }
    };
    all.iter().map(endpoint).collect()
}

/// `fi_av_remove`. Fails with the first index that isn't there, after those before it were removed.
unsafe extern "C" fn remove(
    av: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    status(|| {
        if flags != 0 || (fi_addr.is_null() && count > 0) {
            return Err(INVALID);
        }
        // SAFETY: the table is that of an address vector; the program passes `count` indices.
        unsafe {
            let av = Object::<AddressVector>::of(av);
            for index in 0..count {
                let peer = FiAddr(fi_addr.add(index).read_unaligned());
                av.addresses.remove(peer).ok_or(INVALID)?;
            }
        }
        Ok(())
    })
}

/// `fi_av_lookup`: writes as many bytes of the address as there is room for, and its whole length.
unsafe extern "C" fn lookup(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of an address vector; `addrlen` says how many bytes there are room for.
        unsafe {
            let av = Object::<AddressVector>::of(av);
            let address = av.addresses.address(FiAddr(fi_addr)).ok_or(INVALID)?;
            copy_name(&address.to_bytes(), addr, addrlen).or_else(|error| match error {
                // Only a part of it, as libfabric has it.
                Errno(FI_ETOOSMALL) => Ok(()),
                other => Err(other),
            })
        }
    })
}

/// Writes an address where there is room for it, and its length.
///
/// # Errors
/// `FI_ETOOSMALL` if it was cut off.
///
/// # Safety
/// `length` is null or holds how many bytes can be written to `to`.
pub(crate) unsafe fn copy_name(bytes: &[u8], to: *mut c_void, length: *mut usize) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let room = length.as_mut().ok_or(INVALID)?;
        let count = bytes.len().min(*room);
        if to.is_null() && count > 0 {
            return Err(INVALID);
        }
        if count > 0 {
            to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), count);
        }
        *room = bytes.len();
        if count < bytes.len() { Err(Errno(FI_ETOOSMALL)) } else { Ok(()) }
    }
}

/// `fi_av_straddr`: the address as text, cut off where there is no more room, and the whole length with its zero.
unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        if addr.is_null() || len.is_null() {
            return std::ptr::null();
        }
        // SAFETY: the program passes an address of 32 bytes, and in `len` how many bytes can be written to `buf`.
        unsafe {
            let address = Address::from_bytes(addr.cast::<[u8; Address::SIZE]>().read_unaligned());
            let text = format!("fi_addr_efa://{address}\0");
            let room = if buf.is_null() { 0 } else { *len };
            let count = text.len().min(room);
            buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
            if let Some(last) = count.checked_sub(1) {
                buf.add(last).write(0);
            }
            *len = text.len();
            buf.cast_const()
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        let last = |av: &AddressVector| {
            if let Some(events) = av.events.get() {
                events.forget_insertions(Pointer::of(fid));
            }
        };
        // SAFETY: the table is that of an address vector.
        unsafe { Object::<AddressVector>::of(fid.cast()).close_after(last) }.map(drop)
    })
}
