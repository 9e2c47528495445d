//! Messages from point to point.

use std::thread;

use efa_netio::{
    Completion, Delivery, Event, MAX_PARTS, Message, Options, PostError, PostRefused, SendOptions,
    Sent, SocketError,
};

use crate::pairs::{Pair, RECEIVER, SENDER, buffers, messages, pool, posted};
use crate::world::pattern;

const SIZE: usize = 2 << 20;

// conformance: D18 D26 D28 D31 D34 D37
#[test]
fn messages_of_0_bytes_to_2_mb_arrive_once_in_order_over_a_rough_network() {
    let lengths = [SIZE, 10, 0, 9_000, SIZE, 1, 70_000, 40_000, 8_928, 0, 1_000_000, 5, 32_768];
    for seed in 0..5 {
        let mut pair = Pair::new(seed, buffers(4, SIZE));
        let all = pattern(4 << 20);
        for (key, length) in (0..).zip(lengths) {
            let message = pair.message(key, length).key(u64::MAX - key as u64);
            pair.send(if key % 2 == 0 { message.data(!0 - key as u64) } else { message });
        }
        for (key, length) in (0..).zip(lengths) {
            let (bytes, data) = pair.world.received(RECEIVER);
            assert!(bytes == all[key..key + length], "seed {seed}, message {key}");
            assert_eq!(data, (key % 2 == 0).then_some(!0 - key as u64), "seed {seed}");
        }
        let mut keys: Vec<_> = lengths
            .iter()
            .map(|_| {
                let (key, result) = pair.world.send_completed(SENDER);
                assert_eq!(result, Ok(()), "seed {seed}");
                u64::MAX - key
            })
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..lengths.len() as u64).collect::<Vec<_>>(), "seed {seed}");
        pair.world.quiet(SENDER);
        pair.world.quiet(RECEIVER);
    }
}

// conformance: D30 D31 D32 D33
#[test]
fn message_of_1_to_28_parts_arrives_gathered_and_comes_back_as_it_was() {
    for seed in 0..3 {
        let mut pair = Pair::new(seed, buffers(64, 200_000));
        for count in 1..=MAX_PARTS {
            // Some are empty, some are long, and some follow others in memory.
            let length = |part: usize| match part % 5 {
                0 => 0,
                1 if count % 7 == 0 => 20_000,
                _ => 3 * part,
            };
            let ranges = (0..count).map(|part| part * 11..part * 11 + length(part));
            let parts: Vec<_> =
                ranges.clone().map(|range| pair.pool.part(range).unwrap()).collect();
            let message = Message::gather(parts).key(count as u64).data(7);
            pair.send(message.clone());
            let back = pair.world.event(SENDER, "SendCompleted", |event| match event {
                Event::SendCompleted { message, result: Ok(()), .. } => Some(message.clone()),
                _ => None,
            });
            assert_eq!(back, message, "seed {seed}");
            let all = pattern(30_000);
            let expected: Vec<u8> = ranges.flat_map(|range| all[range].to_vec()).collect();
            assert_eq!(pair.world.received(RECEIVER), (expected, Some(7)), "seed {seed}");
        }
    }
}

// conformance: D25
#[test]
fn key_of_a_whole_buffer_is_the_address_of_its_first_byte() {
    let mut pair = Pair::new(1, buffers(4, 1000));
    let pools = [(); 2].map(|()| pool(&mut pair.world, SENDER, 1000));
    let mut keys = Vec::new();
    for pool in &pools {
        let base = pool.whole().address();
        for (range, offset) in [(0..1000, 0), (7..9, 7)] {
            let part = pool.part(range.clone()).unwrap();
            let sent = pair.world.netio(SENDER).send_buffer(pair.send, part);
            assert!(matches!(sent, Sent::Accepted));
            let (key, result) = pair.world.send_completed(SENDER);
            assert_eq!((key, result), (base + offset, Ok(())));
            keys.push(key);
            assert_eq!(pair.world.received(RECEIVER), (pattern(1000)[range].to_vec(), None));
        }
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 4, "those of different buffers differ");
}

// conformance: D20 D21 D22 D23
#[test]
fn messages_wait_for_buffers_that_are_posted_late_one_for_each() {
    for seed in 0..5 {
        let mut pair = Pair::new(seed, posted());
        let lengths = [10, 100_000, 0, 50_000, 7, 9_000];
        for (key, length) in (0..).zip(lengths) {
            let message = pair.message(key, length).key(key as u64);
            pair.send(message);
        }
        pair.world.quiet(RECEIVER);
        for (key, length) in (0..).zip(lengths) {
            let buffer = vec![0; 100_000];
            let address = buffer.as_ptr();
            pair.world.netio(RECEIVER).post(pair.receive, buffer).unwrap();
            let message = taken(&mut pair);
            assert_eq!((message.as_ptr(), message.len()), (address, length), "seed {seed}");
            assert!(message[..] == pattern(200_000)[key..key + length], "seed {seed}");
            pair.world.quiet(RECEIVER);
            let buffer = message.into_buffer();
            assert_eq!((buffer.as_ptr(), buffer.len()), (address, 100_000), "seed {seed}");
        }
    }
}

/// The next message of the receiver, in its buffer.
fn taken(pair: &mut Pair) -> Delivery {
    pair.world.until("Received", |world| {
        let is = |event: &Event| matches!(event, Event::Received { .. }).then_some(());
        match world.take(RECEIVER, is) {
            Some((Event::Received { message, .. }, ())) => Some(message),
            _ => None,
        }
    })
}

// conformance: D20
#[test]
fn socket_that_makes_its_buffers_gives_a_posted_one_back() {
    let mut pair = Pair::new(1, buffers(2, 100));
    let refused = pair.world.netio(RECEIVER).post(pair.receive, vec![7; 9]);
    let error = SocketError::OwnBuffers.into();
    assert_eq!(refused, Err(PostRefused { error, buffer: vec![7; 9] }));
}

#[test]
fn buffer_for_a_connection_that_is_over_or_full_comes_back_with_the_reason() {
    let mut pair = Pair::new(1, posted());
    let mut other = Pair::new(1, posted());
    let post = |pair: &mut Pair, buffer| pair.world.netio(RECEIVER).post(pair.receive, buffer);
    // A message was too long, so that none is received any more.
    post(&mut pair, vec![0; 4]).unwrap();
    let message = pair.message(0, 5);
    pair.send(message);
    let not_connected = |buffer| PostRefused { error: SocketError::NotConnected.into(), buffer };
    pair.world.until("the end", |world| {
        let refused = world.netio(RECEIVER).post(pair.receive, vec![7; 9]).err()?;
        assert_eq!(refused, not_connected(vec![7; 9]));
        Some(())
    });
    // The socket is being closed, and its receives come back.
    post(&mut other, vec![0; 4]).unwrap();
    other.world.netio(RECEIVER).close(other.receive);
    assert_eq!(post(&mut other, vec![7; 9]), Err(not_connected(vec![7; 9])));
    // The endpoint has as many as it may have.
    let mut full = Pair::new(1, posted());
    let refused = loop {
        if let Err(refused) = post(&mut full, Vec::new()) {
            break refused;
        }
    };
    assert!(matches!(refused.error, PostError::Start(efa::StartError::Busy { .. })), "{refused}");
}

// conformance: D22
#[test]
fn kept_message_is_not_overwritten_and_any_thread_gives_its_buffer_back() {
    for seed in 0..5 {
        let mut pair = Pair::new(seed, buffers(2, 50_000));
        let length = |key: usize| [10, 50_000, 20][key % 3];
        for key in 0..6 {
            let message = pair.message(key, length(key));
            pair.send(message);
        }
        let kept = [(); 2].map(|()| taken(&mut pair));
        pair.world.quiet(RECEIVER);
        for (key, kept) in kept.into_iter().enumerate() {
            assert!(kept[..] == pattern(60_000)[key..key + length(key)], "seed {seed}");
            thread::scope(|scope| scope.spawn(move || drop(kept)).join().unwrap());
            let next = taken(&mut pair);
            assert!(next[..] == pattern(60_000)[key + 2..][..length(key + 2)], "seed {seed}");
            pair.world.quiet(RECEIVER);
            // The program keeps this buffer for good.
            assert_eq!(next.into_buffer().len(), 50_000);
        }
        // Both buffers are the program's.
        pair.world.quiet(RECEIVER);
    }
}

// conformance: D36 D37
#[test]
fn full_send_queue_gives_the_message_back_and_tells_when_to_try_again() {
    const COUNT: u64 = 300;
    for seed in 0..6 {
        let options = Options::default().with(|options| options.sends = 1 + seed as usize);
        let mut pair = Pair::with(seed, options, buffers(3, 50_000), SendOptions::default());
        let length = |key: u64| [8, 40_000, 0, 9_000][key as usize % 4];
        let (mut next, mut agains, mut arrived) = (0, 0, 0);
        while arrived < COUNT {
            let message = pair.message(next as usize, length(next)).key(next).data(next);
            let sent = match next < COUNT {
                true => pair.world.netio(SENDER).send(pair.send, message.clone()),
                false => Sent::Again(message.clone()),
            };
            match sent {
                Sent::Accepted => next += 1,
                Sent::Again(back) => {
                    agains += 1;
                    assert_eq!(back, message);
                    pair.world.until("room, or the last message", |world| {
                        while let Some((_, (length_of, data))) =
                            world.take(RECEIVER, |event| match event {
                                Event::Received { message, data, .. } => {
                                    Some((message.len(), *data))
                                }
                                _ => None,
                            })
                        {
                            assert_eq!((length_of, data), (length(arrived), Some(arrived)));
                            arrived += 1;
                        }
                        let writable = world.take(SENDER, |event| {
                            matches!(event, Event::Writable(_)).then_some(())
                        });
                        (writable.is_some() || arrived == COUNT).then_some(())
                    });
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(agains > 1, "seed {seed}");
        pair.world.rest();
        let mut keys: Vec<_> = (0..COUNT).map(|_| pair.world.send_completed(SENDER).0).collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..COUNT), "seed {seed}");
        pair.world.quiet(RECEIVER);
    }
}

// conformance: D34 D35
#[test]
fn memory_of_a_complete_message_may_be_overwritten_at_any_level() {
    for seed in 0..4 {
        for completion in [Completion::MemoryFree, Completion::Sent, Completion::Delivered] {
            let sends = SendOptions::default().completion(completion);
            let mut pair = Pair::with(seed, Options::default(), buffers(2, 200_000), sends);
            for (round, length) in [10, 9_000, 30_000, 200_000, 0, 60_000].into_iter().enumerate() {
                let bytes = vec![round as u8 + 1; length];
                pair.pool.write(0, &bytes);
                let message = pair.message(0, length);
                pair.send(message);
                assert_eq!(pair.world.send_completed(SENDER).1, Ok(()));
                pair.pool.write(0, &vec![0xee; length]);
                let (received, _) = pair.world.received(RECEIVER);
                assert!(received == bytes, "seed {seed}, {completion:?}, {length} bytes");
            }
        }
    }
}

// conformance: D35
#[test]
fn message_is_complete_without_a_receiver_unless_it_has_to_be_delivered() {
    for (completion, is_complete) in
        [(Completion::MemoryFree, true), (Completion::Sent, true), (Completion::Delivered, false)]
    {
        let sends = SendOptions::default().completion(completion);
        let mut pair = Pair::with(3, Options::default(), posted(), sends);
        let message = pair.message(0, 100);
        // The first one waits for the other side.
        pair.world.netio(RECEIVER).post(pair.receive, vec![0; 100]).unwrap();
        pair.send(message.clone());
        assert_eq!(pair.world.received(RECEIVER).0, pattern(100));
        assert_eq!(pair.world.send_completed(SENDER).1, Ok(()));
        pair.world.rest();
        pair.send(message);
        for _ in 0..5_000 {
            pair.world.turn_without(&[RECEIVER]);
        }
        let events = std::mem::take(&mut pair.world.nodes[SENDER].events);
        assert_eq!(!events.is_empty(), is_complete, "{completion:?}: {events:?}");
        // It runs, and has no buffer.
        pair.world.quiet(SENDER);
        pair.world.netio(RECEIVER).post(pair.receive, vec![0; 100]).unwrap();
        assert_eq!(pair.world.received(RECEIVER).0, pattern(100));
        if !is_complete {
            assert_eq!(pair.world.send_completed(SENDER).1, Ok(()));
        }
        pair.world.quiet(SENDER);
    }
}

// conformance: D24
#[test]
fn message_longer_than_the_buffer_ends_its_connection_and_both_sides_learn_both_lengths() {
    use efa_netio::ClosedReason::TooLong;
    for seed in 0..3 {
        for length in [101, 20_000, 500_000] {
            for completion in [Completion::MemoryFree, Completion::Delivered] {
                let sends = SendOptions::default().completion(completion);
                let mut pair = Pair::with(seed, Options::default(), buffers(3, 100), sends);
                let (other, _) = pair.world.connection(SENDER, RECEIVER, pair.port, sends);
                let (good, long) = (pair.message(5, 100), pair.message(0, length).key(1));
                pair.send(good);
                // Others of any length are under way behind it.
                pair.send(long.clone());
                pair.send(long);
                let short = pair.message(0, 3);
                pair.send(short);
                let what = format!("seed {seed}, {length} bytes, {completion:?}");
                let (length, capacity) = (length as u64, 100);
                let (received, reason) = pair.closed(RECEIVER, pair.receive);
                assert_eq!(reason, TooLong { length, capacity, lost: None }, "{what}");
                // Nothing comes after the gap.
                assert_eq!(messages(&received), [(pattern(200)[5..105].to_vec(), None)], "{what}");
                let (sent, reason) = pair.closed(SENDER, pair.send);
                // All but the first one, whatever their completions say.
                assert_eq!(reason, TooLong { length, capacity, lost: Some(3) }, "{what}");
                assert_eq!(crate::pairs::completions(&sent).len(), 4, "{what}");
                let message = pair.message(9, 100);
                let refused = pair.world.netio(SENDER).send(pair.send, message.clone());
                assert!(matches!(refused, Sent::Refused(_, back) if back == message), "{what}");
                let sent = pair.world.netio(SENDER).send(other, message);
                assert!(matches!(sent, Sent::Accepted), "{what}");
                assert_eq!(pair.world.received(RECEIVER).0, pattern(200)[9..109], "{what}");
            }
        }
    }
}

#[test]
fn long_message_arrives_in_packets_that_are_behind_short_ones_without_buffers() {
    let options = Options::default().with(|options| {
        options.read_threshold = u64::MAX;
        options.unexpected = 10_000;
    });
    for seed in 0..8 {
        let mut pair = Pair::with(seed, options, buffers(2, 200_000), SendOptions::default());
        let lengths: Vec<_> = std::iter::once(200_000).chain([5_000; 30]).collect();
        for length in &lengths {
            let message = pair.message(0, *length);
            pair.send(message);
        }
        for length in lengths {
            assert_eq!(pair.world.received(RECEIVER).0.len(), length, "seed {seed}");
        }
    }
}
