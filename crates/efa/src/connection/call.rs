//! One exchange, and the stream that carries it.

use std::io;
use std::net::SocketAddr;

use efa_connect::Exchange;

use super::stream::{Received, Stream, Watch, is_scarcity};
use crate::fabric::Fabric;

#[derive(Debug)]
pub(super) struct Call {
    pub(super) exchange: Exchange,
    pub(super) stream: Result<Stream, io::Error>,
}

impl Call {
    /// Begins to connect. An error of the connection shows in the first [`pump`](Self::pump).
    ///
    /// # Errors
    /// The system lacks what a socket takes.
    pub(super) fn to(fabric: &Fabric, to: SocketAddr, exchange: Exchange) -> io::Result<Self> {
        match Stream::connect(fabric, to) {
            Err(error) if is_scarcity(&error) => Err(error),
            stream => Ok(Self { exchange, stream }),
        }
    }

    /// A caller that was accepted.
    pub(super) fn from(stream: Stream, exchange: Exchange) -> Self {
        Self { exchange, stream: Ok(stream) }
    }

    /// Reports changes of the stream under `key` from now on. An error of the stream itself shows in the first
    /// [`pump`](Self::pump).
    pub(super) fn register(&self, watch: &Watch, key: u64) -> io::Result<()> {
        self.stream.as_ref().map_or(Ok(()), |stream| stream.register(watch, key))
    }

    /// Moves bytes in both directions as far as they go. An error of the stream ends the exchange, unless that was over.
    pub(super) fn pump(&mut self) {
        match &mut self.stream {
            Ok(stream) => {
                if let Err(error) = carry(stream, &mut self.exchange)
                    && !self.exchange.is_over()
                {
                    self.exchange.ended();
                    self.stream = Err(error);
                }
            }
            Err(_) => self.exchange.ended(),
        }
    }

    /// Why the stream failed, if that ended the exchange.
    pub(super) fn error(&self) -> Option<&io::Error> {
        self.stream.as_ref().err()
    }
}

fn carry(stream: &mut Stream, exchange: &mut Exchange) -> io::Result<()> {
    if !stream.is_established()? {
        return Ok(());
    }
    let mut bytes = [0; Exchange::MOST];
    // Also behind a request, where the other side has nothing to say but may have given up.
    while !exchange.is_over() {
        match stream.receive(&mut bytes)? {
            Received::Bytes(count) => exchange.received(bytes.get(..count).unwrap_or_default()),
            Received::Nothing => break,
            Received::End => exchange.ended(),
        }
    }
    while !exchange.to_send().is_empty() {
        match stream.send(exchange.to_send())? {
            0 => break,
            count => exchange.sent(count),
        }
    }
    Ok(())
}
