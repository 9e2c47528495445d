//! What can be set on an endpoint.

use std::time::Duration;

use efa_handshake::{DeviceAbilities, Extras, Profile, Release};

use crate::bounds::Bounds;
use crate::rnr::BackoffLimits;

/// Settings of an [`Endpoint`](crate::Endpoint). The defaults suit nearly everyone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The habits on the wire; the default is libfabric 2.6's, except that the bits of the peer
    /// are tested before anything beyond the baseline is used, connids included, as older releases
    /// need. Features that the device can't do are left out when the endpoint is made. PEER_ERROR,
    /// which no release has, is used if [`Extras::PEER_ERROR`] is added to its bits.
    pub profile: Profile,
    /// Longest message in bytes that is sent as medium message, without flow control
    /// (`FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE`).
    pub max_medium: u64,
    /// Shortest message in bytes that the receiver reads from registered memory of the sender, where
    /// both can (`FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`).
    pub min_read: u64,
    /// Shortest write in bytes that the target reads from memory of the writer, where both can and
    /// the device doesn't write by itself (`FI_EFA_INTER_MIN_READ_WRITE_SIZE`).
    pub min_read_write: u64,
    /// Bytes of a message that is read that go in packets beforehand when no other is being read; 0: none
    /// (`FI_EFA_RUNT_SIZE`).
    pub runt_size: u64,
    /// Most bytes of one RDMA operation, if the device doesn't set a lower limit; at least 1
    /// (`FI_EFA_INTER_READ_SEGMENT_SIZE`).
    pub rdma_segment: u64,
    /// Most RDMA operations that the device has at a time; at least 1.
    pub max_rdma: usize,
    /// Bytes of a region that messages are read into on their way to buffers that aren't
    /// registered; at least 1.
    pub bounce_size: usize,
    /// Packets that one CTS allows (`FI_EFA_TX_MIN_CREDITS`); at least 1.
    pub cts_window: u32,
    /// What becomes of messages that were to be received in place, if their headers don't allow it
    /// ([`InPlaceQueue`](crate::InPlaceQueue)).
    pub unexpected_header: UnexpectedHeader,
    /// Messages wait for the peer's HANDSHAKE. Needed only where peers may take them straight into
    /// their application's buffers, which libfabric 1.22 to 2.5 do on request (feature 7) and tell
    /// in their HANDSHAKE; such a peer drops a message with a header.
    pub messages_after_handshake: bool,
    /// Most message ids that a peer which may be older than libfabric 2.0 is sent before all of them
    /// are delivered: such a peer drops messages that are its window ahead of the one it expects,
    /// usually 16,384. 0: no limit.
    pub old_peer_window: u32,
    /// Most send operations under way.
    pub max_sends: usize,
    /// Most receives posted, and most messages being received.
    pub max_receives: usize,
    /// What peers may make the endpoint keep.
    pub bounds: Bounds,
    /// Receive buffers posted to the device by an idle endpoint.
    pub min_receive_buffers: usize,
    /// Receive buffers posted to the device under load; at most what the device allows.
    pub max_receive_buffers: usize,
    /// How many message ids ahead of the expected one are kept; ids beyond are a protocol error. With
    /// the habits of a release before 2.0 no more than its
    /// [`receive_window`](Profile::receive_window).
    pub max_reorder: u32,
    /// A multi-receive buffer with less room than this is given back.
    pub min_multi_receive: u64,
    /// Patience with receivers that are not ready.
    pub backoff: BackoffLimits,
    /// Buffers that lay unused for this long are given back.
    pub trim_interval: Duration,
    /// Identifies the host in HANDSHAKE packets; 0 leaves it out.
    pub host_id: u64,
    /// Secret of the hash tables that remote tags go into.
    pub hash_seed: u64,
    /// Sends every packet as this message id from the start. Both ends must agree.
    pub first_msg_id: u32,
}

/// Features and requests that this engine honours.
const IMPLEMENTED: Extras = Extras::RDMA_READ
    .union(Extras::DELIVERY_COMPLETE)
    .union(Extras::CONNID_HEADER)
    .union(Extras::RUNTING_READ)
    .union(Extras::RDMA_WRITE)
    .union(Extras::UNSOLICITED_WRITE_RECV)
    .union(Extras::READ_NACK)
    .union(Extras::PEER_ERROR);

/// What a device can do at most.
const EVERYTHING: DeviceAbilities =
    DeviceAbilities { rdma_read: true, rdma_write: true, unsolicited_write_receive: true };

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: Profile {
                connid_unasked: false,
                ..Profile::with_device(Release::V2_6, EVERYTHING).announcing_only(IMPLEMENTED)
            },
            max_medium: 65536,
            min_read: 1 << 20,
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
            hash_seed: 0,
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

    /// The default settings with the habits of a release line of libfabric, as far as this engine
    /// has its features.
    #[must_use]
    pub fn as_release(release: Release) -> Self {
        let profile = Profile::with_device(release, EVERYTHING).announcing_only(IMPLEMENTED);
        Self { profile, ..Self::default() }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The device's datagrams can't hold the largest header and a byte.
    #[error("the device's MTU is {mtu} bytes, at least {least} are needed")]
    MtuTooSmall {
        /// The device's.
        mtu: usize,
        /// The least.
        least: usize,
    },
    /// Messages are to be received in place, and no endpoint of this release does that.
    #[error("libfabric {release} receives no messages in place")]
    NotInPlace {
        /// The release.
        release: Release,
    },
    /// A queue pair for messages in place is missing, or has no use.
    #[error(
        "a second queue pair is needed from libfabric 1.22 to 2.5 to receive in place, and only \
             then; this is {release}"
    )]
    UserQueue {
        /// The release.
        release: Release,
    },
    /// A setting must be at least something.
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

impl Config {
    /// How many message ids ahead of the expected one are kept.
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

/// Most bytes that can be injected over a device with datagrams of `mtu` bytes: what is left beside
/// the largest header, whatever the header of the message at hand.
#[must_use]
pub const fn inject_limit(mtu: usize) -> usize {
    mtu.saturating_sub(MAX_REQ_HEADER)
}

/// Room for the largest header and some data.
const MIN_MTU: usize = 256;

/// What becomes of a message whose header is not of the length that was asked for: its sender
/// ignores the request, or doesn't know it (section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnexpectedHeader {
    /// The receive fails with [`OperationError::UnexpectedHeader`].
    Refuse,
    /// The message is moved to where it should be.
    Move,
}
