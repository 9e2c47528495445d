//! Two processes of one host exchange messages over shared memory.
//!
//! The parent starts itself as the child, and passes it the name of the network and its own address, both as text. The
//! child sends first, so the parent learns the child's address from the message.
//!
//! ```text
//! $ cargo run -p efa --example two_processes
//! parent: received "ping 1"
//! parent: received "ping 2"
//! parent: received "ping 3"
//! child: received "pong 3"
//! parent: the child has exited: exit status: 0
//! ```

use std::error::Error;
use std::process::{Command, id};
use std::time::Duration;

use efa::{
    Address, AddressVector, Completion, CompletionQueue, CompletionQueueOptions, Direction,
    Endpoint, EndpointOptions, Fabric, Message, Receive, ShmOptions,
};

const ROUNDS: u64 = 3;
const TIMEOUT: Duration = Duration::from_secs(30);

/// An endpoint of this process on the shm network with this name.
struct Side {
    queue: CompletionQueue,
    addresses: AddressVector,
    endpoint: Endpoint,
}

impl Side {
    fn open(network: &str) -> Result<Self, Box<dyn Error>> {
        let domain = Fabric::shm(ShmOptions::new(network)).domain()?;
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = domain
            .endpoint(EndpointOptions::default())
            .bind_address_vector(&addresses)
            .bind_completion_queue(&queue, Direction::Both)
            .enable()?;
        Ok(Self { queue, addresses, endpoint })
    }

    /// Waits for the next message. Completions of sends only return their buffers.
    fn received(&self) -> Result<Completion, Box<dyn Error>> {
        loop {
            let completion = self.queue.wait(TIMEOUT)?;
            if completion.is_received() {
                return Ok(completion);
            }
        }
    }
}

fn parent() -> Result<(), Box<dyn Error>> {
    let network = format!("two-processes-{}", id());
    let side = Side::open(&network)?;
    for round in 0..ROUNDS {
        side.endpoint.receive(Receive::tagged(1), vec![0; 64], round)?;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args([network, side.endpoint.address().to_string()])
        .spawn()?;
    for round in 1..=ROUNDS {
        let ping = side.received()?;
        let to_child = side.addresses.insert(ping.peer_address.ok_or("no address")?)?;
        println!("parent: received {:?}", text(ping)?);
        side.endpoint.send(
            Message::to(to_child).tagged(2),
            format!("pong {round}").into_bytes(),
            0,
        )?;
    }
    // Without this, dropping the endpoint would cancel the last send.
    side.endpoint.close(TIMEOUT)?;
    println!("parent: the child has exited: {}", child.wait()?);
    Ok(())
}

fn child(network: &str, parent: Address) -> Result<(), Box<dyn Error>> {
    let side = Side::open(network)?;
    let to_parent = side.addresses.insert(parent)?;
    for round in 1..=ROUNDS {
        side.endpoint.receive(Receive::tagged(2).from(to_parent), vec![0; 64], round)?;
        side.endpoint.send(
            Message::to(to_parent).tagged(1),
            format!("ping {round}").into_bytes(),
            0,
        )?;
        let pong = side.received()?;
        if round == ROUNDS {
            println!("child: received {:?}", text(pong)?);
        }
    }
    side.endpoint.close(TIMEOUT)?;
    Ok(())
}

fn text(message: Completion) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(message.into_message().into_vec())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [network, address] => child(network, address.parse()?),
        _ => parent(),
    }
}
