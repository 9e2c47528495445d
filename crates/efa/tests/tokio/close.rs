//! What futures return once their endpoint was closed.

use efa::CloseError;

use super::*;

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
