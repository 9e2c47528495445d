//! Wait sets (`fi_wait`), poll sets (`fi_poll`), and sleeping on descriptors (`fi_trywait`).
//!
//! ```text
//!   queue or counter ─► WaitFor: none, by calls that block, by a descriptor, in a wait set
//!                       Member: what is asked whether it has something to be read
//! ```

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Mutex;

use efa::{TryWaitError, Wait, Waitable};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, lock, number, status};
use crate::c::counter::Counter;
use crate::c::cq::{CompletionQueue, timeout_of};
use crate::c::domain::{self, Domain};
use crate::c::eq::EventQueue;
use crate::c::fabric::Fabric;
use crate::errors;
use crate::object::{Class, Object, Pool, Use, open_on};
use crate::threads;

// ---- how an object is waited on -----------------------------------------------------------------

/// How an object is waited on.
pub(crate) struct WaitFor {
    kind: fi_wait_obj,
    object: Option<Wait>,
    /// Keeps the wait set from being closed before the object.
    _set: Option<Use<WaitSet>>,
}

impl WaitFor {
    /// What the attributes of an object ask for.
    ///
    /// # Errors
    /// `FI_ENOSYS` for mutexes with condition variables and lists of descriptors; `FI_EINVAL` for a wait set that is
    /// none, or of another fabric.
    ///
    /// # Safety
    /// `set` is null or an object of libfabric, if `kind` is a wait set.
    pub(crate) unsafe fn of(
        kind: fi_wait_obj,
        set: *const fid_wait,
        fabric: &Object<Fabric>,
    ) -> Outcome<Self> {
        let (object, set) = match kind {
            FI_WAIT_NONE => (None, None),
            FI_WAIT_UNSPEC | FI_WAIT_YIELD => (Some(Wait::Unspecified), None),
            FI_WAIT_FD => (Some(Wait::Fd), None),
            FI_WAIT_SET => {
                // SAFETY: the caller's promise.
                let set = unsafe { Object::<WaitSet>::argument(set.cast()) }?;
                if !set.fabric.is(fabric) {
                    return Err(INVALID);
                }
                (Some(Wait::Set(set.set.clone())), Some(Use::new(set)))
            }
            FI_WAIT_MUTEX_COND | FI_WAIT_POLLFD => return Err(Errno(FI_ENOSYS)),
            _ => return Err(INVALID),
        };
        Ok(Self { kind, object, _set: set })
    }

    /// As `efa` has it; `None` for an object that isn't waited on.
    pub(crate) fn object(&self) -> Option<Wait> {
        self.object.clone()
    }

    /// As libfabric has it.
    pub(crate) fn kind(&self) -> fi_wait_obj {
        self.kind
    }
}

/// `FI_GETWAIT` and `FI_GETWAITOBJ`.
///
/// # Errors
/// `FI_ENODATA` if it has no descriptor for programs; `FI_ENOSYS` for any other command.
///
/// # Safety
/// `arg` is null or has room for what the command returns.
pub(crate) unsafe fn control(
    wait: &WaitFor,
    descriptor: Option<BorrowedFd<'_>>,
    command: c_int,
    arg: *mut c_void,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match command {
            FI_GETWAIT => {
                let to = arg.cast::<c_int>().as_mut().ok_or(INVALID)?;
                let descriptor = descriptor.filter(|_| wait.kind == FI_WAIT_FD);
                *to = descriptor.ok_or(Errno(FI_ENODATA))?.as_raw_fd();
            }
            FI_GETWAITOBJ => {
                *arg.cast::<fi_wait_obj>().as_mut().ok_or(INVALID)? = wait.kind;
            }
            _ => return Err(Errno(FI_ENOSYS)),
        }
    }
    Ok(())
}

fn of_try_wait(error: &TryWaitError) -> Errno {
    match error {
        TryWaitError::Pending => Errno(FI_EAGAIN),
        TryWaitError::Device(error) => errors::of_device(error),
        _ => INVALID,
    }
}

// ---- what may be waited on together -------------------------------------------------------------

/// An object that may have something to be read.
enum Member {
    Completions(Use<CompletionQueue>),
    Events(Use<EventQueue>),
    Counter(Use<Counter>),
    Set(Use<WaitSet>),
}

impl Member {
    /// # Safety
    /// `fid` is null or an object of libfabric.
    unsafe fn of(fid: *const fid) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(match fid.as_ref().ok_or(INVALID)?.fclass {
                FI_CLASS_CQ => Self::Completions(Use::new(Object::argument(fid)?)),
                FI_CLASS_EQ => Self::Events(Use::new(Object::argument(fid)?)),
                FI_CLASS_CNTR => Self::Counter(Use::new(Object::argument(fid)?)),
                FI_CLASS_WAIT => Self::Set(Use::new(Object::argument(fid)?)),
                _ => return Err(INVALID),
            })
        }
    }

    /// What `efa` knows of it; `None` for a wait set.
    fn waitable(&self) -> Option<&dyn Waitable> {
        match self {
            Self::Completions(queue) => Some(&queue.queue),
            Self::Events(queue) => Some(&queue.events),
            Self::Counter(counter) => Some(&counter.counter),
            Self::Set(_) => None,
        }
    }

    fn fabric(&self) -> &Use<Fabric> {
        match self {
            Self::Completions(queue) => &queue.domain.fabric,
            Self::Events(queue) => &queue.fabric,
            Self::Counter(counter) => &counter.domain.fabric,
            Self::Set(set) => &set.fabric,
        }
    }

    fn domain(&self) -> Option<&Use<Domain>> {
        match self {
            Self::Completions(queue) => Some(&queue.domain),
            Self::Counter(counter) => Some(&counter.domain),
            Self::Events(_) | Self::Set(_) => None,
        }
    }

    fn fid(&self) -> *mut fid {
        match self {
            Self::Completions(queue) => queue.object().fid(),
            Self::Events(queue) => queue.object().fid(),
            Self::Counter(counter) => counter.object().fid(),
            Self::Set(set) => set.object().fid(),
        }
    }

    fn context(&self) -> *mut c_void {
        match self {
            Self::Completions(queue) => queue.object().context(),
            Self::Events(queue) => queue.object().context(),
            Self::Counter(counter) => counter.object().context(),
            Self::Set(set) => set.object().context(),
        }
    }
}

/// `fi_trywait`: 0 if a thread may sleep on the descriptors of these objects.
pub(crate) unsafe extern "C" fn try_wait(
    fabric: *mut fid_fabric,
    fids: *mut *mut fid,
    count: c_int,
) -> c_int {
    status(|| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        if fids.is_null() && count > 0 {
            return Err(INVALID);
        }
        for index in 0..count {
            // SAFETY: the table is that of a fabric; the program passes `count` objects of libfabric.
            let (fabric, member) = unsafe {
                (Object::<Fabric>::of(fabric), Member::of(fids.add(index).read_unaligned())?)
            };
            if !member.fabric().is(fabric) {
                return Err(INVALID);
            }
            let prepared = match &member {
                Member::Set(set) => set.set.try_wait(),
                member => member.waitable().map_or(Ok(()), |one| fabric.fabric.try_wait(&[one])),
            };
            prepared.map_err(|error| of_try_wait(&error))?;
        }
        Ok(())
    })
}

// ---- wait sets ----------------------------------------------------------------------------------

/// A wait set.
pub(crate) struct WaitSet {
    set: efa::WaitSet,
    fabric: Use<Fabric>,
    kind: fi_wait_obj,
}

static WAIT_FID: fi_ops = fi_ops {
    close: Some(close_wait_set),
    control: Some(control_wait_set),
    ..fi_ops::failing::<FI_ENOSYS>()
};
static WAIT: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: Some(wait) };
static CLOSED_WAIT: fi_ops_wait = fi_ops_wait::failing::<FI_EBADF>();

// SAFETY: `fid_wait` begins with a `fid`.
unsafe impl Class for WaitSet {
    type C = fid_wait;

    const NUMBER: usize = FI_CLASS_WAIT;

    const OPS: &'static fi_ops = &WAIT_FID;

    fn open(fid: fid) -> fid_wait {
        fid_wait { fid, ops: &WAIT }
    }

    fn closed(fid: fid) -> fid_wait {
        fid_wait { fid, ops: &CLOSED_WAIT }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<WaitSet> = Pool::new();
        &POOL
    }
}

impl WaitSet {
    fn new(fabric: &Object<Fabric>, attr: &fi_wait_attr) -> Outcome<Self> {
        if attr.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let kind = match attr.wait_obj {
            FI_WAIT_UNSPEC | FI_WAIT_YIELD | FI_WAIT_FD => attr.wait_obj,
            FI_WAIT_MUTEX_COND | FI_WAIT_POLLFD => return Err(Errno(FI_ENOSYS)),
            _ => return Err(INVALID),
        };
        let set = fabric.fabric.wait_set().map_err(|error| errors::of_error(&error))?;
        Ok(Self { set, fabric: Use::new(fabric), kind })
    }
}

/// `fi_wait_open`.
pub(crate) unsafe extern "C" fn open_wait_set(
    fabric: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    waitset: *mut *mut fid_wait,
) -> c_int {
    // SAFETY: the table is that of a fabric; the program passes attributes and a place for the object.
    unsafe { open_on(fabric, attr, waitset, null_mut(), |fabric, attr| WaitSet::new(fabric, attr)) }
}

unsafe extern "C" fn wait(waitset: *mut fid_wait, timeout: c_int) -> c_int {
    status(|| {
        // SAFETY: the table is that of a wait set.
        let set = unsafe { Object::<WaitSet>::of(waitset) };
        // It isn't closed meanwhile.
        let set = Use::new(set);
        match threads::asleep(|| set.set.wait(timeout_of(timeout))) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno(FI_ETIMEDOUT)),
            Err(error) => Err(errors::of_device(&error)),
        }
    })
}

unsafe extern "C" fn control_wait_set(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of a wait set; each command says what `arg` points to.
        unsafe {
            let set = Object::<WaitSet>::of(fid.cast());
            let wait = WaitFor { kind: set.kind, object: None, _set: None };
            control(&wait, Some(set.set.as_fd()), command, arg)
        }
    })
}

unsafe extern "C" fn close_wait_set(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a wait set.
    status(|| unsafe { Object::<WaitSet>::of(fid.cast()).close() }.map(drop))
}

// ---- poll sets ----------------------------------------------------------------------------------

/// A poll set.
pub(crate) struct PollSet {
    /// Each with a set of `efa` in which it is alone, to be polled by itself.
    members: Mutex<Vec<(Member, efa::PollSet)>>,
    domain: Use<Domain>,
}

static POLL_FID: fi_ops = fi_ops { close: Some(close_poll_set), ..fi_ops::failing::<FI_ENOSYS>() };
static POLL: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
};
static CLOSED_POLL: fi_ops_poll = fi_ops_poll::failing::<FI_EBADF>();

// SAFETY: `fid_poll` begins with a `fid`.
unsafe impl Class for PollSet {
    type C = fid_poll;

    const NUMBER: usize = FI_CLASS_POLL;

    const OPS: &'static fi_ops = &POLL_FID;

    fn open(fid: fid) -> fid_poll {
        fid_poll { fid, ops: &POLL }
    }

    fn closed(fid: fid) -> fid_poll {
        fid_poll { fid, ops: &CLOSED_POLL }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<PollSet> = Pool::new();
        &POOL
    }
}

impl PollSet {
    fn new(domain: &Object<Domain>, attr: &fi_poll_attr) -> Outcome<Self> {
        if attr.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        Ok(Self { members: Mutex::default(), domain: Use::new(domain) })
    }
}

/// `fi_poll_open`.
pub(crate) unsafe extern "C" fn open_poll_set(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    pollset: *mut *mut fid_poll,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes attributes and a place for the object.
    unsafe { open_on(domain, attr, pollset, null_mut(), |domain, attr| PollSet::new(domain, attr)) }
}

/// `fi_poll`: the contexts of the objects that have something to be read, and their number.
unsafe extern "C" fn poll(
    pollset: *mut fid_poll,
    context: *mut *mut c_void,
    count: c_int,
) -> c_int {
    number(|| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        if context.is_null() && count > 0 {
            return Err(INVALID);
        }
        // SAFETY: the table is that of a poll set.
        let set = unsafe { Object::<PollSet>::of(pollset) };
        let mut found = 0;
        for (member, of_efa) in lock(&set.members).iter() {
            // All are progressed, also those there is no more room for.
            let mut contexts = [0];
            if of_efa.poll(&mut contexts[..usize::from(found < count)]) > 0 {
                // SAFETY: the program passes room for `count` contexts.
                unsafe { context.add(found).write_unaligned(member.context()) };
                found += 1;
            }
        }
        Ok(found)
    })
}

unsafe extern "C" fn poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of a poll set; the program passes null or an object of libfabric.
        let (set, member) =
            unsafe { (Object::<PollSet>::of(pollset), Member::of(event_fid.cast_const())?) };
        match member.domain() {
            Some(domain) => domain::of_same(&set.domain, domain)?,
            None if member.fabric().is(set.domain.fabric.object()) => {}
            None => return Err(INVALID),
        }
        let mut of_efa = efa::PollSet::new();
        of_efa.add(member.waitable().ok_or(INVALID)?, 0);
        let mut members = lock(&set.members);
        members.retain(|(there, _)| there.fid() != event_fid);
        members.push((member, of_efa));
        Ok(())
    })
}

unsafe extern "C" fn poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of a poll set.
        let set = unsafe { Object::<PollSet>::of(pollset) };
        let mut members = lock(&set.members);
        let before = members.len();
        members.retain(|(there, _)| there.fid() != event_fid);
        if members.len() == before { Err(INVALID) } else { Ok(()) }
    })
}

unsafe extern "C" fn close_poll_set(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a poll set.
    status(|| unsafe { Object::<PollSet>::of(fid.cast()).close() }.map(drop))
}
