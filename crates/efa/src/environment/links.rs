//! The parameters of links.

use std::time::Duration;

use super::parameters::{
    ANY, ENTRIES, MICROSECONDS, POSITIVE, count, flag, long, microseconds, number, switch,
};
use super::{Effect, Parameter, ParameterKind, Value};
use crate::sim::Rdma;

/// Most senders to a queue pair.
const PEERS: (u64, u64) = (1, 4096);
const REGIONS: (u64, u64) = (1, efa_sim::region::MAX_REGIONS as u64);
/// Milliseconds and seconds, up to a day.
const MILLISECONDS: (u64, u64) = (1, 86_400_000);
const SECONDS: (u64, u64) = (0, 86_400);

const fn other(
    name: &'static str,
    help: &'static str,
    kind: ParameterKind,
    set: fn(&mut super::Environment, Value),
    get: fn(&super::Environment) -> Value,
) -> Parameter {
    Parameter { name, help, effect: Effect::Sets { kind, set, get } }
}

fn millis(duration: Duration) -> Value {
    Value::Number(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

/// A parameter that sets this field of the [`Environment`](super::Environment), a `Duration` in milliseconds.
macro_rules! milliseconds {
    ($name:expr, $help:expr, $($field:ident).+) => {
        number(
            $name,
            $help,
            MILLISECONDS,
            |at, value| at.$($field).+ = Duration::from_millis(value.number()),
            |at| millis(at.$($field).+),
        )
    };
}

/// Reads and writes, or neither.
fn rdma(value: &Value) -> Rdma {
    if *value == Value::Switch(true) { Rdma::READ_WRITE } else { Rdma::NONE }
}

pub(super) const LINKS: &[Parameter] = &[
    milliseconds!(
        "FI_EFARS_SHM_ATTACH_TIMEOUT",
        "milliseconds to wait for a peer that has too many senders",
        links.shm.attach_timeout
    ),
    other(
        "FI_EFARS_SHM_DIRECTORY",
        "directory of the networks, on shared memory; /dev/shm/efa-UID by default",
        ParameterKind::Text,
        |at, value| at.links.shm.directory = Some(value.text().into()),
        |at| {
            at.links
                .shm
                .directory
                .as_ref()
                .map_or(Value::Text(String::new()), |path| Value::Text(path.display().to_string()))
        },
    ),
    flag!(
        "FI_EFARS_SHM_KERNEL_COPIES",
        "whether the kernel copies reads and writes where it can; if not, their targets do",
        links.shm.kernel_copies
    ),
    count!(
        "FI_EFARS_SHM_MAX_ADDRESS_HANDLES",
        "most interfaces that a device can send to",
        (1, u16::MAX as u64),
        links.shm.max_address_handles
    ),
    count!(
        "FI_EFARS_SHM_MAX_PEERS",
        "most queue pairs that can send to one queue pair at a time",
        PEERS,
        links.shm.max_peers
    ),
    long!(
        "FI_EFARS_SHM_MAX_RDMA_SIZE",
        "most bytes of one RDMA operation",
        POSITIVE,
        links.shm.max_rdma_size
    ),
    count!(
        "FI_EFARS_SHM_MAX_RECEIVE",
        "most receive buffers of a queue pair",
        ENTRIES,
        links.shm.max_receive
    ),
    count!(
        "FI_EFARS_SHM_MAX_REGIONS",
        "most memory regions of a device",
        REGIONS,
        links.shm.max_regions
    ),
    long!(
        "FI_EFARS_SHM_MAX_REGION_SIZE",
        "longest memory region in bytes",
        POSITIVE,
        links.shm.max_region_size
    ),
    count!(
        "FI_EFARS_SHM_MAX_SEND",
        "most sends of a queue pair under way",
        ENTRIES,
        links.shm.max_send
    ),
    count!("FI_EFARS_SHM_MTU", "largest packet in bytes", (1, 1 << 20), links.shm.mtu),
    other(
        "FI_EFARS_SHM_NAME",
        "name of the network: processes that use the same one reach each other",
        ParameterKind::Text,
        |at, value| at.links.shm.name = value.text().to_owned(),
        |at| Value::Text(at.links.shm.name.clone()),
    ),
    milliseconds!(
        "FI_EFARS_SHM_PROBE_AFTER",
        "milliseconds without acknowledgement after which the process of a peer is looked for",
        links.shm.probe_after
    ),
    switch(
        "FI_EFARS_SHM_RDMA",
        "whether the device has RDMA reads and writes",
        |at, value| at.links.shm.rdma = rdma(&value),
        |at| Value::Switch(at.links.shm.rdma.read),
    ),
    number(
        "FI_EFARS_SHM_READS_PAY_FROM",
        "bytes from which on the device says that reads are faster than datagrams; 0: as copies are \
         measured",
        ANY,
        |at, value| at.links.shm.reads_pay_from = Some(value.number()).filter(|&length| length > 0),
        |at| Value::Number(at.links.shm.reads_pay_from.unwrap_or(0)),
    ),
    flag!(
        "FI_EFARS_SHM_REPORT_UNKNOWN_GID",
        "whether receives name the interface of a sender that has no address handle here",
        links.shm.report_unknown_gid
    ),
    other(
        "FI_EFARS_SHM_RING_SLOTS",
        "packets under way from one queue pair to another; a ring takes so many times the MTU of memory",
        ParameterKind::PowerOfTwo { most: 1 << 16 },
        |at, value| at.links.shm.ring_slots = value.count(),
        |at| Value::Number(at.links.shm.ring_slots as u64),
    ),
    flag!(
        "FI_EFARS_SHM_RNR_AT_START",
        "whether attempts count before the first receive buffer is posted",
        links.shm.rnr_at_start
    ),
    microseconds!(
        "FI_EFARS_SHM_RNR_DELAY",
        "microseconds between two attempts to send to a queue pair without a receive buffer",
        MICROSECONDS,
        links.shm.rnr_delay
    ),
    number(
        "FI_EFARS_TCP_DEAD_AFTER",
        "seconds after which a host that does not respond is given up; 0: by the limit of the system",
        SECONDS,
        |at, value| at.links.tcp.dead_after = seconds(&value),
        |at| Value::Number(at.links.tcp.dead_after.map_or(0, |after| after.as_secs())),
    ),
    milliseconds!(
        "FI_EFARS_TCP_FRAME_TIMEOUT",
        "milliseconds in which the rest of a packet must arrive",
        links.tcp.frame_timeout
    ),
    milliseconds!(
        "FI_EFARS_TCP_HELLO_TIMEOUT",
        "milliseconds in which an accepted connection must name its sender",
        links.tcp.hello_timeout
    ),
    count!(
        "FI_EFARS_TCP_MAX_ADDRESS_HANDLES",
        "most interfaces that a device can send to",
        (1, u16::MAX as u64),
        links.tcp.max_address_handles
    ),
    count!(
        "FI_EFARS_TCP_MAX_PEERS",
        "most connections to one queue pair; more senders take turns",
        PEERS,
        links.tcp.max_peers
    ),
    long!(
        "FI_EFARS_TCP_MAX_RDMA_SIZE",
        "most bytes of one RDMA operation",
        POSITIVE,
        links.tcp.max_rdma_size
    ),
    count!(
        "FI_EFARS_TCP_MAX_RECEIVE",
        "most receive buffers of a queue pair",
        ENTRIES,
        links.tcp.max_receive
    ),
    count!(
        "FI_EFARS_TCP_MAX_REGIONS",
        "most memory regions of a device",
        REGIONS,
        links.tcp.max_regions
    ),
    long!(
        "FI_EFARS_TCP_MAX_REGION_SIZE",
        "longest memory region in bytes",
        POSITIVE,
        links.tcp.max_region_size
    ),
    count!(
        "FI_EFARS_TCP_MAX_SEND",
        "most sends of a queue pair under way",
        ENTRIES,
        links.tcp.max_send
    ),
    count!("FI_EFARS_TCP_MTU", "largest packet in bytes", (1, 1 << 16), links.tcp.mtu),
    other(
        "FI_EFARS_TCP_PORTS",
        "ports of queue pairs; each takes the first free one",
        ParameterKind::Ports,
        |at, value| at.links.tcp.ports = ports(&value),
        |at| ports_value(at.links.tcp.ports.as_ref()),
    ),
    switch(
        "FI_EFARS_TCP_RDMA",
        "whether the device has RDMA reads and writes",
        |at, value| at.links.tcp.rdma = rdma(&value),
        |at| Value::Switch(at.links.tcp.rdma.read),
    ),
    flag!(
        "FI_EFARS_TCP_REPORT_UNKNOWN_GID",
        "whether receives name the interface of a sender that has no address handle here",
        links.tcp.report_unknown_gid
    ),
    flag!(
        "FI_EFARS_TCP_RNR_AT_START",
        "whether attempts count before the first receive buffer is posted",
        links.tcp.rnr_at_start
    ),
    microseconds!(
        "FI_EFARS_TCP_RNR_DELAY",
        "microseconds between two attempts to send to a queue pair without a receive buffer",
        MICROSECONDS,
        links.tcp.rnr_delay
    ),
];

fn seconds(value: &Value) -> Option<Duration> {
    (value.number() > 0).then(|| Duration::from_secs(value.number()))
}

/// `None` for `any`.
fn ports(value: &Value) -> Option<std::ops::RangeInclusive<u16>> {
    let (first, last) = value.text().split_once('-')?;
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn ports_value(ports: Option<&std::ops::RangeInclusive<u16>>) -> Value {
    Value::Text(match ports {
        Some(ports) => format!("{}-{}", ports.start(), ports.end()),
        None => "any".to_owned(),
    })
}
