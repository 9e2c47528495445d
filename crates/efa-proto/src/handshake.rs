//! HANDSHAKE: the extra features and requests of an endpoint (section 2.1, tables 2.2, 2.3).
//!
//! ```text
//!   nextra_p3 u32@4  extra_info u64[nextra_p3 − 3]@8      then, each only if its flag is set:
//!     0x8000  connid u32, pad             8 bytes    since 1.14
//!     0x0001  host_id u64                 8          since 1.18
//!     0x0002  device_version u32, pad     8          since 1.20
//!     0x0004  qpn u32, qkey u32           8          1.22 to 2.5
//!     0x0008  p2p_supported u8, pad       8          after 2.6
//! ```
//!
//! Feature or request `i` is bit `i % 64` of word `i / 64`. Peers of release 1.10 call the count
//! `maxproto`; the arithmetic is the same. Bytes behind the known fields are ignored.

use core::fmt;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::base::{Base, wire};
use crate::cursor::{Cursor, Read};
use crate::value::{FieldValue as Value, Fields, See, visit_connid};
use crate::writer::{self, Writer};
use crate::{Connid, EmitError, HandshakeFlags, Header, MAX_IOV, PacketType};

/// The extra features and requests of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Extra features and requests.
    pub extra_info: ExtraInfo<'a>,
    /// Incarnation of the sender.
    pub connid: Option<Connid>,
    /// Identifies the sender's host; for traces only.
    pub host_id: Option<u64>,
    /// Vendor part id of the sender's network card, such as 0xEFA1.
    pub device_version: Option<u32>,
    /// A second queue pair, for messages without header.
    pub user_recv_qp: Option<UserRecvQp>,
    /// Whether the sender's network card reaches memory of accelerators; it does where the field is absent.
    pub hmem_p2p: Option<bool>,
}

/// The queue pair on which a zero-copy receiver of releases 1.22 to 2.5 takes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserRecvQp {
    /// Queue pair number.
    pub qpn: u32,
    /// Queue key.
    pub qkey: u32,
}

/// The `extra_info` words of a [`Handshake`]: borrowed from a packet, or up to [`MAX_IOV`]
/// words to send.
///
/// ```
/// use efa_proto::ExtraInfo;
///
/// let extra_info = ExtraInfo::new(&[0b1011])?;
/// assert_eq!(extra_info.len(), 1);
/// assert!(extra_info.has_bit(3) && !extra_info.has_bit(2) && !extra_info.has_bit(64));
/// # Ok::<(), efa_proto::EmitError>(())
/// ```
#[derive(Clone, Copy)]
pub struct ExtraInfo<'a>(Words<'a>);

#[derive(Clone, Copy)]
enum Words<'a> {
    Received(&'a [U64]),
    Made { words: [U64; MAX_IOV], len: u8 },
}

impl<'a> ExtraInfo<'a> {
    /// Words to send; more than [`MAX_IOV`] would overrun an array of C peers.
    ///
    /// # Errors
    /// [`EmitError::Count`] for more.
    pub fn new(words: &[u64]) -> Result<Self, EmitError> {
        let mut made = [U64::new(0); MAX_IOV];
        let Some(to) = made.get_mut(..words.len()) else {
            return Err(too_many_words(words.len()));
        };
        for (to, &word) in to.iter_mut().zip(words) {
            *to = U64::new(word);
        }
        Ok(Self(Words::Made { words: made, len: words.len() as u8 }))
    }

    fn as_slice(&self) -> &[U64] {
        match &self.0 {
            Words::Received(words) => words,
            Words::Made { words, len } => &words[..usize::from(*len)],
        }
    }

    /// Number of words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is no word at all, which is legal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Word `i`; words the sender left out are zero.
    #[must_use]
    pub fn word(&self, i: usize) -> u64 {
        self.as_slice().get(i).map_or(0, |word| word.get())
    }

    /// Whether feature or request `id` is set; not if its word was left out.
    #[must_use]
    pub fn has_bit(&self, id: usize) -> bool {
        self.word(id / 64) >> (id % 64) & 1 == 1
    }

    /// All words, lowest ids first.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.as_slice().iter().map(|word| word.get())
    }
}

/// One word: ids 0 to 63.
impl From<u64> for ExtraInfo<'_> {
    fn from(word: u64) -> Self {
        let mut words = [U64::new(0); MAX_IOV];
        words[0] = U64::new(word);
        Self(Words::Made { words, len: 1 })
    }
}

impl PartialEq for ExtraInfo<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for ExtraInfo<'_> {}

impl fmt::Debug for ExtraInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtraInfo({self})")
    }
}

/// `[0x1b]`
impl fmt::Display for ExtraInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, word) in self.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{word:#x}")?;
        }
        f.write_str("]")
    }
}

fn too_many_words(found: usize) -> EmitError {
    EmitError::Count { packet_type: PacketType::Handshake, field: "extra_info", found }
}

wire!(HandshakeHead: 8 { nextra_p3: U32 });

/// An optional field of two 32-bit halves.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Halves {
    first: U32,
    second: U32,
}

const _: () = assert!(size_of::<Halves>() == 8);

impl Halves {
    fn new(first: u32, second: u32) -> Self {
        Self { first: U32::new(first), second: U32::new(second) }
    }
}

impl Handshake<'_> {
    /// Bytes that [`Self::emit`] writes.
    #[allow(clippy::len_without_is_empty, reason = "a header is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        let options = usize::from(self.connid.is_some())
            + usize::from(self.host_id.is_some())
            + usize::from(self.device_version.is_some())
            + usize::from(self.user_recv_qp.is_some())
            + usize::from(self.hmem_p2p.is_some());
        size_of::<HandshakeHead>() + 8 * (self.extra_info.len() + options)
    }

    /// Writes the packet; returns its length in bytes.
    ///
    /// # Errors
    /// [`EmitError::BufferTooSmall`]; [`EmitError::Count`] for more than [`MAX_IOV`] words, which only a received HANDSHAKE can
    /// have.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        if self.extra_info.len() > MAX_IOV {
            return Err(too_many_words(self.extra_info.len()));
        }
        let available = buf.len();
        let mut out = Writer::new(buf);
        match self.put(&mut out) {
            Some(()) => Ok(available - out.remaining()),
            None => writer::too_small(PacketType::Handshake, self.len(), available),
        }
    }

    fn flags(&self) -> HandshakeFlags {
        let mut flags = HandshakeFlags::empty();
        flags.set(HandshakeFlags::CONNID, self.connid.is_some());
        flags.set(HandshakeFlags::HOST_ID, self.host_id.is_some());
        flags.set(HandshakeFlags::DEVICE_VERSION, self.device_version.is_some());
        flags.set(HandshakeFlags::USER_RECV_QP, self.user_recv_qp.is_some());
        flags.set(HandshakeFlags::HMEM_P2P, self.hmem_p2p.is_some());
        flags
    }

    fn put(&self, out: &mut Writer<'_>) -> Option<()> {
        out.put(&HandshakeHead {
            base: Base::new(PacketType::Handshake, self.flags().bits()),
            nextra_p3: U32::new(self.extra_info.len() as u32 + 3),
        })?;
        out.put(self.extra_info.as_slice())?;
        if let Some(connid) = self.connid {
            out.put(&Halves::new(connid.0, 0))?;
        }
        if let Some(host_id) = self.host_id {
            out.put(&U64::new(host_id))?;
        }
        if let Some(device_version) = self.device_version {
            out.put(&Halves::new(device_version, 0))?;
        }
        if let Some(UserRecvQp { qpn, qkey }) = self.user_recv_qp {
            out.put(&Halves::new(qpn, qkey))?;
        }
        if let Some(supported) = self.hmem_p2p {
            out.put(&[u8::from(supported), 0, 0, 0, 0, 0, 0, 0])?;
        }
        Some(())
    }
}

#[inline]
pub(crate) fn read<'a>(rest: &mut Cursor<'a>, flags: HandshakeFlags) -> Read<'a> {
    let head = rest.take_head::<HandshakeHead>()?;
    let words = rest.take_extra_info(head.nextra_p3)?;
    let mut handshake = Handshake {
        extra_info: ExtraInfo(Words::Received(words)),
        connid: None,
        host_id: None,
        device_version: None,
        user_recv_qp: None,
        hmem_p2p: None,
    };
    if flags.contains(HandshakeFlags::CONNID) {
        handshake.connid = Some(Connid(rest.take::<Halves>("connid")?.first.get()));
    }
    if flags.contains(HandshakeFlags::HOST_ID) {
        handshake.host_id = Some(rest.take::<U64>("host_id")?.get());
    }
    if flags.contains(HandshakeFlags::DEVICE_VERSION) {
        handshake.device_version = Some(rest.take::<Halves>("device_version")?.first.get());
    }
    if flags.contains(HandshakeFlags::USER_RECV_QP) {
        let halves = rest.take::<Halves>("user_recv_qp")?;
        let (qpn, qkey) = (halves.first.get(), halves.second.get());
        handshake.user_recv_qp = Some(UserRecvQp { qpn, qkey });
    }
    if flags.contains(HandshakeFlags::HMEM_P2P) {
        let [supported, ..] = rest.take::<[u8; 8]>("hmem_p2p")?;
        handshake.hmem_p2p = Some(*supported != 0);
    }
    Ok(Header::Handshake(handshake))
}

/// `extra_info=[0x1b] connid=… host_id=…`, without the type's name.
impl fmt::Display for Handshake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_line(f, "")
    }
}

impl<'a> Fields<'a> for Handshake<'a> {
    fn visit(&self, see: &mut See<'_, 'a>) -> fmt::Result {
        see("extra_info", Value::ExtraInfo(self.extra_info))?;
        visit_connid(self.connid, see)?;
        if let Some(host_id) = self.host_id {
            see("host_id", Value::Bits(host_id))?;
        }
        if let Some(device_version) = self.device_version {
            see("device_version", Value::Bits(device_version.into()))?;
        }
        if let Some(queue_pair) = self.user_recv_qp {
            see("user_recv_qp", Value::UserRecvQp(queue_pair))?;
        }
        if let Some(supported) = self.hmem_p2p {
            see("hmem_p2p", Value::Number(supported.into()))?;
        }
        Ok(())
    }
}
