//! Errors, and how a program goes on after each.
//!
//! * An operation that can't be started returns a `StartError`, with its buffer.
//! * An operation that fails completes with an `OperationError`, in order with the others.
//! * What happens apart from operations, such as the loss of a peer, is an `Event`.
//!
//! ```text
//! $ cargo run -p efa --example errors
//! not started, to be retried: the completion queue has no credit: 2 operations are under way or have unread completions
//! received "short"
//! failed: operation with context 10 (peer [fe80::1]:1/0x00000001): message of 23 bytes truncated to the 8 bytes of the buffer
//!   its buffer holds "too long"
//! failed: operation with context 21 (peer [fe80::1]:2/0x00000002): the device reports: no such queue pair at the remote side
//! event: peer [fe80::1]:2/0x00000002 lost: no such queue pair at the remote side
//! failed: operation with context 20: cancelled
//! not started: the peer at #0 is gone
//! received "welcome back"
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{
    AddressVector, Buffer, Completion, CompletionError, CompletionQueue, CompletionQueueOptions,
    Direction, Domain, Endpoint, EndpointOptions, Fabric, FiAddr, LocalOptions, Message, Receive,
    WaitError,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// An endpoint with a queue of its own.
struct Side {
    endpoint: Endpoint,
    queue: CompletionQueue,
}

impl Side {
    fn open(
        domain: &Domain,
        addresses: &AddressVector,
        connid: u32,
    ) -> Result<Self, Box<dyn Error>> {
        // For two operations, so that it is soon full.
        let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(2));
        let endpoint = domain
            .endpoint(EndpointOptions::new().connid(connid))
            .bind_address_vector(addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .enable()?;
        Ok(Self { endpoint, queue })
    }

    /// Waits for the next completion. A failed operation is a result, not the end of the program.
    fn next(&self) -> Result<Result<Completion, CompletionError>, WaitError> {
        match self.queue.wait(TIMEOUT) {
            Ok(completion) => Ok(Ok(completion)),
            Err(WaitError::Failed(failed)) => Ok(Err(failed)),
            Err(timed_out) => Err(timed_out),
        }
    }
}

/// Back-pressure: the operation can be started when completions have been read.
fn send(from: &Side, to: FiAddr, mut message: Buffer, context: u64) -> Result<(), Box<dyn Error>> {
    while let Err(refused) = from.endpoint.send(Message::to(to), message, context) {
        if !refused.error.is_busy() {
            return Err(refused.into());
        }
        println!("not started, to be retried: {refused}");
        message = refused.buffer;
        from.queue.wait(TIMEOUT)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Fabric::local(LocalOptions::default()).domain()?;
    let addresses = domain.address_vector();
    let (alice, bob) = (Side::open(&domain, &addresses, 1)?, Side::open(&domain, &addresses, 2)?);
    let to_bob = addresses.insert(bob.endpoint.address())?;
    for (context, message) in ["short", "too long for its buffer", "last"].into_iter().enumerate() {
        send(&alice, to_bob, message.into(), context as u64)?;
    }

    // An operation that failed: the error has the properties of any completion.
    for capacity in [5, 8] {
        bob.endpoint.receive(Receive::untagged(), vec![0; capacity], 10)?;
        match bob.next()? {
            Ok(completion) => println!("received {:?}", text(completion)?),
            Err(failed) => {
                println!("failed: {failed}");
                println!("  its buffer holds {:?}", text(*failed.completion)?);
            }
        }
    }

    // A peer that is lost. A receive from it alone would wait for ever, so it is cancelled.
    while alice.queue.read().is_some() {}
    let from_bob = alice.endpoint.receive(Receive::untagged().from(to_bob), vec![0; 64], 20)?;
    drop(bob);
    alice.endpoint.send(Message::to(to_bob), "anyone there?", 21)?;
    if let Err(failed) = alice.next()? {
        println!("failed: {failed}");
    }
    while let Some(event) = alice.endpoint.event() {
        println!("event: {event}");
    }
    alice.endpoint.cancel(from_bob);
    if let Err(failed) = alice.next()? {
        println!("failed: {failed}");
    }

    // Its successor has another address. The old one is removed, so that its index is free again.
    let successor = Side::open(&domain, &addresses, 3)?;
    if let Err(refused) = alice.endpoint.send(Message::to(to_bob), "hello", 22) {
        println!("not started: {refused}");
    }
    addresses.remove(to_bob);
    let to_successor = addresses.insert(successor.endpoint.address())?;
    successor.endpoint.receive(Receive::untagged(), vec![0; 64], 30)?;
    alice.endpoint.send(Message::to(to_successor), "welcome back", 23)?;
    if let Ok(completion) = successor.next()? {
        println!("received {:?}", text(completion)?);
    }
    Ok(())
}

fn text(message: Completion) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(message.into_message().into_vec())?)
}
