//! The C structures, constants and function types of libibverbs and libefa that this crate uses.
//!
//! Names are those of the C headers `infiniband/verbs.h` and `infiniband/efadv.h`. Two kinds of
//! structure are declared differently:
//!
//! * Structures that this crate allocates (attributes, work requests) are declared in full.
//! * Structures that a library allocates are declared up to the last member that is used here. They
//!   are only reached through pointers, and their size means nothing. Those of which no member is used
//!   are opaque.
//!
//! `tests/layout.rs` compares offsets, sizes and constants with the installed C headers, and
//! `tests/rdma-sys` of the repository with the crate rdma-sys.

#![allow(non_camel_case_types, missing_docs, reason = "the names of the C headers")]

mod completion_queue;
mod context;
mod efadv;
mod memory;
mod queue_pair;

pub use completion_queue::*;
pub use context::*;
pub use efadv::*;
pub use memory::*;
pub use queue_pair::*;

/// A C function pointer that this crate never calls.
pub type Unused = Option<unsafe extern "C" fn()>;

/// Declares structures of which only addresses are used.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}
pub(crate) use opaque;
