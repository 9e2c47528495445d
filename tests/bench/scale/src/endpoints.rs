//! Many endpoints in a process: memory of an idle one, the price of one more, and what idle ones cost the others.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use efa::{EndpointOptions, Fabric, LocalOptions, ShmOptions, TcpOptions};
use efa_counted_heap::live_bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::shared::Shared;
use crate::world::{Program, World};
use crate::{counted, say};

/// Times that a work is counted which doesn't grow with the number of endpoints.
const TIMES: usize = 256;
/// Reads after which idle endpoints have left the rotation of their queue.
const READS_TO_REST: usize = 4096;

/// Bytes of an idle endpoint on a link: allocated, and in shared memory.
pub(crate) fn heap(link: &str, count: usize) -> Result<()> {
    endpoints(link, count, "endpoints", EndpointOptions::default())
}

/// The same of an endpoint with the few buffers that a connection has.
pub(crate) fn connections(count: usize) -> Result<()> {
    endpoints("shm", count, "connections", few_buffers())
}

/// Options of an endpoint with little memory while it is idle, as those of connections have it.
pub(crate) fn few_buffers() -> EndpointOptions {
    let mut options = EndpointOptions::default();
    options.protocol.min_receive_buffers = 4;
    options
}

fn endpoints(link: &str, count: usize, what: &str, options: EndpointOptions) -> Result<()> {
    // Each takes descriptors on some links.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let place = tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?;
    let hosts = place.path().join("hosts");
    let fabric = match link {
        "local" => {
            Fabric::local(LocalOptions::default().with(|options| options.max_queue_pairs = 1 << 14))
        }
        "shm" => {
            let directory = Some(hosts.clone());
            Fabric::shm(ShmOptions::new("scale").with(|options| options.directory = directory))
        }
        "tcp" => Fabric::tcp(TcpOptions::new([127, 0, 0, 1])),
        other => bail!("`{other}` is no link"),
    };
    let program = Program::new(fabric.domain()?)?;
    // What the first one needs belongs to the process.
    let first = program.endpoint(options.clone(), 0)?;
    while program.queue.read().is_some() {}
    let mut endpoints = Vec::with_capacity(count);
    let (shared, live, open) = (Shared::now(&hosts)?, live_bytes(), descriptors()?);
    for number in 1..=count {
        endpoints.push(program.endpoint(options.clone(), number)?);
    }
    for _ in 0..READS_TO_REST {
        while program.queue.read().is_some() {}
    }
    let each = |bytes: f64| bytes / count as f64;
    let what = format!("{what}-{link}");
    say(&what, count, "bytes", each((live_bytes() - live) as f64));
    say(&what, count, "shared", each((Shared::now(&hosts)?.bytes - shared.bytes) as f64));
    say(&what, count, "descriptors", each(descriptors()? as f64 - open as f64));
    drop((endpoints, first));
    Ok(())
}

fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Counts what it takes to enable endpoints, one after the other, in a domain.
pub(crate) fn enable(count: usize) -> Result<()> {
    let world = World::new();
    let program = world.program()?;
    let first = program.usual(0)?;
    let mut endpoints = Vec::with_capacity(count);
    counted(&mut || {
        for number in 1..=count {
            endpoints.push(program.usual(number)?);
        }
        Ok(())
    })?;
    say("enable", count, "times", count);
    drop((endpoints, first));
    Ok(())
}

/// Endpoints on one queue that have left its rotation.
fn resting(world: &World, count: usize) -> Result<(Program, Vec<efa::Endpoint>)> {
    let program = world.program()?;
    let endpoints = (0..count).map(|number| program.usual(number)).collect::<Result<Vec<_>>>()?;
    for _ in 0..READS_TO_REST {
        while program.queue.read().is_some() {}
        world.clock.advance(Duration::from_micros(1));
    }
    Ok((program, endpoints))
}

/// Counts reads that find nothing while so many endpoints are idle on the queue.
pub(crate) fn idle(count: usize) -> Result<()> {
    let world = World::new();
    let (program, endpoints) = resting(&world, count)?;
    counted(&mut || {
        for _ in 0..TIMES {
            anyhow::ensure!(program.queue.read().is_none(), "a completion of nothing");
        }
        Ok(())
    })?;
    say("idle", count, "times", TIMES);
    drop(endpoints);
    Ok(())
}

/// Counts messages from an endpoint to another one, on a queue each, which all others share.
pub(crate) fn message(count: usize) -> Result<()> {
    let world = World::new();
    let (program, endpoints) = resting(&world, count)?;
    let (other, others) = resting(&world, count)?;
    let (from, at) = (&endpoints[count / 2], &others[count / 3]);
    let to = program.addresses.insert(at.address())?;
    let transfer = |buffer| world.message((from, &program.queue), to, (at, &other.queue), buffer);
    // Until the two are in the rotation, and know each other.
    for _ in 0..READS_TO_REST {
        transfer(vec![0; 8])?;
    }
    let mut buffers = vec![vec![0; 8]; TIMES];
    counted(&mut || buffers.drain(..).try_for_each(transfer))?;
    say("message", count, "times", TIMES);
    Ok(())
}
