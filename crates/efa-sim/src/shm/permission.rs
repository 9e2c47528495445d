//! Whether processes of this user can read and write this one's memory, as far as it can be seen from here.
//!
//! | the kernel asks | seen by |
//! |---|---|
//! | a seccomp filter that denies the calls | calling them on this process |
//! | is the process dumpable, or the caller privileged? | `PR_GET_DUMPABLE`, `CAP_SYS_PTRACE` |
//! | the Yama module | `/proc/sys/kernel/yama/ptrace_scope` |
//! | SELinux, Landlock, a seccomp filter of the other process | not seen: the copy is refused when it is tried |
//!
//! No child process tries it: sharing the memory (`vfork`), the kernel would allow what it forbids to others,
//! and copying it (`fork`) costs too much in a large program.

#![allow(unsafe_code)]

use rustix::process::{DumpableBehavior, dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities};

/// What keeps others of this user from the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Obstacle {
    #[error("the process is not dumpable")]
    NotDumpable,
    #[error("ptrace_scope of the Yama module is {0}")]
    Scope(u32),
    #[error("the system calls fail, perhaps by seccomp: {0}")]
    Denied(rustix::io::Errno),
}

/// The attributes of a process, and of the system, that the kernel looks at.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    dumpable: bool,
    /// Has `CAP_SYS_PTRACE`, as other processes of the user then are supposed to.
    privileged: bool,
    /// Yama's `ptrace_scope`; 0 without the module.
    scope: u32,
}

/// Looks for an obstacle. What can't be found out is taken to be none.
pub(super) fn obstacle() -> Option<Obstacle> {
    if let Err(errno) = copy_own() {
        return Some(Obstacle::Denied(errno));
    }
    let dumpable = dumpable_behavior().map_or(true, |how| how == DumpableBehavior::Dumpable);
    let sets = capabilities(None);
    let privileged = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.and_then(|scope| scope.trim().parse().ok()).unwrap_or(0);
    Attributes { dumpable, privileged, scope }.obstacle()
}

impl Attributes {
    fn obstacle(self) -> Option<Obstacle> {
        match self {
            // In scope 1 processes that this one's `PR_SET_PTRACER` names may; it names all.
            Self { scope: 2, privileged: false, .. } | Self { scope: 3.., .. } => {
                Some(Obstacle::Scope(self.scope))
            }
            Self { dumpable: false, privileged: false, .. } => Some(Obstacle::NotDumpable),
            _ => None,
        }
    }
}

/// Copies a word of this process as if it were another's: what fails is the system call as such.
fn copy_own() -> Result<(), rustix::io::Errno> {
    let (mut here, mut there) = (0_u64, 0_u64);
    let length = size_of::<u64>();
    let local = libc::iovec { iov_base: (&raw mut here).cast(), iov_len: length };
    let remote = libc::iovec { iov_base: (&raw mut there).cast(), iov_len: length };
    let process = std::process::id() as libc::pid_t;
    for copy in [libc::process_vm_readv, libc::process_vm_writev] {
        // SAFETY: both ranges are local variables.
        if unsafe { copy(process, &local, 1, &remote, 1, 0) } != length as isize {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return Err(rustix::io::Errno::from_raw_os_error(errno));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacle_depends_on_dumpable_privilege_and_scope() {
        use Obstacle::{NotDumpable, Scope};
        let expected = [
            (true, false, 0, None),
            (true, false, 1, None),
            (true, false, 2, Some(Scope(2))),
            (true, false, 3, Some(Scope(3))),
            (false, false, 0, Some(NotDumpable)),
            (false, true, 0, None),
            (true, true, 2, None),
            (true, true, 3, Some(Scope(3))),
        ];
        for (dumpable, privileged, scope, obstacle) in expected {
            let attributes = Attributes { dumpable, privileged, scope };
            assert_eq!(attributes.obstacle(), obstacle, "{attributes:?}");
        }
        copy_own().unwrap();
    }
}
