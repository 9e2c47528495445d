//! Messages by the facade `efa` on the links shm and tcp, from registered memory of the program or the device, into
//! registered memory.

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use efa::{
    Access, Address, AddressVector, Buffer, Completion, CompletionQueue, CompletionQueueOptions,
    Direction, Endpoint, EndpointOptions, Fabric, FiAddr, Kind, LocalAccess, MemoryRegion, Message,
    Receive, RegionSlice, ShmOptions, Statistics, TcpOptions,
};

use crate::measure::{MAX_WINDOW, Point, SENT, Transport, UNSENT};

pub(crate) const DATA: u64 = 7;
pub(crate) const CONTROL: u64 = 8;
/// The context of numbers; that of messages is their slot.
pub(crate) const NUMBER: u64 = u64::MAX;
/// The most bytes of a message that has no completion at the sender, as in `libfabric.c`; UCX and MPI complete such sends
/// at once.
pub(crate) const INJECT: usize = 1024;
/// Bytes of a page. The C programs have their buffers at the start of one.
pub(crate) const PAGE: usize = 4096;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The link, and whose memory messages are sent from.
#[derive(Clone, Copy)]
pub(crate) enum Over {
    /// The link shm from the program's own memory, registered: the kernel copies it.
    Shm,
    /// The link shm from memory that the device allocated: the receiver maps it.
    Mapped,
    /// The link tcp from the program's own memory, registered, at an address of this side.
    Tcp(IpAddr),
}

impl Over {
    fn fabric(self, directory: &Path) -> Fabric {
        match self {
            Self::Shm | Self::Mapped => {
                let hosts = Some(directory.join("hosts"));
                Fabric::shm(ShmOptions::new("peers").with(|options| options.directory = hosts))
            }
            Self::Tcp(address) => Fabric::tcp(TcpOptions::new(address)),
        }
    }
}

/// The buffers of one direction that their operations have returned, by slot: the next operation of a slot takes its
/// buffer again.
struct Slots([Option<RegionSlice>; MAX_WINDOW]);

impl Slots {
    fn new() -> Self {
        Self([const { None }; MAX_WINDOW])
    }

    /// The bytes of a slot, whose operation is about to start.
    fn take(
        &mut self,
        slot: usize,
        region: &MemoryRegion,
        range: Range<usize>,
    ) -> Result<RegionSlice> {
        match self.0[slot].take() {
            Some(slice) if slice.range() == range => Ok(slice),
            _ => Ok(region.slice(range)?),
        }
    }

    /// Keeps the buffer of an operation that has ended.
    fn give(&mut self, slot: u64, buffer: Buffer) -> Result<()> {
        let slice = buffer.into_region().ok().context("another buffer came back")?;
        self.0[slot as usize] = Some(slice);
        Ok(())
    }

    fn has(&self, slot: usize) -> bool {
        self.0[slot].is_some()
    }
}

pub(crate) struct Ours {
    endpoint: Endpoint,
    queue: CompletionQueue,
    peer: FiAddr,
    out: RegionSlice,
    /// The bytes of messages that are injected, as those of registered memory can't be borrowed.
    injected: Vec<u8>,
    into: MemoryRegion,
    /// Where page-aligned memory begins in each.
    out_at: usize,
    into_at: usize,
    received: Slots,
    sent: Slots,
    told: bool,
    heard: Option<u64>,
    /// When the point began.
    before: Statistics,
    is_server: bool,
    _addresses: AddressVector,
}

impl Ours {
    pub(crate) fn open(over: Over, directory: &Path, role: &str, bytes: usize) -> Result<Self> {
        let domain = over.fabric(directory).domain()?;
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()?;
        // Written to, and so touched.
        let access = Access { remote_read: true, remote_write: false };
        let mut out_at = 0;
        let out = match over {
            Over::Shm | Over::Tcp(_) => {
                let memory = vec![SENT; bytes + PAGE];
                out_at = to_page(&memory);
                let out = domain.register_for(memory, access, LocalAccess::SEND)?;
                out.slice(out_at..out_at + bytes)?
            }
            Over::Mapped => {
                let out = domain.registered(bytes, access)?;
                ensure!(out.region().is_mapped(), "{bytes} bytes are no shared memory");
                out.region().write(0, &vec![SENT; bytes]);
                out
            }
        };
        let memory = vec![UNSENT; bytes + PAGE];
        let into_at = to_page(&memory);
        let into = domain.register_for(memory, Access::default(), LocalAccess::RECV)?;
        let peer = meet(directory, role, &endpoint.address().to_string())?;
        let peer = addresses.insert(peer.parse::<Address>()?)?;
        Ok(Self {
            before: endpoint.statistics(),
            endpoint,
            queue,
            peer,
            out,
            injected: vec![SENT; MAX_WINDOW * INJECT],
            into,
            out_at,
            into_at,
            received: Slots::new(),
            sent: Slots::new(),
            told: false,
            heard: None,
            is_server: role == "server",
            _addresses: addresses,
        })
    }

    /// Sends what is left, and closes.
    pub(crate) fn close(self) -> Result<()> {
        Ok(self.endpoint.close(PATIENCE)?)
    }

    fn progress(&mut self) -> Result<()> {
        let mut entry = None;
        self.queue.read_into(&mut entry);
        let (kind, context, buffer) = match entry {
            Some(Ok(Completion { kind, context, buffer, .. })) => (kind, context, buffer),
            Some(Err(failed)) => return Err(failed.error.into()),
            None => return Ok(()),
        };
        match (kind == Kind::Send, context) {
            (true, NUMBER) => self.told = true,
            (true, slot) => self.sent.give(slot, buffer)?,
            (false, NUMBER) => {
                let number = <[u8; 8]>::try_from(buffer.into_vec());
                let number = number.ok().context("a number of other length")?;
                self.heard = Some(u64::from_le_bytes(number));
            }
            (false, slot) => self.received.give(slot, buffer)?,
        }
        Ok(())
    }
}

/// How many bytes of memory are before its first page.
pub(crate) fn to_page(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE)
}

/// Writes our address into the directory, and waits for that of the other side.
pub(crate) fn meet(directory: &Path, role: &str, ours: &str) -> Result<String> {
    let theirs = directory.join(if role == "client" { "server" } else { "client" });
    let unfinished = directory.join(format!("{role}.new"));
    fs::write(&unfinished, ours)?;
    fs::rename(unfinished, directory.join(role))?;
    let begin = Instant::now();
    loop {
        if let Ok(text) = fs::read_to_string(&theirs) {
            return Ok(text);
        }
        ensure!(begin.elapsed() < PATIENCE, "no {}", theirs.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Transport for Ours {
    fn receive(&mut self, point: Point, slot: usize) -> Result<()> {
        let at = self.into_at + point.offset(slot);
        let slice = self.received.take(slot, &self.into, at..at + point.size)?;
        self.endpoint.receive(Receive::tagged(DATA), slice, slot as u64)?;
        Ok(())
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        let at = self.out_at + point.offset(slot);
        let mut slice = self.sent.take(slot, self.out.region(), at..at + point.size)?;
        let message = Message::to(self.peer).tagged(DATA);
        if point.size <= INJECT {
            self.sent.0[slot] = Some(slice);
            let at = point.offset(slot);
            while let Err(error) =
                self.endpoint.inject(message, &self.injected[at..at + point.size])
            {
                ensure!(error.is_busy(), "{error}");
                self.progress()?;
            }
            return Ok(());
        }
        while let Err(refused) = self.endpoint.send(message, slice, slot as u64) {
            ensure!(refused.error.is_busy(), "{}", refused.error);
            slice = refused.buffer.into_region().ok().context("another buffer came back")?;
            self.progress()?;
        }
        Ok(())
    }

    fn await_receive(&mut self, _point: Point, slot: usize) -> Result<()> {
        while !self.received.has(slot) {
            self.progress()?;
        }
        Ok(())
    }

    fn await_send(&mut self, slot: usize) -> Result<()> {
        while !self.sent.has(slot) {
            self.progress()?;
        }
        Ok(())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        self.told = false;
        let message = Message::to(self.peer).tagged(CONTROL);
        self.endpoint.send(message, number.to_le_bytes().to_vec(), NUMBER)?;
        while !self.told {
            self.progress()?;
        }
        Ok(())
    }

    fn hear(&mut self) -> Result<u64> {
        self.endpoint.receive(Receive::tagged(CONTROL), vec![0; size_of::<u64>()], NUMBER)?;
        loop {
            if let Some(number) = self.heard.take() {
                return Ok(number);
            }
            self.progress()?;
        }
    }

    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8 {
        let mut byte = [UNSENT];
        self.into.read(self.into_at + point.offset(slot) + at, &mut byte);
        byte[0]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        self.into.write(self.into_at + point.offset(slot), &vec![UNSENT; point.size]);
    }

    fn begin(&mut self, _point: Point) {
        self.before = self.endpoint.statistics();
    }

    /// Tells how the bytes of the messages came: in packets, from the ring to their buffer at once, and by reads of the
    /// device.
    fn end(&mut self, point: Point) {
        let now = self.endpoint.statistics();
        let delivered = now.delivered_bytes - self.before.delivered_bytes;
        if self.is_server && point.size > 0 {
            let share = |bytes: u64| bytes as f64 / delivered.max(1) as f64;
            let packets = share(now.received_bytes - self.before.received_bytes);
            let reads = share(now.rdma_bytes - self.before.rdma_bytes);
            let placed = share(now.placed_bytes - self.before.placed_bytes);
            println!("moved {point} {packets:.4} {placed:.4} {reads:.4}");
        }
    }
}
