//! The settings of an endpoint.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use efa_device::DeviceAttributes;
use efa_handshake::{DeviceAbilities, Extras, Profile, Release};

use crate::bounds::Bounds;
use crate::rnr::BackoffLimits;

/// Settings of an [`Endpoint`](crate::Endpoint). The defaults suit nearly everyone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Wire-compatibility profile. The default is that of libfabric 2.6, except that no feature
    /// beyond the baseline, connids included, is used before the peer has announced it; older releases
    /// need that. Features that the device lacks are removed when the endpoint is made. One feature is
    /// added: [`Extras::PEER_ERROR_20`], by which endpoints of this implementation tell each other which
    /// operations they give up.
    pub profile: Profile,
    /// Longest message in bytes that is sent by the medium subprotocol
    /// (`FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE`).
    pub max_medium: u64,
    /// Shortest message in bytes that the receiver reads from the sender's memory, if both devices can
    /// (`FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`). `None`: 1 MiB, as in libfabric, and between endpoints of
    /// this implementation from the length on for which the device says that its reads pay
    /// ([`reads_pay_from`](efa_device::DeviceAttributes::reads_pay_from), and for mapped memory
    /// [`mapped_reads_pay_from`](efa_device::DeviceAttributes::mapped_reads_pay_from)).
    pub min_read: Option<u64>,
    /// Shortest write in bytes that the target reads from the writer's memory, if both devices can read
    /// but not write (`FI_EFA_INTER_MIN_READ_WRITE_SIZE`).
    pub min_read_write: u64,
    /// Bytes of a runting-read message that are sent in packets, if the peer is reading no other
    /// message; 0: messages are read as a whole (`FI_EFA_RUNT_SIZE`).
    pub runt_size: u64,
    /// Most bytes of one RDMA work request, if the device doesn't have a lower limit; at least 1
    /// (`FI_EFA_INTER_READ_SEGMENT_SIZE`).
    pub rdma_segment: u64,
    /// Most RDMA work requests posted at a time; at least 1.
    pub max_rdma: usize,
    /// Bytes of a bounce buffer, through which the device reads into buffers that aren't registered;
    /// at least 1.
    pub bounce_size: usize,
    /// Packets that one CTS grants (`FI_EFA_TX_MIN_CREDITS`); at least 1.
    pub cts_window: u32,
    /// What happens to a message for an endpoint that receives in place, if its header has another
    /// length than requested ([`InPlaceQueue`](crate::InPlaceQueue)).
    pub unexpected_header: UnexpectedHeader,
    /// Whether messages wait for the peer's HANDSHAKE. Needed only for peers that receive without
    /// headers (feature 7, libfabric 1.22 to 2.5 on request), which drop a message that has one.
    pub messages_after_handshake: bool,
    /// Send window in messages for a peer that may be older than libfabric 2.0: that many are sent before
    /// all of them are delivered. Such a peer drops messages that are its receive window, usually
    /// 16,384, ahead of the expected one. 0: no limit.
    pub old_peer_window: u32,
    /// Most send operations under way.
    pub max_sends: usize,
    /// Most receives posted, and most messages being received.
    pub max_receives: usize,
    /// Limits on what peers can make the endpoint keep.
    pub bounds: Bounds,
    /// Receive buffers posted to the device by an idle endpoint.
    pub min_receive_buffers: usize,
    /// Receive buffers posted to the device under load; at most what the device allows.
    pub max_receive_buffers: usize,
    /// How many message ids ahead of the expected one are kept; packets beyond are dropped. With the
    /// profile of a release before 2.0 at most its [`receive_window`](Profile::receive_window).
    pub max_reorder: u32,
    /// A multi-receive buffer with fewer free bytes than this is released (`FI_OPT_MIN_MULTI_RECV`).
    pub min_multi_receive: u64,
    /// RNR backoff limits.
    pub backoff: BackoffLimits,
    /// Buffers that were unused for this long are freed.
    pub trim_interval: Duration,
    /// Identifies the host in HANDSHAKE packets; 0 leaves it out.
    pub host_id: u64,
    /// Seed of the hash tables whose keys peers choose: tags and addresses. Make it random, so that no
    /// peer can choose keys that collide.
    pub hash_seed: HashSeed,
    /// First message id in each direction. Both ends must use the same; libfabric uses 0.
    pub first_msg_id: u32,
}

/// A seed of hash tables. `{:?}` doesn't show it: who reads it in a log can choose keys that collide.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashSeed(pub u64);

impl From<u64> for HashSeed {
    fn from(seed: u64) -> Self {
        Self(seed)
    }
}

impl fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

/// Features and requests that this engine has.
const IMPLEMENTED: Extras = Extras::RDMA_READ
    .union(Extras::DELIVERY_COMPLETE)
    .union(Extras::CONNID_HEADER)
    .union(Extras::RUNTING_READ)
    .union(Extras::RDMA_WRITE)
    .union(Extras::UNSOLICITED_WRITE_RECV)
    .union(Extras::READ_NACK);

/// What a device can do at most.
const EVERYTHING: DeviceAbilities =
    DeviceAbilities { rdma_read: true, rdma_write: true, unsolicited_write_receive: true };

impl Default for Config {
    fn default() -> Self {
        let release = Profile::with_device(Release::V2_6, EVERYTHING).announcing_only(IMPLEMENTED);
        Self {
            profile: Profile {
                connid_unasked: false,
                extras: release.extras.union(Extras::PEER_ERROR_20),
                ..release
            },
            max_medium: 65536,
            min_read: None,
            min_read_write: 1 << 16,
            runt_size: 0,
            rdma_segment: 1 << 30,
            max_rdma: 64,
            bounce_size: 1 << 16,
            cts_window: 32,
            unexpected_header: UnexpectedHeader::Refuse,
            messages_after_handshake: false,
            old_peer_window: 8192,
            max_sends: 4096,
            max_receives: 1 << 21,
            bounds: Bounds::default(),
            min_receive_buffers: 64,
            max_receive_buffers: 4096,
            max_reorder: 1 << 16,
            min_multi_receive: 8192,
            backoff: BackoffLimits::default(),
            trim_interval: Duration::from_secs(1),
            host_id: 0,
            hash_seed: HashSeed(0),
            first_msg_id: 0,
        }
    }
}

impl Config {
    /// These settings with some changed:
    ///
    /// ```
    /// let config = efa_rdm::Config::default().with(|config| config.max_medium = 32_768);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// The default settings with the profile of a libfabric release line, without the features that
    /// this engine lacks.
    #[must_use]
    pub fn as_release(release: Release) -> Self {
        let profile = Profile::with_device(release, EVERYTHING).announcing_only(IMPLEMENTED);
        Self { profile, ..Self::default() }
    }
}

/// A setting that is out of range or contradicts another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device's MTU is too small for the largest header and some data.
    #[error("the device's MTU is {mtu} bytes, at least {least} are needed")]
    MtuTooSmall {
        /// The device's.
        mtu: usize,
        /// The least.
        least: usize,
    },
    /// The endpoint is to receive in place, which endpoints of this release don't.
    #[error("libfabric {release} receives no messages in place")]
    NotInPlace {
        /// The release.
        release: Release,
    },
    /// The second queue pair for messages in place is missing, or the release has none.
    #[error(
        "a second queue pair is needed from libfabric 1.22 to 2.5 to receive in place, and only \
             then; this is {release}"
    )]
    UserQueue {
        /// The release.
        release: Release,
    },
    /// The endpoint is to take receives from a queue that others share, and its device matches tags itself.
    #[error("an endpoint on a device with a tag list can't share receives")]
    TagListNotShared,
    /// A queue that endpoints share has more receives than one of them can take.
    #[error("a shared queue of {receives} receives, the endpoint can take at most {limit}")]
    TooManyShared {
        /// Most receives of the queue.
        receives: usize,
        /// Most that the endpoint can take.
        limit: usize,
    },
    /// A setting is below its minimum.
    #[error("{setting} is {value}, at least {least} is needed")]
    TooSmall {
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        least: u64,
    },
}

/// The shortest messages in bytes that receivers read; no empty one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinRead {
    /// From any memory, by a receiver of this implementation.
    any: u64,
    /// From mapped memory, by a receiver of this implementation; at most `any`.
    mapped: u64,
    /// By receivers of other implementations; at least `any`.
    of_others: u64,
}

impl MinRead {
    /// Whether nobody reads a message of this length.
    #[inline(always)]
    pub(crate) fn excludes(self, length: u64, is_mapped: impl FnOnce() -> bool) -> bool {
        length < self.mapped || (length < self.any && !is_mapped())
    }

    /// The shortest message that a peer of this or of another implementation reads.
    pub(crate) fn by(self, is_ours: bool) -> Option<NonZeroU64> {
        NonZeroU64::new(if is_ours { self.mapped } else { self.of_others })
    }
}

impl Config {
    /// libfabric's default of `FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`: 1 MiB.
    pub const MIN_READ_OF_LIBFABRIC: u64 = 1 << 20;

    /// The shortest messages that receivers read on a device: the application's choice, or the device's.
    pub(crate) fn min_read_on(&self, device: &DeviceAttributes) -> MinRead {
        let (any, mapped) = match self.min_read {
            Some(chosen) => (chosen, chosen),
            None => (device.reads_pay_from, device.mapped_reads_pay_from),
        };
        let of_others = self.min_read.unwrap_or(Self::MIN_READ_OF_LIBFABRIC).max(any);
        let [any, mapped, of_others] = [any, mapped, of_others].map(|length| length.max(1));
        MinRead { any, mapped: mapped.min(any), of_others }
    }

    /// Message ids ahead of the expected one that are kept.
    pub(crate) fn reorder(&self) -> u32 {
        self.profile.receive_window.unwrap_or(u32::MAX).min(self.max_reorder)
    }

    pub(crate) fn check(&self, mtu: usize) -> Result<(), ConfigError> {
        if mtu < MIN_MTU {
            return Err(ConfigError::MtuTooSmall { mtu, least: MIN_MTU });
        }
        let positive = [
            ("cts_window", u64::from(self.cts_window)),
            ("rdma_segment", self.rdma_segment),
            ("max_rdma", self.max_rdma as u64),
            ("bounce_size", self.bounce_size as u64),
            ("max_sends", self.max_sends as u64),
            ("max_receives", self.max_receives as u64),
            ("bounds.requests", self.bounds.requests as u64),
            ("min_receive_buffers", self.min_receive_buffers as u64),
            ("max_receive_buffers", self.max_receive_buffers as u64),
            ("max_reorder", u64::from(self.max_reorder)),
            ("profile.receive_window", self.profile.receive_window.unwrap_or(1).into()),
            ("min_multi_receive", self.min_multi_receive),
        ];
        match positive.into_iter().find(|(_, value)| *value == 0) {
            Some((setting, value)) => Err(ConfigError::TooSmall { setting, value, least: 1 }),
            None => Ok(()),
        }
    }
}

/// The largest header of a request: 24 + 40 + 8 + 4 · 24 bytes.
pub(crate) const MAX_REQ_HEADER: usize = 168;

/// Most bytes that can be injected on a device with this MTU in bytes: the MTU less the largest header.
#[must_use]
pub const fn inject_limit(mtu: usize) -> usize {
    mtu.saturating_sub(MAX_REQ_HEADER)
}

/// Room for the largest header and some data.
const MIN_MTU: usize = 256;

/// What happens to a message for an endpoint that receives in place, if its header doesn't have the
/// requested length because its sender doesn't know the request (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnexpectedHeader {
    /// The receive fails with [`OperationError::UnexpectedHeader`](crate::OperationError::UnexpectedHeader).
    Refuse,
    /// The message is moved to its place in the packet: one copy.
    Move,
}
