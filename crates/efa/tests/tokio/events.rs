//! Tasks that wait for an event of an endpoint.

use efa::Event;

use super::*;

#[test]
fn event_wakes_the_task_that_waits_for_it() {
    on_each_link(|[a, b], to| async move {
        let waiter = b.endpoint.clone();
        let waits = tokio::spawn(async move { waiter.next_event().await });
        while b.endpoint.statistics().received_bytes == 0 {
            a.endpoint.send(Message::to(to), "nobody has posted a receive").await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        let event = waits.await.unwrap().unwrap();
        assert_eq!(event, Event::PeerDiscovered(a.endpoint.address()));
    });
}

#[test]
fn event_that_comes_after_a_wait_was_dropped_goes_to_the_next_one() {
    on_each_link(|[a, b], to| async move {
        {
            let mut given_up = pin!(b.endpoint.next_event());
            assert!(poll_once(given_up.as_mut()).await.is_pending());
        }
        a.endpoint.send(Message::to(to), "hello").await.unwrap();
        b.endpoint.receive(Receive::untagged(), vec![0; 8]).await.unwrap();
        let event = b.endpoint.next_event().await.unwrap();
        assert_eq!(event, Event::PeerDiscovered(a.endpoint.address()));
        assert!(poll_once(pin!(b.endpoint.next_event())).await.is_pending());
    });
}

#[test]
fn wait_for_an_event_ends_when_the_endpoint_is_closed() {
    on_each_link(|[_, b], _| async move {
        let waiter = b.endpoint.clone();
        let waits = tokio::spawn(async move { waiter.next_event().await });
        tokio::task::yield_now().await;
        b.endpoint.close(TIMEOUT).await.unwrap();
        assert_eq!(waits.await.unwrap(), Err(Ended::Closed));
        assert_eq!(b.endpoint.next_event().await, Err(Ended::Closed));
    });
}

#[test]
fn event_queue_that_an_endpoint_reports_to_is_a_stream_of_its_events() {
    let directory = TempDir::new().unwrap();
    for runtime in [one_thread(), several_threads()] {
        for fabrics in networks(&directory) {
            runtime.block_on(async {
                let a = End::on(&fabrics[0]);
                let domain = fabrics[1].domain().unwrap();
                let events = fabrics[1].event_queue(EventQueueOptions::default()).unwrap();
                let mut stream = events.stream().unwrap();
                let b = domain
                    .endpoint(EndpointOptions::default().context(7))
                    .bind_address_vector(&domain.address_vector())
                    .bind_event_queue(&events)
                    .enable_async()
                    .unwrap();
                let to = a.addresses.insert(b.address()).unwrap();
                let (sent, event) = tokio::join!(
                    a.endpoint.send(Message::to(to), "hello"),
                    timeout(TIMEOUT, stream.next())
                );
                sent.unwrap();
                match event.unwrap().unwrap() {
                    ControlEvent::Endpoint { endpoint, context: 7, event } => {
                        assert_eq!(endpoint, b.id());
                        assert_eq!(event, Event::PeerDiscovered(a.endpoint.address()));
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
    }
}
