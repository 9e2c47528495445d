//! The library as a C program uses it: loaded, with functions found by name. [`Endpoint`] is a queue pair
//! with all that it needs.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
pub(crate) use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use efa_soft::abi::*;

use super::library;

/// Declares functions and finds them in the library.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(crate) struct Verbs {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Verbs {
            /// # Safety
            /// `library` must be a handle from `dlopen`, of a library with these functions.
            unsafe fn find(library: *mut c_void) -> Self {
                $(
                    let name = CString::new(stringify!($name)).unwrap();
                    // SAFETY: `library` is a handle from `dlopen`, as required above.
                    let $name = unsafe { libc::dlsym(library, name.as_ptr()) };
                    assert!(!$name.is_null(), "{} is not exported", stringify!($name));
                )*
                // SAFETY: each is the address of a function of this type, as required above.
                unsafe {
                    Self {
                        $($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >($name)),*
                    }
                }
            }
        }
    };
}

functions! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_get_device_guid(*mut ibv_device) -> u64;
    ibv_get_device_index(*mut ibv_device) -> c_int;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_port_speed(*mut ibv_context, u32, *mut u64) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_query_gid_type(*mut ibv_context, u8, c_uint, *mut c_uint) -> c_int;
    ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_get_pkey_index(*mut ibv_context, u8, u16) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah(*mut ibv_ah) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
        -> *mut ibv_cq;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_create_srq() -> *mut c_void;
    ibv_attach_mcast() -> c_int;
    efadv_query_device(*mut ibv_context, *mut efadv_device_attr, u32) -> c_int;
    efadv_get_max_sq_depth(*mut ibv_context, *mut efadv_sq_depth_attr, u32) -> c_int;
    efadv_get_max_rq_depth(*mut ibv_context, *mut efadv_rq_depth_attr, u32) -> c_int;
    efadv_query_mr(*mut ibv_mr, *mut efadv_mr_attr, u32) -> c_int;
    _ibv_query_comp_cntr_caps(*mut ibv_context, *mut ibv_comp_cntr_caps, usize) -> c_int;
    ibv_create_comp_cntr(*mut ibv_context, *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    efadv_create_comp_cntr(*mut ibv_context, *mut ibv_comp_cntr_init_attr,
        *mut efadv_comp_cntr_init_attr, u32) -> *mut ibv_comp_cntr;
    ibv_destroy_comp_cntr(*mut ibv_comp_cntr) -> c_int;
    ibv_qp_attach_comp_cntr(*mut ibv_qp, *mut ibv_comp_cntr, *mut ibv_qp_attach_comp_cntr_attr)
        -> c_int;
    ibv_set_comp_cntr(*mut ibv_comp_cntr, u64) -> c_int;
    ibv_set_err_comp_cntr(*mut ibv_comp_cntr, u64) -> c_int;
    ibv_inc_comp_cntr(*mut ibv_comp_cntr, u64) -> c_int;
    ibv_inc_err_comp_cntr(*mut ibv_comp_cntr, u64) -> c_int;
    ibv_read_comp_cntr(*mut ibv_comp_cntr, *mut u64) -> c_int;
    ibv_read_err_comp_cntr(*mut ibv_comp_cntr, *mut u64) -> c_int;
    efadv_query_ah(*mut ibv_ah, *mut efadv_ah_attr, u32) -> c_int;
    efadv_create_cq(*mut ibv_context, *mut ibv_cq_init_attr_ex, *mut efadv_cq_init_attr, u32)
        -> *mut ibv_cq_ex;
    efadv_cq_from_ibv_cq_ex(*mut ibv_cq_ex) -> *mut efadv_cq;
    efadv_create_qp_ex(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut efadv_qp_init_attr, u32)
        -> *mut ibv_qp;
    efadv_qp_from_ibv_qp_ex(*mut ibv_qp_ex) -> *mut efadv_qp;
    efadv_query_cq(*mut ibv_cq, *mut efadv_cq_attr, u32) -> c_int;
    efadv_query_qp_wqs(*mut ibv_qp, *mut efadv_wq_attr, *mut efadv_wq_attr, u32) -> c_int;
    efadv_create_driver_qp(*mut ibv_pd, *mut ibv_qp_init_attr, u32) -> *mut ibv_qp;
}

/// The functions of the library, which is loaded once. It reads the settings when devices are listed.
pub(crate) fn verbs() -> &'static Verbs {
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    VERBS.get_or_init(|| {
        let path = CString::new(library().into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: the initialisers of the library have no preconditions.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlopen failed, so there is a message.
            panic!("{}", unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy());
        }
        // SAFETY: the library exports these functions with these types.
        unsafe { Verbs::find(handle) }
    })
}

/// The `errno` of this thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// A C structure of zeros.
pub(crate) fn zeroed<T>() -> T {
    // SAFETY: the tests use this for structures of numbers, pointers and optional functions alone.
    unsafe { std::mem::zeroed() }
}

/// The first device, opened.
pub(crate) fn open() -> *mut ibv_context {
    let v = verbs();
    // SAFETY: the list is freed after its only use.
    unsafe {
        let list = (v.ibv_get_device_list)(null_mut());
        assert!(!list.is_null());
        let context = (v.ibv_open_device)(*list);
        (v.ibv_free_device_list)(list);
        assert!(!context.is_null(), "errno {}", errno());
        context
    }
}

/// A number that no queue pair has. On the tcp link the sender finds that out by connecting.
pub(crate) fn unused_qpn() -> u32 {
    match std::env::var("EFA_SOFT_LINK").as_deref() {
        Ok("tcp") => 0xffff,
        _ => 0,
    }
}

/// Options of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct QpOptions {
    pub(crate) ud: bool,
    pub(crate) qkey: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    /// `IBV_QP_EX_WITH_…`
    pub(crate) operations: u64,
    /// Whether every send completes without `IBV_SEND_SIGNALED`.
    pub(crate) signals_all: bool,
    pub(crate) max_inline: u32,
    /// Whether immediate data of peers' writes uses no receive buffer.
    pub(crate) unsolicited: bool,
    /// Whether the data of RDMA writes may be inline.
    pub(crate) inline_writes: bool,
    /// Most buffers of a receive.
    pub(crate) receive_entries: u32,
    /// Whether the completion queue has a completion channel.
    pub(crate) channel: bool,
    /// Where the ring of completions is, if not in the library's memory.
    pub(crate) ring: Option<efadv_cq_memory>,
}

impl Default for QpOptions {
    fn default() -> Self {
        let operations = IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_SEND_WITH_IMM;
        Self {
            ud: false,
            qkey: 0x1234,
            rnr_retry: 7,
            sends: 64,
            receives: 64,
            operations,
            signals_all: true,
            max_inline: 32,
            unsolicited: false,
            inline_writes: false,
            receive_entries: 1,
            channel: false,
            ring: None,
        }
    }
}

/// A queue pair with its context, domain and completion queue. Dropping it destroys them and checks that
/// this succeeds.
pub(crate) struct Endpoint {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    /// Null without [`QpOptions::channel`].
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq_ex,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) qkey: u32,
}

// SAFETY: any thread may call the library's functions.
unsafe impl Send for Endpoint {}
// SAFETY: several threads may call the library's functions with the same objects.
unsafe impl Sync for Endpoint {}

/// A completion, as the functions of `ibv_cq_ex` return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) status: c_int,
    pub(crate) vendor: u32,
    pub(crate) opcode: c_int,
    pub(crate) length: u32,
    pub(crate) qpn: u32,
    pub(crate) source: u32,
    pub(crate) handle: u32,
    /// Of a sender without address handle.
    pub(crate) gid: Option<[u8; 16]>,
    /// If there is any.
    pub(crate) immediate: Option<u32>,
}

impl Endpoint {
    pub(crate) fn new(options: QpOptions) -> Self {
        let end = Self::in_reset(options);
        end.make_ready(options);
        end
    }

    /// Moves the queue pair from RESET to RTS.
    pub(crate) fn make_ready(&self, options: QpOptions) {
        let end = self;
        let mut attributes: ibv_qp_attr = zeroed();
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qkey = options.qkey;
        let flags = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
        assert_eq!(end.modify(&mut attributes, flags), 0);
        attributes.qp_state = IBV_QPS_RTR;
        assert_eq!(end.modify(&mut attributes, IBV_QP_STATE), 0);
        attributes.qp_state = IBV_QPS_RTS;
        attributes.rnr_retry = options.rnr_retry;
        let rnr = if options.ud { 0 } else { IBV_QP_RNR_RETRY };
        assert_eq!(end.modify(&mut attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | rnr), 0);
    }

    /// In the state RESET.
    pub(crate) fn in_reset(options: QpOptions) -> Self {
        let v = verbs();
        let context = open();
        // SAFETY: all arguments are objects created here, or valid structures.
        unsafe {
            let pd = (v.ibv_alloc_pd)(context);
            assert!(!pd.is_null());
            let channel = match options.channel {
                true => (v.ibv_create_comp_channel)(context),
                false => null_mut(),
            };
            assert_eq!(channel.is_null(), !options.channel, "errno {}", errno());
            let cq = create_queue(context, channel, 0, options.ring);
            let qp = create(context, pd, cq, options);
            assert!(!qp.is_null(), "errno {}", errno());
            Self { context, pd, channel, cq, qp, qkey: options.qkey }
        }
    }

    /// Another queue pair with the same objects, in the state RESET. The caller destroys it.
    pub(crate) fn second_queue_pair(&self, options: QpOptions) -> ManuallyDrop<Self> {
        let &Self { context, pd, channel, cq, qkey, .. } = self;
        let qp = create(context, pd, cq, options);
        assert!(!qp.is_null(), "errno {}", errno());
        ManuallyDrop::new(Self { context, pd, channel, cq, qp, qkey })
    }

    pub(crate) fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> c_int {
        // SAFETY: both are valid.
        unsafe { (verbs().ibv_modify_qp)(self.qp, attributes, mask) }
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is not destroyed yet.
        unsafe { (*self.qp).qp_num }
    }

    pub(crate) fn gid(&self) -> [u8; 16] {
        let mut gid: ibv_gid = zeroed();
        // SAFETY: all arguments are valid.
        unsafe {
            assert_eq!((verbs().ibv_query_gid)(self.context, 1, 0, &raw mut gid), 0);
            gid.raw
        }
    }

    /// An address handle for `gid`.
    pub(crate) fn handle(&self, gid: [u8; 16]) -> *mut ibv_ah {
        let mut attributes: ibv_ah_attr = zeroed();
        attributes.grh.dgid = ibv_gid { raw: gid };
        attributes.is_global = 1;
        attributes.port_num = 1;
        // SAFETY: all arguments are valid.
        let handle = unsafe { (verbs().ibv_create_ah)(self.pd, &raw mut attributes) };
        assert!(!handle.is_null(), "errno {}", errno());
        handle
    }

    pub(crate) fn register(&self, memory: &Memory, access: c_uint) -> *mut ibv_mr {
        let address = memory.address();
        // SAFETY: the tests keep the memory as long as the region.
        let region =
            unsafe { (verbs().ibv_reg_mr)(self.pd, address, memory.len(), access.cast_signed()) };
        assert!(!region.is_null(), "errno {}", errno());
        region
    }

    /// Posts a receive; returns the error number.
    pub(crate) fn post_receive(&self, wr_id: u64, entry: ibv_sge) -> c_int {
        self.post_receive_list(wr_id, &[entry])
    }

    /// Posts a receive with several buffers; returns the error number.
    pub(crate) fn post_receive_list(&self, wr_id: u64, entries: &[ibv_sge]) -> c_int {
        let sg_list = entries.as_ptr().cast_mut();
        let num_sge = entries.len() as c_int;
        let mut request = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: called as C does, through the context; the request is valid.
        unsafe {
            let post = (*(*self.qp).context).ops.post_recv.unwrap();
            let result = post(self.qp, &raw mut request, &raw mut bad);
            assert_eq!(bad.is_null(), result == 0);
            result
        }
    }

    /// Posts a send; returns the error number.
    pub(crate) fn post_send(
        &self,
        wr_id: u64,
        (handle, qpn, qkey): (*mut ibv_ah, u32, u32),
        entries: &[ibv_sge],
        flags: c_uint,
    ) -> c_int {
        self.post(wr_id, (handle, qpn, qkey), entries, (IBV_WR_SEND, flags, 0))
    }

    /// Posts an inline send with immediate data; returns the error number.
    pub(crate) fn post_send_immediate(
        &self,
        wr_id: u64,
        to: (*mut ibv_ah, u32, u32),
        entries: &[ibv_sge],
        immediate: u32,
    ) -> c_int {
        self.post(wr_id, to, entries, (IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE, immediate))
    }

    fn post(
        &self,
        wr_id: u64,
        (handle, qpn, qkey): (*mut ibv_ah, u32, u32),
        entries: &[ibv_sge],
        (opcode, flags, immediate): (c_int, c_uint, u32),
    ) -> c_int {
        let mut request: ibv_send_wr = zeroed();
        request.imm_data = immediate;
        request.wr_id = wr_id;
        request.sg_list = entries.as_ptr().cast_mut();
        request.num_sge = entries.len() as c_int;
        request.opcode = opcode;
        request.send_flags = flags;
        request.wr.ud = ibv_ud_target { ah: handle, remote_qpn: qpn, remote_qkey: qkey };
        let mut bad = null_mut();
        // SAFETY: called as C does, through the context; the request is valid.
        unsafe {
            let post = (*(*self.qp).context).ops.post_send.unwrap();
            let result = post(self.qp, &raw mut request, &raw mut bad);
            assert_eq!(bad.is_null(), result == 0);
            result
        }
    }

    /// Posts an RDMA read or write; returns the error number.
    pub(crate) fn post_remote(
        &self,
        wr_id: u64,
        (handle, qpn, qkey): (*mut ibv_ah, u32, u32),
        write: bool,
        (address, key): (u64, u32),
        entries: &[ibv_sge],
    ) -> c_int {
        // SAFETY: called as C does, through the queue pair, between `wr_start` and `wr_complete`.
        unsafe {
            let qp = (verbs().ibv_qp_to_qp_ex)(self.qp);
            ((*qp).wr_start.unwrap())(qp);
            (*qp).wr_id = wr_id;
            let operation = if write { (*qp).wr_rdma_write } else { (*qp).wr_rdma_read };
            operation.unwrap()(qp, key, address);
            ((*qp).wr_set_sge_list.unwrap())(qp, entries.len(), entries.as_ptr());
            ((*qp).wr_set_ud_addr.unwrap())(qp, handle, qpn, qkey);
            ((*qp).wr_complete.unwrap())(qp)
        }
    }

    /// Posts an RDMA write of inline data; returns the error number.
    pub(crate) fn post_inline_write(
        &self,
        wr_id: u64,
        (handle, qpn, qkey): (*mut ibv_ah, u32, u32),
        (address, key): (u64, u32),
        data: &[u8],
    ) -> c_int {
        // SAFETY: called as C does, through the queue pair, between `wr_start` and `wr_complete`.
        unsafe {
            let qp = (verbs().ibv_qp_to_qp_ex)(self.qp);
            ((*qp).wr_start.unwrap())(qp);
            (*qp).wr_id = wr_id;
            ((*qp).wr_rdma_write.unwrap())(qp, key, address);
            ((*qp).wr_set_inline_data.unwrap())(qp, data.as_ptr().cast_mut().cast(), data.len());
            ((*qp).wr_set_ud_addr.unwrap())(qp, handle, qpn, qkey);
            ((*qp).wr_complete.unwrap())(qp)
        }
    }

    /// Posts an RDMA write with immediate data; returns the error number.
    pub(crate) fn post_write_immediate(
        &self,
        wr_id: u64,
        (handle, qpn, qkey): (*mut ibv_ah, u32, u32),
        (address, key): (u64, u32),
        entries: &[ibv_sge],
        immediate: u32,
    ) -> c_int {
        // SAFETY: called as C does, through the queue pair, between `wr_start` and `wr_complete`.
        unsafe {
            let qp = (verbs().ibv_qp_to_qp_ex)(self.qp);
            ((*qp).wr_start.unwrap())(qp);
            (*qp).wr_id = wr_id;
            ((*qp).wr_rdma_write_imm.unwrap())(qp, key, address, immediate);
            ((*qp).wr_set_sge_list.unwrap())(qp, entries.len(), entries.as_ptr());
            ((*qp).wr_set_ud_addr.unwrap())(qp, handle, qpn, qkey);
            ((*qp).wr_complete.unwrap())(qp)
        }
    }

    /// Polls once.
    pub(crate) fn poll(&self) -> Option<Completion> {
        let cq = self.cq;
        let mut attributes = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: called as C does, through the completion queue, between a `start_poll` that succeeded and
        // its `end_poll`.
        unsafe {
            match ((*cq).start_poll.unwrap())(cq, &raw mut attributes) {
                0 => {}
                none => {
                    assert_eq!(none, libc::ENOENT);
                    return None;
                }
            }
            let efa = (verbs().efadv_cq_from_ibv_cq_ex)(cq);
            let mut gid: ibv_gid = zeroed();
            let no_gid = ((*efa).wc_read_sgid.unwrap())(efa, &raw mut gid);
            assert!(no_gid <= 0, "{no_gid}");
            let seen = Completion {
                wr_id: (*cq).wr_id,
                status: (*cq).status,
                vendor: ((*cq).read_vendor_err.unwrap())(cq),
                opcode: ((*cq).read_opcode.unwrap())(cq),
                length: ((*cq).read_byte_len.unwrap())(cq),
                qpn: ((*cq).read_qp_num.unwrap())(cq),
                source: ((*cq).read_src_qp.unwrap())(cq),
                handle: ((*cq).read_slid.unwrap())(cq),
                gid: (no_gid == 0).then_some(gid.raw),
                immediate: (((*cq).read_wc_flags.unwrap())(cq) & IBV_WC_WITH_IMM != 0)
                    .then(|| ((*cq).read_imm_data.unwrap())(cq)),
            };
            ((*cq).end_poll.unwrap())(cq);
            Some(seen)
        }
    }

    /// Asks for an event for the next completion; returns the error number.
    pub(crate) fn request_event(&self, solicited_only: c_int) -> c_int {
        // SAFETY: called as C does, through the context.
        unsafe { (*self.context).ops.req_notify_cq.unwrap()(self.cq.cast(), solicited_only) }
    }

    /// Takes an event, waiting for it unless the descriptor is non-blocking, and acknowledges it. Returns
    /// whether there was one.
    pub(crate) fn take_event(&self) -> bool {
        let taken = self.take_event_unacknowledged();
        if taken {
            self.acknowledge(1);
        }
        taken
    }

    pub(crate) fn take_event_unacknowledged(&self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: both may be written.
        let result =
            unsafe { (verbs().ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) };
        if result != 0 {
            assert_eq!((result, errno()), (-1, libc::EAGAIN));
            return false;
        }
        assert_eq!((cq, context), (self.cq.cast(), null_mut()));
        true
    }

    pub(crate) fn acknowledge(&self, events: c_uint) {
        // SAFETY: the completion queue is not destroyed yet.
        unsafe { (verbs().ibv_ack_cq_events)(self.cq.cast(), events) };
    }

    /// The descriptor of the channel.
    pub(crate) fn descriptor(&self) -> c_int {
        // SAFETY: the channel is not destroyed yet.
        unsafe { (*self.channel).fd }
    }

    /// Whether the descriptor is readable, or becomes so within `timeout` milliseconds.
    pub(crate) fn has_event(&self, timeout: c_int) -> bool {
        let mut file = libc::pollfd { fd: self.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `file` may be written.
        let ready = unsafe { libc::poll(&raw mut file, 1, timeout) };
        assert!(ready >= 0, "errno {}", errno());
        ready == 1
    }

    pub(crate) fn set_nonblocking(&self) {
        // SAFETY: the descriptor is open.
        unsafe {
            let flags = libc::fcntl(self.descriptor(), libc::F_GETFL);
            assert_eq!(libc::fcntl(self.descriptor(), libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        }
    }

    /// The next completion, for which the thread sleeps: asks for an event, polls once more, and waits.
    pub(crate) fn sleep_for_completion(&self) -> Completion {
        loop {
            if let Some(seen) = self.poll() {
                return seen;
            }
            assert_eq!(self.request_event(0), 0);
            if let Some(seen) = self.poll() {
                return seen;
            }
            // Not without end, so that a test fails instead of hanging.
            assert!(self.has_event(30_000), "no event for 30 s");
            assert!(self.take_event());
        }
    }

    /// Polls until there is a completion.
    pub(crate) fn wait(&self) -> Completion {
        // Not without end, so that a test fails instead of hanging.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(seen) = self.poll() {
                return seen;
            }
            assert!(Instant::now() < until, "no completion for 60 s");
            std::thread::yield_now();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let v = verbs();
        // SAFETY: the objects were created here and are not used afterwards.
        unsafe {
            assert_eq!((v.ibv_destroy_qp)(self.qp), 0);
            assert_eq!((v.ibv_destroy_cq)(self.cq.cast()), 0);
            if !self.channel.is_null() {
                assert_eq!((v.ibv_destroy_comp_channel)(self.channel), 0);
            }
            assert_eq!((v.ibv_dealloc_pd)(self.pd), 0);
            assert_eq!((v.ibv_close_device)(self.context), 0);
        }
    }
}

/// Creates a completion queue of which all members can be read.
pub(crate) fn create_queue(
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    ring: Option<efadv_cq_memory>,
) -> *mut ibv_cq_ex {
    let mut attributes: ibv_cq_init_attr_ex = zeroed();
    (attributes.cqe, attributes.channel, attributes.comp_vector) = (1024, channel, comp_vector);
    attributes.wc_flags = IBV_WC_STANDARD_FLAGS;
    let mut efa = efadv_cq_init_attr_newer::default();
    efa.first.wc_flags = EFADV_WC_EX_WITH_SGID;
    let mut length = size_of::<efadv_cq_init_attr>();
    if let Some(ring) = ring {
        (efa.flags, efa.ext_mem_dmabuf) = (EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF, ring);
        length = size_of::<efadv_cq_init_attr_newer>();
    }
    let efa = (&raw mut efa).cast();
    // SAFETY: handles are looked up by the library; the structures are valid.
    let cq = unsafe { (verbs().efadv_create_cq)(context, &raw mut attributes, efa, length as u32) };
    assert!(!cq.is_null(), "errno {}", errno());
    cq
}

/// Creates a queue pair; null if that fails.
pub(crate) fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq_ex,
    options: QpOptions,
) -> *mut ibv_qp {
    create_with(context, pd, [cq, cq], options)
}

/// Creates a queue pair whose sends and receives complete on these queues; null if that fails.
pub(crate) fn create_with(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    [send_cq, recv_cq]: [*mut ibv_cq_ex; 2],
    options: QpOptions,
) -> *mut ibv_qp {
    let cap = ibv_qp_cap {
        max_send_wr: options.sends,
        max_recv_wr: options.receives,
        max_send_sge: 2,
        max_recv_sge: options.receive_entries,
        max_inline_data: options.max_inline,
    };
    let v = verbs();
    // SAFETY: handles are looked up by the library; the structures are valid.
    unsafe {
        if options.ud {
            let mut attributes: ibv_qp_init_attr = zeroed();
            attributes.cap = cap;
            attributes.send_cq = send_cq.cast();
            attributes.recv_cq = recv_cq.cast();
            attributes.qp_type = IBV_QPT_UD;
            attributes.sq_sig_all = options.signals_all.into();
            return (v.ibv_create_qp)(pd, &raw mut attributes);
        }
        let mut attributes: ibv_qp_init_attr_ex = zeroed();
        attributes.cap = cap;
        attributes.send_cq = send_cq.cast();
        attributes.recv_cq = recv_cq.cast();
        attributes.qp_type = IBV_QPT_DRIVER;
        attributes.sq_sig_all = options.signals_all.into();
        attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.pd = pd;
        attributes.send_ops_flags = options.operations;
        let mut efa = efadv_qp_init_attr::default();
        if options.unsolicited {
            efa.flags = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
        }
        if options.inline_writes {
            efa.flags |= EFADV_QP_FLAGS_INLINE_WRITE;
        }
        let length = size_of::<efadv_qp_init_attr>() as u32;
        (v.efadv_create_qp_ex)(context, &raw mut attributes, &raw mut efa, length)
    }
}

/// Memory that the device accesses while the test does.
pub(crate) struct Memory(Box<[AtomicU8]>);

impl Memory {
    /// Memory with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.iter().copied().map(AtomicU8::new).collect())
    }

    /// Its present content.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    /// The present value of a byte.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.0[at].load(Ordering::Relaxed)
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.0.as_ptr().cast_mut().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// An entry for `length` bytes of a region.
pub(crate) fn sge(region: *mut ibv_mr, from: usize, length: usize) -> ibv_sge {
    // SAFETY: the region is not deregistered yet.
    let (addr, lkey) = unsafe { ((*region).addr as u64, (*region).lkey) };
    ibv_sge { addr: addr + from as u64, length: length as u32, lkey }
}

/// An entry for inline data.
pub(crate) fn inline(bytes: &[u8]) -> ibv_sge {
    ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
}
