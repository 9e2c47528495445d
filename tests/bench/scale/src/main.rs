//! How `efa` grows: many endpoints, peers, addresses and processes. `cargo xtask bench scale` runs this program and
//! counts its instructions.
//!
//! ```text
//! efa-bench-scale heap endpoints LINK N | connections N | peers N | addresses N | rings N
//! efa-bench-scale count enable N | idle N | message N | speak N | known N | insert N | among N
//! efa-bench-scale threads MILLISECONDS
//! efa-bench-scale all-to-all PROCESSES SECONDS
//! ```
//!
//! Each line of the output is a figure: what, of how many, which measure, its value, as in `peers 1000 bytes 312.4`.
//! `count` prints how many times the work was done that callgrind counts by [`counted`].

mod addresses;
mod all_to_all;
mod endpoints;
mod peers;
mod shared;
mod threads;
mod world;

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A line of the output.
fn say(what: &str, items: usize, measure: &str, value: impl fmt::Display) {
    println!("{what} {items} {measure} {value}");
}

/// What callgrind counts: it finds this function by its name.
#[inline(never)]
fn counted(work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    work()
}

/// Ends the process after this time in any case.
fn limit(time: Duration) {
    // Not joined: it ends with the process, or ends the process.
    std::thread::spawn(move || {
        std::thread::sleep(time);
        eprintln!("error: not done after {time:?}");
        std::process::exit(1);
    });
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().with_context(|| format!("`{word}`"));
    match *words.as_slice() {
        ["heap", "endpoints", link, count] => endpoints::heap(link, number(count)?),
        ["heap", "connections", count] => endpoints::connections(number(count)?),
        ["heap", "peers", count] => peers::heap(number(count)?),
        ["heap", "rings", count] => peers::rings(number(count)?),
        ["heap", "addresses", count] => addresses::heap(number(count)?),
        ["count", "enable", count] => endpoints::enable(number(count)?),
        ["count", "idle", count] => endpoints::idle(number(count)?),
        ["count", "message", count] => endpoints::message(number(count)?),
        ["count", "speak", count] => peers::speak(number(count)?),
        ["count", "known", count] => peers::known(number(count)?),
        ["count", "insert", count] => addresses::insert(number(count)?),
        ["count", "among", count] => addresses::among(number(count)?),
        ["threads", time] => threads::run(Duration::from_millis(number(time)? as u64)),
        ["all-to-all", count, seconds] => {
            all_to_all::run(number(count)?, Duration::from_secs(number(seconds)? as u64))
        }
        ["all-to-all-process", directory, rank, count, seconds] => {
            limit(Duration::from_secs(number(seconds)? as u64));
            all_to_all::process(directory.as_ref(), number(rank)?, number(count)?)
        }
        _ => bail!("no such measurement: {words:?}"),
    }
}
