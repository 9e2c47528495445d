//! Tasks that claim unexpected messages.

use super::*;

#[test]
fn claim_waits_for_a_message_and_receives_it_into_a_buffer_that_fits() {
    on_each_link(|[a, b], to| async move {
        for length in [0, 8, 20_000, LONG] {
            let claimant = b.endpoint.clone();
            let received = tokio::spawn(async move {
                let mut claim = claimant.claim(Receive::tagged(5)).await.unwrap();
                assert_eq!(claim.message().tag, Some(5));
                let buffer = vec![0; claim.message().length as usize];
                claim.receive(buffer).await.unwrap()
            });
            a.endpoint.send(Message::to(to).tagged(5), pattern(length)).await.unwrap();
            let received = received.await.unwrap();
            assert_eq!(received.length, length as u64);
            assert_eq!(received.into_message(), pattern(length));
        }
        assert_eq!(b.endpoint.peek(Receive::tagged(5)), Ok(None));
    });
}

#[test]
fn message_of_a_dropped_wait_for_it_is_peeked_claimed_and_received_later() {
    on_each_link(|[a, b], to| async move {
        {
            let mut given_up = pin!(b.endpoint.claim(Receive::untagged()));
            assert!(poll_once(given_up.as_mut()).await.is_pending());
        }
        a.endpoint.send(Message::to(to), "hello").await.unwrap();
        let seen = loop {
            match b.endpoint.peek(Receive::untagged()).unwrap() {
                Some(seen) => break seen,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(seen.length, 5);
        let mut claim = b.endpoint.claim(Receive::untagged()).await.unwrap();
        assert_eq!(*claim.message(), seen);
        let received = claim.receive(vec![0; 5]).await.unwrap();
        assert_eq!(received.into_message(), *b"hello");
        match claim.receive(vec![0; 5]).await {
            Err(AsyncError::Refused(refused)) => {
                assert_eq!((refused.error, refused.buffer.len()), (StartError::ClaimEnded, 5));
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn dropped_claim_discards_its_message_and_the_next_receive_gets_another() {
    on_each_link(|[a, b], to| async move {
        for text in ["one", "two"] {
            a.endpoint.send(Message::to(to), text).await.unwrap();
        }
        b.endpoint.claim(Receive::untagged()).await.unwrap().discard();
        let received = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(received.into_message(), *b"two");
    });
}

#[test]
fn wait_for_a_claim_ends_when_the_endpoint_is_closed() {
    on_each_link(|[_, b], _| async move {
        let claimant = b.endpoint.clone();
        let waits = tokio::spawn(async move { claimant.claim(Receive::untagged()).await });
        tokio::task::yield_now().await;
        b.endpoint.close(TIMEOUT).await.unwrap();
        match waits.await.unwrap() {
            Err(AsyncError::Refused(refused)) => assert_eq!(refused.error, StartError::Closed),
            other => panic!("{other:?}"),
        }
    });
}
