//! Two processes play ping-pong over a connection, in shared memory. The first listens at a TCP address, the
//! second connects to it.
//!
//! ```text
//! $ cargo run -p efa --example msg_pingpong
//! listening at 127.0.0.1:40001
//! request from 127.0.0.1: "let me in"
//! connected
//! 1000 messages answered
//! the other side has shut down
//!
//! $ cargo run -p efa --example msg_pingpong 127.0.0.1:40001
//! connected: "welcome"
//! 1000 rounds
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, EventQueue,
    EventQueueOptions, Fabric, Message, MsgEndpoint, MsgEndpointBuilder, MsgEndpointOptions,
    PassiveEndpointOptions, Receive, ShmOptions,
};

const TIMEOUT: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::shm(ShmOptions::new("msg-pingpong"));
    let domain = fabric.domain()?;
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let events = fabric.event_queue(EventQueueOptions::default())?;
    match std::env::args().nth(1) {
        None => serve(&fabric, &domain, &queue, &events),
        Some(server) => call(server.parse()?, &domain, &queue, &events),
    }
}

fn endpoint(domain: &Domain, queue: &CompletionQueue, events: &EventQueue) -> MsgEndpointBuilder {
    domain
        .msg_endpoint(MsgEndpointOptions::default())
        .bind_completion_queue(queue, Direction::Both)
        .bind_event_queue(events)
}

fn serve(
    fabric: &Fabric,
    domain: &Domain,
    queue: &CompletionQueue,
    events: &EventQueue,
) -> Result<(), Box<dyn Error>> {
    let passive = fabric.passive_endpoint(events, PassiveEndpointOptions::default());
    let listener = passive.listen("127.0.0.1:0".parse()?)?;
    println!("listening at {}", listener.local_address());

    let ControlEvent::ConnectionRequest(request) = events.wait(TIMEOUT)? else {
        return Err("no request".into());
    };
    let data = String::from_utf8_lossy(request.data());
    println!("request from {}: {data:?}", request.caller().ip());
    // The first message may come before the event `Connected`.
    let server = endpoint(domain, queue, events).enable()?;
    server.receive(Receive::untagged(), vec![0; 8], 0)?;
    server.accept(request, b"welcome")?;
    let ControlEvent::Connected { .. } = events.wait(TIMEOUT)? else {
        return Err("not connected".into());
    };
    println!("connected");
    for round in 0..ROUNDS {
        let ping = received(queue)?;
        server.receive(Receive::untagged(), vec![0; 8], round)?;
        server.send(Message::to(MsgEndpoint::PEER), ping, round)?;
    }
    println!("{ROUNDS} messages answered");
    // The last answer is under way until this queue is read.
    loop {
        match events.read() {
            Some(Ok(ControlEvent::Shutdown { .. })) => break,
            Some(event) => return Err(format!("{event:?}").into()),
            None => drop(queue.read()),
        }
    }
    println!("the other side has shut down");
    Ok(())
}

fn call(
    server: SocketAddr,
    domain: &Domain,
    queue: &CompletionQueue,
    events: &EventQueue,
) -> Result<(), Box<dyn Error>> {
    let client = endpoint(domain, queue, events).connect(server, b"let me in")?;
    let ControlEvent::Connected { data, .. } = events.wait(TIMEOUT)? else {
        return Err("not connected".into());
    };
    println!("connected: {:?}", String::from_utf8_lossy(&data));
    for round in 0..ROUNDS {
        client.receive(Receive::untagged(), vec![0; 8], round)?;
        client.send(Message::to(MsgEndpoint::PEER), round.to_le_bytes().to_vec(), round)?;
        if received(queue)? != round.to_le_bytes() {
            return Err("another answer".into());
        }
    }
    println!("{ROUNDS} rounds");
    client.shutdown(TIMEOUT)?;
    Ok(())
}

/// The next message.
fn received(queue: &CompletionQueue) -> Result<Vec<u8>, Box<dyn Error>> {
    loop {
        let completion = queue.wait(TIMEOUT)?;
        if completion.is_received() {
            return Ok(completion.into_message().into_vec());
        }
    }
}
