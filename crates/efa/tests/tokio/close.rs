//! What futures return once their endpoint was closed.

use super::*;

#[test]
fn unasked_completions_are_returned_after_close_and_then_it_ends_for_all_who_wait() {
    on_each_link(|[a, b], to| async move {
        let access = Access { remote_write: true, ..Access::default() };
        let region = b.domain.register(vec![0; 8], access).unwrap();
        let rma = Rma::at(to, region.remote()).with_data(5);
        a.endpoint.write(rma, vec![1; 8]).await.unwrap();
        while b.endpoint.statistics().remote_writes == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let waiting = b.endpoint.clone();
        let waiting = tokio::spawn(async move {
            let first = waiting.unasked().await.unwrap().cq_data;
            (first, waiting.unasked().await.map(|completion| completion.cq_data))
        });
        b.endpoint.close(TIMEOUT).await.unwrap();
        let (first, last) = waiting.await.unwrap();
        assert_eq!(first, Some(5));
        assert!(matches!(last, Err(AsyncError::Ended(Ended::Closed))), "{last:?}");
        let later = b.endpoint.unasked().await;
        assert!(matches!(later, Err(AsyncError::Ended(Ended::Closed))), "{later:?}");
    });
}

#[test]
fn endpoint_whose_runtime_was_shut_down_is_closed_without_waiting() {
    let directory = TempDir::new().unwrap();
    for fabrics in networks(&directory) {
        let runtime = several_threads();
        let ([a, b], to) = runtime.block_on(async { pair(&fabrics) });
        drop(runtime);
        one_thread().block_on(async {
            b.endpoint.close(TIMEOUT).await.unwrap();
            a.endpoint.close(TIMEOUT).await.unwrap();
            let refused = a.endpoint.inject(Message::to(to), b"late");
            assert_eq!(refused, Err(StartError::Closed));
        });
    }
}
