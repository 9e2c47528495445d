//! What a forked child does to the objects of its parent.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]
#![allow(unsafe_code, reason = "fork")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::on_soft_device;
use efa_device::{Access, Device, QueuePair, QueuePairOptions};
use efa_verbs::VerbsDevice;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Counts events.
struct Counter(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Counter {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The software device refuses each call of the child, which is a warning. An interface would do as it is told.
#[test]
fn forked_child_that_drops_what_it_inherits_asks_the_interface_for_nothing() {
    let name = "forked_child_that_drops_what_it_inherits_asks_the_interface_for_nothing";
    on_soft_device(name, &[], || {
        let device = VerbsDevice::open(None).unwrap();
        let options = QueuePairOptions::default().with(|options| options.waitable = true);
        let mut pair = device.create_queue_pair(options).unwrap();
        let region = device.register(vec![0; 10].into(), Access::default()).unwrap();
        pair.create_address_handle(device.gid()).unwrap();
        let packet = pair.allocate_packet().unwrap();
        pair.post_receive(packet).unwrap();
        let warnings = Arc::new(AtomicUsize::new(0));
        let counter = tracing_subscriber::registry().with(Counter(Arc::clone(&warnings)));
        // SAFETY: the only other threads are the test harness, which waits, and the library's, which the library is
        // made for. The child ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            tracing::subscriber::with_default(counter, || drop((pair, region, device)));
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(warnings.load(Ordering::Relaxed) as i32) };
        }
        let mut status = 0;
        // SAFETY: `status` may be written.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "calls were refused");
        tracing::subscriber::with_default(counter, || drop((pair, region, device)));
        assert_eq!(warnings.load(Ordering::Relaxed), 0, "the parent destroys them");
    });
}
