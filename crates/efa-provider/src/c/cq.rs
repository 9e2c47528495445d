//! Completion queues (`fi_cq`).

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use efa::{CompletionError, CompletionQueueOptions, Environment, WaitError};

use crate::abi::*;
use crate::boundary::{Errno, INVALID, Outcome, count, found, status, value};
use crate::c::completion;
use crate::c::domain::Domain;
use crate::c::vain::VainPolls;
use crate::c::wait::{self, WaitFor};
use crate::errors;
use crate::memory;
use crate::object::{Class, Object, Pool, Use, open_on};
use crate::threads::{self, InCall};

/// A completion queue.
pub(crate) struct CompletionQueue {
    pub(crate) queue: efa::CompletionQueue,
    pub(crate) domain: Use<Domain>,
    format: fi_cq_format,
    /// Whether the condition of a blocking read is a number of entries.
    takes_threshold: bool,
    wait: WaitFor,
    /// Entries that aren't completions of `efa`, or that failed and wait for `fi_cq_readerr`. `queue` knows whether
    /// there are any ([`hold`](efa::CompletionQueue::hold)).
    own: Mutex<VecDeque<OwnEntry>>,
    /// The same for reads, one instruction nearer.
    has_own: AtomicBool,
    vain: VainPolls,
}

/// An entry that was made ready for the program.
pub(crate) enum OwnEntry {
    /// With the sender.
    Completed(fi_cq_tagged_entry, fi_addr_t),
    Failed(fi_cq_err_entry),
}

// SAFETY: the pointers in an entry are the program's; nothing here looks at what is behind them.
unsafe impl Send for OwnEntry {}

static FID: fi_ops =
    fi_ops { close: Some(close), control: Some(control), ..fi_ops::failing::<FI_ENOSYS>() };
static TABLE: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};
static CLOSED: fi_ops_cq = fi_ops_cq::failing::<FI_EBADF>();

// SAFETY: `fid_cq` begins with a `fid`.
unsafe impl Class for CompletionQueue {
    type C = fid_cq;

    const NUMBER: usize = FI_CLASS_CQ;

    const OPS: &'static fi_ops = &FID;

    fn open(fid: fid) -> fid_cq {
        fid_cq { fid, ops: &TABLE }
    }

    fn closed(fid: fid) -> fid_cq {
        fid_cq { fid, ops: &CLOSED }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<CompletionQueue> = Pool::new();
        &POOL
    }
}

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table is that of a domain; the program passes attributes and a place for the object.
    unsafe { open_on(domain, attr, cq, context, CompletionQueue::new) }
}

/// Options of a queue with room for `size` entries: a program says what it needs at least. Operations that an endpoint
/// may have under way never wait for room, as what entries of discovery promise doesn't depend on the queue.
fn capacity(environment: &Environment, size: usize) -> CompletionQueueOptions {
    let (options, protocol) =
        (environment.completion_queue.clone(), &environment.endpoint.protocol);
    let under_way = protocol.max_sends.saturating_add(protocol.max_receives);
    let unread = size.max(options.capacity);
    options.capacity(unread.saturating_add(under_way))
}

impl CompletionQueue {
    /// Opens one, and sets its format and kind of wait object in the attributes.
    fn new(domain: &Object<Domain>, attr: &mut fi_cq_attr) -> Outcome<Self> {
        if attr.flags & !FI_AFFINITY != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let options = capacity(&domain.fabric.settings.environment, attr.size);
        let format = match attr.format {
            // As libfabric's providers have it: the program may have room for no more.
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
            FI_CQ_FORMAT_CONTEXT | FI_CQ_FORMAT_MSG | FI_CQ_FORMAT_DATA | FI_CQ_FORMAT_TAGGED => {
                attr.format
            }
            _ => return Err(INVALID),
        };
        let takes_threshold = match attr.wait_cond {
            // Nobody waits, and the condition may be anything.
            _ if attr.wait_obj == FI_WAIT_NONE => false,
            FI_CQ_COND_NONE => false,
            FI_CQ_COND_THRESHOLD => true,
            _ => return Err(INVALID),
        };
        // SAFETY: the program passes null or a wait set of libfabric.
        let wait = unsafe { WaitFor::of(attr.wait_obj, attr.wait_set, domain.fabric.object()) }?;
        let queue = match wait.object() {
            None => domain.domain.completion_queue(options),
            Some(object) => domain
                .domain
                .waitable_completion_queue(options, object)
                .map_err(|error| errors::of_error(&error))?,
        };
        (attr.format, attr.wait_obj) = (format, wait.kind());
        Ok(Self {
            queue,
            domain: Use::new(domain),
            format,
            takes_threshold,
            wait,
            own: Mutex::default(),
            has_own: AtomicBool::new(false),
            vain: VainPolls::of(&domain.fabric.settings.device),
        })
    }

    fn own(&self) -> MutexGuard<'_, VecDeque<OwnEntry>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    fn has_own(&self) -> bool {
        self.has_own.load(Ordering::Acquire)
    }

    /// The entries have changed, which are locked.
    fn changed(&self, own: &VecDeque<OwnEntry>) {
        self.has_own.store(!own.is_empty(), Ordering::Release);
        self.queue.hold(!own.is_empty());
    }

    /// Keeps a failed operation for `fi_cq_readerr`.
    #[cold]
    fn keep(&self, error: &CompletionError) {
        self.append(OwnEntry::Failed(completion::error_entry(error)));
    }

    /// Appends an entry, and wakes who sleeps.
    #[cold]
    pub(crate) fn append(&self, entry: OwnEntry) {
        let mut own = self.own();
        own.push_back(entry);
        self.changed(&own);
    }

    /// Takes the next own entry, unless it failed.
    ///
    /// # Errors
    /// `FI_EAVAIL` if it failed; `FI_EAGAIN` if there is none.
    #[cold]
    fn take_completed(&self) -> Outcome<(fi_cq_tagged_entry, fi_addr_t)> {
        let mut own = self.own();
        match own.pop_front() {
            Some(OwnEntry::Completed(entry, source)) => {
                self.changed(&own);
                Ok((entry, source))
            }
            Some(failed) => {
                own.push_front(failed);
                Err(Errno(FI_EAVAIL))
            }
            None => Err(Errno(FI_EAGAIN)),
        }
    }

    /// Takes the next entry, if it failed. Programs that wait by counters ask for failures without a read before.
    fn take_failed(&self) -> Option<fi_cq_err_entry> {
        // Locked during the read, so that calls of several threads change no order.
        let mut own = self.own();
        if own.is_empty() {
            let (entry, source) = match self.queue.read()? {
                Ok(completion) => completion::parts(&completion),
                Err(error) => return Some(completion::error_entry(&error)),
            };
            own.push_back(OwnEntry::Completed(entry, source));
            self.changed(&own);
            return None;
        }
        match own.pop_front()? {
            OwnEntry::Failed(entry) => {
                self.changed(&own);
                Some(entry)
            }
            completed => {
                own.push_front(completed);
                None
            }
        }
    }

    /// A read without room for an entry.
    #[cold]
    #[inline(never)]
    fn read_none(&self, most: usize) -> Outcome<usize> {
        if most > 0 {
            return Err(INVALID);
        }
        self.progress();
        Err(Errno(FI_EAGAIN))
    }

    /// Progresses the endpoints.
    pub(crate) fn progress(&self) {
        self.queue.progress();
    }

    /// Whether there is nothing to read, if a look shows it.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        !self.has_own() && self.queue.is_idle()
    }

    #[inline(never)]
    fn found_nothing(&self) {
        self.vain.add(self.queue.is_idle());
    }

    /// Reads up to `most` entries, or until one that failed.
    ///
    /// # Safety
    /// `to` has room for them.
    unsafe fn read(&self, mut to: Entries, most: usize) -> Outcome<usize> {
        let mut found = None;
        let first = to.count;
        let mut nothing = Errno(FI_EAGAIN);
        while to.count - first < most {
            if self.has_own() {
                match self.take_completed() {
                    // SAFETY: the caller's promise.
                    Ok((entry, source)) => unsafe { to.put(entry, source, self.format) },
                    Err(errno) => {
                        nothing = errno;
                        break;
                    }
                }
                continue;
            }
            // One poll that finds something is enough.
            if to.count > first && !self.queue.may_have_more() {
                break;
            }
            if !self.queue.read_into(&mut found) {
                break;
            }
            match &found {
                Some(Ok(completion)) => {
                    let (entry, source) = completion::parts(completion);
                    // SAFETY: the caller's promise.
                    unsafe { to.put(entry, source, self.format) }
                }
                Some(Err(error)) => self.keep(error),
                None => break,
            }
            found = None;
        }
        match to.count - first {
            0 => {
                if nothing == Errno(FI_EAGAIN) {
                    self.found_nothing();
                }
                Err(nothing)
            }
            read => {
                self.vain.end();
                Ok(read)
            }
        }
    }

    /// Reads up to `most` entries, and waits for `threshold` of them.
    ///
    /// # Safety
    /// `to` has room for them.
    unsafe fn wait(
        &self,
        mut to: Entries,
        most: usize,
        threshold: usize,
        timeout: Duration,
    ) -> Outcome<usize> {
        if self.wait.kind() == FI_WAIT_NONE {
            return Err(Errno(FI_ENOSYS));
        }
        let begin = std::time::Instant::now();
        loop {
            if most > to.count {
                // SAFETY: the caller's promise.
                match unsafe { self.read(to, most - to.count) } {
                    Ok(read) => to.count += read,
                    Err(Errno(FI_EAGAIN)) => {}
                    Err(other) if to.count == 0 => return Err(other),
                    Err(_) => return Ok(to.count),
                }
            }
            if to.count >= threshold {
                return Ok(to.count);
            }
            match self.queue.wait(timeout.saturating_sub(begin.elapsed())) {
                Ok(completion) => {
                    let (entry, source) = completion::parts(&completion);
                    // SAFETY: the caller's promise.
                    unsafe { to.put(entry, source, self.format) }
                }
                Err(WaitError::Failed(error)) => self.keep(&error),
                Err(WaitError::Held) => {}
                Err(_) if to.count > 0 => return Ok(to.count),
                Err(WaitError::Device(error)) => return Err(errors::of_device(&error)),
                Err(_) => return Err(Errno(FI_EAGAIN)),
            }
        }
    }
}

/// Entries of a format, and senders if they are wanted.
#[derive(Clone, Copy)]
struct Entries {
    at: *mut c_void,
    sources: *mut fi_addr_t,
    count: usize,
}

impl Entries {
    /// Writes the next entry.
    ///
    /// # Safety
    /// There is room for it.
    #[inline]
    unsafe fn put(&mut self, entry: fi_cq_tagged_entry, source: fi_addr_t, format: fi_cq_format) {
        let index = self.count;
        self.count += 1;
        let fi_cq_tagged_entry { op_context, flags, len, buf, data, .. } = entry;
        // SAFETY: the caller's promise; formats were checked when the queue was opened.
        unsafe {
            match format {
                FI_CQ_FORMAT_TAGGED => {
                    self.at.cast::<fi_cq_tagged_entry>().add(index).write_unaligned(entry)
                }
                FI_CQ_FORMAT_DATA => {
                    let entry = fi_cq_data_entry { op_context, flags, len, buf, data };
                    self.at.cast::<fi_cq_data_entry>().add(index).write_unaligned(entry)
                }
                FI_CQ_FORMAT_MSG => {
                    let entry = fi_cq_msg_entry { op_context, flags, len };
                    self.at.cast::<fi_cq_msg_entry>().add(index).write_unaligned(entry)
                }
                _ => {
                    let entry = fi_cq_entry { op_context };
                    self.at.cast::<fi_cq_entry>().add(index).write_unaligned(entry)
                }
            }
            if !self.sources.is_null() {
                self.sources.add(index).write_unaligned(source);
            }
        }
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, most: usize) -> isize {
    // SAFETY: the table is that of a completion queue; the program passes room for `most` entries.
    unsafe { read_entries(cq, buf, most, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    src_addr: *mut fi_addr_t,
) -> isize {
    // SAFETY: the table is that of a completion queue; the program passes room for `most` entries.
    unsafe { read_entries(cq, buf, most, src_addr) }
}

/// Looks first: a program mostly reads in vain.
///
/// # Safety
/// `cq` is a completion queue, and there is room for `most` entries and, unless it is null, as many sources.
#[inline(always)]
unsafe fn read_entries(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        // Not `count`, whose way out for panics costs more than the look, which can't panic.
        if !buf.is_null()
            && let Some(call) = InCall::begin()
        {
            let is_idle =
                Object::<CompletionQueue>::of(cq).open().is_some_and(CompletionQueue::is_idle);
            drop(call);
            if is_idle {
                return -(FI_EAGAIN as isize);
            }
        }
        read_found(cq, buf, most, sources)
    }
}

/// # Safety
/// As for [`read_entries`].
#[inline(never)]
unsafe fn read_found(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    sources: *mut fi_addr_t,
) -> isize {
    found(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let cq = Object::<CompletionQueue>::of(cq);
            if buf.is_null() || most == 0 {
                return cq.read_none(most);
            }
            cq.read(Entries { at: buf, sources, count: 0 }, most)
        }
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as for `sreadfrom`.
    unsafe { sreadfrom(cq, buf, most, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    most: usize,
    src_addr: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    count(|| {
        if buf.is_null() || most == 0 {
            return Err(INVALID);
        }
        // SAFETY: the table is that of a completion queue; the program passes room for `most` entries.
        unsafe {
            let cq = Object::<CompletionQueue>::of(cq);
            let threshold = match cq.takes_threshold {
                true => cond.addr().clamp(1, most),
                false => 1,
            };
            let to = Entries { at: buf, sources: src_addr, count: 0 };
            // It isn't closed meanwhile.
            let cq = Use::new(cq);
            threads::asleep(|| cq.wait(to, most, threshold, timeout_of(timeout)))
        }
    })
}

/// A timeout in milliseconds; a negative one is none.
pub(crate) fn timeout_of(milliseconds: c_int) -> Duration {
    match u64::try_from(milliseconds) {
        Ok(milliseconds) => Duration::from_millis(milliseconds),
        Err(_) => Duration::from_secs(100 * 365 * 86400),
    }
}

/// The first release whose entries of failures say how much room for error data there is.
pub(crate) const ERR_DATA_SIZE: u32 = FI_VERSION(1, 5);

/// `fi_cq_readerr`: 1 if there was a failed operation.
unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    count(|| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: the table is that of a completion queue; the program passes room for an entry.
        unsafe {
            let cq = Object::<CompletionQueue>::of(cq);
            if buf.is_null() {
                return Err(INVALID);
            }
            let mut entry = cq.take_failed().ok_or(Errno(FI_EAGAIN))?;
            let knows_size = cq.domain.api_version >= ERR_DATA_SIZE;
            if knows_size {
                // The program's buffer for further data, of which there is none, stays the program's.
                entry.err_data = (&raw const (*buf).err_data).read_unaligned();
            }
            let length = match knows_size {
                true => size_of::<fi_cq_err_entry>(),
                false => std::mem::offset_of!(fi_cq_err_entry, err_data_size),
            };
            buf.cast::<u8>().copy_from_nonoverlapping((&raw const entry).cast(), length);
        }
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    status(|| {
        // SAFETY: the table is that of a completion queue.
        let cq = unsafe { Object::<CompletionQueue>::of(cq) };
        if cq.wait.kind() == FI_WAIT_NONE {
            return Err(Errno(FI_ENOSYS));
        }
        cq.queue.signal();
        Ok(())
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the program says how much room there is.
    value(c"".as_ptr(), || unsafe { memory::put_text(errors::text(prov_errno), buf, len) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: the table is that of a completion queue; each command says what `arg` points to.
        unsafe {
            let cq = Object::<CompletionQueue>::of(fid.cast());
            wait::control(&cq.wait, cq.queue.as_fd(), command, arg)
        }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    status(|| {
        // SAFETY: the table is that of a completion queue.
        let closed = unsafe { Object::<CompletionQueue>::of(fid.cast()).close() }?;
        closed.queue.hold(false);
        Ok(())
    })
}
