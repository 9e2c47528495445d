//! A scalable endpoint: one address, a receive context for requests and one for data, and a transmit context for each
//! of two threads.
//!
//! ```text
//! $ cargo run -p efa --example scalable
//! server: one address of 44 bytes, 2 receive contexts
//! client: no transmit context 2, the endpoint has 2
//! client: the endpoint has 2 transmit contexts, one of which is to be used
//! requests: client asks for 3 blocks
//! data: block 0, block 1, block 2
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use efa::{
    AddressVectorOptions, CompletionQueue, CompletionQueueOptions, Direction, Domain, Fabric,
    LocalOptions, Message, Receive, ReceiveContext, ScalableAddress, ScalableEndpoint,
    ScalableOptions, TransmitContext,
};

const REQUESTS: usize = 0;
const DATA: usize = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Fabric::local(LocalOptions::default()).domain()?;
    let queue = || domain.completion_queue(CompletionQueueOptions::default());

    // Each receive context has a queue of its own. The server doesn't send, so any queue will do for that.
    let (requests, data) = (queue(), queue());
    let server = domain
        .scalable_endpoint(ScalableOptions::new().receive_contexts(2))
        .bind_address_vector(&domain.address_vector())
        .bind_completion_queue(&requests, Direction::Transmit)
        .bind_receive_queue(REQUESTS, &requests)
        .bind_receive_queue(DATA, &data)
        .enable()?;
    // What programs exchange.
    let address = server.address().to_bytes();
    let contexts = server.address().receive_contexts();
    println!("server: one address of {} bytes, {contexts} receive contexts", address.len());

    let serving = [
        serve("requests", server.receive_context(REQUESTS)?, requests, 1)?,
        serve("data", server.receive_context(DATA)?, data, 3)?,
    ];
    client(&domain, &address)?;
    for serving in serving {
        println!("{}", serving.join().map_err(|_| "the server ended early")?);
    }
    Ok(())
}

/// A thread that receives some messages of one receive context, and returns a line about them.
fn serve(
    name: &'static str,
    context: ReceiveContext,
    queue: CompletionQueue,
    messages: u64,
) -> Result<thread::JoinHandle<String>, Box<dyn Error>> {
    for number in 0..messages {
        context.receive(Receive::untagged(), vec![0; 64], number)?;
    }
    Ok(thread::spawn(move || {
        let receive = |_| match queue.wait(Duration::from_secs(10)) {
            Ok(received) => {
                String::from_utf8_lossy(&received.into_message().into_vec()).into_owned()
            }
            Err(error) => error.to_string(),
        };
        format!("{name}: {}", (0..messages).map(receive).collect::<Vec<_>>().join(", "))
    }))
}

/// Sends a request by one transmit context, and data by the other.
fn client(domain: &Domain, address: &[u8]) -> Result<(), Box<dyn Error>> {
    // One bit of an address names one of two receive contexts.
    let options = AddressVectorOptions::new().receive_context_bits(1);
    let addresses = domain.address_vector_with(options)?;
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let own = [(); 2].map(|()| domain.completion_queue(CompletionQueueOptions::default()));
    let endpoint: ScalableEndpoint = domain
        .scalable_endpoint(ScalableOptions::new().transmit_contexts(2))
        .bind_address_vector(&addresses)
        .bind_completion_queue(&queue, Direction::Receive)
        .bind_transmit_queue(0, &own[0])
        .bind_transmit_queue(1, &own[1])
        .enable()?;
    let server = addresses.insert_scalable(&ScalableAddress::from_bytes(address)?)?;
    let to_requests = addresses.receive_context(server, REQUESTS)?;
    let to_data = addresses.receive_context(server, DATA)?;

    // Mistakes are named.
    if let Err(error) = endpoint.transmit_context(2) {
        println!("client: {error}");
    }
    if let Err(refused) = endpoint.send(Message::to(server), "to whom it may concern", 0) {
        println!("client: {refused}");
    }

    let [first, second] = [endpoint.transmit_context(0)?, endpoint.transmit_context(1)?];
    let send = |context: TransmitContext, queue: &CompletionQueue, to, texts: &[&str]| {
        for text in texts {
            context
                .send(Message::to(to), text.as_bytes().to_vec(), 0)
                .map_err(|r| r.error.to_string())?;
            queue.wait(Duration::from_secs(10)).map_err(|error| error.to_string())?;
        }
        Ok::<(), String>(())
    };
    let request = ["client asks for 3 blocks"];
    let blocks = ["block 0", "block 1", "block 2"];
    thread::scope(|scope| {
        let requesting = scope.spawn(|| send(first, &own[0], to_requests, &request));
        let sent = send(second, &own[1], to_data, &blocks);
        requesting.join().map_err(|_| "the sender ended early")??;
        Ok(sent?)
    })
}
