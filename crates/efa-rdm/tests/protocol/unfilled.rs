//! Receive buffers that the device returns without a datagram.

use efa_device::Status;

use crate::world::{World, pattern, place};

#[test]
fn buffers_that_the_device_could_not_use_are_posted_again() {
    let mut world = World::pair(1);
    world.acquaint();
    let receiver = place(&world.ends[1]);
    for context in 0..3 {
        let posted = world.endpoint(1).packets_held().posted;
        let failed = world.network.fail_receives(receiver, usize::MAX, Status::BadLength);
        assert_eq!(failed, Ok(posted), "all that the endpoint counts are posted");
        world.drive();
        world.receive(1, 50_000, context);
        world.send(0, 1, pattern(50_000, context), context);
        world.drive();
        assert!(world.receive_done(1).buffer == pattern(50_000, context));
        assert_eq!(world.send_done(0).result, Ok(()));
    }
    world.assert_clean();
}
