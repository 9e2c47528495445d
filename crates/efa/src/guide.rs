//! A walk through the objects, in the order of libfabric's programmer's guide: what a C program does by a call, and
//! how it reads here. Each piece of code is run by the tests.
//!
//! | in C | here |
//! |---|---|
//! | `fi_getinfo` | [Asking what there is](#asking-what-there-is) |
//! | `fi_fabric`, `fi_domain`, `fi_endpoint`, `fi_ep_bind`, `fi_enable` | [An endpoint](#an-endpoint) |
//! | `fi_passive_ep`, `fi_listen` | [Listening](#listening) |
//! | `fi_accept`, `fi_connect` | [Accepting](#accepting) |
//! | `fi_scalable_ep`, `fi_tx_context`, `fi_rx_context`, `fi_rx_addr` | [A scalable endpoint](#a-scalable-endpoint) |
//! | `fi_cq_read`, `fi_cq_readerr` | [Completions, and those of failed operations](#completions-and-those-of-failed-operations) |
//! | `fi_poll_open`, `fi_poll` | [A poll set](#a-poll-set) |
//! | `fi_trywait`, `fi_control(FI_GETWAIT)` | [Sleeping on descriptors](#sleeping-on-descriptors) |
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
