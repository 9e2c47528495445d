//! The functions that the library exports are those of `efa-soft-names`.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::library;
use efa_soft_names::{EFA, IBVERBS, TABLE};

/// Of a private version of libibverbs, so the library of its name leaves it to the machine's.
const PRIVATE: &str = "ibv_query_gid_type";

fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    bytes[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Names of what an ELF file exports.
fn exports(file: &[u8]) -> BTreeSet<String> {
    const DYNSYM: usize = 11;
    let header = |index: usize| &file[number(file, 40, 8) + 64 * index..];
    let content = |header: &[u8]| &file[number(header, 24, 8)..][..number(header, 32, 8)];
    let symbols = (0..number(file, 60, 2)).map(header).find(|at| number(at, 4, 4) == DYNSYM);
    let symbols = symbols.unwrap();
    let names = content(header(number(symbols, 40, 4)));
    let defined = content(symbols).chunks(24).filter(|symbol| number(symbol, 6, 2) != 0);
    let name = |symbol| {
        let name = names[number(symbol, 0, 4)..].split(|byte| *byte == 0).next().unwrap();
        String::from_utf8(name.to_vec()).unwrap()
    };
    defined.map(name).collect()
}

#[test]
fn every_exported_function_has_a_version() {
    let exports = exports(&std::fs::read(library()).unwrap());
    let named = IBVERBS.iter().chain(EFA).flat_map(|node| node.functions).copied();
    let named: BTreeSet<String> = named.chain([PRIVATE, TABLE]).map(String::from).collect();
    let missing: Vec<_> = named.difference(&exports).collect();
    let unnamed: Vec<_> = exports
        .difference(&named)
        .filter(|name| name.contains("ibv_") || name.starts_with("efadv_"))
        .collect();
    assert_eq!((missing, unnamed), (vec![], vec![]));
}
