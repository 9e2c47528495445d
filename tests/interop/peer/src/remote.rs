//! Remote memory: expose, write, read, atomic, show, forget.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use efa::{
    Access, AtomicOp, Buffer, Completion, Datatype, Domain, Endpoint, FiAddr, Kind, MemoryRegion,
    Operation, RemoteMemory, Rma, StartError,
};

use crate::command::Command;
use crate::memory::{self, Damage, Guards};

/// Exposed memory, and results of reads and atomics.
#[derive(Default)]
pub(crate) struct RemoteAccess {
    exposed: HashMap<u64, MemoryRegion>,
    reads: HashMap<u64, (Guards, Option<Buffer>)>,
    fetched: HashMap<u64, Buffer>,
}

/// An operation on memory of a peer.
pub(crate) struct Asked {
    pub(crate) id: u64,
    size: usize,
    rma: Rma,
    what: What,
}

enum What {
    /// The pattern of a seed.
    Write(u64),
    Read,
    Atomic(Operation),
    FetchAtomic(Operation),
}

impl Asked {
    /// `write id= to= size= seed= address= key= [data=] [delivery]`
    pub(crate) fn write(command: &mut Command<'_>) -> Result<Self> {
        let seed = command.needed("seed")?;
        Self::new(command, What::Write(seed))
    }

    /// `read id= to= size= address= key=`
    pub(crate) fn read(command: &mut Command<'_>) -> Result<Self> {
        Self::new(command, What::Read)
    }

    /// `atomic id= to= size= seed= address= key= type= op= width= [delivery]`: `size` bytes of
    /// elements. With `fetch` or `compare-seed=` they return the previous values.
    pub(crate) fn atomic(command: &mut Command<'_>) -> Result<Self> {
        let datatype = Datatype::from_code(command.needed("type")?.try_into()?).context("type=")?;
        let op = AtomicOp::from_code(command.needed("op")?.try_into()?).context("op=")?;
        ensure!(command.needed_size("width")? == datatype.size(), "width= and type= differ");
        let (seed, comparand) = (command.needed("seed")?, command.number("compare-seed")?);
        let fetches = command.flag("fetch");
        let mut asked = Self::new(command, What::Read)?;
        let pattern = |seed| memory::pattern(seed).take(asked.size).collect::<Vec<u8>>();
        let operation = Operation::of_bytes(op, datatype, pattern(seed));
        asked.what = match comparand {
            Some(seed) => What::FetchAtomic(operation.against_bytes(pattern(seed))),
            None if fetches => What::FetchAtomic(operation),
            None => What::Atomic(operation),
        };
        Ok(asked)
    }

    fn new(command: &mut Command<'_>, what: What) -> Result<Self> {
        let (id, size) = (command.needed("id")?, command.needed_size("size")?);
        Ok(Self { id, size, rma: target(command, size as u64)?, what })
    }

    /// Starts it; returns the guards of a read's buffer.
    pub(crate) fn start(&self, endpoint: &Endpoint) -> Result<Option<Guards>, StartError> {
        let Self { id, size, rma, what } = self;
        match what {
            What::Write(seed) => {
                let bytes: Vec<u8> = memory::pattern(*seed).take(*size).collect();
                endpoint.write(*rma, bytes, *id).map_err(|refused| refused.error)?;
            }
            What::Read => {
                let (buffer, guards) = memory::guarded(*size);
                endpoint.read(*rma, buffer, *id).map_err(|refused| refused.error)?;
                return Ok(Some(guards));
            }
            What::Atomic(operation) => {
                let started = endpoint.atomic(*rma, operation.clone(), *id);
                started.map_err(|refused| refused.error)?;
            }
            What::FetchAtomic(operation) => {
                let (operation, fetched) = (operation.clone(), vec![0; *size]);
                let started = endpoint.fetch_atomic(*rma, operation, fetched, *id);
                started.map_err(|refused| refused.error)?;
            }
        }
        Ok(None)
    }
}

impl RemoteAccess {
    /// `expose id= size= [seed=]`: memory that peers may read and write.
    pub(crate) fn expose(&mut self, domain: &Domain, command: &mut Command<'_>) -> Result<()> {
        let (id, size) = (command.needed("id")?, command.needed_size("size")?);
        let bytes: Vec<u8> = match command.number("seed")? {
            Some(seed) => memory::pattern(seed).take(size).collect(),
            None => memory::untouched(size),
        };
        let access = Access { remote_read: true, remote_write: true };
        let region = domain.register(bytes, access)?;
        let RemoteMemory { address, key, .. } = region.remote();
        self.exposed.insert(id, region);
        println!("exposed address={address:#x} key={key:#x}");
        Ok(())
    }

    /// Remembers a started read and its guards.
    pub(crate) fn expect(&mut self, id: u64, guards: Guards) {
        self.reads.insert(id, (guards, None));
    }

    /// Stores the result of an operation for `check` and `show`.
    pub(crate) fn keep(&mut self, completion: Completion) {
        match completion.kind {
            Kind::Read => {
                if let Some((_, memory)) = self.reads.get_mut(&completion.context) {
                    *memory = Some(completion.buffer);
                }
            }
            Kind::Atomic | Kind::FetchAtomic => {
                self.fetched.insert(completion.context, completion.buffer);
            }
            _ => {}
        }
    }

    /// `check id= length= seed= [from=]` of a read or of exposed memory; `None` if there is neither.
    pub(crate) fn check(
        &mut self,
        id: u64,
        (from, length): (usize, usize),
        seed: u64,
    ) -> Option<Result<Result<(), Damage>>> {
        if let Some(region) = self.exposed.get(&id) {
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes);
            return Some(Ok(check_part(&bytes, from, length, seed)));
        }
        let (guards, memory) = self.reads.remove(&id)?;
        let Some(memory) = memory else { return Some(Err(anyhow::anyhow!("not completed"))) };
        let bytes = memory.as_slice().unwrap_or_default();
        Some(Ok(check_part(bytes, from, length, seed).and_then(|()| guards.check())))
    }

    /// `show id= [result]`: the bytes, of exposed memory or of what an atomic returned.
    pub(crate) fn show(&self, command: &mut Command<'_>) -> Result<()> {
        let id = command.needed("id")?;
        let bytes = if command.flag("result") {
            self.fetched.get(&id).context("no result")?.clone().into_vec()
        } else {
            let region = self.exposed.get(&id).context("not exposed")?;
            let mut bytes = vec![0; region.len()];
            region.read(0, &mut bytes);
            bytes
        };
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("bytes hex={text}");
        Ok(())
    }

    /// `forget id=`
    pub(crate) fn forget(&mut self, command: &mut Command<'_>) -> Result<()> {
        let id = command.needed("id")?;
        self.exposed.remove(&id);
        self.reads.remove(&id);
        self.fetched.remove(&id);
        println!("ok");
        Ok(())
    }
}

/// Checks that a range is the pattern of a seed and the rest untouched.
fn check_part(bytes: &[u8], from: usize, length: usize, seed: u64) -> Result<(), Damage> {
    let part = bytes.get(from..from + length).unwrap_or_default();
    memory::check_pattern(part, seed)
        .and_then(|()| memory::check_untouched(&bytes[..from]))
        .and_then(|()| memory::check_untouched(&bytes[from + length..]))
}

/// Target and options of an operation: to=, address=, key=, data=, delivery.
fn target(command: &mut Command<'_>, length: u64) -> Result<Rma> {
    let (address, key) = (command.needed("address")?, command.needed("key")?);
    let mut rma = Rma::at(FiAddr(command.needed("to")?), RemoteMemory { address, length, key });
    if let Some(data) = command.number("data")? {
        rma = rma.with_data(data);
    }
    if command.flag("delivery") {
        rma = rma.delivery_complete();
    }
    Ok(rma)
}
