//! Subscribe sockets. A socket keeps its tags, and subscribes to them on each connection that it makes; it has one while
//! it has tags.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::connection::{Owner, Phase};
use crate::context::Netio;
use crate::delivery::Delivery;
use crate::event::{ClosedReason, Event, RefusedReason, SocketError, Tag};
use crate::hosts::{Search, Site};
use crate::ids::{AnySocket, ConnectionKey, SubscribeSocket};
use crate::options::SubscribeOptions;
use crate::shelf::Shelf;
use crate::wire::{Answer, Control, Role};

pub(crate) struct Subscriber {
    pub(crate) site: Site,
    pub(crate) search: Search,
    pub(crate) connection: Option<ConnectionKey>,
    /// What is wanted, and what the publisher knows of it.
    wanted: BTreeMap<Tag, Told>,
    /// Ends of subscriptions that have no answer yet.
    leaving: BTreeMap<u32, Tag>,
    /// Subscriptions that have ended, and how many messages the publisher had sent before on this connection.
    left: VecDeque<(u64, Tag)>,
    serial: u32,
    pub(crate) shelf: Shelf,
    /// Nothing was wanted any more on this connection, which the publisher ends therefore.
    is_emptied: bool,
    /// The publisher has answered the end of a subscription on this connection.
    has_left: bool,
    is_closed: bool,
}

/// What the publisher knows of a subscription, on this connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    /// A SUBSCRIBE with this serial was sent.
    Asked(u32),
    /// It was accepted.
    Accepted,
}

/// What a call of [`Netio::subscribe`] or [`Netio::unsubscribe`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subscription {
    /// The publisher is told, as soon as there is a connection. An event comes with its answer, unless the subscription
    /// was never told and is ended again.
    Requested,
    /// It was so before. Nothing happens.
    Already,
}

impl Subscriber {
    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// Whether a publisher that disconnects does so as this side has no subscription left there. Those that are wanted were
    /// refused then, or are not answered.
    fn was_emptied(&self) -> bool {
        self.has_left && !self.wanted.values().any(|told| *told == Told::Accepted)
    }
}

impl Netio {
    /// A subscribe socket for the publisher at a host (name or IP address) and a TCP port. It connects when it has a
    /// subscription.
    pub fn subscribe_socket(
        &mut self,
        host: &str,
        port: u16,
        options: SubscribeOptions,
    ) -> SubscribeSocket {
        let shelf = Shelf::new(options.buffers, self.link.long_reads());
        self.subscribers.insert(Subscriber {
            site: Site::new(host, port),
            search: Search::default(),
            connection: None,
            wanted: BTreeMap::new(),
            leaving: BTreeMap::new(),
            left: VecDeque::new(),
            serial: 0,
            shelf,
            is_emptied: false,
            has_left: false,
            is_closed: false,
        })
    }

    /// Subscribes to a tag, and connects the socket if it isn't. [`Event::Subscribed`] comes when the publisher knows it;
    /// what is published from then on arrives. After [`Event::Refused`] or [`Event::Closed`] the socket keeps its
    /// subscriptions; this call, for any tag, or [`reconnect`](Self::reconnect) tries again.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn subscribe(
        &mut self,
        socket: SubscribeSocket,
        tag: Tag,
    ) -> Result<Subscription, SocketError> {
        let subscriber = self.open_subscriber(socket)?;
        let is_new = !subscriber.wanted.contains_key(&tag);
        subscriber.wanted.entry(tag).or_default();
        if is_new && let Some(key) = subscriber.connection {
            self.send_subscribe(socket, key, tag);
        }
        self.reconnect(socket)?;
        Ok(if is_new { Subscription::Requested } else { Subscription::Already })
    }

    /// Ends a subscription. [`Event::Unsubscribed`] comes when the publisher knows it, after all messages of the tag.
    /// With its last subscription the connection ends, and both sides get an event.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn unsubscribe(
        &mut self,
        socket: SubscribeSocket,
        tag: Tag,
    ) -> Result<Subscription, SocketError> {
        let subscriber = self.open_subscriber(socket)?;
        let Some(told) = subscriber.wanted.remove(&tag) else { return Ok(Subscription::Already) };
        let is_empty = subscriber.wanted.is_empty();
        match (told, subscriber.connection) {
            (Told::Nothing, Some(key)) if is_empty => self.give_up_connecting(socket, key),
            (Told::Asked(_) | Told::Accepted, Some(key)) => {
                let serial = subscriber.next_serial();
                subscriber.leaving.insert(serial, tag);
                subscriber.is_emptied |= is_empty;
                self.connections[key].send_control(Control::Unsubscribe { serial, tag });
            }
            _ => {}
        }
        Ok(Subscription::Requested)
    }

    /// Nothing is wanted of a connection. If it is still being made, the publisher has not been told anything.
    fn give_up_connecting(&mut self, socket: SubscribeSocket, key: ConnectionKey) {
        if self.connections[key].phase == Phase::Connecting {
            self.subscribers[socket].is_emptied = true;
            self.end_now(key, ClosedReason::Disconnected);
        }
    }

    /// Connects a socket that has subscriptions and no connection. Does nothing otherwise.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn reconnect(&mut self, socket: SubscribeSocket) -> Result<(), SocketError> {
        let subscriber = self.open_subscriber(socket)?;
        let is_idle = subscriber.connection.is_none() && !subscriber.search.is_under_way;
        if is_idle && !subscriber.wanted.is_empty() {
            let site = subscriber.site.clone();
            self.find(socket.into(), &site);
        }
        Ok(())
    }

    fn open_subscriber(&mut self, socket: SubscribeSocket) -> Result<&mut Subscriber, SocketError> {
        let subscriber = self.subscribers.get_mut(socket).filter(|it| !it.is_closed);
        subscriber.ok_or(SocketError::Closed)
    }

    /// Whether all tags of a subscriber have been given up, for example while its host was looked up.
    pub(crate) fn wants_nothing(&self, socket: SubscribeSocket) -> bool {
        self.subscribers.get(socket).is_none_or(|subscriber| subscriber.wanted.is_empty())
    }

    pub(crate) fn connect_subscriber(&mut self, socket: SubscribeSocket, at: SocketAddr) {
        if self.wants_nothing(socket) {
            return;
        }
        match self.call(Owner::Subscribe(socket), Role::Subscribe, at) {
            Ok(key) => {
                let subscriber = &mut self.subscribers[socket];
                subscriber.connection = Some(key);
                (subscriber.is_emptied, subscriber.has_left) = (false, false);
                self.post_buffers(key);
            }
            Err(reason) => self.go_on_or_tell(socket.into(), reason),
        }
    }

    /// A connection is made: the publisher learns what is wanted.
    pub(crate) fn subscriber_connected(&mut self, socket: SubscribeSocket, key: ConnectionKey) {
        let wanted: Vec<Tag> = self.subscribers[socket].wanted.keys().copied().collect();
        wanted.into_iter().for_each(|tag| self.send_subscribe(socket, key, tag));
    }

    fn send_subscribe(&mut self, socket: SubscribeSocket, key: ConnectionKey, tag: Tag) {
        let (subscriber, connection) = (&mut self.subscribers[socket], &self.connections[key]);
        // On a connection that ends it would be ignored; it is sent on the next one.
        if connection.phase != Phase::Open || subscriber.is_emptied {
            return;
        }
        let serial = subscriber.next_serial();
        subscriber.wanted.insert(tag, Told::Asked(serial));
        self.connections[key].send_control(Control::Subscribe { serial, tag });
    }

    /// A control message of the publisher has arrived.
    pub(crate) fn control_of_publisher(&mut self, socket: SubscribeSocket, control: Control) {
        let Control::Answer { serial, tag, answer, messages } = control else {
            self.counts.ignored += 1;
            return;
        };
        let subscriber = &mut self.subscribers[socket];
        if subscriber.leaving.get(&serial) == Some(&tag) {
            subscriber.leaving.remove(&serial);
            subscriber.has_left = true;
            subscriber.left.push_back((messages, tag));
            return self.report_left(socket);
        }
        // Of a subscription that has ended and begun again since, only the newest answer counts.
        if subscriber.wanted.get(&tag) != Some(&Told::Asked(serial)) {
            return;
        }
        match answer {
            Answer::Done => {
                subscriber.wanted.insert(tag, Told::Accepted);
                self.events.push_back(Event::Subscribed { socket, tag });
            }
            Answer::TooManyTags => {
                subscriber.wanted.remove(&tag);
                self.events.push_back(Event::SubscriptionRefused { socket, tag });
                self.end_if_emptied(socket, tag);
            }
        }
    }

    /// If the refused subscription was the only one: the publisher is to end the connection, as after the end of a last
    /// one.
    fn end_if_emptied(&mut self, socket: SubscribeSocket, tag: Tag) {
        let subscriber = &mut self.subscribers[socket];
        if let Some(key) = subscriber.connection.filter(|_| subscriber.wanted.is_empty())
            && !std::mem::replace(&mut subscriber.is_emptied, true)
        {
            let serial = subscriber.next_serial();
            self.connections[key].send_control(Control::Unsubscribe { serial, tag });
        }
    }

    /// Reports subscriptions that have ended, once all messages from before have arrived.
    pub(crate) fn report_left(&mut self, socket: SubscribeSocket) {
        let Some(subscriber) = self.subscribers.get_mut(socket) else { return };
        let connection = subscriber.connection.and_then(|key| self.connections.get(key));
        let received = connection.map_or(u64::MAX, |connection| connection.receives.received());
        while let Some((_, tag)) =
            subscriber.left.front().filter(|left| left.0 <= received).copied()
        {
            subscriber.left.pop_front();
            self.events.push_back(Event::Unsubscribed { socket, tag });
        }
    }

    pub(crate) fn deliver_published(
        &mut self,
        socket: SubscribeSocket,
        buffer: Vec<u8>,
        length: usize,
        tag: Tag,
    ) {
        let home = Some((&self.returns, AnySocket::Subscribe(socket)));
        let message = Delivery::new(buffer, length, home);
        self.events.push_back(Event::Message { socket, tag, message });
        if self.subscribers.get(socket).is_some_and(|subscriber| !subscriber.left.is_empty()) {
            self.report_left(socket);
        }
    }

    /// The connection of a socket is over.
    pub(crate) fn subscriber_closed(
        &mut self,
        socket: SubscribeSocket,
        reason: ClosedReason,
        refused: Option<RefusedReason>,
    ) {
        let Some(subscriber) = self.subscribers.get_mut(socket) else { return };
        subscriber.connection = None;
        subscriber.is_emptied |=
            reason == ClosedReason::DisconnectedByPeer && subscriber.was_emptied();
        subscriber.leaving.clear();
        subscriber.left.clear();
        subscriber.wanted.values_mut().for_each(|told| *told = Told::Nothing);
        let is_wanted_again = subscriber.is_emptied && !subscriber.wanted.is_empty();
        let (is_emptied, is_closed) = (subscriber.is_emptied, subscriber.is_closed);
        let reason = match reason {
            ClosedReason::DisconnectedByPeer | ClosedReason::PeerGone if is_emptied => {
                ClosedReason::Disconnected
            }
            other => other,
        };
        let of = socket.into();
        let is_wanted = !is_closed && !is_emptied;
        if is_wanted && refused.as_ref().is_some_and(|reason| self.go_on(of, reason)) {
            return;
        }
        self.events.push_back(match refused {
            Some(reason) => Event::Refused { socket: of, reason },
            None => Event::Closed { socket: of, reason },
        });
        if is_closed {
            self.subscribers.remove(socket);
        } else if is_wanted_again {
            // Only a closed socket fails to.
            let _ = self.reconnect(socket);
        }
    }

    pub(crate) fn close_subscriber(&mut self, socket: SubscribeSocket) {
        let Some(subscriber) = self.subscribers.get_mut(socket) else { return };
        subscriber.is_closed = true;
        match subscriber.connection {
            Some(key) => self.end_now(key, ClosedReason::Disconnected),
            None => drop(self.subscribers.remove(socket)),
        }
    }
}
