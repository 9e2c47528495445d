//! Protection domains: what keeps one alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::boundary::{BUSY, Outcome};
use crate::device::Device;
use crate::link::Link;

/// A protection domain.
pub(crate) struct Domain {
    device: Arc<Device>,
    /// The device's, with the address handles of the domain.
    link: Link,
    /// Number of [`DomainRef`]s.
    objects: AtomicUsize,
}

impl Domain {
    pub(crate) fn new(device: Arc<Device>) -> Arc<Self> {
        let link = device.link.domain();
        Arc::new(Self { device, link, objects: AtomicUsize::new(0) })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Fails with `EBUSY` while objects of the domain exist.
    pub(crate) fn check_unused(&self) -> Outcome<()> {
        if self.objects.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(BUSY) }
    }
}

/// What each object of a domain holds. The program can't deallocate the domain meanwhile.
pub(crate) struct DomainRef(Arc<Domain>);

impl DomainRef {
    pub(crate) fn new(domain: &Arc<Domain>) -> Self {
        domain.objects.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(domain))
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.0.device
    }

    /// Where address handles and queue pairs of the domain are created.
    pub(crate) fn link(&self) -> &Link {
        &self.0.link
    }
}

impl Drop for DomainRef {
    fn drop(&mut self) {
        self.0.objects.fetch_sub(1, Ordering::Relaxed);
    }
}
