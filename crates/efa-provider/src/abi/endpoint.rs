//! What `rdma/fi_endpoint.h` declares: endpoints, options and messages without tags.

use std::ffi::{c_int, c_void};

use super::{enums, fi_addr_t, fi_rx_attr, fi_tx_attr, fid, fid_t, structs, tables};
use super::{fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_rma, fi_ops_tagged};

pub const FI_OPT_ENDPOINT: c_int = 0;

enums! {
    // Names of options.
    c_int {
        FI_OPT_MIN_MULTI_RECV, FI_OPT_CM_DATA_SIZE, FI_OPT_BUFFERED_MIN, FI_OPT_BUFFERED_LIMIT,
        FI_OPT_SEND_BUF_SIZE, FI_OPT_RECV_BUF_SIZE, FI_OPT_TX_SIZE, FI_OPT_RX_SIZE,
        FI_OPT_FI_HMEM_P2P, FI_OPT_XPU_TRIGGER,
    }
    // Values of FI_OPT_FI_HMEM_P2P.
    c_int {
        FI_HMEM_P2P_ENABLED, FI_HMEM_P2P_REQUIRED, FI_HMEM_P2P_PREFERRED, FI_HMEM_P2P_DISABLED,
    }
}

structs! {
    fi_msg {
        msg_iov: *const libc::iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        context: *mut c_void,
        data: u64,
    }

    fid_ep {
        fid: fid,
        ops: *const fi_ops_ep,
        cm: *const fi_ops_cm,
        msg: *const fi_ops_msg,
        rma: *const fi_ops_rma,
        tagged: *const fi_ops_tagged,
        atomic: *const fi_ops_atomic,
        collective: *const fi_ops_collective,
    }

    fid_pep { fid: fid, ops: *const fi_ops_ep, cm: *const fi_ops_cm }
    fid_stx { fid: fid, ops: *const fi_ops_ep }
}

tables! {
    fi_ops_ep {
        cancel(fid: fid_t, context: *mut c_void) -> isize;
        getopt(
            fid: fid_t, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize,
        ) -> c_int;
        setopt(
            fid: fid_t, level: c_int, optname: c_int, optval: *const c_void, optlen: usize,
        ) -> c_int;
        tx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        rx_ctx(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        rx_size_left(ep: *mut fid_ep) -> isize;
        tx_size_left(ep: *mut fid_ep) -> isize;
    }

    fi_ops_msg {
        recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
            src_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        recvv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize,
            src_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
            dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        sendv(
            ep: *mut fid_ep, iov: *const libc::iovec, desc: *mut *mut c_void, count: usize,
            dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        inject(
            ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t,
        ) -> isize;
        senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
        ) -> isize;
    }
}
