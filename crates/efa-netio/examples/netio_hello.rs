//! A publisher and a subscriber, each a handler, in contexts of their own on two threads.
//!
//! ```text
//! $ cargo run -p efa-netio --example netio_hello
//! subscribed to 0x17
//! 0x17: event 1
//! 0x17: event 2
//! 0x17: event 3
//! the publisher has ended
//! the subscriber got 3 messages and lost 0
//! published 3 messages, 3 were received
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use efa::{Domain, Fabric, LocalOptions};
use efa_netio::{
    AnySocket, ClosedReason, Delivery, Handler, Message, Netio, Options, Pool, PublishOptions,
    PublishSocket, Published, SubscribeOptions, SubscribeSocket, SubscriberCounts, Tag,
};

const TAG: Tag = 0x17;
const COUNT: u32 = 3;

/// Publishes when somebody has subscribed, and ends when all have everything.
struct Publisher {
    pool: Pool,
    published: u32,
    served: u32,
}

impl Handler for Publisher {
    fn subscriber(&mut self, netio: &mut Netio, socket: PublishSocket, tag: Tag, _: SocketAddr) {
        for number in 1..=COUNT {
            let text = format!("event {number}");
            let begin = number as usize * 64;
            self.pool.write(begin, text.as_bytes());
            let Ok(part) = self.pool.part(begin..begin + text.len()) else { return };
            match netio.publish(socket, tag, Message::of(part).key(number.into())) {
                Published::UnderWay => {}
                other => println!("not published: {other:?}"),
            }
        }
    }

    /// The memory of the message may be overwritten from here on.
    fn published(
        &mut self,
        netio: &mut Netio,
        socket: PublishSocket,
        _: Message,
        served: u32,
        _: u32,
    ) {
        self.published += 1;
        self.served += served;
        if self.published == COUNT {
            netio.close(socket);
        }
    }

    fn subscriber_closed(
        &mut self,
        netio: &mut Netio,
        _: PublishSocket,
        _: ClosedReason,
        counts: SubscriberCounts,
    ) {
        println!("the subscriber got {} messages and lost {}", counts.delivered, counts.lost);
        netio.stop();
    }
}

/// Prints what it receives.
struct Subscriber;

impl Handler for Subscriber {
    fn subscribed(&mut self, _: &mut Netio, _: SubscribeSocket, tag: Tag) {
        println!("subscribed to {tag:#x}");
    }

    fn message(&mut self, _: &mut Netio, _: SubscribeSocket, tag: Tag, message: Delivery) {
        println!("{tag:#x}: {}", String::from_utf8_lossy(&message));
    }

    fn closed(&mut self, netio: &mut Netio, _: AnySocket, reason: ClosedReason) {
        match reason {
            ClosedReason::DisconnectedByPeer => println!("the publisher has ended"),
            other => println!("lost the publisher: {other}"),
        }
        netio.stop();
    }
}

fn subscribe(domain: &Domain, port: u16) -> Result<(), efa_netio::Error> {
    let mut netio = Netio::new(domain, Options::default())?;
    let socket = netio.subscribe_socket("10.0.0.1", port, SubscribeOptions::default());
    // Only a closed socket can't subscribe.
    let _ = netio.subscribe(socket, TAG);
    netio.run(&mut Subscriber)
}

fn main() -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::local(LocalOptions::default());
    let (here, there) = (fabric.domain()?, fabric.domain()?);

    let mut netio = Netio::new(&here, Options::default())?;
    let pool = netio.allocate(4096)?;
    let socket = netio.publish_socket(&pool, PublishOptions::default())?;
    netio.publish_at(socket, "10.0.0.1", 0)?;
    let port = netio.local_address(socket).ok_or("it doesn't listen")?.port();

    let subscriber = thread::spawn(move || subscribe(&there, port));
    let mut publisher = Publisher { pool, published: 0, served: 0 };
    netio.run(&mut publisher)?;
    subscriber.join().map_err(|_| "the subscriber panicked")??;
    let Publisher { published, served, .. } = publisher;
    println!("published {published} messages, {served} were received");
    Ok(())
}
