//! `--messages`: messages, writes, reads and atomics, each joined of its packets.
//!
//! ```text
//!   entry ─► whose is it? ─┬─ a request: by msg_id, send_id or recv_id, else by its bytes ─┐
//!                          └─ another packet: by the ids that it names ────────────────────┴─► Operation
//!                                                                                              │
//!                    more than MOST are followed, or the captures end: the oldest is printed ◄─┘
//! ```
//!
//! A packet is in the captures once for each event. Numbers are used again: a request that was there already, and did not
//! fail, begins another operation.

mod operation;
mod show;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};

use efa_proto::{Header, MsgId, PacketType, PeerErrorReport};
use efa_sim::record::{PacketEvent, QueuePairId, Record};

use self::operation::{Operation, State};
use super::Entry;
use super::operations::OperationId;

/// Most operations that are followed at a time, so that captures of any length fit the memory.
const MOST: usize = 1 << 16;
/// Most queue pairs that are known to have captured what they received.
const MOST_RECEIVERS: usize = 4096;

/// The two sides of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    requester: QueuePairId,
    responder: QueuePairId,
}

impl Ends {
    /// Of the source of a request and its destination.
    fn of_request(record: &Record<'_>) -> Self {
        Self { requester: record.source, responder: record.destination }
    }
}

/// By what a packet names its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Message(Ends, MsgId),
    Id(OperationId),
    /// The hash of a request that has no number.
    Bytes(Ends, u64),
}

/// Which operations are printed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Lines,
    Json,
    /// Their number alone.
    Count,
}

/// The operations of captures.
pub(super) struct Messages {
    form: Form,
    /// Only those that are not complete.
    only_unfinished: bool,
    /// In the order of their first packets.
    followed: VecDeque<Operation>,
    /// Number of operations before the first of these.
    before: u64,
    /// The number of the latest operation with a key.
    by_key: HashMap<Key, u64>,
    /// Numbers of operations whose requests have the same bytes, that were sent and not received yet.
    alike: HashMap<Key, VecDeque<u64>>,
    /// Queue pairs that received something, and so have what they receive in the captures.
    receivers: HashSet<QueuePairId>,
    /// Those that were printed.
    printed: u64,
    /// Those that were given up before they were complete, as too many were followed.
    given_up: u64,
    /// Packets of operations whose request is not there.
    strays: u64,
}

impl Messages {
    pub(super) fn new(form: Form, only_unfinished: bool) -> Self {
        Self {
            form,
            only_unfinished,
            followed: VecDeque::new(),
            before: 0,
            by_key: HashMap::new(),
            alike: HashMap::new(),
            receivers: HashSet::new(),
            printed: 0,
            given_up: 0,
            strays: 0,
        }
    }

    /// Takes the next packet of the captures. An operation is printed if one of its packets `matches`.
    pub(super) fn take(
        &mut self,
        entry: &Entry<'_>,
        matches: bool,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Some(header) = entry.content.header() else { return Ok(()) };
        let record = entry.record;
        if record.event == PacketEvent::Received && self.receivers.len() < MOST_RECEIVERS {
            self.receivers.insert(record.destination);
        }
        if matches!(header, Header::Handshake(_) | Header::NeverSent(_)) {
            return Ok(());
        }
        let ids = OperationId::named(record, header);
        let number = if header.packet_type().is_req() {
            Some(self.of_request(entry, header, ids))
        } else {
            self.of_other(record, header, ids)
        };
        let Some(number) = number else {
            self.strays += 1;
            return Ok(());
        };
        // Those that were printed have no keys.
        let operation = &mut self.followed[(number - self.before) as usize];
        operation.add(entry, header);
        operation.matches |= matches;
        // A PEER_ERROR may have one id for either role.
        let learned = ids.into_iter().flatten();
        for id in learned.filter(|_| header.packet_type() != PacketType::PeerError) {
            if let Some(former) = operation.learn(id).map(Key::Id)
                && self.by_key.get(&former) == Some(&number)
            {
                self.by_key.remove(&former);
            }
            self.by_key.insert(Key::Id(id), number);
        }
        while self.followed.len() > MOST {
            let state = self.print_first(out)?;
            self.given_up += u64::from(state != Some(State::Complete));
        }
        Ok(())
    }

    /// The operation of a request, which may begin with it.
    fn of_request(
        &mut self,
        entry: &Entry<'_>,
        header: &Header<'_>,
        [sender, receiver]: [Option<OperationId>; 2],
    ) -> u64 {
        let ends = Ends::of_request(entry.record);
        let key = match (header.msg_id(), sender.or(receiver)) {
            (Some(id), _) => Key::Message(ends, id),
            (None, Some(id)) => Key::Id(id),
            (None, None) => return self.of_nameless(entry, header, ends),
        };
        if let Some(&number) = self.by_key.get(&key)
            && self.operation(number).takes(entry, header)
        {
            return number;
        }
        let number = self.begin(entry, header, ends, key);
        self.by_key.insert(key, number);
        number
    }

    /// The operation of a request that has no number, by its bytes. Of several that are equal, the first that was sent is
    /// received first.
    fn of_nameless(&mut self, entry: &Entry<'_>, header: &Header<'_>, ends: Ends) -> u64 {
        let mut hasher = DefaultHasher::new();
        entry.record.bytes.hash(&mut hasher);
        let key = Key::Bytes(ends, hasher.finish());
        let first = self.alike.get(&key).and_then(|alike| alike.front().copied());
        if let Some(number) = first
            && self.operation(number).takes(entry, header)
        {
            if entry.record.event == PacketEvent::Received {
                self.forget_first(key);
            }
            return number;
        }
        let number = self.begin(entry, header, ends, key);
        if entry.record.event != PacketEvent::Received {
            self.alike.entry(key).or_default().push_back(number);
        }
        number
    }

    /// The operation of a packet that is no request, by the ids that it names, or by its message.
    fn of_other(
        &self,
        record: &Record<'_>,
        header: &Header<'_>,
        ids: [Option<OperationId>; 2],
    ) -> Option<u64> {
        let ids = ids.into_iter().flatten().map(Key::Id);
        let answered = Ends { requester: record.destination, responder: record.source };
        let ends = match header {
            // 1: from the side that sent the message.
            Header::PeerErrorReport(PeerErrorReport { emitter: 1, .. }) => Ends::of_request(record),
            _ => answered,
        };
        let message = header.msg_id().map(|id| Key::Message(ends, id));
        ids.chain(message).find_map(|key| self.by_key.get(&key).copied())
    }

    fn operation(&self, number: u64) -> &Operation {
        &self.followed[(number - self.before) as usize]
    }

    fn begin(&mut self, entry: &Entry<'_>, header: &Header<'_>, ends: Ends, key: Key) -> u64 {
        self.followed.push_back(Operation::new(entry, header, ends, key));
        self.before + self.followed.len() as u64 - 1
    }

    fn forget_first(&mut self, key: Key) {
        if let Some(alike) = self.alike.get_mut(&key) {
            alike.pop_front();
            if alike.is_empty() {
                self.alike.remove(&key);
            }
        }
    }

    /// Prints the oldest operation, and forgets it. Returns how far it is; `None` if there is none.
    fn print_first(&mut self, out: &mut impl Write) -> io::Result<Option<State>> {
        let Some(operation) = self.followed.pop_front() else { return Ok(None) };
        let number = self.before;
        self.before += 1;
        for key in operation.keys() {
            if self.by_key.get(&key) == Some(&number) {
                self.by_key.remove(&key);
            }
            if self.alike.get(&key).is_some_and(|alike| alike.front() == Some(&number)) {
                self.forget_first(key);
            }
        }
        let state = operation.state(|id| self.receivers.contains(&id));
        if operation.matches && !(self.only_unfinished && state == State::Complete) {
            self.printed += 1;
            match self.form {
                Form::Lines => show::line(&operation, state, out)?,
                Form::Json => show::json(&operation, state, out)?,
                Form::Count => {}
            }
        }
        Ok(Some(state))
    }

    /// Prints those that are left. `notes` gets what is to be said about the captures as a whole.
    pub(super) fn finish(
        mut self,
        out: &mut impl Write,
        notes: &mut Vec<String>,
    ) -> io::Result<()> {
        while self.print_first(out)?.is_some() {}
        if self.form == Form::Count {
            writeln!(out, "{}", self.printed)?;
        }
        if self.strays > 0 {
            let strays = self.strays;
            notes.push(format!("packets of operations that began before the captures: {strays}"));
        }
        if self.given_up > 0 {
            notes.push(format!(
                "operations shown as they were when {MOST} others had begun after them: {}",
                self.given_up,
            ));
        }
        Ok(())
    }
}
