//! Received messages, and the way back of their buffers.
//!
//! A [`Delivery`] may be kept, and dropped by any thread. Its buffer goes to a list that the context looks at, and wakes
//! the context if it sleeps.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use efa::EventQueue;
use parking_lot::Mutex;

use crate::ids::{AnySocket, ConnectionKey, PublicationKey};

/// A received message, in the buffer that it was received in. Keep it as long as wanted: the buffer is posted again when
/// it is dropped.
pub struct Delivery {
    bytes: Vec<u8>,
    length: usize,
    home: Option<Home>,
}

struct Home {
    returns: Arc<Returns>,
    socket: AnySocket,
}

impl Delivery {
    pub(crate) fn new(
        bytes: Vec<u8>,
        length: usize,
        home: Option<(&Arc<Returns>, AnySocket)>,
    ) -> Self {
        let home = home.map(|(returns, socket)| Home { returns: returns.clone(), socket });
        Self { bytes, length, home }
    }

    /// The buffer, for the program to keep or to [post](crate::Netio::post): all of it, also what is behind the
    /// message. A socket that makes its buffers has one less.
    #[must_use]
    pub fn into_buffer(mut self) -> Vec<u8> {
        self.home = None;
        std::mem::take(&mut self.bytes)
    }
}

impl Deref for Delivery {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivery({} bytes)", self.length)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(Home { returns, socket }) = self.home.take() {
            returns.put(Return::Buffer(socket, std::mem::take(&mut self.bytes)));
        }
    }
}

/// What comes back to a context.
pub(crate) enum Return {
    Buffer(AnySocket, Vec<u8>),
    /// A token that was dropped.
    GivenUp(PublicationKey),
    /// A host was looked up. The number is that of the attempt.
    Found(AnySocket, u32, Result<Vec<SocketAddr>, String>),
    /// A connection found no room, or no memory, and no completion will tell when there is some.
    Stuck(ConnectionKey),
}

/// Where it comes back.
pub(crate) struct Returns {
    has: AtomicBool,
    list: Mutex<Vec<Return>>,
    /// The context sleeps, or is about to.
    asleep: AtomicBool,
    signalled: AtomicBool,
    events: EventQueue,
}

impl Returns {
    pub(crate) fn new(events: EventQueue) -> Self {
        Self {
            has: AtomicBool::new(false),
            list: Mutex::default(),
            asleep: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            events,
        }
    }

    pub(crate) fn put(&self, back: Return) {
        self.list.lock().push(back);
        self.has.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// A program's event wakes whoever sleeps on the queue; one is enough. If it is full, there is something to be read anyhow.
    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let _ = self.events.write(0);
        }
    }

    /// Moves what came back into `to`.
    #[inline]
    pub(crate) fn take(&self, to: &mut Vec<Return>) {
        if self.has.load(Ordering::Relaxed) && self.has.swap(false, Ordering::SeqCst) {
            to.append(&mut self.list.lock());
        }
    }

    /// The context is about to sleep. Returns `false` if something has come back.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        !self.has.load(Ordering::SeqCst) && !self.signalled.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn signal(&self) {
        self.signalled.store(true, Ordering::SeqCst);
        self.wake();
    }

    #[inline]
    pub(crate) fn take_signal(&self) -> bool {
        self.signalled.load(Ordering::Relaxed) && self.signalled.swap(false, Ordering::SeqCst)
    }
}

/// Wakes a context from any thread, which then reports [`Event::Signal`](crate::Event::Signal).
#[derive(Clone)]
pub struct Signal(pub(crate) Arc<Returns>);

impl Signal {
    /// Raises it. Several before the context reports one are one.
    pub fn raise(&self) {
        self.0.signal();
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}
