//! The handshake state after any sequence of packets, compared with the last HANDSHAKE received.

use efa_handshake::{
    AddressHeader, DeviceAbilities, Extras, Learned, PeerState, Profile, Release, Support,
};
use efa_proto::{Connid, ExtraInfo, Handshake};

use crate::input::Input;

pub(crate) fn run(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let abilities = input.byte();
    let device = DeviceAbilities {
        rdma_read: abilities & 1 == 0,
        rdma_write: abilities & 2 == 0,
        unsolicited_write_receive: abilities & 4 == 0,
    };
    let local = Profile::with_device(input.pick(&Release::ALL), device);
    let mut peer = PeerState::new();
    let (mut announced_bits, mut version): (Option<u64>, Option<u32>) = (None, None);
    let (mut response_pending, mut sent, mut elicited) = (false, false, false);
    while !input.is_empty() {
        match input.below(6) {
            0 => {
                assert_eq!(peer.packet_received().is_some(), !response_pending && !sent);
                response_pending |= !sent;
            }
            1 => {
                peer.handshake_posted();
                (response_pending, sent) = (false, true);
            }
            2 => {
                peer.handshake_returned();
                (response_pending, sent) = (true, false);
            }
            3 => {
                let words: Vec<u64> = (0..input.below(5)).map(|_| input.number(8)).collect();
                let handshake = Handshake {
                    extra_info: ExtraInfo::new(&words).expect("at most four"),
                    connid: input.one_in(2).then_some(Connid(3)),
                    host_id: None,
                    device_version: input.one_in(2).then(|| input.number(4) as u32),
                    user_recv_qp: None,
                    hmem_p2p: None,
                };
                let bits = words.first().copied().unwrap_or(0);
                let expected = match announced_bits {
                    None => Learned::First,
                    Some(before) if before == bits => Learned::Same,
                    Some(_) => Learned::Changed,
                };
                assert_eq!(peer.handshake_received(&handshake), expected);
                (announced_bits, version) = (Some(bits), handshake.device_version);
            }
            4 => {
                peer.request_posted();
                elicited = true;
            }
            _ => {
                let wanted = Extras::from_bits_retain(input.number(8));
                let support = match announced_bits {
                    None => Support::Unknown,
                    Some(bits) if bits & wanted.bits() == wanted.bits() => Support::Yes,
                    Some(_) => Support::No,
                };
                assert_eq!(peer.supports(wanted), support);
            }
        }
        assert_eq!(peer.handshake_pending(), response_pending);
        assert_eq!(peer.must_elicit_handshake(), announced_bits.is_none() && !elicited);
        assert_eq!(peer.extras().map(|extras| extras.bits()), announced_bits);
        assert_eq!((peer.is_known(), peer.device_version()), (announced_bits.is_some(), version));
        let header = peer.address_header(&local);
        if announced_bits.is_none() {
            assert_eq!(header, AddressHeader::Raw(local.raw_address));
            assert!(!peer.gets_connid(&local));
        }
        assert!(header != AddressHeader::Connid || local.connid);
    }
}
