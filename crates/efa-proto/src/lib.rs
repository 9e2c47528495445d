//! Packets of the EFA RDM protocol, version 4: bytes to typed views and back.
//!
//! For engines, analysers and fuzzers alike. The crate knows layouts and nothing else: no device,
//! no peers, no policy. It needs neither `std` nor an allocator, holds no `unsafe`, and whatever
//! bytes it is given it answers with a view or with a [`ParseError`], never with a panic.
//!
//! ```text
//!                     ┌─ fixed header ─┬─ rma_iov[] ─┬─ tag ─┬─ optional headers ─┬─ read_iov[] ─┐
//!   datagram:         │ type version   │  RTW RTR    │ tagged│ raw address        │ LONGREAD     │ payload
//!                     │ flags  ids …   │  RTA        │  RTM  │ cq data  connid    │ RUNTREAD     │
//!                     └────────────────┴─────────────┴───────┴────────────────────┴──────────────┘
//!   Packet::parse ──► Packet { header: Header::{Rtm, Rtw, Rtr, Rta, Cts, CtsData, …}, payload }
//!   Header::emit  ◄── the same structs, filled in by hand
//! ```
//!
//! # Parts
//!
//! | file | packets | section of the specification |
//! |---|---|---|
//! | `rtm` | EAGER, MEDIUM, LONGCTS, LONGREAD, RUNTREAD messages and their DC forms | 3.2, 4.1, 4.2, 4.5 |
//! | `rtw` | emulated write requests | 3.3, 4.1, 4.2 |
//! | `rtr` | emulated read requests | 3.3 |
//! | `rta` | atomic requests, ATOMRSP | 3.3, 4.2 |
//! | `cts` | CTS, CTSDATA | 3.2 |
//! | `response` | READRSP, EOR, RECEIPT, READ_NACK | 3.3, 4.1, 4.2, 4.7 |
//! | `handshake` | HANDSHAKE | 2.1 |
//! | `error_report` | PEER_ERROR of later peers | – |
//! | `never_sent` | types that exist only in a size table | – |
//! | `options` | optional headers of all requests, the raw address | 1.4, 3.1 |
//!
//! Beside them stands [`tm`]: the headers of the tag-matching offload, which is another protocol.
//!
//! # Rules that hold for all packets
//!
//! * All integers are little-endian. No field is assumed to be aligned.
//! * Flag bits without a meaning for the packet type are ignored by `parse` and zero in `emit`; so
//!   are padding and reserved fields. A `connid` field is padding when its flag is clear.
//! * Counts are bounded: more than [`MAX_IOV`] vectors are refused in both directions.
//! * Bytes behind the header are the [`Packet::payload`]. That is also the rule for types that have
//!   no application data (RTR, CTS, EOR, …): trailing bytes are kept there for display, mean
//!   nothing, and are no error, as later revisions may append fields.
//! * Where the specification and libfabric differ, libfabric's layout is used (READRSP has
//!   `recv_id` first, MEDIUM carries the total length, connid headers are four bytes).
//!
//! # Example
//!
//! ```
//! use efa_proto::{Header, MsgId, Packet, ReqOptions, Rtm, RtmKind};
//!
//! let request = Rtm {
//!     msg_id: MsgId(7),
//!     tag: Some(0x2a),
//!     kind: RtmKind::Eager,
//!     options: ReqOptions::NONE,
//! };
//! let mut datagram = [0; 64];
//! let header = request.emit(&mut datagram)?;
//! datagram[header..header + 5].copy_from_slice(b"hello");
//!
//! let packet = Packet::parse(&datagram[..header + 5])?;
//! assert_eq!(packet.header, Header::Rtm(request));
//! assert_eq!(packet.payload, b"hello");
//! assert_eq!(packet.to_string(), "EAGER_TAGRTM msg_id=7 tag=0x2a payload=5");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

mod address;
mod base;
mod cts;
mod cursor;
mod error;
mod error_report;
mod flags;
mod handshake;
mod ids;
mod iov;
mod never_sent;
mod options;
mod packet;
mod packet_type;
mod response;
mod rta;
mod rtm;
mod rtr;
mod rtw;
pub mod tm;
mod writer;

pub use address::{RawAddress, RawAddressForm};
pub use base::BaseHeader;
pub use cts::{Cts, CtsData};
pub use error::{EmitError, ParseError};
pub use error_report::PeerError;
pub use flags::{CtsFlags, HandshakeFlags, PacketFlags, ReqFlags};
pub use handshake::{ExtraInfo, Handshake, UserRecvQp};
pub use ids::{Connid, MsgId, OpId, Tag};
pub use iov::RmaIov;
pub use never_sent::NeverSent;
pub use options::ReqOptions;
pub use packet::{Header, Packet};
pub use packet_type::{PacketType, PacketTypeError};
pub use response::{Eor, EorForm, ReadNack, ReadRsp, Receipt};
pub use rta::{AtomRsp, Rta, RtaKind};
pub use rtm::{EagerConnid, Rtm, RtmKind};
pub use rtr::{Rtr, RtrKind};
pub use rtw::{Rtw, RtwKind};

/// Protocol version in byte 1 of every packet.
pub const VERSION: u8 = 4;

/// Length in bytes of the header that all packets begin with.
pub const BASE_HEADER_SIZE: usize = 4;

/// Most entries of an `rma_iov` or `read_iov` array, and most `extra_info` words that are sent.
///
/// Receivers of all libfabric releases copy these into arrays of four without a check.
pub const MAX_IOV: usize = 4;
