//! Objects: class and context, open fabrics and domains, local registration.

use std::net::Ipv4Addr;

use efa::{
    Access, AddressVectorKind, AddressVectorOptions, AtomicOp, Capabilities, Class,
    CompletionQueueOptions, Config, Counted, CounterOptions, Direction, DomainOptions,
    EndpointOptions, EventQueueOptions, Fabric, Hints, Info, Link, LocalOptions, LocalRegistration,
    Message, Mode, MsgEndpointOptions, Object, Operation, PassiveEndpointOptions, PollSet,
    Progress, Query, Receive, Receiving, RegistrationMode, Release, Rma, ScalableOptions,
    SendBudgetOptions, SharedReceiveQueueOptions, StartError, TcpOptions, Version, Wanted,
    discover, info,
};

// conformance: C17
#[test]
fn every_object_has_its_class_and_the_context_of_its_options() {
    let fabric = Fabric::local(LocalOptions::default()).with_context(1);
    let domain = fabric.domain_with(DomainOptions::new().context(2)).unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::new().context(3));
    let counter = domain.counter(CounterOptions::default().context(4)).unwrap();
    let addresses = domain.address_vector_with(AddressVectorOptions::new().context(5)).unwrap();
    let region = domain.register(vec![0; 8], Access::default()).unwrap().with_context(6);
    let endpoint = domain
        .endpoint(EndpointOptions::new().context(7))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .bind_counter(&counter, Counted::SEND)
        .enable()
        .unwrap();
    let clone = queue.clone();
    let events = fabric.event_queue(EventQueueOptions::new().context(8)).unwrap();
    let connected = domain
        .msg_endpoint(MsgEndpointOptions::new().context(9))
        .bind_completion_queue(&queue, Direction::Both)
        .bind_event_queue(&events)
        .enable()
        .unwrap();
    let passive =
        |context| fabric.passive_endpoint(&events, PassiveEndpointOptions::new().context(context));
    let (passive, listener) = (passive(10), passive(11));
    let listener = listener.listen((Ipv4Addr::LOCALHOST, 1).into()).unwrap();
    let objects: [(&dyn Object, Class, u64); 12] = [
        (&events, Class::EventQueue, 8),
        (&connected, Class::Endpoint, 9),
        (&passive, Class::PassiveEndpoint, 10),
        (&listener, Class::PassiveEndpoint, 11),
        (&fabric, Class::Fabric, 1),
        (&domain, Class::Domain, 2),
        (&queue, Class::CompletionQueue, 3),
        (&counter, Class::Counter, 4),
        (&addresses, Class::AddressVector, 5),
        (&region, Class::MemoryRegion, 6),
        (&endpoint, Class::Endpoint, 7),
        (&clone, Class::CompletionQueue, 3),
    ];
    for (object, class, context) in objects {
        assert_eq!((object.class(), object.context()), (class, context));
    }
    let plain = Fabric::local(LocalOptions::default()).domain().unwrap();
    assert_eq!((plain.context(), plain.fabric().context()), (0, 0), "none was given");
}

fn first_entry(query: Query, link: Link) -> Info {
    let found = discover(&query.hints(Hints::new().link(link))).unwrap();
    found.into_iter().next().unwrap()
}

// conformance: C16
#[test]
fn entry_has_the_open_fabric_and_domain_that_fit_it() {
    // No other test uses this address.
    let node = "127.0.0.77";
    let query = || Query::new(Version::new(1, 4)).node(node).source();
    let entry = first_entry(query(), Link::Tcp);
    assert!(entry.open_fabric().is_none() && entry.open_domain().is_none());
    let fabric = Fabric::open(&entry).with_context(9);
    let found = entry.open_fabric().unwrap();
    assert!(found.is(&fabric) && found.context() == 9);
    assert!(entry.open_domain().is_none());
    // A domain with other attributes does not fit.
    let small = TcpOptions::new(Ipv4Addr::new(127, 0, 0, 77)).with(|options| options.mtu = 4096);
    let small = Fabric::tcp(small);
    let other = small.domain().unwrap();
    assert!(entry.open_domain().is_none());
    let domain = found.domain().unwrap();
    assert!(entry.open_domain().unwrap().is(&domain));
    assert!(!entry.open_domain().unwrap().is(&other));
    // Nor does a fabric at another address.
    let elsewhere = first_entry(query().node("127.0.0.78"), Link::Tcp);
    assert!(elsewhere.open_fabric().is_none());
    // Each entry has the domain with its options.
    let asking = |change: fn(&mut Hints)| {
        let hints = Hints::new().link(Link::Tcp).with(change);
        discover(&query().hints(hints)).unwrap().remove(0)
    };
    let scalable = asking(|h| h.domain.registration_mode = Some(RegistrationMode::Scalable));
    let automatic = asking(|h| h.domain.progress = Some(Progress::Automatic));
    let map = asking(|h| h.domain.address_vector = Some(AddressVectorKind::Map));
    assert!(scalable.open_domain().is_none() && automatic.open_domain().is_none());
    let derived = domain.with_registration(RegistrationMode::Scalable);
    assert!(scalable.open_domain().unwrap().is(&derived));
    let opened = found.domain_with(DomainOptions::from(&automatic)).unwrap();
    assert!(automatic.open_domain().unwrap().is(&opened));
    assert!(map.open_domain().unwrap().is(&domain), "address vectors of both types");
    drop((derived, opened));
    let opened = found.domain_with(DomainOptions::from(&scalable)).unwrap();
    assert!(scalable.open_domain().unwrap().is(&opened));
    drop((opened, domain, found, fabric, other));
    assert!(entry.open_domain().is_none());
    assert!(entry.open_fabric().unwrap().is(&small), "the others are closed");
    drop(small);
    assert!(entry.open_fabric().is_none());
}

// conformance: C11
#[test]
fn entry_that_demands_registered_memory_is_left_out_unless_the_program_offers_it() {
    let hints = || {
        Hints::new().with(|hints| {
            hints.domain.local_registration = Some(LocalRegistration::Required);
        })
    };
    for mode in [Mode::empty(), Mode::CONTEXT] {
        let error = info(&hints().mode(mode)).unwrap_err();
        assert_eq!(error, efa::Error::NoData { wanted: Wanted::NoMode(mode) });
    }
    for info in info(&hints().mode(Mode::all())).unwrap() {
        assert_eq!((info.mode, info.transmit.mode), (Mode::LOCAL_MR, Mode::LOCAL_MR));
        assert_eq!(info.domain.local_registration, LocalRegistration::Required);
        if info.link == Link::Local {
            let domain = Fabric::open(&info).domain_with(DomainOptions::from(&info)).unwrap();
            assert_eq!(domain.attributes().local_registration, LocalRegistration::Required);
        }
    }
}

// conformance: C13 C103
#[test]
fn domain_that_requires_registered_memory_takes_only_slices_of_regions() {
    let options = DomainOptions::new().local_registration(LocalRegistration::Required);
    let domain = Fabric::local(LocalOptions::default()).domain_with(options).unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let endpoint = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
            .unwrap()
    };
    let (alice, bob) = (endpoint(), endpoint());
    let to_bob = addresses.insert(bob.address()).unwrap();
    let all = Access { remote_read: true, remote_write: true };
    let region = domain.register(vec![7; 64], all).unwrap();
    let refused = StartError::NotRegistered { length: 8 };
    let at = || Rma::at(to_bob, region.slice(0..8).unwrap().remote());
    let (message, receive) = (Message::to(to_bob), Receive::untagged());
    assert_eq!(alice.send(message, "8 bytes.", 1).unwrap_err().error, refused);
    assert_eq!(alice.receive(receive, vec![0; 8], 1).unwrap_err().error, refused);
    assert_eq!(alice.receive_many(None, vec![0; 8], 1).unwrap_err().error, refused);
    assert_eq!(alice.write(at(), vec![0; 8], 1).unwrap_err().error, refused);
    assert_eq!(alice.read(at(), vec![0; 8], 1).unwrap_err().error, refused);
    let sum = || Operation::new(AtomicOp::Sum, &[1_u64]);
    assert_eq!(alice.fetch_atomic(at(), sum(), vec![0; 8], 1).unwrap_err().error, refused);
    assert_eq!(refused.to_string(), "the buffer of 8 bytes is not registered memory");
    assert!(queue.read().is_none(), "nothing was started");

    // With a descriptor, without bytes, or with bytes that are copied in the call.
    bob.receive(receive, region.slice(8..16).unwrap(), 1).unwrap();
    bob.receive(receive, Vec::new(), 2).unwrap();
    bob.receive(receive, region.slice(16..24).unwrap(), 3).unwrap();
    alice.send(message, region.slice(0..8).unwrap(), 4).unwrap();
    alice.send(message, "", 5).unwrap();
    alice.inject(message, b"injected").unwrap();
    let mut received = 0;
    while received < 3 {
        let completion = queue.wait(std::time::Duration::from_secs(10)).unwrap();
        received += usize::from(completion.is_received());
    }
    assert_eq!(region.slice(8..16).unwrap().to_vec(), [7; 8]);
    assert_eq!(region.slice(16..24).unwrap().to_vec(), b"injected");
}

#[test]
fn debug_output_of_objects_is_short_and_has_no_message_while_much_is_under_way() {
    const SECRET: &[u8; 8] = b"\xd7\xd7\xd7\xd7\xd7\xd7\xd7\xd7";
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let counter = domain.counter(CounterOptions::default()).unwrap();
    let addresses = domain.address_vector();
    let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
    let shared = domain.shared_receive_queue(SharedReceiveQueueOptions::new());
    let budget = domain.send_budget(SendBudgetOptions::default());
    let builder = || {
        domain
            .endpoint(EndpointOptions::default())
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .bind_event_queue(&events)
            .bind_counter(&counter, Counted::SEND)
    };
    let sharing = || builder().bind_shared_receive_queue(&shared).bind_send_budget(&budget);
    let (sender, receiver) = (sharing().enable().unwrap(), builder().enable().unwrap());
    let scalable = || {
        let options = ScalableOptions::new().receive_contexts(2).transmit_contexts(2);
        let scalable = domain.scalable_endpoint(options);
        scalable.bind_completion_queue(&queue, Direction::Both).bind_address_vector(&addresses)
    };
    let contexts = scalable().enable().unwrap();
    let connected = || {
        let connected = domain.msg_endpoint(MsgEndpointOptions::new());
        connected.bind_completion_queue(&queue, Direction::Both).bind_event_queue(&events)
    };
    let connection = connected().enable().unwrap();
    let to = addresses.insert(receiver.address()).unwrap();
    for n in 0..100 {
        shared.receive(Receive::tagged(n), vec![0; 8], 0).unwrap();
        receiver.receive(Receive::tagged(n), vec![0; 8], 0).unwrap();
        sender.send(Message::to(to).tagged(100 + n), &SECRET[..], 0).unwrap();
    }
    while queue.read().is_some() {}
    let mut members = PollSet::new();
    members.add(&queue, 1);
    members.add(&counter, 2);
    let full = LocalOptions::default().with(|options| options.max_regions = 0);
    let full = Fabric::local(full).domain().unwrap();
    let refused = full.register(SECRET.repeat(1000), Access::default()).unwrap_err();
    let keyed = full.with_registration(RegistrationMode::Scalable);
    let keyed = keyed.register_keyed(SECRET.repeat(1000), 7, Access::default()).unwrap_err();
    let in_place = EndpointOptions::new()
        .capabilities(Capabilities::MSG)
        .receiving(Receiving::InPlace)
        .protocol(Config::as_release(Release::V1_20));
    let in_place = domain
        .endpoint(in_place)
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&addresses)
        .enable()
        .unwrap();
    let packet = in_place.packet().unwrap();
    let objects: [&dyn std::fmt::Debug; 22] = [
        &fabric,
        &domain,
        &queue,
        &counter,
        &addresses,
        &events,
        &shared,
        &budget,
        &sharing(),
        &sender,
        &receiver,
        &scalable(),
        &contexts,
        &contexts.receive_context(0).unwrap(),
        &contexts.transmit_context(0).unwrap(),
        &connected(),
        &connection,
        &members,
        &refused,
        &keyed,
        &in_place,
        &packet,
    ];
    for object in objects {
        let text = format!("{object:?}");
        assert!(text.len() < 4096, "{} bytes: {}", text.len(), &text[..4096]);
        assert!(!text.contains("215, 215") && !text.contains(r"\xd7"), "{text}");
    }
}
