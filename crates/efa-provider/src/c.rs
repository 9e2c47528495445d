//! The functions in libfabric's tables: a file for each kind of object or table.
//!
//! Each function checks what C gave it, calls `efa`, and turns the result into a number.

#![allow(unsafe_code)]

pub(crate) mod atomic;
pub(crate) mod av;
pub(crate) mod cm;
pub(crate) mod completion;
pub(crate) mod counter;
pub(crate) mod cq;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod entry;
pub(crate) mod eq;
pub(crate) mod event;
pub(crate) mod fabric;
pub(crate) mod mr;
pub(crate) mod msg;
pub(crate) mod passive;
pub(crate) mod rma;
pub(crate) mod shared;
pub(crate) mod tagged;
pub(crate) mod transfer;
pub(crate) mod unexpected;
pub(crate) mod vain;
pub(crate) mod wait;
