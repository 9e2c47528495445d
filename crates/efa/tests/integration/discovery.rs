//! Discovery: queries, hints, addresses.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use efa::{
    Access, AddressFamily, AddressFormat, AddressVectorKind, Capabilities, DeviceError,
    DomainOptions, EndpointAttributes, EndpointKind, Environment, Error, Fabric, Hints, Info, Link,
    Mode, OperationFlags, Progress, Query, RegistrationMode, ResourceManagement, ScalableOptions,
    Threading, Version, Wanted, discover, info,
};

/// The version of the guide that the program is written for.
const GUIDE: Version = Version::new(1, 4);

fn wanted(found: Result<Vec<Info>, Error>) -> Wanted {
    match found {
        Err(Error::NoData { wanted }) => wanted,
        other => panic!("{other:?}"),
    }
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The links of the entries but those of interfaces, which depend on the machine.
fn links(found: &[Info]) -> Vec<Link> {
    let mut links: Vec<_> = found.iter().map(|info| info.link).collect();
    links.retain(|link| *link != Link::Verbs);
    links.dedup();
    links
}

// conformance: C1 C5
#[test]
fn query_returns_an_entry_for_each_link_and_endpoint_type_best_first() {
    let found = discover(&Query::new(GUIDE)).unwrap();
    let order: Vec<_> = found.iter().map(|info| (info.link, info.endpoint.kind)).collect();
    let soft = Link::ALL[1..].iter();
    let each = soft.flat_map(|link| EndpointKind::OFFERED.iter().map(|kind| (*link, *kind)));
    // Interfaces depend on the machine; they come first.
    assert!(order.ends_with(&each.collect::<Vec<_>>()), "{order:?}");
    assert!(order.is_sorted_by_key(|(link, _)| *link), "faster links first: {order:?}");
    let formats = [
        (EndpointKind::ReliableDatagram, AddressFormat::Efa),
        (EndpointKind::Connected, AddressFormat::Socket),
    ];
    for (kind, format) in formats {
        let of_kind = Hints::new().with(|hints| hints.endpoint.kind = Some(kind));
        let of_format = Hints::new().with(|hints| hints.address_format = Some(format));
        for hints in [of_kind, of_format] {
            let found = discover(&Query::new(GUIDE).hints(hints)).unwrap();
            assert_eq!(links(&found), Link::ALL[1..]);
            let meets = |info: &Info| (info.endpoint.kind, info.address_format) == (kind, format);
            assert!(found.iter().all(meets));
        }
    }
    assert_eq!(found, info(&Hints::default()).unwrap(), "the short form");
}

// conformance: C3
#[test]
fn query_for_a_newer_version_is_refused_and_for_older_ones_equal() {
    let newest = discover(&Query::new(Version::NEWEST)).unwrap();
    for (major, minor) in [(1, 0), (1, 4), (1, 5), (1, 17), (2, 0), (2, 6)] {
        assert_eq!(discover(&Query::new(Version::new(major, minor))).unwrap(), newest);
    }
    for (major, minor) in [(2, 7), (3, 0), (u16::MAX, u16::MAX)] {
        let asked = Version::new(major, minor);
        let error = discover(&Query::new(asked)).unwrap_err();
        assert_eq!(error, Error::Version { asked, newest: Version::NEWEST });
        let words = format!("version {major}.{minor} was asked for, 2.6 is the newest known");
        assert_eq!(error.to_string(), words);
    }
}

// conformance: C1 C4
#[test]
fn entry_as_hints_finds_itself() {
    let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for hints in [
        Hints::new(),
        Hints::new().capabilities(Capabilities::MSG | Capabilities::RECV),
        Hints::new().with(|hints| hints.source = Some(address(7))),
        Hints::new().with(|hints| hints.destination = Some(address(8))),
        Hints::new().progress(Progress::Automatic),
        Hints::new().with(|hints| {
            hints.domain.registration_mode = Some(RegistrationMode::Scalable);
            hints.domain.address_vector = Some(AddressVectorKind::Map);
        }),
    ] {
        for entry in info(&hints).unwrap() {
            let mut found = info(&Hints::from(&entry)).unwrap();
            found.retain(|info| info.link == entry.link);
            assert_eq!(found, [entry]);
        }
    }
}

/// Sets one hint beyond what an entry has, and names it.
type Beyond = (&'static str, fn(&mut Hints, &Info));

/// Sets a hint to the attribute of the entry and 1.
macro_rules! one_above {
    ($($group:ident.$field:ident)*) => {
        [$((
            concat!(stringify!($group), ".", stringify!($field)),
            (|hints, info| hints.$group.$field = Some(info.$group.$field + 1)) as fn(&mut Hints, &Info),
        )),*]
    };
}

/// Sets a hint to the attribute of the entry less 1.
macro_rules! one_below {
    ($($group:ident.$field:ident)*) => {
        [$((
            concat!(stringify!($group), ".", stringify!($field)),
            (|hints, info| hints.$group.$field = Some(info.$group.$field - 1)) as fn(&mut Hints, &Info),
        )),*]
    };
}

#[test]
fn entries_have_the_limits_of_the_options_that_endpoints_will_be_opened_with() {
    let environment = Environment::of([
        ("FI_EFA_TX_SIZE", "100"),
        ("FI_EFA_RX_SIZE", "200"),
        ("FI_EFARS_BOUND_UNEXPECTED", "4096"),
        ("FI_EFARS_MAX_MESSAGE_SIZE", "5000"),
    ]);
    assert_eq!(environment.mistakes, []);
    let query = Query::new(GUIDE).options(environment.endpoint);
    let found = discover(&query).unwrap();
    assert!(!found.is_empty());
    for info in &found {
        assert_eq!((info.transmit.size, info.receive.size), (100, 200), "{info:?}");
        assert_eq!(info.receive.total_buffered, 4096, "{info:?}");
        assert_eq!(info.endpoint.max_message_size, 5000, "{info:?}");
    }
    let hints = |size| Hints::new().with(|hints| hints.transmit.size = Some(size));
    assert_eq!(discover(&query.clone().hints(hints(100))).unwrap().len(), found.len());
    wanted(discover(&query.hints(hints(101))));
}

// conformance: C1 C4 C127
#[test]
fn hint_beyond_an_attribute_leaves_no_entry_and_is_named() {
    let above: &[Beyond] = &one_above!(
        transmit.inject_size transmit.size transmit.iov_limit transmit.rma_iov_limit
        receive.total_buffered receive.size receive.iov_limit
        endpoint.max_medium endpoint.protocol_version endpoint.max_read_after_write_size
        endpoint.max_write_after_read_size endpoint.max_write_after_write_size
        domain.mtu domain.cq_data_size domain.direct_write_data_size domain.max_regions
        domain.max_region_size
    );
    let below: &[Beyond] = &one_below!(
        endpoint.address_size endpoint.min_multi_receive endpoint.protocol_version
        domain.mr_key_size
    );
    let limits: &[Beyond] = &[
        ("domain.limits.endpoints", |h, i| h.limits.endpoints = Some(i.limits.endpoints + 1)),
        ("domain.limits.transmit_contexts", |h, i| {
            h.limits.transmit_contexts = Some(i.limits.transmit_contexts + 1);
        }),
        ("domain.limits.receive_contexts", |h, i| {
            h.limits.receive_contexts = Some(i.limits.receive_contexts + 1);
        }),
        ("domain.limits.endpoint_transmit_contexts", |h, i| {
            h.limits.endpoint_transmit_contexts = Some(i.limits.endpoint_transmit_contexts + 1);
        }),
        ("domain.limits.endpoint_receive_contexts", |h, i| {
            h.limits.endpoint_receive_contexts = Some(i.limits.endpoint_receive_contexts + 1);
        }),
        ("endpoint.transmit_contexts", |h, i| {
            h.endpoint.transmit_contexts = Some(i.limits.endpoint_transmit_contexts + 1);
        }),
        ("endpoint.receive_contexts", |h, i| {
            h.endpoint.receive_contexts = Some(i.limits.endpoint_receive_contexts + 1);
        }),
    ];
    let others: &[Beyond] = &[
        ("endpoint.kind", |h, _| h.endpoint.kind = Some(EndpointKind::Datagram)),
        ("domain.name", |h, _| h.domain.name = Some("another".into())),
        ("transmit.capabilities", |h, _| h.transmit.capabilities = Some(Capabilities::RECV)),
        ("receive.capabilities", |h, _| h.receive.capabilities = Some(Capabilities::SEND)),
        ("receive.flags", |h, _| h.receive.flags = Some(OperationFlags::DELIVERY_COMPLETE)),
        ("transmit.completion_order", |h, _| {
            h.transmit.completion_order = Some(efa::CompletionOrder::Strict);
        }),
        ("receive.completion_order", |h, _| {
            h.receive.completion_order = Some(efa::CompletionOrder::Strict);
        }),
    ];
    for entry in info(&Hints::new()).unwrap() {
        for (expected, change) in [above, below, limits, others].concat() {
            let of_link = Hints::new().link(entry.link);
            let hints = of_link.with(|hints| change(hints, &entry));
            match wanted(info(&hints)) {
                Wanted::Attribute { name, .. } => assert_eq!(name, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }
    let hints = Hints::new().with(|hints| hints.domain.mtu = Some(10_000));
    let error = info(&hints).unwrap_err().to_string();
    assert_eq!(error, "nothing offers the requested domain.mtu: 10000");
}

// conformance: C1 C4
#[test]
fn first_hint_that_no_remaining_entry_meets_is_named() {
    // Each can be met, but not both: `name` leaves one entry, and that has no such limit.
    let hints = Hints::new().with(|hints| {
        hints.domain.name = Some("efa-local".into());
        hints.limits.endpoints = Some(1000);
    });
    let value = "1000".to_owned();
    let name = "domain.limits.endpoints";
    assert_eq!(wanted(info(&hints)), Wanted::Attribute { name, value });
    let alone = Hints::new().with(|hints| hints.limits.endpoints = Some(1000));
    assert_eq!(links(&info(&alone).unwrap()), [Link::Shm, Link::Tcp]);
    let fabric = Hints::new().with(|hints| hints.fabric = Some("efa-tcp".into()));
    assert_eq!(links(&info(&fabric).unwrap()), [Link::Tcp]);
    let fabric = fabric.link(Link::Shm);
    assert_eq!(wanted(info(&fabric)), Wanted::Fabric("efa-tcp".into()));
}

// conformance: C4
#[test]
fn hints_below_an_attribute_are_met_and_open_fields_are_filled_in() {
    let flags = OperationFlags::DELIVERY_COMPLETE;
    let hints = Hints::new().capabilities(Capabilities::MSG).with(|hints| {
        hints.transmit.flags = Some(flags);
        hints.receive.capabilities = Some(Capabilities::MSG);
        hints.endpoint.mem_tag_format = Some(0xff00);
        hints.endpoint.address_size = Some(64);
        hints.domain.threading = Some(Threading::Domain);
        hints.domain.resource_management = Some(ResourceManagement::Disabled);
        hints.transmit.inject_size = Some(1);
    });
    let found = info(&hints).unwrap();
    assert_eq!(links(&found), Link::ALL[1..]);
    let all = info(&Hints::new()).unwrap();
    for (found, usual) in found.iter().zip(&all) {
        assert_eq!(found.capabilities, Capabilities::MSG.enabled());
        assert_eq!(found.transmit.capabilities, Capabilities::MSG | Capabilities::SEND);
        assert_eq!(found.receive.capabilities, Capabilities::MSG | Capabilities::RECV);
        assert_eq!((found.transmit.flags, found.receive.flags), (flags, usual.receive.flags));
        assert_eq!(found.endpoint.mem_tag_format, 0xff00);
        // What is better than requested stays.
        assert_eq!(found.domain, usual.domain);
        assert_eq!(found.limits, usual.limits);
        assert_eq!(found.transmit.inject_size, usual.transmit.inject_size);
        assert_eq!(found.endpoint.address_size, 32);
    }
}

// conformance: A220 C24
#[test]
fn entry_is_automatic_only_on_request_and_then_its_domain_is() {
    for entry in info(&Hints::new()).unwrap() {
        assert_eq!(entry.domain.progress, Progress::Manual);
    }
    // The local link needs no resources of the system.
    for progress in [Progress::Manual, Progress::Automatic] {
        let hints = Hints::new().progress(progress);
        let found = info(&hints).unwrap();
        assert_eq!(links(&found), Link::ALL[1..]);
        assert!(found.iter().all(|entry| entry.domain.progress == progress));
        let entry = &info(&hints.link(Link::Local)).unwrap()[0];
        let domain = Fabric::open(entry).domain_with(DomainOptions::from(entry)).unwrap();
        assert_eq!(domain.attributes().progress, progress);
        assert_eq!(entry.open_domain().map(|found| found.attributes().progress), Some(progress));
    }
}

// conformance: C102
#[test]
fn entry_is_scalable_only_on_request_and_then_its_domain_takes_keys_of_the_program() {
    let scalable = Hints::new().with(|hints| {
        hints.domain.registration_mode = Some(RegistrationMode::Scalable);
    });
    for entry in info(&scalable).unwrap() {
        assert_eq!(entry.domain.registration_mode, RegistrationMode::Scalable);
        assert_eq!((entry.domain.mr_key_size, entry.domain.direct_write_data_size), (8, 0));
        if entry.link == Link::Local {
            let domain = Fabric::open(&entry).domain_with(DomainOptions::from(&entry)).unwrap();
            let region = domain.register_keyed(vec![0; 8], u64::MAX, Access::default()).unwrap();
            assert_eq!((region.key(), region.remote_address()), (u64::MAX, 0));
        }
    }
    for entry in info(&Hints::new()).unwrap() {
        assert_eq!(entry.domain.registration_mode, RegistrationMode::Basic);
        assert_eq!(entry.domain.mr_key_size, 4);
    }
    // The program has no room for such keys.
    let short = scalable.with(|hints| hints.domain.mr_key_size = Some(7));
    let (name, value) = ("domain.mr_key_size", "7".to_owned());
    assert_eq!(wanted(info(&short)), Wanted::Attribute { name, value });
}

// conformance: C11 C12 C14
#[test]
fn modes_that_are_offered_and_not_needed_come_back_cleared() {
    for mode in [Mode::empty(), Mode::CONTEXT, Mode::LOCAL_MR, Mode::all()] {
        let hints = Hints::new().mode(mode).with(|hints| hints.transmit.mode = Some(mode));
        let found = info(&hints).unwrap();
        assert_eq!(links(&found), Link::ALL[1..], "offered: {mode}");
        for info in found {
            assert_eq!((info.mode, info.transmit.mode, info.receive.mode), Default::default());
        }
    }
}

// conformance: C6
#[test]
fn service_of_this_host_is_a_listening_address() {
    let found = discover(&Query::new(GUIDE).service("7471").source()).unwrap();
    assert_eq!(links(&found), Link::ALL[1..]);
    for info in &found {
        assert_eq!(info.source, Some((Ipv4Addr::UNSPECIFIED, 7471).into()));
        assert_eq!(info.destination, None);
    }
    let found = discover(&Query::new(GUIDE).node("127.0.0.5").service("7471").source()).unwrap();
    assert!(found.iter().all(|i| i.source == Some((Ipv4Addr::new(127, 0, 0, 5), 7471).into())));
    let tcp = found.iter().find(|info| info.link == Link::Tcp).unwrap();
    let domain = Fabric::open(tcp).domain().unwrap();
    assert_eq!(domain.attributes().name, "efa-tcp-127.0.0.5");
    // An address for documentation, which no host has.
    let elsewhere = Query::new(GUIDE).node("192.0.2.1").service("1").source();
    let address = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 1));
    assert_eq!(wanted(discover(&elsewhere)), Wanted::Source(address));
}

// conformance: C1
#[test]
fn node_and_service_are_the_destination_and_leave_links_that_reach_it() {
    for node in ["127.0.0.1", "localhost"] {
        let found = discover(&Query::new(GUIDE).node(node).service("7471")).unwrap();
        assert_eq!(links(&found), Link::ALL[1..]);
        for info in found {
            let destination = info.destination.unwrap();
            assert!(destination.ip().is_loopback() && destination.port() == 7471);
            assert_eq!(info.source, Some((destination.ip(), 0).into()));
        }
    }
    let alone = discover(&Query::new(GUIDE).service("9")).unwrap();
    assert!(alone.iter().all(|i| i.destination == Some((Ipv4Addr::LOCALHOST, 9).into())));
    // Only by TCP, if there is a route at all.
    let remote = Query::new(GUIDE).node("192.0.2.1").service("9");
    match discover(&remote) {
        Ok(found) => assert_eq!(links(&found), [Link::Tcp]),
        Err(error) => {
            let address = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
            assert_eq!(error, Error::NoData { wanted: Wanted::Destination(address) });
        }
    }
    let shm = Hints::new().link(Link::Shm);
    assert!(matches!(wanted(discover(&remote.hints(shm))), Wanted::Destination(_)));
}

// conformance: C1
#[test]
fn node_and_service_stand_for_addresses_of_the_family_that_is_asked_for() {
    if !has_ipv6() {
        return eprintln!("skipped: this host has no IPv6");
    }
    let query = || Query::new(GUIDE).service("9").family(AddressFamily::Ipv6);
    let alone = discover(&query()).unwrap();
    assert!(alone.iter().all(|i| i.destination == Some((Ipv6Addr::LOCALHOST, 9).into())));
    let here = discover(&query().source()).unwrap();
    assert!(here.iter().all(|i| i.source == Some((Ipv6Addr::UNSPECIFIED, 9).into())));
    let named = discover(&query().node("::1")).unwrap();
    assert_eq!(named, alone);
    let other = wanted(discover(&query().node("127.0.0.1")));
    assert!(matches!(other, Wanted::Node { node, .. } if node == "127.0.0.1"));
}

#[test]
fn connection_has_no_source_of_another_family_than_its_destination() {
    if !has_ipv6() {
        return eprintln!("skipped: this host has no IPv6");
    }
    let hints = Hints::new().with(|hints| hints.source = Some((Ipv4Addr::LOCALHOST, 9).into()));
    let found = discover(&Query::new(GUIDE).node("::1").hints(hints)).unwrap();
    assert!(found.iter().all(|info| info.endpoint.kind == EndpointKind::ReliableDatagram));
}

// conformance: C1
#[test]
fn node_without_address_and_unknown_service_fail_in_time() {
    // By the empty label no name of DNS: there are resolvers that answer all of those.
    let unknown = "no-such-host..invalid";
    let begin = Instant::now();
    let error = wanted(discover(&Query::new(GUIDE).node(unknown).service("1")));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(matches!(&error, Wanted::Node { node, .. } if node == unknown));
    for service in ["", "ssh", "-1", "65536"] {
        let error = wanted(discover(&Query::new(GUIDE).service(service)));
        assert_eq!(error, Wanted::Service(service.to_owned()));
    }
    let absent = Query::new(GUIDE).hints(Hints::new().interface("no-such").link(Link::Verbs));
    assert!(matches!(discover(&absent), Err(Error::Device(DeviceError::Absent { .. }))));
}

// conformance: C114
#[test]
fn triggered_operations_and_unreliable_datagrams_are_not_offered() {
    assert!(!Capabilities::OFFERED.contains(Capabilities::TRIGGER));
    let hints = Hints::new().capabilities(Capabilities::MSG | Capabilities::TRIGGER);
    assert_eq!(wanted(info(&hints)), Wanted::Capabilities(Capabilities::TRIGGER));
    let hints = Hints::new().with(|hints| hints.endpoint.kind = Some(EndpointKind::Datagram));
    let (name, value) = ("endpoint.kind", "Datagram".to_owned());
    assert_eq!(wanted(info(&hints)), Wanted::Attribute { name, value });
}

// conformance: C33
#[test]
fn providers_are_offered_and_excluded_by_name_of_provider_or_fabric() {
    let table: [(&str, &[Link]); 7] = [
        ("efa", &[Link::Shm, Link::Tcp, Link::Local]),
        ("efa-shm", &[Link::Shm]),
        ("efa-local,efa-shm", &[Link::Shm, Link::Local]),
        ("^efa-shm", &[Link::Tcp, Link::Local]),
        ("^efa-shm,efa-tcp", &[Link::Local]),
        ("tcp,efa-tcp", &[Link::Tcp]),
        ("^tcp", &[Link::Shm, Link::Tcp, Link::Local]),
    ];
    let find = |text: &str| {
        let environment = Environment::of([("FI_PROVIDER", text)]);
        assert_eq!(environment.mistakes, []);
        discover(&Query::new(GUIDE).providers(environment.providers))
    };
    for (text, expected) in table {
        assert_eq!(links(&find(text).unwrap()), expected, "{text}");
    }
    for nothing in ["^efa", "tcp", "verbs,udp"] {
        let error = find(nothing).unwrap_err().to_string();
        assert_eq!(error, format!("nothing offers the requested providers {nothing}"));
    }
    let wrong = Environment::of([("FI_PROVIDER", "efa,,")]);
    assert!(wrong.providers.is_all());
    assert_eq!(
        wrong.mistakes[0].to_string(),
        "FI_PROVIDER=efa,,: a list of names, with ^ in front to exclude them, is expected"
    );
}

// conformance: C60
#[test]
fn entry_has_the_requested_number_of_contexts_up_to_the_limit_of_the_domain() {
    let usual = &info(&Hints::new().link(Link::Local)).unwrap()[0];
    assert_eq!((usual.endpoint.transmit_contexts, usual.endpoint.receive_contexts), (1, 1));
    let most = usual.limits.endpoint_receive_contexts;
    let hints = Hints::new().link(Link::Local).with(|hints| {
        hints.endpoint.transmit_contexts = Some(2);
        hints.endpoint.receive_contexts = Some(most);
    });
    let entries = info(&hints).unwrap();
    assert!(!entries.is_empty());
    for entry in entries {
        let EndpointAttributes { kind, transmit_contexts, receive_contexts, .. } = entry.endpoint;
        assert_eq!(kind, EndpointKind::ReliableDatagram, "connections have one context");
        assert_eq!((transmit_contexts, receive_contexts), (2, most));
        let options = ScalableOptions::from(&entry);
        assert_eq!((options.transmit_contexts, options.receive_contexts), (2, most));
    }
}
