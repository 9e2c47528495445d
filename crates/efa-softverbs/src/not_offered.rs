//! Functions of libibverbs that this device doesn't have.
//!
//! They are exported all the same: the real ones would take our objects for theirs and crash.
//! Arguments are not looked at, so none are declared; the C calling convention allows that.

use std::ffi::{c_int, c_void};

use crate::boundary::{Errno, Outcome, UNSUPPORTED, code, number, pointer};

/// Defines functions that fail in the way of their kind.
macro_rules! not_offered {
    ($kind:ident -> $type:ty: $($name:ident)*) => {
        $(
            /// Not offered.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $type {
                $kind(refuse)
            }
        )*
    };
}

fn refuse<T>() -> Outcome<T> {
    Err(UNSUPPORTED)
}

not_offered! { code -> c_int:
    ibv_attach_mcast ibv_detach_mcast
    ibv_modify_srq ibv_query_srq ibv_destroy_srq
    ibv_destroy_comp_channel ibv_resize_cq
    ibv_query_ece ibv_set_ece
    ibv_resolve_eth_l2_from_gid
}

not_offered! { number -> c_int:
    ibv_get_cq_event ibv_init_ah_from_wc ibv_rereg_mr
    ibv_query_gid_type
}

not_offered! { pointer -> *mut c_void:
    ibv_create_srq ibv_create_comp_channel ibv_create_ah_from_wc ibv_reg_dmabuf_mr
    ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
}

/// Nothing happens that an event tells of; asks to be called again later.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_async_event() -> c_int {
    number(|| Err(Errno(libc::EAGAIN)))
}

/// Defines functions without a result, for objects that nobody can have got.
macro_rules! nothing {
    ($($name:ident)*) => {
        $(
            /// Does nothing: there is no object to do it to.
            #[unsafe(no_mangle)]
            extern "C" fn $name() {}
        )*
    };
}

nothing! { ibv_ack_async_event ibv_ack_cq_events ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm }
