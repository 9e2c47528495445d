//! What the provider needs of `rdma/fi_trigger.h`: it offers no triggered operation, and tells which was asked.

use std::ffi::c_uint;

use super::enums;

pub type fi_op_type = c_uint;

enums! {
    fi_op_type {
        FI_OP_RECV, FI_OP_SEND, FI_OP_TRECV, FI_OP_TSEND, FI_OP_READ, FI_OP_WRITE, FI_OP_ATOMIC,
        FI_OP_FETCH_ATOMIC, FI_OP_COMPARE_ATOMIC, FI_OP_CNTR_SET, FI_OP_CNTR_ADD,
    }
}
