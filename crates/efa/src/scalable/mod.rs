//! Scalable endpoints: several contexts behind one address.
//!
//! ```text
//!   ScalableEndpoint ── queue pair 0 ── transmit context 0, receive context 0
//!     (one address)  ├─ queue pair 1 ── transmit context 1, receive context 1
//!                    └─ queue pair 2 ── transmit context 2
//! ```
//!
//! Each queue pair is an endpoint of its own on the device, with its own lock and completion queues.

mod builder;
mod contexts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use efa_rdm::AtomicKind;

pub use builder::{ScalableEndpointBuilder, ScalableOptions};
pub use contexts::{ReceiveContext, TransmitContext};

use crate::address_vector::FiAddr;
use crate::attributes::EndpointAttributes;
use crate::buffer::{Buffer, ReceiveBuffer};
use crate::capabilities::{Capabilities, OperationFlags};
use crate::claim::{Claim, UnexpectedMessage};
use crate::completion::{Refused, StartError};
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::CloseError;
use crate::event::Event;
use crate::message::{Message, Receive, ReceiveId};
use crate::rma::{AtomicRefused, Operation, Rma};
use crate::scalable_address::ScalableAddress;

/// There is no context with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {direction} context {index}, the endpoint has {contexts}")]
pub struct NoSuchContext {
    /// `transmit` or `receive`.
    pub direction: &'static str,
    /// The index.
    pub index: usize,
    /// How many contexts there are in this direction.
    pub contexts: usize,
}

/// An endpoint with several transmit contexts, receive contexts or both behind one address (`fi_scalable_ep`). Each
/// context has its own completion queue or shares one, and may have fewer capabilities than the endpoint. Threads that
/// use different queue pairs don't wait for each other.
///
/// Operations are started on a [`TransmitContext`] or a [`ReceiveContext`], which has the methods of its direction
/// only. In a direction with one context they are started on the endpoint itself; with more, that is
/// [`StartError::SeveralContexts`].
///
/// Peers insert the [address](Self::address) with
/// [`AddressVector::insert_scalable`](crate::AddressVector::insert_scalable), and send to the receive context `n` by
/// [`AddressVector::receive_context`](crate::AddressVector::receive_context). Messages from one transmit context to one
/// receive context keep their order; others have none.
///
/// Each queue pair takes the place of an endpoint of the domain. A peer of another implementation sees as many
/// endpoints: the first 32 bytes of the address are that of the first, and what other contexts send comes from senders
/// that it need not know. Nothing about contexts is in a packet, and all 64 bits of tags are the program's.
///
/// ```
/// # use std::time::Duration;
/// use efa::{
///     AddressVectorOptions, CompletionQueueOptions, Direction, Fabric, LocalOptions, Message,
///     Receive, ScalableOptions,
/// };
///
/// let domain = Fabric::local(LocalOptions::default()).domain()?;
/// let addresses = domain.address_vector_with(AddressVectorOptions::new().receive_context_bits(1))?;
/// let control = domain.completion_queue(CompletionQueueOptions::default());
/// let data = domain.completion_queue(CompletionQueueOptions::default());
/// let server = domain
///     .scalable_endpoint(ScalableOptions::new().transmit_contexts(1).receive_contexts(2))
///     .bind_completion_queue(&control, Direction::Both)
///     .bind_receive_queue(1, &data)
///     .bind_address_vector(&addresses)
///     .enable()?;
/// let client = domain
///     .scalable_endpoint(ScalableOptions::new())
///     .bind_completion_queue(&control, Direction::Both)
///     .bind_address_vector(&addresses)
///     .enable()?;
///
/// server.receive_context(1)?.receive(Receive::untagged(), vec![0; 64], 7)?;
/// let peer = addresses.insert_scalable(server.address())?;
/// let to_data = addresses.receive_context(peer, 1)?;
/// client.send(Message::to(to_data), "hello", 8)?;
/// # control.wait(Duration::from_secs(10))?;
/// assert_eq!(data.wait(Duration::from_secs(10))?.context, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ScalableEndpoint {
    domain: Domain,
    capabilities: Capabilities,
    address: ScalableAddress,
    attributes: EndpointAttributes,
    queue_pairs: Vec<Arc<Endpoint>>,
    context: u64,
}

impl ScalableEndpoint {
    /// The address that peers insert into their address vectors (`fi_getname`).
    #[must_use]
    pub fn address(&self) -> &ScalableAddress {
        &self.address
    }

    /// Limits and properties: the numbers of contexts, and the length of the address, are its own; the others are
    /// those of each context.
    #[must_use]
    pub fn attributes(&self) -> &EndpointAttributes {
        &self.attributes
    }

    /// The capabilities that were enabled; a context may have fewer.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// A transmit context (`fi_tx_context`).
    ///
    /// # Errors
    /// There is none with this index.
    pub fn transmit_context(&self, index: usize) -> Result<TransmitContext, NoSuchContext> {
        let contexts = self.attributes.transmit_contexts;
        let endpoint = self.queue_pair("transmit", index, contexts)?;
        Ok(TransmitContext::new(endpoint, index))
    }

    /// A receive context (`fi_rx_context`).
    ///
    /// # Errors
    /// There is none with this index.
    pub fn receive_context(&self, index: usize) -> Result<ReceiveContext, NoSuchContext> {
        let contexts = self.attributes.receive_contexts;
        let endpoint = self.queue_pair("receive", index, contexts)?;
        Ok(ReceiveContext::new(endpoint, index))
    }

    fn queue_pair(
        &self,
        direction: &'static str,
        index: usize,
        contexts: usize,
    ) -> Result<&Arc<Endpoint>, NoSuchContext> {
        let found = self.queue_pairs[..contexts].get(index);
        found.ok_or(NoSuchContext { direction, index, contexts })
    }

    /// The endpoint of the only transmit context.
    fn transmitter(&self) -> Result<&Endpoint, StartError> {
        self.only("transmit", self.attributes.transmit_contexts)
    }

    /// The endpoint of the only receive context.
    fn receiver(&self) -> Result<&Endpoint, StartError> {
        self.only("receive", self.attributes.receive_contexts)
    }

    fn only(&self, direction: &'static str, contexts: usize) -> Result<&Endpoint, StartError> {
        match (contexts, self.queue_pairs.first()) {
            (1, Some(only)) => Ok(only),
            _ => Err(StartError::SeveralContexts { direction, contexts }),
        }
    }

    /// [`Endpoint::send`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::send`].
    pub fn send(
        &self,
        message: Message,
        buffer: impl Into<Buffer>,
        context: u64,
    ) -> Result<(), Refused> {
        match self.transmitter() {
            Ok(only) => only.send(message, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into() }),
        }
    }

    /// [`Endpoint::inject`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::inject`].
    pub fn inject(&self, message: Message, bytes: &[u8]) -> Result<(), StartError> {
        self.transmitter()?.inject(message, bytes)
    }

    /// [`Endpoint::copy_injected`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::copy_injected`].
    pub fn copy_injected(&self, buffer: &Buffer) -> Result<Buffer, StartError> {
        self.transmitter()?.copy_injected(buffer)
    }

    /// [`Endpoint::write`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::write`].
    pub fn write(&self, rma: Rma, buffer: impl Into<Buffer>, context: u64) -> Result<(), Refused> {
        match self.transmitter() {
            Ok(only) => only.write(rma, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into() }),
        }
    }

    /// [`Endpoint::inject_write`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::inject_write`].
    pub fn inject_write(&self, rma: Rma, bytes: &[u8]) -> Result<(), StartError> {
        self.transmitter()?.inject_write(rma, bytes)
    }

    /// [`Endpoint::read`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::read`].
    pub fn read(
        &self,
        rma: Rma,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), Refused> {
        match self.transmitter() {
            Ok(only) => only.read(rma, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into().0 }),
        }
    }

    /// [`Endpoint::atomic`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::atomic`].
    pub fn atomic(
        &self,
        rma: Rma,
        operation: Operation,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        match self.transmitter() {
            Ok(only) => only.atomic(rma, operation, context),
            Err(error) => Err(AtomicRefused {
                error,
                operation: Box::new(operation),
                fetched: Buffer::default(),
            }),
        }
    }

    /// [`Endpoint::inject_atomic`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::inject_atomic`].
    pub fn inject_atomic(&self, rma: Rma, operation: Operation) -> Result<(), StartError> {
        self.transmitter()?.inject_atomic(rma, operation)
    }

    /// [`Endpoint::fetch_atomic`] on the only transmit context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::fetch_atomic`].
    pub fn fetch_atomic(
        &self,
        rma: Rma,
        operation: Operation,
        fetched: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<(), AtomicRefused> {
        match self.transmitter() {
            Ok(only) => only.fetch_atomic(rma, operation, fetched, context),
            Err(error) => {
                let (operation, fetched) = (Box::new(operation), fetched.into().0);
                Err(AtomicRefused { error, operation, fetched })
            }
        }
    }

    /// [`Endpoint::atomic_limit`], which is the same for all contexts.
    #[must_use]
    pub fn atomic_limit(&self, kind: AtomicKind) -> usize {
        self.queue_pairs.first().map_or(0, |first| first.atomic_limit(kind))
    }

    /// [`Endpoint::receive`] on the only receive context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::receive`].
    pub fn receive(
        &self,
        receive: Receive,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        match self.receiver() {
            Ok(only) => only.receive(receive, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into().0 }),
        }
    }

    /// [`Endpoint::receive_many`] on the only receive context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::receive_many`].
    pub fn receive_many(
        &self,
        source: Option<FiAddr>,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        match self.receiver() {
            Ok(only) => only.receive_many(source, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into().0 }),
        }
    }

    /// [`Endpoint::receive_many_flags`] on the only receive context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::receive_many_flags`].
    pub fn receive_many_flags(
        &self,
        source: Option<FiAddr>,
        flags: OperationFlags,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<ReceiveId, Refused> {
        match self.receiver() {
            Ok(only) => only.receive_many_flags(source, flags, buffer, context),
            Err(error) => Err(Refused { error, buffer: buffer.into().0 }),
        }
    }

    /// [`Endpoint::set_min_multi_receive`] of all receive contexts.
    pub fn set_min_multi_receive(&self, bytes: u64) {
        for pair in &self.queue_pairs[..self.attributes.receive_contexts] {
            pair.set_min_multi_receive(bytes);
        }
    }

    /// [`Endpoint::peek`] on the only receive context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::peek`].
    pub fn peek(&self, receive: Receive) -> Result<Option<UnexpectedMessage>, StartError> {
        self.receiver()?.peek(receive)
    }

    /// [`Endpoint::claim`] on the only receive context.
    ///
    /// # Errors
    /// [`StartError::SeveralContexts`]; as for [`Endpoint::claim`].
    pub fn claim(&self, receive: Receive) -> Result<Option<Claim>, StartError> {
        self.receiver()?.claim(receive)
    }

    /// [`Endpoint::cancel`] on the only receive context; `false` with several, which cancel their own receives.
    pub fn cancel(&self, receive: ReceiveId) -> bool {
        self.receiver().is_ok_and(|only| only.cancel(receive))
    }

    /// [`Endpoint::cancel_context`] on the only receive context; `false` with several.
    pub fn cancel_context(&self, context: u64) -> bool {
        self.receiver().is_ok_and(|only| only.cancel_context(context))
    }

    /// Returns the next event of a queue pair, with its index, if there is one.
    #[must_use]
    pub fn event(&self) -> Option<(usize, Event)> {
        let queue_pairs = self.queue_pairs.iter().enumerate();
        queue_pairs.filter_map(|(index, pair)| Some((index, pair.event()?))).next()
    }

    /// [`Endpoint::discard_completions`] of all contexts.
    pub fn discard_completions(&self) {
        self.queue_pairs.iter().for_each(|pair| pair.discard_completions());
    }

    /// Closes all contexts, one after the other, as [`Endpoint::close`] does. Without it, each queue pair is closed
    /// when the endpoint and the contexts that were taken from it are dropped.
    ///
    /// # Errors
    /// Not all was sent in time. The contexts are closed nevertheless.
    pub fn close(&self, timeout: Duration) -> Result<(), CloseError> {
        let mut result = Ok(());
        for pair in &self.queue_pairs {
            result = result.and(pair.close(timeout));
        }
        result
    }

    pub(crate) fn user_context(&self) -> u64 {
        self.context
    }
}

impl fmt::Debug for ScalableEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScalableEndpoint").field(&self.address).finish()
    }
}
