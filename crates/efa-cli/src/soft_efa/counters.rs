//! The files of sysfs with the counters of the run's devices: written here, from what the processes count.
//!
//! The format of both sides: [`efa_soft_names::counters`]. The files are up to 20 ms behind, as those of the kernel
//! are up to 10 ms; a read computes nothing, as that would take a file system of our own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use efa_soft_names::counters::{self, Totals};

/// How often the files are brought up to date.
pub(super) const PERIOD: Duration = Duration::from_millis(20);

/// The files, and what they have.
#[derive(Debug)]
pub(super) struct Counters {
    place: PathBuf,
    written: BTreeMap<usize, Totals>,
}

impl Counters {
    /// Lets the processes of a run count in `place`, and creates the files of so many devices.
    pub(super) fn create(place: &Path, devices: usize) -> io::Result<()> {
        let blocks: Vec<u8> = (0..devices).flat_map(counters::empty_block).collect();
        fs::write(place.join(counters::FILE), blocks)?;
        Self::of(place).write()
    }

    /// The files in `place`.
    pub(super) fn of(place: &Path) -> Self {
        Self { place: place.to_owned(), written: BTreeMap::new() }
    }

    /// Writes what has changed since the last call.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let totals = counters::totals(&fs::read(self.place.join(counters::FILE))?);
        for (&index, now) in &totals {
            let device = self.place.join(format!("class/infiniband/efa_soft{index}"));
            let before = self.written.get(&index);
            let port = device.join("ports/1/hw_counters");
            write_changed(&port, before.map(|before| &*before.port), &now.port)?;
            let own = device.join("hw_counters");
            write_changed(&own, before.map(|before| &*before.device), &now.device)?;
        }
        self.written = totals;
        Ok(())
    }
}

fn write_changed(
    directory: &Path,
    before: Option<&[(&'static str, u64)]>,
    now: &[(&'static str, u64)],
) -> io::Result<()> {
    if before.is_none() {
        fs::create_dir_all(directory)?;
    }
    for counter @ (name, value) in now {
        if before.is_some_and(|before| before.contains(counter)) {
            continue;
        }
        // In place, for programs that keep it open; a value grows, so nothing of the last one is left behind.
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(directory.join(name))?;
        file.write_all_at(format!("{value}\n").as_bytes(), 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use efa_soft_names::counters::Word;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn files_have_zeros_first_and_then_what_was_counted() {
        let temporary = TempDir::new().unwrap();
        let place = temporary.path();
        let read = |file: &str| {
            fs::read_to_string(place.join("class/infiniband").join(file)).map_err(|e| e.kind())
        };
        Counters::create(place, 2).unwrap();
        for file in ["ports/1/hw_counters/rx_drops", "hw_counters/submitted_cmds"] {
            assert_eq!(read(&format!("efa_soft1/{file}")).as_deref(), Ok("0\n"));
            assert_eq!(read(&format!("efa_soft2/{file}")), Err(io::ErrorKind::NotFound));
        }
        let mut counters = Counters::of(place);
        counters.write().unwrap();
        for count in [7_u64, 12_345] {
            let mut block = counters::empty_block(1);
            block[Word::SendBytes as usize * 8..][..8].copy_from_slice(&count.to_ne_bytes());
            fs::write(place.join(counters::FILE), block).unwrap();
            counters.write().unwrap();
            let expected = format!("{count}\n");
            assert_eq!(read("efa_soft1/ports/1/hw_counters/tx_bytes").as_deref(), Ok(&*expected));
        }
    }
}
