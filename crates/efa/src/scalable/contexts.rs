//! The contexts of a scalable endpoint.

use std::sync::Arc;

use efa_rdm::{AtomicKind, Statistics};

use crate::address_vector::FiAddr;
use crate::attributes::{ReceiveAttributes, TransmitAttributes};
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::capabilities::OperationFlags;
use crate::claim::{Claim, UnexpectedMessage};
use crate::completion::{Refused, StartError};
use crate::endpoint::{Endpoint, EndpointId};
use crate::message::{Message, Receive, ReceiveId};
use crate::rma::{AtomicRefused, Operation, Rma};

/// A transmit context of a [`ScalableEndpoint`](crate::ScalableEndpoint). Clones are handles to the same context.
///
/// It receives nothing:
///
/// ```compile_fail,E0599
/// # use efa::{Receive, TransmitContext};
/// # fn f(context: TransmitContext) {
/// context.receive(Receive::untagged(), vec![0; 64], 1);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransmitContext {
    endpoint: Arc<Endpoint>,
    index: usize,
}

impl TransmitContext {
    pub(super) fn new(endpoint: &Arc<Endpoint>, index: usize) -> Self {
        Self { endpoint: Arc::clone(endpoint), index }
    }

    /// Its index among the transmit contexts.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number that its completions have ([`Completion::endpoint`](crate::Completion::endpoint)), and those of the
    /// receive context with this index.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// Limits and properties.
    #[must_use]
    pub fn attributes(&self) -> &TransmitAttributes {
        self.endpoint.transmit_attributes()
    }

    /// [`Endpoint::send`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn send(
        &self,
        message: Message,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        self.endpoint.send(message, buffer, context)
    }

    /// [`Endpoint::inject`].
    ///
    /// # Errors
    /// The operation was not started.
    pub fn inject(&self, message: Message, bytes: &[u8]) -> Result<(), StartError> {
        self.endpoint.inject(message, bytes)
    }

    /// [`Endpoint::copy_injected`].
    ///
    /// # Errors
    /// There are too many bytes.
    pub fn copy_injected(&self, buffer: &Buffer) -> Result<Buffer, StartError> {
        self.endpoint.copy_injected(buffer)
    }

    /// [`Endpoint::write`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn write(&self, rma: Rma, buffer: impl Into<Buffer>, context: u64) -> Result<(), Refused> {
        self.endpoint.write(rma, buffer, context)
    }

    /// [`Endpoint::inject_write`].
    ///
    /// # Errors
    /// The operation was not started.
    pub fn inject_write(&self, rma: Rma, bytes: &[u8]) -> Result<(), StartError> {
        self.endpoint.inject_write(rma, bytes)
    }

    /// [`Endpoint::read`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn read(
        &self,
        rma: Rma,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), Refused> {
        self.endpoint.read(rma, buffer, context)
    }

    /// [`Endpoint::atomic`].
    ///
    /// # Errors
    /// The operation was not started.
    pub fn atomic(
        &self,
        rma: Rma,
        operation: Operation,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        self.endpoint.atomic(rma, operation, context)
    }

    /// [`Endpoint::inject_atomic`].
    ///
    /// # Errors
    /// The operation was not started.
    pub fn inject_atomic(&self, rma: Rma, operation: Operation) -> Result<(), StartError> {
        self.endpoint.inject_atomic(rma, operation)
    }

    /// [`Endpoint::fetch_atomic`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn fetch_atomic(
        &self,
        rma: Rma,
        operation: Operation,
        fetched: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        self.endpoint.fetch_atomic(rma, operation, fetched, context)
    }

    /// [`Endpoint::atomic_limit`].
    #[must_use]
    pub fn atomic_limit(&self, kind: AtomicKind) -> usize {
        self.endpoint.atomic_limit(kind)
    }

    /// [`Endpoint::transmits_left`].
    #[must_use]
    pub fn transmits_left(&self) -> usize {
        self.endpoint.transmits_left()
    }

    /// [`Endpoint::statistics`] of its queue pair.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.endpoint.statistics()
    }
}

/// A receive context of a [`ScalableEndpoint`](crate::ScalableEndpoint). Clones are handles to the same context.
///
/// It sends nothing:
///
/// ```compile_fail,E0599
/// # use efa::{FiAddr, Message, ReceiveContext};
/// # fn f(context: ReceiveContext) {
/// context.send(Message::to(FiAddr(0)), "hello", 1);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReceiveContext {
    endpoint: Arc<Endpoint>,
    index: usize,
}

impl ReceiveContext {
    pub(super) fn new(endpoint: &Arc<Endpoint>, index: usize) -> Self {
        Self { endpoint: Arc::clone(endpoint), index }
    }

    /// Its index among the receive contexts.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number that its completions have ([`Completion::endpoint`](crate::Completion::endpoint)), and those of the
    /// transmit context with this index.
    #[must_use]
    pub fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// Limits and properties.
    #[must_use]
    pub fn attributes(&self) -> &ReceiveAttributes {
        self.endpoint.receive_attributes()
    }

    /// [`Endpoint::receive`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.endpoint.receive(receive, buffer, context)
    }

    /// [`Endpoint::receive_many`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn receive_many(
        &self,
        source: Option<FiAddr>,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.endpoint.receive_many(source, buffer, context)
    }

    /// [`Endpoint::receive_many_flags`].
    ///
    /// # Errors
    /// The operation was not started; the buffer comes back.
    pub fn receive_many_flags(
        &self,
        source: Option<FiAddr>,
        flags: OperationFlags,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        self.endpoint.receive_many_flags(source, flags, buffer, context)
    }

    /// [`Endpoint::set_min_multi_receive`], for this context.
    pub fn set_min_multi_receive(&self, bytes: u64) {
        self.endpoint.set_min_multi_receive(bytes);
    }

    /// [`Endpoint::receives_left`].
    #[must_use]
    pub fn receives_left(&self) -> usize {
        self.endpoint.receives_left()
    }

    /// [`Endpoint::peek`].
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn peek(&self, receive: Receive) -> Result<Option<UnexpectedMessage>, StartError> {
        self.endpoint.peek(receive)
    }

    /// [`Endpoint::claim`].
    ///
    /// # Errors
    /// As for [`receive`](Self::receive).
    pub fn claim(&self, receive: Receive) -> Result<Option<Claim>, StartError> {
        self.endpoint.claim(receive)
    }

    /// [`Endpoint::cancel`].
    pub fn cancel(&self, receive: ReceiveId) -> bool {
        self.endpoint.cancel(receive)
    }

    /// [`Endpoint::cancel_context`].
    pub fn cancel_context(&self, context: u64) -> bool {
        self.endpoint.cancel_context(context)
    }

    /// [`Endpoint::statistics`] of its queue pair.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.endpoint.statistics()
    }
}
