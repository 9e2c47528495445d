//! Capabilities of endpoints, demands on programs, and flags of operations.

use std::fmt;

use bitflags::bitflags;
use efa_rdm::Level;

bitflags! {
    /// Capabilities of an endpoint. The names are libfabric's without `FI_`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// Untagged messages.
        const MSG = 1;
        /// Tagged messages.
        const TAGGED = 1 << 1;
        /// Reads and writes of remote memory.
        const RMA = 1 << 2;
        /// Atomic operations on remote memory.
        const ATOMIC = 1 << 3;
        /// Sending. Without `SEND` and `RECV`, both are enabled.
        const SEND = 1 << 8;
        /// Receiving.
        const RECV = 1 << 9;
        /// Multi-receive buffers.
        const MULTI_RECV = 1 << 16;
        /// Completions of receives name the sender.
        const SOURCE = 1 << 17;
        /// Receives that match messages of one sender only.
        const DIRECTED_RECV = 1 << 18;
        /// Events at the target of a remote write. Never offered.
        const RMA_EVENT = 1 << 19;
        /// Operations that start when a counter reaches a value. Never offered.
        const TRIGGER = 1 << 20;
    }
}

impl Capabilities {
    /// All that this crate implements.
    pub const OFFERED: Self = Self::MSG
        .union(Self::TAGGED)
        .union(Self::RMA)
        .union(Self::ATOMIC)
        .union(Self::SEND)
        .union(Self::RECV)
        .union(Self::MULTI_RECV)
        .union(Self::SOURCE)
        .union(Self::DIRECTED_RECV);

    /// Capabilities that only receiving endpoints have.
    const RECEIVE_ONLY: Self =
        Self::RECV.union(Self::MULTI_RECV).union(Self::SOURCE).union(Self::DIRECTED_RECV);

    /// What is enabled when this is requested: without a direction, both.
    #[must_use]
    pub fn enabled(self) -> Self {
        let directions = Self::SEND | Self::RECV;
        if self.intersects(directions) { self } else { self | directions }
    }

    /// Those of the transmit side: what the endpoint sends, writes, reads and updates.
    pub(crate) fn transmitting(self) -> Self {
        self - Self::RECEIVE_ONLY
    }

    /// Those of the receive side: what the endpoint receives, and what peers do with its memory.
    pub(crate) fn receiving(self) -> Self {
        self - Self::SEND
    }

    /// What is enabled on one side, which can have `offered`, when this is requested: without a direction,
    /// the one of that side.
    pub(crate) fn enabled_of(self, offered: Self) -> Self {
        let directions = Self::SEND | Self::RECV;
        if self.intersects(directions) { self } else { self | (offered & directions) }
    }
}

/// Prints names: `MSG | SEND`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

impl Default for Capabilities {
    /// No capability.
    fn default() -> Self {
        Self::empty()
    }
}

bitflags! {
    /// Demands on the program (mode bits). A program offers those that it can meet; an
    /// [entry](crate::Info) has those that it must meet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Mode: u32 {
        /// Operations get a block of memory that stays valid until they complete (`FI_CONTEXT`). Never
        /// demanded: a context is a number.
        const CONTEXT = 1;
        /// Buffers of operations are registered memory (`FI_LOCAL_MR`).
        const LOCAL_MR = 1 << 1;
    }
}

/// Prints names: `CONTEXT | LOCAL_MR`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

bitflags! {
    /// Flags of operations: when they complete. The names are libfabric's without `FI_`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OperationFlags: u32 {
        /// Success is an entry of the completion queue, also if that is bound
        /// [selectively](crate::EndpointBuilder::selective). Other queues get all entries, whether an operation
        /// has this flag or not.
        const COMPLETION = 1;
        /// The operation completes when the peer's device has all packets. Without another level, the
        /// level of every operation.
        const TRANSMIT_COMPLETE = 1 << 1;
        /// The operation completes when its result is visible at the target.
        const DELIVERY_COMPLETE = 1 << 2;
        /// The operation completes when its bytes are copied, and its buffer may be reused.
        const INJECT_COMPLETE = 1 << 3;
    }
}

impl OperationFlags {
    /// Those that operations of the transmit side can have.
    pub(crate) const TRANSMIT: Self = Self::all();

    /// Those that operations of the receive side can have.
    pub(crate) const RECEIVE: Self = Self::COMPLETION;

    /// The default of operations of the transmit side.
    pub(crate) const USUAL_TRANSMIT: Self = Self::COMPLETION.union(Self::TRANSMIT_COMPLETE);

    /// The default of operations of the receive side.
    pub(crate) const USUAL_RECEIVE: Self = Self::COMPLETION;

    /// The completion level: the strongest of those that are set.
    pub(crate) fn level(self) -> Level {
        match () {
            () if self.contains(Self::DELIVERY_COMPLETE) => Level::Delivery,
            () if self.contains(Self::TRANSMIT_COMPLETE) => Level::Transmit,
            () if self.contains(Self::INJECT_COMPLETE) => Level::Inject,
            () => Level::Transmit,
        }
    }
}

/// Prints names: `COMPLETION | DELIVERY_COMPLETE`.
impl fmt::Display for OperationFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
