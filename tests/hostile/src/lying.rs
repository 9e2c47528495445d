//! The targets with a hostile peer: the order of its actions and of the endpoint's.

use std::time::Duration;

use crate::hostile_peer::HostilePeer;
use crate::input::Input;
use crate::world::World;

/// Most steps of a run: faults appear within a few.
const STEPS: usize = 200;

/// Performs the actions of all endpoints and of the hostile peer in the order that the input selects.
pub(crate) fn play(world: &mut World, input: &mut Input<'_>) {
    let mut hostile = HostilePeer::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() {
            0..=155 => hostile.act(world, input),
            156..=195 => {
                world.step();
                hostile.receive(world);
            }
            196..=207 => world.start_with_hostile(input),
            208..=223 => world.open_receive(input),
            224..=231 => world.honest_message(input),
            232..=239 => world.honest_access(input),
            240..=243 => world.cancel(input),
            244..=247 => world.pass(Duration::from_millis(1)),
            248..=251 => world.pass(Duration::from_secs(2)),
            _ => world.remove(input),
        }
    }
    world.step();
    hostile.receive(world);
    world.conclude();
    hostile.receive(world);
}

/// The hostile peer sends packets whose fields come from the input, while the endpoints exchange messages.
fn play_packets(world: &mut World, input: &mut Input<'_>) {
    let mut hostile = HostilePeer::new();
    for number in 0..STEPS {
        if input.is_empty() {
            break;
        }
        hostile.send_fields(world, input);
        match number % 8 {
            1 => world.open_receive(input),
            3 => world.start_with_hostile(input),
            5 => world.honest_message(input),
            7 => world.step(),
            _ => {}
        }
        hostile.receive(world);
    }
    world.conclude();
}

pub(crate) fn peer(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play(&mut World::new(input, false), input);
}

pub(crate) fn packets(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play_packets(&mut World::new(input, false), input);
}

pub(crate) fn peer_of_tag_lists(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play(&mut World::with_tag_lists(input, false), input);
}

/// Prints the log when the run ends, or when it panics.
struct LogPrinter(World);

impl Drop for LogPrinter {
    fn drop(&mut self) {
        say!("{}", self.0.log());
    }
}

pub(crate) fn show_peer(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play(&mut LogPrinter(World::new(input, true)).0, input);
}

pub(crate) fn show_packets(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play_packets(&mut LogPrinter(World::new(input, true)).0, input);
}

pub(crate) fn show_peer_of_tag_lists(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    play(&mut LogPrinter(World::with_tag_lists(input, true)).0, input);
}
