//! A process without file descriptors: error numbers and words, and another try. A umask that takes all
//! permissions.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::{Host, LINKS, begin, print, printed};

/// Sets how many descriptors this process may have; `None`: no more than it has.
fn limit_descriptors(limit: Option<u64>) {
    // The next one gets the lowest free number, which must be below the limit.
    let free = || std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is valid; a lower limit closes nothing.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits), 0);
        limits.rlim_cur = limit.unwrap_or_else(free);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits), 0);
    }
}

/// Prints the error numbers of a send and of a new queue pair without descriptors, and the status of the same
/// send with some.
#[test]
#[ignore = "a child"]
fn child_runs_out_of_descriptors() {
    begin();
    let [sender, receiver] = std::array::from_fn(|_| Endpoint::new(QpOptions::default()));
    let memory = Memory::of(&[0; 8]);
    let region = receiver.register(&memory, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(receiver.post_receive(1, sge(region, 0, 8)), 0);
    let handle = sender.handle(receiver.gid());
    let to = (handle, receiver.number(), receiver.qkey);
    let send = || sender.post_send(2, to, &[inline(b"12345678")], IBV_SEND_INLINE);
    limit_descriptors(None);
    let errors = [send(), send()];
    let refused = create(sender.context, sender.pd, sender.cq, QpOptions::default());
    let error = errno();
    limit_descriptors(Some(256));
    print(format!("{errors:?} {} {error}", refused.is_null()));
    assert_eq!(send(), 0);
    assert_eq!((receiver.wait().status, sender.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    assert_eq!(memory.bytes(), b"12345678");
    // SAFETY: both objects were created here and are not used afterwards.
    unsafe {
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
    }
}

#[test]
fn send_without_descriptors_fails_with_their_error_number_and_works_when_there_are_some() {
    for link in LINKS {
        let output = Host::new(link).run("scarce::child_runs_out_of_descriptors", &[]);
        assert_eq!(printed(&output), ["[24, 24] true 24"], "{link}");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines = words.lines().filter(|line| line.starts_with("efa-soft: "));
        let all_clear = |line: &str| line.ends_with("Too many open files (os error 24)");
        // One for the send that was tried twice, one for the queue pair.
        assert_eq!(lines.clone().count(), 2, "{link}: {words}");
        assert!(lines.into_iter().all(all_clear), "{link}: {words}");
    }
}

/// Prints the paths that this user can't use of those that an endpoint makes with a umask of 0777.
#[test]
#[ignore = "a child"]
fn child_takes_all_permissions() {
    begin();
    // SAFETY: `umask` has no preconditions.
    unsafe { libc::umask(0o777) };
    // Also the file that wakes a queue pair with a channel.
    let _end = Endpoint::new(QpOptions { channel: true, ..QpOptions::default() });
    let mut places: Vec<PathBuf> = ["EFA_SOFT_SYSFS", "EFA_SOFT_DIRECTORY"]
        .into_iter()
        .filter_map(|name| std::env::var_os(name).map(PathBuf::from))
        .filter(|path| path.exists())
        .collect();
    let mut seen = 0;
    while let Some(path) = places.pop() {
        let data = std::fs::symlink_metadata(&path).unwrap();
        let needed = if data.is_dir() { 0o700 } else { 0o600 };
        if data.mode() & needed != needed {
            print(path.display());
        }
        seen += 1;
        if data.is_dir() {
            places.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn files_are_accessible_to_their_user_whatever_the_umask_is() {
    for link in LINKS {
        let output = Host::new(link).run("scarce::child_takes_all_permissions", &[]);
        assert_eq!(printed(&output), [""; 0], "{link}");
    }
}

/// How many objects `create` makes until it returns null, after an endpoint was made, and the error number.
fn until_refused<T>(create: impl Fn() -> *mut T) -> (Vec<*mut T>, i32) {
    let mut made = Vec::new();
    loop {
        let object = create();
        if object.is_null() {
            return (made, errno());
        }
        made.push(object);
    }
}

/// Creates objects of each kind until one is refused, prints how many and the error number, and creates another in the
/// place of one that was destroyed.
#[test]
#[ignore = "a child"]
fn child_reaches_limits() {
    begin();
    let v = verbs();
    let end = Endpoint::new(QpOptions::default());
    let memory = Memory::of(&[0; 64]);
    // SAFETY: all arguments are valid; each object was created here and is destroyed once.
    unsafe {
        let domain = || (v.ibv_alloc_pd)(end.context);
        let (domains, error) = until_refused(domain);
        assert_eq!((v.ibv_dealloc_pd)(domains[0]), 0);
        assert!(!domain().is_null());
        print(format!("pd {} {error}", domains.len()));

        let queue = || (v.ibv_create_cq)(end.context, 4, null_mut(), null_mut(), 0);
        let (queues, error) = until_refused(queue);
        assert_eq!((v.ibv_destroy_cq)(queues[0]), 0);
        assert!(!queue().is_null());
        print(format!("cq {} {error}", queues.len()));

        let pair = || create(end.context, end.pd, end.cq, QpOptions::default());
        let (pairs, error) = until_refused(pair);
        assert_eq!((v.ibv_destroy_qp)(pairs[0]), 0);
        assert!(!pair().is_null());
        print(format!("qp {} {error}", pairs.len()));

        // Each of another interface.
        let next = std::cell::Cell::new(0);
        let handle = || {
            next.set(next.get() + 1);
            let mut attributes: ibv_ah_attr = zeroed();
            attributes.grh.dgid = ibv_gid { raw: [next.get(); 16] };
            attributes.is_global = 1;
            attributes.port_num = 1;
            (v.ibv_create_ah)(end.pd, &raw mut attributes)
        };
        let (handles, error) = until_refused(handle);
        assert_eq!((v.ibv_destroy_ah)(handles[0]), 0);
        assert!(!handle().is_null());
        print(format!("ah {} {error}", handles.len()));

        for length in [1, 60] {
            let region = || (v.ibv_reg_mr)(end.pd, memory.address(), length, 0);
            let (regions, error) = until_refused(region);
            assert_eq!((v.ibv_dereg_mr)(regions[0]), 0);
            let again = region();
            assert!(!again.is_null());
            print(format!("mr of {length} {} {error}", regions.len()));
            for region in regions[1..].iter().chain([&again]) {
                assert_eq!((v.ibv_dereg_mr)(*region), 0);
            }
        }
    }
    // The process ends with objects that nobody destroys.
    std::mem::forget(end);
}

#[test]
fn objects_beyond_the_limits_of_the_settings_are_refused_with_enomem() {
    for link in LINKS {
        let limits = ("EFA_SOFT_LIMITS", "pd=3,cq=4,qp=2,ah=5,mr=6,bytes=100");
        let output = Host::new(link).run("scarce::child_reaches_limits", &[limits]);
        let expected =
            ["pd 2 12", "cq 3 12", "qp 1 12", "ah 5 12", "mr of 1 6 12", "mr of 60 1 12"];
        assert_eq!(printed(&output), expected, "{link}");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("no space for another queue pair: the limit is 2"), "{words}");
    }
}

/// Leaves a completion queue to each context that it closes, more often than there may be queues.
#[test]
#[ignore = "a child"]
fn child_leaves_queues_to_contexts() {
    begin();
    let v = verbs();
    // Keeps the device, and with it what is counted.
    let kept = open();
    for has_channel in [false, true, false, true] {
        let context = open();
        // SAFETY: all arguments are valid; the objects are not used after the context is closed.
        unsafe {
            let channel =
                if has_channel { (v.ibv_create_comp_channel)(context) } else { null_mut() };
            assert_eq!(channel.is_null(), !has_channel, "errno {}", errno());
            let queue = (v.ibv_create_cq)(context, 4, null_mut(), channel, 0);
            assert!(!queue.is_null(), "errno {}", errno());
            assert_eq!((v.ibv_close_device)(context), 0);
        }
    }
    // SAFETY: the context was opened here and is not used afterwards.
    assert_eq!(unsafe { (v.ibv_close_device)(kept) }, 0);
}

#[test]
fn queue_left_to_a_context_that_is_closed_counts_no_longer_with_a_channel_or_without() {
    for link in LINKS {
        Host::new(link)
            .run("scarce::child_leaves_queues_to_contexts", &[("EFA_SOFT_LIMITS", "cq=1")]);
    }
}
