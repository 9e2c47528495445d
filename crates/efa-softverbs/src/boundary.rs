//! Results of C functions: errors become error numbers, and panics never reach C.
//!
//! | the C function returns | on failure | here |
//! |---|---|---|
//! | `int`: 0 | the error number | [`code`] |
//! | a pointer | null, and sets `errno` | [`pointer`] |
//! | `int`: a number | −1, and sets `errno` | [`number`] |
//! | `int`: a number | the negative error number | [`negative`] |
//! | anything else | a value that the caller gives | [`value`], [`poll`] |
//!
//! A signal handler may interrupt a call and call the library again, mostly by `exit`, which runs
//! destructors that close the device. The interrupted call can't go on before the handler returns, so it
//! keeps its locks, and what it was changing is half changed. So each call made meanwhile in this thread
//! fails with [`INTERRUPTED`] before it touches anything. When the process has ended, the kernel frees all.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{Ordering, compiler_fence};

use efa_device::DeviceError;

/// An error number of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// An unknown handle, or a value out of range.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// Something that this device doesn't offer.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// What the kernel refuses to a program without privileges.
pub(crate) const NOT_PERMITTED: Errno = Errno(libc::EPERM);
/// An object that other objects use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// A queue or a table that is full.
pub(crate) const FULL: Errno = Errno(libc::ENOMEM);
/// A call from a signal handler that interrupted another call in the same thread.
pub(crate) const INTERRUPTED: Errno = Errno(libc::EDEADLK);

pub(crate) type Outcome<T> = Result<T, Errno>;

impl From<DeviceError> for Errno {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::QueueFull { .. } | DeviceError::LimitReached { .. } => FULL,
            DeviceError::System { errno, .. } => Self(errno),
            DeviceError::Absent { .. } => Self(libc::ENODEV),
            _ => INVALID,
        }
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

/// A number of this thread, of no other that lives, and not 0.
#[inline]
pub(crate) fn thread() -> usize {
    IN_CALL.with(|in_call| std::ptr::from_ref(in_call).addr())
}

/// This thread is in a call, until this is dropped.
struct InCall;

impl InCall {
    /// `None` if this thread is in a call already.
    #[inline]
    fn begin() -> Option<Self> {
        if IN_CALL.get() {
            return None;
        }
        IN_CALL.set(true);
        // Before any lock is taken: a signal handler reads it.
        compiler_fence(Ordering::SeqCst);
        Some(Self)
    }
}

impl Drop for InCall {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        IN_CALL.set(false);
    }
}

/// Runs `f`; a panic, which is a bug of this library, becomes `EIO`.
#[inline]
fn run<T>(f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let _call = InCall::begin().ok_or(INTERRUPTED)?;
    // State behind locks stays as the panic left it. `process::lock` ignores poisoning, so later calls
    // may return wrong results but don't hang.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)))
}

#[allow(unsafe_code)]
fn set_errno(Errno(errno): Errno) {
    // SAFETY: `__errno_location` returns the address of this thread's `errno`, which is writable.
    unsafe { *libc::__errno_location() = errno };
}

/// 0 or the error number.
#[inline]
pub(crate) fn code(f: impl FnOnce() -> Outcome<()>) -> c_int {
    match run(f) {
        Ok(()) => 0,
        Err(Errno(errno)) => errno,
    }
}

/// The pointer, or null with `errno` set.
pub(crate) fn pointer<T>(f: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    run(f).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// The number, or −1 with `errno` set.
pub(crate) fn number(f: impl FnOnce() -> Outcome<c_int>) -> c_int {
    run(f).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// The number, or the negative error number.
pub(crate) fn negative(f: impl FnOnce() -> Outcome<usize>) -> c_int {
    match run(f) {
        Ok(number) => c_int::try_from(number).unwrap_or(c_int::MAX),
        Err(Errno(errno)) => -errno,
    }
}

/// The value, or `otherwise` if `f` panics or this thread is in a call.
#[inline]
pub(crate) fn value<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    run(|| Ok(f())).unwrap_or(otherwise)
}

/// The result of a poll: `none` also if this thread is in a call, `failed` if `f` panics.
#[inline]
pub(crate) fn poll(none: c_int, failed: c_int, f: impl FnOnce() -> c_int) -> c_int {
    match run(|| Ok(f())) {
        Ok(result) => result,
        Err(INTERRUPTED) => none,
        Err(_) => failed,
    }
}

/// Runs `f` when the process exits, perhaps in the middle of a call of this thread: `f` may wait for
/// nothing.
pub(crate) fn at_exit(f: impl FnOnce()) {
    // A panic is a bug of this library, and is lost.
    let _ = catch_unwind(AssertUnwindSafe(f));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn quiet<T>(f: impl FnOnce() -> T) -> T {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = f();
        std::panic::set_hook(hook);
        result
    }

    #[test]
    fn panic_in_c_function_becomes_eio() {
        quiet(|| {
            assert_eq!(code(|| panic!()), libc::EIO);
            assert!(pointer::<u8>(|| panic!()).is_null());
            assert_eq!(number(|| panic!()), -1);
            assert_eq!(negative(|| panic!()), -libc::EIO);
            assert_eq!(value(7, || panic!()), 7);
        });
    }

    #[test]
    fn call_within_a_call_of_the_same_thread_is_refused() {
        let deep = || {
            assert_eq!(code(|| Ok(())), libc::EDEADLK);
            assert!(pointer(|| Ok(&raw mut *Box::leak(Box::new(0)))).is_null());
            assert_eq!(poll(2, 3, || 1), 2);
            assert_eq!(value(7, || 8), 7);
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(code(|| Ok(())), 0));
            });
        };
        assert_eq!(value(1, || (deep(), 2).1), 2);
        assert_eq!(poll(2, 3, || 1), 1);
        assert_eq!(quiet(|| poll(2, 3, || panic!())), 3);
        assert_eq!(code(|| Ok(())), 0, "also after a panic");
    }

    /// Functions that need no guard, as nothing in them can panic.
    const WITHOUT_GUARD: [&str; 16] = [
        // Atomic operations, and a wait that ends.
        "before_fork",
        "after_fork_in_parent",
        "after_fork_in_child",
        "end_poll",
        // Called by the loader, not by C.
        "register_fork_handlers",
        // Do nothing.
        "ignore_hints",
        // Constants, and the C library's `free`.
        "ibv_free_device_list",
        "ibv_fork_init",
        "ibv_is_fork_initialized",
        "ibv_query_qp_data_in_order",
        // Read members, and write a GID.
        "is_unsolicited",
        "read_sgid",
        // Takes a spin lock and clears a list of plain data.
        "wr_start",
        // Made by macros: read members; are guarded by `with_batch`; do nothing.
        "$name (read)",
        "$name (calls)",
        "$name (nothing)",
    ];

    /// The sources of the crate that define functions for C: those in `c`.
    fn sources() -> Vec<String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let files = |directory: &Path| {
            let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        };
        let read = |path| std::fs::read_to_string(path).unwrap();
        for directory in [source.clone(), source.join("queue_pair")] {
            // The structures in `abi` have members that point to functions.
            for path in files(&directory).filter(|path| !path.ends_with("abi.rs")) {
                let found = functions(&read(path.clone())).len();
                assert!(found == 0 || path.ends_with("boundary.rs"), "{}", path.display());
            }
        }
        files(&source.join("c")).map(read).collect()
    }

    /// Names and bodies of the functions that C calls. A macro's function has the macro's name too.
    fn functions(source: &str) -> Vec<(String, &str)> {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let starts = code.match_indices("extern \"C\" fn ").map(|(at, text)| (at, at + text.len()));
        let function = |(at, name): (usize, usize)| {
            let rest = &code[name..];
            let name = rest.split('(').next().unwrap();
            // The type of a function pointer has no name.
            let named = name.starts_with('$') || name.starts_with(|c: char| c.is_ascii_lowercase());
            let begin = rest.find('{').filter(|_| named)?;
            let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
            let indent = code[line..].len() - code[line..].trim_start_matches(' ').len();
            let end = match rest[begin..].starts_with("{}") {
                true => begin,
                false => rest.find(&format!("\n{}}}", " ".repeat(indent)))?,
            };
            let name = match code[..at].rfind("macro_rules! ") {
                Some(at) if name == "$name" => {
                    let name = code[at..].split_whitespace().nth(1).unwrap();
                    format!("$name ({name})")
                }
                _ => name.to_owned(),
            };
            Some((name, &rest[begin..end]))
        };
        starts.filter_map(function).collect()
    }

    #[test]
    fn every_function_that_c_calls_is_guarded() {
        let sources = sources();
        let all: Vec<_> = sources.iter().flat_map(|source| functions(source)).collect();
        assert!(all.len() > 50, "{} found", all.len());
        for (name, body) in &all {
            // Directly, or by one function that is.
            let guards = [
                "code(",
                "pointer(",
                "number(",
                "negative(",
                "value(",
                "poll(",
                "at_exit(",
                "query_port(",
                "register(",
            ];
            let guarded = guards.iter().any(|guard| body.contains(guard))
                || (name == "$name (not_offered)" && body.contains("$kind"));
            let exempt = WITHOUT_GUARD.contains(&name.as_str());
            assert!(guarded != exempt, "{name}: {body}");
        }
        for name in WITHOUT_GUARD {
            assert!(all.iter().any(|(found, _)| found == name), "there is no {name}");
        }
    }

    #[test]
    fn device_error_becomes_its_error_number() {
        assert_eq!(code(|| Err(BUSY)), libc::EBUSY);
        assert_eq!(code(|| Ok(())), 0);
        assert!(pointer::<u8>(|| Err(FULL)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(Errno::from(DeviceError::QueueFull { depth: 1 }), FULL);
        let error =
            DeviceError::System { operation: String::new(), errno: 5, reason: String::new() };
        assert_eq!(Errno::from(error), Errno(5));
    }
}
