//! Packets of the [EFA RDM protocol], version 4: bytes to typed views and back.
//!
//! For protocol engines, analysers and fuzzers. The crate has the packet layouts only: no device, no
//! peers, no policy. It needs neither `std` nor an allocator, has no `unsafe`, and for any bytes
//! returns a view or a [`ParseError`]; it never panics.
//!
//! [EFA RDM protocol]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
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
//! # Where to find what
//!
//! [`Packet::parse`] splits a datagram into a [`Header`] and the payload. The types of headers and their parts:
//!
//! | type | packets | section of the specification |
//! |---|---|---|
//! | [`Rtm`] | message requests: EAGER, MEDIUM, LONGCTS, LONGREAD, RUNTREAD and their DC forms | 3.2, 4.1, 4.2, 4.5 |
//! | [`Rtw`] | emulated write requests | 3.3, 4.1, 4.2 |
//! | [`Rtr`] | emulated read requests | 3.3 |
//! | [`Rta`], [`AtomRsp`] | atomic requests and their response | 3.3, 4.2 |
//! | [`Cts`], [`CtsData`] | a receiver's grant, and a segment sent under it | 3.2 |
//! | [`ReadRsp`], [`Eor`], [`Receipt`], [`ReadNack`] | responses | 3.3, 4.1, 4.2, 4.7 |
//! | [`Handshake`] | extra features and requests of the sender | 2.1 |
//! | [`PeerError`], [`PeerErrorReport`] | an operation failed at the peer (after libfabric 2.6) | – |
//! | [`NeverSent`] | types that no release sends | – |
//! | [`ReqOptions`], [`RawAddress`] | optional headers of all requests | 1.4, 3.1 |
//!
//! [`PacketType`] has the name and number of each type, [`BaseHeader`] the raw flags, [`Header::connid`]
//! and [`Header::raw_address`] the sender's identity. Fields that several types have are methods of
//! [`Header`], whatever the type: [`msg_id`](Header::msg_id), [`send_id`](Header::send_id),
//! [`recv_id`](Header::recv_id), [`tag`](Header::tag), [`msg_length`](Header::msg_length),
//! [`seg_offset`](Header::seg_offset), [`options`](Header::options), [`cq_data`](Header::cq_data);
//! [`Header::for_each_field`] gives all fields by name. [`tm`] is
//! another protocol: the headers of the tag-matching offload.
//!
//! Packets of one operation are related by their ids. All packets of a message have its `msg_id`, except
//! CTS, CTSDATA, READRSP, READ_NACK and EOR, which name the sender's operation (`send_id`), the receiver's
//! (`recv_id`) or both; a CTS has both.
//!
//! To read captures of the software device, see `docs/capture.md` of the repository (a pcapng link type
//! with a 40-byte pseudo header before each datagram), and `examples/decode.rs` for packets in hexadecimal.
//!
//! # Without `std`
//!
//! The crate is always `no_std` and has no features to set. `tests/no-std` of the repository is a static
//! library without `std`, which the tests build.
//!
//! # Rules that hold for all packets
//!
//! * All integers are little-endian. No field is assumed to be aligned.
//! * `parse` ignores flag bits that have no meaning for the packet type, padding and reserved fields;
//!   `emit` writes them as zero. A `connid` field is padding if its flag is clear.
//! * Counts are bounded: more than [`MAX_IOV`] vectors are refused in both directions.
//! * Bytes behind the header are the [`Packet::payload`], also for types without application data (RTR,
//!   CTS, EOR, …): there they have no meaning and are no error, as later revisions may append fields.
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
mod fields;
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
mod value;
mod writer;

pub use address::{RawAddress, RawAddressForm};
pub use base::BaseHeader;
pub use cts::{Cts, CtsData};
pub use error::{EmitError, ParseError};
pub use error_report::{PeerError, PeerErrorForm, PeerErrorReport};
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
pub use rtm::{EagerConnid, LongReadConnid, MediumConnid, Rtm, RtmKind};
pub use rtr::{Rtr, RtrKind};
pub use rtw::{Rtw, RtwKind};
pub use value::FieldValue;

/// Protocol version in byte 1 of every packet.
pub const VERSION: u8 = 4;

/// Length in bytes of the header that all packets begin with.
pub const BASE_HEADER_SIZE: usize = 4;

/// Most entries of an `rma_iov` or `read_iov` array, and most `extra_info` words that are sent.
///
/// Receivers of all libfabric releases copy these into arrays of four without a check.
pub const MAX_IOV: usize = 4;
