//! Publish sockets: publications under way, and who is owed one.
//!
//! ```text
//!   publish ─► a completion object, or Again
//!      ├─ each subscriber of the tag: sent, or owed (full, or an earlier publication is owed to it)
//!      ├─ nobody took it ─► Again, as if nothing had happened
//!      ├─ some are owed ──► Partial(token) ─ resume ─► Partial, … UnderWay      (or the context resumes)
//!      └─ all took it ────► UnderWay
//!   a send completes, or its connection ends ─► served or lost, counted
//!      └─ the last one, and nobody is owed ─► Published{message, served, lost}; the object is free again
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use efa::{MsgEndpoint, Time};
use smallvec::SmallVec;

use crate::connection::{Connection, Op, Owner, Posted};
use crate::context::Netio;
use crate::delivery::{Return, Returns};
use crate::event::{ClosedReason, Error, Event, SendError, SocketError, Tag};
use crate::hosts::{Search, Site};
use crate::ids::{ConnectionKey, PublicationKey, PublishSocket};
use crate::memory::{Header, Message, MessageError, Part, Pool};
use crate::options::{MOST_OUTSTANDING, PublishOptions, Slow, WhenFull};
use crate::sockets::Listening;
use crate::table::{Lookup, Table};
use crate::timers::Due;
use crate::wire::{Answer, Control, Rejection};

/// Bytes of a header slot.
const HEADER: usize = 8;
/// How often a publisher looks for slow subscribers in the time that they have.
const LOOKS: u32 = 4;

pub(crate) struct Publisher {
    options: PublishOptions,
    pool: Pool,
    pub(crate) search: Search,
    pub(crate) listening: Option<Listening>,
    table: Table,
    pub(crate) subscribers: Vec<ConnectionKey>,
    /// Memory for the headers of publications: 8 bytes for each completion object.
    headers: Pool,
    /// Completion objects that no publication has.
    objects: Vec<u32>,
    /// A publication found none.
    lacks_object: bool,
    is_closed: bool,
    /// When it looks next for subscribers that take nothing.
    looks_at: Time,
}

/// A publication under way.
pub(crate) struct Publication {
    socket: PublishSocket,
    tag: Tag,
    message: Message,
    object: u32,
    /// Sends that have not completed.
    sends: u32,
    served: u32,
    lost: u32,
    owed: SmallVec<[ConnectionKey; 4]>,
}

/// The answer to [`Netio::publish`] and [`Netio::resume`].
#[derive(Debug)]
#[must_use = "the message may not have been published"]
pub enum Published {
    /// It is under way to all who have subscribed to the tag. [`Event::Published`] brings the message back, once.
    UnderWay,
    /// Nobody has subscribed to the tag. There is no event.
    NoSubscribers(Message),
    /// Nobody got anything: no completion object is free, or no subscriber has room. [`Event::Writable`] tells when to
    /// try again.
    Again(Message),
    /// Some got it, and others are owed it. [`Event::Writable`] tells when to go on with the token, by
    /// [`Netio::resume`].
    Partial(Reentry),
    /// It can't be published.
    Refused(SendError, Message),
}

/// A publication that some subscribers are owed. It can't be copied, and is good for one attempt:
///
/// ```compile_fail,E0382
/// # fn of(netio: &mut efa_netio::Netio, token: efa_netio::Reentry) {
/// let _ = netio.resume(token);
/// let _ = netio.resume(token);
/// # }
/// ```
///
/// If it is dropped, those subscribers don't get the message, and are counted as lost; the event comes all the same. Once
/// the publish socket is [closed](Netio::close) the context goes on by itself, and the token isn't needed: nothing is lost
/// then by dropping it.
#[must_use = "without it, the subscribers that are owed the message are lost"]
pub struct Reentry {
    publication: PublicationKey,
    returns: Option<Arc<Returns>>,
    tag: Tag,
}

impl Reentry {
    /// The tag of the publication.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.tag
    }
}

impl fmt::Debug for Reentry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reentry").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl Drop for Reentry {
    fn drop(&mut self) {
        if let Some(returns) = self.returns.take() {
            returns.put(Return::GivenUp(self.publication));
        }
    }
}

impl Publisher {
    /// How many tags have subscribers.
    pub(crate) fn tags(&self) -> usize {
        self.table.len()
    }

    fn check(&self, message: &Message) -> Result<(), SendError> {
        if self.is_closed {
            return Err(SocketError::Closed.into());
        }
        if message.data.is_some() {
            return Err(MessageError::HasData.into());
        }
        message.check()?;
        match message.parts.iter().all(|part| self.pool.has(part)) {
            true => Ok(()),
            false => Err(MessageError::OtherPool.into()),
        }
    }

    /// The memory of a header, which it is written to.
    #[inline]
    fn header(&self, object: u32, header: &Header) -> Option<Part> {
        match header.as_slice() {
            [] => None,
            bytes => self.written(object, bytes),
        }
    }

    #[inline(never)]
    fn written(&self, object: u32, header: &[u8]) -> Option<Part> {
        let begin = object as usize * HEADER;
        self.headers.write(begin, header);
        self.headers.part(begin..begin + header.len()).ok()
    }

    /// Whether the context gives subscribers what they are owed, without a token: that is also so once it is closed.
    fn resumes(&self) -> bool {
        self.options.when_full == WhenFull::Resume || self.is_closed
    }

    fn level(&self) -> efa::Level {
        self.options.completion.into()
    }
}

/// The message without its bytes, as endpoints take it.
fn publication_message(tag: Tag, level: efa::Level) -> efa::Message {
    efa::Message::to(MsgEndpoint::PEER).with_data(tag).level(level)
}

impl Netio {
    /// A publish socket, which doesn't listen yet. Its messages consist of parts of `pool`.
    ///
    /// # Errors
    /// The memory for headers can't be registered.
    pub fn publish_socket(
        &mut self,
        pool: &Pool,
        options: PublishOptions,
    ) -> Result<PublishSocket, Error> {
        // At most `MOST_OUTSTANDING`, which 32 bits have.
        let objects = options.outstanding.clamp(1, MOST_OUTSTANDING) as u32;
        let headers = self.allocate(objects as usize * HEADER)?;
        let socket = self.publishers.insert(Publisher {
            options,
            pool: pool.clone(),
            search: Search::default(),
            listening: None,
            table: Table::default(),
            subscribers: Vec::new(),
            headers,
            objects: (0..objects).rev().collect(),
            lacks_object: false,
            is_closed: false,
            looks_at: self.link.now(),
        });
        self.look_again(socket);
        Ok(socket)
    }

    /// Listens for subscribers at a host (name or IP address of this one) and a TCP port; with port 0 the system chooses
    /// one, see [`local_address`](Self::local_address). If that fails, [`Event::BindRefused`] tells why.
    ///
    /// # Errors
    /// The socket listens already, or is closed.
    pub fn publish_at(
        &mut self,
        socket: PublishSocket,
        host: &str,
        port: u16,
    ) -> Result<(), SocketError> {
        let publisher = self.publishers.get(socket).filter(|publisher| !publisher.is_closed);
        let publisher = publisher.ok_or(SocketError::Closed)?;
        if publisher.listening.is_some() || publisher.search.is_under_way {
            return Err(SocketError::Listening);
        }
        self.find(socket.into(), &Site::new(host, port));
        Ok(())
    }

    /// How many have subscribed to a tag.
    #[must_use]
    pub fn subscriber_count(&self, socket: PublishSocket, tag: Tag) -> usize {
        let publisher = self.publishers.get(socket);
        publisher.map_or(0, |publisher| publisher.table.find(&mut Lookup::new(tag)).len())
    }

    /// Sends a message to all who have subscribed to a tag.
    pub fn publish(&mut self, socket: PublishSocket, tag: Tag, message: Message) -> Published {
        self.publish_by(socket, &mut Lookup::new(tag), message)
    }

    /// The same, with a look-up that the program keeps for the tag.
    pub fn publish_by(
        &mut self,
        socket: PublishSocket,
        lookup: &mut Lookup,
        message: Message,
    ) -> Published {
        let Some(publisher) = self.publishers.get_mut(socket) else {
            return Published::Refused(SocketError::Closed.into(), message);
        };
        if let Err(error) = publisher.check(&message) {
            return Published::Refused(error, message);
        }
        let targets = publisher.table.find(lookup);
        if targets.is_empty() {
            return Published::NoSubscribers(message);
        }
        let Some(object) = publisher.objects.pop() else {
            publisher.lacks_object = true;
            return Published::Again(message);
        };
        let tag = lookup.tag();
        let header = publisher.header(object, &message.header);
        let (mut sends, mut lost, mut owed) = (0, 0, SmallVec::new());
        let envelope = publication_message(tag, publisher.level());
        let key = self.publications.insert_with_key(|key| {
            let only = message.only(&header);
            for &target in targets {
                let Some(connection) = self.connections.get_mut(target) else { continue };
                let op = || Op::Publish { connection: target, publication: key };
                let buffer = || match only {
                    Some(part) => part.buffer(),
                    None => message.buffer(header.clone()),
                };
                match post(connection, &mut self.operations, op, envelope, buffer) {
                    Post::Sent => sends += 1,
                    Post::Owed => owed.push(target),
                    Post::Gone => {
                        connection.subscriptions.lose();
                        lost += 1;
                    }
                }
            }
            Publication { socket, tag, message, object, sends, served: 0, lost, owed }
        });
        self.begun(key)
    }

    /// A publication was offered to all its targets.
    #[inline]
    fn begun(&mut self, key: PublicationKey) -> Published {
        let publication = &self.publications[key];
        match (publication.owed.is_empty(), publication.sends) {
            (true, 1..) => Published::UnderWay,
            (true, 0) => {
                self.finish_publication(key);
                Published::UnderWay
            }
            (false, _) => self.begun_in_part(key),
        }
    }

    #[cold]
    fn begun_in_part(&mut self, key: PublicationKey) -> Published {
        let publication = &self.publications[key];
        let publisher = &mut self.publishers[publication.socket];
        let when_full = publisher.options.when_full;
        if publication.sends == 0 && publication.lost == 0 && when_full == WhenFull::Return {
            publisher.objects.push(publication.object);
            let Some(undone) = self.publications.remove(key) else { return Published::UnderWay };
            for target in undone.owed {
                self.connections[target].subscriptions.be_awaited();
            }
            return Published::Again(undone.message);
        }
        for target in &publication.owed {
            self.connections[*target].subscriptions.owe(key);
        }
        match when_full {
            WhenFull::Return => Published::Partial(self.token(key)),
            WhenFull::Resume => Published::UnderWay,
        }
    }

    fn token(&self, publication: PublicationKey) -> Reentry {
        let tag = self.publications[publication].tag;
        Reentry { publication, returns: Some(self.returns.clone()), tag }
    }

    /// Offers a publication to those who are owed it. The answer is [`Published::UnderWay`] when nobody is any more, and
    /// else [`Published::Partial`] with a token for another attempt. Once the publish socket is closed it is
    /// [`Published::UnderWay`] in any case: the context goes on by itself.
    ///
    /// A token of another context comes back as it is.
    pub fn resume(&mut self, mut token: Reentry) -> Published {
        if !token.returns.as_ref().is_some_and(|returns| Arc::ptr_eq(returns, &self.returns)) {
            return Published::Partial(token);
        }
        token.returns = None;
        let key = token.publication;
        if self.needs_no_token(key) {
            return Published::UnderWay;
        }
        // All who were owed it may have gone meanwhile.
        let Some(publication) = self.publications.get(key) else { return Published::UnderWay };
        for target in publication.owed.clone() {
            self.offer_owed(target, key);
        }
        match self.publications.get(key) {
            Some(publication) if !publication.owed.is_empty() => {
                Published::Partial(self.token(key))
            }
            _ => Published::UnderWay,
        }
    }

    /// Offers a publication to a connection that is owed it, if it is its turn. Returns whether it isn't owed it any
    /// more.
    fn offer_owed(&mut self, target: ConnectionKey, key: PublicationKey) -> bool {
        let Some(connection) = self.connections.get_mut(target) else { return false };
        if connection.subscriptions.next_owed() != Some(key) {
            return false;
        }
        let publication = &mut self.publications[key];
        let publisher = &self.publishers[publication.socket];
        let header = publisher.header(publication.object, &publication.message.header);
        let op = || Op::Publish { connection: target, publication: key };
        let envelope = publication_message(publication.tag, publisher.level());
        let buffer = || publication.message.buffer(header);
        match connection.send(&mut self.operations, op, envelope, buffer) {
            Posted::Done => publication.sends += 1,
            Posted::Full => return false,
            Posted::Failed(_) => {
                connection.subscriptions.lose();
                publication.lost += 1;
            }
        }
        publication.owed.retain(|owed| *owed != target);
        connection.subscriptions.next_is_done();
        self.next_may_go(target);
        self.connections[target].send_end();
        self.finish_publication(key);
        true
    }

    /// A connection is owed one publication less: the next one may go now.
    fn next_may_go(&mut self, target: ConnectionKey) {
        let connection = &mut self.connections[target];
        let Owner::Publish(socket) = connection.owner else { return };
        if connection.subscriptions.next_may_go() && !connection.is_full {
            self.writable(socket);
        }
    }

    /// Trying again is worth it, if the program is the one that tries.
    fn writable(&mut self, socket: PublishSocket) {
        let returns = |publisher: &Publisher| publisher.options.when_full == WhenFull::Return;
        if self.publishers.get(socket).is_some_and(returns) {
            self.events.push_back(Event::Writable(socket.into()));
        }
    }

    /// A connection of a publisher has room again.
    pub(crate) fn publisher_writable(&mut self, target: ConnectionKey, socket: PublishSocket) {
        self.writable(socket);
        if self.publishers.get(socket).is_some_and(Publisher::resumes) {
            self.offer_all_owed(target);
        }
    }

    /// Offers a connection what it is owed, in order.
    fn offer_all_owed(&mut self, target: ConnectionKey) {
        while let Some(key) = self.connections[target].subscriptions.next_owed() {
            if !self.offer_owed(target, key) {
                return;
            }
        }
    }

    /// A message of a publication is served, or lost.
    #[inline]
    pub(crate) fn publication_served(&mut self, key: PublicationKey, is_served: bool) {
        let Some(publication) = self.publications.get_mut(key) else { return };
        publication.sends -= 1;
        match is_served {
            true => publication.served += 1,
            false => publication.lost += 1,
        }
        if publication.sends == 0 && publication.owed.is_empty() {
            self.finish_publication(key);
        }
    }

    /// Reports a publication, if nobody is to be served any more.
    fn finish_publication(&mut self, key: PublicationKey) {
        let done =
            |publication: &Publication| publication.sends == 0 && publication.owed.is_empty();
        if !self.publications.get(key).is_some_and(done) {
            return;
        }
        let Some(publication) = self.publications.remove(key) else { return };
        let Publication { socket, message, object, served, lost, .. } = publication;
        let Some(publisher) = self.publishers.get_mut(socket) else { return };
        publisher.objects.push(object);
        let wants = std::mem::take(&mut publisher.lacks_object);
        self.events.push_back(Event::Published { socket, message, served, lost });
        if wants {
            self.events.push_back(Event::Writable(socket.into()));
        }
        self.forget_publisher(socket);
    }

    /// Whether those who are owed a publication get it without a token.
    fn needs_no_token(&self, key: PublicationKey) -> bool {
        let socket = self.publications.get(key).map(|publication| publication.socket);
        socket.and_then(|socket| self.publishers.get(socket)).is_some_and(Publisher::resumes)
    }

    /// The program gives up those who are owed a publication.
    pub(crate) fn give_up(&mut self, key: PublicationKey) {
        if self.needs_no_token(key) {
            return;
        }
        let Some(publication) = self.publications.get_mut(key) else { return };
        let owed = std::mem::take(&mut publication.owed);
        publication.lost += owed.len() as u32;
        for target in owed {
            let subscriptions = &mut self.connections[target].subscriptions;
            subscriptions.give_up(key);
            subscriptions.lose();
            self.next_may_go(target);
            self.connections[target].send_end();
        }
        self.finish_publication(key);
    }

    /// A subscriber leaves a tag: what it is owed of the tag is lost.
    fn unsubscribe_one(&mut self, target: ConnectionKey, socket: PublishSocket, tag: Tag) {
        if let Some(publisher) = self.publishers.get_mut(socket) {
            publisher.table.remove(tag, target);
        }
        let publications = &self.publications;
        let is_left = |key: &PublicationKey| publications.get(*key).is_some_and(|it| it.tag == tag);
        let left = self.connections[target].subscriptions.take_owed(is_left);
        if !left.is_empty() {
            self.next_may_go(target);
        }
        self.lose_owed(target, left);
    }

    /// A subscriber doesn't get publications that it was owed.
    fn lose_owed(&mut self, target: ConnectionKey, owed: VecDeque<PublicationKey>) {
        for key in owed {
            let Some(publication) = self.publications.get_mut(key) else { continue };
            publication.owed.retain(|other| *other != target);
            publication.lost += 1;
            self.connections[target].subscriptions.lose();
            self.finish_publication(key);
        }
    }

    /// A subscriber gets no publication that begins from now on.
    pub(crate) fn unsubscribe_all(&mut self, target: ConnectionKey, socket: PublishSocket) {
        let tags = self.connections[target].subscriptions.take_tags();
        let Some(publisher) = self.publishers.get_mut(socket) else { return };
        tags.iter().for_each(|tag| publisher.table.remove(*tag, target));
    }

    /// A subscriber gets nothing more: what it is owed is lost.
    pub(crate) fn subscriber_ends(&mut self, target: ConnectionKey, socket: PublishSocket) {
        let connection = &mut self.connections[target];
        let owed = connection.subscriptions.take_owed(|_| true);
        let is_awaited = connection.is_full || connection.subscriptions.is_awaited();
        self.unsubscribe_all(target, socket);
        self.lose_owed(target, owed);
        if is_awaited {
            self.writable(socket);
        }
    }

    // ---- subscribers ----------------------------------------------------------------------------

    pub(crate) fn accept_subscriber(
        &mut self,
        socket: PublishSocket,
        request: efa::ConnectionRequest,
    ) {
        let Some(publisher) = self.publishers.get(socket) else { return };
        if publisher.subscribers.len() >= publisher.options.subscribers {
            return self.reject(socket, request, Rejection::Full);
        }
        let peer = request.caller();
        let key = match self.accept(Owner::Publish(socket), request) {
            Ok(key) => key,
            Err(failed) => return self.not_accepted(socket, failed),
        };
        self.publishers[socket].subscribers.push(key);
        self.events.push_back(Event::SubscriberConnected { socket, peer });
    }

    /// A control message of a subscriber has arrived.
    pub(crate) fn control_of_subscriber(
        &mut self,
        target: ConnectionKey,
        socket: PublishSocket,
        control: Control,
    ) {
        let Some(publisher) = self.publishers.get_mut(socket) else { return };
        let connection = &mut self.connections[target];
        let peer = connection.peer;
        match control {
            Control::Subscribe { serial, tag } => {
                let is_known = connection.subscriptions.has(tag);
                let answer =
                    match is_known || connection.subscriptions.len() < publisher.options.tags {
                        true => Answer::Done,
                        false => Answer::TooManyTags,
                    };
                let messages = connection.sends.count();
                if !is_known && answer == Answer::Done {
                    connection.subscriptions.insert(tag);
                    publisher.table.insert(tag, target);
                    self.events.push_back(Event::Subscriber { socket, tag, peer });
                }
                let reply = Control::Answer { serial, tag, answer, messages };
                self.connections[target].send_control(reply);
            }
            Control::Unsubscribe { serial, tag } => {
                let was_known = connection.subscriptions.remove(tag);
                let is_last = connection.subscriptions.len() == 0;
                let (answer, messages) = (Answer::Done, connection.sends.count());
                let reply = Control::Answer { serial, tag, answer, messages };
                self.connections[target].send_control(reply);
                if was_known {
                    self.unsubscribe_one(target, socket, tag);
                    self.events.push_back(Event::Unsubscriber { socket, tag, peer });
                }
                // Also if it never had one: it waits for the end of the connection.
                if is_last {
                    self.end_softly(target, ClosedReason::DisconnectedByPeer);
                }
            }
            Control::Answer { .. } | Control::End { .. } | Control::TooLong { .. } => {
                self.counts.ignored += 1;
            }
        }
    }

    /// When to look for subscribers who take nothing.
    fn look_again(&mut self, socket: PublishSocket) {
        let publisher = &mut self.publishers[socket];
        if let Slow::Disconnect(after) = publisher.options.slow {
            publisher.looks_at = self.link.now() + pause(after);
            self.timers.add(publisher.looks_at, Due::Slow(socket));
        }
    }

    /// Disconnects who has taken nothing for too long.
    pub(crate) fn look_for_slow(&mut self, socket: PublishSocket) {
        let now = self.link.now();
        let Some(publisher) = self.publishers.get(socket) else { return };
        let Slow::Disconnect(after) = publisher.options.slow else { return };
        // Of the time in which nobody looked, as the publisher stood still itself, no more than usual counts.
        let late = now - publisher.looks_at;
        for key in publisher.subscribers.clone() {
            let connection = &mut self.connections[key];
            let Connection { sends, is_full, subscriptions, .. } = connection;
            // What it is owed while it has room waits for the program's token.
            let waits = sends.are_under_way() || *is_full;
            let slow = subscriptions.look(waits, sends.completed(), (now, late));
            if slow.is_some_and(|slow| slow >= after) {
                self.end_now(key, ClosedReason::Slow);
            }
        }
        self.look_again(socket);
    }

    // ---- the end --------------------------------------------------------------------------------

    pub(crate) fn close_publisher(&mut self, socket: PublishSocket) {
        let Some(publisher) = self.publishers.get_mut(socket) else { return };
        publisher.is_closed = true;
        // A host that is found now is none to listen at.
        publisher.search = Search::default();
        let listening = publisher.listening.take();
        let subscribers = publisher.subscribers.clone();
        self.stop_listening(listening);
        for key in subscribers {
            self.end_softly(key, ClosedReason::Disconnected);
            // What they are owed may have room, and the program no use for the token.
            self.offer_all_owed(key);
        }
        self.forget_publisher(socket);
    }

    /// Forgets a publisher that is closed, once nothing is left of it.
    pub(crate) fn forget_publisher(&mut self, socket: PublishSocket) {
        let is_over = |publisher: &Publisher| {
            publisher.is_closed
                && publisher.subscribers.is_empty()
                && publisher.objects.len() == publisher.headers.len() / HEADER
        };
        if self.publishers.get(socket).is_some_and(is_over) {
            self.publishers.remove(socket);
        }
    }
}

/// The time between two looks for subscribers that take nothing, if they may do so for this time.
fn pause(after: Duration) -> Duration {
    (after / LOOKS).max(Duration::from_micros(1))
}

/// What became of a publication at one subscriber.
enum Post {
    Sent,
    Owed,
    Gone,
}

#[inline(always)]
fn post(
    connection: &mut Connection,
    operations: &mut slab::Slab<Op>,
    op: impl FnOnce() -> Op,
    envelope: efa::Message,
    buffer: impl FnOnce() -> efa::Buffer,
) -> Post {
    if connection.subscriptions.are_owed() {
        return Post::Owed;
    }
    match connection.send(operations, op, envelope, buffer) {
        Posted::Done => Post::Sent,
        Posted::Full => Post::Owed,
        Posted::Failed(_) => Post::Gone,
    }
}
