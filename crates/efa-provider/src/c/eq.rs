//! Event queues (`fi_eq`).

use std::ffi::{c_int, c_void};

use efa::{EventQueueOptions, Wait};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, count, status};
use crate::c::fabric::Fabric;
use crate::errors;
use crate::object::{Class, Object, Pool, Use};

/// An event queue.
pub(crate) struct EventQueue {
    pub(crate) events: efa::EventQueue,
    pub(crate) fabric: Use<Fabric>,
    wait: fi_wait_obj,
}

static FID: fi_ops = fi_ops { close: Some(close), ..fi_ops::failing::<FI_ENOSYS>() };
static CLOSED_FID: fi_ops = fi_ops::failing::<FI_EBADF>();
static TABLE: fi_ops_eq = fi_ops_eq { read: Some(read), ..fi_ops_eq::failing::<FI_ENOSYS>() };
static CLOSED: fi_ops_eq = fi_ops_eq::failing::<FI_EBADF>();

// SAFETY: `fid_eq` begins with a `fid`.
unsafe impl Class for EventQueue {
    type C = fid_eq;

    const NUMBER: usize = FI_CLASS_EQ;

    fn table() -> &'static fi_ops {
        &FID
    }

    fn open(fid: fid) -> fid_eq {
        fid_eq { fid, ops: &TABLE }
    }

    fn closed() -> fid_eq {
        let fid = fid { fclass: Self::NUMBER, ops: &CLOSED_FID, ..zeroed() };
        fid_eq { fid, ops: &CLOSED }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<EventQueue> = Pool::new();
        &POOL
    }
}

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a fabric; the program passes attributes and a place for the object.
        unsafe {
            let fabric = Object::<Fabric>::of(fabric);
            let attr = attr.as_mut().ok_or(INVALID)?;
            let to = eq.as_mut().ok_or(INVALID)?;
            let opened = EventQueue::new(fabric, attr)?;
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

impl EventQueue {
    fn new(fabric: &Object<Fabric>, attr: &fi_eq_attr) -> Outcome<Self> {
        let mut options = EventQueueOptions::new();
        if attr.size > 0 {
            options = options.capacity(attr.size);
        }
        let events = match attr.wait_obj {
            FI_WAIT_NONE => fabric.fabric.event_queue(options),
            FI_WAIT_UNSPEC | FI_WAIT_YIELD => {
                fabric.fabric.waitable_event_queue(options, Wait::Unspecified)
            }
            FI_WAIT_FD => fabric.fabric.waitable_event_queue(options, Wait::Fd),
            FI_WAIT_SET | FI_WAIT_MUTEX_COND | FI_WAIT_POLLFD => return Err(Errno(FI_ENOSYS)),
            _ => return Err(INVALID),
        };
        let events = events.map_err(|error| errors::of_error(&error))?;
        Ok(Self { events, fabric: Use::new(fabric), wait: attr.wait_obj })
    }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    _event: *mut u32,
    _buf: *mut c_void,
    _len: usize,
    _flags: u64,
) -> isize {
    count(|| {
        // SAFETY: the table is that of an event queue.
        let eq = unsafe { Object::<EventQueue>::of(eq) };
        match eq.events.read() {
            None => Err(Errno(FI_EAGAIN)),
            Some(_) => Err(Errno(FI_EOTHER)),
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of an event queue.
    status(|| unsafe { Object::<EventQueue>::of(fid.cast()).close() }.map(drop))
}
