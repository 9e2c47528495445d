//! Hints of C programs as a [`Query`], and entries as [`fi_info`].
//!
//! What `efa` knows it decides; here are only the attributes that it has no word for.

use std::ffi::c_int;

use efa::{
    Address, AddressFamily, AddressFormat, AddressVectorKind, Capabilities, EndpointKind, Hints,
    Info, Progress, Query, RegistrationMode, ResourceManagement, Threading, Version,
};

use crate::abi::later::{FI_PROGRESS_CONTROL_UNIFIED, FI_SOCKADDR_IP};
use crate::abi::*;
use crate::bits;
use crate::boundary::{Errno, Outcome};
use crate::c::cm::MOST_DATA;

/// Hints, and the attributes that they point to.
#[derive(Clone, Copy)]
pub(crate) struct ProgramHints<'a> {
    pub(crate) info: &'a fi_info,
    pub(crate) transmit: Option<&'a fi_tx_attr>,
    pub(crate) receive: Option<&'a fi_rx_attr>,
    pub(crate) endpoint: Option<&'a fi_ep_attr>,
    pub(crate) domain: Option<&'a fi_domain_attr>,
    pub(crate) fabric: Option<&'a fi_fabric_attr>,
    /// The names of fabric and domain; libfabric itself looks at that of the provider.
    pub(crate) fabric_name: Option<&'a str>,
    pub(crate) domain_name: Option<&'a str>,
}

/// Nothing has what was asked for.
const NO_DATA: Errno = Errno(FI_ENODATA);

/// The first release whose programs say by single bits how memory is registered.
const MR_MODE_BITS: u32 = FI_VERSION(1, 5);

/// Modes of registration that we require of programs that don't take [scalable](RegistrationMode::Scalable).
const BASIC: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// All modes of registration.
const MR_MODES: c_int = (1 << 12) - 1;

/// The value of an attribute that has no limit: programs may keep it in an `int`.
const NO_LIMIT: usize = c_int::MAX as usize;

/// Pieces of a message that an entry offers unless the program asks for more: as many as libfabric's own `shm` and `tcp`.
/// fi_ubertest cuts messages into as many as are offered, and cuts wrongly into more than this.
pub(crate) const PIECES: usize = 4;

/// Contexts of an endpoint, on either side.
const CONTEXTS: usize = 1;

fn wanted<T>(value: T) -> Option<T>
where
    T: Default + PartialEq,
{
    Some(value).filter(|value| *value != T::default())
}

/// The query of a program.
pub(crate) fn query(version: u32, asked: Option<ProgramHints<'_>>) -> Outcome<Query> {
    let asked_version =
        Version { major: FI_MAJOR(version) as u16, minor: FI_MINOR(version) as u16 };
    let mut hints = Hints::new();
    hints.domain.registration_mode = Some(registration(
        version,
        asked.map(|asked| asked.info.caps),
        asked.and_then(|asked| asked.domain),
    )?);
    if let Some(asked) = asked {
        asked.fill(&mut hints)?;
    }
    let query = Query::new(asked_version.min(Version::NEWEST)).hints(hints);
    Ok(match asked.map(|asked| asked.info.addr_format) {
        Some(FI_SOCKADDR_IN) => query.family(AddressFamily::Ipv4),
        Some(FI_SOCKADDR_IN6) => query.family(AddressFamily::Ipv6),
        _ => query,
    })
}

/// How the memory of a program is registered.
///
/// One that doesn't access memory of peers gets keys and addresses as devices have them whatever its mode, since it has
/// no use for keys: only then may devices read long messages.
pub(crate) fn registration(
    version: u32,
    caps: Option<u64>,
    domain: Option<&fi_domain_attr>,
) -> Outcome<RegistrationMode> {
    let mode = domain.map(|domain| domain.mr_mode);
    let has_no_use = caps.is_some_and(|caps| caps != 0 && caps & (FI_RMA | FI_ATOMIC) == 0);
    match mode {
        Some(bits) if has_no_use && bits & !MR_MODES == 0 => Ok(RegistrationMode::Basic),
        // No hints: keys and addresses as devices have them.
        None => Ok(RegistrationMode::Basic),
        Some(FI_MR_UNSPEC) if version < MR_MODE_BITS => Ok(RegistrationMode::Basic),
        Some(FI_MR_BASIC) => Ok(RegistrationMode::Basic),
        Some(FI_MR_SCALABLE) => Ok(RegistrationMode::Scalable),
        Some(bits) if bits & BASIC == BASIC => Ok(RegistrationMode::Basic),
        Some(bits) if version >= MR_MODE_BITS && bits & (FI_MR_BASIC | FI_MR_SCALABLE) == 0 => {
            Ok(RegistrationMode::Scalable)
        }
        Some(_) => Err(NO_DATA),
    }
}

impl ProgramHints<'_> {
    fn fill(&self, hints: &mut Hints) -> Outcome<()> {
        let info = self.info;
        let receive_flags = self.receive.map_or(0, |receive| receive.op_flags);
        let capabilities = bits::capabilities(info.caps).ok_or(NO_DATA)?;
        hints.capabilities = bits::with_default_flags(capabilities, receive_flags);
        hints.mode = bits::mode(info.mode);
        hints.fabric = self.fabric_name.map(str::to_owned);
        hints.address_format = match info.addr_format {
            FI_FORMAT_UNSPEC => None,
            FI_ADDR_EFA => Some(AddressFormat::Efa),
            FI_SOCKADDR | FI_SOCKADDR_IP | FI_SOCKADDR_IN | FI_SOCKADDR_IN6 => {
                Some(AddressFormat::Socket)
            }
            _ => return Err(NO_DATA),
        };
        if let Some(transmit) = self.transmit {
            fill_transmit(transmit, hints)?;
        }
        if let Some(receive) = self.receive {
            fill_receive(receive, hints)?;
        }
        if let Some(endpoint) = self.endpoint {
            fill_endpoint(endpoint, hints)?;
        }
        if let Some(domain) = self.domain {
            fill_domain(domain, hints)?;
        }
        Ok(())
    }
}

/// Orders of messages and atomics that hold between two endpoints.
const MESSAGE_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;

fn fill_transmit(asked: &fi_tx_attr, hints: &mut Hints) -> Outcome<()> {
    order(asked.msg_order, asked.comp_order)?;
    let transmit = &mut hints.transmit;
    if asked.caps != 0 {
        transmit.capabilities = Some(side(asked.caps, Capabilities::RECV)?);
    }
    if asked.op_flags != 0 {
        transmit.flags = Some(bits::transmit_flags(asked.op_flags).ok_or(NO_DATA)?);
    }
    transmit.inject_size = wanted(asked.inject_size);
    transmit.size = wanted(asked.size);
    transmit.iov_limit = wanted(asked.iov_limit);
    transmit.rma_iov_limit = wanted(asked.rma_iov_limit);
    Ok(())
}

fn fill_receive(asked: &fi_rx_attr, hints: &mut Hints) -> Outcome<()> {
    order(asked.msg_order, asked.comp_order)?;
    let receive = &mut hints.receive;
    if asked.caps != 0 {
        let capabilities = side(asked.caps, Capabilities::SEND)?;
        receive.capabilities = Some(bits::with_default_flags(capabilities, asked.op_flags));
    }
    if asked.op_flags & !(FI_COMPLETION | FI_MULTI_RECV) != 0 {
        return Err(NO_DATA);
    }
    if asked.op_flags & FI_COMPLETION != 0 {
        receive.flags = Some(efa::OperationFlags::COMPLETION);
    }
    receive.total_buffered = wanted(asked.total_buffered_recv);
    receive.size = wanted(asked.size);
    receive.iov_limit = wanted(asked.iov_limit);
    Ok(())
}

/// Capabilities of one side; those of the `other` mean nothing there.
fn side(caps: u64, other: Capabilities) -> Outcome<Capabilities> {
    Ok(bits::capabilities(caps).ok_or(NO_DATA)? - other)
}

fn order(message: u64, completion: u64) -> Outcome<()> {
    match message & !MESSAGE_ORDER == 0 && completion == FI_ORDER_NONE {
        true => Ok(()),
        false => Err(NO_DATA),
    }
}

fn fill_endpoint(asked: &fi_ep_attr, hints: &mut Hints) -> Outcome<()> {
    let endpoint = &mut hints.endpoint;
    endpoint.kind = match asked.type_ {
        FI_EP_UNSPEC => None,
        FI_EP_RDM => Some(EndpointKind::ReliableDatagram),
        FI_EP_MSG => Some(EndpointKind::Connected),
        _ => return Err(NO_DATA),
    };
    if !matches!(asked.protocol, FI_PROTO_UNSPEC | FI_PROTO_EFA) || asked.auth_key_size != 0 {
        return Err(NO_DATA);
    }
    if let Some(version) = wanted(asked.protocol_version) {
        endpoint.protocol_version = Some(u8::try_from(version).map_err(|_| NO_DATA)?);
    }
    endpoint.max_message_size = wanted(asked.max_msg_size as u64);
    endpoint.max_read_after_write_size = wanted(asked.max_order_raw_size as u64);
    endpoint.max_write_after_read_size = wanted(asked.max_order_war_size as u64);
    endpoint.max_write_after_write_size = wanted(asked.max_order_waw_size as u64);
    endpoint.mem_tag_format = wanted(asked.mem_tag_format);
    // Scalable endpoints aren't offered.
    let is_offered = |contexts| contexts <= CONTEXTS || is_shared(contexts);
    let lacking = lacking(is_shared(asked.rx_ctx_cnt));
    let receives = hints.receive.capabilities.unwrap_or(hints.capabilities);
    match is_offered(asked.tx_ctx_cnt) && is_offered(asked.rx_ctx_cnt) {
        true if !receives.intersects(lacking) => Ok(()),
        _ => Err(NO_DATA),
    }
}

/// Whether this number of contexts means a shared one.
fn is_shared(contexts: usize) -> bool {
    contexts == FI_SHARED_CONTEXT
}

/// Capabilities that an endpoint lacks whose context of receives is shared.
fn lacking(is_shared: bool) -> Capabilities {
    if is_shared { bits::NOT_SHARED } else { Capabilities::empty() }
}

fn fill_domain(asked: &fi_domain_attr, hints: &mut Hints) -> Outcome<()> {
    if asked.auth_key_size != 0
        || bits::capabilities(asked.caps).is_none()
        || asked.mr_iov_limit > 1
        || asked.max_err_data > MOST_DATA
        || [asked.cq_cnt, asked.cntr_cnt, asked.mr_cnt].into_iter().any(|count| count > NO_LIMIT)
    {
        return Err(NO_DATA);
    }
    let domain = &mut hints.domain;
    // The room for a key of ours. A key of the program's is a number of 64 bits, whatever it says.
    if domain.registration_mode == Some(RegistrationMode::Basic) {
        domain.mr_key_size = wanted(asked.mr_key_size);
    }
    domain.threading = match asked.threading {
        FI_THREAD_UNSPEC => None,
        FI_THREAD_SAFE | FI_THREAD_FID | FI_THREAD_DOMAIN | FI_THREAD_COMPLETION
        | FI_THREAD_ENDPOINT => Some(Threading::Safe),
        _ => return Err(NO_DATA),
    };
    domain.progress = match (asked.control_progress, asked.data_progress) {
        (FI_PROGRESS_AUTO, _) | (_, FI_PROGRESS_AUTO) => Some(Progress::Automatic),
        // The program says how it calls, which is always enough.
        (FI_PROGRESS_CONTROL_UNIFIED, _) => Some(Progress::Manual),
        (FI_PROGRESS_UNSPEC | FI_PROGRESS_MANUAL, FI_PROGRESS_UNSPEC | FI_PROGRESS_MANUAL) => {
            Some(Progress::Manual)
        }
        _ => return Err(NO_DATA),
    };
    domain.resource_management = match asked.resource_mgmt {
        FI_RM_UNSPEC | FI_RM_DISABLED => None,
        FI_RM_ENABLED => Some(ResourceManagement::Enabled),
        _ => return Err(NO_DATA),
    };
    domain.address_vector = match asked.av_type {
        FI_AV_UNSPEC => None,
        FI_AV_MAP => Some(AddressVectorKind::Map),
        FI_AV_TABLE => Some(AddressVectorKind::Table),
        _ => return Err(NO_DATA),
    };
    domain.cq_data_size = wanted(asked.cq_data_size);
    domain.max_regions = wanted(asked.mr_cnt);
    let limits = &mut hints.limits;
    limits.completion_queues = wanted(asked.cq_cnt);
    limits.endpoints = wanted(asked.ep_cnt);
    limits.transmit_contexts = wanted(asked.tx_ctx_cnt);
    limits.receive_contexts = wanted(asked.rx_ctx_cnt);
    let contexts = asked.max_ep_tx_ctx.max(asked.max_ep_rx_ctx);
    match contexts <= CONTEXTS && asked.max_ep_stx_ctx.max(asked.max_ep_srx_ctx) <= NO_LIMIT {
        true => Ok(()),
        false => Err(NO_DATA),
    }
}

// ---- answers ------------------------------------------------------------------------------------

/// The hints that an answer repeats.
pub(crate) struct RequestedAttributes {
    pub(crate) version: u32,
    pub(crate) caps: u64,
    /// The default flags of operations are those that were asked for.
    pub(crate) transmit_flags: Option<u64>,
    pub(crate) receive_flags: Option<u64>,
    pub(crate) mr_mode: Option<c_int>,
    /// Any number of threads may call, so what the program keeps to is right; MPICH takes no other answer.
    threading: fi_threading,
    av_type: fi_av_type,
    /// Pieces of a message, sent and received.
    pieces: [usize; 2],
    /// Whether the endpoint has a shared context of sends, and one of receives.
    shares: [bool; 2],
    /// Addresses of connections are those of IPv6.
    pub(crate) is_ipv6: bool,
    /// Addresses of endpoints without a connection, or sites.
    pub(crate) source: Option<[u8; Address::SIZE]>,
    pub(crate) destination: Option<[u8; Address::SIZE]>,
}

impl RequestedAttributes {
    pub(crate) fn of(version: u32, asked: Option<ProgramHints<'_>>) -> Self {
        Self {
            version,
            caps: asked.map_or(0, |asked| asked.info.caps),
            transmit_flags: asked
                .and_then(|asked| asked.transmit)
                .map(|transmit| transmit.op_flags),
            receive_flags: asked.and_then(|asked| asked.receive).map(|receive| receive.op_flags),
            mr_mode: asked.and_then(|asked| asked.domain).map(|domain| domain.mr_mode),
            threading: asked
                .and_then(|asked| asked.domain)
                .map_or(FI_THREAD_UNSPEC, |it| it.threading),
            av_type: asked.and_then(|asked| asked.domain).map_or(FI_AV_UNSPEC, |it| it.av_type),
            pieces: [
                asked.and_then(|asked| asked.transmit).map_or(0, |it| it.iov_limit),
                asked.and_then(|asked| asked.receive).map_or(0, |it| it.iov_limit),
            ],
            shares: asked
                .and_then(|asked| asked.endpoint)
                .map_or([false; 2], |it| [it.tx_ctx_cnt, it.rx_ctx_cnt].map(is_shared)),
            is_ipv6: asked.is_some_and(|asked| asked.info.addr_format == FI_SOCKADDR_IN6),
            source: None,
            destination: None,
        }
    }

    /// How memory is registered, in the words of the program.
    fn mr_mode(&self, mode: RegistrationMode) -> c_int {
        let in_words = self.version < MR_MODE_BITS
            || matches!(self.mr_mode, Some(FI_MR_BASIC | FI_MR_SCALABLE));
        match (mode, in_words) {
            _ if self.mr_mode == Some(FI_MR_SCALABLE) => FI_MR_SCALABLE,
            _ if !in_words && self.mr_mode.is_some_and(|asked| asked & BASIC != BASIC) => 0,
            (RegistrationMode::Scalable, true) => FI_MR_SCALABLE,
            (RegistrationMode::Scalable, false) => 0,
            (_, true) => FI_MR_BASIC,
            (_, false) => BASIC,
        }
    }
}

/// Fills the attributes of an entry that are numbers. `to` is an entry of zeros.
pub(crate) fn answer(info: &Info, requested: &RequestedAttributes, to: &mut Answer<'_>) {
    let lacking = lacking(requested.shares[1]);
    let caps = bits::caps(info.capabilities - lacking, requested.caps);
    let is_msg = info.endpoint.kind == EndpointKind::Connected;
    to.info.caps = caps;
    to.info.mode = 0;
    to.info.addr_format = if is_msg { FI_SOCKADDR_IN } else { FI_ADDR_EFA };

    let (from, transmit) = (&info.transmit, &mut *to.transmit);
    transmit.caps = bits::side_caps(from.capabilities, caps, FI_READ | FI_WRITE | FI_NAMED_RX_CTX);
    transmit.op_flags = requested.transmit_flags.unwrap_or(bits::op_flags(from.flags));
    transmit.msg_order = MESSAGE_ORDER;
    transmit.inject_size = from.inject_size;
    transmit.size = from.size.min(NO_LIMIT);
    let [sent, received] = requested.pieces.map(|pieces| pieces.max(PIECES));
    transmit.iov_limit = sent.min(from.iov_limit);
    transmit.rma_iov_limit = from.rma_iov_limit;

    let (from, receive) = (&info.receive, &mut *to.receive);
    receive.caps =
        bits::side_caps(from.capabilities - lacking, caps, FI_REMOTE_READ | FI_REMOTE_WRITE);
    receive.op_flags = requested.receive_flags.unwrap_or(bits::op_flags(from.flags));
    receive.msg_order = MESSAGE_ORDER;
    receive.total_buffered_recv = from.total_buffered;
    receive.size = from.size.min(NO_LIMIT);
    receive.iov_limit = received.min(from.iov_limit);

    let (from, endpoint) = (&info.endpoint, &mut *to.endpoint);
    endpoint.type_ = if is_msg { FI_EP_MSG } else { FI_EP_RDM };
    endpoint.protocol = FI_PROTO_EFA;
    endpoint.protocol_version = from.protocol_version.into();
    endpoint.max_msg_size = usize::try_from(from.max_message_size).unwrap_or(usize::MAX);
    endpoint.mem_tag_format = from.mem_tag_format;
    let contexts = |is_shared| if is_shared { FI_SHARED_CONTEXT } else { CONTEXTS };
    [endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt] = requested.shares.map(contexts);

    let (from, limits, domain) = (&info.domain, &info.limits, &mut *to.domain);
    domain.threading = match requested.threading {
        FI_THREAD_UNSPEC => FI_THREAD_SAFE,
        asked => asked,
    };
    domain.control_progress = progress(from.progress);
    domain.data_progress = progress(from.progress);
    domain.resource_mgmt = FI_RM_ENABLED;
    // Programs that ask for no type may open either.
    domain.av_type = requested.av_type;
    domain.mr_mode = requested.mr_mode(from.registration_mode);
    domain.mr_key_size = from.mr_key_size;
    domain.cq_data_size = from.cq_data_size;
    domain.cq_cnt = limits.completion_queues.min(NO_LIMIT);
    domain.ep_cnt = limits.endpoints.min(NO_LIMIT);
    domain.tx_ctx_cnt = limits.transmit_contexts.min(NO_LIMIT);
    domain.rx_ctx_cnt = limits.receive_contexts.min(NO_LIMIT);
    domain.max_ep_tx_ctx = CONTEXTS;
    domain.max_ep_rx_ctx = CONTEXTS;
    domain.max_ep_stx_ctx = NO_LIMIT;
    domain.max_ep_srx_ctx = NO_LIMIT;
    domain.cntr_cnt = NO_LIMIT;
    domain.mr_iov_limit = 1;
    domain.max_err_data = MOST_DATA;
    domain.caps = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
    domain.mr_cnt = from.max_regions.min(NO_LIMIT);
}

fn progress(progress: Progress) -> fi_progress {
    match progress {
        Progress::Automatic => FI_PROGRESS_AUTO,
        _ => FI_PROGRESS_MANUAL,
    }
}

/// An entry that is filled, and the attributes that it points to.
pub(crate) struct Answer<'a> {
    pub(crate) info: &'a mut fi_info,
    pub(crate) transmit: &'a mut fi_tx_attr,
    pub(crate) receive: &'a mut fi_rx_attr,
    pub(crate) endpoint: &'a mut fi_ep_attr,
    pub(crate) domain: &'a mut fi_domain_attr,
}
