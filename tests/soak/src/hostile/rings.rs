//! A process of the same user that writes into the rings between itself and the victim.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrand::Rng;

/// The ring files of the queue pair `qpn` that exist: their receiver hasn't mapped them yet.
pub(crate) fn open(host: &Path, qpn: u16) -> Vec<(File, u64)> {
    let Ok(entries) = host.read_dir() else { return Vec::new() };
    let rings = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let mut parts = name.strip_prefix("ring-")?.split('-');
        let is_of = parts.any(|part| part.parse() == Ok(qpn));
        let file = is_of.then(|| OpenOptions::new().write(true).open(&path).ok())??;
        let length = file.metadata().ok()?.len();
        (length > 0).then_some((file, length))
    });
    rings.collect()
}

/// Writes some bytes anywhere into the rings, most of them into the first pages: the counters.
pub(crate) fn write_random(rings: &[(File, u64)], random: &mut Rng) -> u64 {
    let mut written = 0;
    for (file, length) in rings {
        let room = if random.bool() { (*length).min(4096) } else { *length };
        let mut bytes = [0; 16];
        random.fill(&mut bytes);
        let bytes = &bytes[..random.usize(1..=16)];
        let offset = random.u64(..room).min(length.saturating_sub(16));
        written += u64::from(file.write_all_at(bytes, offset).is_ok());
    }
    written
}
