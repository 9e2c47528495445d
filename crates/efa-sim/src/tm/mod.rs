//! A device with tag matching, of which EFA has none: a model of the TM-SRQ of the RFC "RDMA tag
//! matching offload" (linux-rdma mailing list; [tag_matching.md] of rdma-core), with its senders and with
//! the software that completes it.
//!
//! [tag_matching.md]: https://github.com/linux-rdma/rdma-core/blob/master/Documentation/tag_matching.md
//!
//! ```text
//!   sender                                         receiver
//!   ┌──────────┐    ┌───────┐  packets   ┌───────┐  completions  ┌──────────────────┐
//!   │ TmSender │ ── │ RcEnd │ ─────────► │ TmSrq │ ────────────► │ TmReceiver       │
//!   └──────────┘    └───────┘ ◄───────── └───────┘ ◄──────────── │  efa_match::     │
//!    NO_TAG EAGER    no tag    reads, FIN  match list, ADD DEL SYNC│    Offload       │
//!    RNDV            matching              SRQ buffers             └──────────────────┘
//! ```
//!
//! Everything is fed and polled: no threads, no clock, and packets go where the caller puts them,
//! so that any order of events can be brought about. Buffers are owned: handed over with a command
//! or a post, and given back by the completion.
//!
//! That is a device of its own, with the proposal's transport. [`TagQueuePair`] is the same matching
//! list at the seam of EFA devices ([`efa_device`]): an EFA device as it might be, for the engine.

mod queue_pair;
mod receiver;
mod sender;
mod srq;
mod types;
mod wire;

pub use self::queue_pair::{ModelTagList, TagOf, TagQueuePair};
pub use self::receiver::{ReceiveError, Received, TmReceiver, TmReceiverOptions};
pub use self::sender::{Link, SendError, SendId, TmSender};
pub use self::srq::{TmDevice, TmSrq};
pub use self::types::{
    BadWr, Completion, CompletionQueue, Connection, CreateError, NotReady, OpsOpcode, OpsWr,
    PostOpsError, Report, SgeList, SrqInit, SrqType, Status, TaggedReceive, TmCaps, TmFlags,
    TmInfo, TmLimits, Transport,
};
pub use self::wire::{Memory, Packet, Position, RcEnd, RcEvent, ReadRefused, Region};
