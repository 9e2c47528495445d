//! Settings and datagrams at the ends of their ranges.

use efa_rdm::Config;
use efa_sim::local::LocalOptions;

use crate::world::{World, pattern};

#[test]
fn messages_arrive_with_extreme_settings_and_smallest_mtu() {
    let settings = [(0, 1), (0, u32::MAX), (u64::MAX, 1), (1, 2), (400, 3)];
    for (seed, (max_medium, cts_window)) in settings.into_iter().enumerate() {
        let config = Config::default().with(|config| {
            config.max_medium = max_medium;
            config.cts_window = cts_window;
            config.min_receive_buffers = 1;
            config.max_receive_buffers = 3;
            config.max_sends = usize::MAX;
            config.max_receives = usize::MAX;
            config.max_reorder = u32::MAX;
            config.first_msg_id = u32::MAX - 5;
        });
        let options = LocalOptions::default().with(|options| {
            options.mtu = 256;
            options.seed = seed as u64;
        });
        let mut world = World::new(options);
        world.add(config.clone());
        world.add(config);
        let sizes = [0, 1, 190, 191, 192, 193, 208, 220, 232, 236, 240, 241, 256, 401, 5_000];
        for round in 0..2 {
            for (i, size) in sizes.into_iter().enumerate() {
                world.tagged_receive(1, i as u64, size);
                world.tagged_send(0, 1, i as u64, pattern(size, i as u64));
            }
            world.drive();
            let received: Vec<_> = world.ends[1].receives.drain(..).collect();
            assert_eq!(received.len(), sizes.len(), "round {round}");
            assert!(
                received.iter().all(
                    |r| r.result == Ok(()) && r.buffer == pattern(sizes[r.tag as usize], r.tag)
                )
            );
            assert_eq!(world.ends[0].sends.drain(..).count(), sizes.len());
        }
        world.assert_clean();
    }
}
