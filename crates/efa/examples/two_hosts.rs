//! Two hosts exchange messages over TCP.
//!
//! Each program is given the IP address of its own host, by which the other reaches it. The first prints the
//! address of its endpoint; the second is given that, too. How addresses travel is up to the program: a
//! file, a TCP connection, a job launcher.
//!
//! ```text
//! host-a$ cargo run -p efa --example two_hosts 10.0.0.1
//! address: [::ffff:10.0.0.1]:40001/0x2d1c5e77
//! received "hello from host b"
//!
//! host-b$ cargo run -p efa --example two_hosts 10.0.0.2 [::ffff:10.0.0.1]:40001/0x2d1c5e77
//! received "hello from host a"
//! ```

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use efa::{
    Address, CompletionQueue, CompletionQueueOptions, Direction, EndpointOptions, Fabric, FiAddr,
    Message, Receive, TcpOptions,
};

const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (own, other): (IpAddr, Option<Address>) = match arguments.as_slice() {
        [own] => (own.parse()?, None),
        [own, other] => (own.parse()?, Some(other.parse()?)),
        _ => return Err("usage: two_hosts IP-OF-THIS-HOST [ADDRESS-OF-THE-OTHER-ENDPOINT]".into()),
    };
    let domain = Fabric::tcp(TcpOptions::new(own)).domain()?;
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = domain
        .endpoint(EndpointOptions::default())
        .bind_address_vector(&addresses)
        .bind_completion_queue(&queue, Direction::Both)
        .enable()?;
    endpoint.receive(Receive::untagged(), vec![0; 64], 1)?;
    match other {
        None => {
            println!("address: {}", endpoint.address());
            let sender = print_message(&queue)?.ok_or("no sender")?;
            let peer = addresses.insert(sender)?;
            endpoint.send(Message::to(peer), "hello from host a", 2)?;
        }
        Some(other) => {
            let peer: FiAddr = addresses.insert(other)?;
            endpoint.send(Message::to(peer), "hello from host b", 2)?;
            print_message(&queue)?;
        }
    }
    // Finishes the send.
    endpoint.close(TIMEOUT)?;
    Ok(())
}

/// Waits for a message, prints it, and returns the address of its sender.
fn print_message(queue: &CompletionQueue) -> Result<Option<Address>, Box<dyn Error>> {
    loop {
        let completion = queue.wait(TIMEOUT)?;
        if completion.is_received() {
            let sender = completion.peer_address;
            println!("received {:?}", String::from_utf8(completion.into_message().into_vec())?);
            return Ok(sender);
        }
    }
}
