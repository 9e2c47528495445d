//! One line of the command language: a verb, then `key=value` words and flags.

use anyhow::{Context, Result, ensure};

/// Longest buffer, far beyond the scenarios'.
const LONGEST: u64 = 1 << 32;

/// A command whose words are read one by one.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    pub(crate) verb: &'a str,
    words: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Command<'a> {
    pub(crate) fn parse(line: &'a str) -> Result<Self> {
        let mut words = line.split_whitespace();
        let verb = words.next().context("an empty line")?;
        let words = words.map(|word| match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        });
        Ok(Self { verb, words: words.collect() })
    }

    fn take(&mut self, key: &str) -> Option<Option<&'a str>> {
        let at = self.words.iter().position(|(word, _)| *word == key)?;
        Some(self.words.swap_remove(at).1)
    }

    /// The value of a key.
    pub(crate) fn text(&mut self, key: &str) -> Result<&'a str> {
        self.take(key).flatten().with_context(|| format!("{key}= is missing"))
    }

    /// Whether a flag is given.
    pub(crate) fn flag(&mut self, key: &str) -> bool {
        self.take(key).is_some()
    }

    /// The number of a key, if given.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<u64>> {
        let Some(text) = self.take(key).flatten() else { return Ok(None) };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.map(Some).with_context(|| format!("{key}={text}"))
    }

    /// The number of a required key.
    pub(crate) fn needed(&mut self, key: &str) -> Result<u64> {
        self.number(key)?.with_context(|| format!("{key}= is missing"))
    }

    /// As [`needed`](Self::needed), for a length or an index.
    pub(crate) fn needed_size(&mut self, key: &str) -> Result<usize> {
        let size = self.needed(key)?;
        ensure!(size <= LONGEST, "{key}={size} is more than {LONGEST}");
        Ok(size.try_into()?)
    }

    /// Fails if a word was not read.
    pub(crate) fn end(self) -> Result<()> {
        ensure!(self.words.is_empty(), "{} doesn't understand {:?}", self.verb, self.words);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_beyond_memory_are_refused() {
        let size = |line| Command::parse(line).unwrap().needed_size("size");
        assert_eq!(size("receive size=0x10").unwrap(), 16);
        let refused = size("receive size=18446744073709551615").unwrap_err().to_string();
        assert_eq!(refused, "size=18446744073709551615 is more than 4294967296");
    }
}
