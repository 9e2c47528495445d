//! Connections of endpoints (`fi_connect`, `fi_accept`, `fi_shutdown`), and requests for them.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Mutex;

use efa::{ConnectionRequest, MsgEndpoint};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, lock, status};
use crate::c::endpoint::Endpoint;
use crate::c::passive::Passive;
use crate::c::{av, entry};
use crate::errors;
use crate::object::{Class, Object, Pool, Use};
use crate::{socket, threads};

/// Most bytes of private data.
pub(crate) const MOST_DATA: usize = 256;

pub(crate) static TABLE: fi_ops_cm = fi_ops_cm {
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    accept: Some(accept),
    shutdown: Some(shutdown),
    ..fi_ops_cm::failing::<FI_ENOSYS>()
};

// ---- requests -----------------------------------------------------------------------------------

/// A request to be connected, as `fi_info.handle` names it.
pub(crate) struct RequestHandle(Mutex<Option<ConnectionRequest>>);

static FID: fi_ops = fi_ops { close: Some(close), ..fi_ops::failing::<FI_ENOSYS>() };

// SAFETY: a request is nothing but a `fid`.
unsafe impl Class for RequestHandle {
    type C = fid;

    const NUMBER: usize = FI_CLASS_CONNREQ;

    // Its value is used by `take` alone, which closes it.
    const IS_USED: bool = false;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid {
        fid
    }

    fn closed(fid: fid) -> fid {
        fid
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<RequestHandle> = Pool::new();
        &POOL
    }
}

impl RequestHandle {
    /// A handle, until it is [taken](Self::take).
    pub(crate) fn create(request: ConnectionRequest) -> fid_t {
        let object = Object::create(Self(Mutex::new(Some(request))), std::ptr::null_mut());
        // SAFETY: the object was just made.
        unsafe { object.as_ref() }.fid()
    }

    /// The request of a handle, which is closed.
    ///
    /// # Errors
    /// [`INVALID`] if it is none, or was answered.
    ///
    /// # Safety
    /// As for [`Object::argument`].
    pub(crate) unsafe fn take(handle: fid_t) -> Outcome<ConnectionRequest> {
        // SAFETY: the caller's promise.
        let request = unsafe { Object::<Self>::argument(handle)?.close()? };
        lock(&request.0).take().ok_or(INVALID)
    }
}

/// Closing a request rejects it.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a request.
    status(|| unsafe { RequestHandle::take(fid) }.map(drop))
}

// ---- endpoints ----------------------------------------------------------------------------------

/// The connection of an endpoint.
#[derive(Default)]
pub(crate) struct Connection {
    state: Mutex<State>,
    /// Where the endpoint's entry says that it connects to.
    destination: Option<SocketAddr>,
}

#[derive(Default)]
struct State {
    /// What is to be accepted.
    request: Option<ConnectionRequest>,
    name: Option<SocketAddr>,
    peer: Option<SocketAddr>,
}

impl Connection {
    /// The connection of an endpoint with this entry, whose request it takes.
    ///
    /// # Safety
    /// The entry is as libfabric's programs have them.
    pub(crate) unsafe fn new(info: &fi_info) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        let (name, destination) = unsafe {
            let address = |at: *mut c_void, length| match at.is_null() {
                true => None,
                false => socket::read(at.cast(), length),
            };
            (address(info.src_addr, info.src_addrlen), address(info.dest_addr, info.dest_addrlen))
        };
        let mut state = State { name, ..State::default() };
        // SAFETY: the caller's promise.
        if let Ok(passive) = unsafe { Object::<Passive>::argument(info.handle) } {
            state.name = Some(passive.name());
        } else if !info.handle.is_null() {
            // SAFETY: as above.
            let request = unsafe { RequestHandle::take(info.handle) }?;
            (state.name, state.peer) = (Some(request.listener_address()), Some(request.caller()));
            state.request = Some(request);
        }
        Ok(Self { state: Mutex::new(state), destination })
    }
}

impl State {
    /// Whether it was connected or accepted.
    fn has_begun(&self) -> bool {
        self.peer.is_some() && self.request.is_none()
    }
}

/// Private data.
///
/// # Errors
/// There is more than [`MOST_DATA`], or none where it should be.
///
/// # Safety
/// `length` bytes at `param` are readable.
pub(crate) unsafe fn data<'a>(param: *const c_void, length: usize) -> Outcome<&'a [u8]> {
    if length > MOST_DATA {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    unsafe { crate::memory::copied(param, length) }
}

/// The connection of an endpoint and the endpoint, which is enabled if it wasn't.
fn enabled(ep: &Object<Endpoint>) -> Outcome<(&Connection, &MsgEndpoint)> {
    let connection = ep.connection.as_ref().ok_or(Errno(FI_ENOSYS))?;
    if ep.connected().is_none() {
        ep.enable()?;
    }
    Ok((connection, ep.connected().ok_or(Errno(FI_EOPBADSTATE))?))
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint; the program passes null or an internet address, and `paramlen`
        // bytes.
        unsafe {
            let ep = Object::<Endpoint>::of(ep);
            let data = data(param, paramlen)?;
            let (connection, endpoint) = enabled(ep)?;
            let to = match addr.is_null() {
                true => connection.destination,
                false => socket::at(addr.cast()),
            };
            let to = to.ok_or(INVALID)?;
            let mut state = lock(&connection.state);
            if state.request.is_some() {
                return Err(Errno(FI_EOPBADSTATE));
            }
            endpoint.connect(to, data).map_err(|error| errors::of_start_connect(&error))?;
            state.peer = Some(to);
            drop(state);
            ep.progress_events();
            Ok(())
        }
    })
}

unsafe extern "C" fn accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint; the program passes `paramlen` bytes.
        unsafe {
            let ep = Object::<Endpoint>::of(ep);
            let data = data(param, paramlen)?;
            let (connection, endpoint) = enabled(ep)?;
            let mut state = lock(&connection.state);
            // An endpoint that was opened without a request has none, nor has one that accepted it.
            let request = state.request.take().ok_or(Errno(FI_EOPBADSTATE))?;
            endpoint.accept(request, data).map_err(|failed| {
                state.request = Some(*failed.request);
                errors::of_start_connect(&failed.error)
            })?;
            drop(state);
            ep.progress_events();
            Ok(())
        }
    })
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of an endpoint.
        let ep = unsafe { Object::<Endpoint>::of(ep) };
        // It isn't closed meanwhile, nor what it is bound to.
        let ep = Use::new(ep);
        let connection = ep.connection.as_ref().ok_or(Errno(FI_ENOSYS))?;
        let endpoint = ep.connected().ok_or(Errno(FI_ENOTCONN))?;
        if !lock(&connection.state).has_begun() {
            return Err(Errno(FI_ENOTCONN));
        }
        let timeout = ep.domain.fabric.settings.close_timeout;
        // This takes as long as the peer lets it, and a thread that closes another object doesn't wait for it.
        if let Err(error) = threads::asleep(|| endpoint.shutdown(timeout)) {
            tracing::warn!(%error, "shut a connection down");
        }
        ep.object().report_shutdown();
        Ok(())
    })
}

/// `fi_getname`: of a connection an internet address of this side, whose port is 0 if the system chose it.
unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint; `addrlen` says how many bytes there are room for.
        unsafe {
            let ep = Object::<Endpoint>::of(fid.cast());
            let Some(connection) = &ep.connection else {
                return av::copy_name(&ep.endpoint()?.address().to_bytes(), addr, addrlen);
            };
            let State { name, peer, .. } = &*lock(&connection.state);
            let towards = peer.or(connection.destination).and_then(socket::towards);
            let name = name.filter(|name| !name.ip().is_unspecified());
            let name = name.or(towards.map(|ip| (ip, 0).into())).unwrap_or(entry::ANYWHERE);
            av::copy_name(&socket::bytes(socket::reachable(name)), addr, addrlen)
        }
    })
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the table is that of an endpoint; `addrlen` says how many bytes there are room for.
        unsafe {
            let ep = Object::<Endpoint>::of(ep);
            let connection = ep.connection.as_ref().ok_or(Errno(FI_ENOSYS))?;
            let peer = lock(&connection.state).peer.ok_or(Errno(FI_ENOTCONN))?;
            av::copy_name(&socket::bytes(peer), addr, addrlen)
        }
    })
}
