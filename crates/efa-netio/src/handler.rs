//! Events as calls.

use std::io;
use std::net::SocketAddr;

use efa::OperationError;

use crate::context::Netio;
use crate::counts::SubscriberCounts;
use crate::delivery::Delivery;
use crate::event::{ClosedReason, Event, RefusedReason, Tag};
use crate::ids::{
    AnySocket, ListenSocket, PublishSocket, ReceiveSocket, SendSocket, SubscribeSocket, Timer,
};
use crate::memory::Message;

/// What [`Netio::run`] calls for each event. Each method may be left out, and may call anything of the context. All run
/// on the thread that drives the context. The methods are those of [`Event`], where each is explained.
#[allow(unused_variables, reason = "a method that is left out uses nothing")]
pub trait Handler {
    /// Any event. Calls the others, unless the program has a method of its own in place.
    fn event(&mut self, netio: &mut Netio, event: Event) {
        match event {
            Event::Connected(socket) => self.connected(netio, socket),
            Event::Refused { socket, reason } => self.refused(netio, socket, reason),
            Event::Closed { socket, reason } => self.closed(netio, socket, reason),
            Event::BindRefused { socket, error } => self.bind_refused(netio, socket, error),
            Event::Accepted { listener, socket, from } => {
                self.accepted(netio, listener, socket, from);
            }
            Event::CallerRefused { socket, from, reason } => {
                self.caller_refused(netio, socket, from, reason);
            }
            Event::Received { socket, message, data: Some(data) } => {
                self.received_with_data(netio, socket, message, data);
            }
            Event::Received { socket, message, data: None } => {
                self.received(netio, socket, message);
            }
            Event::SendCompleted { socket, message, result } => {
                self.send_completed(netio, socket, message, result);
            }
            Event::Writable(socket) => self.writable(netio, socket),
            Event::SubscriberConnected { socket, peer } => {
                self.subscriber_connected(netio, socket, peer);
            }
            Event::SubscriberClosed { socket, reason, counts } => {
                self.subscriber_closed(netio, socket, reason, *counts);
            }
            Event::Subscriber { socket, tag, peer } => self.subscriber(netio, socket, tag, peer),
            Event::Unsubscriber { socket, tag, peer } => {
                self.unsubscriber(netio, socket, tag, peer);
            }
            Event::Published { socket, message, served, lost } => {
                self.published(netio, socket, message, served, lost);
            }
            Event::Subscribed { socket, tag } => self.subscribed(netio, socket, tag),
            Event::SubscriptionRefused { socket, tag } => {
                self.subscription_refused(netio, socket, tag);
            }
            Event::Unsubscribed { socket, tag } => self.unsubscribed(netio, socket, tag),
            Event::Message { socket, tag, message } => self.message(netio, socket, tag, message),
            Event::Timer(timer) => self.timer(netio, timer),
            Event::Signal => self.signal(netio),
        }
    }

    /// [`Event::Connected`].
    fn connected(&mut self, netio: &mut Netio, socket: AnySocket) {}
    /// [`Event::Refused`].
    fn refused(&mut self, netio: &mut Netio, socket: AnySocket, reason: RefusedReason) {}
    /// [`Event::Closed`].
    fn closed(&mut self, netio: &mut Netio, socket: AnySocket, reason: ClosedReason) {}
    /// [`Event::BindRefused`].
    fn bind_refused(&mut self, netio: &mut Netio, socket: AnySocket, error: io::Error) {}
    /// [`Event::Accepted`].
    fn accepted(
        &mut self,
        netio: &mut Netio,
        listener: ListenSocket,
        socket: ReceiveSocket,
        from: SocketAddr,
    ) {
    }
    /// [`Event::CallerRefused`].
    fn caller_refused(
        &mut self,
        netio: &mut Netio,
        socket: AnySocket,
        from: SocketAddr,
        reason: RefusedReason,
    ) {
    }
    /// [`Event::Received`] without data.
    fn received(&mut self, netio: &mut Netio, socket: ReceiveSocket, message: Delivery) {}
    /// [`Event::Received`] with data. If it is left out, [`received`](Self::received) is called, without the data.
    fn received_with_data(
        &mut self,
        netio: &mut Netio,
        socket: ReceiveSocket,
        message: Delivery,
        data: u64,
    ) {
        self.received(netio, socket, message);
    }
    /// [`Event::SendCompleted`].
    fn send_completed(
        &mut self,
        netio: &mut Netio,
        socket: SendSocket,
        message: Message,
        result: Result<(), OperationError>,
    ) {
    }
    /// [`Event::Writable`].
    fn writable(&mut self, netio: &mut Netio, socket: AnySocket) {}
    /// [`Event::SubscriberConnected`].
    fn subscriber_connected(&mut self, netio: &mut Netio, socket: PublishSocket, peer: SocketAddr) {
    }
    /// [`Event::SubscriberClosed`]. The counts have the subscriber's address.
    fn subscriber_closed(
        &mut self,
        netio: &mut Netio,
        socket: PublishSocket,
        reason: ClosedReason,
        counts: SubscriberCounts,
    ) {
    }
    /// [`Event::Subscriber`].
    fn subscriber(&mut self, netio: &mut Netio, socket: PublishSocket, tag: Tag, peer: SocketAddr) {
    }
    /// [`Event::Unsubscriber`].
    fn unsubscriber(
        &mut self,
        netio: &mut Netio,
        socket: PublishSocket,
        tag: Tag,
        peer: SocketAddr,
    ) {
    }
    /// [`Event::Published`].
    fn published(
        &mut self,
        netio: &mut Netio,
        socket: PublishSocket,
        message: Message,
        served: u32,
        lost: u32,
    ) {
    }
    /// [`Event::Subscribed`].
    fn subscribed(&mut self, netio: &mut Netio, socket: SubscribeSocket, tag: Tag) {}
    /// [`Event::SubscriptionRefused`].
    fn subscription_refused(&mut self, netio: &mut Netio, socket: SubscribeSocket, tag: Tag) {}
    /// [`Event::Unsubscribed`].
    fn unsubscribed(&mut self, netio: &mut Netio, socket: SubscribeSocket, tag: Tag) {}
    /// [`Event::Message`].
    fn message(&mut self, netio: &mut Netio, socket: SubscribeSocket, tag: Tag, message: Delivery) {
    }
    /// [`Event::Timer`].
    fn timer(&mut self, netio: &mut Netio, timer: Timer) {}
    /// [`Event::Signal`].
    fn signal(&mut self, netio: &mut Netio) {}
}
