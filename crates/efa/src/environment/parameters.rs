//! The list of parameters.

use std::time::Duration;

use efa_handshake::Extras;
use efa_rdm::Config;

use super::{Effect, Environment, Parameter, ParameterKind, Value};
use crate::log_filter::LogLevel;

pub(super) const fn number(
    name: &'static str,
    help: &'static str,
    (least, most): (u64, u64),
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    let kind = ParameterKind::Number { least, most };
    Parameter { name, help, effect: Effect::Sets { kind, set, get } }
}

pub(super) const fn switch(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    Parameter { name, help, effect: Effect::Sets { kind: ParameterKind::Switch, set, get } }
}

const fn choice(
    name: &'static str,
    help: &'static str,
    words: &'static [&'static str],
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    Parameter { name, help, effect: Effect::Sets { kind: ParameterKind::Choice(words), set, get } }
}

const fn names(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    Parameter { name, help, effect: Effect::Sets { kind: ParameterKind::Names, set, get } }
}

const fn no_effect(name: &'static str, help: &'static str) -> Parameter {
    Parameter { name, help, effect: Effect::None }
}

/// A parameter that sets this field of the [`Environment`], a `usize`.
macro_rules! count {
    ($name:expr, $help:expr, $range:expr, $($field:ident).+) => {
        $crate::environment::parameters::number(
            $name,
            $help,
            $range,
            |at, value| at.$($field).+ = value.count(),
            |at| Value::Number(at.$($field).+ as u64),
        )
    };
}
#[cfg(feature = "sim")]
pub(super) use count;

/// As [`count!`], a `u64`.
macro_rules! long {
    ($name:expr, $help:expr, $range:expr, $($field:ident).+) => {
        $crate::environment::parameters::number(
            $name,
            $help,
            $range,
            |at, value| at.$($field).+ = value.number(),
            |at| Value::Number(at.$($field).+),
        )
    };
}
#[cfg(feature = "sim")]
pub(super) use long;

/// As [`count!`], a `Duration` in microseconds.
macro_rules! microseconds {
    ($name:expr, $help:expr, $range:expr, $($field:ident).+) => {
        $crate::environment::parameters::number(
            $name,
            $help,
            $range,
            |at, value| at.$($field).+ = Duration::from_micros(value.number()),
            |at| $crate::environment::parameters::micros(at.$($field).+),
        )
    };
}
#[cfg(feature = "sim")]
pub(super) use microseconds;

/// As [`count!`], a `bool`.
macro_rules! flag {
    ($name:expr, $help:expr, $($field:ident).+) => {
        $crate::environment::parameters::switch(
            $name,
            $help,
            |at, value| at.$($field).+ = value == Value::Switch(true),
            |at| Value::Switch(at.$($field).+),
        )
    };
}
#[cfg(feature = "sim")]
pub(super) use flag;

pub(super) const ANY: (u64, u64) = (0, u64::MAX);
pub(super) const POSITIVE: (u64, u64) = (1, u64::MAX);
/// Entries of queues and tables.
pub(super) const ENTRIES: (u64, u64) = (1, u32::MAX as u64);
/// Microseconds, in libfabric's range.
pub(super) const MICROSECONDS: (u64, u64) = (0, i32::MAX as u64 / 2 - 1);

pub(super) fn micros(duration: Duration) -> Value {
    Value::Number(duration.as_micros().try_into().unwrap_or(u64::MAX))
}

/// Sets whether features are announced. Those that the device lacks are removed when the endpoint is
/// enabled.
fn announce(environment: &mut Environment, features: Extras, value: Value) {
    environment.endpoint.protocol.profile.extras.set(features, value == Value::Switch(true));
}

pub(super) fn announces(environment: &Environment, features: Extras) -> Value {
    Value::Switch(environment.endpoint.protocol.profile.extras.intersects(features))
}

pub(super) const RDMA: Extras = Extras::RDMA_READ.union(Extras::RDMA_WRITE);

/// Those that set an option of objects.
pub(super) const SETTINGS: &[Parameter] = &[
    count!(
        "FI_EFARS_BOUND_AHEAD",
        "bytes of packets ahead of the expected message that are kept of one peer",
        ANY,
        endpoint.protocol.bounds.ahead
    ),
    count!(
        "FI_EFARS_BOUND_BEHIND",
        "bytes of unexpected messages kept beyond others while an operation receives several packets",
        ANY,
        endpoint.protocol.bounds.behind
    ),
    count!(
        "FI_EFARS_BOUND_DISCOVERED",
        "peers that become known by a packet",
        ANY,
        endpoint.protocol.bounds.discovered
    ),
    count!(
        "FI_EFARS_BOUND_INCARNATIONS",
        "incarnations of one queue pair that become known by a packet",
        ANY,
        endpoint.protocol.bounds.incarnations
    ),
    count!(
        "FI_EFARS_BOUND_REQUESTS",
        "operations of one peer under way on memory of this endpoint",
        POSITIVE,
        endpoint.protocol.bounds.requests
    ),
    count!(
        "FI_EFARS_BOUND_RESPONSES",
        "responses that are queued for one peer",
        ANY,
        endpoint.protocol.bounds.responses
    ),
    count!(
        "FI_EFARS_BOUND_UNEXPECTED",
        "bytes of unexpected messages that are kept; then all senders wait",
        ANY,
        endpoint.protocol.bounds.unexpected
    ),
    count!(
        "FI_EFARS_BOUND_UNEXPECTED_PER_PEER",
        "bytes of unexpected messages that are kept of one queue pair",
        ANY,
        endpoint.protocol.bounds.unexpected_per_peer
    ),
    long!(
        "FI_EFARS_HOST_ID",
        "number of this host in HANDSHAKE packets; 0: none",
        ANY,
        endpoint.protocol.host_id
    ),
    long!(
        "FI_EFARS_MAX_MESSAGE_SIZE",
        "longest message in bytes that may be sent",
        ANY,
        endpoint.max_message_size
    ),
    count!(
        "FI_EFARS_MAX_RDMA",
        "most RDMA operations posted at a time",
        POSITIVE,
        endpoint.protocol.max_rdma
    ),
    number(
        "FI_EFARS_MAX_REORDER",
        "how many messages ahead of the expected one are kept",
        ENTRIES,
        |at, value| at.endpoint.protocol.max_reorder = value.number() as u32,
        |at| Value::Number(at.endpoint.protocol.max_reorder.into()),
    ),
    count!(
        "FI_EFARS_MAX_RX_BUFFERS",
        "receive buffers posted to the device under load",
        ENTRIES,
        endpoint.protocol.max_receive_buffers
    ),
    flag!(
        "FI_EFARS_MESSAGES_AFTER_HANDSHAKE",
        "whether messages wait for the peer's HANDSHAKE, as peers that receive without headers need",
        endpoint.protocol.messages_after_handshake
    ),
    long!(
        "FI_EFARS_MIN_MULTI_RECV",
        "a multi-receive buffer with fewer free bytes is released",
        POSITIVE,
        endpoint.protocol.min_multi_receive
    ),
    count!(
        "FI_EFARS_MIN_RX_BUFFERS",
        "receive buffers posted to the device by an idle endpoint",
        ENTRIES,
        endpoint.protocol.min_receive_buffers
    ),
    number(
        "FI_EFARS_OLD_PEER_WINDOW",
        "messages that are sent ahead to a peer that may be older than libfabric 2.0; 0: no limit",
        (0, u32::MAX as u64),
        |at, value| at.endpoint.protocol.old_peer_window = value.number() as u32,
        |at| Value::Number(at.endpoint.protocol.old_peer_window.into()),
    ),
    number(
        "FI_EFARS_RNR_RETRY",
        "how often the device sends again to a receiver that isn't ready; 7: without limit",
        (0, 7),
        |at, value| at.endpoint.rnr_retry = value.number() as u8,
        |at| Value::Number(at.endpoint.rnr_retry.into()),
    ),
    count!(
        "FI_EFARS_RX_QUEUE_SIZE",
        "most receive buffers posted to the device",
        ENTRIES,
        endpoint.receive_depth
    ),
    microseconds!(
        "FI_EFARS_TRIM_INTERVAL",
        "after how many microseconds unused buffers are freed",
        MICROSECONDS,
        endpoint.protocol.trim_interval
    ),
    count!(
        "FI_EFA_CQ_SIZE",
        "capacity of a completion queue in entries",
        ENTRIES,
        completion_queue.capacity
    ),
    long!(
        "FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE",
        "longest message in bytes that is sent without flow control (medium)",
        ANY,
        endpoint.protocol.max_medium
    ),
    number(
        "FI_EFA_INTER_MIN_READ_MESSAGE_SIZE",
        "shortest message in bytes that the receiver reads by RDMA (long-read); if it isn't set, the device says \
         from which length on that is faster",
        ANY,
        |at, value| at.endpoint.protocol.min_read = Some(value.number()),
        |at| Value::Number(at.endpoint.protocol.min_read.unwrap_or(Config::MIN_READ_OF_LIBFABRIC)),
    ),
    long!(
        "FI_EFA_INTER_MIN_READ_WRITE_SIZE",
        "shortest write in bytes that the target reads by RDMA",
        ANY,
        endpoint.protocol.min_read_write
    ),
    long!(
        "FI_EFA_INTER_READ_SEGMENT_SIZE",
        "most bytes of one RDMA operation",
        POSITIVE,
        endpoint.protocol.rdma_segment
    ),
    count!(
        "FI_EFA_MAX_MEMCPY_SIZE",
        "longest buffer in bytes that is copied for RDMA rather than registered",
        (1, 1 << 30),
        endpoint.protocol.bounce_size
    ),
    microseconds!(
        "FI_EFA_MAX_TIMEOUT",
        "longest RNR backoff in microseconds",
        MICROSECONDS,
        endpoint.protocol.backoff.longest
    ),
    count!(
        "FI_EFA_MR_MAX_CACHED_COUNT",
        "most idle regions in the registration cache",
        ANY,
        registrations.count
    ),
    count!(
        "FI_EFA_MR_MAX_CACHED_SIZE",
        "most bytes of idle regions in the registration cache",
        ANY,
        registrations.bytes
    ),
    long!(
        "FI_EFA_RUNT_SIZE",
        "bytes of a message sent eagerly while the receiver reads the rest by RDMA (runting read)",
        ANY,
        endpoint.protocol.runt_size
    ),
    count!("FI_EFA_RX_SIZE", "most receives posted", ENTRIES, endpoint.protocol.max_receives),
    number(
        "FI_EFA_TIMEOUT_INTERVAL",
        "first RNR backoff in microseconds; 0: the default",
        MICROSECONDS,
        |at, value| {
            if value.number() > 0 {
                at.endpoint.protocol.backoff.first = Duration::from_micros(value.number());
            }
        },
        |at| micros(at.endpoint.protocol.backoff.first),
    ),
    number(
        "FI_EFA_TX_MIN_CREDITS",
        "packets of a long message that one CTS grants",
        ENTRIES,
        |at, value| at.endpoint.protocol.cts_window = value.number() as u32,
        |at| Value::Number(at.endpoint.protocol.cts_window.into()),
    ),
    number(
        "FI_EFA_TX_QUEUE_SIZE",
        "most sends posted to the device; 0: the default",
        (0, u32::MAX as u64),
        |at, value| {
            if value.number() > 0 {
                at.endpoint.send_depth = value.count();
            }
        },
        |at| Value::Number(at.endpoint.send_depth as u64),
    ),
    count!(
        "FI_EFA_TX_SIZE",
        "most send operations under way",
        ENTRIES,
        endpoint.protocol.max_sends
    ),
    switch(
        "FI_EFA_USE_DEVICE_RDMA",
        "whether RDMA of the device is used, where both devices have it",
        |at, value| announce(at, RDMA, value),
        |at| announces(at, RDMA),
    ),
    switch(
        "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
        "whether RDMA writes with data use no receive buffer, where both devices can",
        |at, value| announce(at, Extras::UNSOLICITED_WRITE_RECV, value),
        |at| announces(at, Extras::UNSOLICITED_WRITE_RECV),
    ),
    choice(
        "FI_LOG_LEVEL",
        "how much is logged, from the least: warn, trace, info, debug",
        LogLevel::NAMES,
        |at, value| at.log.level = LogLevel::named(value.text()),
        |at| Value::Text(at.log.level.to_string()),
    ),
    names(
        "FI_LOG_PROV",
        "providers and fabrics whose events are logged; with ^ in front, those that are not",
        |at, value| at.log.providers = value.names(),
        |at| Value::Text(at.log.providers.to_string()),
    ),
    names(
        "FI_LOG_SUBSYS",
        "subsystems whose events are logged (core, fabric, domain, ep_ctrl, ep_data, av, cq, eq, mr, cntr); \
         with ^ in front, those that are not",
        |at, value| at.log.subsystems = value.names(),
        |at| Value::Text(at.log.subsystems.to_string()),
    ),
    names(
        "FI_PROVIDER",
        "providers and fabrics that are offered; with ^ in front, those that are not",
        |at, value| at.providers = value.names(),
        |at| Value::Text(at.providers.to_string()),
    ),
];

/// Those without effect here.
pub(super) const WITHOUT_EFFECT: &[Parameter] = &[
    no_effect(
        "FI_EFA_EFA_CQ_READ_SIZE",
        "progress handles up to 64 completions of the device at a time",
    ),
    no_effect("FI_EFA_ENABLE_HIGH_PPS", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_ENABLE_SHM_TRANSFER", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_FORK_SAFE", "a setting of memory registration in rdma-core"),
    no_effect("FI_EFA_IFACE", "the program chooses the device when it opens the fabric"),
    no_effect("FI_EFA_IMPLICIT_AV_SIZE", "peers that are not in the address vector stay known"),
    no_effect(
        "FI_EFA_INTERNAL_RX_REFILL_THRESHOLD",
        "the number of receive buffers follows the traffic",
    ),
    no_effect("FI_EFA_INTER_MAX_GDRCOPY_MESSAGE_SIZE", "GPU memory is not supported"),
    no_effect(
        "FI_EFA_MR_CACHE_ENABLE",
        "FI_EFA_MR_MAX_CACHED_COUNT=0 disables the registration cache",
    ),
    no_effect("FI_EFA_MTU_SIZE", "the MTU is that of the device"),
    no_effect("FI_EFA_READCOPY_POOL_SIZE", "the pool for RDMA reads grows with use"),
    no_effect("FI_EFA_RECVWIN_SIZE", "the reorder window grows with use"),
    no_effect("FI_EFA_RX_COPY_OOO", "out-of-order packets are always copied"),
    no_effect("FI_EFA_RX_COPY_UNEXP", "unexpected packets are always copied"),
    no_effect("FI_EFA_RX_IOV_LIMIT", "a receive has up to 28 pieces"),
    no_effect("FI_EFA_RX_WINDOW_SIZE", "of releases before 1.16"),
    no_effect("FI_EFA_SET_CUDA_SYNC_MEMOPS", "GPU memory is not supported"),
    no_effect("FI_EFA_SHM_AV_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_SHM_CQ_READ_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_SHM_MAX_MEDIUM_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_TRACK_MR", "for debugging libfabric"),
    no_effect("FI_EFA_TX_IOV_LIMIT", "a send has up to 28 pieces"),
    no_effect("FI_EFA_TX_MAX_CREDITS", "of releases before 1.16"),
    no_effect("FI_EFA_USE_DATA_PATH_DIRECT", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_USE_HUGE_PAGE", "the device allocates packets"),
    no_effect("FI_EFA_USE_HW_CNTR", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_USE_SM2", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_USE_ZCPY_RX", "the program chooses endpoints that receive in place"),
    no_effect("FI_EFA_ZCPY_RX_SEED", "the program chooses endpoints that receive in place"),
];
