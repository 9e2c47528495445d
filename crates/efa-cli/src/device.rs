//! The software device that a command works with, an endpoint on it, and a capture of its packets.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use efa::{
    AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Domain, EnableError,
    Endpoint, EndpointOptions, Fabric, ShmOptions,
};
use efa_sim::capture::{Capture, CaptureError};
use efa_sim::record::{Record, SharedSink, Sink};

/// Which device.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeviceArgs {
    /// Name of the software device; programs that give the same one reach each other
    #[arg(long, alias = "name", value_name = "NAME", default_value = "efa")]
    pub(crate) device_name: String,
    /// Directory of the software device [default: /dev/shm/efa-<UID>]
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

impl DeviceArgs {
    fn options(&self) -> ShmOptions {
        let directory = self.directory.clone();
        ShmOptions { directory, ..ShmOptions::new(&self.device_name) }
    }

    /// Opens the device.
    pub(crate) fn open(&self) -> Result<Domain, efa::Error> {
        Fabric::shm(self.options()).domain()
    }

    /// Opens the device, all packets of which go into `capture`.
    pub(crate) fn open_captured(&self, capture: &CaptureFile) -> Result<Domain, efa::Error> {
        let capture = Some(SharedSink::new(capture.clone()));
        Fabric::shm(ShmOptions { capture, ..self.options() }).domain()
    }
}

/// An enabled endpoint with what is bound to it.
pub(crate) struct Objects {
    pub(crate) endpoint: Endpoint,
    /// For sends and receives.
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
}

impl Objects {
    /// With room for `capacity` operations under way.
    pub(crate) fn new(domain: &Domain, capacity: usize) -> Result<Self, EnableError> {
        let queue = domain.completion_queue(CompletionQueueOptions { capacity });
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        Ok(Self { endpoint, queue, addresses })
    }
}

/// A capture file that a device writes, and whose errors we want to know. Clones are the same.
#[derive(Clone)]
pub(crate) struct CaptureFile(Arc<Mutex<Option<Capture<File>>>>);

impl CaptureFile {
    /// A new file at `path`, in place of one that is there.
    pub(crate) fn create(path: &Path, interface: &str) -> Result<Self, CaptureError> {
        Ok(Self(Arc::new(Mutex::new(Some(Capture::create(path, interface)?)))))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Option<Capture<File>>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the file. What the device does from now on isn't in it.
    pub(crate) fn finish(&self) -> Result<(), CaptureError> {
        match self.with(Option::take) {
            Some(capture) => capture.finish().map(drop),
            None => Ok(()),
        }
    }
}

impl Sink for CaptureFile {
    fn record(&mut self, record: &Record<'_>) {
        self.with(|capture| {
            if let Some(capture) = capture {
                capture.record(record);
            }
        });
    }
}
