//! The interface for scenarios: two peers in each other's address vectors, messages between them, and checks of
//! their completions and bytes.

use std::fmt;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::build::Release;
use super::cell::Place;
use super::matrix::{Cell, Device, Rdma, Stack};
use super::peer::{Peer, Traces};
use super::record::Completion;

/// Which peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The first of the pair: the sender.
    Sender,
    /// The second of the pair.
    Receiver,
    /// One more, of the sender's stack; it is there if a scenario brings it in.
    Third,
}

impl Side {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::Third => "third",
        }
    }
}

/// A message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    pub(crate) size: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) inject: bool,
    /// It completes when it lies in its receive.
    pub(crate) delivery: bool,
}

impl Message {
    pub(crate) fn of(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    pub(crate) fn tagged(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    pub(crate) fn with_data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size={}", self.size)?;
        if let Some(tag) = self.tag {
            write!(f, " tag={tag:#x}")?;
        }
        if let Some(data) = self.data {
            write!(f, " data={data:#x}")?;
        }
        if self.inject {
            f.write_str(" inject")?;
        }
        if self.delivery { f.write_str(" delivery") } else { Ok(()) }
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Receive {
    pub(crate) size: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) ignore: u64,
    pub(crate) from: Option<u64>,
}

impl Receive {
    pub(crate) fn of(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// For a message, with some room behind it.
    pub(crate) fn fitting(message: &Message) -> Self {
        Self { size: message.size + ROOM, tag: message.tag, ..Self::default() }
    }

    pub(crate) fn tagged(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "size={}", self.size)?;
        if let Some(tag) = self.tag {
            write!(f, " tag={tag:#x} ignore={:#x}", self.ignore)?;
        }
        match self.from {
            Some(peer) => write!(f, " from={peer}"),
            None => Ok(()),
        }
    }
}

/// Bytes of a buffer behind the message, which must stay untouched.
pub(crate) const ROOM: u64 = 40;

/// A message that was sent: its id at the sender, which is also the seed of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) id: u64,
    pub(crate) from: Side,
    pub(crate) message: Message,
}

/// Memory that a peer lets others write and read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposed {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The peers of a cell.
pub(crate) struct Stage<'a> {
    place: &'a Place<'a>,
    host: &'a str,
    cell: Cell,
    directory: &'a Path,
    deadline: Instant,
    peers: Vec<(Side, Peer)>,
    traces: Vec<Traces>,
    addresses: Vec<(Side, String)>,
    last_id: u64,
    inject_limit: u64,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(
        place: &'a Place<'a>,
        host: &'a str,
        cell: Cell,
        directory: &'a Path,
        deadline: Instant,
    ) -> Self {
        let (peers, traces, addresses) = Default::default();
        let (last_id, inject_limit) = Default::default();
        Self {
            place,
            host,
            cell,
            directory,
            deadline,
            peers,
            traces,
            addresses,
            last_id,
            inject_limit,
        }
    }

    /// Starts both peers and makes them known to each other.
    pub(crate) fn open(&mut self) -> Result<()> {
        self.start(Side::Sender)?;
        self.start(Side::Receiver)?;
        self.open_both()
    }

    fn open_both(&mut self) -> Result<()> {
        self.open_endpoint(Side::Sender, self.cell.scenario.sender)?;
        self.open_endpoint(Side::Receiver, self.cell.scenario.receiver)?;
        self.introduce(Side::Sender, Side::Receiver)?;
        self.introduce(Side::Receiver, Side::Sender)?;
        Ok(())
    }

    /// Gives both peers new endpoints.
    pub(crate) fn begin_anew(&mut self) -> Result<()> {
        for side in [Side::Sender, Side::Receiver] {
            self.peer(side)?.close_endpoint()?;
        }
        self.open_both()
    }

    /// Starts the process of a peer.
    pub(crate) fn start(&mut self, side: Side) -> Result<()> {
        // A restarted peer writes files of its own.
        let lives =
            self.traces.iter().filter(|traces| traces.name.starts_with(side.name())).count();
        let name = match lives {
            0 => side.name().to_owned(),
            _ => format!("{}-{}", side.name(), lives + 1),
        };
        let traces = Traces::new(self.directory, &name, self.stack(side));
        let mut command = self.place.peer(self.host, &self.cell, &traces);
        command.envs(self.cell.scenario.environment.iter().copied());
        let faults = self.cell.scenario.faults;
        if let Some(count) = faults.not_ready_of_each {
            command.env("EFA_SOFT_RNR_EACH", count);
        }
        if let Some(refused) = faults.refused.filter(|refused| refused.side == side) {
            let lengths = match self.stack(side) {
                Stack::C => refused.of_c,
                Stack::Rust if self.place.device(&traces) == Device::Provider => {
                    refused.of_provider
                }
                Stack::Rust => refused.of_rust,
            };
            command.env("EFA_SOFT_REFUSE", lengths);
        }
        let peer = Peer::start(&mut command, &traces, self.deadline, self.place.trace)?;
        self.traces.push(traces);
        self.peers.retain(|(there, _)| *there != side);
        self.peers.push((side, peer));
        Ok(())
    }

    /// Opens an endpoint and remembers its address.
    pub(crate) fn open_endpoint(&mut self, side: Side, options: &str) -> Result<()> {
        let opened = self.peer(side)?.run(&format!("open {options}"))?;
        ensure!(opened.word == "opened", "{}: `open`: seen `{opened}`", side.name());
        let address = opened.text("address")?.to_owned();
        if side == Side::Sender {
            self.inject_limit = opened.number("inject")?;
        }
        self.addresses.retain(|(there, _)| *there != side);
        self.addresses.push((side, address));
        Ok(())
    }

    /// Inserts `other` into the address vector of `side`; returns its number there.
    pub(crate) fn introduce(&mut self, side: Side, other: Side) -> Result<u64> {
        let address = self.address(other)?.to_owned();
        self.peer(side)?.run_ok(&format!("peer address={address}"))?.number("peer")
    }

    fn address(&self, side: Side) -> Result<&str> {
        let found = self.addresses.iter().find(|(there, _)| *there == side);
        Ok(&found.with_context(|| format!("the {} is not open", side.name()))?.1)
    }

    pub(crate) fn stack(&self, side: Side) -> Stack {
        let [sender, receiver] = self.cell.pair.stacks();
        if side == Side::Receiver { receiver } else { sender }
    }

    /// The longest message that the sender can inject.
    pub(crate) fn inject_limit(&self) -> u64 {
        self.inject_limit
    }

    pub(crate) fn peer(&mut self, side: Side) -> Result<&mut Peer> {
        let found = self.peers.iter_mut().find(|(there, _)| *there == side);
        Ok(&mut found.with_context(|| format!("there is no {}", side.name()))?.1)
    }

    pub(crate) fn sender(&mut self) -> Result<&mut Peer> {
        self.peer(Side::Sender)
    }

    pub(crate) fn receiver(&mut self) -> Result<&mut Peer> {
        self.peer(Side::Receiver)
    }

    /// A number that no operation has yet.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The number that was taken last.
    pub(crate) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Memory at a peer, untouched or with the pattern of a seed.
    pub(crate) fn expose(&mut self, side: Side, size: u64, seed: Option<u64>) -> Result<Exposed> {
        let id = self.new_id();
        let seed = seed.map(|seed| format!(" seed={seed}")).unwrap_or_default();
        let record = self.peer(side)?.run(&format!("expose id={id} size={size}{seed}"))?;
        ensure!(record.word == "exposed", "{}: `expose`: seen `{record}`", side.name());
        Ok(Exposed { id, address: record.number("address")?, key: record.number("key")? })
    }

    /// The bytes of memory at a peer, in hexadecimal.
    pub(crate) fn show(&mut self, side: Side, what: &str) -> Result<String> {
        let record = self.peer(side)?.run(&format!("show {what}"))?;
        ensure!(record.word == "bytes", "{}: `show {what}`: seen `{record}`", side.name());
        Ok(record.text("hex")?.to_owned())
    }

    /// Lets both peers poll for a while, one after the other, so that sent packets and their replies arrive.
    pub(crate) fn settle(&mut self) -> Result<()> {
        for _ in 0..4 {
            self.sender()?.run_ok("poll rounds=300")?;
            self.receiver()?.run_ok("poll rounds=300")?;
        }
        Ok(())
    }

    /// Has the sender send; its completion is to be asked for.
    pub(crate) fn send(&mut self, message: Message) -> Result<Sent> {
        self.send_from(Side::Sender, 0, message)
    }

    /// Has the sender send, which may be refused: gives the error then.
    pub(crate) fn try_send(&mut self, message: Message) -> Result<Result<Sent, u64>> {
        let id = self.new_id();
        let command = format!("send id={id} to=0 seed={id} {message}");
        let record = self.sender()?.run(&command)?;
        match record.word.as_str() {
            "ok" => Ok(Ok(Sent { id, from: Side::Sender, message })),
            "refused" => Ok(Err(record.number("error")?)),
            _ => bail!("`{command}`: seen `{record}`"),
        }
    }

    /// The libfabric that the C peers are linked with.
    pub(crate) fn libfabric(&self) -> Release {
        self.place.libfabric()
    }

    /// Whether the device reads and writes memory of peers.
    pub(crate) fn rdma(&self) -> Rdma {
        self.cell.rdma
    }

    /// Has a peer send to the one that it knows by this number.
    pub(crate) fn send_from(&mut self, from: Side, to: u64, message: Message) -> Result<Sent> {
        let id = self.new_id();
        self.peer(from)?.run_ok(&format!("send id={id} to={to} seed={id} {message}"))?;
        Ok(Sent { id, from, message })
    }

    /// Has the receiver post a receive; gives its id.
    pub(crate) fn receive(&mut self, receive: Receive) -> Result<u64> {
        self.receive_at(Side::Receiver, receive)
    }

    pub(crate) fn receive_at(&mut self, side: Side, receive: Receive) -> Result<u64> {
        let id = self.new_id();
        self.peer(side)?.run_ok(&format!("receive id={id} {receive}"))?;
        Ok(id)
    }

    /// The send must complete as it should. (An injected message has no completion.)
    pub(crate) fn expect_sent(&mut self, sent: &Sent) -> Result<()> {
        if sent.message.inject {
            return Ok(());
        }
        let completion = self.peer(sent.from)?.completion_of(sent.id)?;
        let tagged: &[_] = match sent.message.tag {
            Some(_) => &["send", "tagged"],
            None => &["send", "msg"],
        };
        completion.expect(tagged).with_context(|| format!("{} sent", sent.message))
    }

    /// The receive must complete with this message, byte by byte.
    pub(crate) fn expect_received(&mut self, id: u64, sent: &Sent) -> Result<()> {
        self.expect_received_at(Side::Receiver, id, sent, 0)
    }

    /// As [`expect_received`](Self::expect_received), anywhere, from the peer known as `from`.
    pub(crate) fn expect_received_at(
        &mut self,
        side: Side,
        id: u64,
        sent: &Sent,
        from: u64,
    ) -> Result<()> {
        let message = sent.message;
        let completion = self.peer(side)?.completion_of(id)?;
        expect_message(&completion, &message, from)
            .with_context(|| format!("{message} received"))?;
        self.check(side, &format!("id={id} length={} seed={}", message.size, sent.id))
            .with_context(|| format!("the bytes of {message}"))
    }

    /// Checks memory at a peer.
    pub(crate) fn check(&mut self, side: Side, what: &str) -> Result<()> {
        self.run_check(side, &format!("check {what}"))
    }

    /// Checks what is left of a multi-receive buffer.
    pub(crate) fn check_rest(&mut self, side: Side, id: u64) -> Result<()> {
        self.run_check(side, &format!("check-rest id={id}"))
    }

    fn run_check(&mut self, side: Side, command: &str) -> Result<()> {
        let verdict = self.peer(side)?.run(command)?;
        ensure!(verdict.word == "intact", "{}: `{command}`: seen `{verdict}`", side.name());
        Ok(())
    }

    /// Sends a message from sender to receiver, with a receive posted.
    pub(crate) fn exchange(&mut self, message: Message) -> Result<()> {
        let receive = self.receive(Receive::fitting(&message))?;
        let sent = self.send(message)?;
        self.expect_sent(&sent)?;
        self.expect_received(receive, &sent)
    }

    /// A message in the other direction.
    pub(crate) fn answer(&mut self, message: Message) -> Result<()> {
        let receive = self.receive_at(Side::Sender, Receive::fitting(&message))?;
        let sent = self.send_from(Side::Receiver, 0, message)?;
        self.expect_sent(&sent)?;
        self.expect_received_at(Side::Sender, receive, &sent, 0)
    }

    /// Each side sends all messages to the other, at the same time; a receive waits for each.
    pub(crate) fn cross(&mut self, messages: &[Message]) -> Result<()> {
        let sides = [(Side::Sender, Side::Receiver), (Side::Receiver, Side::Sender)];
        let mut receives = Vec::new();
        for message in messages {
            for (_, to) in sides {
                receives.push(self.receive_at(to, Receive::fitting(message))?);
            }
        }
        let mut all = Vec::new();
        for message in messages {
            for (from, to) in sides {
                all.push((to, self.send_from(from, 0, *message)?));
            }
        }
        for ((to, sent), receive) in all.iter().zip(receives) {
            self.expect_sent(sent)?;
            self.expect_received_at(*to, receive, sent, 0)?;
        }
        Ok(())
    }

    /// Ends a peer as a crash does.
    pub(crate) fn kill(&mut self, side: Side) -> Result<()> {
        self.peer(side)?.kill()?;
        // The last of its processes is the one that ended.
        let mut lives = self.traces.iter_mut().rev();
        if let Some(traces) = lives.find(|traces| traces.name.starts_with(side.name())) {
            traces.killed = true;
        }
        self.peers.retain(|(there, _)| *there != side);
        Ok(())
    }

    /// Has the software device give this peer's queue pair number to the next that opens.
    pub(crate) fn give_number_again(&mut self, side: Side) -> Result<()> {
        let number = self.queue_pair_number(side)?;
        let file = self.place.hosts().join(self.host).join("next");
        fs::write(&file, number.to_le_bytes())
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// The number of a peer's queue pair, out of its address.
    pub(crate) fn queue_pair_number(&self, side: Side) -> Result<u16> {
        let address = self.address(side)?;
        let digits = address.get(32..36).context("a short address")?;
        Ok(u16::from_str_radix(digits, 16)?.swap_bytes())
    }

    /// Closes the peers, which must have no unexpected completions.
    pub(crate) fn close(&mut self) -> Result<()> {
        for (_, peer) in &mut self.peers {
            peer.close()?;
        }
        Ok(())
    }

    /// Ends all processes; returns their files.
    pub(crate) fn end(self) -> Vec<Traces> {
        drop(self.peers);
        // All peers are on one host, which has one interface.
        if let Some((_, address)) = self.addresses.first()
            && let Err(error) = remove_shm_of(address)
        {
            print_error!("cannot remove what libfabric has left: {error:#}");
        }
        self.traces
    }
}

/// Removes what libfabric's processes leave in shared memory when they crash: 16 MiB each, of its own
/// shm provider, which it opens even if it may not use it. The names begin with the interface.
fn remove_shm_of(address: &str) -> Result<()> {
    let gid = address.get(..32).context("a short address")?;
    let prefix = format!("{}_", Ipv6Addr::from(u128::from_str_radix(gid, 16)?));
    for entry in fs::read_dir("/dev/shm")? {
        let file = entry?;
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// A completion must be that of a message received from a peer.
pub(crate) fn expect_message(completion: &Completion, message: &Message, from: u64) -> Result<()> {
    let mut flags = match message.tag {
        Some(_) => vec!["recv", "tagged"],
        None => vec!["recv", "msg"],
    };
    if message.data.is_some() {
        flags.push("data");
    }
    completion.expect(&flags)?;
    completion.expect_number("length", message.size)?;
    completion.expect_number("from", from)?;
    if let Some(tag) = message.tag {
        completion.expect_number("tag", tag)?;
    }
    match message.data {
        Some(data) => completion.expect_number("data", data),
        None => Ok(()),
    }
}
