//! A walk through the objects, in the order of libfabric's programmer's guide: what a C program does by a call, and
//! how it reads here. Each piece of code is run by the tests. [Every call](#every-call) is in the tables at the end.
//!
//! | in C | here |
//! |---|---|
//! | `fi_getinfo` | [Asking what there is](#asking-what-there-is) |
//! | `fi_fabric`, `fi_domain`, `fi_endpoint`, `fi_ep_bind`, `fi_enable` | [An endpoint](#an-endpoint) |
//! | `fi_passive_ep`, `fi_listen` | [Listening](#listening) |
//! | `fi_accept`, `fi_connect` | [Accepting](#accepting) |
//! | `fi_scalable_ep`, `fi_tx_context`, `fi_rx_context`, `fi_rx_addr` | [A scalable endpoint](#a-scalable-endpoint) |
//! | `fi_mr_reg`, `fi_write`, `fi_read` | [Memory regions, writes and reads](#memory-regions-writes-and-reads) |
//! | `fi_inject` | [Injection](#injection) |
//! | `fi_cancel` | [Cancelling a receive](#cancelling-a-receive) |
//! | `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` | [Looking at a message before it is received](#looking-at-a-message-before-it-is-received) |
//! | `fi_cq_read`, `fi_cq_readerr` | [Completions, and those of failed operations](#completions-and-those-of-failed-operations) |
//! | `FI_INJECT_COMPLETE`, `FI_TRANSMIT_COMPLETE`, `FI_DELIVERY_COMPLETE` | [Levels of completion](#levels-of-completion) |
//! | `fi_cntr_open`, `fi_cntr_wait` | [Counters](#counters) |
//! | `fi_poll_open`, `fi_poll` | [A poll set](#a-poll-set) |
//! | `fi_trywait`, `fi_control(FI_GETWAIT)` | [Sleeping on descriptors](#sleeping-on-descriptors) |
//! | `fi_ep_bind` of an event queue, `fi_eq_sread`, `fi_wait` | [Waiting for events](#waiting-for-events) |
//!
//! # Asking what there is
//!
//! The hints are what the program needs; what they leave open is filled in. The first entry is the best one. A version
//! that is newer than this crate's is refused, and if nothing fits, the error names the wish that nothing meets.
//!
//! ```
//! use efa::{Capabilities, EndpointKind, Error, Hints, Query, Version, discover};
//!
//! let needs = Capabilities::MSG | Capabilities::TAGGED;
//! let hints = Hints::new().capabilities(needs).with(|hints| {
//!     hints.endpoint.kind = Some(EndpointKind::ReliableDatagram);
//!     hints.transmit.inject_size = Some(16);
//! });
//! let query = Query::new(Version::new(1, 4)).hints(hints);
//! let found = discover(&query)?;
//! let best = &found[0];
//! assert!(best.capabilities.contains(needs) && best.transmit.inject_size >= 16);
//! println!("{} on {}, packets of {} bytes", best.provider, best.fabric, best.domain.mtu);
//!
//! let impossible = Hints::new().with(|hints| hints.domain.mtu = Some(1 << 30));
//! let error = discover(&query.hints(impossible)).unwrap_err();
//! assert_eq!(error.to_string(), "nothing offers the requested domain.mtu: 1073741824");
//! # Ok::<(), Error>(())
//! ```
//!
//! # An endpoint
//!
//! Fabric, domain and endpoint are opened from the entry. Before it is enabled, an endpoint is a builder: it can be
//! bound and can't transfer anything, so what C reports at run time doesn't compile here.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, DomainOptions, EndpointOptions, Fabric, Hints, Link, Message,
//!     Receive, info,
//! };
//! use std::time::Duration;
//!
//! let entry = info(&Hints::new().link(Link::Local))?.remove(0);
//! let fabric = Fabric::open(&entry);
//! let domain = fabric.domain_with(DomainOptions::from(&entry))?;
//! let queue = domain.completion_queue(CompletionQueueOptions::new().capacity(128));
//! let addresses = domain.address_vector();
//! let enabled = || {
//!     domain
//!         .endpoint(EndpointOptions::from(&entry))
//!         .bind_completion_queue(&queue, Direction::Transmit)
//!         .bind_completion_queue(&queue, Direction::Receive)
//!         .bind_address_vector(&addresses)
//!         .enable()
//! };
//! let (here, there) = (enabled()?, enabled()?);
//! there.receive(Receive::untagged(), vec![0; 64], 1)?;
//! let peer = addresses.insert(there.address())?;
//! here.send(Message::to(peer), "hello", 2)?;
//! let mut contexts = [queue.wait(Duration::from_secs(10))?, queue.wait(Duration::from_secs(10))?]
//!     .map(|completion| completion.context);
//! contexts.sort_unstable();
//! assert_eq!(contexts, [1, 2]);
//!
//! let missing = domain.endpoint(EndpointOptions::from(&entry)).enable().unwrap_err();
//! println!("{missing}"); // names what is not bound
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Listening
//!
//! A passive endpoint belongs to a fabric and never transfers data. It can't be made without its event queue. A service
//! without a node, named as the program's own, is an address to listen at.
//!
//! ```
//! use efa::{
//!     EndpointKind, EventQueueOptions, Fabric, Hints, Link, PassiveEndpointOptions, Query, Version,
//!     discover,
//! };
//!
//! let hints = Hints::new().link(Link::Tcp).with(|hints| {
//!     hints.endpoint.kind = Some(EndpointKind::Connected);
//! });
//! // Service 0 is any free port; without a node it would be reached at all addresses of this host.
//! let query = Query::new(Version::new(1, 4)).node("127.0.0.1").service("0").source();
//! let entry = discover(&query.hints(hints))?.remove(0);
//! let fabric = Fabric::open(&entry);
//! let events = fabric.event_queue(EventQueueOptions::default())?;
//! let passive = fabric.passive_endpoint(&events, PassiveEndpointOptions::default());
//! let listener = passive.listen(entry.source.ok_or("no address to listen at")?)?;
//! assert_ne!(listener.local_address().port(), 0);
//! assert!(events.read().is_none(), "nobody has called");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Accepting
//!
//! A request comes as an event, and is accepted on a new endpoint. That one is enabled before, so that receives are
//! posted when the caller's first message comes; without that, `accept` of the builder enables it. Both sides
//! get [`Connected`](crate::ControlEvent::Connected).
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     CompletionQueueOptions, ControlEvent, Direction, EventQueueOptions, Fabric, LocalOptions,
//!     Message, MsgEndpoint, MsgEndpointOptions, PassiveEndpointOptions, Receive,
//! };
//!
//! const SOON: Duration = Duration::from_secs(10);
//! let fabric = Fabric::local(LocalOptions::default());
//! let domain = fabric.domain()?;
//! let queue = domain.completion_queue(CompletionQueueOptions::default());
//! let events = fabric.event_queue(EventQueueOptions::default())?;
//! let active = |context| {
//!     domain
//!         .msg_endpoint(MsgEndpointOptions::new().context(context))
//!         .bind_completion_queue(&queue, Direction::Both)
//!         .bind_event_queue(&events)
//! };
//! let passive = fabric.passive_endpoint(&events, PassiveEndpointOptions::default());
//! let listener = passive.listen("127.0.0.1:0".parse()?)?;
//! let client = active(1).connect(listener.local_address(), b"may I?")?;
//!
//! let ControlEvent::ConnectionRequest(request) = events.wait(SOON)? else { panic!() };
//! assert_eq!(request.data(), b"may I?");
//! let server = active(2).enable()?;
//! server.receive(Receive::untagged(), vec![0; 64], 3)?;
//! server.accept(request, b"please")?;
//! for _ in 0..2 {
//!     match events.wait(SOON)? {
//!         ControlEvent::Connected { context: 1, data, .. } => assert_eq!(data, b"please"),
//!         ControlEvent::Connected { context: 2, .. } => {}
//!         other => panic!("{other:?}"),
//!     }
//! }
//! client.send(Message::to(MsgEndpoint::PEER), "hello", 4)?;
//! let received = loop {
//!     let completion = queue.wait(SOON)?;
//!     if completion.is_received() {
//!         break completion;
//!     }
//! };
//! assert_eq!((received.endpoint, received.context), (server.id(), 3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A scalable endpoint
//!
//! Several transmit and receive contexts behind one address, each with a queue of its own. The address vector of a
//! sender reserves bits of its addresses for the number of the context.
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     AddressVectorOptions, CompletionQueueOptions, Direction, Fabric, LocalOptions, Message,
//!     Receive, ScalableOptions,
//! };
//!
//! let domain = Fabric::local(LocalOptions::default()).domain()?;
//! let queue = || domain.completion_queue(CompletionQueueOptions::default());
//! let (requests, data, sent) = (queue(), queue(), queue());
//! let server = domain
//!     .scalable_endpoint(ScalableOptions::new().receive_contexts(2))
//!     .bind_address_vector(&domain.address_vector())
//!     .bind_completion_queue(&requests, Direction::Transmit)
//!     .bind_receive_queue(0, &requests)
//!     .bind_receive_queue(1, &data)
//!     .enable()?;
//! // 2 bits are enough for 4 receive contexts.
//! let options = AddressVectorOptions::new().receive_context_bits(2);
//! let addresses = domain.address_vector_with(options)?;
//! let client = domain
//!     .scalable_endpoint(ScalableOptions::new().transmit_contexts(2))
//!     .bind_address_vector(&addresses)
//!     .bind_completion_queue(&sent, Direction::Both)
//!     .enable()?;
//! let peer = addresses.insert_scalable(&server.address())?;
//! let second = addresses.receive_context(peer, 1)?;
//! server.receive_context(1)?.receive(Receive::untagged(), vec![0; 8], 7)?;
//! client.transmit_context(0)?.send(Message::to(second), "block", 8)?;
//! let received = loop {
//!     // Each read moves on the contexts of its queue.
//!     drop(sent.read());
//!     if let Some(entry) = data.read() {
//!         break entry?;
//!     }
//! };
//! assert_eq!((received.context, received.into_message().into_vec()), (7, b"block".to_vec()));
//! assert!(requests.read().is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory regions, writes and reads
//!
//! Memory is registered for what peers may do with it. A peer needs its address, length and key, 24 bytes in all, which a
//! message carries. Slices of a region are buffers of operations, too.
//!
//! ```
//! use efa::{
//!     Access, CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, RemoteMemory, Rma,
//! };
//! # use std::time::Duration;
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! let access = Access { remote_read: true, remote_write: true };
//! let memory = domain.register(vec![0; 64], access)?;
//! let bytes = memory.remote().to_bytes(); // What its owner sends to the peer.
//! let remote = RemoteMemory::from_bytes(&bytes)?;
//!
//! here.write(Rma::at(peer, remote.slice(8..13)?).delivery_complete(), "hello", 1)?;
//! assert_eq!(queue.wait(SOON)?.context, 1);
//! here.read(Rma::at(peer, remote.slice(0..16)?), vec![0; 16], 2)?;
//! let read = queue.wait(SOON)?.into_message().into_vec();
//! assert_eq!(&read[8..13], b"hello");
//!
//! let mut own = [0; 5]; // The owner of the memory copies from it.
//! memory.read(8, &mut own);
//! assert_eq!(&own, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Injection
//!
//! Few bytes are copied by the call: the program keeps them, and there is no completion unless the operation fails.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
//!     StartError,
//! };
//! # use std::time::Duration;
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! there.receive(Receive::tagged(7), vec![0; 64], 1)?;
//! let mut bytes = *b"hello";
//! here.inject(Message::to(peer).tagged(7), &bytes)?;
//! bytes.fill(0);
//! let received = queue.wait(SOON)?;
//! assert_eq!((received.context, received.into_message().into_vec()), (1, b"hello".to_vec()));
//!
//! let limit = here.transmit_attributes().inject_size;
//! let error = here.inject(Message::to(peer), &vec![0; limit + 1]).unwrap_err();
//! assert_eq!(error, StartError::TooLongToInject { length: limit + 1, limit });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cancelling a receive
//!
//! A receive that has not matched a message can be cancelled, by the number that posting it returned, or by its
//! context. It fails, and its buffer comes back. Sends, writes, reads and atomics can't be cancelled: closing their
//! endpoint ends them.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, OperationError, Receive,
//! };
//! # use std::time::Duration;
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! let receive = there.receive(Receive::tagged(7), vec![0; 64], 1)?;
//! assert!(there.cancel(receive));
//! let Some(Err(cancelled)) = queue.read() else { panic!() };
//! assert_eq!((cancelled.completion.context, cancelled.error), (1, OperationError::Cancelled));
//! assert!(!there.cancel(receive), "it has ended");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Looking at a message before it is received
//!
//! [`peek`](Endpoint::peek) tells of a message that has arrived and matched no receive. [`claim`](Endpoint::claim)
//! takes it away from all others: the claim receives it into a buffer of the right length, and dropping the claim
//! discards it.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
//! };
//! # use std::time::Duration;
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! here.send(Message::to(peer).tagged(7), "of any length", 1)?;
//! while there.peek(Receive::tagged(7))?.is_none() {
//!     drop(queue.read()); // Messages arrive while queues are read.
//! }
//! let claim = there.claim(Receive::tagged(7))?.ok_or("peeked at")?;
//! assert!(there.peek(Receive::tagged(7))?.is_none(), "it is claimed");
//! let length = claim.message().length as usize;
//! claim.receive(vec![0; length], 2)?;
//! let received = loop {
//!     let completion = queue.wait(SOON)?;
//!     if completion.is_received() {
//!         break completion;
//!     }
//! };
//! assert_eq!((received.context, received.length), (2, 13));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Completions, and those of failed operations
//!
//! [`read`](crate::CompletionQueue::read) returns a result: an operation that failed is an error in its turn, with
//! its context, its buffer and the reason, and nobody can take it for a success. Nothing has to be read apart.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message,
//!     OperationError, Receive,
//! };
//! # use std::time::Duration;
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! // The buffer is too short for the message.
//! there.receive(Receive::untagged(), vec![0; 4], 7)?;
//! here.send(Message::to(peer), "longer than that", 8)?;
//! let (mut succeeded, mut failed) = (0, 0);
//! while succeeded + failed < 2 {
//!     match queue.read() {
//!         None => {} // Reading has moved the operations on (`FI_PROGRESS_MANUAL`).
//!         Some(Ok(completion)) => {
//!             assert_eq!(completion.context, 8);
//!             succeeded += 1;
//!         }
//!         Some(Err(error)) => {
//!             assert_eq!(error.completion.context, 7);
//!             assert!(matches!(error.error, OperationError::Truncated { .. }), "{error}");
//!             failed += 1;
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Levels of completion
//!
//! A send, a write, or an atomic that returns nothing completes at one of three [levels](Level): when its buffer may be
//! reused, when the peer's device has its packets (the default), or when the message lies in the buffer of its receive. An
//! operation has its own level, or that of the default flags of its endpoint
//! ([`ContextOptions::flags`](ContextOptions#structfield.flags)).
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, Level, LocalOptions, Message, Receive,
//! };
//! # use std::time::Duration;
//! # const SOON: Duration = Duration::from_secs(10);
//! # let domain = Fabric::local(LocalOptions::default()).domain()?;
//! # let queue = domain.completion_queue(CompletionQueueOptions::default());
//! # let addresses = domain.address_vector();
//! # let enabled = || {
//! #     let endpoint = domain.endpoint(EndpointOptions::default());
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()
//! # };
//! # let (here, there) = (enabled()?, enabled()?);
//! # let peer = addresses.insert(there.address())?;
//! here.send(Message::to(peer).level(Level::Transmit), "arrives", 1)?;
//! here.send(Message::to(peer).delivery_complete(), "is received", 2)?;
//! assert_eq!(queue.wait(SOON)?.context, 1);
//! assert!(queue.read().is_none(), "nobody receives");
//!
//! there.receive(Receive::untagged(), vec![0; 64], 3)?;
//! there.receive(Receive::untagged(), vec![0; 64], 4)?;
//! let mut contexts = [0; 3];
//! for context in &mut contexts {
//!     *context = queue.wait(SOON)?.context;
//! }
//! contexts.sort_unstable();
//! assert_eq!(contexts, [2, 3, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Counters
//!
//! A counter counts the operations of some kinds as they complete. Reading it moves them on. They also complete on their
//! queue, which may be one that nobody reads.
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     Counted, CounterOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
//! };
//!
//! let domain = Fabric::local(LocalOptions::default()).domain()?;
//! let addresses = domain.address_vector();
//! let done = domain.counter(CounterOptions::default())?;
//! let enabled = || {
//!     domain
//!         .endpoint(EndpointOptions::default())
//!         .bind_completion_queue(&domain.unread_completion_queue(), Direction::Both)
//!         .bind_address_vector(&addresses)
//!         .bind_counter(&done, Counted::SEND | Counted::RECEIVE)
//!         .enable()
//! };
//! let (here, there) = (enabled()?, enabled()?);
//! let peer = addresses.insert(there.address())?;
//! for context in 0..10 {
//!     there.receive(Receive::untagged(), vec![0; 64], context)?;
//!     here.send(Message::to(peer), "hello", context)?;
//! }
//! done.wait(20, Duration::from_secs(10))?;
//! assert_eq!((done.value(), done.errors()), (20, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A poll set
//!
//! It tells which of many objects may have something, by numbers that the program gave them. One that is told may turn
//! out empty.
//!
//! ```
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, PollSet, Receive,
//! };
//!
//! let domain = Fabric::local(LocalOptions::default()).domain()?;
//! let sent = domain.completion_queue(CompletionQueueOptions::default());
//! let received = domain.completion_queue(CompletionQueueOptions::default());
//! let mut set = PollSet::new();
//! set.add(&sent, 1);
//! set.add(&received, 2);
//! # let addresses = domain.address_vector();
//! let endpoint = domain
//!     .endpoint(EndpointOptions::default())
//!     .bind_completion_queue(&sent, Direction::Transmit)
//!     .bind_completion_queue(&received, Direction::Receive)
//!     .bind_address_vector(&addresses)
//!     .enable()?;
//! let itself = addresses.insert(endpoint.address())?;
//! endpoint.receive(Receive::untagged(), vec![0; 8], 0)?;
//! endpoint.send(Message::to(itself), "self", 0)?;
//! let (mut sends, mut receives) = (0, 0);
//! while sends + receives < 2 {
//!     let mut contexts = [0; 2];
//!     let count = set.poll(&mut contexts);
//!     for context in &contexts[..count] {
//!         match context {
//!             1 => sends += usize::from(sent.read().is_some()),
//!             _ => receives += usize::from(received.read().is_some()),
//!         }
//!     }
//! }
//! assert_eq!((sends, receives), (1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sleeping on descriptors
//!
//! A queue that was made for it has a descriptor. Before each sleep [`try_wait`](crate::Fabric::try_wait) says whether
//! the thread may sleep: something that came just before would otherwise be slept over.
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     CompletionQueueOptions, Direction, EndpointOptions, Fabric, LocalOptions, Message, Receive,
//!     TryWaitError, Wait,
//! };
//! use rustix::event::{PollFd, PollFlags, poll};
//!
//! let fabric = Fabric::local(LocalOptions::default());
//! let domain = fabric.domain()?;
//! let queue = domain.waitable_completion_queue(CompletionQueueOptions::default(), Wait::Fd)?;
//! # let addresses = domain.address_vector();
//! # let endpoint = domain.endpoint(EndpointOptions::default());
//! # let endpoint =
//! #     endpoint.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses).enable()?;
//! # let itself = addresses.insert(endpoint.address())?;
//! endpoint.receive(Receive::untagged(), vec![0; 8], 1)?;
//! endpoint.send(Message::to(itself), "self", 2)?;
//! let mut completed = 0;
//! while completed < 2 {
//!     match fabric.try_wait(&[&queue]) {
//!         Ok(()) => {
//!             let descriptor = queue.as_fd().ok_or("made without one")?;
//!             poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None)?;
//!         }
//!         Err(TryWaitError::Pending) => {} // Something is there already.
//!         Err(other) => return Err(other.into()),
//!     }
//!     while let Some(entry) = queue.read() {
//!         entry?;
//!         completed += 1;
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Waiting for events
//!
//! What happens to an endpoint apart from its operations is an [`Event`]: a peer is lost, a packet is dropped. A program
//! that polls asks the endpoint ([`Endpoint::event`]). One that sleeps binds an event queue, and waits for that together
//! with the completion queue: reading completions is what makes progress, so events come up meanwhile.
//!
//! ```
//! use std::time::Duration;
//! use efa::{
//!     CompletionQueueOptions, ControlEvent, Direction, EndpointOptions, Event, EventQueueOptions,
//!     Fabric, LocalOptions, Message, Wait,
//! };
//!
//! let fabric = Fabric::local(LocalOptions::default());
//! let domain = fabric.domain()?;
//! let set = fabric.wait_set()?;
//! let wait = || Wait::Set(set.clone());
//! let queue = domain.waitable_completion_queue(CompletionQueueOptions::default(), wait())?;
//! let events = fabric.waitable_event_queue(EventQueueOptions::default(), wait())?;
//! # let endpoint = || {
//! #     let addresses = domain.address_vector();
//! #     let builder = domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
//! #     (builder.bind_completion_queue(&queue, Direction::Both), addresses)
//! # };
//! let (bob, _) = endpoint();
//! let bob = bob.bind_event_queue(&events).enable()?;
//! # let (alice, addresses) = endpoint();
//! # let alice = alice.enable()?;
//! // Somebody whom Bob doesn't know sends what Bob has posted no receive for: nothing completes.
//! alice.inject(Message::to(addresses.insert(bob.address())?), b"hello")?;
//! let discovered = loop {
//!     assert!(set.wait(Duration::from_secs(10))?, "nothing happened");
//!     while let Some(entry) = queue.read() {
//!         entry?;
//!     }
//!     match events.read().transpose()? {
//!         Some(ControlEvent::Endpoint { event: Event::PeerDiscovered(peer), .. }) => break peer,
//!         Some(other) => println!("{other:?}"),
//!         None => {}
//!     }
//! };
//! assert_eq!(discovered, alice.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Every call
//!
//! One table for each manual page of libfabric 2.6, section 3. Where there is nothing here, the table says why.
//!
//! ## fi_getinfo, fi_version
//!
//! | in C | here |
//! |---|---|
//! | `fi_getinfo` | [`discover`], [`info`] |
//! | `fi_allocinfo`, `fi_dupinfo`, `fi_freeinfo` | [`Hints::new`], `clone` and `drop` of [`Hints`] and [`Info`] |
//! | `fi_version` | [`Version::NEWEST`] |
//! | `fi_nic` attributes of an entry | not offered, because no object needs them; [`DomainAttributes::name`](DomainAttributes#structfield.name) is the interface |
//!
//! ## fi_fabric, fi_provider
//!
//! | in C | here |
//! |---|---|
//! | `fi_fabric`, `fi_fabric2` | [`Fabric::open`], [`Fabric::verbs`] |
//! | `fi_close` | drop of the last handle; [`Endpoint::close`] finishes sends first |
//! | `fi_tostr`, `fi_tostr_r` | `Display` of [`Capabilities`], [`Mode`], [`OperationFlags`], [`LocalAccess`], [`Link`]; `Debug` of all types |
//! | `fi_getparams`, `fi_freeparams` | [`Parameter::ALL`], [`Parameter::value`], [`Environment::read`] |
//! | `fi_param_define`, `fi_param_get` | not offered, because the variables are those of [`Parameter::ALL`] |
//! | `fi_log`, `fi_log_enabled`, `fi_log_ready`, `fi_import_log` | the crate `tracing` and its subscribers; [`LogFilter`] takes libfabric's variables |
//! | `fi_open`, `fi_import`, `fi_import_fid`, `fi_export_fid` | not offered, because no other library takes part in an object |
//!
//! ## fi_domain
//!
//! | in C | here |
//! |---|---|
//! | `fi_domain`, `fi_domain2` | [`Fabric::domain`], [`Fabric::domain_with`] |
//! | `fi_domain_bind` | not offered, because registration is synchronous; an address vector has [its own event queue](AddressVector::bind_event_queue) |
//! | `fi_open_ops`, `fi_set_ops`, `fi_get_val`, `fi_set_val` | not offered, because all there is has methods |
//!
//! ## fi_endpoint
//!
//! | in C | here |
//! |---|---|
//! | `fi_endpoint`, `fi_endpoint2` | [`Domain::endpoint`] (`FI_EP_RDM`), [`Domain::msg_endpoint`] (`FI_EP_MSG`); `FI_EP_DGRAM` is not offered |
//! | `fi_passive_ep`, `fi_pep_bind` | [`Fabric::passive_endpoint`], which takes the event queue |
//! | `fi_scalable_ep` | [`Domain::scalable_endpoint`] |
//! | `fi_tx_context`, `fi_rx_context` | [`ScalableEndpoint::transmit_context`], [`ScalableEndpoint::receive_context`] |
//! | `fi_stx_context`, `fi_srx_context` | [`Domain::send_budget`], [`Domain::shared_receive_queue`] |
//! | `fi_ep_bind` of a completion queue | [`EndpointBuilder::bind_completion_queue`], [`EndpointBuilder::selective`] (`FI_SELECTIVE_COMPLETION`) |
//! | `fi_ep_bind` of an address vector, a counter | [`EndpointBuilder::bind_address_vector`], [`EndpointBuilder::bind_counter`] |
//! | `fi_ep_bind` of a shared context | [`EndpointBuilder::bind_send_budget`], [`EndpointBuilder::bind_shared_receive_queue`] |
//! | `fi_ep_bind` of an event queue | [`EndpointBuilder::bind_event_queue`], [`MsgEndpointBuilder::bind_event_queue`]; without one [`Endpoint::event`] |
//! | `fi_scalable_ep_bind` | the methods `bind_…` of [`ScalableEndpointBuilder`] |
//! | `fi_enable` | [`EndpointBuilder::enable`], [`MsgEndpointBuilder::enable`], [`ScalableEndpointBuilder::enable`] |
//! | `fi_cancel` | [`Endpoint::cancel_context`], [`Endpoint::cancel`]; of receives only, as in libfabric's provider |
//! | `fi_setopt(FI_OPT_MIN_MULTI_RECV)` | [`Endpoint::set_min_multi_receive`] |
//! | `fi_getopt(FI_OPT_MIN_MULTI_RECV)` | [`EndpointAttributes::min_multi_receive`](EndpointAttributes#structfield.min_multi_receive), as it was when the endpoint was enabled |
//! | `fi_getopt(FI_OPT_CM_DATA_SIZE)` | 256 bytes, else [`DataTooLong`] |
//! | `fi_setopt(FI_OPT_MAX_MSG_SIZE)` | [`EndpointOptions::max_message_size`](EndpointOptions#structfield.max_message_size), of tagged messages too; writes and reads have no limit |
//! | `fi_getopt(FI_OPT_MAX_ATOMIC_SIZE)` | [`Endpoint::atomic_limit`] |
//! | `fi_getopt(FI_OPT_INJECT_…_SIZE)` | [`TransmitAttributes::inject_size`](TransmitAttributes#structfield.inject_size), for all kinds of operations |
//! | other options of `fi_setopt`, `fi_getopt` | not offered, because there is no accelerator memory, and the [link](Link) is the program's choice |
//! | `fi_tx_size_left`, `fi_rx_size_left` | [`Endpoint::transmits_left`], [`Endpoint::receives_left`] |
//! | `fi_ep_alias`, `fi_alias` | not offered, because each operation takes flags: [`Message::flags`], [`Receive::flags`], [`Rma::flags`] |
//! | `fi_tc_dscp_set`, `fi_tc_dscp_get` | not offered, because endpoints have no traffic class |
//!
//! ## fi_control
//!
//! | in C | here |
//! |---|---|
//! | `FI_GETWAIT` | [`CompletionQueue::as_fd`], [`Counter::as_fd`], `as_fd` of [`EventQueue`] and [`WaitSet`] |
//! | `FI_GETWAITOBJ` | not offered, because the program has chosen it ([`Wait`]) |
//! | `FI_BACKLOG` | [`PassiveEndpointOptions::backlog`] |
//! | `FI_GETOPSFLAG` | [`TransmitAttributes::flags`](TransmitAttributes#structfield.flags), [`ReceiveAttributes::flags`](ReceiveAttributes#structfield.flags) |
//! | `FI_SETOPSFLAG` | [`ContextOptions::flags`](ContextOptions#structfield.flags), before the endpoint is enabled |
//! | `FI_QUEUE_WORK`, `FI_CANCEL_WORK`, `FI_FLUSH_WORK` | not offered, because there are no triggered operations |
//!
//! ## fi_cm
//!
//! | in C | here |
//! |---|---|
//! | `fi_listen` | [`PassiveEndpoint::listen`]; in programs of tokio `Fabric::listen_async` |
//! | `fi_connect` | [`MsgEndpoint::connect`], [`MsgEndpointBuilder::connect`]; a future: `MsgEndpointBuilder::connect_async` |
//! | `fi_accept` | [`MsgEndpoint::accept`], [`MsgEndpointBuilder::accept`]; a future: `MsgEndpointBuilder::accept_async` |
//! | `fi_reject` | [`ConnectionRequest::reject`] |
//! | `fi_shutdown` | [`MsgEndpoint::shutdown`]; a future: `AsyncMsgEndpoint::shutdown` |
//! | `FI_CONNREQ`, `FI_CONNECTED`, `FI_SHUTDOWN` | [`ControlEvent`] of an [`EventQueue`]; as futures `AsyncListener::accept`, those that connect and accept, `AsyncMsgEndpoint::closed` (feature `tokio`, module `with_tokio`) |
//! | `fi_getname` | [`Endpoint::address`], [`ScalableEndpoint::address`], [`Listener::local_address`] |
//! | `fi_setname` | not offered, because the device gives addresses; a listener's is the argument of [`listen`](PassiveEndpoint::listen) |
//! | `fi_getpeer` | not offered, because one side passed the address to `connect`, and the other has [`ConnectionRequest::caller`] |
//! | `fi_join`, `fi_mc_addr` | not offered, because the device has no multicast |
//!
//! ## fi_av, fi_av_set
//!
//! | in C | here |
//! |---|---|
//! | `fi_av_open` | [`Domain::address_vector`], [`Domain::address_vector_with`] |
//! | `fi_av_bind` | [`AddressVector::bind_event_queue`] |
//! | `fi_av_insert` | [`AddressVector::insert`], [`AddressVector::insert_many`], [`AddressVector::insert_async`] (`FI_EVENT`), [`AddressVector::insert_scalable`] |
//! | `fi_av_insertsvc`, `fi_av_insertsym` | not offered, because no service knows the addresses of endpoints: programs exchange them |
//! | `fi_av_remove` | [`AddressVector::remove`] |
//! | `fi_av_lookup`, `fi_av_lookup2` | [`AddressVector::address`]; [`AddressVector::find`] is the way back |
//! | `fi_av_straddr` | `Display` of [`Address`] |
//! | `fi_rx_addr` | [`AddressVector::receive_context`] |
//! | `fi_av_insert_auth_key`, `fi_av_lookup_auth_key`, `fi_av_set_user_id`, `fi_group_addr` | not offered, because the protocol has no keys of jobs |
//! | `fi_av_set`, `fi_av_set_…` | not offered, because there are no collective operations |
//!
//! ## fi_mr
//!
//! | in C | here |
//! |---|---|
//! | `fi_mr_reg` | [`Domain::register`], [`Domain::register_foreign`], [`Domain::allocate`]; with a `requested_key` [`Domain::register_keyed`] |
//! | `fi_mr_regattr` | [`Domain::register_for`], [`Domain::register_foreign_keyed`]; not of accelerator memory or dma-bufs |
//! | `fi_mr_regv` | not offered, because a region is one range: [`Buffer::pieces`] and [`Rma::pieces`] join several |
//! | `fi_mr_desc` | [`MemoryRegion::slice`], a buffer of operations |
//! | `fi_mr_key` | [`MemoryRegion::key`]; with address and length [`MemoryRegion::remote`] |
//! | `fi_mr_raw_attr`, `fi_mr_map_raw`, `fi_mr_unmap_key` | not offered, because every key fits 64 bits: [`RemoteMemory::to_bytes`] |
//! | `fi_mr_bind` | not offered, because regions have no counters of their own; [`Counted::REMOTE_WRITE`] counts for an endpoint |
//! | `fi_mr_enable` | [`Domain::reserve`] and [`Reservation::back`], of a key whose memory comes later |
//! | `fi_mr_refresh` | not offered, because registered memory stays where it is |
//! | `fi_close` | drop of the last handle, or [`MemoryRegion::revoke`] |
//! | `fi_hmem_ze_device`, `fi_mr_get_xpu_desc` | not offered, because there is no accelerator memory |
//!
//! ## fi_msg, fi_tagged
//!
//! | in C | here |
//! |---|---|
//! | `fi_send`, `fi_tsend` | [`Endpoint::send`] of a [`Message`], which may be [tagged](Message::tagged) |
//! | `fi_sendv`, `fi_tsendv` | the same with [`Buffer::pieces`] |
//! | `fi_senddata`, `fi_tsenddata` | the same with [`Message::with_data`] |
//! | `fi_sendmsg`, `fi_tsendmsg` | the same with [`Message::flags`]; `FI_INJECT` is [`Endpoint::copy_injected`]; `FI_FENCE` and `FI_MORE` are not offered |
//! | `fi_inject`, `fi_injectdata`, `fi_tinject`, `fi_tinjectdata` | [`Endpoint::inject`] |
//! | `fi_recv`, `fi_trecv` | [`Endpoint::receive`] of a [`Receive`] |
//! | `fi_recvv`, `fi_trecvv` | the same with [`ReceiveBuffer::pieces`] |
//! | `fi_recvmsg`, `fi_trecvmsg` | the same with [`Receive::flags`] |
//! | `FI_MULTI_RECV` | [`Endpoint::receive_many`], of untagged messages |
//! | `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD` | [`Endpoint::peek`], [`Endpoint::claim`], [`Claim::receive`], [`Claim::discard`] |
//! | `fi_tag_mpi` | not offered, because tags are numbers of the program |
//!
//! ## fi_rma
//!
//! | in C | here |
//! |---|---|
//! | `fi_write`, `fi_read` | [`Endpoint::write`], [`Endpoint::read`] at an [`Rma`] |
//! | `fi_writev`, `fi_readv` | the same with [`Buffer::pieces`], [`ReceiveBuffer::pieces`] |
//! | `fi_writemsg`, `fi_readmsg` | the same with [`Rma::pieces`] and [`Rma::flags`]; `FI_FENCE`, `FI_MORE` and `FI_COMMIT_COMPLETE` are not offered |
//! | `fi_writedata` | the same with [`Rma::with_data`] |
//! | `fi_inject_write`, `fi_inject_writedata` | [`Endpoint::inject_write`] |
//!
//! ## fi_atomic
//!
//! | in C | here |
//! |---|---|
//! | `fi_atomic`, `fi_atomicv`, `fi_atomicmsg` | [`Endpoint::atomic`] with an [`Operation`] |
//! | `fi_fetch_atomic`, `fi_fetch_atomicv`, `fi_fetch_atomicmsg` | [`Endpoint::fetch_atomic`] |
//! | `fi_compare_atomic`, `fi_compare_atomicv`, `fi_compare_atomicmsg` | [`Endpoint::fetch_atomic`] with [`Operation::compare_swap`] or [`Operation::against`] |
//! | `fi_inject_atomic` | [`Endpoint::inject_atomic`] |
//! | `fi_atomicvalid`, `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`, `fi_query_atomic` | [`Domain::atomic`] |
//!
//! ## fi_trigger, fi_collective
//!
//! | in C | here |
//! |---|---|
//! | `FI_TRIGGER`, deferred work | not offered, because an operation starts when it is called, or not at all |
//! | `fi_join_collective`, `fi_barrier`, `fi_barrier2`, `fi_broadcast`, `fi_alltoall`, `fi_allreduce`, `fi_allgather`, `fi_reduce`, `fi_reduce_scatter`, `fi_scatter`, `fi_gather`, `fi_query_collective` | not offered, because the protocol has none: programs build them of messages |
//!
//! ## fi_cq
//!
//! | in C | here |
//! |---|---|
//! | `fi_cq_open` | [`Domain::completion_queue`]; with a wait object [`Domain::waitable_completion_queue`] |
//! | `fi_cq_read`, `fi_cq_readerr` | [`CompletionQueue::read`], [`CompletionQueue::read_many`]; in a format of C [`CompletionQueue::read_as`] |
//! | `fi_cq_readfrom` | the same: [`Completion::peer`](Completion#structfield.peer), [`Completion::peer_address`](Completion#structfield.peer_address) |
//! | `fi_cq_sread`, `fi_cq_sreadfrom` | [`CompletionQueue::wait`], [`CompletionQueue::wait_many`] (`FI_CQ_COND_THRESHOLD`) |
//! | `fi_cq_signal` | [`CompletionQueue::signal`] |
//! | `fi_cq_strerror` | `Display` of [`CompletionError`] |
//!
//! ## fi_cntr
//!
//! | in C | here |
//! |---|---|
//! | `fi_cntr_open` | [`Domain::counter`]; with a wait object [`Domain::waitable_counter`] |
//! | `fi_cntr_read`, `fi_cntr_readerr` | [`Counter::value`], [`Counter::errors`] |
//! | `fi_cntr_add`, `fi_cntr_adderr` | [`Counter::add`], [`Counter::add_errors`] |
//! | `fi_cntr_set`, `fi_cntr_seterr` | [`Counter::set`], [`Counter::set_errors`] |
//! | `fi_cntr_wait` | [`Counter::wait`] |
//!
//! ## fi_eq
//!
//! | in C | here |
//! |---|---|
//! | `fi_eq_open` | [`Fabric::event_queue`], [`Fabric::waitable_event_queue`] |
//! | `fi_eq_read`, `fi_eq_readerr` | [`EventQueue::read`] |
//! | `fi_eq_sread` | [`EventQueue::wait`] |
//! | `fi_eq_write` | [`EventQueue::write`] |
//! | `fi_eq_strerror` | `Display` of [`ControlError`] |
//!
//! ## fi_poll
//!
//! | in C | here |
//! |---|---|
//! | `fi_poll_open`, `fi_poll_add`, `fi_poll_del`, `fi_poll` | [`PollSet::new`], [`PollSet::add`], [`PollSet::remove`], [`PollSet::poll`] |
//! | `fi_wait_open`, `fi_wait` | [`Fabric::wait_set`], [`WaitSet::wait`] |
//! | `fi_trywait` | [`Fabric::try_wait`], [`WaitSet::try_wait`] |
//!
//! ## fi_errno
//!
//! | in C | here |
//! |---|---|
//! | `fi_strerror` | `Display` of [`Error`], [`StartError`], [`OperationError`] and the other errors |
//!
//! ## fi_peer, fi_profile, fi_xpu
//!
//! | in C | here |
//! |---|---|
//! | the peer API (`FI_PEER`) | not offered, because no other provider takes part in an object |
//! | `fi_profile_open`, `fi_profile_…` | not offered; [`Endpoint::statistics`] has counts |
//! | `fi_ep_export_xpu`, `fi_cq_export_xpu`, `fi_cntr_export_xpu`, `fi_xpu_…` | not offered, because nothing runs on accelerators |

#[cfg(doc)]
use crate::*;
