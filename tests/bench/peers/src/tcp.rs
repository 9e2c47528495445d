//! A limit: messages as bare bytes over a TCP connection of the loopback interface, polled.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::measure::{Point, SENT, Transport, UNSENT};

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Tcp {
    stream: TcpStream,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Tcp {
    pub(crate) fn open(directory: &Path, role: &str, bytes: usize) -> Result<Self> {
        let (out, into) = (vec![SENT; bytes], vec![UNSENT; bytes]);
        let file = directory.join("port");
        let stream = if role == "server" {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let unfinished = directory.join("port.new");
            std::fs::write(&unfinished, listener.local_addr()?.port().to_string())?;
            std::fs::rename(unfinished, file)?;
            listener.accept()?.0
        } else {
            let begin = Instant::now();
            let port = loop {
                if let Ok(text) = std::fs::read_to_string(&file) {
                    break text.parse::<u16>()?;
                }
                ensure!(begin.elapsed() < PATIENCE, "no {}", file.display());
                std::thread::sleep(Duration::from_millis(2));
            };
            TcpStream::connect((Ipv4Addr::LOCALHOST, port))?
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

    fn received_byte(&self, at: usize) -> u8 {
        self.into[at]
    }

    fn forget(&mut self, point: Point, slot: usize) {
        let at = point.offset(slot);
        self.into[at..at + point.size].fill(UNSENT);
    }
}
