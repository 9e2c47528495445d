//! A provider for libfabric: programs written for libfabric run on the engine of [`efa`].
//!
//! `libefars_fi.so` exports `fi_prov_ini`, which libfabric 1.17 to 2.6 calls when it finds the library, under
//! the name `libefars-fi.so`, in a directory of `FI_PROVIDER_PATH`:
//!
//! ```text
//! $ cargo xtask provider
//! $ FI_PROVIDER_PATH=target/provider FI_PROVIDER=efars fi_pingpong -e rdm
//! ```
//!
//! It is a shell: objects, queues, connections and waiting are those of [`efa`].

#![deny(unsafe_code)]

pub mod abi;
mod bits;
mod boundary;
mod c;
mod cancel;
mod device;
mod errors;
mod fork;
mod info;
mod libfabric;
mod log;
mod lookup;
mod memory;
mod object;
mod settings;
mod socket;
mod threads;
