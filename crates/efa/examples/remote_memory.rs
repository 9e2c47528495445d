//! A peer writes, reads and counts in memory of this side (`fi_write`, `fi_read`, `fi_fetch_atomic`).
//!
//! ```text
//! $ cargo run -p efa --example remote_memory
//! the counter was 0
//! the counter was 14
//! the counter was 28
//! alice has read "written by alice"
//! bob's counter is 42
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{
    Access, AtomicOp, CompletionQueue, CompletionQueueOptions, Direction, EndpointOptions, Fabric,
    Kind, LocalOptions, Message, Operation, Receive, RemoteMemory, Rma,
};

/// Waits until an operation of this kind completes; returns its buffer.
fn completed(queue: &CompletionQueue, kind: Kind) -> Result<Vec<u8>, Box<dyn Error>> {
    loop {
        let completion = queue.wait(Duration::from_secs(10))?;
        if completion.kind == kind {
            return Ok(completion.into_message().into_vec());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Fabric::local(LocalOptions::default()).domain()?;
    let addresses = domain.address_vector();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_address_vector(&addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .enable()
    };
    let (alice, bob) = (endpoint()?, endpoint()?);
    let to_bob = addresses.insert(bob.address())?;
    let to_alice = addresses.insert(alice.address())?;

    // Bob registers memory and sends Alice what she needs to access it.
    let access = Access { remote_read: true, remote_write: true };
    let memory = domain.register(vec![0; 64], access)?;
    alice.receive(Receive::untagged(), vec![0; RemoteMemory::SIZE], 0)?;
    bob.send(Message::to(to_alice), memory.remote().to_bytes().to_vec(), 0)?;
    let remote = RemoteMemory::from_bytes(&completed(&queue, Kind::Receive)?)?;

    let counter = Rma::at(to_bob, remote.slice(0..8)?);
    let text = Rma::at(to_bob, remote.slice(8..24)?);
    alice.write(text.delivery_complete(), "written by alice", 1)?;
    completed(&queue, Kind::Write)?;

    // Atomics of several peers don't interfere.
    for _ in 0..3 {
        alice.fetch_atomic(counter, Operation::new(AtomicOp::Sum, &[14_u64]), vec![0; 8], 2)?;
        let before =
            u64::from_ne_bytes(completed(&queue, Kind::FetchAtomic)?.as_slice().try_into()?);
        println!("the counter was {before}");
    }

    alice.read(text, vec![0; 16], 3)?;
    println!("alice has read {:?}", String::from_utf8(completed(&queue, Kind::Read)?)?);

    let mut value = [0; 8];
    memory.read(0, &mut value);
    println!("bob's counter is {}", u64::from_ne_bytes(value));
    Ok(())
}
