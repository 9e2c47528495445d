//! A program that imports all names of the crate.

#![allow(clippy::wildcard_imports, reason = "the subject")]

use efa::*;

#[tokio::test]
async fn all_names_of_the_crate_can_be_imported_where_macros_of_tokio_are_used() {
    let domain = Fabric::local(LocalOptions::default()).domain().unwrap();
    let addresses = domain.address_vector();
    let builder = domain.endpoint(EndpointOptions::default()).bind_address_vector(&addresses);
    let endpoint: with_tokio::AsyncEndpoint = builder.enable_async().unwrap();
    let itself = addresses.insert(endpoint.address()).unwrap();
    let sent = endpoint.send(Message::to(itself), "self");
    let (sent, received) = tokio::join!(sent, endpoint.receive(Receive::untagged(), vec![0; 4]));
    sent.unwrap();
    assert_eq!(received.unwrap().into_message(), *b"self");
}
