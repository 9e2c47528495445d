//! Signals whose handlers end the process, or return, at random moments under traffic.
//!
//! A handler that calls `exit` may interrupt the library where it holds a lock. `exit` then runs
//! destructors that close the device, in the same thread, as libfabric's does (and Debian's libinfinipath
//! installs such handlers in each program that uses libfabric).
//!
//! `EFA_SOFT_SIGNALS=200 cargo test -p efa-softverbs --test processes signals` sends 200 instead of 24 on each
//! link.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use efa_soft::abi::*;

use crate::common::hang;
use crate::common::verbs::*;
use crate::{Host, LINKS, Process, begin, print, printed};

/// What the handler's `exit` ends the process with.
const LEFT: i32 = 3;
/// Messages under way.
const WINDOW: u64 = 16;

/// Two queue pairs of one process, and a region of the receiver.
struct Traffic {
    ends: [Endpoint; 2],
    _memory: Memory,
    region: *mut ibv_mr,
    handle: *mut ibv_ah,
}

// SAFETY: any thread may call the library's functions.
unsafe impl Send for Traffic {}
// SAFETY: several threads may call the library's functions with the same objects.
unsafe impl Sync for Traffic {}

impl Traffic {
    fn new() -> Self {
        let ends = [Endpoint::new(QpOptions::default()), Endpoint::new(QpOptions::default())];
        let memory = Memory::of(&[0; 4096]);
        let region = ends[1].register(&memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        let handle = ends[0].handle(ends[1].gid());
        Self { ends, _memory: memory, region, handle }
    }

    fn post_receive(&self) {
        assert_eq!(self.ends[1].post_receive(0, sge(self.region, 0, 64)), 0);
    }

    fn post_send(&self, number: u64) {
        let to = (self.handle, self.ends[1].number(), self.ends[1].qkey);
        let bytes = number.to_le_bytes();
        assert_eq!(self.ends[0].post_send(number, to, &[inline(&bytes)], IBV_SEND_INLINE), 0);
    }

    /// Sends messages, at most [`WINDOW`] under way, until `goes_on` is false; returns how many arrived.
    fn exchange(&self, goes_on: impl Fn() -> bool) -> u64 {
        (0..WINDOW).for_each(|_| self.post_receive());
        let (mut sent, mut arrived, mut completed) = (0, 0, 0);
        while goes_on() || arrived < sent || completed < sent {
            while sent < arrived.min(completed) + WINDOW && goes_on() {
                self.post_send(sent);
                sent += 1;
            }
            while let Some(seen) = self.ends[0].poll() {
                assert_eq!((seen.status, seen.wr_id), (IBV_WC_SUCCESS, completed));
                completed += 1;
            }
            while let Some(seen) = self.ends[1].poll() {
                assert_eq!((seen.status, seen.length), (IBV_WC_SUCCESS, 8));
                arrived += 1;
                self.post_receive();
            }
        }
        arrived
    }

    /// Destroys everything, as far as the library does it.
    fn close(&self) {
        let v = verbs();
        // SAFETY: the objects were created in `new`, and are destroyed once: `exit` calls this once.
        unsafe {
            (v.ibv_destroy_qp)(self.ends[0].qp);
            (v.ibv_dereg_mr)(self.region);
            (v.ibv_destroy_ah)(self.handle);
            (v.ibv_destroy_cq)(self.ends[0].cq.cast());
            (v.ibv_dealloc_pd)(self.ends[0].pd);
            // The second context with all that is left in it, as libfabric does.
            (v.ibv_close_device)(self.ends[0].context);
            (v.ibv_close_device)(self.ends[1].context);
        }
    }
}

/// The traffic that handlers and destructors find.
static TRAFFIC: OnceLock<Vec<Traffic>> = OnceLock::new();

/// The traffic of each of `threads` threads.
fn traffic(threads: usize) -> &'static [Traffic] {
    TRAFFIC.get_or_init(|| (0..threads).map(|_| Traffic::new()).collect())
}

extern "C" fn close() {
    TRAFFIC.get().into_iter().flatten().for_each(Traffic::close);
}

extern "C" fn leave(_signal: c_int) {
    // SAFETY: no thread of this program but the library's runs, and the library is made for this.
    unsafe { libc::exit(LEFT) };
}

extern "C" fn never_return(_signal: c_int) {
    loop {
        // SAFETY: `pause` has no preconditions.
        unsafe { libc::pause() };
    }
}

/// Calls of [`call_again`] that were refused in the middle of another call.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// Calls the library, as no handler may: nothing is taken or destroyed, as the queue is in use.
extern "C" fn call_again(_signal: c_int) {
    let end = &traffic(1)[0].ends[0];
    // SAFETY: the objects are not destroyed while handlers run; no completion is asked for.
    unsafe {
        let poll = (*end.context).ops.poll_cq.unwrap();
        assert_eq!(poll(end.cq.cast(), 0, null_mut()), 0);
        match (verbs().ibv_destroy_cq)(end.cq.cast()) {
            libc::EBUSY => {}
            libc::EDEADLK => drop(REFUSED.fetch_add(1, Ordering::Relaxed)),
            other => panic!("{other}"),
        }
    }
}

/// Installs a handler; system calls that it interrupts are not restarted.
fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    let mut action: libc::sigaction = zeroed();
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: `action` is valid, and the handler has the type that a `sa_sigaction` without flags has.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }, 0);
}

/// Exchanges messages until a signal arrives whose handler exits.
#[test]
#[ignore = "a child"]
fn child_exchanges_until_its_handler_exits() {
    begin();
    let [traffic] = traffic(1) else { unreachable!() };
    // SAFETY: `close` may run at any time after this.
    assert_eq!(unsafe { libc::atexit(close) }, 0);
    handle(libc::SIGTERM, leave);
    handle(libc::SIGINT, leave);
    // SAFETY: `gettid` has no preconditions.
    print(unsafe { libc::gettid() });
    traffic.exchange(|| true);
}

/// Sends a signal to a thread of a child: one with traffic, as the first thread is the test harness's.
fn send(child: &Process, thread: libc::pid_t, signal: c_int) {
    // SAFETY: the process is a child that was not waited for, so the numbers are its own.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, child.child.id(), thread, signal) };
    assert_eq!(sent, 0);
}

/// Waits until a child has left by its handler, `pause` after its traffic began. Returns whether it does; panics if it
/// waits in the library.
fn ends(host: &Host, mut child: Process, thread: libc::pid_t, pause: Duration) -> bool {
    match hang::wait(&mut child.child, thread) {
        Ok(status) => {
            assert_eq!(status.code(), Some(LEFT), "{status}");
            true
        }
        Err(waiting) if waiting.is_in("libefa_soft") => {
            panic!("{}: after {pause:?} it waits in the library: {waiting:?}", host.link)
        }
        // For a lock of malloc, for example, that the interrupted code held.
        Err(waiting) => {
            eprintln!("{}: it waits elsewhere: {waiting:?}", host.link);
            false
        }
    }
}

#[test]
fn process_whose_handler_exits_under_traffic_never_waits_in_the_library() {
    std::thread::scope(|scope| {
        for link in LINKS {
            scope.spawn(move || {
                let host = Host::new(link);
                let ends_in = |round: &usize| {
                    let signal = [libc::SIGTERM, libc::SIGINT][*round % 2];
                    let pause = Duration::from_micros(fastrand::u64(..20_000));
                    let mut child = host.start("signals::child_exchanges_until_its_handler_exits");
                    let thread = child.receive().parse().unwrap();
                    sleep(pause);
                    send(&child, thread, signal);
                    ends(&host, child, thread, pause)
                };
                let ended = (0..signals()).filter(ends_in).count();
                assert!(ended >= signals() / 2, "{link}: {ended} of {} ended", signals());
            });
        }
    });
}

/// How many signals a test sends on each link.
fn signals() -> usize {
    std::env::var("EFA_SOFT_SIGNALS").map_or(24, |count| count.parse().unwrap())
}

/// One thread exchanges messages, another waits, until the handler of that one exits.
#[test]
#[ignore = "a child"]
fn child_exchanges_in_one_of_two_threads() {
    begin();
    let traffic = traffic(2);
    // SAFETY: `close` may run at any time after this.
    assert_eq!(unsafe { libc::atexit(close) }, 0);
    handle(libc::SIGTERM, leave);
    handle(libc::SIGUSR1, never_return);
    let print_thread = || {
        // SAFETY: `gettid` has no preconditions.
        print(unsafe { libc::gettid() });
    };
    std::thread::scope(|scope| {
        print_thread();
        scope.spawn(|| {
            print_thread();
            traffic[0].exchange(|| true)
        });
        // Not in the library, as that would refuse every call of the handler at once.
        loop {
            sleep(Duration::from_secs(1));
        }
    });
}

/// The handler of a thread never returns, in the middle of a call or not; then another thread exits.
#[test]
fn exit_ends_although_another_thread_is_stopped_in_the_library() {
    std::thread::scope(|scope| {
        for link in LINKS {
            scope.spawn(move || {
                let host = Host::new(link);
                let ends_in = |_: &usize| {
                    let mut child = host.start("signals::child_exchanges_in_one_of_two_threads");
                    let [leaving, stopped] =
                        std::array::from_fn(|_| child.receive().parse().unwrap());
                    let pause = Duration::from_micros(fastrand::u64(..20_000));
                    sleep(pause);
                    send(&child, stopped, libc::SIGUSR1);
                    sleep(Duration::from_millis(5));
                    send(&child, leaving, libc::SIGTERM);
                    ends(&host, child, leaving, pause)
                };
                let rounds = signals() / 4;
                let ended = (0..rounds).filter(ends_in).count();
                assert!(ended >= rounds / 2, "{link}: {ended} of {rounds} ended");
            });
        }
    });
}

/// Exchanges messages while another thread sends it signals whose handler returns.
#[test]
#[ignore = "a child"]
fn child_exchanges_under_signals() {
    begin();
    let [traffic] = traffic(1) else { unreachable!() };
    handle(libc::SIGALRM, call_again);
    let over = AtomicBool::new(false);
    // SAFETY: `pthread_self` has no preconditions.
    let me = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4000 {
                sleep(Duration::from_micros(fastrand::u64(..100)));
                // SAFETY: the thread waits for this one.
                assert_eq!(unsafe { libc::pthread_kill(me, libc::SIGALRM) }, 0);
            }
            over.store(true, Ordering::Relaxed);
        });
        print(traffic.exchange(|| !over.load(Ordering::Relaxed)));
    });
    print(REFUSED.load(Ordering::Relaxed));
    traffic.close();
}

#[test]
fn traffic_goes_on_under_signals_whose_handlers_return_or_call_the_library() {
    for link in LINKS {
        let output = Host::new(link).run("signals::child_exchanges_under_signals", &[]);
        let [arrived, refused] = printed(&output).try_into().unwrap();
        assert_ne!(arrived, "0", "{link}");
        assert_ne!(refused, "0", "{link}: no signal came in the middle of a call");
    }
}
