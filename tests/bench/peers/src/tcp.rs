//! A limit: messages as bare bytes over a TCP connection, polled.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::measure::{Point, SENT, Transport, UNSENT};
use crate::ours::PATIENCE;

pub(crate) struct Tcp {
    stream: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Tcp {
    /// The server listens at `address`.
    pub(crate) fn open(
        directory: &Path,
        role: &str,
        address: IpAddr,
        bytes: usize,
    ) -> Result<Self> {
        let (out, into) = (vec![SENT; bytes], vec![UNSENT; bytes]);
        let file = directory.join("address");
        let stream = if role == "server" {
            let listener = TcpListener::bind((address, 0))?;
            let unfinished = directory.join("address.new");
            std::fs::write(&unfinished, listener.local_addr()?.to_string())?;
            std::fs::rename(unfinished, file)?;
            listener.accept()?.0
        } else {
            let begin = Instant::now();
            let server = loop {
                if let Ok(text) = std::fs::read_to_string(&file) {
                    break text.parse::<SocketAddr>()?;
                }
                ensure!(begin.elapsed() < PATIENCE, "no {}", file.display());
                std::thread::sleep(Duration::from_millis(2));
            };
            TcpStream::connect(server)?
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, out, into })
    }
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_all(mut stream: &TcpStream, mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(count) => {
                ensure!(count > 0, "the other side has ended");
                bytes = &mut bytes[count..];
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Transport for Tcp {
    fn receive(&mut self, _point: Point, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, point: Point, slot: usize) -> Result<()> {
        let at = point.offset(slot);
        write_all(&self.stream, &self.out[at..at + point.size])
    }

    fn await_receive(&mut self, point: Point, slot: usize) -> Result<()> {
        let at = point.offset(slot);
        read_all(&self.stream, &mut self.into[at..at + point.size])
    }

    fn await_send(&mut self, _slot: usize) -> Result<()> {
        Ok(())
    }

    fn tell(&mut self, number: u64) -> Result<()> {
        write_all(&self.stream, &number.to_le_bytes())
    }

    fn hear(&mut self) -> Result<u64> {
        let mut bytes = [0; size_of::<u64>()];
        read_all(&self.stream, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn received_byte(&self, point: Point, slot: usize, at: usize) -> u8 {
        self.into[point.offset(slot) + at]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        let at = point.offset(slot);
        self.into[at..at + point.size].fill(UNSENT);
    }
}
