//! The software EFA device for programs that know libibverbs and libefa.
//!
//! `libefa_soft.so` exports the functions of both libraries on top of [`efa_sim`]. Preloaded, it
//! takes their place, so that an unmodified program, libfabric with its EFA provider above all,
//! finds an EFA device where there is none:
//!
//! ```text
//! $ LD_PRELOAD=target/release/libefa_soft.so fi_info -p efa
//! ```
//!
//! ```text
//!     libfabric, or any other program
//!   ibv_…, efadv_…  │           │  calls through structures
//!  ┌────────────────▼───────────▼─────────────────────────────────────────┐
//!  │ boundary: error numbers, panics, known handles     abi: C structures │
//!  │ context ─ domain ─ completion_queue ─ queue_pair ─ work              │
//!  │ process: what is this process's own                                  │
//!  │ device ─ link ─ settings ─ sysfs ─ capture                           │
//!  │ progress: goes on while the program does something else              │
//!  └────────────────┬─────────────────────────────────────────────────────┘
//!                   ▼
//!      efa_sim: datagrams and RDMA, between the processes of a host (shm) or hosts (tcp)
//! ```
//!
//! # What the device is
//!
//! SRD and UD queue pairs, address handles, completion queues with and without the source's GID,
//! memory regions, RDMA read and write, immediate data of sends and of writes. Between processes of
//! one user: all with the same [name](settings) share a host. Or between hosts, over TCP: then a
//! host is an IP address. Device capability bits say what there is.
//!
//! What there is not: shared receive queues, completion channels, multicast, memory windows, the way
//! of a queue pair back to RESET. Asking for them gives `EOPNOTSUPP`.
//!
//! # Threads and forks
//!
//! Every function can be called by any thread at any time, as with the real libraries. No thread
//! exists before the first queue pair is ready to receive; then one goes on with the work of the
//! device whenever the program doesn't poll, as hardware would. A forked child finds a fresh device
//! list and must open its own; handles of the parent are refused there and not harmed.
//!
//! # Real devices
//!
//! They are not seen while the library is preloaded.

#![allow(unsafe_code)]

pub mod abi;
mod boundary;
mod capture;
mod completion_queue;
mod context;
mod device;
mod domain;
mod held;
mod link;
mod not_offered;
mod process;
mod progress;
mod queue_pair;
pub mod settings;
mod statistics;
mod sysfs;
mod work;

/// Runs when the process ends: removes the sysfs tree, completes the capture, prints counters.
extern "C" fn at_exit() {
    boundary::value((), || {
        if let Ok(devices) = process::process().devices.try_lock()
            && let Some(devices) = &*devices
        {
            devices.at_exit();
        }
    });
}

// SAFETY: the section holds pointers to functions without arguments, called by the loader after
// main; `at_exit` uses the standard library only in ways that need no thread-local state.
#[unsafe(link_section = ".fini_array")]
#[used]
static AT_EXIT: extern "C" fn() = at_exit;
