//! What futures return once their endpoint was closed.

use efa::CloseError;

use super::*;

/// After how long nothing happens any more at endpoints that wait for a receive.
const QUIET: Duration = Duration::from_millis(50);

/// Two endpoints with one share of a budget between them, each enabled in one of these runtimes; and one that both send
/// to, which would give them turns if it had the budget too.
fn two_with_one_share([of_a, of_b]: [&Runtime; 2]) -> ([AsyncEndpoint; 3], FiAddr) {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let budget = domain.send_budget(SendBudgetOptions::new().limit(1));
    let addresses = domain.address_vector();
    let builder = || domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
    let sharing = |runtime: &Runtime| {
        runtime.block_on(async { builder().bind_send_budget(&budget).enable_async().unwrap() })
    };
    let (a, b) = (sharing(of_a), sharing(of_b));
    let target = of_a.block_on(async { builder().enable_async().unwrap() });
    let to = addresses.insert(target.address()).unwrap();
    ([a, b, target], to)
}

#[test]
fn unasked_completions_are_returned_after_close_and_then_it_ends_for_all_who_wait() {
    // One; more than are read in a row; nearly as many as are kept, after others that were asked for.
    for count in [1, 100, 1100] {
        on_each_link(|[a, b], to| async move {
            let access = Access { remote_write: true, ..Access::default() };
            let region = b.domain.register(vec![0; 8], access).unwrap();
            let write = async {
                for number in 0..count {
                    let rma = Rma::at(to, region.remote()).with_data(number);
                    a.endpoint.write(rma, vec![1; 8]).await.unwrap();
                }
            };
            let asker = b.endpoint.clone();
            let ask = async {
                let mut numbers = Vec::new();
                for _ in 1000..count {
                    numbers.push(asker.unasked().await.unwrap().cq_data.unwrap());
                }
                numbers
            };
            let ((), mut numbers) = tokio::join!(write, ask);
            while b.endpoint.statistics().remote_writes < count {
                sleep(Duration::from_millis(1)).await;
            }
            let asks = tokio::spawn(async move {
                let end = loop {
                    match asker.unasked().await {
                        Ok(completion) => numbers.push(completion.cq_data.unwrap()),
                        Err(end) => break end,
                    }
                };
                (numbers, end)
            });
            b.endpoint.close(TIMEOUT).await.unwrap();
            let (mut numbers, end) = asks.await.unwrap();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>());
            assert!(matches!(end, AsyncError::Ended(Ended::Closed)), "{end:?}");
            let later = b.endpoint.unasked().await;
            assert!(matches!(later, Err(AsyncError::Ended(Ended::Closed))), "{later:?}");
        });
    }
}

/// The end of a receive when its endpoint is closed.
async fn end_of_receive(endpoint: &AsyncEndpoint) -> OperationError {
    let receiver = endpoint.clone();
    let receive = async move { receiver.receive(Receive::tagged(1), vec![0; 8]).await };
    let receive = tokio::spawn(receive);
    // It is under way once it was polled.
    sleep(QUIET).await;
    endpoint.close(TIMEOUT).await.unwrap();
    match receive.await.unwrap() {
        Err(AsyncError::Failed(failed)) => failed.error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn receive_ends_with_its_endpoint_though_nobody_takes_what_was_not_asked_for() {
    // One more than are kept.
    const WRITES: u64 = 1025;
    on_each_link(|[a, b], to| async move {
        let access = Access { remote_write: true, ..Access::default() };
        let region = b.domain.register(vec![0; 8], access).unwrap();
        for number in 0..WRITES {
            let rma = Rma::at(to, region.remote()).with_data(number);
            a.endpoint.write(rma, vec![1; 8]).await.unwrap();
        }
        while b.endpoint.statistics().remote_writes < WRITES {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(end_of_receive(&b.endpoint).await, OperationError::Closed);
        for _ in 0..WRITES {
            b.endpoint.unasked().await.unwrap();
        }
        assert!(matches!(b.endpoint.unasked().await, Err(AsyncError::Ended(Ended::Closed))));
    });
}

#[test]
fn receive_ends_with_its_endpoint_though_nobody_takes_the_messages_of_a_receive_of_many() {
    // One more than are kept.
    const MESSAGES: u64 = 1025;
    on_each_link(|[a, b], to| async move {
        let mut messages = b.endpoint.receive_many(None, vec![0; 1 << 16]).await.unwrap();
        for _ in 0..MESSAGES {
            a.endpoint.send(Message::to(to), "one of many").await.unwrap();
        }
        while b.endpoint.statistics().delivered_bytes < 11 * MESSAGES {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(end_of_receive(&b.endpoint).await, OperationError::Closed);
        for _ in 0..MESSAGES {
            assert_eq!(messages.next().await.unwrap().unwrap().into_message(), *b"one of many");
        }
        assert!(matches!(messages.next().await, Some(Err(AsyncError::Failed(_)))));
        assert!(messages.next().await.is_none());
    });
}

#[test]
fn endpoint_whose_runtime_was_shut_down_is_closed_without_waiting_for_its_sends() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        let runtime = several_threads();
        let ([a, b], to) = runtime.block_on(async {
            let (ends, to) = pair(&fabrics);
            let mut send = Box::pin(ends[0].endpoint.send(Message::to(to), vec![1; LONG]));
            assert!(poll_once(send.as_mut()).await.is_pending());
            drop(send);
            (ends, to)
        });
        drop(runtime);
        one_thread().block_on(async {
            let unsent = a.endpoint.close(TIMEOUT).await;
            assert_eq!(unsent, Err(CloseError { timeout: Duration::ZERO }));
            b.endpoint.close(TIMEOUT).await.unwrap();
            let refused = a.endpoint.inject(Message::to(to), b"late");
            assert_eq!(refused, Err(StartError::Closed));
        });
    }
}

#[test]
fn endpoint_that_is_dropped_returns_its_share_of_the_budget_to_those_who_wait() {
    let runtime = one_thread();
    let ([a, b, _target], to) = two_with_one_share([&runtime; 2]);
    runtime.block_on(async {
        let mut long = Box::pin(b.send(Message::to(to), vec![1; LONG]));
        assert!(poll_once(long.as_mut()).await.is_pending());
        drop(long);
        let mut waits = pin!(a.send(Message::to(to), "waits"));
        // Until nobody's completions have news, which would give a turn.
        assert!(timeout(QUIET, waits.as_mut()).await.is_err());
        drop(b);
        timeout(TIMEOUT, waits).await.expect("it gets the share").unwrap();
    });
}

#[test]
fn endpoint_that_is_closed_without_its_runtime_returns_its_share_of_the_budget() {
    let (runtime, gone) = (one_thread(), several_threads());
    let ([a, b, _target], to) = two_with_one_share([&runtime, &gone]);
    runtime.block_on(async {
        let mut long = Box::pin(b.send(Message::to(to), vec![1; LONG]));
        assert!(poll_once(long.as_mut()).await.is_pending());
        drop(long);
        gone.shutdown_background();
        let mut waits = pin!(a.send(Message::to(to), "waits"));
        assert!(timeout(QUIET, waits.as_mut()).await.is_err());
        b.close(TIMEOUT).await.unwrap_err();
        timeout(TIMEOUT, waits).await.expect("it gets the share").unwrap();
    });
}
