//! What `cargo test` prints: how many tests passed, and which of them were skipped.
//!
//! A test that can't run on this machine prints `skipped: REASON` and passes. With `--show-output` libtest prints what
//! passed tests have printed, before the result of their program:
//!
//! ```text
//!
//! successes:
//!
//! ---- module::name_of_the_test stdout ----
//! skipped: python3 is not installed
//!
//!
//! successes:
//!     module::name_of_the_test
//!
//! test result: ok. 1 passed; …
//! ```

use std::fmt;

/// The argument of libtest.
pub(crate) const SHOW_OUTPUT: &str = "--show-output";

/// Tests that cargo reported, summed over its `test result:` lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCount {
    pub(crate) passed: usize,
    /// Also counted as passed.
    pub(crate) skipped: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// Reads the lines of a run.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) count: TestCount,
    /// Which tests were skipped, and why.
    pub(crate) skipped: Vec<(String, String)>,
    /// What passed tests have printed is read.
    in_successes: bool,
    /// The test whose output is read.
    test: String,
    /// The line before had text. libtest's own headings follow empty lines.
    in_text: bool,
}

impl Reader {
    /// Takes a line; returns whether it is for people. What passed tests have printed isn't.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let may_be_heading = !std::mem::replace(&mut self.in_text, !line.is_empty());
        // Without `--show-output` it follows the dots of `--quiet`.
        if (may_be_heading || !self.in_successes)
            && let Some(count) = TestCount::of_line(line)
        {
            self.count = self.count + count;
            self.in_successes = false;
        }
        if may_be_heading {
            match line {
                "successes:" => self.in_successes = true,
                "failures:" => self.in_successes = false,
                _ => {}
            }
        }
        if self.in_successes {
            self.take_output(line);
        }
        !self.in_successes
    }

    fn take_output(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            test.clone_into(&mut self.test);
        } else if let Some(reason) = line.strip_prefix("skipped: ")
            // Those run in steps of their own.
            && !reason.contains("EFA_INTEROP")
        {
            let known = self.skipped.last().is_some_and(|(test, _)| *test == self.test);
            self.count.skipped += usize::from(!known);
            self.skipped.push((self.test.clone(), reason.to_owned()));
        }
    }
}

impl TestCount {
    /// Reads libtest's closing line:
    /// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`
    fn of_line(line: &str) -> Option<Self> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |label: &str| -> Option<usize> {
            let mut parts = counts.split("; ").map(str::trim);
            parts.find_map(|part| part.strip_suffix(label))?.trim_end().parse().ok()
        };
        Some(Self {
            passed: count("passed")?,
            skipped: 0,
            failed: count("failed")?,
            ignored: count("ignored")?,
        })
    }
}

impl std::ops::Add for TestCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            skipped: self.skipped + other.skipped,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

impl fmt::Display for TestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tests passed", self.passed)?;
        if self.skipped != 0 {
            write!(f, " ({} skipped)", self.skipped)?;
        }
        write!(f, ", {} failed", self.failed)?;
        if self.ignored != 0 {
            write!(f, ", {} ignored", self.ignored)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_counts_are_parsed_from_libtest_output() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; \
                    3 filtered out; finished in 0.01s";
        let count = TestCount::of_line(line).unwrap();
        assert_eq!(count, TestCount { passed: 12, skipped: 0, failed: 1, ignored: 2 });
        assert_eq!(count.to_string(), "12 tests passed, 1 failed, 2 ignored");
        assert_eq!(TestCount::of_line("test result_is_kept ... ok"), None);
        assert_eq!(TestCount::of_line("running 12 tests"), None);
    }

    #[test]
    fn tests_are_counted_also_where_their_output_is_not_shown() {
        const PRINTED: &str = "
running 2 tests
i.
test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let mut reader = Reader::default();
        assert!(PRINTED.lines().all(|line| reader.take(line)), "all of it is for people");
        assert_eq!(reader.count, TestCount { passed: 1, skipped: 0, failed: 0, ignored: 1 });
    }

    #[test]
    fn test_that_skips_itself_is_named_with_its_reason_and_output_of_passed_tests_is_hidden() {
        const PRINTED: &str = "
running 4 tests
....

successes:

---- of_packages stdout ----
skipped: EFA_INTEROP=1 is not set

---- module::of_users stdout ----
skipped: user 1 can't be one
skipped: nor user 2
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured

---- talkative stdout ----
failures:


successes:
    module::of_users
    talkative

failures:

---- wrong stdout ----
skipped: this one isn't

test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let mut reader = Reader::default();
        let shown: Vec<_> = PRINTED.lines().filter(|line| reader.take(line)).collect();
        let count = TestCount { passed: 3, skipped: 1, failed: 1, ignored: 0 };
        assert_eq!(reader.count, count);
        assert_eq!(count.to_string(), "3 tests passed (1 skipped), 1 failed");
        let reasons = ["user 1 can't be one", "nor user 2"];
        let skipped = reasons.map(|reason| ("module::of_users".to_owned(), reason.to_owned()));
        assert_eq!(reader.skipped, skipped);
        assert_eq!(shown[..3], ["", "running 4 tests", "...."]);
        assert_eq!(shown[4], "failures:");
        assert!(shown[5..].concat().starts_with("---- wrong stdout ----skipped: this one isn't"));
    }
}
