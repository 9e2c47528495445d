//! What went wrong in libfabric's EFA provider over the years, so that it doesn't here: one test for
//! each of the 29 hazards that were found in its history, in their order.
//!
//! |    | what happened there                                                                |
//! |----|------------------------------------------------------------------------------------|
//! |  1 | A RECEIPT before the device's completions: the operation was freed too early       |
//! |  2 | A RECEIPT left a long-CTS message among those that send data                       |
//! |  3 | Early messages kept the device's receive buffers until there was none              |
//! |  4 | Messages beyond the window of ids were lost                                        |
//! |  5 | The empty LONGCTS after a READ_NACK was completed after its operation              |
//! |  6 | A READ_NACK made the sender forget that it wanted delivery complete                |
//! |  7 | … and the receiver never forgot the message                                        |
//! |  8 | Removing an old address cut off the new one on the same queue pair                 |
//! |  9 | Completions of a queue pair that is gone                                           |
//! | 10 | Part of a one-sided operation was posted, then it failed: ended twice              |
//! | 11 | A peer was removed while a packet to it waited to be sent again                    |
//! | 12 | Two states for one peer: two messages with the same id                             |
//! | 13 | Packets of a forgotten peer made it known anew, at id 0                            |
//! | 14 | An address handle was given back while another peer used it                        |
//! | 15 | A packet that could not be handled was given back twice                            |
//! | 16 | One-sided operations ended after their peer was removed                            |
//! | 17 | The packets of an unexpected message were given back twice                         |
//! | 18 | Closed before the last RECEIPT or EOR was out: the sender waits for ever           |
//! | 19 | Who had no room in the device's queue held up everybody                            |
//! | 20 | Patience with receivers that are not ready was never restored                      |
//! | 21 | Immediate data for a receiver that was not ready; its length and sign              |
//! | 22 | A second HANDSHAKE                                                                 |
//! | 23 | A HANDSHAKE lost because its receiver was not ready; data before it                |
//! | 24 | Immediate data: does it take a receive buffer or not?                              |
//! | 25 | Throwing away an unexpected message of several packets                             |
//! | 26 | Injected bytes were read after the call                                            |
//! | 27 | A HANDSHAKE to a peer that is gone was an error of the application                 |
//! | 28 | Data for the receiver's completion cut to 16 bits                                  |
//! | 29 | One-sided operations on nothing, without memory                                    |
//!
//! Of 19 there is another one in `efa`, of two endpoints in one domain.

mod messages;
mod peers;
mod rma;

use std::time::Duration;

use efa_device::{Access, QueuePair, RegionRange};
use efa_proto::PacketType;
use efa_rdm::{Config, Level, Message, Payload};
use efa_sim::SoftRegion;
use efa_sim::local::LocalOptions;

use crate::longread::Memory;
use crate::world::{Net, World};

const BOTH: Access = Access { remote_read: true, remote_write: true };

/// Two endpoints that know each other's addresses and features.
fn acquainted<B: Payload<SoftRegion> + std::fmt::Debug>(
    options: LocalOptions,
    configs: [Config; 2],
    byte: impl Fn() -> B,
) -> Net<B> {
    let mut world = Net::new(options);
    for config in configs {
        world.add(config);
    }
    world.acquaint();
    world.receive_into(1, byte(), 0);
    world.send(0, 1, byte(), 0);
    world.drive();
    world.receive_done(1);
    world.send_done(0);
    world.forget_packets();
    world
}

fn pair(seed: u64) -> World {
    let options = LocalOptions::default().with(|options| options.seed = seed);
    acquainted(options, [Config::default(), Config::default()], || vec![1])
}

fn send_at<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &mut Net<B>,
    level: Level,
    buffer: B,
    context: u64,
) {
    let peer = world.peer(0, 1);
    let message = Message { peer, tag: None, cq_data: None, level, buffer, context };
    world.endpoint(0).send(message).unwrap();
}

/// Time passes while everybody polls, whatever is under way.
fn pass<B: Payload<SoftRegion> + std::fmt::Debug>(world: &mut Net<B>, span: Duration) {
    let end = world.now + span;
    while world.now < end {
        let next = world.now + Duration::from_micros(1);
        world.step();
        world.now = next;
    }
}

fn count<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &mut Net<B>,
    from: usize,
    wanted: PacketType,
) -> usize {
    world.types_from(from).into_iter().filter(|of| *of == wanted).count()
}

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(1);

/// A buffer that is all of a region.
fn registered<B: Payload<SoftRegion> + std::fmt::Debug>(
    world: &Net<B>,
    end: usize,
    bytes: Vec<u8>,
    remote: bool,
) -> Memory {
    let length = bytes.len();
    let access = Access { remote_read: remote, remote_write: remote };
    let region = world.ends[end].endpoint.queue_pair().register(bytes.into(), access).unwrap();
    Memory::Region(RegionRange { region, offset: 0, length })
}

/// What finds its receiver not ready for so many times takes 80 µs, 160, 320, … after the first that is sent
/// again at once, each time anew.
fn assert_patience(mut took: impl FnMut(u32) -> Duration) {
    let micros = Duration::from_micros;
    assert!(took(9) > micros(80 * 255));
    for _ in 0..5 {
        let once = took(2);
        assert!(once > micros(80) && once < micros(80 + 200), "{once:?}");
    }
}
