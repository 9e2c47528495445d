//! Receives of many messages as streams.

use efa::{Config, Kind};

use super::*;

/// An endpoint on this link that releases buffers with less than 64 bytes left.
fn releasing(fabric: &Fabric) -> End {
    let protocol = Config::default().with(|config| config.min_multi_receive = 64);
    End::with(fabric, EndpointOptions::new().protocol(protocol))
}

#[test]
fn buffer_of_many_messages_is_a_stream_of_them_that_ends_with_its_release() {
    let directory = TempDir::new().unwrap();
    for runtime in [one_thread(), several_threads()] {
        for fabrics in networks(&directory) {
            runtime.block_on(async {
                let (a, b) = (End::on(&fabrics[0]), releasing(&fabrics[1]));
                let to = a.insert(&b);
                let mut messages = b.endpoint.receive_many(None, vec![0; 1024]).await.unwrap();
                let send = async {
                    for length in [100, 200, 300, 400] {
                        a.endpoint.send(Message::to(to), pattern(length)).await.unwrap();
                    }
                };
                let take = async {
                    for length in [100, 200, 300, 400] {
                        let message = messages.next().await.unwrap().unwrap();
                        assert_eq!(message.kind, Kind::MultiReceive);
                        assert_eq!(message.into_message(), pattern(length));
                    }
                    let rest = messages.next().await.unwrap().unwrap();
                    assert_eq!((rest.kind, rest.buffer.len()), (Kind::Released, 24));
                    assert!(messages.next().await.is_none());
                };
                timeout(TIMEOUT, async { tokio::join!(send, take) }).await.unwrap();
            });
        }
    }
}

#[test]
fn messages_that_a_dropped_receive_of_many_has_left_go_to_other_receives() {
    on_each_link(|[a, b], to| async move {
        let messages = b.endpoint.receive_many(None, vec![0; 1 << 16]).await.unwrap();
        for text in ["one", "two"] {
            a.endpoint.send(Message::to(to), text).await.unwrap();
        }
        while b.endpoint.statistics().delivered_bytes < 6 {
            tokio::task::yield_now().await;
        }
        drop(messages);
        let received = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(received.into_message(), *b"one");
        let mut others = b.endpoint.receive_many(None, vec![0; 1 << 16]).await.unwrap();
        assert_eq!(others.next().await.unwrap().unwrap().into_message(), *b"two");
        a.endpoint.send(Message::to(to), "three").await.unwrap();
        assert_eq!(others.next().await.unwrap().unwrap().into_message(), *b"three");
    });
}

#[test]
fn receive_of_many_whose_buffer_has_come_back_takes_no_message_that_is_left() {
    let fabric = Fabric::local(LocalOptions::default());
    one_thread().block_on(async {
        let (a, b) = (End::on(&fabric), releasing(&fabric));
        let to = a.insert(&b);
        let mut messages = b.endpoint.receive_many(None, vec![0; 100]).await.unwrap();
        a.endpoint.send(Message::to(to), pattern(100)).await.unwrap();
        for kind in [Kind::MultiReceive, Kind::Released] {
            assert_eq!(messages.next().await.unwrap().unwrap().kind, kind);
        }
        let mut receive = Box::pin(b.endpoint.receive(Receive::untagged(), vec![0; 8]));
        assert!(poll_once(receive.as_mut()).await.is_pending());
        a.endpoint.send(Message::to(to), "left").await.unwrap();
        while b.endpoint.statistics().delivered_bytes < 104 {
            tokio::task::yield_now().await;
        }
        drop(receive);
        assert!(messages.next().await.is_none());
        let left = b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        assert_eq!(left.into_message(), *b"left");
    });
}

#[test]
fn receive_of_many_waits_with_messages_that_nobody_takes_and_loses_none() {
    // More than it keeps.
    const COUNT: u32 = 3000;
    on_each_link(|[a, b], to| async move {
        let mut messages = b.endpoint.receive_many(None, vec![0; 1 << 20]).await.unwrap();
        let sender = tokio::spawn(async move {
            for number in 0..COUNT {
                a.endpoint.send(Message::to(to), number.to_le_bytes().to_vec()).await.unwrap();
            }
            a
        });
        while b.endpoint.statistics().delivered_bytes < 4 * 1025 {
            tokio::task::yield_now().await;
        }
        for number in 0..COUNT {
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!(message.into_message(), number.to_le_bytes());
        }
        sender.await.unwrap();
    });
}

#[test]
fn receive_of_many_ends_when_its_endpoint_is_closed() {
    on_each_link(|[_, b], _| async move {
        let mut messages = b.endpoint.receive_many(None, vec![0; 1024]).await.unwrap();
        b.endpoint.close(TIMEOUT).await.unwrap();
        match messages.next().await.unwrap() {
            Err(AsyncError::Failed(failed)) => {
                assert_eq!(failed.error, OperationError::Closed);
                assert_eq!(failed.completion.buffer.len(), 1024);
            }
            other => panic!("{other:?}"),
        }
        assert!(messages.next().await.is_none());
    });
}
