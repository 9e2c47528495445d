//! How a queue pair of the shm link sleeps, and how others wake it: a FIFO in the directory of the host.
//!
//! Only a [waitable](efa_device::QueuePairOptions::waitable) queue pair has a FIFO, whose name is in its
//! file. Whoever sends to it, or acknowledges its packets, opens it, and writes a byte when the
//! [hand-over](super::handover) says that it may sleep. The bytes mean nothing. So a process of the user that
//! writes some on purpose only wakes a queue pair for nothing, and one that reads some delays it until
//! its next look, at most a second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use efa_device::{DeviceError, Qpn};
use rustix::io::Errno;

use super::directory::{FileName, HostDirectory};
use super::handover;
use super::mailbox::{Mailbox, PeerMailbox};
use crate::fork::Descriptor;
use crate::map::View;

/// The FIFO of this process's queue pair. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Fifo {
    directory: Arc<HostDirectory>,
    name: FileName,
    /// Holds the lock.
    file: Descriptor,
}

impl Fifo {
    pub(super) fn create(directory: &Arc<HostDirectory>) -> Result<Self, DeviceError> {
        let (name, file) = directory.create_fifo()?;
        Ok(Self { directory: Arc::clone(directory), name, file })
    }

    /// The number in its name, not 0.
    pub(super) fn nonce(&self) -> u64 {
        match self.name {
            FileName::Wake(nonce) => nonce,
            _ => 0,
        }
    }

    fn write(&self) {
        write(&self.file);
    }

    fn empty(&self) {
        let mut bytes = [0; 512];
        // A full read may have left some. Whoever writes faster than that only wakes this side.
        for _ in 0..8 {
            match rustix::io::read(&self.file, &mut bytes) {
                Ok(count) if count == bytes.len() => {}
                Err(Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        self.directory.remove(self.name);
    }
}

fn write(fifo: impl AsFd) {
    // If it is full, it is readable. Any other failure costs time: the sleeper looks once a second.
    while rustix::io::write(&fifo, &[1]) == Err(Errno::INTR) {}
}

/// How this process's queue pair sleeps.
#[derive(Debug)]
pub(super) struct Sleeper {
    fifo: Fifo,
    state: handover::Sleeper,
}

impl Sleeper {
    pub(super) fn new(fifo: Fifo) -> Self {
        Self { fifo, state: handover::Sleeper::default() }
    }

    /// Readable when somebody wrote.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fifo.file.as_fd()
    }

    /// Ends one announcement and makes the next. What was published before is to be looked for afterwards.
    pub(super) fn announce(&mut self, mailbox: &Mailbox) {
        self.withdraw(mailbox);
        self.fifo.empty();
        self.state.announce(mailbox.asleep());
    }

    /// Makes no one write any more, as this side found something.
    pub(super) fn withdraw(&mut self, mailbox: &Mailbox) {
        self.state.withdraw(mailbox.asleep());
    }

    /// Wakes a thread of this process that may sleep.
    pub(super) fn wake(&self) {
        if self.state.is_announced() {
            self.fifo.write();
        }
    }
}

/// What wakes one other queue pair.
#[derive(Debug)]
pub(super) struct Waker {
    header: View,
    fifo: OwnedFd,
    state: handover::Waker,
}

impl Waker {
    /// That of the queue pair `of`; `None` if it isn't waitable or not there.
    pub(super) fn open(
        directory: &HostDirectory,
        of: Qpn,
        generation: u32,
    ) -> Result<Option<Self>, DeviceError> {
        let Some((header, nonce)) = PeerMailbox::wake_word(directory, of, generation)? else {
            return Ok(None);
        };
        let fifo = directory.find_fifo(FileName::Wake(nonce))?;
        Ok(fifo.map(|fifo| Self { header, fifo, state: handover::Waker::default() }))
    }

    /// Wakes the queue pair if it may sleep, after something was published for it.
    pub(super) fn wake(&mut self) {
        let header = &self.header;
        if self.state.must_wake(|| PeerMailbox::asleep(header)) {
            write(&self.fifo);
        }
    }
}
