//! Programs that sleep on completion channels, beside peers that are idle, stop, fork or are killed.

use std::time::{Duration, Instant};

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::spent::Spent;
use crate::{Host, LINKS, begin, print, read, reap};

/// Milliseconds; far longer than anything takes here.
const TIMEOUT: i32 = 30_000;

fn endpoint() -> Endpoint {
    Endpoint::new(QpOptions { channel: true, ..QpOptions::default() })
}

/// How often all threads of an idle process may be given a processor in two seconds. Looking every 16 ms would take
/// more than a hundred times.
const LOOKS: u64 = 12;

/// Sleeps for two seconds, once with a request and once without one.
#[test]
#[ignore = "a child"]
fn child_sleeps() {
    begin();
    let end = endpoint();
    let buffer = Memory::of(&[0; 8]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, sge(region, 0, 8)), 0);
    for requested in [true, false] {
        if requested {
            assert_eq!(end.request_event(0), 0);
        }
        // The progress thread looks some times more, as the program has just been busy.
        assert!(!end.has_event(200));
        let before = Spent::by_this_process();
        assert!(!end.has_event(2000));
        Spent::by_this_process().check_idle(before, LOOKS);
    }
    // SAFETY: the region is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}

/// The thread that makes progress sleeps too, and looks once a second.
#[test]
fn idle_sleeper_takes_no_processor_time() {
    for link in LINKS {
        Host::new(link).run("channels::child_sleeps", &[]);
    }
}

/// Polls nothing for two seconds.
#[test]
#[ignore = "a child"]
fn child_polls_nothing() {
    begin();
    let end = Endpoint::new(QpOptions::default());
    // As above.
    std::thread::sleep(Duration::from_millis(200));
    let before = Spent::by_this_process();
    std::thread::sleep(Duration::from_secs(2));
    Spent::by_this_process().check_idle(before, LOOKS);
    drop(end);
}

/// So a peer that reads its memory wakes the thread, instead of waiting for its next look.
#[test]
fn thread_sleeps_on_the_tcp_link_of_a_program_that_polls_nothing() {
    Host::new("tcp").run("channels::child_polls_nothing", &[]);
}

/// Sleeps until its send completes, and prints how that went.
#[test]
#[ignore = "a child"]
fn child_sleeps_for_a_send() {
    begin();
    let end = endpoint();
    let (gid, number): (Vec<u8>, u32) = {
        let words: Vec<u32> = read().split(' ').map(|word| word.parse().unwrap()).collect();
        (words[1..].iter().map(|&byte| u8::try_from(byte).unwrap()).collect(), words[0])
    };
    let handle = end.handle(gid.try_into().unwrap());
    let to = (handle, number, end.qkey);
    assert_eq!(end.post_send(1, to, &[inline(b"lost")], IBV_SEND_INLINE), 0);
    print("sent");
    let seen = end.sleep_for_completion();
    print(seen.status);
    // SAFETY: the handle is not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
    read();
}

/// A receiver that never posts a buffer.
#[test]
#[ignore = "a child"]
fn child_is_a_receiver() {
    begin();
    let end = endpoint();
    let gid = end.gid().map(|byte| byte.to_string()).join(" ");
    print(format_args!("{} {gid}", end.number()));
    read();
}

/// Nobody wakes a sleeper because its peer has died, so it looks by itself once a second.
#[test]
fn sleeper_is_woken_when_its_peer_is_killed() {
    for link in LINKS {
        let host = Host::new(link);
        let mut receiver = host.start("channels::child_is_a_receiver");
        let address = receiver.receive();
        let mut sender = host.start("channels::child_sleeps_for_a_send");
        sender.send(address);
        assert_eq!(sender.receive(), "sent");
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        receiver.kill();
        let status: i32 = sender.receive().parse().unwrap();
        assert_ne!(status, IBV_WC_SUCCESS);
        // A tcp link tries for some seconds to connect again.
        assert!(begin.elapsed() < Duration::from_secs(20), "{link}: {:?}", begin.elapsed());
        sender.send("end");
    }
}

/// The forked child is refused the channel of its parent, and sleeps on one of its own; the parent sleeps on.
#[test]
#[ignore = "a child"]
fn child_forks_while_armed() {
    begin();
    let end = endpoint();
    let buffer = Memory::of(&[0; 16]);
    let region = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(end.post_receive(1, sge(region, 0, 16)), 0);
    assert_eq!(end.request_event(0), 0);
    let v = verbs();
    // SAFETY: the only other thread is the library's, which the library is made for. The child ends by
    // `_exit`, without destructors of the parent's objects.
    let child = unsafe { libc::fork() };
    if child == 0 {
        begin();
        let passed = std::panic::catch_unwind(|| {
            let (mut cq, mut context) = (null_mut(), null_mut());
            assert_eq!(end.request_event(0), libc::EINVAL);
            // SAFETY: the child's library looks the handles up and doesn't find them.
            unsafe {
                let got = (v.ibv_get_cq_event)(end.channel, &raw mut cq, &raw mut context);
                assert_eq!((got, errno()), (-1, libc::EINVAL));
                assert_eq!((v.ibv_destroy_comp_channel)(end.channel), libc::EINVAL);
            }
            let own = endpoint();
            let handle = own.handle(own.gid());
            let to = (handle, end.number(), end.qkey);
            assert_eq!(own.request_event(0), 0);
            assert_eq!(own.post_send(3, to, &[inline(b"from the child")], IBV_SEND_INLINE), 0);
            assert_eq!(own.sleep_for_completion().status, IBV_WC_SUCCESS);
            own.set_nonblocking();
            while own.take_event() {}
            // SAFETY: the object was created here and is not used afterwards.
            assert_eq!(unsafe { (v.ibv_destroy_ah)(handle) }, 0);
        });
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(i32::from(passed.is_err())) };
    }
    assert!(end.has_event(TIMEOUT));
    assert!(end.take_event());
    assert_eq!(end.poll().unwrap().wr_id, 1);
    assert_eq!(&buffer.bytes()[..14], b"from the child");
    reap(child);
    // SAFETY: the object was created here and is not used afterwards.
    assert_eq!(unsafe { (v.ibv_dereg_mr)(region) }, 0);
}

#[test]
fn forked_child_is_refused_the_channel_of_its_parent_and_sleeps_on_its_own() {
    for link in LINKS {
        Host::new(link).run("channels::child_forks_while_armed", &[]);
    }
}

/// Two endpoints exchange messages, each asleep on its own.
#[test]
#[ignore = "a child"]
fn child_exchanges_asleep() {
    begin();
    let (a, b) = (endpoint(), endpoint());
    let buffer = Memory::of(&[0; 8]);
    let region = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for round in 0_u64..200 {
        let begin = Instant::now();
        assert_eq!(b.post_receive(1, sge(region, 0, 8)), 0);
        assert_eq!((a.request_event(0), b.request_event(0)), (0, 0));
        let bytes = round.to_le_bytes();
        while a.post_send(2, to, &[inline(&bytes)], IBV_SEND_INLINE) != 0 {}
        // RNR: the datagram was not delivered.
        while a.sleep_for_completion().status != IBV_WC_SUCCESS {
            assert_eq!(a.post_send(2, to, &[inline(&bytes)], IBV_SEND_INLINE), 0);
        }
        assert_eq!(b.sleep_for_completion().wr_id, 1);
        assert_eq!(buffer.bytes(), bytes);
        assert!(begin.elapsed() < Duration::from_millis(950), "round {round}");
        for end in [&a, &b] {
            while end.has_event(0) {
                end.take_event();
            }
        }
    }
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

/// Delays are counted in polls, and RNR happens here: nothing of the link wakes a sleeper for either.
#[test]
fn sleepers_are_woken_although_datagrams_are_delayed_or_meet_rnr() {
    for link in LINKS {
        for fault in [("EFA_SOFT_REORDER", "3"), ("EFA_SOFT_RNR", "0.3")] {
            Host::new(link).run("channels::child_exchanges_asleep", &[fault]);
        }
    }
}

/// As an interface without the capability: libfabric takes one vector for that.
#[test]
#[ignore = "a child"]
fn child_is_refused_channels() {
    begin();
    let (v, context) = (verbs(), open());
    // SAFETY: all arguments are valid; what is made is destroyed.
    unsafe {
        assert_eq!((*context).num_comp_vectors, 1);
        let channel = (v.ibv_create_comp_channel)(context);
        assert!(!channel.is_null());
        assert!((v.ibv_create_cq)(context, 8, null_mut(), channel, 0).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        let mut attributes: ibv_cq_init_attr_ex = zeroed();
        (attributes.cqe, attributes.channel) = (8, channel);
        assert!((v.efadv_create_cq)(context, &raw mut attributes, null_mut(), 0).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!((v.ibv_destroy_comp_channel)(channel), 0);
        assert_eq!((v.ibv_close_device)(context), 0);
    }
}

#[test]
fn queue_with_channel_is_refused_by_an_interface_without_notification() {
    let settings = [("EFA_SOFT_NOTIFICATIONS", "0")];
    Host::new("shm").run("channels::child_is_refused_channels", &settings);
}
