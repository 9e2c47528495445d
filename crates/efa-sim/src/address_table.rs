//! A table of addresses by name, in shared memory: one process writes it, others of the same user read it.
//!
//! ```text
//!   /dev/shm/efa-av-UID-NAME   magic │ capacity │ used │ changes │ slot 0 │ slot 1 │ …
//!   a slot                     sequence, odd while it is written │ upper half and TAKEN │ 32 bytes
//! ```
//!
//! The file is locked (flock) while its writer lives, and removed when the writer closes it. Readers map it for
//! reading only; what they find is checked, and a slot that is being written is read again.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use efa_device::DeviceError;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::fork::{Descriptor, Opener};
use crate::map::{Map, View};

/// Bytes of an address.
pub const ADDRESS_SIZE: usize = 32;

/// The first word of a table that is complete: its name and version.
const MAGIC: u64 = u64::from_le_bytes(*b"efa-av 1");

/// Byte offsets in the header, and its length.
const CAPACITY: usize = 8;
const USED: usize = 16;
const CHANGES: usize = 24;
const HEADER: usize = 64;

/// Bytes of a slot: two words, and the address.
const SLOT: usize = 16 + ADDRESS_SIZE;

/// Set in the lower half of a slot's second word if it has an address.
const TAKEN: u64 = 1;

/// Most slots of a table.
const MOST: usize = 1 << 24;

/// How often a table is created that others remove meanwhile.
const ATTEMPTS: usize = 16;

/// How often a slot that is being written is read.
const TRIES: u32 = 10_000;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// 32 bits that its writer chose: how often the slot was used.
    pub upper: u32,
    /// The address.
    pub address: [u8; ADDRESS_SIZE],
}

/// The table of the process that writes it.
#[derive(Debug)]
pub struct TableWriter {
    map: Map,
    capacity: usize,
    path: PathBuf,
    opener: Opener,
    /// Locked until it is closed.
    _file: Descriptor,
}

/// The table of a process that reads it.
#[derive(Debug)]
pub struct TableReader {
    view: View,
    capacity: usize,
}

fn system(operation: &str, path: &Path, error: &std::io::Error) -> DeviceError {
    let operation = format!("{operation} {}", path.display());
    DeviceError::System {
        operation,
        errno: error.raw_os_error().unwrap_or_default(),
        reason: error.to_string(),
    }
}

fn inconsistent(path: &Path, reason: impl Into<String>) -> DeviceError {
    DeviceError::Inconsistent { object: path.display().to_string(), reason: reason.into() }
}

/// Where the table of this name is.
fn path_of(name: &str) -> Result<PathBuf, DeviceError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        return Err(DeviceError::Inconsistent {
            object: format!("name {name:?} of an address vector"),
            reason: "1 to 64 letters, digits, points, hyphens and underscores are possible".into(),
        });
    }
    let uid = rustix::process::geteuid().as_raw();
    Ok(format!("/dev/shm/efa-av-{uid}-{name}").into())
}

fn offset(index: usize) -> usize {
    HEADER + index * SLOT
}

impl TableWriter {
    /// Creates the table of this name with so many slots.
    ///
    /// # Errors
    /// Another process writes a table of this name, the name can't be one, or there is too little shared memory.
    pub fn create(name: &str, capacity: usize) -> Result<Self, DeviceError> {
        let path = path_of(name)?;
        if capacity == 0 || capacity > MOST {
            return Err(DeviceError::LimitReached { object: "named peer", limit: MOST });
        }
        let opener = Opener::this();
        let file = create_locked(&path)?;
        let length = offset(capacity);
        let allocated =
            retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, length as u64));
        let map = allocated.and_then(|()| Map::new(&file, length));
        let map = map.map_err(|error| {
            let _ = std::fs::remove_file(&path);
            system("allocate", &path, &error.into())
        })?;
        map.words::<1>(CAPACITY)[0].store(capacity as u64, Ordering::Relaxed);
        map.words::<1>(0)[0].store(MAGIC, Ordering::Release);
        Ok(Self { map, capacity, path, opener, _file: OwnedFd::from(file).into() })
    }

    /// Number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes a slot; `None` frees it. Does nothing beyond the last slot.
    pub fn set(&mut self, index: usize, entry: Option<Entry>) {
        if index >= self.capacity {
            return;
        }
        let words = self.map.words::<6>(offset(index));
        let sequence = words[0].load(Ordering::Relaxed);
        words[0].store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let state = entry.map_or(0, |entry| u64::from(entry.upper) << 32 | TAKEN);
        words[1].store(state, Ordering::Relaxed);
        let address = entry.map_or([0; ADDRESS_SIZE], |entry| entry.address);
        let (parts, _) = address.as_chunks::<8>();
        for (at, part) in (2_usize..).zip(parts) {
            words[at].store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        words[0].store(sequence.wrapping_add(2), Ordering::Release);
        let used = &self.map.words::<1>(USED)[0];
        if used.load(Ordering::Relaxed) <= index as u64 {
            used.store(index as u64 + 1, Ordering::Release);
        }
        self.map.words::<1>(CHANGES)[0].fetch_add(1, Ordering::Release);
    }
}

/// Creates the file of a table in place of one whose writer is gone, and locks it.
fn create_locked(path: &Path) -> Result<File, DeviceError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let mut new = options.clone();
    new.create_new(true);
    // Others may create, lock or remove a file of this name between two of these steps.
    for _ in 0..ATTEMPTS {
        if let Ok(old) = options.open(path)
            && lock(&old, path)?
        {
            // Its writer is gone. Its readers keep what they have mapped.
            let _ = std::fs::remove_file(path);
        }
        match new.open(path) {
            Ok(file) if lock(&file, path)? => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(system("create", path, &error)),
        }
    }
    Err(inconsistent(path, "other processes create it all the time"))
}

/// Locks the file of a table. Returns whether it is still there.
fn lock(file: &File, path: &Path) -> Result<bool, DeviceError> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => file
            .metadata()
            .map(|stat| stat.nlink() > 0)
            .map_err(|error| system("stat", path, &error)),
        Err(Errno::WOULDBLOCK) => Err(DeviceError::System {
            operation: format!("lock {}", path.display()),
            errno: Errno::BUSY.raw_os_error(),
            reason: "another process writes it".into(),
        }),
        Err(error) => Err(system("lock", path, &error.into())),
    }
}

impl Drop for TableWriter {
    /// Removes the file, unless it is that of the process that this one was forked from.
    fn drop(&mut self) {
        if self.opener.is_this() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl TableReader {
    /// Opens the table of this name.
    ///
    /// # Errors
    /// There is none, it belongs to another user, or it is damaged.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let path = path_of(name)?;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let file = file.map_err(|error| system("open", &path, &error))?;
        let stat = file.metadata().map_err(|error| system("stat", &path, &error))?;
        if stat.uid() != rustix::process::geteuid().as_raw() || stat.mode() & 0o022 != 0 {
            return Err(inconsistent(&path, "others can write it"));
        }
        let map = |length| {
            View::new(&file, length).map_err(|_| inconsistent(&path, "it is no address vector"))
        };
        let header = map(HEADER)?;
        if header.load(0) != MAGIC {
            return Err(inconsistent(&path, "it is no address vector of this version"));
        }
        let capacity = usize::try_from(header.load(CAPACITY)).ok().filter(|count| *count <= MOST);
        let capacity = capacity.ok_or_else(|| inconsistent(&path, "its capacity is damaged"))?;
        if stat.len() != offset(capacity) as u64 {
            return Err(inconsistent(&path, "its length is not that of its capacity"));
        }
        let reader = Self { view: map(offset(capacity))?, capacity };
        if reader.view.load(USED) > capacity as u64 {
            return Err(inconsistent(&path, "it has more entries than its capacity"));
        }
        for index in 0..reader.used() {
            let state = reader.view.load(offset(index) + 8) as u32;
            if u64::from(state) > TAKEN {
                return Err(inconsistent(&path, format!("its entry {index} is damaged")));
            }
        }
        Ok(reader)
    }

    /// How many slots may have been used.
    #[must_use]
    pub fn used(&self) -> usize {
        usize::try_from(self.view.load(USED)).unwrap_or(usize::MAX).min(self.capacity)
    }

    /// A number that is another one when a slot has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.view.load(CHANGES)
    }

    /// What a slot holds, and the number of the change that put it there: another one if it was freed and taken again
    /// since. `None` if it holds nothing, or if it is damaged.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<(u64, Entry)> {
        if index >= self.capacity {
            return None;
        }
        let at = offset(index);
        for _ in 0..TRIES {
            let sequence = self.view.load(at);
            if !sequence.is_multiple_of(2) {
                std::hint::spin_loop();
                continue;
            }
            let state = self.view.load(at + 8);
            let mut address = [0; ADDRESS_SIZE];
            let (parts, _) = address.as_chunks_mut::<8>();
            for (part, at) in parts.iter_mut().zip((at + 16..).step_by(8)) {
                *part = self.view.load(at).to_ne_bytes();
            }
            fence(Ordering::Acquire);
            if self.view.load(at) == sequence {
                let entry = Entry { upper: (state >> 32) as u32, address };
                return (state & u64::from(u32::MAX) == TAKEN).then_some((sequence, entry));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn name(of: &str) -> String {
        format!("test-{}-{of}", std::process::id())
    }

    fn entry(number: u8) -> Entry {
        Entry { upper: number.into(), address: [number; ADDRESS_SIZE] }
    }

    #[test]
    fn reader_sees_what_the_writer_sets_and_frees() {
        let name = name("sees");
        assert!(TableReader::open(&name).is_err());
        let mut writer = TableWriter::create(&name, 3).unwrap();
        let reader = TableReader::open(&name).unwrap();
        assert_eq!((reader.used(), reader.get(0), reader.get(7)), (0, None, None));
        writer.set(1, Some(entry(5)));
        assert_eq!((reader.used(), reader.get(0), reader.get(1)), (2, None, Some((2, entry(5)))));
        let changes = reader.changes();
        writer.set(1, None);
        writer.set(9, Some(entry(9)));
        assert_eq!((reader.used(), reader.get(1)), (2, None));
        assert_ne!(reader.changes(), changes);
        writer.set(1, Some(entry(5)));
        assert_eq!(reader.get(1), Some((6, entry(5))), "the number tells that it was freed");
        writer.set(1, None);
        let refused = TableWriter::create(&name, 3).unwrap_err();
        assert!(
            matches!(refused, DeviceError::System { errno, .. } if errno == Errno::BUSY.raw_os_error())
        );
        assert!(refused.to_string().contains("another process writes it"), "{refused}");
        drop(writer);
        assert!(TableReader::open(&name).is_err(), "it is removed");
        assert_eq!(reader.get(1), None, "a reader keeps what it has");
    }

    #[test]
    fn reader_never_sees_half_of_an_entry() {
        let name = name("half");
        let mut writer = TableWriter::create(&name, 1).unwrap();
        let reader = TableReader::open(&name).unwrap();
        writer.set(0, Some(entry(1)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000_u32 {
                    writer.set(0, Some(entry(round as u8 % 7)));
                }
            });
            for _ in 0..200_000 {
                if let Some((_, entry)) = reader.get(0) {
                    assert!(entry.address.iter().all(|byte| u32::from(*byte) == entry.upper));
                }
            }
        });
    }

    #[test]
    fn damaged_table_is_refused() {
        let name = name("damaged");
        let damages: [(u64, u64, &str); 5] = [
            (0, 7, "no address vector"),
            (CAPACITY as u64, u64::MAX, "capacity is damaged"),
            (CAPACITY as u64, 4, "length is not that"),
            (USED as u64, 4, "more entries"),
            (HEADER as u64 + 8, 2, "entry 0 is damaged"),
        ];
        for (at, value, reason) in damages {
            let mut writer = TableWriter::create(&name, 3).unwrap();
            writer.set(0, Some(entry(1)));
            let file = OpenOptions::new().write(true).open(&writer.path).unwrap();
            file.write_all_at(&value.to_le_bytes(), at).unwrap();
            let refused = TableReader::open(&name).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
        let writer = TableWriter::create(&name, 3).unwrap();
        let file = OpenOptions::new().write(true).open(&writer.path).unwrap();
        file.set_len(10).unwrap();
        assert!(TableReader::open(&name).unwrap_err().to_string().contains("no address vector"));
    }

    #[test]
    fn file_that_was_removed_before_it_was_locked_is_not_taken_for_the_table() {
        let path = path_of(&name("removed")).unwrap();
        let file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lock(&file, &path), Ok(false));
        let table = create_locked(&path).unwrap();
        assert_eq!(lock(&table, &path), Ok(true));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn names_are_checked_and_a_dead_writer_is_replaced() {
        for bad in ["", "a/b", "..\0", "é", &"x".repeat(65)] {
            assert!(TableWriter::create(bad, 1).is_err(), "{bad:?}");
        }
        assert!(TableWriter::create(&name("none"), 0).is_err());
        let name = name("dead");
        let path = path_of(&name).unwrap();
        std::fs::write(&path, b"left by a process that was killed").unwrap();
        let writer = TableWriter::create(&name, 1).unwrap();
        assert_eq!(writer.capacity(), 1);
        assert!(TableReader::open(&name).is_ok());
    }
}
