//! The EFA RDM protocol v4 engine.
//!
//! An [`Endpoint`] turns a device's unordered datagrams into ordered messages of any size, tagged
//! or not, and into writes, reads and atomics on memory of peers. It is a deterministic state machine:
//! buffers go in with operations, [`poll`] moves everything on to a time that the caller gives, and
//! completions bring the buffers back.
//!
//! Sections such as 4.3 are those of the [EFA RDM protocol v4][specification].
//!
//! [specification]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
//!
//! ```text
//!                        ┌───────────────────────── Endpoint ─────────────────────────┐
//!   send, write, read ─► │ Operations ── eager│medium│longcts … ──► Core: transmit ───┼─► device
//!   receive(accept) ───► │ Matching ◄─ ordering ◄─ Core: peers ◄─ intake ◄─ inbound ◄─┼── device
//!   poll ◄────────────── │ complete            poll_event ◄─ events        statistics │
//!                        └────────────────────────────────────────────────────────────┘
//! ```
//!
//! An endpoint is four parts, each of which owns the one below it: `Endpoint` (what the application
//! calls, what comes in, the loop), `Matching` (posted receives and unexpected messages), `Operations`
//! (sends, receives and transfers under way: the subprotocols) and `Core` (peers, packets on their way
//! out, what is due, events, counters). The type of an `impl` block says which parts its functions can
//! touch.
//!
//! An endpoint on an [`InPlaceQueue`] matches nothing and copies nothing: it hands over the packets
//! that messages arrive in.
//!
//! Data flows one way: device completion → parse → peer → operation → matcher → completion. Each
//! subprotocol is a module with its sender and its receiver side: eager (one packet), medium
//! (several at once), long-CTS (windows granted by the receiver), long-read and runting read (the
//! receiver reads the sender's memory).
//!
//! # Example
//!
//! Two endpoints on a simulated network:
//!
//! ```
//! use efa_device::{Device, QueuePairOptions, Qkey, Time};
//! use efa_rdm::{Accept, Completion, Config, Endpoint, Level, Message};
//! use efa_sim::local::{LocalFabric, LocalOptions};
//!
//! let network = LocalFabric::new(LocalOptions::default());
//! let endpoint = |key| {
//!     let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(key));
//!     let queue_pair = network.open().create_queue_pair(options)?;
//!     Ok::<_, Box<dyn std::error::Error>>(Endpoint::new(queue_pair, Config::default())?)
//! };
//! let (mut alice, mut bob) = (endpoint(1)?, endpoint(2)?);
//!
//! let to_bob = alice.insert_peer(bob.address())?;
//! bob.receive(Accept::Tagged { source: None, tag: 7, ignore: 0 }, vec![0; 100_000], 1)?;
//! let buffer = vec![42; 100_000];
//! alice.send(Message { peer: to_bob, tag: Some(7), cq_data: None, level: Level::Transmit, buffer, context: 2 })?;
//!
//! let mut now = Time::ZERO;
//! let received = loop {
//!     alice.poll(now);
//!     if let Some(Completion::Receive(received)) = bob.poll(now) {
//!         break received;
//!     }
//!     now += std::time::Duration::from_micros(1);
//! };
//! assert_eq!((received.context, received.length), (1, 100_000));
//! assert_eq!(received.buffer, vec![42; 100_000]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`poll`]: Endpoint::poll

#![forbid(unsafe_code)]

mod atomic;
mod backlog;
mod bounds;
mod charges;
mod claim;
mod complete;
mod completion;
mod config;
mod connection_end;
mod core;
mod coverage;
mod delivery;
mod dispatch;
mod eager;
mod eliciting;
mod endpoint;
mod event;
mod failure;
mod front;
mod handshake;
mod hash;
mod held;
mod ids;
mod in_place;
mod in_place_queue;
mod inbound;
mod intake;
mod lists;
mod longcts;
mod longread;
mod matching;
mod medium;
mod memory;
mod operation_table;
mod operations;
mod ordering;
mod outbound;
mod payload;
mod peer;
mod peer_end;
mod peer_error;
mod plain;
mod progress;
mod rdma;
mod receive;
mod remote;
mod rma;
mod rnr;
mod rta;
mod schedule;
mod segment;
mod select;
mod send_window;
mod shape;
mod shared_matching;
mod shared_receives;
mod single_read;
mod sleep;
mod statistics;
mod storage;
mod taglist;
mod transfer;
mod transmit;
mod unexpected;
mod user_queue;
mod work;

pub use atomic::{AtomicKind, AtomicOp, Datatype};
pub use bounds::{Bounds, Excess};
pub use claim::UnexpectedMessage;
pub use completion::{
    AtomicCompletion, Completion, Level, OperationError, ReceiveCompletion, Refused, RemoteWrite,
    RmaCompletion, RmaKind, SendCompletion, StartError,
};
pub use config::{Config, ConfigError, HashSeed, UnexpectedHeader, inject_limit};
pub use efa_match::Violation;
pub use efa_proto::RmaIov;
pub use endpoint::{Accept, Endpoint, Message, PacketsHeld};
pub use event::{DropReason, Event, Origin};
pub use ids::{ClaimId, PeerId, ReceiveId};
pub use in_place::{InPlaceCompletion, MessageInPlace, ReceiveNeeds, Receiver};
pub use in_place_queue::InPlaceQueue;
pub use matching::ReceiveVacancy;
pub use memory::{AccessError, KeyedRegions, RemoteUse};
pub use payload::Payload;
pub use remote::{Remote, TooManyPieces};
pub use rma::{Read, Write};
pub use rnr::BackoffLimits;
pub use rta::{Atomic, AtomicRefused, Operands, atomic_limit};
pub use select::Subprotocol;
pub use shared_receives::{
    ReceiveSource, SharedMessage, SharedPlace, SharedPosting, SharedReceive, SharedReceives,
};
pub use statistics::{PacketCounts, Statistics};
pub use taglist::leading_tag;
