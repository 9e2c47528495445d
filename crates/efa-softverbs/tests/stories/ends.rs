//! How work ends: receivers that are not ready, handles and queue pairs that go too early.

use std::time::{Duration, Instant};

use super::*;

/// Pause between two tries at a receiver that is not ready, as `link.rs` sets it.
const RNR_DELAY: Duration = Duration::from_millis(200);
/// `rnr_retry` that means for ever, as libfabric's provider can be told to.
const FOR_EVER: u8 = 7;

/// Moves a queue pair that was just made to where it can send.
pub(super) fn connect(end: &End, rnr_retry: u8) -> i32 {
    let mut attributes: ibv_qp_attr = zeroed();
    (attributes.port_num, attributes.qkey) = (1, end.qkey);
    let flags = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    for (state, more) in [(IBV_QPS_INIT, flags), (IBV_QPS_RTR, 0)] {
        attributes.qp_state = state;
        assert_eq!(end.modify(&mut attributes, IBV_QP_STATE | more), 0);
    }
    (attributes.qp_state, attributes.rnr_retry) = (IBV_QPS_RTS, rnr_retry);
    end.modify(&mut attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY)
}

/// A program that starts is waited for, however it goes: what told the sender to come back later
/// hung `fi_pingpong` on busy machines. After its first buffer it has no more excuse.
#[test]
fn a_receiver_that_has_not_begun_is_waited_for() {
    let (b, _) = pair(Wish::default());
    let a = End::new(Wish { rnr_retry: 0, ..Wish::default() });
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(a.post_send(1, to, &[inline(b"early")], IBV_SEND_INLINE), 0);
    for _ in 0..1000 {
        assert_eq!((a.poll(), b.poll()), (None, None));
    }
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(2, part(into, 0, 16)), 0);
    assert_eq!((b.wait().wr_id, a.wait().status), (2, IBV_WC_SUCCESS));
    assert_eq!(a.post_send(3, to, &[inline(b"more")], IBV_SEND_INLINE), 0);
    assert_eq!(a.wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
    destroy(handle);
    deregister(into);
}

/// `rnr_retry` says how long a send waits for a receiver without buffers: so many pauses, and 7 for
/// ever. The provider sets it in the step to RTS; 3 unless it is told otherwise.
#[test]
fn a_receiver_that_is_not_ready_gets_the_time_that_was_set() {
    let (b, _) = pair(Wish::default());
    use_up_a_buffer(&b);
    let senders: Vec<End> = (0..=FOR_EVER)
        .map(|rnr_retry| {
            let end = End::reset(Wish::default());
            assert_eq!(connect(&end, rnr_retry), 0);
            let (mut now, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
            // SAFETY: all arguments are valid.
            let asked = unsafe {
                (verbs().ibv_query_qp)(end.qp, &raw mut now, IBV_QP_RNR_RETRY, &raw mut made)
            };
            assert_eq!((asked, now.rnr_retry, now.qp_state), (0, rnr_retry, IBV_QPS_RTS));
            end
        })
        .collect();
    let start = Instant::now();
    let handles: Vec<_> = senders.iter().map(|end| end.handle(b.gid())).collect();
    for (sender, &handle) in senders.iter().zip(&handles) {
        let to = (handle, b.number(), b.qkey);
        assert_eq!(sender.post_send(1, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let mut ended = Vec::new();
    while ended.len() < usize::from(FOR_EVER) {
        assert_eq!(b.poll(), None);
        for (rnr_retry, sender) in (0..).zip(&senders) {
            let Some(seen) = sender.poll() else { continue };
            assert_eq!((seen.status, seen.vendor), (IBV_WC_RNR_RETRY_EXC_ERR, 10));
            assert!(start.elapsed() >= RNR_DELAY * rnr_retry, "{rnr_retry} is too early");
            ended.push(rnr_retry);
        }
    }
    // Who is looked at late is seen to end late, so the order tells nothing.
    ended.sort_unstable();
    assert_eq!(ended, (0..u32::from(FOR_EVER)).collect::<Vec<_>>());
    // The last one waits still, and arrives.
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(2, part(into, 0, 16)), 0);
    assert_eq!(b.wait().source, senders[7].number());
    assert_eq!(senders[7].wait().status, IBV_WC_SUCCESS);
    handles.into_iter().for_each(destroy);
    deregister(into);
}

#[test]
fn retries_that_there_are_not_are_refused() {
    let (_, ud) = pair(Wish { ud: true, ..Wish::default() });
    let end = End::reset(Wish::default());
    assert_eq!(connect(&end, FOR_EVER + 1), libc::EINVAL);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.rnr_retry = 1;
    assert_eq!(ud.modify(&mut attributes, IBV_QP_RNR_RETRY), libc::EINVAL, "not of datagrams");
}

#[test]
fn sends_and_reads_end_though_their_address_handle_is_destroyed() {
    const COUNT: u64 = 32;
    let (a, b) = pair(Wish::default());
    // What is read comes before what is received into.
    let (buffer, ours) = (Memory::of(&[7; 64 + COUNT as usize]), Memory::of(&[0; 64]));
    let (into, local) = (b.register(&buffer, ALL), a.register(&ours, IBV_ACCESS_LOCAL_WRITE));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 0..COUNT {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    let remote = (buffer.address() as u64, rkey(into));
    assert_eq!(a.post_remote(COUNT, to, false, remote, &[part(local, 0, 64)]), 0);
    // They wait for buffers at this point.
    destroy(handle);
    for wr_id in 0..COUNT {
        assert_eq!(b.post_receive(wr_id, part(into, 64 + wr_id as usize, 1)), 0);
    }
    let ended = (0..=COUNT).map(|_| a.wait());
    let mut ended: Vec<_> = ended.map(|seen| (seen.wr_id, seen.status)).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..=COUNT).map(|wr_id| (wr_id, IBV_WC_SUCCESS)).collect::<Vec<_>>());
    assert_eq!(ours.bytes(), [7; 64]);
    for wr_id in 0..COUNT {
        assert_eq!(b.wait().wr_id, wr_id);
    }
    [into, local].into_iter().for_each(deregister);
}

/// Its work ends without completions, as the program has said that it knows it no more; that of
/// others on the same completion queue is not touched, and peers are as well off as before.
#[test]
fn a_queue_pair_is_destroyed_in_the_midst_of_its_work() {
    let (a, b) = pair(Wish::default());
    let buffer = Memory::of(&[0; 64]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    // Another queue pair of the same device on the same completion queue.
    let other = a.another(Wish::default());
    assert_eq!(connect(&other, FOR_EVER), 0);
    for wr_id in 0..8 {
        assert_eq!(other.post_send(wr_id, to, &[inline(b"lost")], IBV_SEND_INLINE), 0);
    }
    assert_eq!(a.post_send(8, to, &[inline(b"kept")], IBV_SEND_INLINE), 0);
    // SAFETY: the queue pair is alive and not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    // What it has sent may still arrive; then comes what has waited behind.
    let mut wr_id = 0;
    loop {
        assert_eq!(b.post_receive(wr_id, part(into, 0, 64)), 0);
        wr_id += 1;
        let seen = b.wait();
        if seen.source == a.number() {
            break;
        }
        assert_eq!(&buffer.bytes()[..4], b"lost");
    }
    assert_eq!(&buffer.bytes()[..4], b"kept");
    let seen = a.wait();
    assert_eq!((seen.wr_id, seen.qpn, seen.status), (8, a.number(), IBV_WC_SUCCESS));
    assert_eq!(a.poll(), None);
    destroy(handle);
    deregister(into);
}

/// A program may deregister memory that it has posted, and use it for something else.
#[test]
fn a_buffer_that_was_deregistered_is_not_written() {
    let (a, b) = pair(Wish::default());
    let (buffer, other) = (Memory::of(&[9; 16]), Memory::of(&[0; 16]));
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let still = b.register(&other, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(b.post_receive(1, part(into, 0, 16)), 0);
    assert_eq!(b.post_receive(2, part(still, 0, 16)), 0);
    deregister(into);
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    for wr_id in 3..5 {
        assert_eq!(a.post_send(wr_id, to, &[inline(b"data")], IBV_SEND_INLINE), 0);
    }
    let seen = b.wait();
    assert_eq!((seen.wr_id, seen.opcode), (1, IBV_WC_RECV));
    assert_eq!((seen.status, seen.vendor), (IBV_WC_LOC_PROT_ERR, 5));
    assert_eq!(buffer.bytes(), [9; 16]);
    assert_eq!((b.wait().wr_id, &other.bytes()[..4]), (2, &b"data"[..]));
    for _ in 3..5 {
        a.wait();
    }
    destroy(handle);
    deregister(still);
}

/// Programs find a queue pair by its number until they destroy it, also one that has failed.
#[test]
fn a_queue_pair_that_has_failed_shares_neither_its_number_nor_completions() {
    let (_, b) = pair(Wish::default());
    let failed = b.another(Wish::default());
    assert_eq!(connect(&failed, FOR_EVER), 0);
    let mut attributes: ibv_qp_attr = zeroed();
    attributes.qp_state = IBV_QPS_ERR;
    assert_eq!(failed.modify(&mut attributes, IBV_QP_STATE), 0);
    // The numbers that are free are taken in turn, or the lowest first.
    let others: Vec<_> = (0..64).map(|_| b.another(Wish::default())).collect();
    assert!(others.iter().all(|other| other.number() != failed.number()));
    let handle = b.handle(b.gid());
    for (wr_id, other) in (0..).zip(&others) {
        assert_eq!(connect(other, FOR_EVER), 0);
        // Nobody is there.
        let to = (handle, nobody(), b.qkey);
        assert_eq!(other.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
    }
    // What has ended waits in the completion queue.
    let mut ended = vec![b.wait().wr_id];
    // SAFETY: the queue pair is alive and not used afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(failed.qp) }, 0);
    while ended.len() < others.len() {
        ended.push(b.wait().wr_id);
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..64).collect::<Vec<_>>());
    for other in others {
        // SAFETY: as above.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(other.qp) }, 0);
    }
    destroy(handle);
}

fn number_of(handle: *mut ibv_ah) -> u16 {
    let mut answer = efadv_ah_attr::default();
    // SAFETY: all arguments are valid.
    assert_eq!(unsafe { (verbs().efadv_query_ah)(handle, &raw mut answer, 16) }, 0);
    answer.ahn
}

/// The provider looks up who sent something by this number.
#[test]
fn the_number_of_an_address_handle_stays_that_of_its_gid() {
    let (a, b) = pair(Wish::default());
    let buffer = Memory::of(&[0; 16]);
    let into = b.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let (to, from) = (a.handle(b.gid()), b.handle(a.gid()));
    let number = number_of(from);
    let told = |wr_id| {
        assert_eq!(b.post_receive(wr_id, part(into, 0, 16)), 0);
        let to = (to, b.number(), b.qkey);
        assert_eq!(a.post_send(wr_id, to, &[inline(b"x")], IBV_SEND_INLINE), 0);
        assert_eq!(a.wait().status, IBV_WC_SUCCESS);
        b.wait().handle
    };
    assert_eq!(told(1), number.into());
    // Others come and go, of the same GID and of other ones, in other domains too.
    let others: Vec<_> = (1..=100).map(|n| b.handle([n; 16])).collect();
    let mut numbers: Vec<_> = others.iter().map(|&handle| number_of(handle)).collect();
    numbers.push(number);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 101, "one for each GID");
    let (again, elsewhere) = (b.handle(a.gid()), a.handle(a.gid()));
    assert_eq!([again, elsewhere].map(number_of), [number; 2]);
    others.into_iter().for_each(destroy);
    assert_eq!(told(2), number.into());
    // As long as one of them is there, whichever it is.
    [from, elsewhere].into_iter().for_each(destroy);
    assert_eq!(told(3), number.into());
    assert_eq!(number_of(again), number);
    [again, to].into_iter().for_each(destroy);
    deregister(into);
}
