//! Streams and futures in programs of tokio, on each link and on runtimes of one thread and of several.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use efa::sim::FaultOptions;
use efa::with_tokio::{AsyncEndpoint, AsyncError, EnableAsyncError, Ended, StreamError};
use efa::{
    Access, AddressVector, AtomicOp, CompletionQueue, CompletionQueueOptions, ControlEvent,
    Direction, Domain, Endpoint, EndpointOptions, EventQueueOptions, Fabric, FiAddr, Level,
    LocalOptions, ManualClock, Message, MsgEndpointOptions, Operation, OperationError,
    PassiveEndpointOptions, Receive, Rma, SendBudgetOptions, SharedReceiveQueueOptions, ShmOptions,
    StartError, TcpOptions, Wait, WaitError,
};
use spent::Spent;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

mod claims;
mod close;
mod connections;
mod events;
mod fairness;
mod kept;
mod multi_receive;
mod names;
mod owners;
#[path = "../spent/mod.rs"]
mod spent;
mod types;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than one packet: the receiver has to answer before all of it moves.
const LONG: usize = 1 << 20;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn several_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// Two fabrics of each network, as two processes have.
fn networks(directory: &TempDir) -> [[Fabric; 2]; 3] {
    let local = Fabric::local(LocalOptions::default());
    let shm = || shm_with(directory, FaultOptions::default());
    let tcp = || Fabric::tcp(TcpOptions::new([127, 0, 0, 1]));
    [[shm(), shm()], [tcp(), tcp()], [local.clone(), local]]
}

fn shm_with(directory: &TempDir, faults: FaultOptions) -> Fabric {
    let directory = Some(directory.path().join("hosts"));
    Fabric::shm(ShmOptions::new("test").with(|options| {
        options.directory = directory;
        options.faults = faults;
    }))
}

/// An endpoint, and what it needs.
struct End {
    domain: Domain,
    addresses: AddressVector,
    endpoint: AsyncEndpoint,
}

impl End {
    fn on(fabric: &Fabric) -> Self {
        Self::with(fabric, EndpointOptions::default())
    }

    fn with(fabric: &Fabric, options: EndpointOptions) -> Self {
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let builder = domain.endpoint(options).bind_address_vector(&addresses);
        let endpoint = builder.enable_async().unwrap();
        Self { domain, addresses, endpoint }
    }

    fn insert(&self, other: &Self) -> FiAddr {
        self.addresses.insert(other.endpoint.address()).unwrap()
    }
}

fn pair(fabrics: &[Fabric; 2]) -> ([End; 2], FiAddr) {
    let ends = fabrics.each_ref().map(End::on);
    let to = ends[0].insert(&ends[1]);
    (ends, to)
}

/// Runs `test` in both kinds of runtime with two ends on each link, and the first's address of the second.
fn on_each_link<F: Future<Output = ()>>(test: impl Fn([End; 2], FiAddr) -> F) {
    let directory = TempDir::new().unwrap();
    for runtime in [one_thread(), several_threads()] {
        for fabrics in networks(&directory) {
            runtime.block_on(async {
                let (ends, to) = pair(&fabrics);
                timeout(TIMEOUT, test(ends, to)).await.expect("it ends in time");
            });
        }
    }
}

/// Polls a future once.
async fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    let mut future = Some(future);
    poll_fn(move |cx| Poll::Ready(future.take().unwrap().poll(cx))).await
}

/// A buffer that says whether it still exists.
struct Tracked(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

fn tracked(length: usize) -> (Bytes, Arc<AtomicUsize>) {
    let alive = Arc::new(AtomicUsize::new(1));
    (Bytes::from_owner(Tracked(pattern(length), Arc::clone(&alive))), alive)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 % 251) as u8).collect()
}

// ---- operations ---------------------------------------------------------------------------------

#[test]
fn each_operation_is_a_future_with_its_completion() {
    on_each_link(|[a, b], to| async move {
        let region = b
            .domain
            .register(vec![1; 64], Access { remote_read: true, remote_write: true })
            .unwrap();
        let remote = || Rma::at(to, region.remote());
        for length in [0, 8, 20_000, LONG] {
            let (sent, received) = tokio::join!(
                a.endpoint.send(Message::to(to).tagged(5).with_data(9), pattern(length)),
                b.endpoint.receive(Receive::tagged(5), vec![0; length]),
            );
            assert_eq!(sent.unwrap().length, length as u64);
            let received = received.unwrap();
            assert_eq!((received.tag, received.cq_data), (Some(5), Some(9)));
            assert_eq!(received.into_message(), pattern(length));
        }
        // The other side progresses by its own task.
        a.endpoint.write(remote().delivery_complete(), vec![7; 64]).await.unwrap();
        assert_eq!(a.endpoint.read(remote(), vec![0; 64]).await.unwrap().into_message(), [7; 64]);
        let add = || Operation::new(AtomicOp::Sum, &[1_u64; 8]);
        a.endpoint.atomic(remote().delivery_complete(), add()).await.unwrap();
        let before = a.endpoint.fetch_atomic(remote(), add(), vec![0; 64]).await.unwrap();
        assert_eq!(before.into_message().into_vec()[..2], [8, 7]);
        a.endpoint.write(remote().with_data(33), vec![8; 64]).await.unwrap();
        assert_eq!(b.endpoint.unasked().await.unwrap().cq_data, Some(33));
        a.endpoint.inject(Message::to(to), b"short").unwrap();
        let injected = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(injected.into_message(), *b"short");
        a.endpoint.close(TIMEOUT).await.unwrap();
        let refused = a.endpoint.send(Message::to(to), "late").await.unwrap_err();
        assert!(matches!(refused, AsyncError::Refused(r) if r.error == StartError::Closed));
    });
}

#[test]
fn hundreds_of_tasks_on_few_endpoints_each_get_their_own_answers() {
    const TASKS: u64 = 300;
    const ROUNDS: u64 = 20;
    on_each_link(|[a, b], to| async move {
        let back = b.insert(&a);
        let (a, b) = (a.endpoint.clone(), b.endpoint.clone());
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (a, b) = (a.clone(), b.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..ROUNDS {
                    let ping = (task * ROUNDS + round).to_le_bytes().to_vec();
                    a.send(Message::to(to).tagged(task), ping.clone()).await.unwrap();
                    let pong = a.receive(Receive::tagged(task), vec![0; 8]).await.unwrap();
                    assert_eq!(pong.into_message(), ping);
                }
            }));
            tasks.push(tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let ping = b.receive(Receive::tagged(task), vec![0; 8]).await.unwrap();
                    b.send(Message::to(back).tagged(task), ping.into_message()).await.unwrap();
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn operations_beyond_the_limit_wait_for_their_turn() {
    on_each_link(|[a, b], to| async move {
        let (count, mut tasks) = (20_000_u32, Vec::new());
        for number in 0..count {
            let b = b.endpoint.clone();
            let receive = Receive::tagged(number.into());
            tasks.push(tokio::spawn(async move { b.receive(receive, vec![0; 4]).await.unwrap() }));
        }
        for number in 0..count {
            let message = Message::to(to).tagged(number.into());
            a.endpoint.send(message, number.to_le_bytes().to_vec()).await.unwrap();
        }
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().into_message(), (number as u32).to_le_bytes());
        }
    });
}

/// Of an endpoint whose engine has room for one send.
fn one_send() -> EndpointOptions {
    let mut options = EndpointOptions::default();
    options.protocol.max_sends = 1;
    options
}

#[test]
fn send_that_finds_no_room_though_the_budget_has_a_share_starts_when_there_is_room() {
    let fabric = Fabric::local(LocalOptions::default());
    let domain = fabric.domain().unwrap();
    let (addresses, budget) =
        (domain.address_vector(), domain.send_budget(SendBudgetOptions::new().limit(4)));
    one_thread().block_on(async {
        let builder = domain.endpoint(one_send()).bind_address_vector(&addresses);
        let endpoint = builder.bind_send_budget(&budget).enable_async().unwrap();
        let to = addresses.insert(endpoint.address()).unwrap();
        let sends = async {
            tokio::join!(
                endpoint.send(Message::to(to), "first"),
                endpoint.send(Message::to(to), "second")
            )
        };
        let sent = timeout(TIMEOUT, sends).await.expect("both are sent");
        assert!(sent.0.is_ok() && sent.1.is_ok());
    });
}

#[test]
fn send_without_a_share_of_the_budget_starts_when_another_endpoint_returns_one() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let (addresses, budget) =
        (domain.address_vector(), domain.send_budget(SendBudgetOptions::new().limit(1)));
    let endpoint = || {
        let builder = domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
        builder.bind_send_budget(&budget).enable_async().unwrap()
    };
    one_thread().block_on(async {
        let [a, b, target] = [endpoint(), endpoint(), endpoint()];
        let to = addresses.insert(target.address()).unwrap();
        let mut first = pin!(a.send(Message::to(to), "first"));
        let mut second = pin!(b.send(Message::to(to), "second"));
        assert!(poll_once(first.as_mut()).await.is_pending());
        assert!(poll_once(second.as_mut()).await.is_pending());
        first.await.unwrap();
        timeout(TIMEOUT, second).await.expect("it gets the share").unwrap();
    });
}

#[test]
fn send_starts_after_injected_ones_that_had_completed_before_they_were_delivered() {
    let directory = TempDir::new().unwrap();
    for [fabric, other] in networks(&directory) {
        one_thread().block_on(async {
            let (a, b) = (End::with(&fabric, one_send()), End::on(&other));
            let to = a.insert(&b);
            for _ in 0..100 {
                let message = Message::to(to).level(Level::Inject);
                let sent = timeout(TIMEOUT, a.endpoint.send(message, "short")).await;
                sent.expect("it gets its turn").unwrap();
            }
        });
    }
}

// ---- dropped futures ----------------------------------------------------------------------------

#[test]
fn operation_dropped_before_its_first_poll_never_begins() {
    on_each_link(|[a, b], to| async move {
        let (buffer, alive) = tracked(8);
        drop(a.endpoint.send(Message::to(to), buffer));
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        drop(b.endpoint.receive(Receive::untagged(), vec![0; 8]));
        a.endpoint.send(Message::to(to), "second").await.unwrap();
        let received = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(received.into_message(), *b"second");
    });
}

#[test]
fn send_dropped_under_way_arrives_and_keeps_its_buffer_until_then() {
    on_each_link(|[a, b], to| async move {
        let (buffer, alive) = tracked(LONG);
        {
            let mut send = pin!(a.endpoint.send(Message::to(to), buffer));
            assert!(poll_once(send.as_mut()).await.is_pending());
        }
        // Nobody receives it yet, so most of it has not moved.
        sleep(Duration::from_millis(20)).await;
        assert_eq!(alive.load(Ordering::SeqCst), 1, "freed while in use");
        let received = b.endpoint.receive(Receive::untagged(), vec![0; LONG]).await.unwrap();
        assert_eq!(received.into_message(), pattern(LONG));
        while alive.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn receive_dropped_unmatched_takes_no_message() {
    on_each_link(|[a, b], to| async move {
        for _ in 0..100 {
            let mut receive = pin!(b.endpoint.receive(Receive::untagged(), vec![0; 8]));
            assert!(poll_once(receive.as_mut()).await.is_pending());
        }
        a.endpoint.send(Message::to(to), "for you").await.unwrap();
        let received = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(received.into_message(), *b"for you");
    });
}

/// Polls a receive of each of two lengths until its message has been matched, and drops it then.
#[test]
fn message_of_a_receive_dropped_after_its_match_goes_to_the_next_receive_that_matches() {
    on_each_link(|[a, b], to| async move {
        for length in [8, LONG] {
            let send = a.endpoint.clone();
            let message = Message::to(to).tagged(3);
            let sender = tokio::spawn(async move { send.send(message, pattern(length)).await });
            {
                let mut receive = pin!(b.endpoint.receive(Receive::tagged(3), vec![0; length]));
                assert!(poll_once(receive.as_mut()).await.is_pending());
                // The message arrives, or begins to, and the future isn't asked.
                sleep(Duration::from_millis(if length == 8 { 20 } else { 1 })).await;
            }
            let other = Receive::tagged(4);
            let mut other = pin!(b.endpoint.receive(other, vec![0; 8]));
            assert!(poll_once(other.as_mut()).await.is_pending());
            let again = b.endpoint.receive(Receive::masked(0, 3), vec![0; length]).await.unwrap();
            assert_eq!((again.tag, again.into_message()), (Some(3), pattern(length).into()));
            sender.await.unwrap().unwrap();
        }
    });
}

/// A receive for which the engine has no room isn't posted yet when the message is left over.
#[test]
fn receive_that_waits_for_room_gets_the_message_that_a_dropped_future_left() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let addresses = domain.address_vector();
    let mut options = EndpointOptions::default();
    options.protocol.max_receives = 1;
    one_thread().block_on(async {
        let builder = domain.endpoint(options).bind_address_vector(&addresses);
        let endpoint = builder.enable_async().unwrap();
        let to = addresses.insert(endpoint.address()).unwrap();
        let mut first = Box::pin(endpoint.receive(Receive::untagged(), vec![0; 8]));
        assert!(poll_once(first.as_mut()).await.is_pending());
        // The room of the first is the next one's, so nothing but the message that is left can wake the last.
        let (next, last) = (endpoint.clone(), endpoint.clone());
        tokio::spawn(async move { next.receive(Receive::tagged(1), vec![0; 8]).await });
        sleep(Duration::from_millis(1)).await;
        let last = tokio::spawn(async move {
            last.receive(Receive::untagged(), vec![0; 8]).await.unwrap().into_message()
        });
        sleep(Duration::from_millis(1)).await;
        endpoint.send(Message::to(to), "message").await.unwrap();
        // The message is the first one's, and its future isn't asked.
        sleep(Duration::from_millis(20)).await;
        drop(first);
        let received = timeout(TIMEOUT, last).await.expect("it gets the message").unwrap();
        assert_eq!(received, *b"message");
    });
}

/// The next receive waits already when the message of the dropped one is complete.
#[test]
fn receive_that_waits_gets_the_message_of_one_dropped_amid_it() {
    on_each_link(|[a, b], to| async move {
        let received = AtomicUsize::new(0);
        let receive = async {
            let mut lengths = Vec::new();
            while lengths.len() < 40 {
                let step = Duration::from_micros(fastrand::u64(0..600));
                let receive = b.endpoint.receive(Receive::untagged(), vec![0; LONG]);
                // As in a `select!` with something else.
                if let Ok(done) = timeout(step, receive).await {
                    let message = done.unwrap().into_message();
                    assert_eq!(message, pattern(message.len()));
                    lengths.push(message.len());
                    received.fetch_add(1, Ordering::SeqCst);
                }
            }
            lengths
        };
        let send = async {
            for number in 0..40 {
                let length = [LONG, 8, 100_000][number % 3] - number / 3 % 8;
                a.endpoint.send(Message::to(to), pattern(length)).await.unwrap();
            }
        };
        let (mut lengths, ()) = tokio::join!(receive, send);
        let mut all: Vec<_> = (0..40).map(|n| [LONG, 8, 100_000][n % 3] - n / 3 % 8).collect();
        lengths.sort_unstable();
        all.sort_unstable();
        assert_eq!(lengths, all);
    });
}

#[test]
fn truncated_message_of_a_dropped_receive_is_an_error_of_the_next() {
    on_each_link(|[a, b], to| async move {
        {
            let mut receive = pin!(b.endpoint.receive(Receive::untagged(), vec![0; 4]));
            assert!(poll_once(receive.as_mut()).await.is_pending());
            a.endpoint.send(Message::to(to), "too long").await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        let failed = b.endpoint.receive(Receive::untagged(), vec![0; 64]).await.unwrap_err();
        let AsyncError::Failed(failed) = failed else { panic!("{failed}") };
        assert!(matches!(failed.error, OperationError::Truncated { .. }), "{failed}");
    });
}

#[test]
fn endpoint_dropped_with_futures_that_are_gone_frees_their_buffers() {
    on_each_link(|[a, b], to| async move {
        let (buffer, alive) = tracked(LONG);
        {
            let mut send = pin!(a.endpoint.send(Message::to(to), buffer));
            assert!(poll_once(send.as_mut()).await.is_pending());
        }
        drop(a);
        while alive.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        drop(b);
    });
}

// ---- errors and ends ----------------------------------------------------------------------------

#[test]
fn refused_operation_returns_its_buffer_and_failed_one_its_reason() {
    on_each_link(|[a, b], to| async move {
        let refused = a.endpoint.send(Message::to(FiAddr(77)), "nobody").await.unwrap_err();
        let AsyncError::Refused(refused) = refused else { panic!("{refused}") };
        assert_eq!(refused.error, StartError::UnknownAddress(FiAddr(77)));
        assert_eq!(refused.buffer, *b"nobody");
        let (sent, received) = tokio::join!(
            a.endpoint.send(Message::to(to), "too long"),
            b.endpoint.receive(Receive::untagged(), vec![0; 4]),
        );
        sent.unwrap();
        assert!(matches!(received, Err(AsyncError::Failed(_))), "{received:?}");
        // Closing ends what is under way.
        let receive = b.endpoint.receive(Receive::untagged(), vec![0; 4]);
        let close = async {
            sleep(Duration::from_millis(5)).await;
            b.endpoint.close(TIMEOUT).await
        };
        let (ended, closed) = tokio::join!(receive, close);
        closed.unwrap();
        let Err(AsyncError::Failed(ended)) = ended else { panic!("{ended:?}") };
        assert_eq!(ended.error, OperationError::Closed);
    });
}

/// The device's report and its timer wake the task.
#[test]
fn send_to_a_peer_that_is_gone_fails() {
    on_each_link(|[a, b], to| async move {
        // Without its HANDSHAKE, nothing would be sent that can fail.
        let (sent, received) = tokio::join!(
            a.endpoint.send(Message::to(to).delivery_complete(), "one"),
            b.endpoint.receive(Receive::untagged(), vec![0; 8]),
        );
        assert!(sent.is_ok() && received.is_ok(), "{sent:?}, {received:?}");
        drop(b);
        loop {
            match a.endpoint.send(Message::to(to).delivery_complete(), "two").await {
                Ok(_) => {}
                Err(AsyncError::Failed(failed)) => {
                    assert!(failed.error != OperationError::Cancelled, "{failed}");
                    break;
                }
                // The one before has found out.
                Err(AsyncError::Refused(refused)) => {
                    assert_eq!(refused.error, StartError::PeerGone(to));
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
fn futures_end_when_the_runtime_of_their_endpoint_is_shut_down() {
    let directory = TempDir::new().unwrap();
    for (runtime, fabrics) in [one_thread as fn() -> _, several_threads]
        .into_iter()
        .flat_map(|runtime| networks(&directory).map(|fabrics| (runtime(), fabrics)))
    {
        let ([a, b], to) = runtime.block_on(async { pair(&fabrics) });
        let other = one_thread();
        let (begun, is_begun) = std::sync::mpsc::channel();
        let waiter = thread::spawn(move || {
            other.block_on(async {
                let mut receive = pin!(b.endpoint.receive(Receive::untagged(), vec![0; 8]));
                assert!(poll_once(receive.as_mut()).await.is_pending());
                begun.send(()).unwrap();
                let ended = timeout(TIMEOUT, receive).await.expect("in time").unwrap_err();
                assert!(matches!(ended, AsyncError::Ended(Ended::Runtime)), "{ended}");
                let later = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await;
                assert!(matches!(later, Err(AsyncError::Ended(_))), "{later:?}");
                assert!(b.endpoint.unasked().await.is_err());
            });
            // The peer of the send below lives on.
            b
        });
        is_begun.recv().unwrap();
        let (buffer, alive) = tracked(LONG);
        let link = fabrics[0].link();
        let message = Message::to(to).tagged(1);
        let mut send = Box::pin(a.endpoint.send(message, buffer));
        // Shut down amid a send, which nobody receives.
        let begun = runtime.block_on(poll_once(send.as_mut()));
        assert!(begun.is_pending(), "{link:?}: {begun:?}");
        drop(send);
        assert_eq!(alive.load(Ordering::SeqCst), 1, "{link:?}: freed while in use");
        runtime.shutdown_timeout(TIMEOUT);
        assert_eq!(alive.load(Ordering::SeqCst), 1, "{link:?}: freed by the end of the runtime");
        let _b = waiter.join().unwrap();
        drop(a);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn endpoint_and_streams_need_a_runtime_and_a_queue_that_can_be_waited_on() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let options = CompletionQueueOptions::default;
    let waitable = domain.waitable_completion_queue(options(), Wait::Fd).unwrap();
    assert!(matches!(waitable.stream(), Err(StreamError::NoRuntime)));
    let addresses = domain.address_vector();
    let builder = || domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
    let refused = builder().enable_async().unwrap_err();
    assert!(matches!(refused, EnableAsyncError::Stream(StreamError::NoRuntime)), "{refused}");
    let runtime = one_thread();
    let _in_runtime = runtime.enter();
    assert!(matches!(domain.completion_queue(options()).stream(), Err(StreamError::NotWaitable)));
    let twice = builder().bind_completion_queue(&waitable, Direction::Transmit).enable_async();
    let refused = twice.unwrap_err();
    assert!(matches!(refused, EnableAsyncError::CompletionQueue), "{refused}");
}

// ---- streams, timers and sleep ------------------------------------------------------------------

/// A queue with an endpoint of the first fabric, a peer of the second, and the peer's address of the endpoint.
fn with_queue(fabrics: &[Fabric; 2]) -> (CompletionQueue, Endpoint, End, FiAddr) {
    let domain = fabrics[0].domain().unwrap();
    let options = CompletionQueueOptions::default();
    let queue = domain.waitable_completion_queue(options, Wait::Fd).unwrap();
    let endpoint = domain
        .endpoint(EndpointOptions::default())
        .bind_completion_queue(&queue, Direction::Both)
        .bind_address_vector(&domain.address_vector())
        .enable()
        .unwrap();
    let peer = End::on(&fabrics[1]);
    let to = peer.addresses.insert(endpoint.address()).unwrap();
    (queue, endpoint, peer, to)
}

#[test]
fn stream_returns_completions_errors_and_signals_and_two_streams_share_a_queue() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        one_thread().block_on(async {
            let (queue, endpoint, peer, to) = with_queue(&fabrics);
            let mut streams = [queue.stream().unwrap(), queue.stream().unwrap()];
            let [one, two] = &mut streams;
            let idle = timeout(Duration::from_millis(20), one.next()).await;
            assert!(idle.is_err(), "{idle:?}");
            (0..10).for_each(|context| {
                endpoint.receive(Receive::untagged(), vec![0; 4], context).unwrap();
            });
            let mut received = 0;
            let both = async {
                while received < 10 {
                    let done =
                        tokio::select! { done = one.next() => done, done = two.next() => done };
                    done.unwrap();
                    received += 1;
                }
            };
            let send = async {
                for _ in 0..10 {
                    sleep(Duration::from_millis(1)).await;
                    peer.endpoint.send(Message::to(to), "text").await.unwrap();
                }
            };
            timeout(TIMEOUT, async { tokio::join!(both, send) }).await.unwrap();
            endpoint.receive(Receive::untagged(), vec![0; 2], 1).unwrap();
            // The reader of the queue acknowledges what it receives.
            let both =
                async { tokio::join!(peer.endpoint.send(Message::to(to), "text"), one.next()) };
            let (sent, failed) = timeout(TIMEOUT, both).await.unwrap();
            sent.unwrap();
            assert!(matches!(failed, Err(WaitError::Failed(_))), "{failed:?}");
            queue.signal();
            let signalled = timeout(TIMEOUT, one.next()).await.unwrap();
            assert!(matches!(signalled, Err(WaitError::Signalled)), "{signalled:?}");
        });
    }
}

/// What wakes one must not keep it from the other.
#[test]
fn two_tasks_that_take_one_completion_each_are_both_woken() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        several_threads().block_on(async {
            let (queue, endpoint, peer, to) = with_queue(&fabrics);
            for round in 0..200 {
                let takes_one = || {
                    endpoint.receive(Receive::untagged(), vec![0; 4], round).unwrap();
                    let mut stream = queue.stream().unwrap();
                    tokio::spawn(async move { stream.next().await.unwrap() })
                };
                let tasks = [takes_one(), takes_one()];
                let begin = Instant::now();
                for _ in 0..2 {
                    // The last acknowledgement may come with the messages of the next round.
                    let peer = peer.endpoint.clone();
                    tokio::spawn(async move { peer.send(Message::to(to), "text").await });
                }
                for task in tasks {
                    let done = timeout(TIMEOUT, task).await.expect("woken").unwrap();
                    assert_eq!(done.context, round);
                }
                let limit = if round == 0 { TIMEOUT } else { Duration::from_millis(900) };
                assert!(begin.elapsed() < limit, "{:?} in round {round}", begin.elapsed());
            }
        });
    }
}

#[test]
fn stream_of_events_brings_a_connection_up_and_down() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        several_threads().block_on(async {
            let side = |fabric: &Fabric| {
                let domain = fabric.domain().unwrap();
                let options = CompletionQueueOptions::default();
                let queue = domain.waitable_completion_queue(options, Wait::Fd).unwrap();
                (domain, queue, fabric.event_queue(EventQueueOptions::default()).unwrap())
            };
            let builder = |(domain, queue, events): &(Domain, CompletionQueue, efa::EventQueue)| {
                let builder = domain.msg_endpoint(MsgEndpointOptions::default());
                builder.bind_completion_queue(queue, Direction::Both).bind_event_queue(events)
            };
            let (caller, callee) = (side(&fabrics[0]), side(&fabrics[1]));
            let passive = fabrics[1].passive_endpoint(&callee.2, PassiveEndpointOptions::default());
            let listener = passive.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let at = listener.local_address();
            let answer = async {
                let mut events = callee.2.stream().unwrap();
                let event = events.next().await.unwrap();
                let ControlEvent::ConnectionRequest(request) = event else { panic!("{event:?}") };
                let endpoint = builder(&callee).accept(request, b"").unwrap();
                let event = events.next().await.unwrap();
                assert!(matches!(event, ControlEvent::Connected { .. }), "{event:?}");
                let event = events.next().await.unwrap();
                assert!(matches!(event, ControlEvent::Shutdown { .. }), "{event:?}");
                drop(endpoint);
            };
            let call = async {
                let mut events = caller.2.stream().unwrap();
                let endpoint = builder(&caller).connect(at, b"").unwrap();
                let event = events.next().await.unwrap();
                assert!(matches!(event, ControlEvent::Connected { .. }), "{event:?}");
                sleep(Duration::from_millis(20)).await;
                drop(endpoint);
            };
            timeout(TIMEOUT, async { tokio::join!(answer, call) }).await.unwrap();
        });
    }
}

/// A send that meets RNR is repeated after a time that only the engine knows.
#[test]
fn timer_of_the_engine_wakes_the_task() {
    let directory = TempDir::new().unwrap();
    let faults = FaultOptions::default().with(|faults| faults.receiver_not_ready = 0.5);
    let fabric = shm_with(&directory, faults);
    let options = || EndpointOptions::default().rnr_retry(0);
    one_thread().block_on(async {
        let [a, b] = [0, 1].map(|_| End::with(&fabric, options()));
        let to = a.insert(&b);
        for _ in 0..50 {
            // One side at a time is asleep but for its timer.
            let begin = Instant::now();
            let sent = a.endpoint.send(Message::to(to), "again and again");
            let both =
                async { tokio::join!(sent, b.endpoint.receive(Receive::untagged(), vec![0; 16])) };
            let (sent, received) = timeout(TIMEOUT, both).await.expect("in time");
            sent.unwrap();
            received.unwrap();
            assert!(begin.elapsed() < Duration::from_millis(900), "{:?}", begin.elapsed());
        }
    });
}

#[test]
fn manual_clock_is_advanced_by_tasks_that_would_sleep() {
    let clock = ManualClock::new();
    let delay = Duration::from_secs(500)..Duration::from_secs(1000);
    let options = LocalOptions::default().with(|options| options.delay = delay);
    let fabric = Fabric::local(options).with_clock(&clock);
    let begin = Instant::now();
    one_thread().block_on(async {
        let ([a, b], to) = pair(&[fabric.clone(), fabric]);
        let receive = b.endpoint.receive(Receive::untagged(), vec![0; 8]);
        let (sent, received) = tokio::join!(a.endpoint.send(Message::to(to), "text"), receive);
        sent.unwrap();
        assert_eq!(received.unwrap().into_message(), *b"text");
    });
    assert!(clock.now() - efa::Time::ZERO >= Duration::from_secs(500));
    assert!(begin.elapsed() < TIMEOUT);
}

#[test]
fn idle_tasks_take_no_processor_time() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        one_thread().block_on(async {
            let ([a, b], to) = pair(&fabrics);
            a.endpoint.send(Message::to(to), "first").await.unwrap();
            b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
            sleep(Duration::from_millis(50)).await;
            let before = Spent::by_this_thread();
            let receive = b.endpoint.receive(Receive::untagged(), vec![0; 8]);
            assert!(timeout(Duration::from_secs(1), receive).await.is_err());
            // Two endpoints look once a second whether their peers are alive.
            Spent::by_this_thread().check_idle(before, 12);
        });
    }
}

#[test]
fn endpoint_of_a_shared_receive_queue_has_no_futures() {
    let runtime = one_thread();
    let _entered = runtime.enter();
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let queue = domain.shared_receive_queue(SharedReceiveQueueOptions::default());
    let addresses = domain.address_vector();
    let builder = domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
    let refused = builder.bind_shared_receive_queue(&queue).enable_async();
    assert!(matches!(refused, Err(EnableAsyncError::SharedReceives)), "{refused:?}");
}
