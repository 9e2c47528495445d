//! Regions of files: dmabuf registration.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

use efa_soft::abi::*;

use super::*;

/// A file in memory with these bytes.
fn memory_file(bytes: &[u8]) -> File {
    // SAFETY: the name is a C string, and the descriptor that is returned is nobody else's.
    let file = unsafe {
        let descriptor = libc::memfd_create(c"efa-test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(descriptor >= 0, "errno {}", errno());
        File::from_raw_fd(descriptor)
    };
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn bytes_of(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn register(
    end: &Endpoint,
    file: &File,
    (offset, length): (u64, usize),
    start: u64,
    access: u32,
) -> *mut ibv_mr {
    let (file, access) = (file.as_raw_fd(), access.cast_signed());
    // SAFETY: the file is open.
    unsafe { (verbs().ibv_reg_dmabuf_mr)(end.pd, offset, length, start, file, access) }
}

fn entry(region: *mut ibv_mr, addr: u64, length: u32) -> ibv_sge {
    // SAFETY: the region is not deregistered yet.
    ibv_sge { addr, length, lkey: unsafe { (*region).lkey } }
}

/// Messages, reads and writes from one file to the other, which nobody has mapped and which are closed meanwhile.
#[test]
fn messages_reads_and_writes_reach_the_part_of_a_file() {
    const START: u64 = 0x7000_0010;
    let (a, b) = pair(QpOptions::default());
    let pattern: Vec<u8> = (0..20_000).map(|at| (at % 251) as u8).collect();
    let (ours, theirs) = (memory_file(&pattern), memory_file(&[0; 20_000]));
    let (looked_at, ours_at) = (theirs.try_clone().unwrap(), ours.try_clone().unwrap());
    let local = register(&a, &ours, (4096 + 16, 9000), START, ALL_ACCESS);
    let remote = register(&b, &theirs, (16, 9000), START, ALL_ACCESS);
    assert!(!local.is_null() && !remote.is_null(), "errno {}", errno());
    // SAFETY: the regions exist.
    unsafe { assert_eq!(((*local).addr as u64, (*local).length), (4096 + 16, 9000)) };
    drop((ours, theirs));
    let handle = a.handle(b.gid());
    let to = (handle, b.number(), b.qkey);
    assert_eq!(b.post_receive(1, entry(remote, START + 100, 5000)), 0);
    assert_eq!(a.post_send(1, to, &[entry(local, START, 5000)], 0), 0);
    assert_eq!((b.wait().status, a.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(bytes_of(&looked_at, 116, 5000), pattern[4112..9112]);
    let wait = || loop {
        assert_eq!(b.poll(), None);
        if let Some(seen) = a.poll() {
            break seen.status;
        }
    };
    let last = [entry(local, START + 8000, 1000)];
    assert_eq!(a.post_remote(2, to, true, (START + 8000, rkey(remote)), &last), 0);
    assert_eq!(wait(), IBV_WC_SUCCESS);
    assert_eq!(bytes_of(&looked_at, 8016, 1000), pattern[12_112..13_112]);
    let first = [entry(local, START, 60)];
    assert_eq!(a.post_remote(3, to, false, (START, rkey(remote)), &first), 0);
    assert_eq!(wait(), IBV_WC_SUCCESS);
    assert_eq!(bytes_of(&ours_at, 4112, 60), [0; 60]);
    // The region ends before the file does.
    let beyond = [entry(local, START, 2)];
    assert_eq!(a.post_remote(4, to, true, (START + 8999, rkey(remote)), &beyond), 0);
    assert_eq!(wait(), IBV_WC_REM_ACCESS_ERR);
    [local, remote].into_iter().for_each(deregister);
    assert_eq!(bytes_of(&looked_at, 116, 5000), pattern[4112..9112], "the file stays");
    destroy(handle);
}

#[test]
fn part_that_is_not_in_the_file_or_cannot_be_mapped_is_refused() {
    LazyLock::force(&HOST);
    let end = Endpoint::in_reset(QpOptions::default());
    let file = memory_file(&[0; 8192]);
    let refused = |file: &File, part, start, access| {
        let region = register(&end, file, part, start, access);
        if region.is_null() {
            return errno();
        }
        deregister(region);
        0
    };
    let write = IBV_ACCESS_LOCAL_WRITE;
    assert_eq!(refused(&file, (0, 8192), 0x1000, write), 0, "all of it");
    assert_eq!(refused(&file, (8191, 1), 0xfff, 0), 0, "its last byte");
    for (part, start) in [
        ((0, 0), 0),
        ((0, 8193), 0),
        ((8192, 1), 0),
        ((u64::MAX - 4095, 4096), 0),
        ((1 << 63, 1), 0),
        ((0, usize::MAX), 0),
        ((4096, 4096), 1),
        ((0, 8192), u64::MAX - 4095),
    ] {
        assert_eq!(refused(&file, part, start, write), libc::EINVAL, "{part:?} {start:#x}");
    }
    assert_eq!(refused(&memory_file(&[]), (0, 1), 0, write), libc::EINVAL, "an empty file");
    assert_eq!(refused(&file, (0, 1), 0, IBV_ACCESS_REMOTE_WRITE), libc::EINVAL, "not locally");
    assert_eq!(refused(&file, (0, 1), 0, write | 8), libc::EOPNOTSUPP, "atomics");
    let read_only = File::open("/proc/self/exe").unwrap();
    assert_eq!(refused(&read_only, (0, 4096), 0, 0), 0);
    assert_eq!(refused(&read_only, (0, 4096), 0, write), libc::EACCES);
    let (pipe, _other) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    assert_eq!(refused(&pipe, (0, 1), 0, 0), libc::EINVAL, "a pipe");
    for descriptor in [-1, -100, c_int::MAX] {
        // SAFETY: the descriptor isn't open, which is what is tested.
        let region = unsafe { (verbs().ibv_reg_dmabuf_mr)(end.pd, 0, 1, 0, descriptor, 0) };
        assert_eq!((region.is_null(), errno()), (true, libc::EBADF), "{descriptor}");
    }
}
