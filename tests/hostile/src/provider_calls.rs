//! A C program that calls our provider for libfabric with wrong arguments: null pointers, objects of other classes,
//! of other domains or closed, too many pieces, too much to inject, unknown flags and commands, indices that aren't
//! there. Each call succeeds or returns an error number, and none panics; all objects can be closed; and a correct
//! program works afterwards.
//!
//! Objects are called through their own tables, as libfabric's headers do. Memory is as long as the program says: no
//! library can check that.
//!
//! The provider needs libfabric in the process. Where it isn't installed, the target does nothing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use efars_fi::abi::*;

use crate::input::Input;

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

/// libfabric and the provider, which has a network of this process alone and waits for nobody at the end.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let find = || {
        // SAFETY: calls of Rust to variables exclude each other, and no C code of another thread reads any.
        unsafe {
            std::env::set_var("FI_EFARS_DEVICE", format!("shm:fuzz-{}", std::process::id()));
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

// ---- objects ------------------------------------------------------------------------------------

impl Program<'_> {
    /// Asks what there is, with hints that are an earlier answer with something changed.
    fn discover(&mut self, with_hints: bool) {
        let version = match self.input.below(4) {
            0 => FI_VERSION(1, 17),
            1 => FI_VERSION(1, 5),
            2 => FI_VERSION(2, 6),
            _ => self.input.about32(FI_VERSION(1, 17)),
        };
        let flags = if with_hints { self.flags() } else { 0 };
        let service = self.input.pick(&[null(), c"x".as_ptr(), c"0".as_ptr(), c"7471".as_ptr()]);
        let service = if with_hints { service } else { null() };
        let hints = if with_hints { self.info() } else { null_mut() };
        if !hints.is_null() {
            self.change(hints);
        }
        let Some(getinfo) = self.library.provider.getinfo else { return };
        let mut found = null_mut();
        // SAFETY: hints are an entry of libfabric or null, and there is a place for the answer.
        let result = unsafe { getinfo(version, null(), service, flags, hints, &mut found) };
        if check("getinfo", result as isize) == 0 {
            assert!(!found.is_null());
            self.infos.push(found);
        }
    }

    /// Changes a number of an entry.
    fn change(&mut self, info: *mut fi_info) {
        let (number, bits) = (self.input.about(4), self.flags());
        let handle = self.any();
        // SAFETY: the entry is of libfabric, with all its attributes; numbers may have any value.
        unsafe {
            let fi_info { tx_attr, rx_attr, ep_attr, domain_attr, .. } = *info;
            let (transmit, receive) = (&mut *tx_attr, &mut *rx_attr);
            let (endpoint, domain) = (&mut *ep_attr, &mut *domain_attr);
            match self.input.below(20) {
                0 => (*info).caps = bits,
                1 => (*info).mode = bits,
                2 => (*info).addr_format = number as u32,
                3 => (*info).handle = handle,
                4 => transmit.op_flags = bits,
                5 => transmit.caps = bits,
                6 => transmit.msg_order = bits,
                7 => transmit.inject_size = number as usize,
                8 => transmit.iov_limit = number as usize,
                9 => receive.op_flags = bits,
                10 => receive.size = number as usize,
                11 => endpoint.type_ = number as u32,
                12 => endpoint.protocol_version = number as u32,
                13 => endpoint.tx_ctx_cnt = number as usize,
                14 => endpoint.rx_ctx_cnt = number as usize,
                15 => domain.mr_mode = bits as c_int,
                16 => domain.av_type = number as u32,
                17 => domain.data_progress = number as u32,
                18 => domain.threading = number as u32,
                _ => domain.cq_data_size = number as usize,
            }
        }
    }

    fn fabric(&mut self) {
        let info = self.info();
        let mut attr: fi_fabric_attr = match info.is_null() {
            true => zeroed(),
            // SAFETY: the entry is of libfabric.
            false => unsafe { *(*info).fabric_attr },
        };
        let Some(open) = self.library.provider.fabric else { return };
        let mut made = null_mut();
        let attr = if self.input.one_in(16) { null_mut() } else { &raw mut attr };
        let to = if self.input.one_in(16) { null_mut() } else { &raw mut made };
        // SAFETY: both are null or places for what the function reads and writes.
        let result = unsafe { open(attr, to, self.context()) };
        self.keep(check("fabric", result as isize), made);
    }

    fn domain(&mut self) {
        let (info, context) = (self.info(), self.context());
        let fabric: *mut fid_fabric = self.object(&[FI_CLASS_FABRIC]);
        let mut made = null_mut();
        let result = call!(fabric, ops.domain(fabric, info, &mut made, context));
        self.keep(result, made);
    }

    fn of_fabric(&mut self) {
        let (info, context, kind) = (self.info(), self.context(), self.input.below(4));
        let attr = [self.input.number(8), self.flags(), self.input.about(1), 0, 0, 0, 0, 0];
        let fabric: *mut fid_fabric = self.object(&[FI_CLASS_FABRIC]);
        let mut attr = attr;
        let attr = if self.input.one_in(8) { null_mut() } else { attr.as_mut_ptr() };
        match kind {
            0 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.passive_ep(fabric, info, &mut made, context));
                self.keep(result, made);
            }
            1 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.eq_open(fabric, attr.cast(), &mut made, context));
                self.keep(result, made);
            }
            2 => {
                let mut made = null_mut();
                let result = call!(fabric, ops.wait_open(fabric, attr.cast(), &mut made));
                self.keep(result, made);
            }
            _ => {
                let mut fids: Vec<*mut fid> = (0..4).map(|_| self.any()).collect();
                let count = self.input.pick(&[1, 0, 4, -1]);
                call!(fabric, ops.trywait(fabric, fids.as_mut_ptr(), count));
            }
        }
    }

    /// Vectors, queues, counters and sets.
    fn of_domain(&mut self) {
        let context = self.context();
        let (kind, number, small) =
            (self.input.below(6), self.input.about(16), self.input.below(8));
        let flags = self.flags();
        let wait: *mut fid_wait = self.object(&[FI_CLASS_WAIT]);
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let size = number as usize % 4096;
        let no_attr = self.input.one_in(12);
        match kind {
            0 => {
                let (type_, rx_ctx_bits) = ((small % 4) as u32, self.input.about(2) as c_int);
                let mut attr = fi_av_attr { type_, rx_ctx_bits, count: size, flags, ..zeroed() };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.av_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            1 | 2 => {
                let (format, wait_obj) = (self.input.below(6) as u32, small as u32);
                let mut attr =
                    fi_cq_attr { size, flags, format, wait_obj, wait_set: wait, ..zeroed() };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.cq_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            3 => {
                let mut attr =
                    fi_cntr_attr { wait_obj: small as u32, wait_set: wait, flags, events: 0 };
                let mut made = null_mut();
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                let result = call!(domain, ops.cntr_open(domain, attr, &mut made, context));
                self.keep(result, made);
            }
            4 => {
                let mut attr = fi_poll_attr { flags };
                let mut made = null_mut();
                let result = call!(domain, ops.poll_open(domain, &mut attr, &mut made));
                self.keep(result, made);
            }
            _ => {
                let mut attr: fi_atomic_attr = zeroed();
                let (datatype, op) = (self.input.about32(5), self.input.about32(2));
                let attr = if no_attr { null_mut() } else { &raw mut attr };
                call!(domain, ops.query_atomic(domain, datatype, op, attr, flags));
            }
        }
    }

    /// Endpoints, contexts of scalable ones, and shared contexts.
    fn endpoint(&mut self) {
        let (info, context, index) = (self.info(), self.context(), self.input.about(0) as c_int);
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let mut made: *mut fid_ep = null_mut();
        let result = match self.input.below(8) {
            0..4 => call!(domain, ops.endpoint(domain, info, &mut made, context)),
            4 => call!(domain, ops.scalable_ep(domain, info, &mut made, context)),
            5 => {
                let ep: *mut fid_ep = self.object(&[FI_CLASS_SEP, FI_CLASS_EP]);
                call!(ep, ops.tx_ctx(ep, index, null_mut(), &mut made, context))
            }
            6 => {
                let ep: *mut fid_ep = self.object(&[FI_CLASS_SEP, FI_CLASS_EP]);
                call!(ep, ops.rx_ctx(ep, index, null_mut(), &mut made, context))
            }
            _ => call!(domain, ops.srx_ctx(domain, null_mut(), &mut made, context)),
        };
        self.keep(result, made);
    }

    fn bind(&mut self) {
        let (object, other) = (self.any(), self.any());
        let flags = match self.input.below(4) {
            0 => FI_SEND | FI_RECV,
            1 => FI_SEND | FI_SELECTIVE_COMPLETION,
            2 => FI_RECV,
            _ => self.flags(),
        };
        let flags = if self.input.one_in(4) { 0 } else { flags };
        call!(object, ops.bind(object, other, flags));
    }

    fn control(&mut self) {
        let object = self.any();
        // Mostly the one that an endpoint can't do without.
        let command = if self.input.one_in(2) { FI_ENABLE } else { self.input.about32(5) as c_int };
        let mut zeros = [0_u64; 16];
        let argument: *mut c_void =
            if self.input.one_in(4) { null_mut() } else { zeros.as_mut_ptr().cast() };
        if command != FI_QUEUE_WORK || argument.is_null() {
            call!(object, ops.control(object, command, argument));
        }
    }

    fn close(&mut self) {
        let object = self.any();
        if call!(object, ops.close(object)) == 0 {
            self.live.retain(|at| *at != object);
            self.closed.push(object);
        }
    }

    fn register(&mut self) {
        let domain: *mut fid_domain = self.object(&[FI_CLASS_DOMAIN]);
        let (at, length) = self.buffer();
        let access =
            if self.input.one_in(2) { FI_REMOTE_READ | FI_REMOTE_WRITE } else { self.flags() };
        let (offset, key) = (self.input.about(0), self.input.about(3));
        let (flags, context) = (self.flags(), self.context());
        let (pieces, count) = self.pieces();
        let mut made = null_mut();
        let fid: *mut fid = domain.cast();
        let attr = fi_mr_attr {
            mr_iov: pieces.as_ptr(),
            iov_count: count,
            access,
            offset,
            requested_key: key,
            context,
            iface: self.input.below(4) as u32,
            ..zeroed()
        };
        let attr = if self.input.one_in(8) { null() } else { &raw const attr };
        let to = &raw mut made;
        let result = match self.input.below(3) {
            0 => call!(domain, mr.reg(fid, at, length, access, offset, key, flags, to, context)),
            1 => {
                let pieces = pieces.as_ptr();
                call!(domain, mr.regv(fid, pieces, count, access, offset, key, flags, to, context))
            }
            _ => call!(domain, mr.regattr(fid, attr, flags, to)),
        };
        self.keep(result, made);
    }

    fn vector(&mut self) {
        let av: *mut fid_av = self.object(&[FI_CLASS_AV]);
        let (flags, fi, kind) = (self.flags(), self.address(), self.input.below(6));
        let count = self.input.pick(&[1, 0, 2, ENTRIES / 2]);
        let mut fis: [fi_addr_t; ENTRIES] = [fi; ENTRIES];
        let fis = if self.input.one_in(6) { null_mut() } else { fis.as_mut_ptr() };
        let (names, _) = self.buffer();
        let (mut errors, mut length) = ([0_u64; ENTRIES], self.input.about(32) as usize % 128);
        let mut room = [0_u8; 256];
        match kind {
            0 | 1 => {
                let context = errors.as_mut_ptr().cast();
                call!(av, ops.insert(av, names, count, fis, flags, context));
            }
            2 => {
                call!(av, ops.remove(av, fis, count, flags));
            }
            3 => {
                let to = if self.input.one_in(6) { null_mut() } else { room.as_mut_ptr().cast() };
                call!(av, ops.lookup(av, fi, to, &mut length));
            }
            4 => {
                let (node, service) = (null(), c"x".as_ptr());
                call!(av, ops.insertsvc(av, node, service, fis, flags, null_mut()));
            }
            _ if av.is_null() || names.is_null() => {}
            _ => {
                // SAFETY: the object is a vector; `room` is as long as `length` says, or longer.
                unsafe {
                    let straddr = (*(*av).ops).straddr.expect("straddr");
                    straddr(av, names, room.as_mut_ptr().cast(), &mut length);
                }
            }
        }
    }

    fn queue(&mut self) {
        let cq: *mut fid_cq = self.object(&[FI_CLASS_CQ]);
        let mut entries = [zeroed::<fi_cq_tagged_entry>(); ENTRIES];
        let mut sources = [0; ENTRIES];
        let at: *mut c_void =
            if self.input.one_in(12) { null_mut() } else { entries.as_mut_ptr().cast() };
        let sources = if self.input.one_in(2) { null_mut() } else { sources.as_mut_ptr() };
        let (count, flags) = (self.input.below(ENTRIES + 1), self.flags());
        let mut failed: fi_cq_err_entry = zeroed();
        match self.input.below(6) {
            0 => call!(cq, ops.read(cq, at, count)),
            1 => call!(cq, ops.readfrom(cq, at, count, sources)),
            2 => {
                let to = if self.input.one_in(6) { null_mut() } else { &raw mut failed };
                call!(cq, ops.readerr(cq, to, flags))
            }
            3 => call!(cq, ops.sread(cq, at, count, null(), 0)),
            4 => call!(cq, ops.signal(cq)),
            _ => {
                let mut text = [0 as c_char; 16];
                let number = self.input.about32(8192) as c_int;
                if !cq.is_null() {
                    // SAFETY: the object is a queue, and the room as long as it says.
                    unsafe {
                        let strerror = (*(*cq).ops).strerror.expect("strerror");
                        strerror(cq, number, null(), text.as_mut_ptr(), text.len());
                    }
                }
                0
            }
        };
    }

    /// Event queues, counters, wait and poll sets.
    fn events(&mut self) {
        let eq: *mut fid_eq = self.object(&[FI_CLASS_EQ]);
        let counter: *mut fid_cntr = self.object(&[FI_CLASS_CNTR]);
        let (other, value, flags) = (self.any(), self.input.about(1), self.flags());
        let (mut event, mut room) = (0, [0_u64; 64]);
        let length = self.input.below(513);
        let at: *mut c_void =
            if self.input.one_in(8) { null_mut() } else { room.as_mut_ptr().cast() };
        match self.input.below(11) {
            0 => call!(eq, ops.read(eq, &mut event, at, length, flags)),
            1 => call!(eq, ops.readerr(eq, at.cast(), flags)),
            2 => call!(eq, ops.write(eq, value as u32, at, length, flags)),
            3 => call!(eq, ops.sread(eq, &mut event, at, length, 0, flags)),
            4 => call!(counter, ops.add(counter, value)),
            5 => call!(counter, ops.set(counter, value)),
            6 => call!(counter, ops.adderr(counter, value)),
            7 => call!(counter, ops.wait(counter, value, 0)),
            8 => {
                let wait: *mut fid_wait = self.object(&[FI_CLASS_WAIT]);
                call!(wait, ops.wait(wait, 0))
            }
            9 => {
                let set: *mut fid_poll = self.object(&[FI_CLASS_POLL]);
                call!(set, ops.poll_add(set, other, flags))
            }
            _ => {
                let set: *mut fid_poll = self.object(&[FI_CLASS_POLL]);
                let mut contexts = [null_mut(); 4];
                let count = self.input.pick(&[4, 0, -1]);
                call!(set, ops.poll(set, contexts.as_mut_ptr(), count))
            }
        };
    }

    fn connect(&mut self) {
        let ep: *mut fid_ep = self.object(&[FI_CLASS_EP]);
        let pep: *mut fid_pep = self.object(&[FI_CLASS_PEP]);
        let (parameter, length) = self.buffer();
        let (handle, flags) = (self.any(), self.flags());
        let mut length = length % 512;
        // A TCP address of this host where nobody listens.
        let mut name = [0_u8; 512];
        name[..8].copy_from_slice(&[2, 0, 0, 1, 127, 0, 0, 1]);
        let name: *mut c_void =
            if self.input.one_in(6) { null_mut() } else { name.as_mut_ptr().cast() };
        match self.input.below(8) {
            0 => call!(pep, cm.listen(pep)),
            1 => call!(ep, cm.connect(ep, name, parameter, length)),
            2 => call!(ep, cm.accept(ep, parameter, length)),
            3 => call!(pep, cm.reject(pep, handle, parameter, length)),
            4 => call!(ep, cm.shutdown(ep, flags)),
            5 => call!(ep, cm.getname(ep.cast(), name, &mut length)),
            6 => call!(pep, cm.getname(pep.cast(), name, &mut length)),
            _ => call!(ep, cm.getpeer(ep, name, &mut length)),
        };
    }

    fn options(&mut self) {
        let ep: *mut fid_ep = self.object(&[FI_CLASS_EP]);
        let (level, name) = (self.input.about(0) as c_int, self.input.about(1) as c_int);
        let mut value = [0_u64; 8];
        value[0] = self.input.about(64);
        let mut length = self.input.pick(&[8, 4, 0, 1, 64]);
        let at: *mut c_void =
            if self.input.one_in(6) { null_mut() } else { value.as_mut_ptr().cast() };
        let context = self.context();
        match self.input.below(3) {
            0 => call!(ep, ops.getopt(ep.cast(), level, name, at, &mut length)),
            1 => call!(ep, ops.setopt(ep.cast(), level, name, at, length)),
            _ => call!(ep, ops.cancel(ep.cast(), context)),
        };
    }
}

// ---- operations ---------------------------------------------------------------------------------

/// Classes of objects with the calls of an endpoint.
const ENDPOINTS: [usize; 5] =
    [FI_CLASS_EP, FI_CLASS_SEP, FI_CLASS_RX_CTX, FI_CLASS_TX_CTX, FI_CLASS_SRX_CTX];

impl Program<'_> {
    fn message(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let msg =
            fi_msg { msg_iov: iov, desc: descs, iov_count: count, addr: to, context, data: 7 };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, msg.recv(ep, at, length, desc, to, context)),
            1 => call!(ep, msg.recvv(ep, iov, descs, count, to, context)),
            2 => call!(ep, msg.recvmsg(ep, msg, flags)),
            3 => call!(ep, msg.send(ep, at, length, desc, to, context)),
            4 => call!(ep, msg.sendv(ep, iov, descs, count, to, context)),
            5 => call!(ep, msg.sendmsg(ep, msg, flags)),
            6 => call!(ep, msg.inject(ep, at, length, to)),
            7 => call!(ep, msg.senddata(ep, at, length, desc, 7, to, context)),
            _ => call!(ep, msg.injectdata(ep, at, length, 7, to)),
        };
    }

    fn tagged(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let (tag, ignore) = (self.input.about(1), self.input.about(0));
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let msg = fi_msg_tagged {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            tag,
            ignore,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, tagged.recv(ep, at, length, desc, to, tag, ignore, context)),
            1 => call!(ep, tagged.recvv(ep, iov, descs, count, to, tag, ignore, context)),
            2 => call!(ep, tagged.recvmsg(ep, msg, flags)),
            3 => call!(ep, tagged.send(ep, at, length, desc, to, tag, context)),
            4 => call!(ep, tagged.sendv(ep, iov, descs, count, to, tag, context)),
            5 => call!(ep, tagged.sendmsg(ep, msg, flags)),
            6 => call!(ep, tagged.inject(ep, at, length, to, tag)),
            7 => call!(ep, tagged.senddata(ep, at, length, desc, 7, to, tag, context)),
            _ => call!(ep, tagged.injectdata(ep, at, length, 7, to, tag)),
        };
    }

    fn rma(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (pieces, count) = self.pieces();
        let (addr, key) = (self.input.about(at.addr() as u64), self.input.about(3));
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { pieces.as_ptr() };
        let remote = [fi_rma_iov { addr, len: length, key }; ENTRIES];
        let rma_iov_count = self.count();
        let msg = fi_msg_rma {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            rma_iov: if self.input.one_in(12) { null() } else { remote.as_ptr() },
            rma_iov_count,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        match self.input.below(9) {
            0 => call!(ep, rma.read(ep, at, length, desc, to, addr, key, context)),
            1 => call!(ep, rma.readv(ep, iov, descs, count, to, addr, key, context)),
            2 => call!(ep, rma.readmsg(ep, msg, flags)),
            3 => call!(ep, rma.write(ep, at, length, desc, to, addr, key, context)),
            4 => call!(ep, rma.writev(ep, iov, descs, count, to, addr, key, context)),
            5 => call!(ep, rma.writemsg(ep, msg, flags)),
            6 => call!(ep, rma.inject(ep, at, length, to, addr, key)),
            7 => call!(ep, rma.writedata(ep, at, length, desc, 7, to, addr, key, context)),
            _ => call!(ep, rma.injectdata(ep, at, length, 7, to, addr, key)),
        };
    }

    fn atomic(&mut self) {
        let ep: *mut fid_ep = self.object(&ENDPOINTS);
        let ((at, length), to, context) = (self.buffer(), self.address(), self.context());
        let (desc, flags) = (self.descriptor(), self.flags());
        let (datatype, op) = (self.input.about32(5), self.input.about32(2));
        let (addr, key) = (self.input.about(at.addr() as u64), self.input.about(3));
        // An element has at most 32 bytes.
        let (elements, count) = (length / 32, self.count());
        let local = [fi_ioc { addr: at, count: elements / ENTRIES }; ENTRIES];
        let mut results = local;
        let remote = [fi_rma_ioc { addr, count: elements, key }; ENTRIES];
        let mut descs = [desc; ENTRIES];
        let descs = if self.input.one_in(2) { null_mut() } else { descs.as_mut_ptr() };
        let iov = if self.input.one_in(12) { null() } else { local.as_ptr() };
        let result = if self.input.one_in(12) { null_mut() } else { results.as_mut_ptr() };
        let msg = fi_msg_atomic {
            msg_iov: iov,
            desc: descs,
            iov_count: count,
            addr: to,
            rma_iov: remote.as_ptr(),
            rma_iov_count: count,
            datatype,
            op,
            context,
            data: 7,
        };
        let msg = if self.input.one_in(12) { null() } else { &raw const msg };
        let (n, none) = (elements, null_mut());
        let mut most = 0;
        match self.input.below(9) {
            0 => call!(ep, atomic.write(ep, at, n, desc, to, addr, key, datatype, op, context)),
            1 => call!(
                ep,
                atomic.writev(ep, iov, descs, count, to, addr, key, datatype, op, context)
            ),
            2 => call!(ep, atomic.writemsg(ep, msg, flags)),
            3 => call!(ep, atomic.inject(ep, at, n, to, addr, key, datatype, op)),
            4 => call!(
                ep,
                atomic.readwrite(ep, at, n, desc, at, none, to, addr, key, datatype, op, context)
            ),
            5 => call!(ep, atomic.readwritemsg(ep, msg, result, descs, count, flags)),
            6 => call!(
                ep,
                atomic.compwrite(
                    ep, at, n, desc, at, none, at, none, to, addr, key, datatype, op, context
                )
            ),
            7 => call!(
                ep,
                atomic.compwritemsg(ep, msg, iov, descs, count, result, descs, count, flags)
            ),
            _ => call!(ep, atomic.writevalid(ep, datatype, op, &mut most)),
        };
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
}
