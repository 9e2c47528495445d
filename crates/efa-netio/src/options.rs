//! Options of contexts and sockets.

use std::time::Duration;

use efa::Level;

/// Options of a [`Netio`](crate::Netio).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Shortest message in bytes that the receiver's device reads from the sender's memory, so that each byte is moved
    /// once; shorter ones go in packets and are copied two to four times. 32 KiB by default, where reading becomes faster on the
    /// `shm` link (docs/netio.md has the measurement). Without RDMA all messages go in packets.
    pub read_threshold: u64,
    /// Most messages of a connection under way at its sender; 1,024 by default.
    pub sends: usize,
    /// Bytes of messages that a receiver keeps for one connection while it has no buffer for them. Then the sender's
    /// messages wait; but while a message of several packets is not complete, whose rest may be behind them, it keeps
    /// 48 MiB more. 16 MiB by default.
    pub unexpected: usize,
    /// How long the other side may take to answer a request, and to end a connection; 5 s by default.
    pub timeout: Duration,
    /// How long [`poll`](crate::Netio::poll) looks for something before it sleeps: this time if the wait before was over
    /// within it, else a fifth of it. So a stream of messages doesn't sleep between two of them, and a context with
    /// little to do sleeps soon. 100 µs by default.
    pub look: Duration,
    /// Whether the context can sleep. A device that can't notify needs `false`: the context then polls. `true` by
    /// default.
    pub sleeps: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_threshold: 32 << 10,
            sends: 1024,
            unexpected: 16 << 20,
            timeout: Duration::from_secs(5),
            look: Duration::from_micros(100),
            sleeps: true,
        }
    }
}

impl Options {
    /// These options with some changed.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// Buffers that a receiving socket makes and posts by itself. If there is no memory for all of them it has fewer; if there
/// is none for the first one, it tries again until there is. While messages are long it posts a few of them at a time on
/// links where that is faster (docs/netio.md, "Which buffer a message is read into").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// How many; 0 is taken as 1.
    pub count: usize,
    /// Bytes of each: the longest message that can be received.
    pub size: usize,
}

impl Default for Buffers {
    /// 64 of 64 KiB.
    fn default() -> Self {
        Self { count: 64, size: 64 << 10 }
    }
}

impl Buffers {
    /// A buffer, if there is memory.
    pub(crate) fn make(self) -> Option<Vec<u8>> {
        // The system gives memory of zeros when it is used.
        efa_device::zeroed(self.size).ok().map(Vec::from)
    }
}

/// Options of a send socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendOptions {
    /// When a message is complete: its memory can be overwritten (the default), the other device has it, or it is in
    /// the receiver's buffer.
    pub completion: Completion,
}

impl SendOptions {
    /// Sets [`completion`](Self#structfield.completion).
    #[must_use]
    pub fn completion(self, completion: Completion) -> Self {
        Self { completion, ..self }
    }
}

/// When a message is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// Its memory may be overwritten (`FI_INJECT_COMPLETE`). It need not have left this host.
    #[default]
    MemoryFree,
    /// The other side's device has it (`FI_TRANSMIT_COMPLETE`).
    Sent,
    /// It is in a buffer of the receiver (`FI_DELIVERY_COMPLETE`).
    Delivered,
}

impl From<Completion> for Level {
    fn from(completion: Completion) -> Self {
        match completion {
            Completion::MemoryFree => Self::Inject,
            Completion::Sent => Self::Transmit,
            Completion::Delivered => Self::Delivery,
        }
    }
}

/// Options of a listen socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Buffers that each receive socket makes; 64 of 64 KiB by default. `None`: the program [posts](crate::Netio::post) its own.
    pub buffers: Option<Buffers>,
    /// Most connections at a time; further ones are refused. 4,096 by default.
    pub connections: usize,
}

impl Default for ListenOptions {
    /// 64 buffers of 64 KiB, 4096 connections.
    fn default() -> Self {
        Self { buffers: Some(Buffers::default()), connections: 4096 }
    }
}

impl ListenOptions {
    /// Sets [`buffers`](Self#structfield.buffers).
    #[must_use]
    pub fn buffers(self, buffers: Option<Buffers>) -> Self {
        Self { buffers, ..self }
    }

    /// Sets [`connections`](Self#structfield.connections).
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }
}

/// Most publications of a socket that can be under way.
pub(crate) const MOST_OUTSTANDING: usize = 1 << 20;

/// Options of a publish socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PublishOptions {
    /// Most publications under way, from 1 to 1,048,576 (other numbers are taken as the nearest of these); then the answer
    /// is [`Published::Again`](crate::Published::Again). 1,024 by default.
    pub outstanding: usize,
    /// When a subscriber has been served; by default when the message's memory is free.
    pub completion: Completion,
    /// What happens to a message that not all subscribers can take at once; [`WhenFull::Return`] by default.
    pub when_full: WhenFull,
    /// What happens to a subscriber that takes nothing; [`Slow::Wait`] by default.
    pub slow: Slow,
    /// Most subscribers; further ones are refused. 4,096 by default.
    pub subscribers: usize,
    /// Most tags of one subscriber; further ones are refused. 65,536 by default.
    pub tags: usize,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            outstanding: 1024,
            completion: Completion::default(),
            when_full: WhenFull::default(),
            slow: Slow::default(),
            subscribers: 4096,
            tags: 1 << 16,
        }
    }
}

impl PublishOptions {
    /// Sets [`outstanding`](Self#structfield.outstanding).
    #[must_use]
    pub fn outstanding(self, outstanding: usize) -> Self {
        Self { outstanding, ..self }
    }

    /// Sets [`completion`](Self#structfield.completion).
    #[must_use]
    pub fn completion(self, completion: Completion) -> Self {
        Self { completion, ..self }
    }

    /// Sets [`when_full`](Self#structfield.when_full).
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Sets [`slow`](Self#structfield.slow).
    #[must_use]
    pub fn slow(self, slow: Slow) -> Self {
        Self { slow, ..self }
    }

    /// Sets [`subscribers`](Self#structfield.subscribers).
    #[must_use]
    pub fn subscribers(self, subscribers: usize) -> Self {
        Self { subscribers, ..self }
    }

    /// Sets [`tags`](Self#structfield.tags).
    #[must_use]
    pub fn tags(self, tags: usize) -> Self {
        Self { tags, ..self }
    }
}

/// What happens to a message that not all subscribers can take at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// The answer is [`Published::Partial`](crate::Published::Partial), and the program goes on with its token.
    #[default]
    Return,
    /// The context goes on by itself as room comes.
    Resume,
}

/// What happens to a subscriber that takes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Slow {
    /// What it is owed waits.
    #[default]
    Wait,
    /// It is disconnected when it has taken nothing for this long, and what it is owed and what is not complete counts as
    /// lost. What is complete counts as delivered: with [`Completion::MemoryFree`], also what had not arrived.
    Disconnect(Duration),
}

/// Options of a subscribe socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscribeOptions {
    /// The buffers that messages are received in; 64 of 64 KiB by default.
    pub buffers: Buffers,
}

impl SubscribeOptions {
    /// Sets [`buffers`](Self#structfield.buffers).
    #[must_use]
    pub fn buffers(self, buffers: Buffers) -> Self {
        Self { buffers }
    }
}
