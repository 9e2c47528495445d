//! Tasks that share an endpoint, a budget or a thread.

use super::*;

/// Sends one message after the other, and counts them.
async fn flood(endpoint: AsyncEndpoint, to: FiAddr, sent: Arc<AtomicUsize>) {
    loop {
        endpoint.send(Message::to(to), "one of many").await.unwrap();
        sent.fetch_add(1, Ordering::SeqCst);
    }
}

/// Messages that `sender` sends before the one of another task, which finds no room at first.
async fn sent_before_another(sender: AsyncEndpoint, another: AsyncEndpoint, to: FiAddr) -> usize {
    let sent = Arc::new(AtomicUsize::new(0));
    let flood = tokio::spawn(flood(sender, to, Arc::clone(&sent)));
    while sent.load(Ordering::SeqCst) < 10 {
        tokio::task::yield_now().await;
    }
    let before = sent.load(Ordering::SeqCst);
    let send = tokio::spawn(async move { another.send(Message::to(to), "another").await });
    timeout(TIMEOUT, send).await.expect("it is sent").unwrap().unwrap();
    flood.abort();
    sent.load(Ordering::SeqCst) - before
}

#[test]
fn send_that_waits_for_room_comes_before_the_next_ones_of_a_task_that_sends_all_the_time() {
    let directory = TempDir::new().unwrap();
    for [fabric, other] in networks(&directory) {
        one_thread().block_on(async {
            let (a, b) = (End::with(&fabric, one_send()), End::on(&other));
            let to = a.insert(&b);
            let before = sent_before_another(a.endpoint.clone(), a.endpoint.clone(), to).await;
            assert!(before < 10, "{before} on {fabric:?}");
        });
    }
}

#[test]
fn send_that_waits_for_a_share_comes_before_the_next_ones_of_another_endpoint_of_the_budget() {
    let directory = TempDir::new().unwrap();
    for [fabric, other] in networks(&directory) {
        let domain = fabric.domain().unwrap();
        let addresses = domain.address_vector();
        let budget = domain.send_budget(SendBudgetOptions::new().limit(1));
        one_thread().block_on(async {
            let endpoint = || {
                let builder = domain.endpoint(EndpointOptions::default());
                let bound = builder.bind_address_vector(&addresses).bind_send_budget(&budget);
                bound.enable_async().unwrap()
            };
            let target = End::on(&other);
            let to = addresses.insert(target.endpoint.address()).unwrap();
            let before = sent_before_another(endpoint(), endpoint(), to).await;
            assert!(before < 10, "{before} on {fabric:?}");
        });
    }
}

#[test]
fn completion_wakes_one_of_the_sends_that_wait_for_room() {
    const SENDS: usize = 200;
    let fabric = Fabric::local(LocalOptions::default());
    one_thread().block_on(async {
        let a = End::with(&fabric, one_send());
        let (b, polls) = (End::on(&fabric), Arc::new(AtomicUsize::new(0)));
        let to = a.insert(&b);
        let send = |_| {
            let (endpoint, polls) = (a.endpoint.clone(), Arc::clone(&polls));
            tokio::spawn(async move {
                let mut send = pin!(endpoint.send(Message::to(to), "one of many"));
                poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::SeqCst);
                    send.as_mut().poll(cx)
                })
                .await
            })
        };
        let tasks: Vec<_> = (0..SENDS).map(send).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let polls = polls.load(Ordering::SeqCst);
        assert!(polls <= 4 * SENDS, "{polls} polls for {SENDS} sends");
    });
}

/// Counts the turns of another task on this thread while `take` takes what is there.
async fn turns_of_another_task(take: impl Future<Output = ()>) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let another = tokio::spawn(async move {
        loop {
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    take.await;
    another.abort();
    turns.load(Ordering::SeqCst)
}

/// Messages that are there when they are taken: more than a task may take in one turn.
const THERE: usize = 1000;

#[test]
fn messages_that_are_there_are_taken_without_keeping_other_tasks_from_their_turns() {
    let fabric = Fabric::local(LocalOptions::default());
    one_thread().block_on(async {
        let ([a, b], to) = pair(&[fabric.clone(), fabric]);
        let (a, b) = (&a.endpoint, &b.endpoint);
        let arrive = async || {
            let before = b.statistics().delivered_bytes;
            for _ in 0..THERE {
                a.send(Message::to(to), "one of many").await.unwrap();
            }
            while b.statistics().delivered_bytes < before + 11 * THERE as u64 {
                tokio::task::yield_now().await;
            }
        };

        let mut messages = b.receive_many(None, vec![0; 1 << 20]).await.unwrap();
        arrive().await;
        let take = async {
            for _ in 0..THERE {
                messages.next().await.unwrap().unwrap();
            }
        };
        assert!(turns_of_another_task(take).await > 0, "of a receive of many");

        arrive().await;
        drop(messages);
        let take = async {
            for _ in 0..THERE {
                b.receive(Receive::untagged(), vec![0; 16]).await.unwrap();
            }
        };
        assert!(turns_of_another_task(take).await > 0, "of receives that are kept");

        for _ in 0..THERE {
            a.send(Message::to(to), "unexpected").await.unwrap();
        }
        let take = async {
            for _ in 0..THERE {
                b.claim(Receive::untagged()).await.unwrap().discard();
            }
        };
        assert!(turns_of_another_task(take).await > 0, "of claims");
    });
}
