//! The command `open`: an endpoint on the software device, configured by the same variables as the preloaded
//! device of C programs (`EFA_SOFT_…`). With `EFA_PEER_DEVICE=verbs` it is on that preloaded device itself, through
//! `efa-verbs`.

use std::env;
use std::fs::File;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use efa::{
    Address, AddressVector, CompletionQueue, CompletionQueueOptions, Direction, Endpoint,
    EndpointOptions, Environment, Fabric, ShmOptions,
};
use efa_device::Rdma;
use efa_sim::capture::Capture;
use efa_sim::faults::FaultOptions;
use efa_sim::record::{Record, SharedSink, Sink};

use crate::command::Command;

/// An enabled endpoint, and the objects bound to it.
pub(crate) struct Opened {
    pub(crate) endpoint: Endpoint,
    pub(crate) queue: CompletionQueue,
    pub(crate) addresses: AddressVector,
}

impl Opened {
    pub(crate) fn new(command: &mut Command<'_>, capture: Option<&CaptureFile>) -> Result<Self> {
        let domain = match is_on_verbs() {
            true => Fabric::verbs(None).domain()?,
            false => Fabric::shm(device_options(capture)?).domain()?,
        };
        let options = endpoint_options(command)?;
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        Ok(Self { endpoint, queue, addresses })
    }
}

/// Whether the device is the preloaded library, which reads the variables itself.
fn is_on_verbs() -> bool {
    env::var_os("EFA_PEER_DEVICE").is_some_and(|device| device == "verbs")
}

fn device_options(capture: Option<&CaptureFile>) -> Result<ShmOptions> {
    let name = env::var("EFA_SOFT_NAME").context("EFA_SOFT_NAME")?;
    let faults = faults()?;
    Ok(ShmOptions::new(name).with(|options| {
        options.directory = env::var_os("EFA_SOFT_DIRECTORY").map(Into::into);
        options.rdma = rdma(&env::var("EFA_SOFT_RDMA").unwrap_or_else(|_| "read,write".into()));
        options.faults = faults;
        options.capture = capture.cloned().map(SharedSink::new);
    }))
}

fn faults() -> Result<FaultOptions> {
    let word = |variable| env::var(variable).ok();
    let mut faults = FaultOptions::NONE;
    faults.reorder = word("EFA_SOFT_REORDER").map(|text| text.parse()).transpose()?;
    faults.receiver_not_ready = word("EFA_SOFT_RNR").map_or(Ok(0.0), |text| text.parse())?;
    faults.not_ready_of_each = word("EFA_SOFT_RNR_EACH").map_or(Ok(0), |text| text.parse())?;
    faults.refusals = word("EFA_SOFT_REFUSE").map(|text| text.parse()).transpose()?;
    Ok(faults)
}

/// `read`, `write`, `read,write` or `none`.
fn rdma(text: &str) -> Rdma {
    let has = |what| text.split(',').any(|word| word == what);
    Rdma { read: has("read"), write: has("write"), ..Rdma::NONE }
}

fn endpoint_options(command: &mut Command<'_>) -> Result<EndpointOptions> {
    // Both kinds of peer read libfabric's variables.
    let mut options = Environment::read().endpoint;
    // Our buffers are never registered by the peer.
    command.flag("unregistered");
    if let Some(depth) = command.number("sends")? {
        options.send_depth = depth.try_into()?;
    }
    if let Some(depth) = command.number("receives")? {
        options.receive_depth = depth.try_into()?;
    }
    if let Some(retry) = command.number("rnr-retry")? {
        options.rnr_retry = retry.try_into()?;
    }
    if let Some(least) = command.number("min-multi")? {
        options.protocol.min_multi_receive = least;
    }
    Ok(options)
}

/// An address as the command language writes it: the bytes in hexadecimal.
pub(crate) fn parse_address(text: &str) -> Result<Address> {
    let mut bytes = [0; Address::SIZE];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        bail!("{text} is no address");
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16)?;
    }
    Ok(Address::from_bytes(bytes))
}

/// The reverse.
pub(crate) fn address_text(address: Address) -> String {
    address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The capture file of the process. Clones are the same.
#[derive(Clone)]
pub(crate) struct CaptureFile(Arc<Mutex<Option<Capture<File>>>>);

impl CaptureFile {
    /// The file named by the environment, if any.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        let path = env::var_os("EFA_SOFT_CAPTURE").filter(|_| !is_on_verbs());
        let Some(path) = path else { return Ok(None) };
        let capture = Capture::create(&path, "efa-shm")
            .with_context(|| format!("no capture in {}", path.display()))?;
        Ok(Some(Self(Arc::new(Mutex::new(Some(capture))))))
    }

    /// Ends the file.
    pub(crate) fn finish(&self) -> Result<()> {
        let capture = self.0.lock().ok().and_then(|mut capture| capture.take());
        capture.map_or(Ok(()), |capture| Ok(capture.finish().map(drop)?))
    }
}

impl Sink for CaptureFile {
    fn record(&mut self, record: &Record<'_>) {
        if let Ok(mut capture) = self.0.lock()
            && let Some(capture) = &mut *capture
        {
            capture.record(record);
        }
    }
}
