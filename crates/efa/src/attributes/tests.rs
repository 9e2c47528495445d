//! What attributes promise holds: each limit at its value, and not one above.
//!
//! The groups are taken apart without `..`, so a new attribute doesn't compile until it is tested here or named
//! with the test that does.

use std::time::Duration;

use efa_device::{Access, DeviceError};
use efa_rdm::{Level, Subprotocol};

use super::*;
use crate::{
    Address, AddressVector, Buffer, Completion, CompletionQueue, CompletionQueueOptions, Direction,
    Domain, EnableError, Endpoint, EndpointOptions, Event, Fabric, FiAddr, Kind, LocalOptions,
    ManualClock, Message, Receive, RegionSlice, RemoteMemory, Rma, ScalableOptions, StartError,
    TooManyPieces,
};

/// Two endpoints of one domain, which share queue and address vector.
struct Pair {
    domain: Domain,
    queue: CompletionQueue,
    addresses: AddressVector,
    alice: Endpoint,
    bob: Endpoint,
    to_bob: FiAddr,
}

impl Pair {
    fn new(options: LocalOptions, change: impl Fn(&mut EndpointOptions)) -> Self {
        Self::on(&Fabric::local(options).with_clock(&ManualClock::new()), change)
    }

    fn on(fabric: &Fabric, change: impl Fn(&mut EndpointOptions)) -> Self {
        let domain = fabric.domain().expect("a local domain");
        let queue = domain.completion_queue(CompletionQueueOptions::default());
        let addresses = domain.address_vector();
        let endpoint = |connid| {
            let mut options = EndpointOptions::new().connid(connid).hash_seed(1);
            change(&mut options);
            enable(&domain, &queue, &addresses, options).expect("an endpoint")
        };
        let (alice, bob) = (endpoint(1), endpoint(2));
        let to_bob = addresses.insert(bob.address()).expect("a peer");
        Self { domain, queue, addresses, alice, bob, to_bob }
    }

    fn small(change: impl Fn(&mut EndpointOptions)) -> Self {
        Self::new(LocalOptions::default(), change)
    }

    fn next(&self) -> Completion {
        self.queue.wait(Duration::from_secs(10)).expect("a completion")
    }

    /// Sends a message to a receive; returns the completion of each.
    fn transfer(&self, length: usize) -> (Completion, Completion) {
        self.transfer_of(length, vec![7; length])
    }

    /// The same for a buffer of so many bytes.
    fn transfer_of(&self, length: usize, buffer: impl Into<Buffer>) -> (Completion, Completion) {
        self.bob.receive(Receive::untagged(), vec![0; length], 2).expect("a receive");
        self.alice.send(Message::to(self.to_bob), buffer, 1).expect("a send");
        let (one, other) = (self.next(), self.next());
        if one.kind == Kind::Send { (one, other) } else { (other, one) }
    }
}

const WRITABLE: Access = Access { remote_read: false, remote_write: true };

fn enable(
    domain: &Domain,
    queue: &CompletionQueue,
    addresses: &AddressVector,
    options: EndpointOptions,
) -> Result<Endpoint, EnableError> {
    domain
        .endpoint(options)
        .bind_completion_queue(queue, Direction::Both)
        .bind_address_vector(addresses)
        .enable()
}

// conformance: C54
#[test]
fn limits_of_the_transmit_side_hold_at_their_value_and_not_one_above() {
    let pair = Pair::small(|options| options.protocol.max_sends = 3);
    let TransmitAttributes {
        // Capabilities and flags: `side_of_an_endpoint_has_only_capabilities_of_the_endpoint`,
        // `operation_without_flags_has_the_defaults_and_one_with_flags_only_its_own`.
        capabilities: _,
        mode: _,
        flags: _,
        message_order: _,
        completion_order: _,
        inject_size,
        size,
        // `crates/efa/tests/integration/pieces.rs`.
        iov_limit: 28,
        rma_iov_limit,
    } = *pair.alice.transmit_attributes()
    else {
        panic!("{:?}", pair.alice.transmit_attributes());
    };
    let message = Message::to(pair.to_bob);
    pair.bob.receive(Receive::untagged(), vec![0; inject_size], 1).expect("a receive");
    assert_eq!(pair.alice.inject(message, &vec![7; inject_size]), Ok(()));
    assert_eq!(pair.next().into_message(), vec![7; inject_size]);
    let error = StartError::TooLongToInject { length: inject_size + 1, limit: inject_size };
    assert_eq!(pair.alice.inject(message, &vec![7; inject_size + 1]), Err(error));

    // From the last byte to the first.
    let region = pair.domain.register(vec![0; rma_iov_limit], WRITABLE).expect("a region");
    let byte =
        |at| RemoteMemory { address: region.remote_address() + at, length: 1, key: region.key() };
    let pieces: Vec<_> = (0..rma_iov_limit as u64).rev().map(byte).collect();
    let bytes: Vec<u8> = (1..).take(rma_iov_limit).collect();
    let write = Rma::pieces(pair.to_bob, &pieces).expect("at the limit");
    pair.alice.write(write, bytes.clone(), 1).expect("a write");
    assert_eq!(pair.next().kind, Kind::Write);
    let mut written = vec![0; rma_iov_limit];
    region.read(0, &mut written);
    written.reverse();
    assert_eq!(written, bytes);
    let memory = byte(0);

    for context in 0..size as u64 {
        pair.alice.send(message, "x", context).expect("below the limit");
    }
    let refused = pair.alice.send(message, "x", 9).unwrap_err();
    assert_eq!(refused.error, StartError::Busy { limit: size });

    let error = Rma::pieces(pair.to_bob, &vec![memory; rma_iov_limit + 1]).unwrap_err();
    assert_eq!(error, TooManyPieces { count: rma_iov_limit + 1 });
}

// conformance: C54
#[test]
fn limits_of_the_receive_side_hold_at_their_value_and_not_one_above() {
    const KEPT: usize = 10_000;
    let pair = Pair::small(|options| {
        options.protocol.max_receives = 5;
        options.protocol.bounds.unexpected = KEPT;
    });
    let ReceiveAttributes {
        capabilities: _,
        mode: _,
        flags: _,
        message_order: _,
        completion_order: _,
        total_buffered: KEPT,
        size,
        // `crates/efa/tests/integration/pieces.rs`.
        iov_limit: 28,
    } = *pair.bob.receive_attributes()
    else {
        panic!("{:?}", pair.bob.receive_attributes());
    };
    for context in 0..size as u64 {
        pair.bob.receive(Receive::tagged(1), vec![0; 1], context).expect("below the limit");
    }
    let refused = pair.bob.receive(Receive::tagged(1), vec![0; 1], 9).unwrap_err();
    assert_eq!(refused.error, StartError::Busy { limit: size });

    drop(pair);

    // Bytes of unexpected messages when senders first have to wait, and the number of messages until then.
    let over = |limit, most| {
        let pair = Pair::small(|options| options.protocol.bounds.unexpected = limit);
        (1..=most).find_map(|sent| {
            pair.alice.send(Message::to(pair.to_bob), vec![0; 1000], sent).expect("a send");
            pair.next();
            std::iter::from_fn(|| pair.bob.event()).find_map(|event| match event {
                Event::BackPressure { bytes, .. } => Some((bytes, sent)),
                _ => None,
            })
        })
    };
    let (bytes, messages) = over(KEPT, 100).expect("a limit");
    assert!(bytes > KEPT, "{bytes}");
    assert_eq!(over(bytes, messages), None, "at the limit");
    assert_eq!(over(bytes - 1, messages), Some((bytes, messages)), "one byte above");
}

// conformance: C51
#[test]
fn limits_of_an_endpoint_hold_at_their_value_and_not_one_above() {
    let pair = Pair::small(|options| {
        options.max_message_size = 200_000;
        options.protocol.max_medium = 20_000;
        options.protocol.min_multi_receive = 100;
    });
    let EndpointAttributes {
        kind: EndpointKind::ReliableDatagram,
        protocol: Protocol::EfaRdm,
        protocol_version: 4,
        address_size,
        max_message_size,
        max_medium,
        min_multi_receive,
        // Nothing has to be left free, as all other tests show.
        message_prefix_size: 0,
        // No order is promised.
        max_read_after_write_size: 0,
        max_write_after_read_size: 0,
        max_write_after_write_size: 0,
        transmit_contexts: 1,
        receive_contexts: 1,
        // All bits of tags are matched: `tags_match_in_all_bits_that_are_not_ignored`.
        mem_tag_format: _,
    } = *pair.alice.attributes()
    else {
        panic!("{:?}", pair.alice.attributes());
    };
    let bytes = pair.bob.address().to_bytes();
    assert_eq!((bytes.len(), Address::from_bytes(bytes)), (address_size, pair.bob.address()));

    let longest = usize::try_from(max_message_size).expect("short enough");
    assert_eq!(pair.transfer(longest).1.length, max_message_size);
    let refused = pair.alice.send(Message::to(pair.to_bob), vec![0; longest + 1], 1).unwrap_err();
    let (length, limit) = (max_message_size + 1, max_message_size);
    assert_eq!(refused.error, StartError::TooLong { length, limit });

    let medium = max_medium as usize;
    assert_eq!(pair.transfer(medium).0.subprotocol, Some(Subprotocol::Medium));
    assert_ne!(pair.transfer(medium + 1).0.subprotocol, Some(Subprotocol::Medium));

    // A buffer that has as much left stays, with one byte less it is released.
    let rest = min_multi_receive as usize;
    for (message, released) in [(50, false), (1, true)] {
        if !released {
            pair.bob.receive_many(None, vec![0; 50 + rest], 3).expect("a receive");
        }
        pair.alice.send(Message::to(pair.to_bob), vec![0; message], 1).expect("a send");
        let mut kinds = vec![pair.next().kind, pair.next().kind];
        if released {
            kinds.push(pair.next().kind);
        }
        assert_eq!(kinds.contains(&Kind::Released), released, "{kinds:?}");
    }
    assert!(pair.queue.read().is_none());
}

#[test]
fn message_is_read_from_the_length_on_that_the_device_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = crate::ShmOptions::new("reads").with(|options| {
        options.directory = Some(directory.path().join("hosts"));
        options.reads_pay_from = Some(16 << 10);
    });
    let fabric = Fabric::shm(options);
    let choose =
        |min_read| move |options: &mut EndpointOptions| options.protocol.min_read = min_read;
    let pair = Pair::on(&fabric, choose(None));
    let from = pair.domain.attributes().reads_pay_from as usize;
    assert_eq!(from, 16 << 10);
    // Nothing is read before the peers know each other.
    pair.transfer(1);
    assert_eq!(pair.transfer(from - 1).0.subprotocol, Some(Subprotocol::Medium));
    assert_eq!(pair.transfer(from).0.subprotocol, Some(Subprotocol::LongRead));

    let pair = Pair::on(&fabric, choose(Some(1 << 20)));
    pair.transfer(1);
    assert_eq!(
        pair.transfer(from).0.subprotocol,
        Some(Subprotocol::Medium),
        "the program's choice"
    );
}

#[test]
fn message_from_mapped_memory_is_read_from_a_shorter_length_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = crate::ShmOptions::new("mapped")
        .with(|options| options.directory = Some(directory.path().join("hosts")));
    let fabric = Fabric::shm(options);
    let pair = Pair::on(&fabric, |_| {});
    let DomainAttributes { reads_pay_from, mapped_reads_pay_from, .. } = pair.domain.attributes();
    assert!(mapped_reads_pay_from < reads_pay_from);
    let from = mapped_reads_pay_from as usize;
    // Nothing is read before the peers know each other.
    pair.transfer(1);
    pair.transfer(1);
    let read = Access { remote_read: true, remote_write: false };
    let subprotocol_of = |length, memory: RegionSlice| {
        memory.region().write(0, &vec![3; length]);
        let slice = memory.region().slice(0..length).expect("within");
        let (sent, received) = pair.transfer_of(length, slice);
        assert_eq!(received.buffer.into_vec(), vec![3; length]);
        sent.subprotocol
    };
    let mapped = |access| pair.domain.registered(from, access).expect("a region");
    assert!(mapped(read).region().is_mapped());
    assert_eq!(subprotocol_of(from, mapped(read)), Some(Subprotocol::LongRead));
    assert_eq!(subprotocol_of(from - 1, mapped(read)), Some(Subprotocol::Medium));
    // Peers may not read it, or the kernel is to copy it.
    assert_eq!(subprotocol_of(from, mapped(WRITABLE)), Some(Subprotocol::Medium));
    let own = pair.domain.register(vec![0; from], read).expect("a region");
    assert!(!own.is_mapped());
    let own = own.slice(0..from).expect("all of it");
    assert_eq!(subprotocol_of(from, own), Some(Subprotocol::Medium));
}

// conformance: C22
#[test]
fn limits_of_a_domain_hold_at_their_value_and_not_one_above() {
    let options = LocalOptions::default().with(|options| {
        options.max_queue_pairs = 3;
        options.max_regions = 2;
        options.max_region_size = 5000;
        options.mtu = 4096;
    });
    let pair = Pair::new(options, |_| {});
    let DomainAttributes {
        name: _,
        // Models: `threads_can_share_endpoints_and_queues`, `only_reading_queues_progresses_the_protocol`,
        // `full_queue_refuses_operations_and_loses_no_completion`,
        // `address_vector_assigns_the_lowest_free_index`.
        threading: Threading::Safe,
        progress: Progress::Manual,
        resource_management: ResourceManagement::Enabled,
        address_vector: AddressVectorKind::Table,
        registration_mode: RegistrationMode::Basic,
        // `domain_that_requires_registered_memory_takes_only_slices_of_regions`.
        local_registration: LocalRegistration::NotNeeded,
        mtu: 4096,
        cq_data_size: 8,
        // `direct_write_data_size_follows_the_device`.
        direct_write_data_size: _,
        // And `key_with_a_bit_above_the_size_of_keys_is_no_key`.
        mr_key_size,
        max_regions,
        max_region_size,
        // `message_is_read_from_the_length_on_that_the_device_says`.
        reads_pay_from: _,
        // On the shm link: `message_from_mapped_memory_is_read_from_a_shorter_length_on`.
        mapped_reads_pay_from: _,
    } = pair.domain.attributes()
    else {
        panic!("{:?}", pair.domain.attributes());
    };
    pair.bob.receive(Receive::untagged(), vec![0; 1], 1).expect("a receive");
    let message = Message::to(pair.to_bob).with_data(u64::MAX);
    pair.alice.inject(message, b"x").expect("a send");
    assert_eq!(pair.next().cq_data, Some(u64::MAX), "all 8 bytes");

    let longest = usize::try_from(max_region_size).expect("short enough");
    let register = |length| pair.domain.register(vec![0; length], WRITABLE);
    let refused = register(longest + 1).unwrap_err();
    let limit = max_region_size;
    assert_eq!(refused.error, DeviceError::TooLong { length: limit + 1, limit });
    let regions: Vec<_> = (0..max_regions).map(|_| register(longest).expect("a region")).collect();
    assert!(regions.iter().all(|region| region.key() >> (8 * mr_key_size) == 0));
    let refused = register(1).unwrap_err();
    assert_eq!(
        refused.error,
        DeviceError::LimitReached { object: "memory region", limit: max_regions }
    );

    let DomainLimits {
        // As many as there is memory for.
        completion_queues: usize::MAX,
        endpoints,
        transmit_contexts: 3,
        receive_contexts: 3,
        endpoint_transmit_contexts,
        endpoint_receive_contexts,
        // As many as there is memory for.
        shared_transmit_contexts: usize::MAX,
        shared_receive_contexts: usize::MAX,
    } = pair.domain.limits()
    else {
        panic!("{:?}", pair.domain.limits());
    };
    let more = || enable(&pair.domain, &pair.queue, &pair.addresses, EndpointOptions::new());
    let third = more().expect("below the limit");
    let limit = DeviceError::LimitReached { object: "queue pair", limit: endpoints };
    assert_eq!(more().unwrap_err(), EnableError::Device(limit));
    drop(third);
    more().expect("a queue pair is free again");

    let Pair { domain, queue, addresses, alice, bob, .. } = pair;
    drop((alice, bob));
    let scalable = |transmit, receive| {
        domain
            .scalable_endpoint(
                ScalableOptions::new().transmit_contexts(transmit).receive_contexts(receive),
            )
            .bind_completion_queue(&queue, Direction::Both)
            .bind_address_vector(&addresses)
            .enable()
    };
    let (most_transmit, most_receive) = (endpoint_transmit_contexts, endpoint_receive_contexts);
    // All contexts of the domain: no other endpoint can be had meanwhile.
    let all = scalable(most_transmit, most_receive).expect("at the limits");
    let more = enable(&domain, &queue, &addresses, EndpointOptions::new());
    for refused in [more.map(drop), scalable(1, 1).map(drop)] {
        let limit = DeviceError::LimitReached { object: "queue pair", limit: endpoints };
        assert_eq!(refused.unwrap_err(), EnableError::Device(limit));
    }
    drop(all);
    for (direction, transmit, receive, limit) in [
        ("transmit", most_transmit + 1, 1, most_transmit),
        ("transmit", 0, 1, most_transmit),
        ("receive", 1, most_receive + 1, most_receive),
        ("receive", 1, 0, most_receive),
    ] {
        let asked = if direction == "transmit" { transmit } else { receive };
        let error = EnableError::ContextCount { direction, asked, limit };
        assert_eq!(scalable(transmit, receive).map(drop), Err(error));
    }
}

// Where the application chooses keys, they have all the bits of a number: none is above.
#[test]
fn key_with_a_bit_above_the_size_of_keys_is_no_key() {
    let pair = Pair::small(|_| {});
    let region = pair.domain.register(vec![0; 1], WRITABLE).expect("a region");
    let size = pair.domain.attributes().mr_key_size;
    for (key, is_valid) in [(region.key(), true), (region.key() | 1 << (8 * size), false)] {
        let memory = RemoteMemory { address: region.remote_address(), length: 1, key };
        let write = Rma::at(pair.to_bob, memory).level(Level::Delivery);
        let started = pair.alice.write(write, vec![7], 1);
        let done = started.is_ok().then(|| pair.queue.wait(Duration::from_secs(10)));
        assert_eq!(matches!(done, Some(Ok(_))), is_valid, "{done:?}");
        assert!(!format!("{done:?}").contains("TimedOut"), "{done:?}");
    }
}

// conformance: C22
#[test]
fn limits_of_packets_and_regions_hold_on_every_link_at_their_value_and_not_one_above() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let local = LocalOptions::default().with(|options| {
        (options.mtu, options.max_regions, options.max_region_size) = (4096, 2, 5000);
    });
    let shm = crate::ShmOptions::new("limits").with(|options| {
        (options.mtu, options.max_regions, options.max_region_size) = (4096, 2, 5000);
        options.directory = Some(directory.path().join("hosts"));
    });
    let tcp = crate::TcpOptions::new([127, 0, 0, 1]).with(|options| {
        (options.mtu, options.max_regions, options.max_region_size) = (4096, 2, 5000);
    });
    let local = Fabric::local(local).with_clock(&ManualClock::new());
    for fabric in [local, Fabric::shm(shm), Fabric::tcp(tcp)] {
        let pair = Pair::on(&fabric, |_| {});
        let DomainAttributes { mtu, max_regions, max_region_size, .. } = pair.domain.attributes();
        assert_eq!((mtu, max_regions, max_region_size), (4096, 2, 5000));

        // It ends after the HANDSHAKEs, from which on headers are short.
        pair.bob.receive(Receive::untagged(), vec![0; 1], 1).expect("a receive");
        let first = Message::to(pair.to_bob).level(Level::Delivery);
        pair.alice.send(first, vec![1], 1).expect("a send");
        let _ = (pair.next(), pair.next());
        let subprotocol = |length| pair.transfer(length).0.subprotocol;
        let eager = |length: &usize| subprotocol(*length) == Some(Subprotocol::Eager);
        let longest = (mtu - 64..=mtu).rev().find(eager).expect("one packet");
        let before = pair.alice.statistics().sent_bytes;
        assert_eq!(subprotocol(longest), Some(Subprotocol::Eager));
        assert_eq!(pair.alice.statistics().sent_bytes - before, mtu as u64, "a packet, full");
        assert_eq!(subprotocol(longest + 1), Some(Subprotocol::Medium), "two packets");

        let register = |length| pair.domain.register(vec![0; length], WRITABLE);
        let refused = register(5001).unwrap_err();
        assert_eq!(refused.error, DeviceError::TooLong { length: 5001, limit: 5000 });
        let regions: Vec<_> = (0..2).map(|_| register(5000).expect("a region")).collect();
        let refused = register(1).unwrap_err();
        let limit = DeviceError::LimitReached { object: "memory region", limit: 2 };
        assert_eq!(refused.error, limit);
        drop(regions);
        register(1).expect("there is room again");
    }
}
