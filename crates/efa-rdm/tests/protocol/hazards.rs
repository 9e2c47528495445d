//! One test for each of 29 hazards: defects found in the history of libfabric's EFA provider.
//!
//! |    | defect in the provider                                                             |
//! |----|------------------------------------------------------------------------------------|
//! |  1 | RECEIPT before the device completions: the operation was freed too early           |
//! |  2 | After its RECEIPT, a long-CTS message stayed in the list of sending operations     |
//! |  3 | Out-of-order messages kept receive buffers until none was posted                   |
//! |  4 | Messages beyond the reorder window were lost                                       |
//! |  5 | The empty LONGCTS after a READ_NACK completed after its operation was freed        |
//! |  6 | After a READ_NACK, the sender did not wait for the RECEIPT                         |
//! |  7 | After a READ_NACK, the receiver never removed the message                          |
//! |  8 | Removing an old address removed the new one on the same queue pair                 |
//! |  9 | Completions of a closed queue pair were used                                       |
//! | 10 | A one-sided operation that failed after part was posted completed twice            |
//! | 11 | A peer was removed while its packets awaited retransmission                        |
//! | 12 | Two states for one peer: two messages had the same id                              |
//! | 13 | Packets of a removed peer created it again, starting at id 0                       |
//! | 14 | An address handle was destroyed while another peer used it                         |
//! | 15 | An undeliverable packet was released twice                                         |
//! | 16 | One-sided operations completed after their peer was removed                        |
//! | 17 | Packets of an unexpected message were released twice                               |
//! | 18 | Closed before the last RECEIPT or EOR was sent: the sender waited forever          |
//! | 19 | An endpoint with a full send queue blocked all others                              |
//! | 20 | RNR backoff was never reset                                                        |
//! | 21 | Immediate data met RNR; wrong length and sign of the data                          |
//! | 22 | A second HANDSHAKE was an error                                                    |
//! | 23 | A HANDSHAKE was lost after RNR; data was sent before it                            |
//! | 24 | Receive buffers were miscounted for immediate data                                 |
//! | 25 | Discarding an unexpected message of several packets failed                         |
//! | 26 | Injected bytes were read after the call                                            |
//! | 27 | A HANDSHAKE to a closed peer was reported as an error to the application           |
//! | 28 | CQ data was cut to 16 bits                                                         |
//! | 29 | Empty one-sided operations required memory                                         |
//!
//! Crate `efa` has another test of hazard 19, for two endpoints of one domain.

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

/// Two endpoints that have exchanged addresses and HANDSHAKEs.
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

/// Polls all endpoints every microsecond for `span`.
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

/// A buffer that covers a whole region.
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

/// Asserts that a packet with `n` RNR failures takes 80 µs, 160 µs, 320 µs, … after the first retransmission,
/// which is immediate, and that the backoff starts at 80 µs for each packet.
fn assert_backoff(mut took: impl FnMut(u32) -> Duration) {
    let micros = Duration::from_micros;
    assert!(took(9) > micros(80 * 255));
    for _ in 0..5 {
        let once = took(2);
        assert!(once > micros(80) && once < micros(80 + 200), "{once:?}");
    }
}
