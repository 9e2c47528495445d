//! Messages that are kept as the futures of their receives are gone.

use super::*;

/// The completion of a sender that was not in the address vector names its address alone.
#[test]
fn kept_message_goes_to_a_receive_from_its_sender_that_was_inserted_later() {
    on_each_link(|[a, b], to| async move {
        {
            let mut receive = pin!(b.endpoint.receive(Receive::untagged(), vec![0; 8]));
            assert!(poll_once(receive.as_mut()).await.is_pending());
            a.endpoint.send(Message::to(to), "left").await.unwrap();
            while b.endpoint.statistics().delivered_bytes < 4 {
                tokio::task::yield_now().await;
            }
        }
        let other = End::on(&Fabric::local(LocalOptions::default()));
        let other = b.addresses.insert(other.endpoint.address()).unwrap();
        let from_other = Receive::untagged().from(other);
        let mut from_other = pin!(b.endpoint.receive(from_other, vec![0; 8]));
        assert!(poll_once(from_other.as_mut()).await.is_pending());
        let from = b.insert(&a);
        let receive = b.endpoint.receive(Receive::untagged().from(from), vec![0; 8]);
        let received = timeout(TIMEOUT, receive).await.expect("it is found").unwrap();
        assert_eq!(received.into_message(), *b"left");
    });
}
