//! `--op-id`: the packets of one operation, under each of its two numbers.
//!
//! ```text
//!   A ── LONGCTS  send_id=3 ──────────► B      an id is its endpoint's own: A's operation 3
//!   A ◄─ CTS      send_id=3 recv_id=8 ─ B      says that it is B's operation 8
//!   A ── CTSDATA  recv_id=8 ──────────► B      names only that
//! ```
//!
//! CTS, READRSP, EOR and READ_NACK have both ids. Endpoints use numbers again: the next packet that
//! gives the other side's number to another operation, or a request that begins with it, ends the relation.

use std::collections::HashMap;
use std::str::FromStr;

use efa_proto::{Header, OpId, PacketType, Rtm, RtmKind};
use efa_sim::record::{QueuePairId, Record};

use super::filter::{FilterError, Number, PeerFilter};

/// Most operations of other sides remembered, so that a hostile capture can't fill the memory.
const MAX_FOLLOWED: usize = 4096;

/// `N` or `N@PEER`: an operation of any queue pair, or of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpFilter {
    id: Number,
    owner: Option<PeerFilter>,
}

impl FromStr for OpFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        match text.split_once('@') {
            Some((id, owner)) => Ok(Self { id: id.parse()?, owner: Some(owner.parse()?) }),
            None => Ok(Self { id: text.parse()?, owner: None }),
        }
    }
}

impl OpFilter {
    fn matches(&self, operation: OperationId) -> bool {
        self.id == Number(operation.id.0)
            && self.owner.is_none_or(|owner| owner.matches(operation.owner))
    }
}

/// Which of its two roles an endpoint has in an operation; each may have numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Sender,
    Receiver,
}

/// What an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OperationId {
    pub(super) owner: QueuePairId,
    pub(super) role: Role,
    pub(super) id: OpId,
}

impl OperationId {
    /// The operations that a packet names.
    pub(super) fn named(record: &Record<'_>, header: &Header<'_>) -> [Option<Self>; 2] {
        use PacketType as T;
        let packet_type = header.packet_type();
        let is_req = packet_type.is_req();
        let owner = |is_source| if is_source { record.source } else { record.destination };
        let sender = owner(is_req || packet_type == T::ReadRsp);
        let receiver = owner(is_req || matches!(packet_type, T::Cts | T::Eor | T::ReadNack));
        let failed = header.failed_op_id();
        let of = |owner, role, id: Option<OpId>| id.map(|id| Self { owner, role, id });
        [
            of(sender, Role::Sender, header.send_id().or(failed)),
            of(receiver, Role::Receiver, header.recv_id().or(failed)),
        ]
    }
}

/// Whether the request repeats a message after a READ_NACK.
pub(super) fn is_repeated(header: &Header<'_>) -> bool {
    matches!(
        header,
        Header::Rtm(Rtm {
            kind: RtmKind::LongCts { read_nack: true, .. }
                | RtmKind::DcLongCts { read_nack: true, .. },
            ..
        })
    )
}

/// Whether the packet is the first of its operation, or one like it.
fn begins(header: &Header<'_>) -> bool {
    header.packet_type().is_req() && !is_repeated(header)
}

/// The operations that were asked for, and what the packets so far say about them.
pub(super) struct Operations<'a> {
    asked: &'a [OpFilter],
    /// The operation asked for, by what it is on the other side.
    others: HashMap<OperationId, OperationId>,
}

impl<'a> Operations<'a> {
    pub(super) fn new(asked: &'a [OpFilter]) -> Self {
        Self { asked, others: HashMap::new() }
    }

    /// Whether the next packet of the capture belongs to one of them. Every packet must be given.
    pub(super) fn take(&mut self, record: &Record<'_>, header: Option<&Header<'_>>) -> bool {
        if self.asked.is_empty() {
            return true;
        }
        let Some(header) = header else { return false };
        let named = OperationId::named(record, header);
        if begins(header) {
            for operation in named.iter().flatten() {
                self.others.remove(operation);
            }
        }
        // A PEER_ERROR has one id, of either role.
        if let [Some(sender), Some(receiver)] = named
            && header.packet_type() != PacketType::PeerError
        {
            self.relate(sender, receiver);
            self.relate(receiver, sender);
        }
        let belongs = |of: &OperationId| self.is_asked(*of) || self.others.contains_key(of);
        named.iter().flatten().any(belongs)
    }

    fn is_asked(&self, operation: OperationId) -> bool {
        self.asked.iter().any(|filter| filter.matches(operation))
    }

    /// Learns that `other` is `operation` on the other side.
    fn relate(&mut self, operation: OperationId, other: OperationId) {
        if self.is_asked(operation) {
            if self.others.len() >= MAX_FOLLOWED {
                // More than are under way at a time: all are forgotten rather than kept without bound.
                self.others.clear();
            }
            self.others.insert(other, operation);
        } else if self.others.get(&other).is_some_and(|known| *known != operation) {
            self.others.remove(&other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use efa_device::{Gid, Qpn, Time};
    use efa_proto::{
        Cts, CtsData, Eor, EorForm, MsgId, PeerError, ReadNack, ReadRsp, Receipt, ReqOptions, Rtr,
        RtrKind,
    };
    use efa_sim::record::PacketEvent;

    use super::*;

    const CONNID: Option<efa_proto::Connid> = None;

    /// Packets from a queue pair to another, and whether each belongs to what is asked for.
    struct Story<'a>(Operations<'a>);

    impl Story<'_> {
        #[track_caller]
        fn packet(&mut self, source: u16, destination: u16, header: Header<'_>, belongs: bool) {
            let id = |qpn| QueuePairId { gid: Gid::ZERO, qpn: Qpn(qpn) };
            let record = Record {
                time: Time::ZERO,
                event: PacketEvent::Sent,
                source: id(source),
                destination: id(destination),
                bytes: Cow::Borrowed(&[]),
            };
            assert_eq!(self.0.take(&record, Some(&header)), belongs, "{source}: {header}");
        }
    }

    fn asked(text: &str) -> Vec<OpFilter> {
        text.split(',').map(|one| one.parse().unwrap()).collect()
    }

    fn request(id: u32, read_nack: bool) -> Header<'static> {
        let (msg_length, send_id, credit_request) = (100_000, OpId(id), 32);
        let kind = RtmKind::LongCts { msg_length, send_id, credit_request, read_nack };
        Header::Rtm(Rtm { msg_id: MsgId(0), tag: None, kind, options: ReqOptions::NONE })
    }

    fn cts(send_id: u32, recv_id: u32) -> Header<'static> {
        let (send_id, recv_id) = (OpId(send_id), OpId(recv_id));
        let (recv_length, emulated_read) = (8192, false);
        Header::Cts(Cts { connid: CONNID, send_id, recv_id, recv_length, emulated_read })
    }

    fn data(recv_id: u32) -> Header<'static> {
        let (recv_id, seg_length, seg_offset) = (OpId(recv_id), 0, 0);
        Header::CtsData(CtsData { connid: CONNID, recv_id, seg_length, seg_offset })
    }

    fn receipt(send_id: u32) -> Header<'static> {
        Header::Receipt(Receipt { send_id: OpId(send_id), msg_id: MsgId(0), connid: CONNID })
    }

    #[test]
    fn data_that_names_only_the_receivers_id_belongs_to_the_senders_operation() {
        let asked = asked("3@1");
        let mut story = Story(Operations::new(&asked));
        story.packet(1, 2, data(8), false);
        story.packet(1, 2, request(3, false), true);
        story.packet(2, 1, cts(3, 8), true);
        story.packet(1, 2, data(8), true);
        story.packet(2, 1, receipt(3), true);
    }

    #[test]
    fn equal_numbers_of_other_queue_pairs_and_of_the_other_role_are_other_operations() {
        let asked = asked("3@1");
        let mut story = Story(Operations::new(&asked));
        story.packet(2, 1, request(3, false), false);
        story.packet(2, 1, cts(3, 8), true);
        // 2's own operation 3 towards 1, which has the number 8 there.
        story.packet(1, 2, cts(3, 8), false);
        story.packet(2, 1, data(8), false);
        story.packet(1, 2, data(8), true);
        story.packet(3, 2, data(8), true);
        story.packet(1, 3, data(8), false);
    }

    #[test]
    fn number_without_a_queue_pair_stands_for_the_operations_of_all_of_them() {
        let asked = asked("3");
        let mut story = Story(Operations::new(&asked));
        story.packet(1, 2, request(3, false), true);
        story.packet(2, 1, request(3, false), true);
        story.packet(2, 1, cts(3, 8), true);
        story.packet(1, 2, cts(3, 9), true);
        story.packet(1, 2, data(8), true);
        story.packet(2, 1, data(9), true);
        story.packet(1, 2, data(9), false);
    }

    #[test]
    fn receivers_id_leads_to_the_senders() {
        let asked = asked("8@2");
        let mut story = Story(Operations::new(&asked));
        story.packet(2, 1, cts(3, 8), true);
        story.packet(1, 2, data(8), true);
        story.packet(2, 1, receipt(3), true);
        story.packet(2, 1, receipt(8), false);
    }

    #[test]
    fn id_that_is_used_again_is_another_operation() {
        let asked = asked("3@1,20@2");
        let mut story = Story(Operations::new(&asked));
        story.packet(2, 1, cts(3, 8), true);
        story.packet(2, 1, cts(4, 8), false);
        story.packet(1, 2, data(8), false);
        story.packet(2, 1, cts(7, 20), true);
        story.packet(1, 2, request(7, true), true);
        story.packet(1, 2, request(7, false), false);
        story.packet(2, 1, receipt(7), false);
    }

    #[test]
    fn emulated_read_is_followed_from_the_request_to_the_last_segment() {
        let asked = asked("5@1");
        let mut story = Story(Operations::new(&asked));
        let rtr = Rtr {
            rma_iov: &[],
            kind: RtrKind::LongCts,
            msg_length: 100_000,
            recv_id: OpId(5),
            recv_length: 8192,
            options: ReqOptions::NONE,
        };
        story.packet(1, 2, Header::Rtr(rtr), true);
        let (send_id, recv_id, seg_length) = (OpId(6), OpId(5), 0);
        let response = ReadRsp { connid: CONNID, send_id, recv_id, seg_length };
        story.packet(2, 1, Header::ReadRsp(response), true);
        story.packet(1, 2, cts(6, 5), true);
        story.packet(2, 1, data(5), true);
    }

    #[test]
    fn ends_and_refusals_of_long_reads_and_errors_belong_to_the_operation() {
        let asked = asked("5@1");
        let mut story = Story(Operations::new(&asked));
        let (send_id, recv_id) = (OpId(5), OpId(6));
        let error = |op_id, ref_kind| {
            let op_id = OpId(op_id);
            Header::PeerError(PeerError { op_id, ref_kind, prov_errno: 1, connid: CONNID })
        };
        story.packet(2, 1, Header::ReadNack(ReadNack { send_id, recv_id, connid: CONNID }), true);
        story.packet(1, 2, error(6, 0), true);
        story.packet(2, 1, error(5, 0), true);
        story.packet(2, 1, error(5, 1), false);
        let eor = Eor { send_id, recv_id, form: EorForm::Short };
        story.packet(2, 1, Header::Eor(eor), true);
        story.packet(1, 2, Header::Eor(eor), false);
    }

    #[test]
    fn many_operations_are_followed_in_bounded_memory() {
        let asked = asked("3");
        let mut story = Story(Operations::new(&asked));
        for id in 0..3 * MAX_FOLLOWED as u32 {
            story.packet(2, 1, cts(3, id + 100), true);
            story.packet(1, 2, data(id + 100), true);
        }
        assert!(story.0.others.len() <= MAX_FOLLOWED);
    }

    #[test]
    fn operations_parse_with_and_without_their_queue_pair() {
        assert_eq!("0x2a".parse(), Ok(OpFilter { id: "42".parse().unwrap(), owner: None }));
        let owner = Some("fe00::1/3".parse().unwrap());
        assert_eq!("42@fe00::1/3".parse(), Ok(OpFilter { id: "42".parse().unwrap(), owner }));
        let bad_number = |text: &str| Err(FilterError::BadNumber { text: text.to_owned() });
        assert_eq!("x@3".parse::<OpFilter>(), bad_number("x"));
        assert_eq!("@3".parse::<OpFilter>(), bad_number(""));
        let bad_peer = Err(FilterError::BadPeer { text: "host".to_owned() });
        assert_eq!("3@host".parse::<OpFilter>(), bad_peer);
    }
}
