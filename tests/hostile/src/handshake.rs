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
    let (mut heard, mut version): (Option<u64>, Option<u32>) = (None, None);
    let (mut owed, mut sent, mut asked) = (false, false, false);
    while !input.is_empty() {
        match input.below(6) {
            0 => {
                assert_eq!(peer.packet_received().is_some(), !owed && !sent);
                owed |= !sent;
            }
            1 => {
                peer.handshake_posted();
                (owed, sent) = (false, true);
            }
            2 => {
                peer.handshake_returned();
                (owed, sent) = (true, false);
            }
            3 => {
                let words: Vec<u64> = (0..input.below(5)).map(|_| input.number(8)).collect();
                let handshake = Handshake {
                    extra_info: ExtraInfo::new(&words).expect("at most four"),
                    connid: input.one_in(2).then_some(Connid(3)),
                    host_id: None,
                    device_version: input.one_in(2).then(|| input.number(4) as u32),
                    user_recv_qp: None,
                };
                let bits = words.first().copied().unwrap_or(0);
                let expected = match heard {
                    None => Learned::First,
                    Some(before) if before == bits => Learned::Same,
                    Some(_) => Learned::Changed,
                };
                assert_eq!(peer.handshake_received(&handshake), expected);
                (heard, version) = (Some(bits), handshake.device_version);
            }
            4 => {
                peer.request_posted();
                asked = true;
            }
            _ => {
                let wanted = Extras::from_bits_retain(input.number(8));
                let support = match heard {
                    None => Support::Unknown,
                    Some(bits) if bits & wanted.bits() == wanted.bits() => Support::Yes,
                    Some(_) => Support::No,
                };
                assert_eq!(peer.supports(wanted), support);
            }
        }
        assert_eq!(peer.handshake_pending(), owed);
        assert_eq!(peer.must_elicit_handshake(), heard.is_none() && !asked);
        assert_eq!(peer.extras().map(|extras| extras.bits()), heard);
        assert_eq!((peer.is_known(), peer.device_version()), (heard.is_some(), version));
        let header = peer.address_header(&local);
        if heard.is_none() {
            assert_eq!(header, AddressHeader::Raw(local.raw_address));
            assert!(!peer.gets_connid(&local));
        }
        assert!(header != AddressHeader::Connid || local.connid);
    }
}
