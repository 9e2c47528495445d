//! Buffers whose owners run code of the program when they are dropped.

use std::sync::mpsc;

use super::*;

/// Bytes whose owner has something else, which is dropped with them.
struct Owner<T>(T);

impl<T> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        b"of an owner"
    }
}

/// Drops a send under way, before or after it has completed, whose buffer owns a receive of the same endpoint.
async fn drop_owner([a, b]: [End; 2], to: FiAddr, is_complete: bool) {
    let messages = a.endpoint.receive_many(None, vec![0; 64]).await.unwrap();
    let buffer = Bytes::from_owner(Owner(messages));
    let mut send = Box::pin(a.endpoint.send(Message::to(to), buffer));
    assert!(poll_once(send.as_mut()).await.is_pending());
    if is_complete {
        b.endpoint.receive(Receive::untagged(), vec![0; 64]).await.unwrap();
        a.endpoint.send(Message::to(to), "later").await.unwrap();
    }
    drop(send);
    b.endpoint.receive(Receive::untagged(), vec![0; 64]).await.unwrap();
    a.endpoint.send(Message::to(to), "last").await.unwrap();
}

#[test]
fn buffer_of_a_dropped_send_may_own_a_receive_of_the_same_endpoint() {
    for is_complete in [false, true] {
        let (sender, ended) = mpsc::channel();
        // A thread of its own, which can be left behind if it waits for its own lock.
        thread::spawn(move || {
            let fabric = Fabric::local(LocalOptions::default());
            one_thread().block_on(async {
                let (ends, to) = pair(&[fabric.clone(), fabric]);
                drop_owner(ends, to, is_complete).await;
            });
            sender.send(()).unwrap();
        });
        ended.recv_timeout(TIMEOUT).expect("it ends in time");
    }
}
