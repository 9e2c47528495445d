//! Many addresses in an address vector, of peers that nobody speaks to.

use anyhow::{Context, Result};
use efa::{Address, AddressVector};
use efa_counted_heap::live_bytes;

use crate::world::World;
use crate::{counted, say};

/// Messages that are counted.
const TIMES: usize = 256;

fn address(number: usize) -> Address {
    let mut bytes = [1; 32];
    bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
    Address::from_bytes(bytes)
}

fn fill(addresses: &AddressVector, count: usize) -> Result<()> {
    for number in 0..count {
        addresses.insert(address(number))?;
    }
    Ok(())
}

/// Bytes of an address in the vector.
pub(crate) fn heap(count: usize) -> Result<()> {
    let world = World::new();
    let program = world.program()?;
    fill(&program.addresses, 1)?;
    let live = live_bytes();
    fill(&program.addresses, count)?;
    say("addresses", count, "bytes", (live_bytes() - live) as f64 / (count - 1) as f64);
    Ok(())
}

/// Counts insertions.
pub(crate) fn insert(count: usize) -> Result<()> {
    let world = World::new();
    let program = world.program()?;
    counted(&mut || fill(&program.addresses, count))?;
    say("insert", count, "times", count);
    Ok(())
}

/// Counts messages from an endpoint with so many addresses to one of them.
pub(crate) fn among(count: usize) -> Result<()> {
    let world = World::new();
    let (program, other) = (world.program()?, world.program()?);
    let (endpoint, peer) = (program.usual(1)?, other.usual(2)?);
    fill(&program.addresses, count.checked_sub(1).context("no address")?)?;
    let to = program.addresses.insert(peer.address())?;
    let transfer =
        |buffer| world.message((&endpoint, &program.queue), to, (&peer, &other.queue), buffer);
    (0..TIMES).try_for_each(|_| transfer(vec![0; 8]))?;
    let mut buffers = vec![vec![0; 8]; TIMES];
    counted(&mut || buffers.drain(..).try_for_each(transfer))?;
    say("among", count, "times", TIMES);
    Ok(())
}
