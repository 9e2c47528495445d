//! The C boundary: results become error numbers, panics never cross, handles are known or refused.
//!
//! | the C function gives | on failure | here |
//! |---|---|---|
//! | `int` | the error number | [`code`] |
//! | a pointer | null, and `errno` is set | [`pointer`] |
//! | `int`, a number | −1, and `errno` is set | [`number`] |
//! | `int`, a number | the error number, negative | [`negative`] |

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use efa_device::DeviceError;

/// An error number of the operating system, as C knows errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// A null or foreign handle, a value out of range.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// Something that this device doesn't have.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// Something that others still use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// A queue or a table is full.
pub(crate) const FULL: Errno = Errno(libc::ENOMEM);

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

/// Runs `f`; a panic, which is a fault of ours, becomes EIO.
fn run<T>(f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    // The state behind locks is left as the panic found it. Locks are taken over from a panicked
    // holder everywhere, so that the worst is a wrong answer and never a hang.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)))
}

fn set_errno(Errno(errno): Errno) {
    // SAFETY: the address is that of this thread's errno, valid while the thread lives.
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

/// The value, or `otherwise` if `f` panics.
#[inline]
pub(crate) fn value<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet<T>(f: impl FnOnce() -> T) -> T {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = f();
        std::panic::set_hook(hook);
        result
    }

    #[test]
    fn panics_stay_inside() {
        quiet(|| {
            assert_eq!(code(|| panic!()), libc::EIO);
            assert!(pointer::<u8>(|| panic!()).is_null());
            assert_eq!(number(|| panic!()), -1);
            assert_eq!(negative(|| panic!()), -libc::EIO);
            assert_eq!(value(7, || panic!()), 7);
        });
    }

    /// Every file with functions that C calls.
    const SOURCES: [&str; 9] = [
        include_str!("completion_queue.rs"),
        include_str!("context.rs"),
        include_str!("device.rs"),
        include_str!("domain.rs"),
        include_str!("lib.rs"),
        include_str!("not_offered.rs"),
        include_str!("process.rs"),
        include_str!("queue_pair.rs"),
        include_str!("work.rs"),
    ];

    /// Functions that need no guard, as there is nothing in them that panics.
    const WITHOUT_GUARD: [&str; 16] = [
        // Atomic stores, and a lock taken over from whoever had it.
        "prepare",
        "resume",
        "forget",
        "end_poll",
        // Runs in the loader, before there is a caller in C.
        "watch_forks",
        // Nothing is done.
        "ignore_hints",
        // Constants, and the C library's `free`.
        "ibv_free_device_list",
        "ibv_fork_init",
        "ibv_is_fork_initialized",
        "ibv_query_qp_data_in_order",
        // Members are read, and a GID written.
        "is_unsolicited",
        "read_sgid",
        // A lock without poison is taken or given, and a list of plain data cleared.
        "wr_start",
        // Made by macros: members are read; `building` is the guard; nothing is done.
        "$name (read)",
        "$name (calls)",
        "$name (nothing)",
    ];

    /// Names and bodies of the functions that C calls; those of macros with the macro's name.
    fn functions(source: &str) -> Vec<(String, &str)> {
        let code = source.split("#[cfg(test)]").next().unwrap();
        let starts = code.match_indices("extern \"C\" fn ").map(|(at, text)| (at, at + text.len()));
        let function = |(at, name): (usize, usize)| {
            let rest = &code[name..];
            let name = rest.split('(').next().unwrap();
            // A type of a pointer to a function has no name.
            let named = name.starts_with('$') || name.starts_with(|c: char| c.is_ascii_lowercase());
            let begin = rest.find('{').filter(|_| named)?;
            let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
            let indent = code[line..].len() - code[line..].trim_start_matches(' ').len();
            let end = rest.find(&format!("\n{}}}", " ".repeat(indent))).or(rest.find("{}"))?;
            let name = match code[..at].rfind("macro_rules! ") {
                Some(at) if name == "$name" => {
                    let name = code[at..].split_whitespace().nth(1).unwrap();
                    format!("$name ({name})")
                }
                _ => name.to_owned(),
            };
            Some((name, &rest[begin.min(end)..end]))
        };
        starts.filter_map(function).collect()
    }

    #[test]
    fn every_function_that_c_calls_is_guarded() {
        let all: Vec<_> = SOURCES.into_iter().flat_map(functions).collect();
        assert!(all.len() > 50, "{} found", all.len());
        for (name, body) in &all {
            // Directly, or by one function that is.
            let guards =
                ["code(", "pointer(", "number(", "negative(", "value(", "query_port(", "register("];
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
    fn errors_become_numbers() {
        assert_eq!(code(|| Err(BUSY)), libc::EBUSY);
        assert_eq!(code(|| Ok(())), 0);
        assert!(pointer::<u8>(|| Err(FULL)).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(Errno::from(DeviceError::QueueFull { depth: 1 }), FULL);
        let error = DeviceError::System { operation: String::new(), errno: 5 };
        assert_eq!(Errno::from(error), Errno(5));
    }
}
