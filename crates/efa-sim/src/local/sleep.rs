//! How queue pairs of the local link sleep: each waitable one has an eventfd, which is written when an event
//! that concerns it is scheduled, or a completion is queued, while it may be asleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use efa_device::DeviceError;
use rustix::event::{EventfdFlags, eventfd};

use super::endpoints::EndpointId;
use super::network::{Event, Network};
use crate::link::system;

/// The eventfd of a queue pair, and whether somebody may sleep on it.
pub(super) struct Bell {
    file: Arc<OwnedFd>,
    /// Whether the queue pair may be asleep, and the eventfd was not written since.
    armed: bool,
}

impl Bell {
    pub(super) fn new() -> Result<Self, DeviceError> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("eventfd", errno))?;
        Ok(Self { file: Arc::new(file), armed: false })
    }

    pub(super) fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    pub(super) fn ring(&mut self) {
        if std::mem::replace(&mut self.armed, false) {
            // It can't fail: the counter is at most 1.
            let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
        }
    }

    fn arm(&mut self) {
        let _ = rustix::io::read(&self.file, &mut [0; 8]);
        self.armed = true;
    }
}

impl Network {
    /// Rings the bell of a queue pair from now on when an event that concerns it is scheduled, or a completion
    /// is queued.
    pub(super) fn arm(&mut self, id: EndpointId) -> Result<(), DeviceError> {
        let bell = self.endpoints.get_mut(id).and_then(|endpoint| endpoint.bell.as_mut());
        bell.ok_or(DeviceError::Unsupported { operation: "waiting" })?.arm();
        Ok(())
    }

    /// Wakes those that an event concerns which is being scheduled: it may come before what they sleep until.
    #[cold]
    pub(super) fn wake_for(&mut self, event: &Event) {
        let (first, second) = match event {
            Event::Arrive(flight) => {
                (self.find(flight.destination), flight.sender.map(|(sender, _)| sender))
            }
            Event::GiveUp { target, serial } => (Some(*target), self.sender_of(*target, *serial)),
            Event::Complete { sender, .. } => (Some(*sender), None),
        };
        for id in [first, second].into_iter().flatten() {
            self.ring(id);
        }
    }

    /// The eventfd of a queue pair, if it is waitable.
    pub(super) fn bell(&self, id: EndpointId) -> Option<Arc<OwnedFd>> {
        self.endpoints.get(id)?.bell.as_ref().map(Bell::file)
    }

    #[inline]
    pub(super) fn wake(&mut self, id: EndpointId) {
        if self.has_bells {
            self.ring(id);
        }
    }

    #[cold]
    fn ring(&mut self, id: EndpointId) {
        if let Some(bell) = self.endpoints.get_mut(id).and_then(|endpoint| endpoint.bell.as_mut()) {
            bell.ring();
        }
    }
}

/// The descriptor of a queue pair.
pub(super) fn descriptor(file: &Option<Arc<OwnedFd>>) -> Option<BorrowedFd<'_>> {
    file.as_ref().map(|file| file.as_fd())
}
