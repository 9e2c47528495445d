//! Sizes, offsets and constants as the installed C headers have them, for tests of declarations in Rust.
//!
//! ```text
//!   numbers ─► C program that prints its expressions ─► cc ─► what it prints, compared with the numbers
//! ```

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// A size, offset or constant: its C expression, and its value here.
#[derive(Debug)]
pub struct Number {
    /// The C expression.
    pub c: String,
    /// As C converts it to 64 bits without a sign.
    pub here: u64,
}

/// A size or an offset.
pub fn number(c: impl Into<String>, here: usize) -> Number {
    Number { c: c.into(), here: here as u64 }
}

/// Lists sizes and offsets of structures; `member = "other"` where the C name differs.
#[macro_export]
macro_rules! layouts {
    ($($type:ident { $($member:ident $(= $c:literal)?),* $(,)? })*) => {{
        let mut numbers = Vec::new();
        $(
            let c = format!("sizeof(struct {})", stringify!($type));
            numbers.push($crate::number(c, size_of::<$type>()));
            $(
                let name = [$($c,)? stringify!($member)][0];
                let c = format!("offsetof(struct {}, {name})", stringify!($type));
                numbers.push($crate::number(c, std::mem::offset_of!($type, $member)));
            )*
        )*
        numbers
    }};
}

/// Lists constants by their C names.
#[macro_export]
macro_rules! constants {
    ($($name:ident)*) => {
        vec![$($crate::Number { c: stringify!($name).to_owned(), here: $name as u64 }),*]
    };
}

/// Compares numbers with those of headers, which a package of Debian has. If it or `cc` isn't installed, prints so; fails
/// then if `EFA_INTEROP=1` says that it is.
#[track_caller]
pub fn assert_same(numbers: &[Number], headers: &[&str], package: &str) {
    let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        writeln!(source, "#include <{header}>").unwrap();
    }
    source.push_str("int main(void) {\n");
    for number in numbers {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({}));", number.c).unwrap();
    }
    source.push_str("}\n");

    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("layout");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-x", "c", "-", "-o"]).arg(&program);
    compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let Ok(mut compiler) = compiler.spawn() else { return is_missing("cc") };
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let compiled = compiler.wait_with_output().unwrap();
    if !compiled.status.success() {
        let message = String::from_utf8_lossy(&compiled.stderr);
        assert!(message.contains(&format!("fatal error: {}", headers[0])), "{message}");
        return is_missing(package);
    }
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success());
    let in_c = String::from_utf8(output.stdout).unwrap();
    let in_c: Vec<u64> = in_c.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(in_c.len(), numbers.len());
    let differing: Vec<_> = numbers
        .iter()
        .zip(in_c)
        .filter(|(number, in_c)| number.here != *in_c)
        .map(|(number, in_c)| format!("{}: {in_c} in C, {} here", number.c, number.here))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

fn is_missing(what: &str) {
    let needed = std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1");
    assert!(!needed, "{what} is missing although EFA_INTEROP=1 is set");
    eprintln!("skipped: {what} is not installed");
}
