//! Two endpoints, one tagged message.
//!
//! ```text
//! $ cargo run -p efa --example hello
//! bob got: hello from alice
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions};
use efa::{Message, Receive};

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

    // An operation takes its buffer, and the completion returns it.
    bob.receive(Receive::tagged(7), vec![0; 1024], 1)?;
    let to_bob = addresses.insert(bob.address())?;
    alice.send(Message::to(to_bob).tagged(7), "hello from alice", 2)?;

    let mut completion = queue.wait(Duration::from_secs(10))?;
    while !completion.is_received() {
        completion = queue.wait(Duration::from_secs(10))?;
    }
    println!("bob got: {}", String::from_utf8(completion.into_message().into_vec())?);
    Ok(())
}
