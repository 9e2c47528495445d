//! Contexts that endpoints share: of receives (`fi_srx_context`) and of sends (`fi_stx_context`).
//!
//! ```text
//!   fi_recv(srx) ─► SharedReceives ◄── a message of any endpoint that it is bound to ─► that endpoint's queue
//!   fi_send(ep)  ─► a share of SharedSends, until the send completes on the endpoint's queue
//! ```

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use efa::{OperationFlags, Receive, ReceiveBuffer, SendBudgetOptions, SharedReceiveQueueOptions};

use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, INVALID, Outcome, count, lock, started, status};
use crate::c::completion;
use crate::c::cq::{CompletionQueue, OwnEntry};
use crate::c::domain::Domain;
use crate::c::transfer::{self, context, refused};
use crate::info::PIECES;
use crate::memory::{self, MOST_PIECES};
use crate::object::{Class, Object, Pool, Use};

// ---- receives -----------------------------------------------------------------------------------

/// A context of receives.
pub(crate) struct SharedReceives {
    pub(crate) queue: efa::SharedReceiveQueue,
    most_pieces: usize,
    /// The default flags of receives; `None`: those of the endpoint.
    flags: Option<OperationFlags>,
    /// The queues of receives of the endpoints that it is bound to, one for each, in the order of binding.
    queues: Mutex<Vec<Use<CompletionQueue>>>,
    pub(crate) domain: Use<Domain>,
}

static RECEIVES_FID: fi_ops = fi_ops {
    close: Some(close_receives),
    control: Some(control),
    ..fi_ops::failing::<FI_ENOSYS>()
};
static RECEIVES: fi_ops_ep = fi_ops_ep {
    cancel: Some(cancel),
    rx_size_left: Some(rx_size_left),
    ..fi_ops_ep::failing::<FI_ENOSYS>()
};
static NAMES: fi_ops_cm = fi_ops_cm::failing::<FI_ENOSYS>();
static MSG: fi_ops_msg = fi_ops_msg {
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    ..fi_ops_msg::failing::<FI_ENOSYS>()
};
static RMA: fi_ops_rma = fi_ops_rma::failing::<FI_ENOSYS>();
static TAGGED: fi_ops_tagged = fi_ops_tagged {
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    ..fi_ops_tagged::failing::<FI_ENOSYS>()
};
static ATOMIC: fi_ops_atomic = fi_ops_atomic::failing::<FI_ENOSYS>();
static COLLECTIVE: fi_ops_collective = fi_ops_collective::failing::<FI_ENOSYS>();
static CLOSED: fi_ops_ep = fi_ops_ep::failing::<FI_EBADF>();
static CLOSED_MSG: fi_ops_msg = fi_ops_msg::failing::<FI_EBADF>();
static CLOSED_TAGGED: fi_ops_tagged = fi_ops_tagged::failing::<FI_EBADF>();

// SAFETY: `fid_ep` begins with a `fid`.
unsafe impl Class for SharedReceives {
    type C = fid_ep;

    const NUMBER: usize = FI_CLASS_SRX_CTX;

    const OPS: &'static fi_ops = &RECEIVES_FID;

    fn open(fid: fid) -> fid_ep {
        let (ops, msg, tagged) = (&RECEIVES, &MSG, &TAGGED);
        let (cm, rma, atomic, collective) = (&NAMES, &RMA, &ATOMIC, &COLLECTIVE);
        fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective }
    }

    fn closed(fid: fid) -> fid_ep {
        let (ops, msg, tagged) = (&CLOSED, &CLOSED_MSG, &CLOSED_TAGGED);
        fid_ep { ops, msg, tagged, ..Self::open(fid) }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<SharedReceives> = Pool::new();
        &POOL
    }
}

/// `fi_srx_context`.
pub(crate) unsafe extern "C" fn open_receives(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a domain; the program passes attributes or null, and a place for the object.
        unsafe {
            let to = srx.as_mut().ok_or(INVALID)?;
            let opened = SharedReceives::new(Object::of(domain), attr.as_ref())?;
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

impl SharedReceives {
    /// With the defaults if there are no attributes.
    fn new(domain: &Object<Domain>, attr: Option<&fi_rx_attr>) -> Outcome<Self> {
        let mut flags = None;
        let mut options = SharedReceiveQueueOptions::new();
        if let Some(attr) = attr {
            let capabilities = bits::capabilities(attr.caps).ok_or(INVALID)?;
            if capabilities.intersects(bits::NOT_SHARED) {
                crate::log::warn(format_args!(
                    "a shared receive context has neither FI_MULTI_RECV nor FI_DIRECTED_RECV"
                ));
                return Err(Errno(FI_EOPNOTSUPP));
            }
            flags = match attr.op_flags {
                0 => None,
                FI_COMPLETION => Some(OperationFlags::COMPLETION),
                _ => return Err(Errno(FI_EBADFLAGS)),
            };
            if attr.size > 0 {
                options = options.capacity(attr.size);
            }
        }
        // An endpoint that it is bound to must be able to receive one message more than it has receives.
        let most = domain.fabric.settings.environment.endpoint.protocol.max_receives;
        let capacity = options.capacity.min(most.saturating_sub(1));
        Ok(Self {
            queue: domain.domain.shared_receive_queue(options.capacity(capacity)),
            most_pieces: attr.map_or(0, |attr| attr.iov_limit).clamp(PIECES, MOST_PIECES),
            flags,
            queues: Mutex::default(),
            domain: Use::new(domain),
        })
    }

    /// Posts a receive with the default flags.
    fn post(&self, receive: Receive, buffer: ReceiveBuffer, context: u64) -> Outcome<()> {
        let receive = match self.flags {
            Some(flags) => receive.flags(flags),
            None => receive,
        };
        self.queue.receive(receive, buffer, context).map(drop).map_err(refused)
    }

    /// Posts a receive with these flags.
    fn post_flags(
        &self,
        receive: Receive,
        flags: u64,
        buffer: ReceiveBuffer,
        context: u64,
    ) -> Outcome<()> {
        let receive = transfer::with_flags(receive, flags)?;
        self.queue.receive(receive, buffer, context).map(drop).map_err(refused)
    }

    /// Cancels a receive. No queue is that of a receive which hasn't met its message: the entry is in that of the endpoint
    /// which was bound first, if there is one.
    fn cancel(&self, context: u64) {
        if let Some((receive, _buffer)) = self.queue.cancel_context(context)
            && let Some(queue) = lock(&self.queues).first()
        {
            let kind = if receive.is_tagged() { FI_TAGGED } else { FI_MSG };
            queue.append(OwnEntry::Failed(completion::cancelled(kind, context)));
        }
    }
}

/// An endpoint's place in a shared receive context, until it is dropped.
pub(crate) struct Member {
    pub(crate) receives: Use<SharedReceives>,
    queue: Option<Use<CompletionQueue>>,
}

impl Member {
    /// Of an endpoint whose receives complete in this queue, if there is one.
    pub(crate) fn new(
        receives: &Use<SharedReceives>,
        queue: Option<&Use<CompletionQueue>>,
    ) -> Self {
        lock(&receives.queues).extend(queue.cloned());
        Self { receives: receives.clone(), queue: queue.cloned() }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Some(queue) = &self.queue else { return };
        let mut queues = lock(&self.receives.queues);
        if let Some(at) = queues.iter().position(|other| other.is(queue.object())) {
            queues.remove(at);
        }
    }
}

// In each function the table is that of a shared receive context, and memory is the program's as `memory` says.

unsafe extern "C" fn recv(
    srx: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _src_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let buffer = memory::received(&srx.domain, buf, len, desc)?;
        srx.post(Receive::untagged(), buffer, context(ctx))
    })
}

unsafe extern "C" fn recvv(
    srx: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    _src_addr: fi_addr_t,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let buffer = memory::received_pieces(&srx.domain, srx.most_pieces, iov, desc, count)?;
        srx.post(Receive::untagged(), buffer, context(ctx))
    })
}

unsafe extern "C" fn recvmsg(srx: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let (iov, desc, count) = (msg.msg_iov, msg.desc, msg.iov_count);
        let buffer = memory::received_pieces(&srx.domain, srx.most_pieces, iov, desc, count)?;
        srx.post_flags(Receive::untagged(), flags, buffer, context(msg.context))
    })
}

unsafe extern "C" fn trecv(
    srx: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    _src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let buffer = memory::received(&srx.domain, buf, len, desc)?;
        srx.post(Receive::masked(tag, ignore), buffer, context(ctx))
    })
}

unsafe extern "C" fn trecvv(
    srx: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    _src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    ctx: *mut c_void,
) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let buffer = memory::received_pieces(&srx.domain, srx.most_pieces, iov, desc, count)?;
        srx.post(Receive::masked(tag, ignore), buffer, context(ctx))
    })
}

unsafe extern "C" fn trecvmsg(srx: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: as said above.
    started(|| unsafe {
        let srx = Object::<SharedReceives>::of(srx);
        let msg = msg.as_ref().ok_or(INVALID)?;
        let (iov, desc, count) = (msg.msg_iov, msg.desc, msg.iov_count);
        let buffer = memory::received_pieces(&srx.domain, srx.most_pieces, iov, desc, count)?;
        let receive = Receive::masked(msg.tag, msg.ignore);
        srx.post_flags(receive, flags, buffer, context(msg.context))
    })
}

unsafe extern "C" fn rx_size_left(srx: *mut fid_ep) -> isize {
    count(|| {
        // SAFETY: the table is that of a shared receive context.
        let queue = &unsafe { Object::<SharedReceives>::of(srx) }.queue;
        Ok(queue.capacity().saturating_sub(queue.len()))
    })
}

/// `fi_cancel`: a success even if no receive with this context waits, as for endpoints.
unsafe extern "C" fn cancel(fid: fid_t, ctx: *mut c_void) -> isize {
    started(|| {
        // SAFETY: the table is that of a shared receive context.
        unsafe { Object::<SharedReceives>::of(fid.cast()) }.cancel(context(ctx));
        Ok(())
    })
}

/// `fi_enable`, which has nothing to do.
unsafe extern "C" fn control(_fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    status(|| if command == FI_ENABLE { Ok(()) } else { Err(Errno(FI_ENOSYS)) })
}

unsafe extern "C" fn close_receives(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a shared receive context.
    status(|| unsafe { Object::<SharedReceives>::of(fid.cast()).close() }.map(drop))
}

// ---- sends --------------------------------------------------------------------------------------

/// A context of sends.
pub(crate) struct SharedSends {
    pub(crate) budget: efa::SendBudget,
    pub(crate) domain: Use<Domain>,
}

static SENDS_FID: fi_ops = fi_ops { close: Some(close_sends), ..fi_ops::failing::<FI_ENOSYS>() };
static SENDS: fi_ops_ep = fi_ops_ep::failing::<FI_ENOSYS>();

// SAFETY: `fid_stx` begins with a `fid`.
unsafe impl Class for SharedSends {
    type C = fid_stx;

    const NUMBER: usize = FI_CLASS_STX_CTX;

    const OPS: &'static fi_ops = &SENDS_FID;

    fn open(fid: fid) -> fid_stx {
        fid_stx { fid, ops: &SENDS }
    }

    fn closed(fid: fid) -> fid_stx {
        fid_stx { fid, ops: &CLOSED }
    }

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<SharedSends> = Pool::new();
        &POOL
    }
}

/// `fi_stx_context`.
pub(crate) unsafe extern "C" fn open_sends(
    domain: *mut fid_domain,
    attr: *mut fi_tx_attr,
    stx: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the table is that of a domain; the program passes attributes or null, and a place for the object.
        unsafe {
            let (domain, to) = (Object::<Domain>::of(domain), stx.as_mut().ok_or(INVALID)?);
            let size = attr.as_ref().map_or(0, |attr| attr.size);
            let options = SendBudgetOptions::new();
            let options = if size > 0 { options.limit(size) } else { options };
            let budget = domain.domain.send_budget(options);
            let opened = SharedSends { budget, domain: Use::new(domain) };
            *to = Object::create(opened, context).as_ref().address();
        }
        Ok(())
    })
}

unsafe extern "C" fn close_sends(fid: *mut fid) -> c_int {
    // SAFETY: the table is that of a shared send context.
    status(|| unsafe { Object::<SharedSends>::of(fid.cast()).close() }.map(drop))
}
