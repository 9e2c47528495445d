//! Memory that a peer writes, reads and counts in.

use std::error::Error;
use std::time::Duration;

use efa::{
    Access, AtomicOp, CompletionQueue, CompletionQueueOptions, Direction, EndpointOptions, Fabric,
    Kind, LocalOptions, Operation, Rma,
};

/// Waits until an operation of this kind has ended; gives its buffer.
fn ended(queue: &CompletionQueue, kind: Kind) -> Result<Vec<u8>, Box<dyn Error>> {
    loop {
        let completion = queue.wait(Duration::from_secs(10))?;
        if completion.kind == kind {
            return Ok(completion.buffer.into_vec());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain()?;
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

    // Bob offers memory. Between programs, a message would carry what `remote` tells.
    let access = Access { remote_read: true, remote_write: true };
    let memory = domain.register(vec![0; 64], access)?;
    let counter = Rma::at(to_bob, memory.remote().part(0, 8));
    let text = Rma::at(to_bob, memory.remote().part(8, 16));

    alice.write(text.delivery_complete(), "written by alice", 1)?;
    ended(&queue, Kind::Write)?;

    // Each adds to what was there, whoever else does the same.
    for _ in 0..3 {
        alice.fetch_atomic(counter, Operation::new(AtomicOp::Sum, &[14_u64]), vec![0; 8], 2)?;
        let before = u64::from_ne_bytes(ended(&queue, Kind::Atomic)?.as_slice().try_into()?);
        println!("the counter was {before}");
    }

    alice.read(text, vec![0; 16], 3)?;
    let read = String::from_utf8(ended(&queue, Kind::Read)?)?;
    assert_eq!(read, "written by alice");

    let mut value = [0; 8];
    memory.read(0, &mut value);
    assert_eq!(u64::from_ne_bytes(value), 42);
    println!("bob has {:?} and counts {}", read, u64::from_ne_bytes(value));
    Ok(())
}
