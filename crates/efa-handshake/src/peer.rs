//! The handshake with one peer, specification sections 2.1 to 2.3.

use efa_proto::{Handshake, RawAddressForm};

use crate::{Extras, Profile};

/// What a peer obliges us to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reply {
    /// Send it a HANDSHAKE.
    Handshake,
}

/// Whether the peer can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Its HANDSHAKE says so.
    Yes,
    /// Its HANDSHAKE lacks the bit.
    No,
    /// No HANDSHAKE has come yet: only the baseline may be used.
    Unknown,
}

/// How a request tells who sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHeader {
    /// By the raw address: the peer may not know us yet, or wants headers of constant length.
    Raw(RawAddressForm),
    /// By the connid.
    Connid,
    /// Not at all: the peer knows us from the device's address book.
    Absent,
}

/// What a HANDSHAKE changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It was the first.
    First,
    /// It repeated what was known.
    Same,
    /// It announced other bits than the one before, and replaced it.
    Changed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ours {
    #[default]
    Silent,
    Owed,
    Sent,
}

/// The state of the handshake with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerState {
    theirs: Option<Extras>,
    device_version: Option<u32>,
    ours: Ours,
    provoked: bool,
}

impl PeerState {
    /// The state with a peer of which nothing was heard.
    #[must_use]
    pub const fn new() -> Self {
        Self { theirs: None, device_version: None, ours: Ours::Silent, provoked: false }
    }

    /// A packet of any type came from the peer; the first one obliges us to answer.
    #[inline]
    pub fn packet_received(&mut self) -> Option<Reply> {
        if self.is_answered() {
            return None;
        }
        self.ours = Ours::Owed;
        Some(Reply::Handshake)
    }

    /// Whether our HANDSHAKE is on its way or sent, so that packets of the peer oblige to nothing.
    #[must_use]
    #[inline]
    pub fn is_answered(&self) -> bool {
        self.ours != Ours::Silent
    }

    /// The device took our HANDSHAKE.
    pub fn handshake_posted(&mut self) {
        self.ours = Ours::Sent;
    }

    /// Our HANDSHAKE came back because the peer was not ready: it is owed again.
    pub fn handshake_returned(&mut self) {
        self.ours = Ours::Owed;
    }

    /// Whether the peer still waits for our HANDSHAKE.
    #[must_use]
    pub fn handshake_pending(&self) -> bool {
        self.ours == Ours::Owed
    }

    /// The peer's HANDSHAKE came. It may come more than once; the newest counts.
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

    /// Something was sent that the peer will answer with a HANDSHAKE.
    #[inline]
    pub fn request_posted(&mut self) {
        self.provoked = true;
    }

    /// Whether a HANDSHAKE has to be provoked, because none came and nothing was sent that the
    /// peer would answer.
    #[must_use]
    pub fn must_elicit_handshake(&self) -> bool {
        self.theirs.is_none() && !self.provoked
    }

    /// Whether the peer's HANDSHAKE came.
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

    /// Whether the peer can do, or asks for, all of `extras`.
    #[must_use]
    pub fn supports(&self, extras: Extras) -> Support {
        match self.theirs {
            None => Support::Unknown,
            Some(theirs) if theirs.contains(extras) => Support::Yes,
            Some(_) => Support::No,
        }
    }

    /// How requests to this peer tell who sends them (sections 2.2, 3.1, 4.3, 4.4).
    ///
    /// The raw address until the peer's HANDSHAKE proves that it holds it, or for ever if the
    /// peer wants headers of constant length; then the connid, if the peer asks for it.
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

    /// Whether packets to this peer that have an optional place for the connid carry it: CTSDATA,
    /// and requests without raw address.
    ///
    /// Releases up to 1.13 don't know the flag and would take the connid for data, so never before
    /// the peer's HANDSHAKE.
    #[must_use]
    #[inline]
    pub fn gets_connid(&self, local: &Profile) -> bool {
        let asked = |theirs: Extras| theirs.contains(Extras::CONNID_HEADER);
        local.connid && self.theirs.is_some_and(|theirs| local.connid_unasked || asked(theirs))
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
        }
    }

    // conformance: A35 A39
    #[test]
    fn nothing_is_assumed_before_the_handshake_and_only_its_bits_after() {
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
    fn a_handshake_counts_as_a_first_packet_and_is_answered_once() {
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
    fn a_second_handshake_is_idempotent_or_replaces_the_first() {
        let mut peer = PeerState::new();
        assert!(!peer.is_known());
        assert_eq!((peer.extras(), peer.device_version()), (None, None));
        let versioned = Handshake { device_version: Some(0xefa1), ..handshake(&[8]) };
        assert_eq!(peer.handshake_received(&versioned), Learned::First);
        assert_eq!(peer.device_version(), Some(0xefa1));
        assert_eq!(peer.handshake_received(&handshake(&[8])), Learned::Same);
        assert_eq!(peer.device_version(), None, "the newest counts");
        assert_eq!(peer.handshake_received(&handshake(&[9])), Learned::Changed);
        assert!(peer.is_known());
        assert_eq!(peer.extras().map(|e| e.bits()), Some(9));
    }

    // conformance: A49 A54
    #[test]
    fn a_handshake_without_options_and_with_unknown_bits_is_taken() {
        let mut peer = PeerState::new();
        assert_eq!(peer.handshake_received(&handshake(&[1 << 40, 7])), Learned::First);
        assert_eq!(peer.extras().map(|e| e.bits()), Some(1 << 40));
        assert_eq!(peer.handshake_received(&handshake(&[])), Learned::Changed);
        assert_eq!(peer.supports(Extras::RDMA_READ), Support::No);
    }

    #[test]
    fn a_returned_handshake_is_owed_again() {
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
    fn a_handshake_is_provoked_only_if_nothing_else_does() {
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
    fn requests_change_the_address_header_where_we_comply() {
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
