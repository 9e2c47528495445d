//! The direct data path: rings in memory that programs write and read without calling the library.
//!
//! A program that calls `efadv_query_cq` and `efadv_query_qp_wqs` gets the addresses of rings and doorbells. It
//! writes descriptors of requests, rings a doorbell with the number of requests so far, and finds completions by
//! their phase bit. libfabric's EFA provider does so by default since 2.3.
//!
//! ```text
//!   program                                             device
//!   ┌────────────┐ descriptors   ┌──────────────┐ read by   ┌────────────────────────────────┐
//!   │ fi_send …  │──────────────►│ send ring    │──────────►│ queue_pair::rings              │
//!   │            │──────────────►│ receive ring │           │   └► the same requests as by   │
//!   │            │ counts        ├──────────────┤           │      ibv_post_send, ibv_wr_…   │
//!   │            │──────────────►│ doorbells    │──────────►│                                │
//!   │ fi_cq_read │◄──────────────│ completion   │◄──────────│ completion_queue               │
//!   └────────────┘ phase bit     │ ring         │ written   └────────────────────────────────┘
//!                                └──────────────┘
//! ```
//!
//! | part | file |
//! |---|---|
//! | layouts of descriptors | [`send`], [`receive`], [`completion`] |
//! | memory shared with the program | `memory` |
//! | rings | `ring` |
//! | the doorbell that asks for an event | `arming` |
//! | the thread that watches doorbells and links | `watcher` |
//! | doorbells that trap | `trap`, `store` |
//!
//! A completion queue with a channel has a doorbell too: by it the program says how many completions it has taken, and
//! asks for an event before it sleeps.
//!
//! What a program writes is checked: a wrong descriptor completes with an error, a doorbell that counts more
//! requests than the ring has moves the queue pair to ERR.

pub(crate) mod arming;
pub mod completion;
#[allow(unsafe_code)]
pub(crate) mod memory;
pub mod receive;
pub(crate) mod ring;
pub mod send;
pub(crate) mod store;
#[allow(unsafe_code)]
pub(crate) mod trap;
pub(crate) mod watcher;
