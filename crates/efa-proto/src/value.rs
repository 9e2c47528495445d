//! Values of header fields of any kind, and the line of text that they make.

use core::fmt;

use crate::iov::IovList;
use crate::{Connid, ExtraInfo, Header, OpId, RawAddress, RmaIov, UserRecvQp};

/// The value of a header's field, see [`Header::for_each_field`]. It displays as in the header's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldValue<'a> {
    /// A length, an offset, a count or another number, in decimal.
    Number(u64),
    /// Up to 64 bits that nobody adds up, such as a tag, in hexadecimal.
    Bits(u64),
    /// An operation.
    OpId(OpId),
    /// An incarnation.
    Connid(Connid),
    /// The name of a number that has one.
    Name(&'static str),
    /// The field is its presence, such as `read_nack`.
    Set,
    /// The address of an endpoint.
    Address(RawAddress),
    /// Pieces of memory.
    Iov(&'a [RmaIov]),
    /// Words of extra features and requests.
    ExtraInfo(ExtraInfo<'a>),
    /// A second queue pair.
    UserRecvQp(UserRecvQp),
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Bits(bits) => write!(f, "{bits:#x}"),
            Self::OpId(id) => id.fmt(f),
            Self::Connid(connid) => connid.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Set => f.write_str("1"),
            Self::Address(address) => address.fmt(f),
            Self::Iov(iov) => IovList(iov).fmt(f),
            Self::ExtraInfo(words) => words.fmt(f),
            Self::UserRecvQp(UserRecvQp { qpn, qkey }) => write!(f, "{qpn}/{qkey:#010x}"),
        }
    }
}

/// What is done with each field, in the order of the line.
pub(crate) type See<'s, 'a> = dyn FnMut(&'static str, FieldValue<'a>) -> fmt::Result + 's;

/// A header, or a part of one.
pub(crate) trait Fields<'a> {
    /// Gives each field to `see`, until the first error.
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result;

    /// `msg_id=7 read_nack`: each field with `before` it, and between them a space.
    fn fmt_line(&self, f: &mut fmt::Formatter<'_>, before: &'static str) -> fmt::Result {
        let mut separator = before;
        self.visit(&mut |name, value| {
            f.write_str(core::mem::replace(&mut separator, " "))?;
            match value {
                FieldValue::Set => f.write_str(name),
                value => write!(f, "{name}={value}"),
            }
        })
    }
}

/// The connid, if there is one: the last field of most packets.
pub(crate) fn visit_connid(connid: Option<Connid>, see: &mut See<'_, '_>) -> fmt::Result {
    connid.map_or(Ok(()), |connid| see("connid", FieldValue::Connid(connid)))
}

impl<'a> Header<'a> {
    /// Calls `see` with the name and value of each field, in the order in which they display. Fields that the packet
    /// doesn't have, and flags that are not set, are left out. The names are those of the specification.
    ///
    /// ```
    /// use efa_proto::{FieldValue, Header, MsgId, ReqOptions, Rtm, RtmKind};
    ///
    /// let (kind, options) = (RtmKind::Eager, ReqOptions::NONE);
    /// let header = Header::Rtm(Rtm { msg_id: MsgId(7), tag: Some(0x2a), kind, options });
    /// let mut fields = Vec::new();
    /// header.for_each_field(|name, value| fields.push((name, value)));
    /// assert_eq!(fields, [("msg_id", FieldValue::Number(7)), ("tag", FieldValue::Bits(0x2a))]);
    /// ```
    pub fn for_each_field(&self, mut see: impl FnMut(&'static str, FieldValue<'a>)) {
        let see = &mut |name, value| {
            see(name, value);
            Ok(())
        };
        // `see` gives no error, and there is no other.
        let _ = self.visit(see);
    }
}

impl<'a> Fields<'a> for Header<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        match self {
            Self::Rtm(rtm) => rtm.visit(see),
            Self::Rtw(rtw) => rtw.visit(see),
            Self::Rtr(rtr) => rtr.visit(see),
            Self::Rta(rta) => rta.visit(see),
            Self::Cts(cts) => cts.visit(see),
            Self::CtsData(ctsdata) => ctsdata.visit(see),
            Self::ReadRsp(readrsp) => readrsp.visit(see),
            Self::Eor(eor) => eor.visit(see),
            Self::AtomRsp(atomrsp) => atomrsp.visit(see),
            Self::Handshake(handshake) => handshake.visit(see),
            Self::Receipt(receipt) => receipt.visit(see),
            Self::ReadNack(read_nack) => read_nack.visit(see),
            Self::PeerError(peer_error) => peer_error.visit(see),
            Self::PeerErrorReport(report) => report.visit(see),
            Self::NeverSent(never_sent) => never_sent.visit(see),
        }
    }
}
