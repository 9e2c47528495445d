//! The software EFA device for programs that use libibverbs and libefa.
//!
//! `libefa_soft.so` exports the functions of both libraries on top of [`efa_sim`]. Preloaded, it
//! replaces them, so that an unmodified program, for example libfabric with its EFA provider, finds an
//! EFA device on any machine:
//!
//! ```text
//! $ LD_PRELOAD=target/release/libefa_soft.so fi_info -p efa
//! ```
//!
//! ```text
//!     libfabric, or any other program
//!   ibv_…, efadv_…  │           │  calls through structures
//!  ┌────────────────▼───────────▼──────────────────────────────────────────┐
//!  │ c: the entry points, one file per kind of object; abi: C structures   │
//!  │ boundary: error numbers, panics                                       │
//!  ├───────────────────────────────────────────────────────────────────────┤
//!  │ queue_pair (state, outstanding, data_path), completion_queue          │
//!  │ work_request, completion, channel, memory, domain, attributes         │
//!  │ direct: rings that the program writes and reads without calls         │
//!  │ process: handles, forks  progress, sleepers: thread for idle programs │
//!  │ device ─ link ─ settings ─ sysfs ─ capture ─ statistics ─ message     │
//!  └────────────────┬──────────────────────────────────────────────────────┘
//!                   ▼
//!      efa_sim: datagrams and RDMA, between the processes of a host (shm) or hosts (tcp)
//! ```
//!
//! Programs that open `libibverbs.so.1` and `libefa.so.1` by name don't ask a preloaded library. For them
//! [`efa_soft_names::libraries`] writes libraries of these names, whose functions jump to those of this one.
//!
//! # What the device offers
//!
//! SRD and UD queue pairs, address handles, completion queues with and without the sender's GID,
//! memory regions, also of files (dmabuf), RDMA read and write, immediate data of sends and writes. On the shm link between
//! processes of one user: all with the same [name](settings) are on one host. On the tcp link between
//! hosts, each with its IP address. The device's capability bits say which RDMA operations it offers.
//!
//! Completion channels, on which a program sleeps until a completion queue has something. As with the real
//! libefa, notification of solicited completions alone fails with `EOPNOTSUPP`.
//!
//! Completion counters of the operations of this side, if the [settings] ask for them.
//!
//! A queue pair that is moved back to RESET keeps its number. What was outstanding ends without completions, and
//! completions of before that weren't polled are gone; those in a [ring](direct) stay there.
//!
//! It doesn't offer shared receive queues, multicast and memory windows, and doesn't resize completion queues, as no
//! interface and libefa do. These fail with `EOPNOTSUPP`.
//!
//! # Threads and forks
//!
//! Any thread may call any function at any time, as with the real libraries. The library starts no
//! thread before the first queue pair is ready to receive; then one makes progress for the program
//! while it doesn't poll, as hardware would. It looks every 1 to 16 ms; at idle queue pairs of the tcp link, or of a
//! completion queue with a channel, only when their link has something, and once a second. For queue pairs whose rings a program
//! writes ([`direct`]) another thread watches the doorbells, or the doorbells trap. A forked child has a device list of
//! its own and must open its own devices; it can't use handles of its parent, and can't harm them.
//!
//! # Signals
//!
//! A handler that interrupts a call of the library and calls it again, mostly by `exit()` with libfabric's
//! destructor, gets `EDEADLK`, and a poll finds nothing: the interrupted call can't go on meanwhile. Calls that
//! destroy wait some seconds at most for a lock of another thread, and then fail with `EBUSY`. What is left the
//! kernel frees when the process ends.
//!
//! # Messages
//!
//! Programs get error numbers. Where those don't show the cause, a line `efa-soft: …` on standard error
//! does, once per process.
//!
//! # Real devices
//!
//! They are invisible while the library is preloaded.

#![deny(unsafe_code)]

pub mod abi;
mod attributes;
mod boundary;
#[allow(unsafe_code)]
mod c;
mod capture;
mod channel;
#[allow(unsafe_code)]
mod clock;
mod completion;
mod completion_queue;
mod counter;
mod device;
pub mod direct;
mod domain;
pub mod generation;
pub mod limits;
mod link;
#[allow(unsafe_code)]
mod memory;
mod message;
#[allow(unsafe_code)]
mod process;
mod progress;
mod queue_pair;
#[allow(unsafe_code)]
mod scheduling;
pub mod settings;
mod sleepers;
mod spin_lock;
mod stack;
mod statistics;
mod sysfs;
mod work_request;
