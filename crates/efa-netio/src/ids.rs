//! Handles of sockets and timers. A handle of something that is gone stays harmless: it is never used again for another.

slotmap::new_key_type! {
    /// The sending side of a connection ([`Netio::send_socket`](crate::Netio::send_socket)).
    pub struct SendSocket;
    /// Listens for send sockets ([`Netio::listen_socket`](crate::Netio::listen_socket)).
    pub struct ListenSocket;
    /// The receiving side of a connection, made by a listen socket ([`Event::Accepted`](crate::Event::Accepted)).
    pub struct ReceiveSocket;
    /// Publishes to all who subscribed to a tag ([`Netio::publish_socket`](crate::Netio::publish_socket)).
    pub struct PublishSocket;
    /// Receives what is published under its tags ([`Netio::subscribe_socket`](crate::Netio::subscribe_socket)).
    pub struct SubscribeSocket;
    /// A timer ([`Netio::timer`](crate::Netio::timer)).
    pub struct Timer;

    pub(crate) struct ConnectionKey;
    pub(crate) struct PublicationKey;
    pub(crate) struct AcceptorKey;
}

/// A socket of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AnySocket {
    /// The sending side of a connection.
    Send(SendSocket),
    /// Listens for send sockets.
    Listen(ListenSocket),
    /// The receiving side of a connection.
    Receive(ReceiveSocket),
    /// Publishes.
    Publish(PublishSocket),
    /// Subscribes.
    Subscribe(SubscribeSocket),
}

macro_rules! from {
    ($($kind:ident $socket:ident)*) => {
        $(impl From<$socket> for AnySocket {
            fn from(socket: $socket) -> Self {
                Self::$kind(socket)
            }
        })*
    };
}

from! {
    Send SendSocket
    Listen ListenSocket
    Receive ReceiveSocket
    Publish PublishSocket
    Subscribe SubscribeSocket
}
