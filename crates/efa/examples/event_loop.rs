//! A server with one thread that sleeps in epoll until one of several objects has something: an event queue
//! (clients that connect and go), a completion queue (their messages), and a socket of the program's own.
//!
//! The server starts its clients, which are this program again.
//!
//! ```text
//! $ cargo run -p efa --example event_loop
//! 3 clients connected
//! 300 messages answered
//! 3 clients have shut down
//! the clients have exited: true
//! ```

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Command, id};
use std::time::Duration;

use efa::{
    CompletionQueue, CompletionQueueOptions, ControlEvent, Direction, Domain, EndpointId,
    EventQueue, EventQueueOptions, Fabric, Message, MsgEndpoint, MsgEndpointOptions,
    PassiveEndpointOptions, Receive, ShmOptions, TryWaitError, Wait,
};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

const CLIENTS: usize = 3;
const ROUNDS: u64 = 100;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Which object epoll reports.
const OURS: u64 = 0;
const SOCKET: u64 = 1;

struct Server {
    fabric: Fabric,
    domain: Domain,
    queue: CompletionQueue,
    events: EventQueue,
    clients: HashMap<EndpointId, MsgEndpoint>,
    connected: HashSet<EndpointId>,
    answered: u64,
    gone: usize,
}

impl Server {
    /// Sleeps until `socket` has something.
    fn run(&mut self, socket: &UnixStream) -> Result<(), Box<dyn Error>> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |descriptor: std::os::fd::BorrowedFd<'_>, number| {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&poller, descriptor, data, epoll::EventFlags::IN)
        };
        watch(self.queue.as_fd().ok_or("the queue can't be waited on")?, OURS)?;
        watch(std::os::fd::AsFd::as_fd(&self.events), OURS)?;
        watch(std::os::fd::AsFd::as_fd(socket), SOCKET)?;
        loop {
            // Both queues are read until nothing is left, whichever was reported.
            while let Some(event) = self.events.read() {
                self.happened(event?)?;
            }
            while let Some(entry) = self.queue.read() {
                // The receive that waits for a message of a client fails when that has gone.
                if let Ok(completion) = entry {
                    self.completed(completion)?;
                }
            }
            match self.fabric.try_wait(&[&self.queue, &self.events]) {
                Ok(()) => {}
                // Something has come since.
                Err(TryWaitError::Pending) => continue,
                Err(other) => return Err(other.into()),
            }
            let mut found = [MaybeUninit::uninit(); 4];
            let timeout = Timespec::try_from(TIMEOUT)?;
            match epoll::wait(&poller, &mut found, Some(&timeout)) {
                Ok(([], _)) => return Err("nothing happens".into()),
                Ok((found, _)) if found.iter().any(|found| { found.data }.u64() == SOCKET) => {
                    return Ok(());
                }
                // A signal handler ran.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn happened(&mut self, event: ControlEvent) -> Result<(), Box<dyn Error>> {
        match event {
            ControlEvent::ConnectionRequest(request) => {
                let client = self
                    .domain
                    .msg_endpoint(MsgEndpointOptions::default())
                    .bind_completion_queue(&self.queue, Direction::Both)
                    .bind_event_queue(&self.events)
                    .enable()?;
                client.receive(Receive::untagged(), vec![0; 8], 0)?;
                client.accept(request, b"")?;
                self.clients.insert(client.id(), client);
            }
            ControlEvent::Connected { endpoint, .. } => {
                self.connected.insert(endpoint);
            }
            ControlEvent::Shutdown { endpoint, .. } => {
                self.clients.remove(&endpoint);
                self.gone += 1;
            }
            other => return Err(format!("{other:?}").into()),
        }
        Ok(())
    }

    fn completed(&mut self, completion: efa::Completion) -> Result<(), Box<dyn Error>> {
        let Some(client) = self.clients.get(&completion.endpoint) else { return Ok(()) };
        if completion.is_received() {
            // It can be answered also if it is here before the event that says that the client is connected.
            client.receive(Receive::untagged(), vec![0; 8], 0)?;
            client.send(Message::to(MsgEndpoint::PEER), completion.into_message(), 0)?;
            self.answered += 1;
        }
        Ok(())
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let network = format!("event-loop-{}", id());
    let fabric = Fabric::shm(ShmOptions::new(&network));
    let domain = fabric.domain()?;
    let queue = domain.waitable_completion_queue(CompletionQueueOptions::default(), Wait::Fd)?;
    let events = fabric.event_queue(EventQueueOptions::default())?;
    let passive = fabric.passive_endpoint(&events, PassiveEndpointOptions::default());
    let listener = passive.listen("127.0.0.1:0".parse()?)?;
    let address = listener.local_address().to_string();

    // Another thread waits for the clients, and writes to the socket when all have exited.
    let (mut socket, mut other) = UnixStream::pair()?;
    let clients = (0..CLIENTS).map(|_| {
        Command::new(std::env::current_exe()?).args([network.as_str(), address.as_str()]).spawn()
    });
    let clients = clients.collect::<Result<Vec<_>, _>>()?;
    let waiter = std::thread::spawn(move || {
        let exits: Vec<_> = clients.into_iter().map(|mut client| client.wait()).collect();
        let all_well = exits.into_iter().all(|exit| exit.is_ok_and(|exit| exit.success()));
        other.write_all(&[u8::from(all_well)])
    });
    let (clients, connected) = (HashMap::new(), HashSet::new());
    let mut server =
        Server { fabric, domain, queue, events, clients, connected, answered: 0, gone: 0 };
    server.run(&socket)?;
    // What the clients did last was reported before, or at the same time as the socket.
    while server.gone < CLIENTS {
        let event = server.events.wait(TIMEOUT)?;
        server.happened(event)?;
    }
    let mut all_well = [0];
    socket.read_exact(&mut all_well)?;
    println!("{} clients connected", server.connected.len());
    println!("{} messages answered", server.answered);
    println!("{} clients have shut down", server.gone);
    println!("the clients have exited: {}", all_well == [1]);
    waiter.join().map_err(|_| "the waiting thread failed")??;
    Ok(())
}

fn call(network: &str, server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::shm(ShmOptions::new(network));
    let domain = fabric.domain()?;
    let queue = domain.waitable_completion_queue(CompletionQueueOptions::default(), Wait::Fd)?;
    let events = fabric.event_queue(EventQueueOptions::default())?;
    let endpoint = domain
        .msg_endpoint(MsgEndpointOptions::default())
        .bind_completion_queue(&queue, Direction::Both)
        .bind_event_queue(&events)
        .connect(server, b"")?;
    let ControlEvent::Connected { .. } = events.wait(TIMEOUT)? else {
        return Err("not connected".into());
    };
    for round in 0..ROUNDS {
        endpoint.receive(Receive::untagged(), vec![0; 8], round)?;
        endpoint.send(Message::to(MsgEndpoint::PEER), round.to_le_bytes().to_vec(), round)?;
        while !queue.wait(TIMEOUT)?.is_received() {}
    }
    endpoint.shutdown(TIMEOUT)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [network, server] => call(network, server.parse()?),
        _ => serve(),
    }
}
