//! The commands.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use efa::{Buffer, Completion, FiAddr, Kind, Message, Receive, ReceiveId, Refused};

use crate::command::Command;
use crate::endpoint::{CaptureFile, Opened, address_text, parse_address};
use crate::memory::{self, Damage, Guards};
use crate::remote::{Asked, RemoteAccess};
use crate::report;

/// Whether the peer continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Line,
    Quit,
}

/// How long `close` delivers queued packets.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The endpoint and its operations.
pub(crate) struct Peer {
    capture: Option<CaptureFile>,
    opened: Option<Opened>,
    idle: bool,
    receives: HashMap<u64, Posted>,
    remote: RemoteAccess,
}

/// A receive, from its command until it was checked.
struct Posted {
    id: ReceiveId,
    guards: Guards,
    /// Its memory once it has completed; of a multi-receive buffer, what is left at the end.
    memory: Option<Buffer>,
    /// Messages in a multi-receive buffer, in the order of their completions.
    parts: Vec<Buffer>,
}

impl Peer {
    /// A peer without endpoint; packets of later endpoints are captured.
    pub(crate) fn new(capture: Option<CaptureFile>) -> Self {
        let (receives, remote) = (HashMap::new(), RemoteAccess::default());
        Self { capture, opened: None, idle: false, receives, remote }
    }

    /// Whether the peer polls by itself.
    pub(crate) fn is_working(&self) -> bool {
        self.opened.is_some() && !self.idle
    }

    /// Reads the completion queue once; returns whether it had an entry.
    pub(crate) fn progress(&mut self) -> Result<bool> {
        let Some(entry) = self.opened()?.queue.read() else { return Ok(false) };
        match entry {
            Ok(completion) => {
                report::done(&completion);
                self.keep(completion)?;
            }
            Err(error) => {
                report::failed(&error);
                self.keep(*error.completion)?;
            }
        }
        Ok(true)
    }

    /// Stores the memory of a receive for `check`.
    fn keep(&mut self, completion: Completion) -> Result<()> {
        match completion.kind {
            Kind::Send | Kind::Write | Kind::RemoteWrite => return Ok(()),
            Kind::Read | Kind::Atomic | Kind::FetchAtomic => {
                self.remote.keep(completion);
                return Ok(());
            }
            _ => {}
        }
        let posted = self.receives.get_mut(&completion.context).context("not posted")?;
        match completion.kind {
            Kind::MultiReceive => posted.parts.push(completion.buffer),
            _ => posted.memory = Some(completion.buffer),
        }
        Ok(())
    }

    /// Runs a command and writes its result.
    pub(crate) fn run(&mut self, mut command: Command<'_>) -> Result<Next> {
        match command.verb {
            "open" => self.open(&mut command)?,
            "peer" => self.insert(&mut command)?,
            "send" => self.send(&mut command)?,
            "receive" => self.receive(&mut command)?,
            "receive-many" => self.receive_many(&mut command)?,
            "expose" => {
                let opened = self.opened.as_ref().context("nothing is open")?;
                self.remote.expose(opened.endpoint.domain(), &mut command)?;
            }
            "write" => self.start_remote(&Asked::write(&mut command)?)?,
            "read" => self.start_remote(&Asked::read(&mut command)?)?,
            "atomic" => self.start_remote(&Asked::atomic(&mut command)?)?,
            "show" => self.remote.show(&mut command)?,
            "forget" => self.remote.forget(&mut command)?,
            "cancel" => self.cancel(&mut command)?,
            "check" => self.check(&mut command)?,
            "check-rest" => self.check_rest(&mut command)?,
            "poll" => self.poll(&mut command)?,
            "idle" => self.set_idle(true),
            "busy" => self.set_idle(false),
            "close" => self.close()?,
            "quit" => return Ok(Next::Quit),
            verb => bail!("no command {verb}"),
        }
        command.end()?;
        Ok(Next::Line)
    }

    fn opened(&self) -> Result<&Opened> {
        self.opened.as_ref().context("nothing is open")
    }

    fn open(&mut self, command: &mut Command<'_>) -> Result<()> {
        let opened = Opened::new(command, self.capture.as_ref())?;
        let opened = self.opened.insert(opened);
        let address = address_text(opened.endpoint.address());
        println!(
            "opened address={address} inject={}",
            opened.endpoint.transmit_attributes().inject_size
        );
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let opened = self.opened.take().context("nothing is open")?;
        opened.endpoint.close(CLOSE_TIMEOUT)?;
        self.receives.clear();
        self.remote = RemoteAccess::default();
        println!("closed");
        Ok(())
    }

    fn set_idle(&mut self, idle: bool) {
        self.idle = idle;
        println!("ok");
    }

    fn poll(&mut self, command: &mut Command<'_>) -> Result<()> {
        for _ in 0..command.needed("rounds")? {
            self.progress()?;
        }
        println!("ok");
        Ok(())
    }

    fn insert(&mut self, command: &mut Command<'_>) -> Result<()> {
        let address = parse_address(command.text("address")?)?;
        let FiAddr(peer) = self.opened()?.addresses.insert(address)?;
        println!("ok peer={peer}");
        Ok(())
    }

    /// `send id= to= size= seed= [tag=] [data=] [inject] [delivery]`
    fn send(&mut self, command: &mut Command<'_>) -> Result<()> {
        let (id, size) = (command.needed("id")?, command.needed_size("size")?);
        let mut message = Message::to(FiAddr(command.needed("to")?));
        let seed = command.needed("seed")?;
        if let Some(tag) = command.number("tag")? {
            message = message.tagged(tag);
        }
        if let Some(data) = command.number("data")? {
            message = message.with_data(data);
        }
        if command.flag("delivery") {
            message = message.delivery_complete();
        }
        let inject = command.flag("inject");
        let mut bytes: Vec<u8> = memory::pattern(seed).take(size).collect();
        loop {
            let refused = self.start(message, bytes, inject, id)?.err();
            match refused {
                None => println!("ok"),
                Some(refused) if refused.error.is_busy() => {
                    bytes = refused.buffer.into_vec();
                    self.progress()?;
                    continue;
                }
                Some(refused) => println!("refused error={}", report::start_error(&refused.error)),
            }
            return Ok(());
        }
    }

    fn start(
        &self,
        message: Message,
        bytes: Vec<u8>,
        inject: bool,
        id: u64,
    ) -> Result<Result<(), Refused>> {
        let endpoint = &self.opened()?.endpoint;
        if !inject {
            return Ok(endpoint.send(message, bytes, id));
        }
        let result = endpoint.inject(message, &bytes);
        Ok(result.map_err(|error| Refused { error, buffer: bytes.into() }))
    }

    fn start_remote(&mut self, asked: &Asked) -> Result<()> {
        loop {
            match asked.start(&self.opened()?.endpoint) {
                Ok(guards) => {
                    if let Some(guards) = guards {
                        self.remote.expect(asked.id, guards);
                    }
                    println!("ok");
                }
                Err(error) if error.is_busy() => {
                    self.progress()?;
                    continue;
                }
                Err(error) => println!("refused error={}", report::start_error(&error)),
            }
            return Ok(());
        }
    }

    /// `receive id= size= [from=] [tag= [ignore=]]`
    fn receive(&mut self, command: &mut Command<'_>) -> Result<()> {
        let id = command.needed("id")?;
        let (mut buffer, guards) = memory::guarded(command.needed_size("size")?);
        let ignore = command.number("ignore")?.unwrap_or(0);
        let mut receive = match command.number("tag")? {
            Some(tag) => Receive::masked(tag, ignore),
            None => Receive::untagged(),
        };
        if let Some(from) = command.number("from")? {
            receive = receive.from(FiAddr(from));
        }
        loop {
            match self.opened()?.endpoint.receive(receive, buffer, id) {
                Err(refused) if refused.error.is_busy() => {
                    buffer = reclaim(refused.buffer)?;
                    self.progress()?;
                }
                result => return self.posted(id, guards, result),
            }
        }
    }

    /// `receive-many id= size= [from=]`
    fn receive_many(&mut self, command: &mut Command<'_>) -> Result<()> {
        let id = command.needed("id")?;
        let (buffer, guards) = memory::guarded(command.needed_size("size")?);
        let from = command.number("from")?.map(FiAddr);
        let result = self.opened()?.endpoint.receive_many(from, buffer, id);
        self.posted(id, guards, result)
    }

    fn posted(
        &mut self,
        context: u64,
        guards: Guards,
        result: Result<ReceiveId, Refused>,
    ) -> Result<()> {
        match result {
            Ok(id) => {
                let posted = Posted { id, guards, memory: None, parts: Vec::new() };
                self.receives.insert(context, posted);
                println!("ok");
            }
            Err(refused) => println!("refused error={}", report::start_error(&refused.error)),
        }
        Ok(())
    }

    fn cancel(&mut self, command: &mut Command<'_>) -> Result<()> {
        let context = command.needed("id")?;
        let posted = self.receives.get(&context).context("not posted")?;
        // As in libfabric, cancelling nothing is no error.
        self.opened()?.endpoint.cancel(posted.id);
        println!("ok");
        Ok(())
    }

    /// `check id= length= seed= [part=] [from=]`: the message, what was read, or exposed memory, and
    /// the bytes around it.
    fn check(&mut self, command: &mut Command<'_>) -> Result<()> {
        let (context, seed) = (command.needed("id")?, command.needed("seed")?);
        let length = command.needed_size("length")?;
        if let Some(part) = command.number("part")? {
            let posted = self.receives.get(&context).context("not posted")?;
            let part = posted.parts.get(usize::try_from(part)?).context("no such part")?;
            let bytes = part.as_slice().unwrap_or_default();
            ensure!(bytes.len() >= length, "the part is shorter");
            say_damage(memory::check_pattern(&bytes[..length], seed));
            return Ok(());
        }
        let from = command.number("from")?.unwrap_or(0).try_into()?;
        if let Some(verdict) = self.remote.check(context, (from, length), seed) {
            say_damage(verdict?);
            return Ok(());
        }
        let posted = self.receives.remove(&context).context("not posted")?;
        let memory = posted.memory.context("not completed")?;
        let bytes = memory.as_slice().unwrap_or_default();
        ensure!(bytes.len() >= length, "the buffer is shorter");
        let damage = memory::check_pattern(&bytes[..length], seed)
            .and_then(|()| memory::check_untouched(&bytes[length..]))
            .and_then(|()| posted.guards.check());
        say_damage(damage);
        Ok(())
    }

    /// `check-rest id=`: no byte of a multi-receive buffer was written outside its messages.
    fn check_rest(&mut self, command: &mut Command<'_>) -> Result<()> {
        let posted = self.receives.remove(&command.needed("id")?).context("not posted")?;
        let rest = posted.memory.context("not completed")?;
        let damage = memory::check_untouched(rest.as_slice().unwrap_or_default());
        say_damage(damage.and_then(|()| posted.guards.check()));
        Ok(())
    }
}

/// The memory of an operation that was not started.
fn reclaim(buffer: Buffer) -> Result<BytesMut> {
    buffer.into_bytes().try_into_mut().ok().context("the buffer is still shared")
}

fn say_damage(damage: Result<(), Damage>) {
    match damage {
        Ok(()) => println!("intact"),
        Err(damage) => println!("damaged {damage}"),
    }
}
