//! Two processes of tokio play ping-pong over shared memory, with many tasks on one endpoint of each. Their threads
//! sleep while they wait.
//!
//! The first process starts the second, which is this program again.
//!
//! ```text
//! $ cargo run -p efa --features tokio --example tokio_pingpong
//! 16 tasks played 100 rounds each
//! a receive that took too long was dropped, and no message lost
//! the other process has exited: exit status: 0
//! ```

use std::error::Error;
use std::process::{Command, id};
use std::time::Duration;

use efa::with_tokio::AsyncEndpoint;
use efa::{Address, AddressVector, EndpointOptions, Fabric, FiAddr, Message, Receive, ShmOptions};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Failure = Box<dyn Error + Send + Sync>;

const TASKS: u64 = 16;
const ROUNDS: u64 = 100;
/// Tag of the first and of the last message. Tags below are those of tasks.
const HELLO: u64 = TASKS;
const END: u64 = TASKS + 1;
const TIMEOUT: Duration = Duration::from_secs(30);

fn open(network: &str) -> Result<(AsyncEndpoint, AddressVector), Failure> {
    let domain = Fabric::shm(ShmOptions::new(network)).domain()?;
    let addresses = domain.address_vector();
    let endpoint = domain.endpoint(EndpointOptions::default());
    Ok((endpoint.bind_address_vector(&addresses).enable_async()?, addresses))
}

async fn first() -> Result<(), Failure> {
    let network = format!("tokio-pingpong-{}", id());
    let (endpoint, addresses) = open(&network)?;
    let own = endpoint.address().to_string();
    let mut child = Command::new(std::env::current_exe()?).args([network, own]).spawn()?;
    let hello = timeout(TIMEOUT, endpoint.receive(Receive::tagged(HELLO), vec![0; 8])).await??;
    let peer = addresses.insert(hello.peer_address.ok_or("no address")?)?;

    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(play(endpoint.clone(), peer, task));
    }
    let played = timeout(TIMEOUT, tasks.join_all()).await?;
    played.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("{TASKS} tasks played {ROUNDS} rounds each");

    // The other process sends it only after it was asked.
    let early = endpoint.receive(Receive::tagged(END), vec![0; 8]);
    if timeout(Duration::from_millis(10), early).await.is_ok() {
        return Err("nobody was to send yet".into());
    }
    endpoint.send(Message::to(peer).tagged(END), "end").await?;
    let end = timeout(TIMEOUT, endpoint.receive(Receive::tagged(END), vec![0; 8])).await??;
    if end.into_message() != *b"end" {
        return Err("another message".into());
    }
    println!("a receive that took too long was dropped, and no message lost");
    endpoint.close(TIMEOUT).await?;
    println!("the other process has exited: {}", child.wait()?);
    Ok(())
}

async fn play(endpoint: AsyncEndpoint, peer: FiAddr, task: u64) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        let ping = round.to_le_bytes().to_vec();
        endpoint.send(Message::to(peer).tagged(task), ping.clone()).await?;
        let pong = endpoint.receive(Receive::tagged(task), vec![0; 8]).await?;
        if pong.into_message() != ping {
            return Err("another answer".into());
        }
    }
    Ok(())
}

async fn second(network: &str, first: Address) -> Result<(), Failure> {
    let (endpoint, addresses) = open(network)?;
    let peer = addresses.insert(first)?;
    endpoint.send(Message::to(peer).tagged(HELLO), "hello").await?;
    let mut tasks = JoinSet::new();
    for task in 0..=END {
        let rounds = if task < TASKS { ROUNDS } else { u64::from(task == END) };
        let endpoint = endpoint.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let ping = endpoint.receive(Receive::tagged(task), vec![0; 8]).await?;
                endpoint.send(Message::to(peer).tagged(task), ping.into_message()).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    let answered = timeout(TIMEOUT, tasks.join_all()).await?;
    answered.into_iter().collect::<Result<Vec<_>, _>>()?;
    endpoint.close(TIMEOUT).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [network, first] => second(network, first.parse()?).await,
        _ => first().await,
    }
}
