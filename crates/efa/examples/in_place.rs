//! Messages are received in place: each in the packet that it arrived in, without a copy.
//!
//! Such an endpoint has no tags and no order, and takes messages that fit one packet. The program gives a
//! packet with each receive, and the completion returns one with the message, to be posted again.
//!
//! ```text
//! $ cargo run -p efa --example in_place
//! a packet holds up to 8880 bytes
//! received "one"
//! received "two"
//! received "three"
//! messages copied: 0
//! ```

use std::error::Error;
use std::time::Duration;

use efa::{
    Capabilities, CompletionQueueOptions, Config, Direction, EndpointOptions, Fabric, LocalOptions,
    Message, Receiving, Release,
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
    let alice = endpoint(EndpointOptions::default())?;
    // libfabric 1.13 to 1.21 ask senders for headers of one length, and 1.22 to 2.5 for none. An endpoint
    // that receives in place follows one of these releases.
    let bob = endpoint(
        EndpointOptions::new()
            .capabilities(Capabilities::MSG | Capabilities::SOURCE)
            .receiving(Receiving::InPlace)
            .protocol(Config::as_release(Release::V1_20)),
    )?;
    let to_bob = addresses.insert(bob.address())?;

    let mut packet = bob.packet()?;
    println!("a packet holds up to {} bytes", packet.capacity());
    for text in ["one", "two", "three"] {
        bob.receive_in_place(packet, 1)?;
        alice.send(Message::to(to_bob), text, 2)?;
        let received = loop {
            let completion = queue.wait(Duration::from_secs(10))?;
            if completion.is_received() {
                break completion;
            }
        };
        println!(
            "received {:?}",
            std::str::from_utf8(received.buffer.as_slice().unwrap_or_default())?
        );
        packet = received.buffer.into_packet().map_err(|_| "not received in place")?;
    }
    println!("messages copied: {}", bob.statistics().unexpected);
    Ok(())
}
