//! Completion channels: events, descriptors, errors, and threads that sleep.

use std::mem::ManuallyDrop;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use efa_soft::abi::*;

use super::*;

/// Milliseconds; far longer than anything takes here.
const TIMEOUT: i32 = 30_000;
/// The library looks by itself once a second. Whoever sleeps almost as long was not woken.
const LOST: Duration = Duration::from_millis(950);

const SLEEPING: fn() -> QpOptions = || QpOptions { channel: true, ..QpOptions::default() };

fn rounds() -> u64 {
    std::env::var("EFA_ROUNDS").map_or(2_000, |rounds| rounds.parse().unwrap())
}

/// `a` sends to `b`, which has `count` receives posted.
struct Exchange {
    a: Endpoint,
    b: Endpoint,
    buffer: Memory,
    into: *mut ibv_mr,
    handle: *mut ibv_ah,
}

impl Exchange {
    fn new() -> Self {
        let (a, b) = pair(SLEEPING());
        let buffer = Memory::of(&[0; 16]);
        let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
        let handle = a.handle(b.gid());
        Self { a, b, buffer, into, handle }
    }

    fn send(&self, wr_id: u64) {
        assert_eq!(self.b.post_receive(wr_id, sge(self.into, 0, 16)), 0);
        let to = (self.handle, self.b.number(), self.b.qkey);
        assert_eq!(self.a.post_send(wr_id, to, &[inline(b"event")], IBV_SEND_INLINE), 0);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !thread::panicking() {
            destroy(self.handle);
            deregister(self.into);
        }
    }
}

#[test]
fn each_request_gives_one_event_for_the_next_completion() {
    let exchange = Exchange::new();
    let (a, b) = (&exchange.a, &exchange.b);
    b.set_nonblocking();
    assert!(!b.take_event(), "EAGAIN");
    // Not requested: the completion comes without an event.
    exchange.send(1);
    assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
    assert!(!b.has_event(0));
    // Requested: nobody polls, and there is one event for two completions.
    assert_eq!(b.request_event(0), 0);
    assert!(!b.has_event(20), "nothing has come yet");
    exchange.send(2);
    assert!(b.has_event(TIMEOUT));
    exchange.send(3);
    assert!(b.take_event());
    assert!(!b.has_event(0) && !b.take_event());
    assert_eq!([b.wait().wr_id, b.wait().wr_id], [2, 3]);
    assert_eq!(&exchange.buffer.bytes()[..5], b"event");
    // Also for sends, with both sides asleep.
    a.wait();
    a.wait();
    assert_eq!((a.request_event(0), b.request_event(0)), (0, 0));
    exchange.send(4);
    assert!(a.has_event(TIMEOUT) && b.has_event(TIMEOUT));
    // Twice requested, and nothing polled since: a second event at once.
    assert_eq!(b.request_event(0), 0);
    assert!(b.take_event() && b.take_event() && !b.take_event());
    assert_eq!((b.wait().wr_id, a.wait().status), (4, IBV_WC_SUCCESS));
    assert!(a.take_event());
}

/// What has arrived before the request, and was not polled, is announced at once.
#[test]
fn request_after_the_completion_gives_an_event_at_once() {
    let exchange = Exchange::new();
    let (a, b) = (&exchange.a, &exchange.b);
    exchange.send(1);
    // The progress thread has taken the message when this completes.
    a.wait();
    assert_eq!(b.request_event(0), 0);
    assert!(b.has_event(TIMEOUT));
    assert!(b.take_event());
    assert_eq!(b.wait().wr_id, 1);
}

/// It completes in the call, so nothing of the link wakes the library.
#[test]
fn send_that_fails_at_once_after_the_request_gives_an_event() {
    let (a, _) = pair(SLEEPING());
    let handle = a.handle(a.gid());
    assert_eq!(a.request_event(0), 0);
    assert!(!a.has_event(50), "asleep");
    let begin = Instant::now();
    assert_eq!(a.post_send(1, (handle, unused_qpn(), 1), &[inline(b"x")], IBV_SEND_INLINE), 0);
    assert!(a.has_event(TIMEOUT) && a.take_event());
    assert_ne!(a.wait().status, IBV_WC_SUCCESS);
    assert!(begin.elapsed() < LOST, "{:?}", begin.elapsed());
    destroy(handle);
}

/// What the peer sends before wakes the link of a queue pair that can't receive yet.
#[test]
fn queue_pair_that_becomes_ready_after_the_request_gives_an_event() {
    let (a, b) = (pair(SLEEPING()).0, Endpoint::in_reset(SLEEPING()));
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    assert_eq!(b.request_event(0), 0);
    let mut attributes: ibv_qp_attr = zeroed();
    (attributes.qp_state, attributes.port_num, attributes.qkey) = (IBV_QPS_INIT, 1, b.qkey);
    let flags = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(b.modify(&mut attributes, flags), 0);
    assert_eq!(b.request_event(0), 0);
    assert_eq!(b.post_receive(1, sge(into, 0, 16)), 0);
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(1, to, &[inline(b"early")], IBV_SEND_INLINE), 0);
    assert!(!b.has_event(50), "not ready");
    attributes.qp_state = IBV_QPS_RTR;
    let begin = Instant::now();
    assert_eq!(b.modify(&mut attributes, IBV_QP_STATE), 0);
    assert!(b.has_event(TIMEOUT) && b.take_event());
    assert!(begin.elapsed() < LOST / 2, "{:?}", begin.elapsed());
    assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
    destroy(handle);
    deregister(into);
}

#[test]
fn descriptor_of_a_channel_works_in_poll_epoll_and_select() {
    let exchange = Exchange::new();
    let (a, b) = (&exchange.a, &exchange.b);
    let fd = b.descriptor();
    // SAFETY: all structures are valid, and the descriptors are open.
    let ready = |milliseconds| unsafe {
        let poller = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        assert_eq!(libc::epoll_ctl(poller, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        let by_epoll = libc::epoll_wait(poller, &raw mut event, 1, milliseconds);
        libc::close(poller);
        let mut set: libc::fd_set = zeroed();
        libc::FD_SET(fd, &raw mut set);
        let mut timeout = libc::timeval { tv_sec: 0, tv_usec: i64::from(milliseconds) * 1000 };
        let by_select =
            libc::select(fd + 1, &raw mut set, null_mut(), null_mut(), &raw mut timeout);
        assert!(b.has_event(0) == (by_epoll == 1) && by_epoll == by_select);
        by_epoll == 1
    };
    assert_eq!(b.request_event(0), 0);
    assert!(!ready(10));
    exchange.send(1);
    assert!(ready(TIMEOUT));
    assert!(b.take_event());
    assert!(!ready(10));
    assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
}

#[test]
fn destroying_a_queue_waits_for_unacknowledged_events_and_drops_those_not_taken() {
    let exchange = Exchange::new();
    let (a, b) = (&exchange.a, &exchange.b);
    let v = verbs();
    // SAFETY: all arguments are valid; the queue is destroyed once, below.
    let (cq, other) = unsafe {
        let context = 0x1234 as *mut _;
        let cq = (v.ibv_create_cq)(b.context, 16, context, b.channel, 1);
        assert!(!cq.is_null(), "errno {}", errno());
        assert_eq!((*cq).channel, b.channel);
        assert_eq!((v.ibv_destroy_comp_channel)(b.channel), libc::EBUSY);
        (cq, create_with(b.context, b.pd, [b.cq, cq.cast()], QpOptions::default()))
    };
    assert!(!other.is_null(), "errno {}", errno());
    let request = || {
        // SAFETY: called as C does, through the context.
        unsafe { assert_eq!((*b.context).ops.req_notify_cq.unwrap()(cq, 0), 0) };
    };
    // It flushes two receives: one event that is taken, one that stays on the channel.
    let modify = |state, flags| {
        let mut attributes: ibv_qp_attr = zeroed();
        (attributes.qp_state, attributes.port_num) = (state, 1);
        // SAFETY: both are valid.
        unsafe { assert_eq!((v.ibv_modify_qp)(other, &raw mut attributes, flags), 0) };
    };
    modify(IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    modify(IBV_QPS_RTR, IBV_QP_STATE);
    request();
    let mut entry = sge(exchange.into, 0, 16);
    let mut request_of_receive =
        ibv_recv_wr { wr_id: 7, next: null_mut(), sg_list: &raw mut entry, num_sge: 1 };
    let mut bad = null_mut();
    // SAFETY: called as C does, through the context; the request is valid.
    unsafe {
        let post = (*b.context).ops.post_recv.unwrap();
        assert_eq!(post(other, &raw mut request_of_receive, &raw mut bad), 0);
    }
    modify(IBV_QPS_ERR, IBV_QP_STATE);
    request();
    let (mut seen, mut context) = (null_mut(), null_mut());
    // SAFETY: both may be written, and the queue pair is not used afterwards.
    unsafe {
        assert_eq!((v.ibv_get_cq_event)(b.channel, &raw mut seen, &raw mut context), 0);
        assert_eq!((v.ibv_destroy_qp)(other), 0);
    }
    assert_eq!((seen, context as usize), (cq, 0x1234));
    assert!(b.has_event(0), "the second event");
    let cq_address = cq.expose_provenance();
    let (ended, end) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let cq = std::ptr::with_exposed_provenance_mut(cq_address);
            // SAFETY: the queue is not used afterwards.
            ended.send(unsafe { (verbs().ibv_destroy_cq)(cq) }).unwrap();
        });
        let waits = end.recv_timeout(Duration::from_millis(200));
        assert_eq!(waits, Err(mpsc::RecvTimeoutError::Timeout), "it waits");
        assert!(!b.has_event(0), "events of the queue are gone");
        // SAFETY: the queue exists until the event is acknowledged.
        unsafe { (v.ibv_ack_cq_events)(cq, 1) };
        assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok(0));
    });
    // The other queue of the channel goes on.
    assert_eq!(b.request_event(0), 0);
    exchange.send(1);
    assert!(b.take_event());
    assert_eq!((b.wait().wr_id, a.wait().status), (1, IBV_WC_SUCCESS));
}

#[test]
fn wrong_channels_vectors_and_solicited_requests_are_refused() {
    let (a, b) = pair(SLEEPING());
    let (v, polled) = (verbs(), Endpoint::new(QpOptions::default()));
    // What libefa refuses too, as EFA interfaces don't tell solicited messages from others.
    assert_eq!(a.request_event(1), libc::EOPNOTSUPP);
    assert_eq!(polled.request_event(0), libc::EINVAL, "without a channel");
    // SAFETY: the library looks up handles; all structures are valid.
    unsafe {
        assert!((*a.context).num_comp_vectors > 1, "libfabric takes one for no notification");
        let request = (*a.context).ops.req_notify_cq.unwrap();
        assert_eq!(request(null_mut(), 0), libc::EINVAL);
        let wrong: *mut ibv_comp_channel = a.cq.cast();
        let (mut cq, mut context) = (null_mut(), null_mut());
        for wrong in [null_mut(), wrong, 0x10 as *mut _] {
            assert_eq!((v.ibv_get_cq_event)(wrong, &raw mut cq, &raw mut context), -1);
            assert_eq!(errno(), libc::EINVAL);
            assert_eq!((v.ibv_destroy_comp_channel)(wrong), libc::EINVAL);
            (v.ibv_ack_cq_events)(wrong.cast(), 1);
        }
        assert_eq!((v.ibv_get_cq_event)(a.channel, null_mut(), &raw mut context), -1);
        assert_eq!((v.ibv_get_cq_event)(a.channel, &raw mut cq, null_mut()), -1);
        assert!((v.ibv_create_comp_channel)(null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let create = |channel, vector| (v.ibv_create_cq)(a.context, 8, null_mut(), channel, vector);
        for (channel, vector) in [(wrong, 0), (b.channel, 0), (a.channel, 2), (a.channel, -1)] {
            assert!(create(channel, vector).is_null());
            assert_eq!(errno(), libc::EINVAL);
        }
        assert_eq!((v.ibv_destroy_comp_channel)(a.channel), libc::EBUSY);
    }
}

/// Two sides that sleep before each completion, of sends and receives.
#[test]
fn two_sleepers_are_always_woken() {
    let (a, b) = pair(SLEEPING());
    thread::scope(|scope| {
        scope.spawn(|| echo(&b, &a));
        let side = Side::new(&a, &b);
        for round in 1..=rounds() {
            let begin = Instant::now();
            side.send(round);
            let mut ids = [a.sleep_for_completion(), a.sleep_for_completion()].map(|c| c.wr_id);
            ids.sort_unstable();
            assert_eq!((ids, side.received()), ([RECEIVE, SEND], round));
            side.post();
            assert!(begin.elapsed() < LOST, "round {round}: {:?}", begin.elapsed());
        }
    });
}

/// A queue pair whose sends complete on one channel and receives on another, with a thread asleep on each, and
/// a peer that sleeps.
#[test]
fn sleepers_on_both_channels_of_a_queue_pair_and_on_its_peer_are_always_woken() {
    let (a, b) = pair(SLEEPING());
    let v = verbs();
    // SAFETY: the argument is valid.
    let channel = unsafe { (v.ibv_create_comp_channel)(a.context) };
    let cq = create_queue(a.context, channel, 1, None);
    let qp = create_with(a.context, a.pd, [a.cq, cq], QpOptions::default());
    assert!(!qp.is_null(), "errno {}", errno());
    let &Endpoint { context, pd, qkey, .. } = &a;
    let sends = Endpoint { context, pd, channel: a.channel, cq: a.cq, qp, qkey };
    let receives = Endpoint { context, pd, channel, cq, qp, qkey };
    let [sends, receives] = [sends, receives].map(ManuallyDrop::new);
    assert_eq!(connect(&sends, 7), 0);
    let side = Side::new(&receives, &b);
    let (heard, hears) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| echo(&b, &receives));
        scope.spawn(|| {
            for round in 1..=rounds() {
                assert_eq!(receives.sleep_for_completion().wr_id, RECEIVE);
                assert_eq!(side.received(), round);
                side.post();
                heard.send(()).unwrap();
            }
        });
        for round in 1..=rounds() {
            let begin = Instant::now();
            side.send(round);
            assert_eq!(sends.sleep_for_completion().wr_id, SEND);
            hears.recv().unwrap();
            assert!(begin.elapsed() < LOST, "round {round}: {:?}", begin.elapsed());
        }
    });
    drop(side);
    // SAFETY: the objects are not used afterwards.
    unsafe {
        assert_eq!((v.ibv_destroy_qp)(qp), 0);
        assert_eq!((v.ibv_destroy_cq)(cq.cast()), 0);
        assert_eq!((v.ibv_destroy_comp_channel)(channel), 0);
    }
}

const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// What one side of an exchange of numbers needs.
struct Side<'a> {
    end: &'a Endpoint,
    buffer: Memory,
    into: *mut ibv_mr,
    to: (*mut ibv_ah, u32, u32),
}

// SAFETY: several threads may call the library's functions with the same objects.
unsafe impl Sync for Side<'_> {}

impl<'a> Side<'a> {
    fn new(end: &'a Endpoint, peer: &Endpoint) -> Self {
        let buffer = Memory::of(&[0; 8]);
        let into = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
        let side =
            Self { end, buffer, into, to: (end.handle(peer.gid()), peer.number(), peer.qkey) };
        side.post();
        side
    }

    fn post(&self) {
        assert_eq!(self.end.post_receive(RECEIVE, sge(self.into, 0, 8)), 0);
    }

    fn send(&self, number: u64) {
        let bytes = number.to_le_bytes();
        assert_eq!(self.end.post_send(SEND, self.to, &[inline(&bytes)], IBV_SEND_INLINE), 0);
    }

    fn received(&self) -> u64 {
        u64::from_le_bytes(self.buffer.bytes().try_into().unwrap())
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            destroy(self.to.0);
            deregister(self.into);
        }
    }
}

/// Returns each number, asleep meanwhile.
fn echo(end: &Endpoint, peer: &Endpoint) {
    let side = Side::new(end, peer);
    for round in 1..=rounds() {
        let seen = loop {
            let seen = end.sleep_for_completion();
            assert_eq!(seen.status, IBV_WC_SUCCESS);
            if seen.wr_id == RECEIVE {
                break side.received();
            }
        };
        assert_eq!(seen, round);
        side.post();
        side.send(round);
    }
    // Until the last one is there, as the sender sleeps.
    while end.poll().is_none() {
        thread::yield_now();
    }
}
