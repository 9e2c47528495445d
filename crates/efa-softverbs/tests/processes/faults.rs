//! Injected faults: delayed datagrams, receivers that are not ready, registrations that fail.

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, print, printed, rkey};

/// Sends 100 messages; prints how many failed with RNR, how many arrived, and whether in order.
#[test]
#[ignore = "a child"]
fn child_sends_100_messages() {
    begin();
    send_100_messages();
}

/// Sends 100 messages from one endpoint to another, and prints what became of them. Returns the endpoints.
pub(super) fn send_100_messages() -> [Endpoint; 2] {
    const COUNT: usize = 100;
    let options = QpOptions { sends: 128, receives: 128, rnr_retry: 3, ..QpOptions::default() };
    let (a, b) = (Endpoint::new(options), Endpoint::new(options));
    let buffer = Memory::of(&[0; 8 * COUNT]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for number in 0..COUNT {
        assert_eq!(b.post_receive(number as u64, sge(region, 8 * number, 8)), 0);
        let to = (handle, b.number(), b.qkey);
        let bytes = [inline(&[number as u8])];
        assert_eq!(a.post_send(number as u64, to, &bytes, IBV_SEND_INLINE), 0);
    }
    let failed = (0..COUNT).filter(|_| a.wait().vendor == 10).count();
    let mut order = Vec::new();
    while order.len() < COUNT - failed {
        let seen = b.wait();
        order.push(buffer.bytes()[8 * seen.wr_id as usize]);
    }
    assert_eq!(b.poll(), None);
    let in_order = order.is_sorted();
    order.sort_unstable();
    order.dedup();
    print(format!("{failed} failed, {} came, in order: {in_order}", order.len()));
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
    [a, b]
}

#[test]
#[ignore = "a child"]
fn child_registers_three_times() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    let buffer = Memory::of(&[0; 800]);
    for _ in 0..3 {
        // SAFETY: the memory exists as long as the region.
        let region = unsafe { (verbs().ibv_reg_mr)(end.pd, buffer.address(), buffer.len(), 0) };
        if region.is_null() {
            print(format!("errno {}", errno()));
            continue;
        }
        print("registered");
        // SAFETY: the object was created here and is not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
    }
}

#[test]
fn refuse_variable_makes_registrations_fail() {
    for link in LINKS {
        let host = Host::new(link);
        let outcome = |setting| {
            printed(
                &host.run("faults::child_registers_three_times", &[("EFA_SOFT_REFUSE", setting)]),
            )
        };
        let refused = format!("errno {}", libc::ENOMEM);
        assert_eq!(outcome("800-900:2"), [&refused, &refused, "registered"]);
        assert_eq!(outcome("0-799:2"), ["registered"; 3]);
    }
}

#[test]
fn reorder_and_rnr_variables_inject_faults() {
    for link in LINKS {
        let host = Host::new(link);
        let count = |settings: &[(&str, &str)]| {
            printed(&host.run("faults::child_sends_100_messages", settings)).remove(0)
        };
        assert_eq!(count(&[]), "0 failed, 100 came, in order: true");
        assert_eq!(count(&[("EFA_SOFT_REORDER", "7")]), "0 failed, 100 came, in order: false");
        assert_eq!(count(&[("EFA_SOFT_RNR", "1")]), "100 failed, 0 came, in order: true");
        let some = count(&[("EFA_SOFT_RNR", "0.5")]);
        assert!(!some.starts_with("0 failed") && !some.starts_with("100 failed"), "{some}");
        // Each message begins with another byte.
        assert_eq!(count(&[("EFA_SOFT_RNR_EACH", "1")]), "100 failed, 0 came, in order: true");
    }
}

/// Posts sends, which are delayed with EFA_SOFT_REORDER, and destroys their address handle.
#[test]
#[ignore = "a child"]
fn child_destroys_address_handle_of_delayed_sends() {
    begin();
    let (a, b) = (Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default()));
    let buffer = Memory::of(&[0; 64]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    for wr_id in 0..64 {
        assert_eq!(b.post_receive(wr_id, sge(region, 0, 64)), 0);
        let to = (handle, b.number(), b.qkey);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        for _ in 0..64 {
            a.wait();
        }
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn delayed_sends_complete_although_address_handle_is_destroyed() {
    for link in LINKS {
        let host = Host::new(link);
        host.run(
            "faults::child_destroys_address_handle_of_delayed_sends",
            &[("EFA_SOFT_REORDER", "3")],
        );
    }
}

/// Posts sends and closes the device without polling for them.
#[test]
#[ignore = "a child"]
fn child_closes_device_with_sends_outstanding() {
    const COUNT: u64 = 32;
    begin();
    let (a, b) = (Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default()));
    let buffer = Memory::of(&[0; 64]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Connects the queue pairs on tcp.
    assert_eq!(b.post_receive(0, sge(region, 0, 64)), 0);
    assert_eq!(a.post_send(0, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    assert_eq!((a.wait().status, b.wait().wr_id), (IBV_WC_SUCCESS, 0));
    for wr_id in 1..=COUNT {
        assert_eq!(b.post_receive(wr_id, sge(region, 0, 64)), 0);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // SAFETY: no object of the context is used afterwards.
    assert_eq!(unsafe { (verbs().ibv_close_device)(a.context) }, 0);
    std::mem::forget(a);
    for _ in 0..COUNT {
        assert_eq!(b.wait().status, IBV_WC_SUCCESS);
    }
    // SAFETY: the region is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}

/// MPICH exits like this: libfabric 2.5 destroys the queue pair when the last messages are outstanding.
#[test]
fn delayed_sends_arrive_although_their_device_is_closed() {
    for link in LINKS {
        let host = Host::new(link);
        host.run("faults::child_closes_device_with_sends_outstanding", &[]);
        host.run(
            "faults::child_closes_device_with_sends_outstanding",
            &[("EFA_SOFT_REORDER", "3")],
        );
    }
}

/// Writes 1 MiB and then sends 8 bytes that say so, 20 times: first without waiting for the completion of the write, as a
/// program that relies on order, then with. Prints how often the message arrived before the data. Then writes 1 MiB and
/// 8 bytes to its end, 20 times, and prints how often the 8 bytes were overwritten; and whether 20 writes, reads and
/// sends that were posted in turn completed in this order.
#[test]
#[ignore = "a child"]
fn child_relies_on_order() {
    begin();
    const LENGTH: usize = 1 << 20;
    let options = QpOptions { sends: 64, receives: 64, ..QpOptions::default() };
    let (a, b) = (Endpoint::new(options), Endpoint::new(options));
    // Rounds write ones and twos in turn.
    let sources = [1, 2].map(|byte| Memory::of(&[byte; LENGTH]));
    let (short, target) = (Memory::of(&[3; 8]), Memory::of(&[0; LENGTH]));
    let inbox = Memory::of(&[0; 8]);
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    let [ones, twos, threes] =
        [&sources[0], &sources[1], &short].map(|memory| a.register(memory, access));
    let [into, received] = [&target, &inbox].map(|memory| b.register(memory, access));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    let (base, end) = (target.address() as u64, target.len() as u64 - 8);
    let write_long = |wr_id, from| {
        let entries = [sge(from, 0, LENGTH)];
        assert_eq!(a.post_remote(wr_id, to, true, (base, rkey(into)), &entries), 0);
    };
    let end_of_target = |wr_id, write| {
        let entries = [sge(threes, 0, 8)];
        assert_eq!(a.post_remote(wr_id, to, write, (base + end, rkey(into)), &entries), 0);
    };
    let send = |wr_id| {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"written!")], IBV_SEND_INLINE), 0);
    };
    // Both sides poll in turn, as programs on two processors. Returns whether a message arrived.
    let poll = |completed: &mut Vec<u64>| {
        completed.extend(a.poll().map(|seen| {
            assert_eq!(seen.status, IBV_WC_SUCCESS);
            seen.wr_id
        }));
        b.poll().is_some()
    };
    let until = |completed: &mut Vec<u64>, count| {
        while completed.len() < count {
            poll(completed);
        }
    };
    for waits in [false, true] {
        let mut early = 0;
        for round in 0..20 {
            let (from, byte) = [(ones, 1), (twos, 2)][round % 2];
            let mut completed = Vec::new();
            assert_eq!(b.post_receive(0, sge(received, 0, 8)), 0);
            write_long(1, from);
            until(&mut completed, usize::from(waits));
            send(2);
            while !poll(&mut completed) {}
            early += u32::from(target.byte(LENGTH - 1) != byte);
            until(&mut completed, 2);
            assert_eq!(target.byte(LENGTH - 1), byte);
        }
        print(early);
    }
    let mut overwritten = 0;
    for _ in 0..20 {
        let mut completed = Vec::new();
        write_long(1, ones);
        end_of_target(2, true);
        until(&mut completed, 2);
        overwritten += u32::from(target.byte(LENGTH - 1) == 1);
    }
    print(overwritten);
    let mut completed = Vec::new();
    for wr_id in 0..20 {
        assert_eq!(b.post_receive(0, sge(received, 0, 8)), 0);
        match wr_id % 3 {
            0 => end_of_target(wr_id, true),
            1 => end_of_target(wr_id, false),
            _ => send(wr_id),
        }
    }
    until(&mut completed, 20);
    let of_kind = |kind| completed.iter().filter(move |&id| id % 3 == kind).is_sorted();
    print(format!("{:?}", [0, 1, 2].map(of_kind)));
    // SAFETY: all objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        for region in [ones, twos, threes, into, received] {
            assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        }
    }
}

/// As on hardware, nothing orders a send after a write, with the option or without: only completions do.
#[test]
fn reordered_writes_reads_and_sends_overtake_each_other() {
    for link in LINKS {
        let host = Host::new(link);
        let run = |seed: &str| {
            let settings = [("EFA_SOFT_REORDER", seed)];
            let settings: &[_] = if seed.is_empty() { &[] } else { &settings };
            printed(&host.run("faults::child_relies_on_order", settings))
        };
        let in_order = run("");
        assert_eq!(in_order[1], "0", "{link}: {in_order:?}");
        if link == "shm" {
            assert_eq!(in_order[2..], ["0", "[true, true, true]"]);
        }
        let reordered = run("7");
        let count = |line: usize| reordered[line].parse::<u32>().unwrap();
        assert!(count(0) > 0 && count(2) > 0, "{link}: {reordered:?}");
        assert_eq!(count(1), 0, "{link}: a program that waits for its writes");
        assert_eq!(reordered[3], "[false, false, false]", "{link}");
    }
}
