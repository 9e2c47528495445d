//! Threads that sleep on an interface of rdma-core, by its completion channels.

use std::process::Command;

use efa::{
    CompletionQueueOptions, CounterOptions, DeviceError, DomainOptions, Error, Fabric, Hints, Info,
    Link, Progress, Wait, Wanted, info,
};

use crate::sleepers::{self, Network};
use crate::spent::Spent;

fn network() -> Network {
    let fabric = Fabric::verbs(None);
    Network { fabrics: [fabric.clone(), fabric], _directory: None, progress: Progress::Manual }
}

#[test]
fn two_readers_asleep_on_the_queues_of_an_endpoint_are_always_woken() {
    sleepers::two_readers_and_a_peer_sleep(&network());
}

#[test]
fn two_readers_are_always_woken_under_automatic_progress() {
    sleepers::two_readers_and_a_peer_sleep(&network().automatic());
}

#[test]
fn operations_complete_under_automatic_progress_while_the_program_makes_no_calls() {
    sleepers::operations_complete_without_calls_if_automatic(&network());
}

#[test]
fn blocking_reads_of_both_sides_return_each_message() {
    sleepers::blocking_reads_return_each_message(&network());
}

// conformance: C79
#[test]
fn descriptor_works_in_poll_epoll_and_select() {
    sleepers::descriptor_works_in_poll_epoll_and_select(&network());
}

#[test]
fn idle_sleeper_takes_no_processor_time() {
    // Also no other thread of the process, such as that of the software device.
    sleepers::idle_sleeper_takes_no_processor_time(&network(), Spent::by_this_process);
}

// conformance: C86
#[test]
fn counter_wakes_a_thread_at_its_threshold() {
    sleepers::counter_wakes_a_thread_at_its_threshold(&network());
}

fn automatic_entries() -> Result<Vec<Info>, Error> {
    info(&Hints::new().link(Link::Verbs).progress(Progress::Automatic))
}

#[test]
fn entry_of_an_interface_that_notifies_is_automatic_on_request_and_its_domain_opens() {
    if Fabric::verbs(None).domain_with(DomainOptions::new().progress(Progress::Automatic)).is_err()
    {
        return eprintln!("skipped: the interface doesn't notify");
    }
    let entries = automatic_entries().unwrap();
    assert!(!entries.is_empty());
    for entry in entries {
        assert_eq!(entry.domain.progress, Progress::Automatic);
        let domain = Fabric::open(&entry).domain_with(DomainOptions::from(&entry)).unwrap();
        assert_eq!(domain.attributes().progress, Progress::Automatic);
    }
}

/// Other interfaces notify or not, whatever the setting.
#[test]
fn waitable_objects_are_refused_where_the_interface_does_not_notify() {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    if !preloaded.contains("libefa_soft") {
        return eprintln!("skipped: not the software device");
    }
    let name = "waiting::waitable_objects_are_refused_where_the_interface_does_not_notify";
    if std::env::var_os("EFA_SOFT_NOTIFICATIONS").is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", name]).env("EFA_SOFT_NOTIFICATIONS", "0");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let domain = Fabric::verbs(None).domain().unwrap();
    let refused = Error::Device(DeviceError::Unsupported { operation: "waiting" });
    let queue = domain.waitable_completion_queue(CompletionQueueOptions::new(), Wait::Fd);
    assert_eq!(queue.unwrap_err(), refused);
    let counter = domain.waitable_counter(CounterOptions::default(), Wait::Fd);
    assert_eq!(counter.unwrap_err(), refused);
    let automatic = DomainOptions::new().progress(Progress::Automatic);
    assert_eq!(Fabric::verbs(None).domain_with(automatic).unwrap_err(), refused);
    let value = "Automatic".to_owned();
    let wanted = Wanted::Attribute { name: "domain.progress", value };
    assert_eq!(automatic_entries().unwrap_err(), wanted.into());
}
