//! What types promise: traits, and the text of errors.

use std::net::SocketAddr;
use std::time::Duration;

use efa::with_tokio::{
    AsyncClaim, AsyncEndpoint, AsyncError, AsyncListener, AsyncMsgEndpoint, CompletionStream,
    ConnectAsyncError, EnableAsyncError, Ended, EventStream, MultiReceive,
};
use efa::{AtomicOp, ConnectionRequest, Message, MsgEndpointBuilder, Operation, Receive, Rma};

/// The reasons of an error, as a report prints them: that of each source after that of the error.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut error = error;
    while let Some(source) = error.source() {
        text = format!("{text}: {source}");
        error = source;
    }
    text
}

#[test]
fn chain_of_an_error_says_once_why_nothing_completes() {
    let operation = AsyncError::from(Ended::Runtime);
    assert_eq!(chain(&operation), "the completions are read no more: the runtime was shut down");
    let attempt = ConnectAsyncError::from(Ended::Closed);
    assert_eq!(chain(&attempt), "the connection is watched no more: the endpoint was closed");
}

#[test]
fn objects_and_futures_can_be_sent_to_other_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send>(_: T) {}
    shared::<AsyncEndpoint>();
    shared::<AsyncMsgEndpoint>();
    shared::<AsyncListener>();
    shared::<AsyncClaim>();
    shared::<MultiReceive>();
    shared::<CompletionStream>();
    shared::<EventStream>();
    shared::<AsyncError>();
    shared::<ConnectAsyncError>();
    shared::<EnableAsyncError>();
    // Not called: the futures of these.
    let _ = |endpoint: AsyncEndpoint, rma: Rma, to: Message| {
        sent(endpoint.send(to, "text"));
        sent(endpoint.receive(Receive::untagged(), vec![0; 8]));
        sent(endpoint.receive_many(None, vec![0; 8]));
        sent(endpoint.write(rma, "text"));
        sent(endpoint.read(rma, vec![0; 8]));
        sent(endpoint.atomic(rma, Operation::new(AtomicOp::Sum, &[1_u64])));
        sent(endpoint.fetch_atomic(rma, Operation::new(AtomicOp::Sum, &[1_u64]), vec![0; 8]));
        sent(endpoint.claim(Receive::untagged()));
        sent(endpoint.next_event());
        sent(endpoint.unasked());
        sent(endpoint.close(Duration::ZERO));
    };
    let _ = |builder: MsgEndpointBuilder, at: SocketAddr| {
        sent(builder.connect_async(at, b""));
    };
    let _ = |builder: MsgEndpointBuilder, request: ConnectionRequest| {
        sent(builder.accept_async(request, b""));
    };
    let _ = |mut claim: AsyncClaim, mut many: MultiReceive| {
        sent(claim.receive(vec![0; 8]));
        sent(many.next());
    };
    let _ = |endpoint: AsyncMsgEndpoint, listener: AsyncListener| {
        sent(endpoint.closed());
        sent(endpoint.shutdown(Duration::ZERO));
        sent(listener.accept());
    };
    let _ = |mut completions: CompletionStream, mut events: EventStream| {
        sent(completions.next());
        sent(events.next());
    };
}
