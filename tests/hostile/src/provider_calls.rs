//! A C program that calls our provider for libfabric with wrong arguments: null pointers, objects of other classes,
//! of other domains or closed, too many pieces, too much to inject, unknown flags and commands, indices that aren't
//! there. Each call succeeds or returns an error number, and none panics; all objects can be closed; and a correct
//! program works afterwards.
//!
//! Objects are called through their own tables, as libfabric's headers do. Memory is as long as the program says: no
//! library can check that.
//!
//! The provider needs libfabric in the process. Where it isn't installed, the target does nothing.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use efars_fi::abi::*;
use tempfile::TempDir;

use crate::input::Input;
use crate::memory;

unsafe extern "C" {
    fn fi_prov_ini() -> *mut fi_provider;
}

/// Most calls of a program.
const CALLS: usize = 150;
/// Bytes of the program's memory; operations may use it until their endpoint is closed.
const MEMORY: usize = 1 << 16;
/// Entries of arrays that are passed: more than any limit of pieces.
const ENTRIES: usize = 64;
/// One more than the largest error number.
const ERRORS: isize = 300;

/// What the program has of libfabric.
struct Library {
    provider: &'static fi_provider,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
}

// SAFETY: functions, and a record that nobody changes.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The directory of the provider's device.
static HOSTS: OnceLock<TempDir> = OnceLock::new();

/// Removes it at the end: what statics hold is not dropped.
extern "C" fn remove_hosts() {
    if let Some(hosts) = HOSTS.get() {
        let _ = std::fs::remove_dir_all(hosts.path());
    }
}

/// libfabric and the provider, which has a network of this process alone and waits for nobody at the end.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let find = || {
        // SAFETY: the function has no preconditions.
        assert_eq!(unsafe { libc::atexit(remove_hosts) }, 0);
        let hosts = HOSTS.get_or_init(|| TempDir::new_in(memory()).expect("a directory"));
        // SAFETY: calls of Rust to variables exclude each other, and no C code of another thread reads any.
        unsafe {
            std::env::set_var("FI_EFARS_DEVICE", "shm");
            std::env::set_var("FI_EFARS_SHM_DIRECTORY", hosts.path().join("hosts"));
            std::env::set_var("FI_EFARS_CLOSE_TIMEOUT", "0");
        }
        // SAFETY: libfabric has initialisers without conditions; its functions have these types in all releases.
        unsafe {
            let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
            let libfabric = libc::dlopen(c"libfabric.so.1".as_ptr(), flags);
            if libfabric.is_null() {
                eprintln!("skipped: libfabric is not installed");
                return None;
            }
            let symbol = |name: &CStr| libc::dlsym(libfabric, name.as_ptr());
            let freeinfo = symbol(c"fi_freeinfo");
            let provider = fi_prov_ini().as_ref().expect("a provider");
            Some(Library {
                provider,
                freeinfo: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut fi_info)>(
                    freeinfo,
                ),
            })
        }
    };
    LIBRARY.get_or_init(find).as_ref()
}

/// A program, with its objects and its memory.
struct Program<'a> {
    input: Input<'a>,
    library: &'static Library,
    live: Vec<*mut fid>,
    closed: Vec<*mut fid>,
    infos: Vec<*mut fi_info>,
    memory: *mut u8,
}

/// A function of a table, which must be there.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ($($argument:expr),* $(,)?)) => {{
        let at = $object;
        if at.is_null() {
            return;
        }
        // SAFETY: the object is one of the library, open or closed, which has all tables; the arguments are null,
        // objects, or memory as long as the program says.
        unsafe {
            let table = (*at).$table.as_ref().expect(stringify!($table));
            let function = table.$function.expect(stringify!($function));
            let result = function($($argument),*);
            check(stringify!($function), result as isize)
        }
    }};
}

// After the macro, which they use.
mod objects;
mod operations;

/// Whether calls are printed.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Runs an input, and prints each call with its result.
pub(crate) fn show(bytes: &[u8]) {
    SHOWN.store(true, Ordering::Relaxed);
    run(bytes);
}

/// Succeeds, or fails with an error number that isn't that of a panic.
#[track_caller]
fn check(call: &str, result: isize) -> isize {
    if SHOWN.load(Ordering::Relaxed) {
        crate::say!("{call}: {result}");
    }
    assert!(result > -ERRORS, "{call} returned {result}");
    assert!(result != -(FI_EOTHER as isize), "{call} panicked");
    result
}

pub(crate) fn run(bytes: &[u8]) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(library) = library() else { return };
    // Operations of an endpoint that can't be closed would use it after the run.
    let memory = Box::leak(vec![0; MEMORY].into_boxed_slice());
    let mut program = Program {
        input: Input::new(bytes),
        library,
        live: Vec::new(),
        closed: Vec::new(),
        infos: Vec::new(),
        memory: memory.as_mut_ptr(),
    };
    program.begin();
    for _ in 0..CALLS {
        if program.input.is_empty() {
            break;
        }
        program.step();
    }
    program.end();
    let memory: *mut [u8] = memory;
    // SAFETY: all endpoints and regions are closed, so that nothing uses it.
    drop(unsafe { Box::from_raw(memory) });
}

impl Program<'_> {
    /// What a correct program does: an endpoint that can send to itself. Returns it with its queue.
    fn begin(&mut self) -> (*mut fid_ep, *mut fid_cq) {
        let input = std::mem::replace(&mut self.input, Input::new(&[]));
        self.discover(false);
        self.fabric();
        self.domain();
        self.input = input;
        let find = |class| {
            // SAFETY: live objects are open ones of the library.
            let found = self.live.iter().copied().find(|at| unsafe { (**at).fclass } == class);
            found.expect("a correct program has no fabric and domain")
        };
        let domain: *mut fid_domain = find(FI_CLASS_DOMAIN).cast();
        let info = self.infos[0];
        let (mut av, mut cq, mut ep) = (null_mut(), null_mut(), null_mut());
        let mut of_vector = fi_av_attr { type_: FI_AV_TABLE, ..zeroed() };
        let mut of_queue = fi_cq_attr { format: FI_CQ_FORMAT_TAGGED, ..zeroed() };
        // SAFETY: the objects are those of the library, with the tables of their classes.
        unsafe {
            let table = &*(*domain).ops;
            let none = null_mut();
            assert_eq!(table.av_open.expect("av_open")(domain, &mut of_vector, &mut av, none), 0);
            assert_eq!(table.cq_open.expect("cq_open")(domain, &mut of_queue, &mut cq, none), 0);
            assert_eq!(table.endpoint.expect("endpoint")(domain, info, &mut ep, none), 0);
            let table = &*(*ep).fid.ops;
            let bind = table.bind.expect("bind");
            assert_eq!(bind(ep.cast(), av.cast(), 0), 0);
            assert_eq!(bind(ep.cast(), cq.cast(), FI_SEND | FI_RECV), 0);
            assert_eq!(table.control.expect("control")(ep.cast(), FI_ENABLE, none), 0);
            let (mut name, mut length) = ([0_u8; 64], 64);
            let getname = (*(*ep).cm).getname.expect("getname");
            assert_eq!(getname(ep.cast(), name.as_mut_ptr().cast(), &mut length), 0);
            let insert = (*(*av).ops).insert.expect("insert");
            assert_eq!(insert(av, name.as_ptr().cast(), 1, null_mut(), 0, none), 1);
        }
        self.keep(0, av);
        self.keep(0, cq);
        self.keep(0, ep);
        (ep, cq)
    }

    /// Closes everything, objects before what they depend on; then a correct program works.
    fn end(&mut self) {
        loop {
            let before = self.live.len();
            for object in std::mem::take(&mut self.live).into_iter().rev() {
                // SAFETY: the object is an open one of the library.
                let result = unsafe { (*(*object).ops).close.expect("close")(object) };
                if check("close", result as isize) != 0 {
                    self.live.insert(0, object);
                }
            }
            if self.live.len() == before {
                break;
            }
        }
        // SAFETY: objects of the library stay readable.
        let classes = || self.live.iter().map(|at| unsafe { (**at).fclass }).collect::<Vec<_>>();
        assert!(self.live.is_empty(), "objects of the classes {:?} can't be closed", classes());
        for info in std::mem::take(&mut self.infos) {
            // SAFETY: the entry is of libfabric; its handle isn't freed with it.
            unsafe { (self.library.freeinfo)(info) };
        }
        let (ep, cq) = self.begin();
        self.send_to_itself(ep, cq);
        for object in std::mem::take(&mut self.live).into_iter().rev() {
            // SAFETY: as above.
            assert_eq!(unsafe { (*(*object).ops).close.expect("close")(object) }, 0);
        }
        for info in std::mem::take(&mut self.infos) {
            // SAFETY: as above.
            unsafe { (self.library.freeinfo)(info) };
        }
    }

    /// A tagged message of 8 bytes.
    fn send_to_itself(&mut self, ep: *mut fid_ep, cq: *mut fid_cq) {
        let (from, to): (*mut c_void, *mut c_void) =
            (self.memory.cast(), self.memory.wrapping_add(64).cast());
        let mut entries = [zeroed::<fi_cq_tagged_entry>(); 2];
        // SAFETY: the objects are open, and the memory is the program's.
        unsafe {
            from.cast::<u64>().write_unaligned(0x1122_3344_5566_7788);
            let table = &*(*ep).tagged;
            let (receive, send) = (table.recv.expect("recv"), table.send.expect("send"));
            let none = null_mut();
            assert_eq!(receive(ep, to, 8, none, FI_ADDR_UNSPEC, 5, 0, to), 0);
            assert_eq!(send(ep, from, 8, none, 0, 5, from), 0);
            let read = (*(*cq).ops).read.expect("read");
            let mut done = 0;
            for _ in 0..1_000_000 {
                match read(cq, entries.as_mut_ptr().add(done).cast(), 2 - done) {
                    count @ 1.. => done += count.unsigned_abs(),
                    error => assert_eq!(error, -(FI_EAGAIN as isize)),
                }
                if done == 2 {
                    break;
                }
            }
            assert_eq!(done, 2, "a correct program's message didn't arrive");
            assert_eq!(to.cast::<u64>().read_unaligned(), 0x1122_3344_5566_7788);
        }
    }

    fn step(&mut self) {
        match self.input.below(20) {
            0 => self.discover(true),
            1 => self.fabric(),
            2 => self.domain(),
            3 => self.of_domain(),
            4 | 5 => self.endpoint(),
            6 => self.of_fabric(),
            7 => self.bind(),
            8 => self.control(),
            9 => self.close(),
            10 => self.register(),
            11 => self.vector(),
            12 => self.queue(),
            13 => self.events(),
            14 => self.connect(),
            15 => self.options(),
            16 => self.message(),
            17 => self.tagged(),
            18 => self.rma(),
            _ => self.atomic(),
        }
    }

    // ---- arguments --------------------------------------------------------------------------------

    /// An object of this class, mostly open; null if there is none.
    fn object<T>(&mut self, classes: &[usize]) -> *mut T {
        let wants_closed = self.input.one_in(8);
        let from = if wants_closed { &self.closed } else { &self.live };
        // SAFETY: objects of the library stay readable when they are closed.
        let fits = |at: &&*mut fid| classes.contains(&unsafe { (***at).fclass });
        let fitting: Vec<_> = from.iter().filter(fits).copied().collect();
        if fitting.is_empty() { null_mut() } else { self.input.pick(&fitting).cast() }
    }

    /// Any object, open or closed, or null.
    fn any(&mut self) -> *mut fid {
        let all = [&self.live[..], &self.closed[..], &[null_mut()]].concat();
        self.input.pick(&all)
    }

    /// Mostly 0; else one bit, or any bits.
    fn flags(&mut self) -> u64 {
        match self.input.below(8) {
            0..4 => 0,
            4..7 => 1 << self.input.below(64),
            _ => self.input.number(8),
        }
    }

    /// A place in the program's memory and a length that fits, or null.
    fn buffer(&mut self) -> (*mut c_void, usize) {
        let length = (self.input.about(64) as usize).min(MEMORY / 2);
        let offset = self.input.number(2) as usize % (MEMORY / 2);
        if self.input.one_in(12) {
            return (null_mut(), length);
        }
        (self.memory.wrapping_add(offset).cast(), length)
    }

    /// Pieces, and a number of them that is right or too great.
    fn pieces(&mut self) -> ([libc::iovec; ENTRIES], usize) {
        let (base, length) = self.buffer();
        let piece = libc::iovec { iov_base: base, iov_len: length / 64 };
        ([piece; ENTRIES], self.count())
    }

    fn count(&mut self) -> usize {
        self.input.pick(&[1, 0, 2, 4, 28, 29, ENTRIES, usize::MAX])
    }

    /// The descriptor of a region, or null.
    fn descriptor(&mut self) -> *mut c_void {
        let region: *mut fid_mr = self.object(&[FI_CLASS_MR]);
        if region.is_null() || self.input.one_in(2) {
            return null_mut();
        }
        // SAFETY: it is an object of the library.
        unsafe { (*region).mem_desc }
    }

    fn address(&mut self) -> fi_addr_t {
        self.input.pick(&[0, 1, FI_ADDR_UNSPEC, 7, 1 << 32, 1 << 60])
    }

    fn context(&mut self) -> *mut c_void {
        self.memory.wrapping_add(self.input.below(4)).cast()
    }

    fn info(&mut self) -> *mut fi_info {
        let infos = [&self.infos[..], &[null_mut()]].concat();
        self.input.pick(&infos)
    }

    fn keep<T>(&mut self, made: isize, object: *mut T) {
        if made == 0 {
            assert!(!object.is_null(), "no object");
            self.closed.retain(|at| *at != object.cast());
            self.live.push(object.cast());
        }
    }
}
