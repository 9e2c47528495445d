//! The header fields of a packet as members of a JSON object, by the names of the text output.
//!
//! Many programs keep JSON numbers as floating point, which rounds from 2^53 on. So only lengths, offsets, counts
//! and numbers of 32 bits are JSON numbers; what may use all of 64 bits is a string, `"0x2a"`.

use efa_proto::{FieldValue, Header, RawAddress, RmaIov, UserRecvQp};
use efa_sim::record::QueuePairId;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// All fields of a header.
pub(super) struct Fields<'a>(pub(super) Header<'a>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        let mut result = Ok(());
        self.0.for_each_field(|name, value| {
            if result.is_ok() {
                result = map.serialize_entry(name, &Value(value));
            }
        });
        result?;
        map.end()
    }
}

struct Value<'a>(FieldValue<'a>);

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            FieldValue::Number(number) => to.serialize_u64(number),
            FieldValue::OpId(id) => to.serialize_u32(id.0),
            FieldValue::Set => to.serialize_bool(true),
            FieldValue::Address(address) => Address::from(address).serialize(to),
            FieldValue::Iov(iov) => to.collect_seq(iov.iter().map(Memory::from)),
            FieldValue::ExtraInfo(words) => to.collect_seq(words.iter().map(Hex)),
            FieldValue::UserRecvQp(UserRecvQp { qpn, qkey }) => {
                UserQueuePair { qpn, qkey: format!("{qkey:#010x}") }.serialize(to)
            }
            // Bits, names, a connid, and what a later version adds: as in the text.
            other => to.collect_str(&other),
        }
    }
}

/// 64 bits as a string.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:#x}", self.0))
    }
}

#[derive(Serialize)]
struct Memory {
    addr: Hex,
    len: u64,
    key: Hex,
}

impl From<&RmaIov> for Memory {
    fn from(iov: &RmaIov) -> Self {
        Self { addr: Hex(iov.addr()), len: iov.len(), key: Hex(iov.key()) }
    }
}

#[derive(Serialize)]
struct Address {
    #[serde(flatten)]
    queue_pair: super::show::QueuePairLine,
    connid: String,
}

impl From<RawAddress> for Address {
    fn from(RawAddress { gid, qpn, connid }: RawAddress) -> Self {
        let id = QueuePairId { gid: efa_device::Gid(gid), qpn: efa_device::Qpn(qpn) };
        Self { queue_pair: id.into(), connid: connid.to_string() }
    }
}

#[derive(Serialize)]
struct UserQueuePair {
    qpn: u32,
    qkey: String,
}
