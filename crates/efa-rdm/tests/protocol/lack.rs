//! The device lacks something of the operating system, for a while: space of a file system, memory, file
//! descriptors. Software devices need some for each peer.

use std::time::Duration;

use efa_device::{DeviceError, Shortage};
use efa_rdm::{Event, Level, Message, StartError};

use crate::world::{World, pattern, place};

/// As the shm link reports a full file system.
fn no_space() -> DeviceError {
    let (operation, errno) = ("allocating 8192 bytes in /dev/shm/efa-0/default".to_owned(), 28);
    let reason = std::io::Error::from_raw_os_error(errno).to_string();
    DeviceError::System { operation, errno, reason }
}

fn message(world: &mut World, buffer: Vec<u8>) -> Message<Vec<u8>> {
    let (tag, cq_data, level) = (None, None, Level::Transmit);
    Message { peer: world.peer(0, 1), tag, cq_data, level, buffer, context: 0 }
}

#[test]
fn first_send_without_space_is_refused_with_the_reason_and_works_when_there_is_some() {
    for length in [1, 100_000] {
        let mut world = World::pair(1);
        let me = place(&world.ends[0]);
        world.network.lack(me, Some(no_space())).unwrap();
        for _ in 0..3 {
            let message = message(&mut world, pattern(length, 1));
            let refused = world.endpoint(0).send(message).unwrap_err();
            assert_eq!(refused.error, StartError::Lacking(Shortage::Space));
            assert_eq!(refused.error.to_string(), "no space left on device: try again later");
            assert!(refused.buffer == pattern(length, 1));
            assert_eq!(world.endpoint(0).lack(), Some(&no_space()));
            world.drive();
        }
        let event = world.ends[0].events.pop_front().unwrap();
        let Event::DeviceRefused(error) = event else { panic!("{event:?}") };
        let words = "allocating 8192 bytes in /dev/shm/efa-0/default failed: No space left on device \
                     (os error 28)";
        assert_eq!(error.to_string(), words);
        assert_eq!(world.ends[0].events.pop_front(), None, "reported once");
        world.network.lack(me, None).unwrap();
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 1), 0);
        assert_eq!(world.endpoint(0).lack(), None);
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(length, 1));
        assert_eq!(world.send_done(0).result, Ok(()));
        world.assert_clean();
    }
}

#[test]
fn message_under_way_waits_while_the_device_lacks_space_and_then_arrives_in_order() {
    for (lengths, waits_for) in [([1, 100], "a ring"), ([100_000, 1], "its next segments")] {
        let mut world = World::pair(2);
        let me = place(&world.ends[0]);
        // Both peers know each other.
        world.receive(1, 1, 0);
        world.send(0, 1, vec![7], 0);
        world.drive();
        world.receive_done(1);
        world.send_done(0);
        for (length, context) in lengths.into_iter().zip(0..) {
            world.receive(1, length, context);
        }
        world.network.lack(me, Some(no_space())).unwrap();
        world.send(0, 1, pattern(lengths[0], 0), 0);
        // A later one is refused: the application may try it again.
        let later = message(&mut world, pattern(lengths[1], 1));
        let refused = world.endpoint(0).send(later).unwrap_err();
        assert_eq!(refused.error, StartError::Lacking(Shortage::Space), "{waits_for}");
        world.idle(Duration::from_secs(1));
        assert!(world.ends[0].sends.is_empty() && world.ends[1].receives.is_empty());
        world.network.lack(me, None).unwrap();
        world.send(0, 1, pattern(lengths[1], 1), 1);
        world.drive();
        for _ in lengths {
            let received = world.receive_done(1);
            let sent = pattern(lengths[received.context as usize], received.context);
            assert!(received.buffer == sent, "{waits_for}: message {}", received.context);
            assert_eq!(world.send_done(0).result, Ok(()), "{waits_for}");
        }
        world.ends[0].events.clear();
        world.assert_clean();
    }
}

#[test]
fn receiver_that_lacks_space_for_its_answers_loses_no_peer() {
    for length in [1, 100_000, 3_000_000] {
        let mut world = World::pair(3);
        let receiver = place(&world.ends[1]);
        world.network.lack(receiver, Some(no_space())).unwrap();
        world.receive(1, length, 0);
        world.send(0, 1, pattern(length, 0), 0);
        world.idle(Duration::from_secs(1));
        let reports = std::mem::take(&mut world.ends[1].events);
        let refused = reports.iter().filter(|event| matches!(event, Event::DeviceRefused(_)));
        assert_eq!(refused.collect::<Vec<_>>(), [&Event::DeviceRefused(no_space())], "{length}");
        world.network.lack(receiver, None).unwrap();
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(length, 0));
        assert_eq!(world.send_done(0).result, Ok(()));
        let peer = world.peer(0, 1);
        assert!(world.endpoint(0).peer_extras(peer).is_some(), "the HANDSHAKE came");
        world.assert_clean();
    }
}
