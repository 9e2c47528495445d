//! Completions in the formats of libfabric's completion queues.

use efa::{
    CompletionQueueOptions, ContextEntry, DataEntry, Format, FormatError, FormattedEntry, Kind,
    Message, MessageEntry, OperationError, Receive, TaggedEntry,
};

use crate::world::{ALICE, BOB, World, options};

const FORMATS: [Format; 4] = [Format::Context, Format::Message, Format::Data, Format::Tagged];

/// Bob's queue has this format, and a message of 5 bytes with tag 7 and data 9 completes on it.
fn received(format: Format) -> World {
    let mut world = World::empty();
    world.add(options(1));
    world.add_with(options(2), CompletionQueueOptions::new().format(format));
    let to_bob = world.introduce(ALICE, BOB);
    world.end(BOB).receive(Receive::tagged(7), vec![0; 5], 2).unwrap();
    let message = Message::to(to_bob).tagged(7).with_data(9);
    world.end(ALICE).send(message, "hello", 1).unwrap();
    for _ in 0..1000 {
        world.ends[ALICE].queue.read();
        world.tick();
    }
    world
}

fn read<E: FormattedEntry>(world: &World) -> Result<E, FormatError> {
    for _ in 0..1000 {
        if let Some(entry) = world.ends[BOB].queue.read_as()? {
            return Ok(entry.unwrap());
        }
        world.tick();
    }
    panic!("nothing is received")
}

// conformance: C70
#[test]
fn queue_is_read_in_its_format_and_those_that_tell_less() {
    for format in FORMATS {
        let error = |asked| FormatError { asked, format };
        let world = || received(format);
        let context = ContextEntry { context: 2 };
        assert_eq!(read::<ContextEntry>(&world()), Ok(context));
        let message = MessageEntry { context: 2, kind: Kind::Receive, length: 5 };
        assert_eq!(
            read::<MessageEntry>(&world()),
            if format >= Format::Message { Ok(message) } else { Err(error(Format::Message)) }
        );
        let (buffer, data, tag) = (b"hello".to_vec().into(), Some(9), Some(7));
        let tagged = TaggedEntry { context: 2, kind: Kind::Receive, length: 5, buffer, data, tag };
        let expected =
            if format == Format::Tagged { Ok(tagged.clone()) } else { Err(error(Format::Tagged)) };
        assert_eq!(read::<TaggedEntry>(&world()), expected);
        let smaller = DataEntry::from(tagged);
        let expected =
            if format >= Format::Data { Ok(smaller.clone()) } else { Err(error(Format::Data)) };
        assert_eq!(read::<DataEntry>(&world()), expected);
        assert_eq!(MessageEntry::from(smaller), message);
        assert_eq!(ContextEntry::from(message), context);
        // The refused read took nothing, and everything can be read in any format.
        let world = world();
        let refused = world.ends[BOB].queue.read_as::<TaggedEntry>().is_err();
        assert_eq!(refused, format < Format::Tagged);
        if refused {
            let mut world = world;
            let all = world.done(BOB);
            assert_eq!(
                (all.tag, all.cq_data, all.buffer),
                (Some(7), Some(9), b"hello".to_vec().into())
            );
        }
    }
}

#[test]
fn failed_operation_is_an_error_in_every_format() {
    for format in FORMATS {
        let mut world = World::empty();
        world.add_with(options(1), CompletionQueueOptions::new().format(format));
        let queue = &world.ends[ALICE].queue;
        assert_eq!(queue.format(), format);
        assert_eq!(queue.read_as::<ContextEntry>(), Ok(None));
        world.end(ALICE).receive(Receive::untagged(), vec![0; 5], 2).unwrap();
        assert!(world.end(ALICE).cancel_context(2));
        let failed = queue.read_as::<ContextEntry>().unwrap().unwrap().unwrap_err();
        assert_eq!((failed.error, failed.completion.context), (OperationError::Cancelled, 2));
    }
}
