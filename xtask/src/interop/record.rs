//! The lines of a peer: results and completions.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

use super::matrix::Stack;

/// A line: a word, and `key=value` words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    line: String,
    pub(crate) word: String,
    fields: BTreeMap<String, String>,
}

impl Record {
    pub(crate) fn parse(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let word = words.next().unwrap_or_default().to_owned();
        let fields = words.map(|word| word.split_once('=').unwrap_or((word, "")));
        let fields = fields.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { line: line.to_owned(), word, fields }
    }

    pub(crate) fn is_completion(&self) -> bool {
        matches!(&*self.word, "done" | "failed")
    }

    /// Whether it is an error that belongs to no operation.
    pub(crate) fn is_event(&self) -> bool {
        self.word == "event"
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str> {
        let text = self.fields.get(key).with_context(|| format!("no {key}= in `{self}`"))?;
        Ok(text)
    }

    pub(crate) fn number(&self, key: &str) -> Result<u64> {
        let text = self.text(key)?;
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.with_context(|| format!("{key}= is no number in `{self}`"))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

/// An operation that ended.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) record: Record,
    /// The operation; `None` if it has no context.
    pub(crate) id: Option<u64>,
    flags: String,
}

impl Completion {
    /// Out of a line of a peer. A tagged message is `tagged`, and not `msg` too, but of libfabric's EFA provider,
    /// which says both.
    pub(crate) fn parse(record: Record, stack: Stack) -> Result<Self> {
        let id = match record.text("id")? {
            "none" => None,
            _ => Some(record.number("id")?),
        };
        let mut flags = record.text("flags")?.to_owned();
        if stack == Stack::C {
            flags = flags.replace("msg+tagged", "tagged");
        }
        Ok(Self { id, flags, record })
    }

    /// Whether a word is among its flags.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split('+').any(|word| word == flag)
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.record.word == "done"
    }

    /// It must have succeeded and have these flags, `multi` aside, and no others.
    pub(crate) fn expect(&self, flags: &[&str]) -> Result<()> {
        ensure!(self.succeeded(), "expected success, seen `{}`", self.record);
        self.expect_flags(flags)
    }

    pub(crate) fn expect_flags(&self, flags: &[&str]) -> Result<()> {
        let seen: Vec<_> = self.flags.split('+').filter(|flag| *flag != "multi").collect();
        ensure!(seen == flags, "expected flags {}, seen `{}`", flags.join("+"), self.record);
        Ok(())
    }

    /// A field must have this value.
    pub(crate) fn expect_number(&self, key: &str, value: u64) -> Result<()> {
        let seen = self.record.number(key)?;
        ensure!(seen == value, "expected {key}={value} ({value:#x}), seen `{}`", self.record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_parse_in_decimal_and_hexadecimal() {
        let record = Record::parse("done id=7 flags=recv+msg tag=0x1f");
        assert_eq!(record.word, "done");
        assert_eq!((record.number("id").unwrap(), record.number("tag").unwrap()), (7, 31));
        assert!(record.number("flags").is_err());
        assert!(record.text("length").is_err());
    }

    #[test]
    fn flags_must_agree_except_multi() {
        let completion = |line| Completion::parse(Record::parse(line), Stack::Rust).unwrap();
        let received = completion("done id=7 flags=recv+msg+multi");
        assert!(received.expect(&["recv", "msg"]).is_ok());
        assert!(received.expect(&["recv", "msg", "data"]).is_err());
        assert!(received.has("multi"));
        assert!(completion("failed id=7 flags=recv+msg").expect(&["recv", "msg"]).is_err());
        assert_eq!(completion("done id=none flags=none").id, None);
    }

    #[test]
    fn msg_beside_tagged_is_expected_of_libfabric_only() {
        let completion = |stack| {
            let record = Record::parse("done id=7 flags=recv+msg+tagged+data");
            Completion::parse(record, stack).unwrap()
        };
        assert!(completion(Stack::C).expect(&["recv", "tagged", "data"]).is_ok());
        assert!(completion(Stack::Rust).expect(&["recv", "tagged", "data"]).is_err());
    }
}
