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

const TAG: u64 = 7;

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
    bob.receive(Receive::tagged(TAG), vec![0; 1024], 1)?;
    let to_bob = addresses.insert(bob.address())?;
    alice.send(Message::to(to_bob).tagged(TAG), "hello from alice", 2)?;

    let received = loop {
        let completion = queue.wait(Duration::from_secs(10))?;
        if completion.is_received() {
            break completion;
        }
    };
    println!("bob got: {}", String::from_utf8(received.into_message().into_vec())?);
    Ok(())
}
