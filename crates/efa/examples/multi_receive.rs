//! One buffer takes many messages (`FI_MULTI_RECV`).
//!
//! Each message completes with its own part of the buffer, without a copy. When less than
//! `min_multi_receive` bytes are left, the rest comes back as `Released`; then the program posts another
//! buffer.
//!
//! ```text
//! $ cargo run -p efa --example multi_receive
//! message 1: 100 bytes
//! message 2: 200 bytes
//! message 3: 300 bytes
//! message 4: 400 bytes
//! released: 24 bytes unused
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{
    CompletionQueueOptions, Config, Direction, EndpointOptions, Fabric, Kind, LocalOptions, Message,
};

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Fabric::local(LocalOptions::default()).domain()?;
    let addresses = domain.address_vector();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let endpoint = |options| {
        domain
            .endpoint(options)
            .bind_address_vector(&addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .enable()
    };
    let protocol = Config::default().with(|config| config.min_multi_receive = 64);
    let alice = endpoint(EndpointOptions::default())?;
    let bob = endpoint(EndpointOptions::new().protocol(protocol))?;
    let to_bob = addresses.insert(bob.address())?;

    bob.receive_many(None, vec![0; 1024], 1)?;
    for message in 1..=4_u8 {
        let bytes = vec![message; usize::from(message) * 100];
        alice.send(Message::to(to_bob), bytes, u64::from(message))?;
    }
    loop {
        let completion = queue.wait(Duration::from_secs(10))?;
        match completion.kind {
            Kind::MultiReceive => {
                let message = completion.into_message().into_vec();
                println!("message {}: {} bytes", message[0], message.len());
            }
            Kind::Released => {
                println!("released: {} bytes unused", completion.buffer.len());
                return Ok(());
            }
            _ => {}
        }
    }
}
