//! The directory of a host, with the files of its processes.
//!
//! ```text
//! /dev/shm/efa-<uid>/            mode 0700, ours
//!     <name>/                    mode 0700, ours: one host
//!         next                   the next queue pair number to try
//!         gid                    the host's GID: random, so that another directory's host has another one
//!         qp-<qpn>               a queue pair, locked (flock) while its process lives
//!         ring-<to>-<from>-<nonce>   until the receiver has mapped it
//!         new-<nonce>            a queue pair file, or a FIFO, that is being created
//!         mem-<nonce>, mem-<qpn> memory keys of a process, locked while it lives
//!         wake-<nonce>           a FIFO that wakes a queue pair, locked while its process lives
//! ```
//!
//! The kernel releases a lock when its process ends, in any way. So a file that is not locked is of a dead
//! process, and the next process that opens the host removes it. (A forked child doesn't
//! get the locks, see [`crate::fork`].)

use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use efa_device::{DeviceError, Gid, Qpn, Time};
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, chmod, chmodat,
    fallocate, fchmod, flock, fstat, linkat, mkdirat, mknodat, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use super::link::SWEEP_EVERY;
use super::mailbox::PeerMailbox;
use crate::fork::{Descriptor, Opener};
use crate::link::system;

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The file with the next queue pair number.
const NEXT: &str = "next";
/// How often a file is created that others remove at once.
const ATTEMPTS: usize = 16;
/// The file with the host's GID.
const GID: &str = "gid";
/// Longest host name in bytes.
const MAX_NAME: usize = 64;

/// An opened directory of a host.
#[derive(Debug)]
pub(super) struct HostDirectory {
    opener: Opener,
    file: OwnedFd,
    path: PathBuf,
    uid: u32,
    gid: Gid,
    /// How many queue pairs this process creates before it looks for rings without a receiver again.
    until_sweep: AtomicUsize,
    /// Whether a peer was found dead since the last sweep.
    has_dead: AtomicBool,
    /// The time in nanoseconds before which no sweep follows for that.
    sweep_due: AtomicU64,
}

/// Fewest queue pairs between two looks for rings without a receiver.
const SWEEP_AFTER: usize = 64;

/// A file of a host, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileName {
    QueuePair(Qpn),
    Ring {
        to: Qpn,
        from: Qpn,
        nonce: u64,
    },
    New(u64),
    /// The memory keys of a process.
    Memory(u64),
    /// The same, found by a queue pair.
    MemoryOf(Qpn),
    /// The FIFO that wakes a queue pair.
    Wake(u64),
}

impl std::fmt::Display for FileName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::QueuePair(qpn) => write!(f, "qp-{}", qpn.0),
            Self::Ring { to, from, nonce } => write!(f, "ring-{}-{}-{nonce:016x}", to.0, from.0),
            Self::New(nonce) => write!(f, "new-{nonce:016x}"),
            Self::Memory(nonce) => write!(f, "mem-{nonce:016x}"),
            Self::MemoryOf(qpn) => write!(f, "mem-{}", qpn.0),
            Self::Wake(nonce) => write!(f, "wake-{nonce:016x}"),
        }
    }
}

impl FileName {
    fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        let parsed = match kind {
            "qp" => Self::QueuePair(Qpn(rest.parse().ok()?)),
            "new" => Self::New(u64::from_str_radix(rest, 16).ok()?),
            "mem" if rest.len() == 16 => Self::Memory(u64::from_str_radix(rest, 16).ok()?),
            "mem" => Self::MemoryOf(Qpn(rest.parse().ok()?)),
            "wake" => Self::Wake(u64::from_str_radix(rest, 16).ok()?),
            "ring" => {
                let mut parts = rest.split('-');
                let to = Qpn(parts.next()?.parse().ok()?);
                let from = Qpn(parts.next()?.parse().ok()?);
                let nonce = u64::from_str_radix(parts.next()?, 16).ok()?;
                parts.next().is_none().then_some(Self::Ring { to, from, nonce })?
            }
            _ => return None,
        };
        Some(parsed)
    }
}

fn inconsistent(object: &Path, reason: String) -> DeviceError {
    DeviceError::Inconsistent { object: object.display().to_string(), reason }
}

/// A directory that another user owns.
fn foreign(directory: &Path, owner: u32, uid: u32) -> DeviceError {
    let reason = format!(
        "belongs to user {owner}, not to user {uid}; choose another directory (option --directory, \
         variable EFA_SOFT_DIRECTORY, or ShmOptions::directory)"
    );
    inconsistent(directory, reason)
}

/// Takes the lock if no other process holds it.
fn try_lock(file: impl AsFd, operation: FlockOperation) -> Result<bool, Errno> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether the process that locked this queue pair file is alive.
pub(super) fn is_locked(file: impl AsFd) -> Result<bool, Errno> {
    // A shared lock, so that two processes that check at once don't take each other for the owner.
    let free = try_lock(&file, FlockOperation::NonBlockingLockShared)?;
    if free {
        flock(&file, FlockOperation::NonBlockingUnlock)?;
    }
    Ok(!free)
}

impl HostDirectory {
    /// Opens host `name` below `base`, creates both if need be, and removes files of dead processes.
    pub(super) fn open(base: Option<&Path>, name: &str) -> Result<Self, DeviceError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let valid = name.chars().all(allowed) && !name.starts_with('.');
        if !valid || name.is_empty() || name.len() > MAX_NAME {
            return Err(DeviceError::Inconsistent {
                object: format!("host name {name:?}"),
                reason: format!("1 to {MAX_NAME} of letters, digits, '.', '_', '-', not '.' first"),
            });
        }
        let uid = rustix::process::geteuid().as_raw();
        let base = base.map_or_else(|| default_base(uid), Path::to_path_buf);
        let parent = open_private(rustix::fs::CWD, &base, &base, uid)?;
        let path = base.join(name);
        let file = open_private(&parent, Path::new(name), &path, uid)?;
        let stat = fstat(&file)
            .map_err(|errno| system(format!("looking at {}", path.display()), errno))?;
        let (opener, gid) = (Opener::this(), new_gid(&stat));
        let (until_sweep, has_dead, sweep_due) = Default::default();
        let mut directory = Self { opener, file, path, uid, gid, until_sweep, has_dead, sweep_due };
        directory.gid = directory.agree_on_gid()?;
        directory.sweep()?;
        Ok(directory)
    }

    /// The GID that all processes of the host use: that of the first.
    fn agree_on_gid(&self) -> Result<Gid, DeviceError> {
        if let Some(gid) = self.read_gid()? {
            return Ok(gid);
        }
        let (_, gid) = self.name_new(self.gid.0.len(), |name, file| {
            let written = rustix::io::pwrite(file, &self.gid.0, 0);
            let linked = written.and_then(|_| {
                linkat(&self.file, name.to_string(), &self.file, GID, AtFlags::empty())
            });
            match linked {
                Ok(()) => Ok(Some(self.gid)),
                Err(Errno::EXIST | Errno::NOENT) => self.read_gid(),
                Err(errno) => Err(self.error("naming", name, errno)),
            }
        })?;
        Ok(gid)
    }

    fn read_gid(&self) -> Result<Option<Gid>, DeviceError> {
        let path = || self.path.join(GID);
        let failed = |errno| system(format!("reading {}", path().display()), errno);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.file, GID, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        self.check_kind(FileType::RegularFile, GID, &fstat(&file).map_err(failed)?)?;
        let mut gid = [0; 16];
        match retry_on_intr(|| rustix::io::pread(&file, &mut gid, 0)).map_err(failed)? {
            16 if gid != [0; 16] => Ok(Some(Gid(gid))),
            _ => Err(inconsistent(&path(), "is no GID; remove it".into())),
        }
    }

    pub(super) fn opener(&self) -> Opener {
        self.opener
    }

    /// Fails in a forked child of the process that opened the host.
    pub(super) fn check_process(&self) -> Result<(), DeviceError> {
        self.opener.check(|| self.path.display().to_string())
    }

    pub(super) fn gid(&self) -> Gid {
        self.gid
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn error(&self, operation: &str, name: FileName, errno: Errno) -> DeviceError {
        system(format!("{operation} {}/{name}", self.path.display()), errno)
    }

    /// Creates a file of `length` zero bytes with allocated storage.
    pub(super) fn create(&self, name: FileName, length: usize) -> Result<Descriptor, DeviceError> {
        self.create_new(name, length)?.ok_or_else(|| self.creating(Errno::EXIST))
    }

    // Without the name, which differs each time: the same error has the same words.
    fn creating(&self, errno: Errno) -> DeviceError {
        system(format!("creating a file in {}", self.path.display()), errno)
    }

    /// As [`create`](Self::create); `None` if there is a file with this name.
    fn create_new(&self, name: FileName, length: usize) -> Result<Option<Descriptor>, DeviceError> {
        self.check_process()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        // At once, as a forked child would share its lock, too.
        let file: Descriptor = match openat(&self.file, name.to_string(), flags, FILE_MODE) {
            Err(Errno::EXIST) => return Ok(None),
            created => created.map_err(|errno| self.creating(errno))?.into(),
        };
        // The umask may have taken bits.
        fchmod(&file, FILE_MODE).map_err(|errno| self.creating(errno))?;
        if let Err(errno) = allocate(&file, 0, length) {
            self.remove(name);
            let path = self.path.display();
            return Err(system(format!("allocating {length} bytes in {path}"), errno));
        }
        Ok(Some(file))
    }

    /// Opens a file of this user for reading; `None` if there is none with this name.
    pub(super) fn find(&self, name: FileName) -> Result<Option<OwnedFd>, DeviceError> {
        self.open_file(name, OFlags::RDONLY)
    }

    /// Opens a file of this user for reading and writing; `None` if there is none with this name.
    pub(super) fn find_writable(&self, name: FileName) -> Result<Option<OwnedFd>, DeviceError> {
        self.open_file(name, OFlags::RDWR)
    }

    /// Opens a file of this user for reading, and for reading and writing; `None` if there is none with this
    /// name, or no longer the same one.
    pub(super) fn find_both(
        &self,
        name: FileName,
    ) -> Result<Option<(OwnedFd, OwnedFd)>, DeviceError> {
        let (Some(file), Some(writable)) = (self.find(name)?, self.find_writable(name)?) else {
            return Ok(None);
        };
        let identity = |file| fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        let same = identity(&file).is_ok() && identity(&file) == identity(&writable);
        Ok(same.then_some((file, writable)))
    }

    fn open_file(&self, name: FileName, access: OFlags) -> Result<Option<OwnedFd>, DeviceError> {
        self.check_process()?;
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.file, name.to_string(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.error("opening", name, errno)),
        };
        let stat = fstat(&file).map_err(|errno| self.error("looking at", name, errno))?;
        match name {
            FileName::Wake(_) => self.check_kind(FileType::Fifo, &name.to_string(), &stat)?,
            _ => self.check_kind(FileType::RegularFile, &name.to_string(), &stat)?,
        }
        Ok(Some(file))
    }

    /// Fails unless a file is of this kind and this user.
    fn check_kind(&self, wanted: FileType, name: &str, stat: &Stat) -> Result<(), DeviceError> {
        let reason = match FileType::from_raw_mode(stat.st_mode) {
            kind if kind == wanted && stat.st_uid == self.uid => return Ok(()),
            kind if kind == wanted => {
                format!("belongs to user {}, not to user {}", stat.st_uid, self.uid)
            }
            kind => format!("is {}, not {}; remove it", name_of(kind), name_of(wanted)),
        };
        Err(inconsistent(&self.path.join(name), reason))
    }

    /// Removes a file, if it exists. A forked child removes none of its parent's.
    pub(super) fn remove(&self, name: FileName) {
        if !self.opener.is_this() {
            return;
        }
        if let Err(errno) = unlinkat(&self.file, name.to_string(), AtFlags::empty())
            && errno != Errno::NOENT
        {
            tracing::warn!(%name, %errno, "can't remove");
        }
    }

    /// Creates a locked file of `length` zero bytes, named by `name` with a random number.
    pub(super) fn create_locked(
        &self,
        name: impl Fn(u64) -> FileName,
        length: usize,
    ) -> Result<(FileName, Descriptor), DeviceError> {
        self.lock_new(|nonce| {
            let name = name(nonce);
            Ok(self.create_new(name, length)?.map(|file| (name, file)))
        })
    }

    /// Creates a locked FIFO, open for reading and writing: so neither end ever finds the other closed.
    ///
    /// It can't be opened and locked while it is made, as other files are. Until it is, a locked file with its number
    /// stands for it.
    pub(super) fn create_fifo(&self) -> Result<(FileName, Descriptor), DeviceError> {
        let (_, made) = self.name_new(0, |guard, _| match guard {
            FileName::New(nonce) => self.make_fifo(nonce),
            _ => Ok(None),
        })?;
        Ok(made)
    }

    /// `None` if there is a FIFO with the number, or it was removed or looked at before it was locked.
    fn make_fifo(&self, nonce: u64) -> Result<Option<(FileName, Descriptor)>, DeviceError> {
        let name = FileName::Wake(nonce);
        let creating = |errno| system(format!("creating a FIFO in {}", self.path.display()), errno);
        match mknodat(&self.file, name.to_string(), FileType::Fifo, FILE_MODE, 0) {
            Err(Errno::EXIST) => return Ok(None),
            made => made.map_err(creating)?,
        }
        // The umask may have taken bits.
        match chmodat(&self.file, name.to_string(), FILE_MODE, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            changed => changed.map_err(creating)?,
        }
        let Some(file) = self.find_fifo(name)?.map(Descriptor::from) else { return Ok(None) };
        if self.lock_made(name, &file)? {
            return Ok(Some((name, file)));
        }
        self.remove(name);
        Ok(None)
    }

    /// Locks a file that this process has made, unless another one holds it for a moment or has removed it.
    fn lock_made(&self, name: FileName, file: &Descriptor) -> Result<bool, DeviceError> {
        try_lock(file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|locked| Ok(locked && fstat(file)?.st_nlink > 0))
            .map_err(|errno| self.error("locking", name, errno))
    }

    /// Opens a FIFO of this user for reading and writing; `None` if there is none with this name.
    pub(super) fn find_fifo(&self, name: FileName) -> Result<Option<OwnedFd>, DeviceError> {
        self.open_file(name, OFlags::RDWR)
    }

    /// Locks what `create` makes with a random number in its name. It returns `None` if that was removed already, or if
    /// another process has the same number: the generators of two that start at the same instant may go alike.
    fn lock_new(
        &self,
        create: impl Fn(u64) -> Result<Option<(FileName, Descriptor)>, DeviceError>,
    ) -> Result<(FileName, Descriptor), DeviceError> {
        // A sweep of another process may remove the file before it is locked, if this process is slow.
        for _ in 0..ATTEMPTS {
            let Some((name, file)) = create(fastrand::u64(1..))? else { continue };
            if self.lock_made(name, &file)? {
                return Ok((name, file));
            }
        }
        Err(self.swept())
    }

    /// Links a file under another name.
    pub(super) fn link(&self, from: FileName, to: FileName) -> Result<(), DeviceError> {
        linkat(&self.file, from.to_string(), &self.file, to.to_string(), AtFlags::empty())
            .map_err(|errno| self.error("naming", to, errno))
    }

    /// Creates a locked file of `length` zero bytes under a temporary name; `give_name` gives it its own, and returns
    /// `None` if it was removed.
    fn name_new<T>(
        &self,
        length: usize,
        give_name: impl Fn(FileName, &Descriptor) -> Result<Option<T>, DeviceError>,
    ) -> Result<(Descriptor, T), DeviceError> {
        // A sweep of another process may remove the file before it has its name.
        for _ in 0..ATTEMPTS {
            let (name, file) = self.create_locked(FileName::New, length)?;
            let named = give_name(name, &file);
            self.remove(name);
            if let Some(named) = named? {
                return Ok((file, named));
            }
        }
        Err(self.swept())
    }

    /// All attempts to create a file have failed.
    fn swept(&self) -> DeviceError {
        inconsistent(&self.path, "files are removed as soon as they are created".into())
    }

    /// Creates a queue pair file: `fill` initialises it, locked and under a temporary name; then it is linked
    /// under its number.
    pub(super) fn create_queue_pair<T>(
        &self,
        length: usize,
        fill: impl Fn(&Descriptor) -> Result<T, Errno>,
        publish: impl Fn(&T, Qpn),
    ) -> Result<(Descriptor, T, Qpn), DeviceError> {
        let (file, (filled, qpn)) = self.name_new(length, |name, file| {
            let filled = fill(file).map_err(|errno| self.error("mapping", name, errno))?;
            let qpn = self.link_queue_pair(name, |qpn| publish(&filled, qpn))?;
            Ok(qpn.map(|qpn| (filled, qpn)))
        })?;
        Ok((file, filled, qpn))
    }

    /// Creates a queue pair file as [`create_queue_pair`](Self::create_queue_pair), which takes the place of the file
    /// of `qpn`.
    pub(super) fn replace_queue_pair<T>(
        &self,
        length: usize,
        fill: impl Fn(&Descriptor) -> Result<T, Errno>,
        publish: impl Fn(&T, Qpn),
        qpn: Qpn,
    ) -> Result<(Descriptor, T), DeviceError> {
        self.check_process()?;
        let target = FileName::QueuePair(qpn);
        self.name_new(length, |name, file| {
            let filled = fill(file).map_err(|errno| self.error("mapping", name, errno))?;
            publish(&filled, qpn);
            match renameat(&self.file, name.to_string(), &self.file, target.to_string()) {
                Ok(()) => Ok(Some(filled)),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(self.error("naming", target, errno)),
            }
        })
    }

    /// Links the file under the next free number; `None` if it was removed.
    fn link_queue_pair(
        &self,
        name: FileName,
        publish: impl Fn(Qpn),
    ) -> Result<Option<Qpn>, DeviceError> {
        let mut number = self.read_next();
        for _ in 0..u16::MAX {
            // 0 is reserved: it stands for none.
            number = number.max(1);
            let qpn = Qpn(number);
            let target = FileName::QueuePair(qpn);
            number = number.wrapping_add(1);
            // Before the link exists, since senders may use it at once.
            publish(qpn);
            if statat(&self.file, target.to_string(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                continue;
            }
            self.sweep_rings_in_turn()?;
            let (from, to) = (name.to_string(), target.to_string());
            match linkat(&self.file, from, &self.file, to, AtFlags::empty()) {
                Ok(()) => {
                    self.write_next(number);
                    return Ok(Some(qpn));
                }
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(self.error("naming", target, errno)),
            }
        }
        Err(DeviceError::LimitReached { object: "queue pair", limit: usize::from(u16::MAX) })
    }

    /// The file with the number after the one used last, so that numbers are not reused soon.
    fn open_next(&self) -> Result<OwnedFd, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let error = |errno| system(format!("opening {}/{NEXT}", self.path.display()), errno);
        let file = openat(&self.file, NEXT, flags | OFlags::NONBLOCK, FILE_MODE).map_err(error)?;
        let stat = fstat(&file).map_err(error)?;
        self.check_kind(FileType::RegularFile, NEXT, &stat)?;
        if stat.st_mode & 0o777 != FILE_MODE.bits() {
            fchmod(&file, FILE_MODE).map_err(error)?;
        }
        Ok(file)
    }

    /// If two processes read the same number, one of them finds it in use.
    fn read_next(&self) -> u16 {
        let mut bytes = [0; 2];
        match self.open_next().map(|file| rustix::io::pread(file, &mut bytes, 0)) {
            Ok(Ok(2)) => u16::from_le_bytes(bytes),
            _ => fastrand::u16(1..),
        }
    }

    fn write_next(&self, number: u16) {
        let written = self.open_next().and_then(|file| {
            rustix::io::pwrite(file, &number.to_le_bytes(), 0)
                .map_err(|errno| system(format!("writing {}/{NEXT}", self.path.display()), errno))
        });
        if let Err(error) = written {
            // Without it a number may only be reused sooner.
            tracing::warn!(%error, "can't write the next queue pair number");
        }
    }

    fn names(&self) -> Result<Vec<FileName>, DeviceError> {
        let error = |errno| system(format!("listing {}", self.path.display()), errno);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.file).map_err(error)? {
            let entry = entry.map_err(error)?;
            names.extend(entry.file_name().to_str().ok().and_then(FileName::parse));
        }
        Ok(names)
    }

    /// The names of the tables of memory keys.
    pub(super) fn tables(&self) -> Result<Vec<FileName>, DeviceError> {
        let mut names = self.names()?;
        names.retain(|name| matches!(name, FileName::Memory(_)));
        Ok(names)
    }

    /// Notes that a peer was found dead, after which there are files of it.
    pub(super) fn note_dead(&self) {
        self.has_dead.store(true, Ordering::Relaxed);
    }

    /// Removes files of dead processes if a peer was found dead, at most once in [`SWEEP_EVERY`] for all queue pairs.
    pub(super) fn sweep_after_death(&self, now: Time) {
        if !self.has_dead.load(Ordering::Relaxed) {
            return;
        }
        let nanos = |time: Time| (time - Time::ZERO).as_nanos() as u64;
        let (due, next) = (self.sweep_due.load(Ordering::Relaxed), nanos(now + SWEEP_EVERY));
        let order = Ordering::Relaxed;
        // Only one of several threads sweeps.
        if nanos(now) >= due && self.sweep_due.compare_exchange(due, next, order, order).is_ok() {
            self.has_dead.store(false, Ordering::Relaxed);
            self.try_sweep();
        }
    }

    #[cold]
    fn try_sweep(&self) {
        if self.opener.is_this()
            && let Err(error) = self.sweep()
        {
            tracing::warn!(%error, "can't remove files of dead processes");
        }
    }

    /// Removes files of dead processes.
    fn sweep(&self) -> Result<(), DeviceError> {
        for name in self.names()? {
            if !matches!(name, FileName::Ring { .. })
                && let Ok(Some(file)) = self.find(name)
            {
                self.remove_if_stale(name, &file);
            }
        }
        self.sweep_rings()
    }

    fn remove_if_stale(&self, name: FileName, file: &OwnedFd) {
        if try_lock(file, FlockOperation::NonBlockingLockExclusive) != Ok(true)
            || self.is_being_made(name)
        {
            return;
        }
        // Nobody else removes the file while this process holds its lock, but it may have been removed, and its
        // name reused, before the lock was taken.
        let ours = fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
        let named = statat(&self.file, name.to_string(), AtFlags::SYMLINK_NOFOLLOW)
            .map(|stat| (stat.st_dev, stat.st_ino));
        if ours.is_ok() && ours == named {
            tracing::info!(%name, "removing a file of a dead process");
            self.remove(name);
        }
    }

    /// Whether it is a FIFO that its process has yet to lock. Nobody does while this process holds its lock.
    fn is_being_made(&self, name: FileName) -> bool {
        let FileName::Wake(nonce) = name else { return false };
        let guard = self.find(FileName::New(nonce));
        guard.is_ok_and(|guard| guard.is_some_and(|guard| is_locked(guard) == Ok(true)))
    }

    /// Removes rings that no receiver will map, once in as many calls as the directory has files: reading it
    /// each time would make queue pairs dearer the more there are. A ring that is left does no harm: only its sender
    /// names it to a receiver.
    fn sweep_rings_in_turn(&self) -> Result<(), DeviceError> {
        match self.until_sweep.load(Ordering::Relaxed) {
            0 => self.sweep_rings(),
            left => {
                self.until_sweep.store(left - 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn sweep_rings(&self) -> Result<(), DeviceError> {
        let names = self.names()?;
        self.until_sweep.store(names.len().max(SWEEP_AFTER), Ordering::Relaxed);
        for name in names {
            if let FileName::Ring { to, from, nonce } = name
                && (self.lacks(to) || self.is_abandoned(to, from, nonce))
            {
                self.remove(name);
            }
        }
        Ok(())
    }

    fn lacks(&self, qpn: Qpn) -> bool {
        let name = FileName::QueuePair(qpn).to_string();
        let there = statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW);
        there.is_err_and(|errno| errno == Errno::NOENT)
    }

    /// Whether the sender of a ring ended before it announced the ring. Nobody else will.
    fn is_abandoned(&self, to: Qpn, from: Qpn, nonce: u64) -> bool {
        // In this order: a sender announces a ring before it ends.
        matches!(PeerMailbox::open(self, from), Ok(None))
            && matches!(PeerMailbox::open(self, to), Ok(Some(receiver)) if !receiver.names(nonce))
    }
}

impl Drop for HostDirectory {
    fn drop(&mut self) {
        self.try_sweep();
    }
}

/// Opens a directory, created if need be, that only this user can access.
fn open_private(
    parent: impl AsFd,
    name: &Path,
    path: &Path,
    uid: u32,
) -> Result<OwnedFd, DeviceError> {
    let creating = |errno| system(format!("creating {}", path.display()), errno);
    match mkdirat(&parent, name, Mode::RWXU) {
        Ok(()) => make_private(&parent, name).map_err(creating)?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(creating(errno)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(&parent, name, flags, Mode::empty()).and_then(|file| {
        let stat = fstat(&file)?;
        Ok((file, stat))
    });
    let (file, stat) = match opened {
        Ok(opened) => opened,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(inconsistent(path, "not a directory".into()));
        }
        // It belongs to another user and has mode 0700, or to this one and lacks permissions.
        Err(Errno::ACCESS) => {
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| system(format!("opening {}", path.display()), errno))?;
            return Err(match stat.st_uid {
                owner if owner == uid => of_mode(path, stat.st_mode),
                owner => foreign(path, owner, uid),
            });
        }
        Err(errno) => return Err(system(format!("opening {}", path.display()), errno)),
    };
    if stat.st_uid != uid {
        return Err(foreign(path, stat.st_uid, uid));
    }
    if stat.st_mode & 0o777 != 0o700 {
        return Err(of_mode(path, stat.st_mode));
    }
    Ok(file)
}

/// A directory of this user with a mode other than 0700.
fn of_mode(path: &Path, mode: u32) -> DeviceError {
    inconsistent(path, format!("has mode {:03o}, not 700", mode & 0o777))
}

/// Gives a new directory the mode 0700, of which the umask may have taken bits.
fn make_private(parent: impl AsFd, name: &Path) -> Result<(), Errno> {
    // Of whatever has the name now nothing is followed or read.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&parent, name, flags, Mode::empty())?;
    if fstat(&file)?.st_mode & 0o777 == 0o700 {
        return Ok(());
    }
    // The only way to change a file that is open in this way.
    chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::RWXU)
}

/// `/dev/shm/efa-<uid>`; without `/dev/shm` the same in the directory for temporary files.
fn default_base(uid: u32) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("efa-{uid}"))
}

/// A link-local GID for the host of a directory. No other directory of this machine gets it, as no other has the same
/// numbers, nor one of another machine: the standard library seeds its hash tables from the operating system.
fn new_gid(directory: &Stat) -> Gid {
    let hash = RandomState::new().hash_one((directory.st_dev, directory.st_ino));
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&hash.to_be_bytes());
    Gid(gid)
}

/// Bytes allocated with one system call: few, as a signal makes tmpfs give back what the call has allocated.
const ALLOCATED_AT_ONCE: u64 = 256 << 10;

/// Allocates storage for `length` bytes of a file from `at` on, which is its end.
pub(super) fn allocate(file: impl AsFd, mut at: u64, length: usize) -> Result<(), Errno> {
    let end = at.checked_add(length as u64).ok_or(Errno::FBIG)?;
    while at < end {
        let count = ALLOCATED_AT_ONCE.min(end - at);
        match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), at, count)) {
            Ok(()) => at += count,
            // A file system without the call: writing allocates too.
            Err(Errno::OPNOTSUPP) => {
                let zeros = [0; 4096];
                let count = usize::try_from(count).unwrap_or(zeros.len()).min(zeros.len());
                at += rustix::io::pwrite(&file, &zeros[..count], at)? as u64;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of another kind",
    }
}

#[cfg(test)]
mod tests;
