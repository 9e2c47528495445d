//! Counters (`fi_cntr`).

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use efa::{Counted, CounterError, CounterOptions};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, Outcome, status, value};
use crate::c::cq::timeout_of;
use crate::c::domain::Domain;
use crate::c::vain::VainPolls;
use crate::c::wait::{self, WaitFor};
use crate::errors;
use crate::object::{Class, Object, Pool, Use, open_on};
use crate::threads;

/// A counter.
pub(crate) struct Counter {
    pub(crate) counter: efa::Counter,
    pub(crate) domain: Use<Domain>,
    wait: WaitFor,
    /// The value that was read last.
    last: AtomicU64,
    vain: VainPolls,
}

static FID: fi_ops =
    fi_ops { close: Some(close), control: Some(control), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};
static CLOSED: fi_ops_cntr = fi_ops_cntr {
    // They return a value, not an error number.
    read: Some(nothing),
    readerr: Some(nothing),
    ..fi_ops_cntr::failing::<FI_EBADF>()
};

// SAFETY: `fid_cntr` begins with a `fid`.
unsafe impl Class for Counter {
    type C = fid_cntr;

    const NUMBER: usize = FI_CLASS_CNTR;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_cntr {
        fid_cntr { fid, ops: &TABLE }
    }

    fn closed(fid: fid) -> fid_cntr {
        fid_cntr { fid, ops: &CLOSED }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Counter> = Pool::new();
        &POOL
    }
}

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes attributes and a place for the object.
    unsafe { open_on(domain, attr, cntr, context, |domain, attr| Counter::new(domain, attr)) }
}

impl Counter {
    fn new(domain: &Object<Domain>, attr: &fi_cntr_attr) -> Outcome<Self> {
        if attr.flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        if attr.events != FI_CNTR_EVENTS_COMP {
            return Err(Errno(FI_ENOSYS));
        }
        // SAFETY: the program passes null or a wait set of libfabric.
        let wait = unsafe { WaitFor::of(attr.wait_obj, attr.wait_set, domain.fabric.object()) }?;
        let options = CounterOptions::default();
        let counter = match wait.object() {
            None => domain.domain.counter(options),
            Some(object) => domain.domain.waitable_counter(options, object),
        };
        let counter = counter.map_err(|error| errors::of_error(&error))?;
        let vain = VainPolls::of(&domain.fabric.settings.device);
        Ok(Self { counter, domain: Use::new(domain), wait, last: AtomicU64::new(0), vain })
    }
}

/// The kinds of operations that a counter is bound for.
///
/// # Errors
/// `FI_EBADFLAGS` if a flag isn't such a kind, or there is none.
pub(crate) fn counted(flags: u64) -> Outcome<Counted> {
    const KINDS: [(u64, Counted); 6] = [
        (FI_SEND, Counted::SEND),
        (FI_RECV, Counted::RECEIVE),
        (FI_READ, Counted::READ),
        (FI_WRITE, Counted::WRITE),
        (FI_REMOTE_READ, Counted::REMOTE_READ),
        (FI_REMOTE_WRITE, Counted::REMOTE_WRITE),
    ];
    let kinds = bits::translate(flags, &KINDS).filter(|kinds| !kinds.is_empty());
    kinds.ok_or(Errno(FI_EBADFLAGS))
}

unsafe extern "C" fn nothing(_cntr: *mut fid_cntr) -> u64 {
    0
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    value(0, || {
        // SAFETY: the table is that of a counter.
        let counter = unsafe { Object::<Counter>::of(cntr) };
        let value = counter.counter.value();
        if counter.last.load(Ordering::Relaxed) == value {
            counter.vain.add(false);
        } else {
            counter.last.store(value, Ordering::Relaxed);
            counter.vain.end();
        }
        value
    })
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the table is that of a counter.
    value(0, || unsafe { Object::<Counter>::of(cntr) }.counter.errors())
}

/// Does something with a counter.
///
/// # Safety
/// `cntr` is an open counter.
unsafe fn change(cntr: *mut fid_cntr, change: impl FnOnce(&efa::Counter)) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        change(&unsafe { Object::<Counter>::of(cntr) }.counter);
        Ok(())
    })
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table is that of a counter.
    unsafe { change(cntr, |counter| counter.add(value)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table is that of a counter.
    unsafe { change(cntr, |counter| counter.set(value)) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table is that of a counter.
    unsafe { change(cntr, |counter| counter.add_errors(value)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the table is that of a counter.
    unsafe { change(cntr, |counter| counter.set_errors(value)) }
}

/// `fi_cntr_wait`, also of a counter without a wait object, which is then read again and again.
unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    status(|| {
        // SAFETY: the table is that of a counter.
        let counter = unsafe { Object::<Counter>::of(cntr) };
        // It isn't closed meanwhile.
        let counter = Use::new(counter);
        let waited = || counter.counter.wait(threshold, timeout_of(timeout));
        threads::asleep(waited).map_err(|error| match error {
            CounterError::Failed { .. } => Errno(FI_EAVAIL),
            _ => Errno(FI_ETIMEDOUT),
        })
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of a counter; each command says what `arg` points to.
        unsafe {
            let counter = Object::<Counter>::of(fid.cast());
            wait::control(&counter.wait, counter.counter.as_fd(), command, arg)
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a counter.
    status(|| unsafe { Object::<Counter>::of(fid.cast()).close() }.map(drop))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

    use super::*;

    #[test]
    fn counter_is_bound_for_the_kinds_of_its_flags_and_for_no_other() {
        assert_eq!(counted(FI_SEND | FI_WRITE).unwrap(), Counted::SEND | Counted::WRITE);
        let all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        assert_eq!(counted(all).unwrap(), Counted::all());
        for flags in [0, FI_SEND | FI_SELECTIVE_COMPLETION, u64::MAX] {
            assert_eq!(counted(flags), Err(Errno(FI_EBADFLAGS)), "{flags:#x}");
        }
    }
}
