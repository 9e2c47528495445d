//! The handshake of the EFA RDM protocol (specification section 2): the extra features that a peer
//! supports, and the extra requests that it makes.
//!
//! Sections are those of the [EFA RDM protocol v4][specification].
//!
//! [specification]: https://github.com/ofiwg/libfabric/blob/main/prov/efa/docs/efa_rdm_protocol_v4.md
//!
//! Every endpoint has the ten baseline features. Anything beyond them is an *extra feature* ("I
//! can") or an *extra request* ("please do"), announced as a bit in a HANDSHAKE packet. This
//! crate holds the bits ([`Extras`]), the wire-compatibility profile of each libfabric release line
//! ([`Release`], [`Profile`]), and the handshake with one peer as a state machine without I/O
//! ([`PeerState`]). Its state for our HANDSHAKE, and for the peer's:
//!
//! ```text
//!               first packet of any type arrives             HANDSHAKE accepted by the device
//!   NotNeeded ───────────────────────────────────► Pending ───────────────────────────────────► Sent
//!                                                     ▲                                          │
//!                                                     └──── returned: receiver not ready (RNR) ──┘
//!
//!   unknown ── HANDSHAKE arrives ──► known extras      (a second HANDSHAKE replaces the first)
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
//! // The peer's features are unknown, so requests carry the raw address.
//! assert!(matches!(peer.address_header(&local), AddressHeader::Raw(_)));
//! // The first packet from the peer is answered with a HANDSHAKE, once.
//! assert_eq!(peer.packet_received(), Some(Reply::Handshake));
//! assert_eq!(peer.packet_received(), None);
//! // The peer's own HANDSHAKE announces its features.
//! let words = [Extras::CONNID_HEADER.bits()];
//! peer.handshake_received(&Handshake { extra_info: ExtraInfo::new(&words)?,
//!     connid: None, host_id: None, device_version: None, user_recv_qp: None, hmem_p2p: None });
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
