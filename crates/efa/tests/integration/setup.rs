//! Discovery, attributes, and how endpoints are built.

use efa::{
    AddressVectorKind, Bound, Capabilities, CompletionOrder, CompletionQueueOptions, Config,
    ConfigError, ContextOptions, DeviceError, Direction, EnableError, Endpoint, EndpointKind,
    EndpointOptions, Error, EventQueueOptions, Fabric, Hints, Link, LocalOptions, Message,
    MessageOrder, Mode, MsgEndpointOptions, OperationFlags, Progress, Protocol, Receive,
    RegistrationMode, ResourceManagement, ShmOptions, StartError, Threading, Wanted, info,
};

use efa_device::Rdma;

use crate::world::{ALICE, BOB, World, options, pattern};

// conformance: C2
#[test]
fn info_lists_all_links_and_names_missing_capabilities() {
    let all = info(&Hints::default()).unwrap();
    let mut soft: Vec<Link> = all.iter().map(|info| info.link).collect();
    // Interfaces depend on the machine.
    soft.retain(|link| *link != Link::Verbs);
    soft.dedup();
    assert_eq!(soft, Link::ALL[1..]);
    for info in &all {
        assert_eq!(info.capabilities, Capabilities::OFFERED);
    }
    let capabilities = Capabilities::MSG | Capabilities::RMA_EVENT | Capabilities::TRIGGER;
    let missing = Capabilities::RMA_EVENT | Capabilities::TRIGGER;
    assert_eq!(
        info(&Hints::new().capabilities(capabilities)),
        Err(Error::NoData { wanted: Wanted::Capabilities(missing) })
    );
    let error = info(&Hints::new().capabilities(capabilities)).unwrap_err();
    assert_eq!(error.to_string(), "nothing offers the requested capabilities RMA_EVENT | TRIGGER");
}

// conformance: C15
#[test]
fn info_selects_by_provider_name_and_link() {
    let by_name = |name: &str| info(&Hints::new().provider(name));
    let found = by_name("efa").unwrap();
    assert!(found.len() >= Link::ALL.len() - 1, "{found:?}");
    for info in found {
        assert_eq!((info.provider, info.provider_version), ("efa", env!("CARGO_PKG_VERSION")));
        assert_eq!(info.fabric, format!("efa-{}", info.link));
    }
    assert_eq!(by_name("tcp"), Err(Error::NoData { wanted: Wanted::Provider("tcp".into()) }));
    let local = info(&Hints::new().link(Link::Local)).unwrap();
    assert!(local.iter().all(|info| info.link == Link::Local));
    assert_eq!(local.len(), EndpointKind::OFFERED.len());
}

#[test]
fn info_and_open_report_a_missing_interface() {
    let hints = Hints::new().interface("no-such");
    let nowhere = info(&hints).unwrap_err();
    assert_eq!(nowhere, Error::NoData { wanted: Wanted::Interface("no-such".into()) });
    let missing = info(&hints.link(Link::Verbs)).unwrap_err();
    assert!(matches!(missing, Error::Device(DeviceError::Absent { .. })), "{missing}");
    assert_eq!(Fabric::verbs(Some("no-such")).domain().map(drop), Err(missing));
}

// conformance: C9 C10 A135
#[test]
fn info_returns_requested_capabilities_or_an_error() {
    for capability in Capabilities::all().iter() {
        let found = info(&Hints::new().capabilities(capability));
        match Capabilities::OFFERED.contains(capability) {
            true => assert!(found.unwrap().iter().all(|i| i.capabilities.contains(capability))),
            false => assert!(found.is_err()),
        }
    }
    assert!(!Capabilities::OFFERED.contains(Capabilities::RMA_EVENT));
}

// conformance: C20 C21
#[test]
fn every_listed_fabric_can_be_opened_with_its_attributes() {
    for info in info(&Hints::default()).unwrap() {
        let fabric = Fabric::open(&info);
        assert_eq!(fabric.link(), info.link);
        let domain = fabric.domain().unwrap();
        assert_eq!(domain.fabric().link(), info.link);
        let mut attributes = domain.attributes();
        attributes.name.clone_from(&info.domain.name);
        assert_eq!(attributes, info.domain, "except for the name of the device");
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let check = |endpoint: &Endpoint| {
            assert_eq!(*endpoint.attributes(), info.endpoint);
            assert_eq!(*endpoint.transmit_attributes(), info.transmit);
            assert_eq!(*endpoint.receive_attributes(), info.receive);
            assert_eq!(domain.limits(), info.limits);
            assert_eq!(endpoint.capabilities(), info.capabilities);
        };
        if info.endpoint.kind == EndpointKind::Connected {
            let events = fabric.event_queue(EventQueueOptions::default()).unwrap();
            let endpoint = domain
                .msg_endpoint(MsgEndpointOptions::from(&info))
                .bind_completion_queue(&queue, Direction::Both)
                .bind_event_queue(&events)
                .enable()
                .unwrap();
            check(&endpoint);
        } else {
            let endpoint = domain
                .endpoint(EndpointOptions::from(&info))
                .bind_completion_queue(&queue, Direction::Both)
                .bind_address_vector(&domain.address_vector())
                .enable()
                .unwrap();
            check(&endpoint);
        }
    }
}

// conformance: C22 C23 C51 C53 C54 C111
#[test]
fn domain_and_endpoint_attributes_have_their_documented_values() {
    let world = World::pair(1);
    let domain = world.ends[ALICE].domain.attributes();
    assert_eq!(domain.progress, Progress::Manual);
    assert_eq!(domain.registration_mode, RegistrationMode::Basic);
    let limits = world.ends[ALICE].domain.limits();
    assert_eq!((limits.completion_queues, limits.endpoints), (usize::MAX, 512));
    assert_eq!((limits.transmit_contexts, limits.receive_contexts), (512, 512));
    assert_eq!((limits.endpoint_transmit_contexts, limits.endpoint_receive_contexts), (64, 64));
    let shared = (limits.shared_transmit_contexts, limits.shared_receive_contexts);
    assert_eq!(shared, (usize::MAX, usize::MAX));
    assert_eq!(domain.threading, Threading::Safe);
    assert_eq!(domain.resource_management, ResourceManagement::Enabled);
    assert_eq!(domain.address_vector, AddressVectorKind::Table);
    assert_eq!((domain.cq_data_size, domain.mr_key_size), (8, 4));
    let endpoint = world.end(ALICE).attributes();
    assert_eq!(endpoint.kind, EndpointKind::ReliableDatagram);
    assert_eq!(endpoint.protocol_version, 4);
    assert_eq!(endpoint.max_message_size, u64::MAX);
    assert_eq!(endpoint.message_prefix_size, 0);
    assert_eq!(endpoint.max_read_after_write_size, 0);
    assert_eq!(endpoint.max_write_after_read_size, 0);
    assert_eq!(endpoint.max_write_after_write_size, 0);
    assert_eq!((endpoint.transmit_contexts, endpoint.receive_contexts), (1, 1));
    assert_eq!((endpoint.protocol, endpoint.address_size), (Protocol::EfaRdm, 32));
    assert_eq!(endpoint.mem_tag_format, 0xaaaa_aaaa_aaaa_aaaa);
    let transmit = world.end(ALICE).transmit_attributes();
    assert_eq!(transmit.capabilities, Capabilities::OFFERED.difference(RECEIVE_ONLY));
    assert_eq!(transmit.mode, Mode::empty());
    let (completion, level) = (OperationFlags::COMPLETION, OperationFlags::TRANSMIT_COMPLETE);
    assert_eq!(transmit.flags, completion | level);
    assert_eq!(transmit.message_order, MessageOrder::SendAfterSend);
    assert_eq!(transmit.completion_order, CompletionOrder::Unordered);
    assert_eq!((transmit.inject_size, transmit.size), (domain.mtu - 168, 4096));
    assert_eq!((transmit.iov_limit, transmit.rma_iov_limit), (28, 4));
    let receive = world.end(ALICE).receive_attributes();
    assert_eq!(receive.capabilities, Capabilities::OFFERED - Capabilities::SEND);
    assert_eq!((receive.mode, receive.flags), (Mode::empty(), completion));
    assert_eq!(receive.message_order, MessageOrder::SendAfterSend);
    assert_eq!(receive.completion_order, CompletionOrder::Unordered);
    assert_eq!((receive.total_buffered, receive.size), (1 << 30, 1 << 21));
    assert_eq!(receive.iov_limit, 28);
}

// conformance: A207
#[test]
fn direct_write_data_size_follows_the_device() {
    for (rdma, expected) in [(Rdma::READ_WRITE, 4), (Rdma::NONE, 0)] {
        let options = LocalOptions::default().with(|options| options.rdma = rdma);
        let domain = Fabric::local(options).domain().unwrap();
        assert_eq!(domain.attributes().direct_write_data_size, expected);
    }
}

#[test]
fn attributes_follow_mtu_and_options() {
    let mut world = World::new(LocalOptions::default().with(|options| options.mtu = 4096));
    let protocol = Config::default().with(|config| {
        config.max_sends = 5;
        config.max_medium = 10_000;
    });
    world.add(options(1).protocol(protocol));
    assert_eq!(world.ends[0].domain.attributes().mtu, 4096);
    let transmit = world.end(0).transmit_attributes();
    assert_eq!((transmit.size, world.end(0).attributes().max_medium), (5, 10_000));
    assert_eq!(transmit.inject_size, 4096 - 168);
}

// conformance: C47
#[test]
fn enable_names_the_object_that_is_not_bound() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let new = || domain.endpoint(EndpointOptions::default());
    let missing = |builder: efa::EndpointBuilder| match builder.enable() {
        Err(EnableError::Missing(bound)) => bound,
        other => panic!("{other:?}"),
    };
    assert_eq!(missing(new().bind_address_vector(&addresses)), Bound::TransmitQueue);
    let sending = new().bind_completion_queue(&queue, Direction::Transmit);
    assert_eq!(missing(sending.bind_address_vector(&addresses)), Bound::ReceiveQueue);
    let receiving = new().bind_completion_queue(&queue, Direction::Receive);
    assert_eq!(missing(receiving.bind_address_vector(&addresses)), Bound::TransmitQueue);
    let unaddressed = new().bind_completion_queue(&queue, Direction::Both);
    let error = unaddressed.enable().unwrap_err();
    assert_eq!(error, EnableError::Missing(Bound::AddressVector));
    assert_eq!(error.to_string(), "no address vector is bound");
}

// conformance: C19 C93
#[test]
fn enable_refuses_objects_of_another_domain() {
    let fabric = Fabric::local(LocalOptions::default());
    let (domain, other) = (fabric.domain().unwrap(), fabric.domain().unwrap());
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let foreign_queue = other.completion_queue(CompletionQueueOptions::default());
    let new = || domain.endpoint(EndpointOptions::default());
    let error = new()
        .bind_completion_queue(&queue, Direction::Transmit)
        .bind_completion_queue(&foreign_queue, Direction::Receive)
        .bind_address_vector(&domain.address_vector())
        .enable()
        .unwrap_err();
    assert_eq!(error, EnableError::OtherDomain(Bound::ReceiveQueue));
    let error = new()
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&other.address_vector())
        .enable()
        .unwrap_err();
    assert_eq!(error, EnableError::OtherDomain(Bound::AddressVector));
}

#[test]
fn enable_refuses_objects_bound_twice() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let addresses = domain.address_vector();
    let new = || domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
    let both = new().bind_completion_queue(&queue, Direction::Both);
    let error = both.bind_completion_queue(&queue, Direction::Transmit).enable().unwrap_err();
    assert_eq!(error, EnableError::Twice(Bound::TransmitQueue));
    let error = new().bind_address_vector(&addresses).enable().unwrap_err();
    assert_eq!(error, EnableError::Twice(Bound::AddressVector));
}

// conformance: C7 C8
#[test]
fn endpoint_allows_only_operations_of_enabled_capabilities() {
    let (msg, tagged) = (Capabilities::MSG, Capabilities::TAGGED);
    let (send, receive) = (Capabilities::SEND, Capabilities::RECV);
    let multi = Capabilities::MULTI_RECV;
    let directed = Capabilities::DIRECTED_RECV;
    // Enabled capabilities; then whether send, tagged send, receive, tagged receive are allowed.
    let table = [
        (msg, [true, false, true, false]),
        (tagged, [false, true, false, true]),
        (msg | tagged, [true; 4]),
        (msg | send, [true, false, false, false]),
        (msg | receive, [false, false, true, false]),
        (tagged | send | receive, [false, true, false, true]),
        (Capabilities::empty(), [false; 4]),
    ];
    for (capabilities, allowed) in table {
        let narrow = options(1).capabilities(capabilities);
        let world = World::pair_with(1, narrow, options(2));
        let to_bob = world.introduce(ALICE, BOB);
        let alice = world.end(ALICE);
        let refused = |result: Result<(), efa::Refused>| match result {
            Ok(()) => true,
            Err(refused) => {
                assert!(matches!(refused.error, StartError::Disabled(_)));
                false
            }
        };
        let message = Message::to(to_bob);
        assert_eq!(
            [
                refused(alice.send(message, "x", 0)),
                refused(alice.send(message.tagged(1), "x", 0)),
                refused(alice.receive(Receive::untagged(), vec![0; 1], 0).map(drop)),
                refused(alice.receive(Receive::tagged(1), vec![0; 1], 0).map(drop)),
            ],
            allowed,
            "{capabilities}"
        );
        assert_eq!(alice.inject(message, b"x").is_ok(), allowed[0]);
        let many = alice.receive_many(None, vec![0; 1], 0).unwrap_err();
        assert_eq!(many.error, StartError::Disabled(multi));
        if allowed[2] {
            let one = alice.receive(Receive::untagged().from(to_bob), vec![0; 1], 0).unwrap_err();
            assert_eq!(one.error, StartError::Disabled(directed));
        }
    }
}

/// Services that the transmit side of an endpoint doesn't have.
const RECEIVE_ONLY: Capabilities = Capabilities::RECV
    .union(Capabilities::MULTI_RECV)
    .union(Capabilities::SOURCE)
    .union(Capabilities::DIRECTED_RECV);

fn enable(options: EndpointOptions) -> Result<Endpoint, EnableError> {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    domain
        .endpoint(options)
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&domain.address_vector())
        .enable()
}

// conformance: C55
#[test]
fn side_of_an_endpoint_has_only_capabilities_of_the_endpoint() {
    let (msg, tagged) = (Capabilities::MSG, Capabilities::TAGGED);
    let side = |capabilities| ContextOptions::new().capabilities(capabilities);
    let narrow = || EndpointOptions::new().capabilities(msg);
    let beyond = |side, capabilities| EnableError::BeyondEndpoint { side, capabilities };
    let error = enable(narrow().transmit(side(msg | tagged))).unwrap_err();
    assert_eq!(error, beyond("transmit", tagged));
    assert_eq!(error.to_string(), "the transmit side of the endpoint can't have TAGGED");
    let error = enable(narrow().receive(side(msg | tagged))).unwrap_err();
    assert_eq!(error, beyond("receive", tagged));
    // The direction of the other side.
    let error = enable(EndpointOptions::new().transmit(side(msg | Capabilities::RECV)));
    assert_eq!(error.unwrap_err(), beyond("transmit", Capabilities::RECV));
    let error = enable(EndpointOptions::new().receive(side(msg | Capabilities::SEND)));
    assert_eq!(error.unwrap_err(), beyond("receive", Capabilities::SEND));
    let sends_nothing = EndpointOptions::new().capabilities(msg | Capabilities::RECV);
    let error = enable(sends_nothing.transmit(side(Capabilities::SEND))).unwrap_err();
    assert_eq!(error, beyond("transmit", Capabilities::SEND));

    // Sends untagged messages only, and receives tagged ones only.
    let options = EndpointOptions::new().transmit(side(msg)).receive(side(tagged));
    let endpoint = enable(options).unwrap();
    let peer = efa::FiAddr(9);
    let unknown = StartError::UnknownAddress(peer);
    let sent = |message| endpoint.send(message, "x", 0).unwrap_err().error;
    assert_eq!(sent(Message::to(peer)), unknown, "the capabilities allow it");
    assert_eq!(sent(Message::to(peer).tagged(1)), StartError::Disabled(tagged));
    let refused = endpoint.receive(Receive::untagged(), vec![0; 1], 0).unwrap_err();
    assert_eq!(refused.error, StartError::Disabled(msg));
    assert!(endpoint.receive(Receive::tagged(1), vec![0; 1], 0).is_ok());
    assert_eq!(endpoint.transmit_attributes().capabilities, msg | Capabilities::SEND);
    assert_eq!(endpoint.receive_attributes().capabilities, tagged | Capabilities::RECV);
}

// conformance: C56
#[test]
fn operation_without_flags_has_the_defaults_and_one_with_flags_only_its_own() {
    type Make = fn(efa::FiAddr) -> Message;
    let usual = OperationFlags::COMPLETION;
    let (transmit, delivery) =
        (OperationFlags::TRANSMIT_COMPLETE, OperationFlags::DELIVERY_COMPLETE);
    // The default flags; then the message; then whether the send waits for the receive.
    let table: [(OperationFlags, Make, bool); 8] = [
        (usual | transmit, Message::to, false),
        (usual | delivery, Message::to, true),
        (delivery, Message::to, true),
        (transmit | delivery, Message::to, true),
        (usual | delivery, |to| Message::to(to).flags(OperationFlags::COMPLETION), false),
        (usual | delivery, |to| Message::to(to).flags(OperationFlags::TRANSMIT_COMPLETE), false),
        (usual, |to| Message::to(to).flags(OperationFlags::DELIVERY_COMPLETE), true),
        (usual, |to| Message::to(to).delivery_complete(), true),
    ];
    for (row, (flags, message, waits)) in table.into_iter().enumerate() {
        let alice = options(1).transmit(ContextOptions::new().flags(flags));
        let mut world = World::pair_with(row as u64, alice, options(2));
        assert_eq!(world.end(ALICE).transmit_attributes().flags, flags);
        let to_bob = world.introduce(ALICE, BOB);
        world.end(ALICE).send(message(to_bob), "hello", 1).unwrap();
        world.drive();
        assert_eq!(world.ends[ALICE].entries.is_empty(), waits, "row {row}");
        world.end(BOB).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
        assert_eq!((world.done(ALICE).context, world.done(BOB).context), (1, 2));
    }
    let receive = ContextOptions::new().flags(usual | delivery);
    let error = enable(EndpointOptions::new().receive(receive)).unwrap_err();
    assert_eq!(error, EnableError::NoSuchFlags { side: "receive", flags: delivery });
}

#[test]
fn enable_and_open_report_invalid_options() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let enable = |options| {
        domain
            .endpoint(options)
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&domain.address_vector())
            .enable()
    };
    let protocol = Config::default().with(|config| config.max_sends = 0);
    assert_eq!(
        enable(EndpointOptions::new().protocol(protocol)).unwrap_err(),
        EnableError::Config(ConfigError::TooSmall { setting: "max_sends", value: 0, least: 1 })
    );
    let capabilities = Capabilities::MSG | Capabilities::TRIGGER;
    assert_eq!(
        enable(EndpointOptions::new().capabilities(capabilities)).unwrap_err(),
        EnableError::NotOffered(Capabilities::TRIGGER)
    );
    let nameless = Fabric::shm(ShmOptions::new("")).domain().unwrap_err();
    assert!(matches!(nameless, Error::Device(DeviceError::Inconsistent { .. })));
}

// conformance: A26
#[test]
fn endpoints_draw_different_31_bit_connids() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let queue = domain.completion_queue(CompletionQueueOptions::default());
    let connids: std::collections::HashSet<u32> = (0..100)
        .map(|_| {
            let endpoint = domain
                .endpoint(EndpointOptions::default())
                .bind_completion_queue(&queue, Direction::Both)
                .bind_address_vector(&domain.address_vector())
                .enable()
                .unwrap();
            endpoint.address().connid()
        })
        .collect();
    assert_eq!(connids.len(), 100);
    assert!(connids.iter().all(|connid| connid >> 31 == 0));
}

#[test]
fn runs_with_the_same_seed_are_equal() {
    let run = |seed| {
        let mut world = World::new(LocalOptions::default().with(|options| options.seed = seed));
        world.add(options(1));
        world.add(options(2));
        let to_bob = world.introduce(ALICE, BOB);
        for i in 0..30_u64 {
            world.end(BOB).receive(Receive::tagged(i), vec![0; 100_000], i).unwrap();
            let data = pattern((i as usize * 3511) % 100_000, i);
            world.end(ALICE).send(Message::to(to_bob).tagged(i), data, i).unwrap();
        }
        let order: Vec<u64> = (0..30).map(|_| world.done(BOB).context).collect();
        (order, world.clock.now())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn depth_of_0_or_beyond_the_device_is_refused_with_the_option_and_its_range() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let enable = |options: EndpointOptions| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let builder = domain.endpoint(options).bind_completion_queue(&queue, Direction::Both);
        builder.bind_address_vector(&domain.address_vector()).enable().map(|_| ()).unwrap_err()
    };
    let error = enable(EndpointOptions::default().send_depth(0));
    assert_eq!(error.to_string(), "send_depth is 0, it can be 1 to 4096");
    for value in [0, usize::MAX] {
        let EnableError::OutOfRange { option: "receive_depth", value: told, .. } =
            enable(EndpointOptions::default().receive_depth(value))
        else {
            panic!("{value}");
        };
        assert_eq!(told, value);
    }
}

/// An EFA interface would refuse it to programs without privileges, so each link does.
#[test]
fn connid_of_32_bits_is_refused() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let enable = |connid| {
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let builder = domain.endpoint(EndpointOptions::default().connid(connid));
        let builder = builder.bind_completion_queue(&queue, Direction::Both);
        builder.bind_address_vector(&domain.address_vector()).enable().map(|_| ())
    };
    let error = enable(0x8000_0000).unwrap_err();
    assert_eq!(error.to_string(), "the connid is 0x80000000, it can be up to 0x7fffffff");
    assert!(enable(0x7fff_ffff).is_ok() && enable(0).is_ok());
}
