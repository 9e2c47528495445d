//! Event queues (`fi_eq`).
//!
//! ```text
//!   efa's queue ─► Event, when it is read ─► ready ─► the program's buffer
//! ```
//!
//! An event stays in `ready` while the program peeks, or its buffer is too small; efa's queue knows whether one is
//! there ([`hold`](efa::EventQueue::hold)). Threads sleep in efa's queue and take nothing from it there: events leave
//! it in order, under the lock of `ready`. Those of an object are dropped when that is closed.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use efa::{Address, ControlError, ControlEvent, DeviceError, EventQueueOptions, FiAddr};
use slab::Slab;

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, count, lock, status, value};
use crate::c::av;
use crate::c::cq::{ERR_DATA_SIZE, timeout_of};
use crate::c::event::{Event, EventKind, EventSource, Failed, Pointer, UnreadRequest};
use crate::c::fabric::Fabric;
use crate::c::wait::{self, WaitFor};
use crate::errors;
use crate::libfabric;
use crate::memory;
use crate::object::{Class, Object, Pool, Use, open_on};
use crate::threads;

/// An event queue.
pub(crate) struct EventQueue {
    pub(crate) events: efa::EventQueue,
    pub(crate) fabric: Use<Fabric>,
    wait: WaitFor,
    /// Whether the program writes events (`FI_WRITE`).
    is_writable: bool,
    /// Events of the program in `events`, whose numbers they have there.
    written: Mutex<Slab<(u32, Vec<u8>)>>,
    /// Passive endpoints and endpoints, by the context that they have in `efa`.
    sources: Mutex<HashMap<u64, EventSource>>,
    /// Insertions under way, by their context in `efa`.
    insertions: Mutex<HashMap<u64, Insertion>>,
    ready: Mutex<VecDeque<Event>>,
    /// What the last error entry points to.
    err_data: Mutex<Vec<u8>>,
}

/// A call of `fi_av_insert` that is under way.
pub(crate) struct Insertion {
    /// The address vector.
    pub(crate) of: Pointer,
    pub(crate) context: Pointer,
    /// Where the program wants the indices, or null.
    pub(crate) to: Pointer,
    /// What is inserted, and why the rest isn't, once that is known.
    pub(crate) found: Arc<OnceLock<Vec<Outcome<Address>>>>,
}

static FID: fi_ops =
    fi_ops { close: Some(close), control: Some(control), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};
static CLOSED: fi_ops_eq = fi_ops_eq::failing::<FI_EBADF>();

// SAFETY: `fid_eq` begins with a `fid`.
unsafe impl Class for EventQueue {
    type C = fid_eq;

    const NUMBER: usize = FI_CLASS_EQ;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_eq {
        fid_eq { fid, ops: &TABLE }
    }

    fn closed(fid: fid) -> fid_eq {
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
    // SAFETY: the table is that of a fabric; the program passes attributes and a place for the object.
    unsafe { open_on(fabric, attr, eq, context, |fabric, attr| EventQueue::new(fabric, attr)) }
}

/// A number that no other object or call of this process has.
pub(crate) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Most bytes of an event of the program.
const MOST_WRITTEN: usize = 64 << 10;

impl EventQueue {
    fn new(fabric: &Object<Fabric>, attr: &fi_eq_attr) -> Outcome<Self> {
        if attr.flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let mut options = EventQueueOptions::new();
        if attr.size > 0 {
            options = options.capacity(attr.size);
        }
        // SAFETY: the program passes null or a wait set of libfabric.
        let wait = unsafe { WaitFor::of(attr.wait_obj, attr.wait_set, fabric) }?;
        let events = match wait.object() {
            None => fabric.fabric.event_queue(options),
            Some(object) => fabric.fabric.waitable_event_queue(options, object),
        };
        Ok(Self {
            events: events.map_err(|error| errors::of_error(&error))?,
            fabric: Use::new(fabric),
            wait,
            is_writable: attr.flags & FI_WRITE != 0,
            written: Mutex::default(),
            sources: Mutex::default(),
            insertions: Mutex::default(),
            ready: Mutex::default(),
            err_data: Mutex::default(),
        })
    }

    /// Queues events of an object from now on; returns the context that the object is to have in `efa`.
    pub(crate) fn register_source(&self, source: EventSource) -> u64 {
        let number = new_number();
        lock(&self.sources).insert(number, source);
        number
    }

    /// Notes that an object is connected, or isn't any more; returns it if that is new.
    fn set_connected(&self, number: u64, is_connected: bool) -> Option<Pointer> {
        let mut sources = lock(&self.sources);
        let source = sources.get_mut(&number)?;
        let was_connected = std::mem::replace(&mut source.is_connected, is_connected);
        (was_connected != is_connected).then_some(source.fid)
    }

    /// Reports the end of a connection that this side ended, unless the other side's was reported.
    pub(crate) fn shut_down(&self, number: u64) {
        let mut ready = lock(&self.ready);
        self.make_all_ready(&mut ready);
        let ended = self.set_connected(number, false);
        let kind = || EventKind::Changed(FI_SHUTDOWN, Vec::new());
        ready.extend(ended.map(|of| Event { of, kind: kind() }));
        self.events.hold(!ready.is_empty());
    }

    /// Drops events of an object that is closed.
    pub(crate) fn forget(&self, number: u64) {
        let Some(source) = lock(&self.sources).remove(&number) else { return };
        self.forget_ready(source.fid);
    }

    /// Queues an event at the end of an insertion that begins; returns the context that it is to have in `efa`.
    pub(crate) fn register_insertion(&self, insertion: Insertion) -> u64 {
        let number = new_number();
        lock(&self.insertions).insert(number, insertion);
        number
    }

    /// An insertion didn't begin.
    pub(crate) fn forget_insertion(&self, number: u64) {
        lock(&self.insertions).remove(&number);
    }

    /// Insertions of an address vector that is closed won't end. Events of those that have ended stay.
    pub(crate) fn forget_insertions(&self, vector: Pointer) {
        let mut ready = lock(&self.ready);
        self.make_all_ready(&mut ready);
        self.events.hold(!ready.is_empty());
        lock(&self.insertions).retain(|_, insertion| insertion.of != vector);
    }

    fn forget_ready(&self, fid: Pointer) {
        let mut ready = lock(&self.ready);
        ready.retain(|event| event.of != fid);
        self.events.hold(!ready.is_empty());
    }

    /// Runs `take` on the next event, which is removed if that returns `true` besides its result.
    fn next<T>(&self, take: impl FnOnce(&Event) -> Outcome<(T, bool)>) -> Outcome<T> {
        let mut ready = lock(&self.ready);
        while ready.is_empty() {
            let entry = self.events.read().ok_or(Errno(FI_EAGAIN))?;
            self.make_ready(entry, &mut ready);
        }
        let taken = ready.front().ok_or(Errno(FI_EAGAIN)).and_then(take);
        if let Ok((_, true)) = taken
            && let Some(event) = ready.pop_front()
        {
            event.delivered();
        }
        self.events.hold(!ready.is_empty());
        taken.map(|(taken, _)| taken)
    }

    fn make_all_ready(&self, ready: &mut VecDeque<Event>) {
        while let Some(entry) = self.events.read() {
            self.make_ready(entry, ready);
        }
    }

    /// Translates an event, and appends it to `ready`; those of closed objects are dropped.
    fn make_ready(&self, entry: Result<ControlEvent, ControlError>, ready: &mut VecDeque<Event>) {
        let of = |number: u64| {
            let sources = lock(&self.sources);
            sources.get(&number).map(|source| (source.fid, source.context))
        };
        let failed = |number, Errno(errno), err_data| {
            of(number).map(|(of, context)| Event {
                of,
                kind: EventKind::Failed(Failed { context, data: 0, errno, err_data }),
            })
        };
        match entry {
            Ok(ControlEvent::User(number)) => {
                let written = lock(&self.written).try_remove(number as usize);
                ready.extend(written.map(|(number, bytes)| Event {
                    of: Pointer::NULL,
                    kind: EventKind::Written(number, bytes),
                }));
            }
            Ok(ControlEvent::ConnectionRequest(request)) => {
                let number = request.listener_context();
                let info = lock(&self.sources).get(&number).and_then(|source| source.info.clone());
                let data = request.data().to_vec();
                let request = info.and_then(|info| UnreadRequest::new(request, &info));
                ready.extend(of(number).zip(request).map(|((of, _), request)| Event {
                    of,
                    kind: EventKind::Requested(request, data),
                }));
            }
            Ok(ControlEvent::Connected { context, data, .. }) => {
                self.set_connected(context, true);
                let changed = |(of, _)| Event { of, kind: EventKind::Changed(FI_CONNECTED, data) };
                ready.extend(of(context).map(changed));
            }
            Ok(ControlEvent::Shutdown { context, .. }) => {
                self.set_connected(context, false);
                let changed =
                    |(of, _)| Event { of, kind: EventKind::Changed(FI_SHUTDOWN, Vec::new()) };
                ready.extend(of(context).map(changed));
            }
            Ok(ControlEvent::AddressesInserted { context, results, .. }) => {
                let insertion = lock(&self.insertions).remove(&context);
                if let Some(insertion) = insertion {
                    inserted(insertion, results, ready);
                }
            }
            Ok(ControlEvent::Endpoint { context, event, .. }) => {
                if let Some(errno) = errors::of_event(&event) {
                    ready.extend(failed(context, errno, event.to_string().into_bytes()));
                }
            }
            Ok(_) => {}
            Err(ControlError { context, error, .. }) => {
                let errno = errors::of_connect(&error);
                let err_data = match error {
                    efa::ConnectError::Rejected { data } => data,
                    _ => Vec::new(),
                };
                ready.extend(failed(context, errno, err_data));
            }
        }
    }

    /// Reads an event without waiting.
    ///
    /// # Safety
    /// `room` bytes can be written to `to`.
    unsafe fn read(
        &self,
        number: &mut u32,
        to: *mut c_void,
        room: usize,
        flags: u64,
    ) -> Outcome<usize> {
        // SAFETY: the caller's promise.
        let (found, length) = self.next(|event| unsafe {
            event.write(to, room).map(|written| (written, flags & FI_PEEK == 0))
        })?;
        *number = found;
        Ok(length)
    }

    /// The entry of a failure. Its data is written where the program has room for it; else it stays here until the next
    /// entry is read.
    ///
    /// # Safety
    /// With `has_room`, `asked.err_data` is null or has room for `asked.err_data_size` bytes.
    unsafe fn error_entry(
        &self,
        of: Pointer,
        failed: &Failed,
        asked: &fi_eq_err_entry,
        has_room: bool,
    ) -> fi_eq_err_entry {
        let data = &failed.err_data;
        let (err_data, err_data_size) = if has_room && !asked.err_data.is_null() {
            let count = data.len().min(asked.err_data_size);
            // SAFETY: the caller's promise.
            unsafe { asked.err_data.cast::<u8>().copy_from_nonoverlapping(data.as_ptr(), count) };
            (asked.err_data, count)
        } else {
            let mut kept = lock(&self.err_data);
            kept.clone_from(data);
            let at = match kept.is_empty() {
                true => std::ptr::null_mut(),
                false => kept.as_mut_ptr().cast(),
            };
            (at, data.len())
        };
        fi_eq_err_entry {
            fid: of.get(),
            context: failed.context.get(),
            data: failed.data,
            err: failed.errno,
            prov_errno: failed.errno,
            err_data,
            err_data_size,
        }
    }

    /// Sleeps until there may be an event.
    fn sleep(&self, deadline: Option<Instant>) -> Outcome<()> {
        let left = match deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => timeout_of(-1),
        };
        match self.events.wait_pending(left) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno(FI_EAGAIN)),
            Err(error) => Err(errors::of_device(&error)),
        }
    }
}

/// Hands over what an insertion did: an error for each address that wasn't inserted, then the end of all.
fn inserted(
    insertion: Insertion,
    results: Vec<Result<FiAddr, DeviceError>>,
    ready: &mut VecDeque<Event>,
) {
    let Insertion { of, context, to, found } = insertion;
    let to = to.get::<fi_addr_t>();
    let found = found.get().cloned().unwrap_or_default();
    let mut count = 0;
    for (index, result) in av::indices(found, results).enumerate() {
        let fi = match result {
            Ok(fi) => {
                count += 1;
                fi
            }
            Err(Errno(errno)) => {
                let failed = Failed { context, data: index as u64, errno, err_data: Vec::new() };
                ready.push_back(Event { of, kind: EventKind::Failed(failed) });
                FI_ADDR_NOTAVAIL
            }
        };
        if !to.is_null() {
            // SAFETY: the program keeps room for as many indices as addresses until it reads the end.
            unsafe { to.add(index).write_unaligned(fi) };
        }
    }
    ready.push_back(Event { of, kind: EventKind::Inserted { context, count } });
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    count(|| {
        if flags & !FI_PEEK != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if buf.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: the table is that of an event queue; the program passes a place for the number, and room.
        unsafe {
            let eq = Object::<EventQueue>::of(eq);
            eq.read(event.as_mut().ok_or(INVALID)?, buf, len, flags)
        }
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    count(|| {
        if flags & !FI_PEEK != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if buf.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: as for `read`.
        unsafe {
            let eq = Object::<EventQueue>::of(eq);
            let event = event.as_mut().ok_or(INVALID)?;
            if eq.wait.kind() == FI_WAIT_NONE {
                return Err(Errno(FI_ENOSYS));
            }
            // It isn't closed meanwhile.
            let eq = Use::new(eq);
            let deadline = (timeout >= 0).then(|| Instant::now() + timeout_of(timeout));
            threads::asleep(|| {
                loop {
                    match eq.read(event, buf, len, flags) {
                        Err(Errno(FI_EAGAIN)) => eq.sleep(deadline)?,
                        other => return other,
                    }
                }
            })
        }
    })
}

/// `fi_eq_readerr`: the length of an entry if there was one.
unsafe extern "C" fn readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    count(|| {
        if flags & !FI_PEEK != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if buf.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the table is that of an event queue; the program passes an entry, whose `err_data` has room for
        // `err_data_size` bytes.
        unsafe {
            let eq = Object::<EventQueue>::of(eq);
            let asked = buf.read_unaligned();
            let has_room = (*eq.fabric.object().address()).api_version >= ERR_DATA_SIZE
                && asked.err_data_size > 0;
            let entry = eq.next(|event| match &event.kind {
                EventKind::Failed(failed) => {
                    Ok((eq.error_entry(event.of, failed, &asked, has_room), flags & FI_PEEK == 0))
                }
                _ => Err(Errno(FI_EAGAIN)),
            })?;
            buf.write_unaligned(entry);
        }
        Ok(size_of::<fi_eq_err_entry>())
    })
}

/// `fi_eq_write`: the length of what was written.
unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    count(|| {
        // SAFETY: the table is that of an event queue; the program passes `len` bytes.
        unsafe {
            let eq = Object::<EventQueue>::of(eq);
            if !eq.is_writable || flags != 0 {
                return Err(INVALID);
            }
            if len > MOST_WRITTEN {
                return Err(Errno(FI_EMSGSIZE));
            }
            let bytes = memory::copied(buf, len)?.to_vec();
            let number = lock(&eq.written).insert((event, bytes));
            if eq.events.write(number as u64).is_err() {
                lock(&eq.written).try_remove(number);
                return Err(Errno(FI_EAGAIN));
            }
        }
        Ok(len)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the program says how much room there is.
    value(c"".as_ptr(), || unsafe { memory::put_text(libfabric::strerror(prov_errno), buf, len) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of an event queue; each command says what `arg` points to.
        unsafe {
            let eq = Object::<EventQueue>::of(fid.cast());
            wait::control(&eq.wait, Some(eq.events.as_fd()), command, arg)
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        // SAFETY: the table is that of an event queue.
        let closed = unsafe { Object::<EventQueue>::of(fid.cast()).close() }?;
        closed.events.hold(false);
        Ok(())
    })
}
