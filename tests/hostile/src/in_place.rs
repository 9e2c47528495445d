//! An endpoint that receives messages in place from an honest and a hostile peer: each honest message is
//! received once and intact, or refused for its header where the endpoint does that, and each receive completes once.

use std::collections::BTreeSet;
use std::time::Duration;

use efa_device::{Device, Qkey, QueuePair, QueuePairOptions, Time};
use efa_handshake::Release;
use efa_proto::{Connid, Header, MsgId, RawAddress, RawAddressForm, ReqOptions, Rtm, RtmKind};
use efa_rdm::{
    Bounds, Config, DropReason, Endpoint, Event, InPlaceQueue, Level, Message, OperationError,
    Origin, UnexpectedHeader,
};
use efa_sim::local::{LocalFabric, LocalOptions, LocalQueuePair};

use crate::headers::Fields;
use crate::input::Input;

type InPlace = Endpoint<InPlaceQueue<LocalQueuePair>, Vec<u8>>;

const MTU: usize = 512;
/// Bytes of an honest message.
const LENGTH: usize = 100;
const STEPS: usize = 100;

/// A receiver in place, an honest sender and a hostile peer.
struct Scene {
    network: LocalFabric,
    subject: InPlace,
    honest: Endpoint<LocalQueuePair, Vec<u8>>,
    hostile: LocalQueuePair,
    now: Time,
    sent: u64,
    arrived: BTreeSet<u64>,
    /// How many honest messages failed a receive because of their header.
    refused: u64,
    posted: u64,
    completed: BTreeSet<u64>,
    sent_by_hostile: u64,
    /// Connid of the hostile peer's incarnation; at first the true one.
    connid: u32,
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let seed: u64 = input.byte().into();
        let network = LocalFabric::new(LocalOptions::default().with(|options| {
            options.seed = seed;
            options.mtu = MTU;
        }));
        let device = network.open();
        let queue_pair = |key| {
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(key));
            device.create_queue_pair(options).expect("within the limits")
        };
        let release = input.pick(&[Release::V1_20, Release::V1_22, Release::V1_13, Release::V2_0]);
        let bounds = Bounds::default().with(|bounds| {
            bounds.unexpected_per_peer = 1 << 16;
            bounds.discovered = 16;
        });
        let moves = seed.is_multiple_of(2);
        let unexpected_header =
            if moves { UnexpectedHeader::Move } else { UnexpectedHeader::Refuse };
        let config = Config::as_release(release).with(|config| {
            config.unexpected_header = unexpected_header;
            config.bounds = bounds;
        });
        let main = InPlaceQueue(queue_pair(1));
        let subject = match release {
            Release::V1_22 | Release::V2_0 => {
                Endpoint::with_user_queue(main, InPlaceQueue(queue_pair(2)), config)
            }
            _ => Endpoint::new(main, config),
        };
        let other = |key| {
            let options = QueuePairOptions::default().with(|options| options.qkey = Qkey(key));
            network.open().create_queue_pair(options).expect("within the limits")
        };
        let honest = Endpoint::new(other(3), Config::default());
        Self {
            subject: subject.expect("the configuration is valid"),
            honest: honest.expect("the configuration is valid"),
            hostile: other(4),
            connid: 4,
            now: Time::ZERO,
            sent: 0,
            arrived: BTreeSet::new(),
            refused: 0,
            posted: 0,
            completed: BTreeSet::new(),
            sent_by_hostile: 0,
            network,
        }
    }

    fn send(&mut self) {
        let address = self.subject.address();
        let peer = self.honest.insert_peer(address).expect("within the limits");
        let mut buffer = vec![self.sent as u8; LENGTH];
        buffer[..8].copy_from_slice(&self.sent.to_le_bytes());
        let context = self.sent;
        let (tag, cq_data, level) = (None, None, Level::Transmit);
        let message = Message { peer, tag, cq_data, level, buffer, context };
        if self.honest.send(message).is_ok() {
            self.sent += 1;
        }
    }

    fn receive(&mut self) {
        let packet = self.subject.allocate_packet().expect("there is memory");
        if self.subject.receive_in_place(packet, self.posted).is_ok() {
            self.posted += 1;
        }
    }

    fn send_hostile(&mut self, input: &mut Input<'_>) {
        let from = self.hostile.address();
        let mut bytes = match input.below(4) {
            0 => input.take(64).to_vec(),
            1 => {
                let fields = Fields::new(input);
                let header = fields.header(0, input);
                let mut bytes = vec![0; header.len()];
                header.emit(&mut bytes).expect("within the limits");
                bytes
            }
            _ => {
                let connid = Connid(input.about32(self.connid));
                let address = RawAddress { gid: from.gid.0, qpn: from.qpn.0, connid };
                let form = input.pick(&[RawAddressForm::Padded, RawAddressForm::Short]);
                let options = ReqOptions {
                    raw_address: (!input.one_in(4)).then_some((address, form)),
                    cq_data: input.one_in(3).then_some(7),
                    connid: input.one_in(3).then_some(connid),
                };
                let kind = input.pick(&[
                    RtmKind::Eager,
                    RtmKind::Eager,
                    RtmKind::Medium { msg_length: 500, seg_offset: 0 },
                    RtmKind::DcEager { send_id: efa_proto::OpId(3) },
                ]);
                let tag = input.one_in(6).then_some(5);
                let msg_id = MsgId(input.about32(self.sent_by_hostile as u32));
                let header = Header::Rtm(Rtm { msg_id, tag, kind, options });
                let mut bytes = vec![0; header.len()];
                header.emit(&mut bytes).expect("within the limits");
                bytes.resize(bytes.len() + input.below(200), 0xee);
                bytes
            }
        };
        bytes.truncate(MTU);
        let main = self.subject.queue_pair().address();
        // Its queue pair number is the next one: the user queue was created second.
        let mut to = main;
        if input.one_in(4) {
            to.qpn.0 = to.qpn.0.wrapping_add(1);
        }
        self.network.inject(from, to, &bytes);
        self.sent_by_hostile += 1;
    }

    /// The hostile peer restarts in the midst of what it sent: its messages have another connid.
    fn restart_hostile(&mut self, input: &mut Input<'_>) {
        for _ in 0..=input.below(4) {
            self.send_hostile(input);
        }
        if !input.one_in(4) {
            self.step();
        }
        self.connid = self.connid.wrapping_add(1);
        self.sent_by_hostile = 0;
        self.send_hostile(input);
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(30);
        self.subject.progress(self.now);
        self.honest.progress(self.now);
        let named = self.subject.find_peer(&self.honest.address());
        while let Some(done) = self.subject.poll_in_place() {
            assert!(
                self.completed.insert(done.context),
                "receive {} completed twice",
                done.context
            );
            assert!(done.context < self.posted);
            let message = match done.result {
                Ok(message) => message,
                Err(OperationError::UnexpectedHeader { .. }) => {
                    self.refused += u64::from(done.peer.is_some() && done.peer == named);
                    continue;
                }
                Err(error) => panic!("a receive in place fails: {error}"),
            };
            let bytes = message.bytes();
            if done.peer.is_some() && done.peer == named {
                assert_eq!(bytes.len(), LENGTH);
                let number = bytes[..8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
                assert!(number < self.sent && bytes[8..].iter().all(|byte| *byte == number as u8));
                assert!(self.arrived.insert(number), "message {number} arrived twice");
            }
        }
        while self.subject.poll_completion().is_some() {}
        while let Some(event) = self.subject.poll_event() {
            if let Event::PacketDropped { origin: Origin::Peer(peer), reason } = event {
                let of_honest = Some(peer) == named;
                assert!(!of_honest, "fault of the honest peer reported: {reason:?}");
                assert_ne!(reason, DropReason::PeerTableFull);
            }
        }
        while let Some(done) = self.honest.poll_completion() {
            if let efa_rdm::Completion::Send(done) = done {
                assert_eq!(done.result, Ok(()), "an honest message");
            }
        }
        while self.honest.poll_event().is_some() {}
        while self.hostile.poll(self.now).is_some() {}
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let mut scene = Scene::new(input);
    // Both have exchanged HANDSHAKEs before the hostile peer sends.
    scene.send();
    for _ in 0..20 {
        scene.step();
    }
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.below(8) {
            0 => scene.send(),
            1 | 2 => scene.receive(),
            3 => scene.step(),
            4 => scene.restart_hostile(input),
            _ => scene.send_hostile(input),
        }
    }
    for _ in 0..400 {
        scene.step();
        if scene.arrived.len() as u64 + scene.refused == scene.sent {
            return;
        }
        scene.receive();
    }
    let Scene { arrived, refused, sent, .. } = &scene;
    panic!("{arrived:?} of {sent} honest messages arrived, {refused} were refused");
}
