//! Counters count operations by kind. A program can wait for a number of them.
//!
//! The operations complete on their queue all the same, which must be read: it holds at most as many as its
//! capacity.
//!
//! ```text
//! $ cargo run -p efa --example counters
//! received: 10, failed: 0
//! sent: 10, failed: 0
//! the counter is 10 after 10ms, not yet 11; failed operations: 0
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{
    CompletionQueueOptions, Counted, CounterOptions, Direction, EndpointOptions, Fabric,
    LocalOptions, Message, Receive,
};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Fabric::local(LocalOptions::default()).domain()?;
    let addresses = domain.address_vector();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let sent = domain.counter(CounterOptions::default())?;
    let received = domain.counter(CounterOptions::default())?;
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_address_vector(&addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_counter(&sent, Counted::SEND)
            .bind_counter(&received, Counted::RECEIVE)
            .enable()
    };
    let (alice, bob) = (endpoint()?, endpoint()?);
    let to_bob = addresses.insert(bob.address())?;

    for context in 0..10 {
        bob.receive(Receive::untagged(), vec![0; 8], context)?;
        alice.send(Message::to(to_bob), "message", context)?;
    }
    // Both counters are bound to both endpoints, so either wait progresses both.
    received.wait(10, TIMEOUT)?;
    sent.wait(10, TIMEOUT)?;
    println!("received: {}, failed: {}", received.value(), received.errors());
    println!("sent: {}, failed: {}", sent.value(), sent.errors());
    if let Err(error) = received.wait(11, Duration::from_millis(10)) {
        println!("{error}");
    }

    // The completions return the buffers.
    let mut completions = Vec::new();
    while queue.read_many(&mut completions, 100) > 0 {}
    assert_eq!(completions.len(), 20);
    Ok(())
}
