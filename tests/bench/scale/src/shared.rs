//! Memory that this process shares with others.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};

/// Memory that this process shares by files in a directory, also by those that have no name any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) bytes: u64,
    /// Rings from one queue pair to another.
    pub(crate) rings: usize,
}

impl Shared {
    /// What is mapped now. Files of the link have all their memory from the start.
    pub(crate) fn now(directory: &Path) -> Result<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
        let mut files: HashMap<&str, (u64, bool)> = HashMap::new();
        for line in maps.lines() {
            // `7f21-7f42 rw-s 00001000 00:1b 1234   /dev/shm/…/ring-… (deleted)`
            let Some((numbers, path)) = line.split_once('/') else { continue };
            if !Path::new(&format!("/{path}")).starts_with(directory) {
                continue;
            }
            let words: Vec<&str> = numbers.split_whitespace().collect();
            let [range, _, offset, _, inode] = *words else { continue };
            let hexadecimal = |text| u64::from_str_radix(text, 16);
            let (from, to) = range.split_once('-').context("a range")?;
            let end = hexadecimal(offset)? + hexadecimal(to)? - hexadecimal(from)?;
            let is_ring = path.rsplit('/').next().is_some_and(|name| name.starts_with("ring-"));
            let file = files.entry(inode).or_insert((0, is_ring));
            file.0 = file.0.max(end);
        }
        let rings = files.values().filter(|(_, is_ring)| *is_ring).count();
        Ok(Self { bytes: files.values().map(|(bytes, _)| bytes).sum(), rings })
    }
}
