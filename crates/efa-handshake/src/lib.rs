//! What an EFA RDM peer can do and wants: extra features and requests, and how the endpoints
//! learn of them (specification section 2).
//!
//! Every endpoint masters the ten baseline features. Anything beyond is an *extra feature* ("I
//! can") or an *extra request* ("please do"), announced as a bit in a HANDSHAKE packet. This
//! crate holds the bits ([`Extras`]), what each libfabric release line announces and does
//! ([`Release`], [`Profile`]), and for each peer a small state machine without I/O
//! ([`PeerState`]):
//!
//! ```text
//!            first packet of any type arrives            HANDSHAKE accepted by the device
//!   Silent ───────────────────────────────────► Owed ───────────────────────────────────► Sent
//!                                                ▲                                          │
//!                                                └────── came back: receiver not ready ─────┘
//!
//!   Unknown ── HANDSHAKE arrives ──► Known(extras)      (a second HANDSHAKE replaces the first)
//! ```
//!
//! # Example
//!
//! ```
//! use efa_handshake::{AddressHeader, Extras, PeerState, Profile, Release, Reply, Support};
//! use efa_proto::{ExtraInfo, Handshake};
//!
//! let local = Profile::of(Release::V2_6);
//! let mut peer = PeerState::new();
//! // Nothing is known yet, so requests carry the raw address.
//! assert!(matches!(peer.address_header(&local), AddressHeader::Raw(_)));
//! // The first packet from the peer obliges us to answer with a HANDSHAKE, once.
//! assert_eq!(peer.packet_received(), Some(Reply::Handshake));
//! assert_eq!(peer.packet_received(), None);
//! // The peer's own HANDSHAKE tells what it can do.
//! let words = [Extras::CONNID_HEADER.bits()];
//! peer.handshake_received(&Handshake { extra_info: ExtraInfo::new(&words)?,
//!     connid: None, host_id: None, device_version: None, user_recv_qp: None });
//! assert_eq!(peer.supports(Extras::CONNID_HEADER), Support::Yes);
//! assert_eq!(peer.supports(Extras::READ_NACK), Support::No);
//! assert_eq!(peer.address_header(&local), AddressHeader::Connid);
//! # Ok::<(), efa_proto::EmitError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

mod extras;
mod peer;
mod release;

pub use extras::{ExtraKind, Extras};
pub use peer::{AddressHeader, Learned, PeerState, Reply, Support};
pub use release::{DeviceAbilities, EorLayout, Profile, Release};
