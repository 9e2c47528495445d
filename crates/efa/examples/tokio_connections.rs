//! A server of tokio, whose clients connect to it: a task for each connection, which ends with it. Messages go over shared
//! memory.
//!
//! The server starts the clients, which are one more process of this program.
//!
//! ```text
//! $ cargo run -p efa --features tokio --example tokio_connections
//! accepted 8 connections, rejected 1
//! answered 800 messages until the clients shut down
//! the other process has exited: exit status: 0
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, id};
use std::time::Duration;

use efa::with_tokio::{AsyncError, AsyncMsgEndpoint, ClosedBy, ConnectAsyncError};
use efa::{
    ConnectError, ConnectionRequest, Domain, Fabric, Message, MsgEndpointBuilder,
    MsgEndpointOptions, OperationError, PassiveEndpointOptions, Receive, ShmOptions,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Failure = Box<dyn Error + Send + Sync>;

const CLIENTS: usize = 8;
const ROUNDS: u64 = 100;
const PEER: efa::FiAddr = AsyncMsgEndpoint::PEER;
const TIMEOUT: Duration = Duration::from_secs(60);

fn endpoint(domain: &Domain) -> MsgEndpointBuilder {
    domain.msg_endpoint(MsgEndpointOptions::default())
}

async fn server() -> Result<(), Failure> {
    let network = format!("tokio-connections-{}", id());
    let fabric = Fabric::shm(ShmOptions::new(&network));
    let domain = fabric.domain()?;
    let listener =
        fabric.listen_async("127.0.0.1:0".parse()?, PassiveEndpointOptions::default())?;
    let at = listener.local_address().to_string();
    let mut child = Command::new(std::env::current_exe()?).args([network, at]).spawn()?;

    let mut served = JoinSet::new();
    let mut rejected = 0;
    for _ in 0..=CLIENTS {
        let request = timeout(TIMEOUT, listener.accept()).await??;
        match request.data() {
            b"password" => drop(served.spawn(serve(endpoint(&domain), request))),
            _ => {
                request.reject(b"a password, please")?;
                rejected += 1;
            }
        }
    }
    println!("accepted {} connections, rejected {rejected}", served.len());
    let mut answered = 0;
    while let Some(count) = timeout(TIMEOUT, served.join_next()).await? {
        answered += count??;
    }
    println!("answered {answered} messages until the clients shut down");
    println!("the other process has exited: {}", child.wait()?);
    Ok(())
}

/// Answers messages until the client ends the connection; returns how many.
async fn serve(builder: MsgEndpointBuilder, request: ConnectionRequest) -> Result<u64, Failure> {
    let endpoint = builder.accept_async(request, b"welcome").await?;
    let mut answered = 0;
    loop {
        let ping = match endpoint.receive(Receive::untagged(), vec![0; 8]).await {
            // The end of the connection ends receives that no message has matched.
            Err(AsyncError::Failed(failed)) if failed.error == OperationError::ConnectionEnded => {
                return match endpoint.closed().await? {
                    ClosedBy::Peer => Ok(answered),
                    other => Err(format!("closed by {other:?}").into()),
                };
            }
            received => received?,
        };
        endpoint.send(Message::to(PEER), ping.into_message()).await?;
        answered += 1;
    }
}

async fn client(builder: MsgEndpointBuilder, server: SocketAddr) -> Result<(), Failure> {
    let endpoint = builder.connect_async(server, b"password").await?;
    if endpoint.data() != b"welcome" {
        return Err("another answer".into());
    }
    for round in 0..ROUNDS {
        let ping = round.to_le_bytes().to_vec();
        endpoint.send(Message::to(PEER), ping.clone()).await?;
        let pong = endpoint.receive(Receive::untagged(), vec![0; 8]).await?;
        if pong.into_message() != ping {
            return Err("another message".into());
        }
    }
    endpoint.shutdown(TIMEOUT).await?;
    Ok(())
}

async fn clients(network: &str, server: SocketAddr) -> Result<(), Failure> {
    let domain = Fabric::shm(ShmOptions::new(network)).domain()?;
    match endpoint(&domain).connect_async(server, b"").await {
        Err(ConnectAsyncError::Failed(ConnectError::Rejected { data }))
            if data == b"a password, please" => {}
        other => return Err(format!("not rejected: {other:?}").into()),
    }
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        tasks.spawn(client(endpoint(&domain), server));
    }
    let done = timeout(TIMEOUT, tasks.join_all()).await?;
    done.into_iter().collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [network, server] => clients(network, server.parse()?).await,
        _ => server().await,
    }
}
