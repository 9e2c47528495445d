//! The C structures, tables and constants between libfabric and its providers, as libfabric 1.17 lays them out.
//!
//! Written by hand, with the names of the C side; a member that is a keyword in Rust ends with an underscore.
//! `tests/layout.rs` compares every size, offset and constant with the installed C headers. An enumeration of
//! C is an alias of an integer, since a program can pass any value. Tables of functions (`fi_ops_…`) are
//! never written to, so objects point to them with `*const`.
//!
//! Later releases append members, and give some bits another meaning: [`later`].

#![allow(non_camel_case_types, missing_docs)]

mod atomic;
mod cm;
mod collective;
mod domain;
mod endpoint;
mod eq;
mod errno;
mod ext;
mod fabric;
mod flags;
pub mod later;
mod provider;
mod rma;
mod tagged;
mod trigger;

pub use atomic::*;
pub use cm::*;
pub use collective::*;
pub use domain::*;
pub use endpoint::*;
pub use eq::*;
pub use errno::*;
pub use ext::*;
pub use fabric::*;
pub use flags::*;
pub use provider::*;
pub use rma::*;
pub use tagged::*;
pub use trigger::*;

/// A C structure of which zeros are a valid value: it consists of numbers, raw pointers and optional
/// function pointers.
///
/// # Safety
/// All-zero bytes must be a value of the type.
#[allow(unsafe_code)]
pub unsafe trait Zeroable: Sized {}

/// A structure of zeros, as C programs initialise it.
#[allow(unsafe_code)]
pub const fn zeroed<T: Zeroable>() -> T {
    // SAFETY: `Zeroable` requires that this is a value.
    unsafe { std::mem::zeroed() }
}

/// What a function of C returns if it fails.
pub trait Failure {
    /// The value for an error number.
    fn of(errno: std::ffi::c_int) -> Self;
}

impl Failure for std::ffi::c_int {
    fn of(errno: std::ffi::c_int) -> Self {
        -errno
    }
}

impl Failure for isize {
    fn of(errno: std::ffi::c_int) -> Self {
        -(errno as Self)
    }
}

impl Failure for u64 {
    fn of(_errno: std::ffi::c_int) -> Self {
        0
    }
}

impl Failure for bool {
    fn of(_errno: std::ffi::c_int) -> Self {
        false
    }
}

impl<T> Failure for *const T {
    fn of(_errno: std::ffi::c_int) -> Self {
        std::ptr::null()
    }
}

/// Declares C structures.
macro_rules! structs {
    ($($(#[$meta:meta])* $name:ident { $($member:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(pub $member: $type),*
            }

            // SAFETY: all members are numbers, raw pointers, options of function pointers, or structures
            // and unions of these.
            #[allow(unsafe_code)]
            unsafe impl $crate::abi::Zeroable for $name {}
        )*
    };
}
use structs;

/// Declares tables of functions: `size`, then one pointer for each function, which may be null.
macro_rules! tables {
    ($($(#[$meta:meta])* $name:ident {
        $($function:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                pub size: usize,
                $(
                    pub $function:
                        Option<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>,
                )*
            }

            // SAFETY: a number and options of function pointers.
            #[allow(unsafe_code)]
            unsafe impl $crate::abi::Zeroable for $name {}

            impl $name {
                /// A table whose functions all fail with an error number.
                #[allow(unsafe_code, clippy::too_many_arguments, reason = "as in C")]
                pub const fn failing<const ERRNO: ::std::ffi::c_int>() -> Self {
                    $(
                        unsafe extern "C" fn $function<const ERRNO: ::std::ffi::c_int>(
                            $(_: $type),*
                        ) $(-> $result)? {
                            $(<$result as $crate::abi::Failure>::of(ERRNO))?
                        }
                    )*
                    Self { size: size_of::<Self>(), $($function: Some($function::<ERRNO>)),* }
                }
            }
        )*
    };
}
use tables;

/// Declares an enumeration, named or not: consecutive values from 0, or from the value given.
macro_rules! enums {
    ($($type:ident { $($name:ident $(= $value:expr)?),* $(,)? })*) => {
        $(enums! { @value $type, 0; $($name $(= $value)?),* })*
    };
    (@value $type:ident, $next:expr;) => {};
    (@value $type:ident, $next:expr; $name:ident $(, $($rest:tt)*)?) => {
        pub const $name: $type = $next;
        enums! { @value $type, $name + 1; $($($rest)*)? }
    };
    (@value $type:ident, $next:expr; $name:ident = $value:expr $(, $($rest:tt)*)?) => {
        pub const $name: $type = $value;
        enums! { @value $type, $name + 1; $($($rest)*)? }
    };
}
use enums;
