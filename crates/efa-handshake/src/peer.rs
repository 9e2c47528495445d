//! The handshake with one peer, specification sections 2.1 to 2.3.

use efa_proto::{Handshake, RawAddressForm};

use crate::{Extras, Profile};

/// What has to be sent in response to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reply {
    /// A HANDSHAKE.
    Handshake,
}

/// Whether a peer announced a feature or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Its HANDSHAKE has the bit.
    Yes,
    /// Its HANDSHAKE lacks the bit.
    No,
    /// No HANDSHAKE has arrived yet: only baseline features may be used.
    Unknown,
}

/// How a request identifies its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// By the raw address: the peer may not know this endpoint yet, or requests headers of constant length.
    Raw(RawAddressForm),
    /// By the connid.
    Connid,
    /// Not at all: the peer looks up the device's source address.
    Absent,
}

/// What a HANDSHAKE changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is the first HANDSHAKE of this peer.
    First,
    /// It announces the same bits as the one before.
    Same,
    /// It announces other bits than the one before, and replaces them.
    Changed,
}

/// Our HANDSHAKE to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ours {
    /// The peer has sent no packet.
    #[default]
    NotNeeded,
    /// It has to be sent.
    Pending,
    /// The device has taken it.
    Sent,
}

/// The state of the handshake with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    theirs: Option<Extras>,
    device_version: Option<u32>,
    ours: Ours,
    /// A request was sent that the peer answers with its HANDSHAKE.
    elicited: bool,
}

impl PeerState {
    /// The state of a peer from which no packet has arrived.
    #[must_use]
    pub const fn new() -> Self {
        Self { theirs: None, device_version: None, ours: Ours::NotNeeded, elicited: false }
    }

    /// Records a packet of any type from the peer; the first one is answered with a HANDSHAKE.
    #[inline]
    pub fn packet_received(&mut self) -> Option<Reply> {
        if self.is_answered() {
            return None;
        }
        self.ours = Ours::Pending;
        Some(Reply::Handshake)
    }

    /// Whether our HANDSHAKE is pending or sent, so that packets of the peer need no response.
    #[must_use]
    #[inline]
    pub fn is_answered(&self) -> bool {
        self.ours != Ours::NotNeeded
    }

    /// Records that the device took our HANDSHAKE.
    pub fn handshake_posted(&mut self) {
        self.ours = Ours::Sent;
    }

    /// Records that our HANDSHAKE failed with receiver not ready (RNR): it is pending again.
    pub fn handshake_returned(&mut self) {
        self.ours = Ours::Pending;
    }

    /// Whether our HANDSHAKE has to be sent.
    #[must_use]
    pub fn handshake_pending(&self) -> bool {
        self.ours == Ours::Pending
    }

    /// Records the peer's HANDSHAKE. Of several, the latest counts.
    pub fn handshake_received(&mut self, handshake: &Handshake<'_>) -> Learned {
        let extras = Extras::from_bits_retain(handshake.extra_info.word(0));
        let learned = match self.theirs {
            None => Learned::First,
            Some(known) if known == extras => Learned::Same,
            Some(_) => Learned::Changed,
        };
        self.theirs = Some(extras);
        self.device_version = handshake.device_version;
        learned
    }

    /// Records that a request was sent, which the peer answers with a HANDSHAKE.
    #[inline]
    pub fn request_posted(&mut self) {
        self.elicited = true;
    }

    /// Whether a request was posted to the peer.
    #[must_use]
    pub fn was_requested(&self) -> bool {
        self.elicited
    }

    /// Whether an empty request has to be sent to elicit the peer's HANDSHAKE: none arrived, and no
    /// request was sent.
    #[must_use]
    pub fn must_elicit_handshake(&self) -> bool {
        self.theirs.is_none() && !self.elicited
    }

    /// Whether the peer's HANDSHAKE has arrived.
    #[must_use]
    #[inline]
    pub fn is_known(&self) -> bool {
        self.theirs.is_some()
    }

    /// The bits that the peer announced.
    #[must_use]
    pub fn extras(&self) -> Option<Extras> {
        self.theirs
    }

    /// The peer's device version, if its HANDSHAKE had one.
    #[must_use]
    pub fn device_version(&self) -> Option<u32> {
        self.device_version
    }

    /// Whether the peer announced all of `extras`.
    #[must_use]
    pub fn supports(&self, extras: Extras) -> Support {
        match self.theirs {
            None => Support::Unknown,
            Some(theirs) if theirs.contains(extras) => Support::Yes,
            Some(_) => Support::No,
        }
    }

    /// How requests to this peer identify their sender (sections 2.2, 3.1, 4.3, 4.4).
    ///
    /// By the raw address until the peer's HANDSHAKE shows that it has the address, and always if the
    /// peer requests headers of constant length; then by the connid, if the peer requests it.
    #[must_use]
    #[inline]
    pub fn address_header(&self, local: &Profile) -> AddressHeader {
        match self.theirs {
            None => AddressHeader::Raw(local.raw_address),
            Some(theirs)
                if local.constant_header && theirs.contains(Extras::CONSTANT_HEADER_LENGTH) =>
            {
                AddressHeader::Raw(local.raw_address)
            }
            Some(_) if self.gets_connid(local) => AddressHeader::Connid,
            Some(_) => AddressHeader::Absent,
        }
    }

    /// Whether packets with an optional connid field carry it to this peer: CTSDATA, and requests
    /// without raw address.
    ///
    /// Never before the peer's HANDSHAKE: releases up to 1.13 ignore the flag and would read the connid
    /// as data.
    #[must_use]
    #[inline]
    pub fn gets_connid(&self, local: &Profile) -> bool {
        let requested = |theirs: Extras| theirs.contains(Extras::CONNID_HEADER);
        local.connid && self.theirs.is_some_and(|theirs| local.connid_unasked || requested(theirs))
    }
}

#[cfg(test)]
mod tests {
    use efa_proto::ExtraInfo;

    use super::*;
    use crate::Release;

    fn handshake(words: &[u64]) -> Handshake<'static> {
        Handshake {
            extra_info: ExtraInfo::new(words).unwrap(),
            connid: None,
            host_id: None,
            device_version: None,
            user_recv_qp: None,
            hmem_p2p: None,
        }
    }

    // conformance: A35 A39
    #[test]
    fn support_is_unknown_before_the_handshake_and_its_bits_after() {
        for bits in 0..1_u64 << 10 {
            let mut peer = PeerState::new();
            let bit = |i: u64| Extras::from_bits_retain(1 << i);
            assert!((0..10).all(|i| peer.supports(bit(i)) == Support::Unknown));
            assert_eq!(peer.handshake_received(&handshake(&[bits])), Learned::First);
            for i in 0..10 {
                let expected = if bits >> i & 1 == 1 { Support::Yes } else { Support::No };
                assert_eq!(peer.supports(bit(i)), expected);
            }
        }
    }

    // conformance: A37
    #[test]
    fn handshake_of_new_peer_is_answered_once() {
        let (mut a, mut b) = (PeerState::new(), PeerState::new());
        // A's request reaches B, whose HANDSHAKE reaches A, whose HANDSHAKE reaches B: two in all.
        assert_eq!(b.packet_received(), Some(Reply::Handshake));
        b.handshake_posted();
        assert_eq!(a.packet_received(), Some(Reply::Handshake));
        assert_eq!(a.handshake_received(&handshake(&[8])), Learned::First);
        a.handshake_posted();
        assert_eq!(b.packet_received(), None);
        assert_eq!(b.handshake_received(&handshake(&[8])), Learned::First);
        assert!(a.is_known() && b.is_known());
    }

    // conformance: A60
    #[test]
    fn second_handshake_replaces_the_first() {
        let mut peer = PeerState::new();
        assert!(!peer.is_known());
        assert_eq!((peer.extras(), peer.device_version()), (None, None));
        let versioned = Handshake { device_version: Some(0xefa1), ..handshake(&[8]) };
        assert_eq!(peer.handshake_received(&versioned), Learned::First);
        assert_eq!(peer.device_version(), Some(0xefa1));
        assert_eq!(peer.handshake_received(&handshake(&[8])), Learned::Same);
        assert_eq!(peer.device_version(), None, "the latest counts");
        assert_eq!(peer.handshake_received(&handshake(&[9])), Learned::Changed);
        assert!(peer.is_known());
        assert_eq!(peer.extras().map(|e| e.bits()), Some(9));
    }

    // conformance: A49 A54
    #[test]
    fn handshake_with_unknown_bits_or_no_words_is_accepted() {
        let mut peer = PeerState::new();
        assert_eq!(peer.handshake_received(&handshake(&[1 << 40, 7])), Learned::First);
        assert_eq!(peer.extras().map(|e| e.bits()), Some(1 << 40));
        assert_eq!(peer.handshake_received(&handshake(&[])), Learned::Changed);
        assert_eq!(peer.supports(Extras::RDMA_READ), Support::No);
    }

    #[test]
    fn handshake_returned_with_rnr_is_pending_again() {
        let mut peer = PeerState::new();
        assert!(!peer.handshake_pending());
        assert_eq!(peer.packet_received(), Some(Reply::Handshake));
        assert!(peer.handshake_pending());
        peer.handshake_posted();
        assert!(!peer.handshake_pending());
        peer.handshake_returned();
        assert!(peer.handshake_pending());
    }

    #[test]
    fn handshake_is_elicited_only_if_no_request_was_sent() {
        let mut peer = PeerState::new();
        assert!(peer.must_elicit_handshake());
        peer.request_posted();
        assert!(!peer.must_elicit_handshake());
        let mut other = PeerState::new();
        other.handshake_received(&handshake(&[0]));
        assert!(!other.must_elicit_handshake());
    }

    // conformance: A42
    #[test]
    fn address_header_follows_peer_requests_that_the_release_honours() {
        let header = |release, extras: Extras| {
            let mut peer = PeerState::new();
            peer.handshake_received(&handshake(&[extras.bits()]));
            peer.address_header(&Profile::of(release))
        };
        let connid = Extras::CONNID_HEADER;
        let constant = Extras::CONSTANT_HEADER_LENGTH;
        assert_eq!(header(Release::V1_12, constant), AddressHeader::Absent);
        assert_eq!(header(Release::V1_13, constant), AddressHeader::Raw(RawAddressForm::Padded));
        assert_eq!(header(Release::V1_13, connid), AddressHeader::Absent);
        assert_eq!(header(Release::V1_14, connid), AddressHeader::Connid);
        assert_eq!(header(Release::V2_0, Extras::empty()), AddressHeader::Absent);
        assert_eq!(header(Release::V2_6, Extras::empty()), AddressHeader::Connid);
        assert_eq!(
            header(Release::V1_14, connid | constant),
            AddressHeader::Raw(RawAddressForm::Padded)
        );
        let unknown = PeerState::new();
        for release in Release::ALL {
            assert!(!unknown.gets_connid(&Profile::of(release)));
            let form = Profile::of(release).raw_address;
            assert_eq!(unknown.address_header(&Profile::of(release)), AddressHeader::Raw(form));
        }
    }
}
