//! Passive endpoints (`fi_pep`), which listen.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use efa::{Listener, PassiveEndpointOptions};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, lock, status};
use crate::c::eq::EventQueue;
use crate::c::event::{EventSource, Pointer};
use crate::c::fabric::Fabric;
use crate::c::{av, cm, entry};
use crate::errors;
use crate::libfabric::{OwnedInfo, libfabric};
use crate::object::{Class, Object, Pool, Use};
use crate::socket;

/// A passive endpoint.
pub(crate) struct Passive {
    fabric: Use<Fabric>,
    info: Arc<OwnedInfo<'static>>,
    state: Mutex<State>,
}

struct State {
    /// Set when it listens, with its number at the event queue.
    listening: Option<(Listener, u64)>,
    events: Option<Use<EventQueue>>,
    /// Where it is to listen.
    name: SocketAddr,
    options: PassiveEndpointOptions,
}

static FID: fi_ops = fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..fi_ops::failing::<FI_ENOSYS>()
};
static OPTIONS: fi_ops_ep =
    fi_ops_ep { getopt: Some(getopt), setopt: Some(setopt), ..fi_ops_ep::failing::<FI_ENOSYS>() };
static CLOSED: fi_ops_ep = fi_ops_ep::failing::<FI_EBADF>();
static TABLE: fi_ops_cm = fi_ops_cm {
    setname: Some(setname),
    getname: Some(getname),
    listen: Some(listen),
    reject: Some(reject),
    ..fi_ops_cm::failing::<FI_ENOSYS>()
};
static CLOSED_TABLE: fi_ops_cm = fi_ops_cm::failing::<FI_EBADF>();

// SAFETY: `fid_pep` begins with a `fid`.
unsafe impl Class for Passive {
    type C = fid_pep;

    const NUMBER: usize = FI_CLASS_PEP;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_pep {
        fid_pep { fid, ops: &OPTIONS, cm: &TABLE }
    }

    fn closed(fid: fid) -> fid_pep {
        fid_pep { fid, ops: &CLOSED, cm: &CLOSED_TABLE }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Passive> = Pool::new();
        &POOL
    }
}

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a fabric; the program passes an entry and a place for the object.
        unsafe {
            let fabric = Object::<Fabric>::of(fabric);
            let entry = info.as_ref().ok_or(INVALID)?;
            let to = pep.as_mut().ok_or(INVALID)?;
            if entry.ep_attr.as_ref().ok_or(INVALID)?.type_ != FI_EP_MSG {
                return Err(INVALID);
            }
            let name = match entry.src_addr.is_null() {
                true => entry::ANYWHERE,
                false => socket::read(entry.src_addr.cast(), entry.src_addrlen).ok_or(INVALID)?,
            };
            let copy = libfabric().and_then(|libfabric| libfabric.copy_info(info));
            let opened = Passive {
                fabric: Use::new(fabric),
                info: Arc::new(copy.ok_or(Errno(FI_ENOMEM))?),
                state: Mutex::new(State {
                    listening: None,
                    events: None,
                    name: socket::to_listen_at(name, fabric.fabric.link()),
                    options: PassiveEndpointOptions::new(),
                }),
            };
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

/// `fi_pep_bind`, to an event queue.
unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of a passive endpoint; a program passes null or an object of libfabric.
        unsafe {
            let pep = Object::<Passive>::of(fid.cast());
            let events = Object::<EventQueue>::argument(bfid)?;
            let mut state = lock(&pep.state);
            if !pep.fabric.is(events.fabric.object()) || state.events.is_some() {
                return Err(INVALID);
            }
            state.events = Some(Use::new(events));
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of a passive endpoint; for `FI_BACKLOG` the program passes a number.
        unsafe {
            let pep = Object::<Passive>::of(fid.cast());
            if command != FI_BACKLOG {
                return Err(Errno(FI_ENOSYS));
            }
            let backlog = *arg.cast::<c_int>().as_ref().ok_or(INVALID)?;
            let mut state = lock(&pep.state);
            state.can_change()?;
            state.options.backlog =
                usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).ok_or(INVALID)?;
        }
        Ok(())
    })
}

impl Passive {
    /// Where it listens, or is to listen.
    pub(crate) fn name(&self) -> SocketAddr {
        let state = lock(&self.state);
        state.listening.as_ref().map_or(state.name, |(listener, _)| listener.local_address())
    }
}

impl State {
    /// Whether it doesn't listen yet.
    fn can_change(&self) -> Outcome<()> {
        match self.listening {
            Some(_) => Err(Errno(FI_EOPBADSTATE)),
            None => Ok(()),
        }
    }
}

unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int {
    status(|| {
        if addr.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the table is that of a passive endpoint; the program passes `addrlen` bytes.
        unsafe {
            let pep = Object::<Passive>::of(fid.cast());
            let mut state = lock(&pep.state);
            state.can_change()?;
            state.name = socket::read(addr.cast(), addrlen).ok_or(INVALID)?;
        }
        Ok(())
    })
}

/// `fi_getname`: where it listens, or is to listen.
unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the table is that of a passive endpoint; `addrlen` says how many bytes there are room for.
        unsafe {
            let pep = Object::<Passive>::of(fid.cast());
            av::copy_name(&socket::bytes(socket::reachable(pep.name())), addr, addrlen)
        }
    })
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    status(|| {
        // SAFETY: the table is that of a passive endpoint.
        let pep = unsafe { Object::<Passive>::of(pep) };
        let mut state = lock(&pep.state);
        state.can_change()?;
        let events = state.events.as_ref().ok_or(Errno(FI_ENOEQ))?;
        let number = events.register_source(EventSource {
            fid: Pointer::of(pep.fid()),
            context: Pointer::of(pep.context()),
            info: Some(pep.info.clone()),
            is_connected: false,
        });
        let options = state.options.clone().context(number);
        let passive = pep.fabric.fabric.passive_endpoint(&events.events, options);
        match passive.listen(state.name) {
            Ok(listener) => {
                state.listening = Some((listener, number));
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, at = %state.name, "can't listen");
                events.forget(number);
                Err(errors::of_io(&error))
            }
        }
    })
}

/// `fi_reject`: the request is gone afterwards.
unsafe extern "C" fn reject(
    _pep: *mut fid_pep,
    handle: fid_t,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes the handle of a request and `paramlen` bytes.
        unsafe {
            let data = cm::data(param, paramlen)?;
            let request = cm::RequestHandle::take(handle)?;
            // Its length was checked by `data`.
            request.reject(data).map_err(|failed| errors::of_start_connect(&failed.error))
        }
    })
}

unsafe extern "C" fn getopt(
    _fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    status(|| match (level, optname) {
        // SAFETY: `optlen` says how many bytes there are room for.
        (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) => unsafe {
            av::copy_name(&cm::MOST_DATA.to_ne_bytes(), optval, optlen)
        },
        _ => Err(Errno(FI_ENOPROTOOPT)),
    })
}

unsafe extern "C" fn setopt(
    _fid: fid_t,
    _level: c_int,
    _optname: c_int,
    _optval: *const c_void,
    _optlen: usize,
) -> c_int {
    -FI_ENOPROTOOPT
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        let last = |pep: &Passive| {
            let State { listening, events, .. } = &mut *lock(&pep.state);
            if let Some((listener, number)) = listening.take() {
                drop(listener);
                if let Some(events) = events {
                    events.forget(number);
                }
            }
        };
        // SAFETY: the table is that of a passive endpoint.
        unsafe { Object::<Passive>::of(fid.cast()).close_after(last) }.map(drop)
    })
}
