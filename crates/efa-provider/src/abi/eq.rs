//! What `rdma/fi_eq.h` declares: event queues, completion queues, counters, wait and poll sets.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{enums, fi_addr_t, fi_info, fid, fid_t, structs, tables};

pub type fi_wait_obj = c_uint;
pub type fi_cq_format = c_uint;
pub type fi_cq_wait_cond = c_uint;
pub type fi_cntr_events = c_uint;

enums! {
    fi_wait_obj {
        FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_SET, FI_WAIT_FD, FI_WAIT_MUTEX_COND,
        FI_WAIT_YIELD, FI_WAIT_POLLFD,
    }
    // Events of an event queue.
    u32 {
        FI_NOTIFY, FI_CONNREQ, FI_CONNECTED, FI_SHUTDOWN, FI_MR_COMPLETE, FI_AV_COMPLETE,
        FI_JOIN_COMPLETE,
    }
    fi_cq_format {
        FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA,
        FI_CQ_FORMAT_TAGGED,
    }
    fi_cq_wait_cond { FI_CQ_COND_NONE, FI_CQ_COND_THRESHOLD }
    fi_cntr_events { FI_CNTR_EVENTS_COMP }
}

structs! {
    fi_wait_attr { wait_obj: fi_wait_obj, flags: u64 }
    fid_wait { fid: fid, ops: *const fi_ops_wait }
    fi_mutex_cond { mutex: *mut libc::pthread_mutex_t, cond: *mut libc::pthread_cond_t }
    fi_wait_pollfd { change_index: u64, nfds: usize, fd: *mut libc::pollfd }

    fi_poll_attr { flags: u64 }
    fid_poll { fid: fid, ops: *const fi_ops_poll }

    fi_eq_attr {
        size: usize,
        flags: u64,
        wait_obj: fi_wait_obj,
        signaling_vector: c_int,
        wait_set: *mut fid_wait,
    }
    fi_eq_entry { fid: fid_t, context: *mut c_void, data: u64 }
    fi_eq_err_entry {
        fid: fid_t,
        context: *mut c_void,
        data: u64,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    /// The peer's private data follows it; the program gives room for as much as it wants.
    fi_eq_cm_entry { fid: fid_t, info: *mut fi_info, data: [u8; 0] }
    fid_eq { fid: fid, ops: *const fi_ops_eq }

    fi_cq_entry { op_context: *mut c_void }
    fi_cq_msg_entry { op_context: *mut c_void, flags: u64, len: usize }
    fi_cq_data_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
    }
    fi_cq_tagged_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
    }
    fi_cq_err_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    fi_cq_attr {
        size: usize,
        flags: u64,
        format: fi_cq_format,
        wait_obj: fi_wait_obj,
        signaling_vector: c_int,
        wait_cond: fi_cq_wait_cond,
        wait_set: *mut fid_wait,
    }
    fid_cq { fid: fid, ops: *const fi_ops_cq }

    fi_cntr_attr {
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
        wait_set: *mut fid_wait,
        flags: u64,
    }
    fid_cntr { fid: fid, ops: *const fi_ops_cntr }
}

tables! {
    fi_ops_wait {
        wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }

    fi_ops_poll {
        poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }

    fi_ops_eq {
        read(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64,
        ) -> isize;
        readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        write(
            eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64,
        ) -> isize;
        sread(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int,
            flags: u64,
        ) -> isize;
        strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
            len: usize,
        ) -> *const c_char;
    }

    fi_ops_cq {
        read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
        readfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t,
        ) -> isize;
        readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
        sread(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void,
            timeout: c_int,
        ) -> isize;
        sreadfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t,
            cond: *const c_void, timeout: c_int,
        ) -> isize;
        signal(cq: *mut fid_cq) -> c_int;
        strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char,
            len: usize,
        ) -> *const c_char;
    }

    fi_ops_cntr {
        read(cntr: *mut fid_cntr) -> u64;
        readerr(cntr: *mut fid_cntr) -> u64;
        add(cntr: *mut fid_cntr, value: u64) -> c_int;
        set(cntr: *mut fid_cntr, value: u64) -> c_int;
        wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        adderr(cntr: *mut fid_cntr, value: u64) -> c_int;
        seterr(cntr: *mut fid_cntr, value: u64) -> c_int;
    }
}
