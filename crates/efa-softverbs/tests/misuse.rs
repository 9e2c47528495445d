//! C programs that hold everything wrong: null pointers, handles that were destroyed, of another
//! kind or made up, sizes and counts that make no sense. They get an error number, and a program that
//! holds it right beside them is served.
//!
//! 200,000 calls at random from a fixed seed; a crash ends this process, which is the failure.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use common::Directory;
use common::verbs::*;
use efa_soft::abi::*;

/// A handle as C sees it.
type Handle = *mut c_void;

/// What a program has got hold of, alive or not.
struct Clumsy {
    random: fastrand::Rng,
    alive: Vec<(Kind, Handle)>,
    dead: Vec<Handle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Context,
    Domain,
    Region,
    AddressHandle,
    Queue,
    Pair,
}

/// What `ibv_close_device` and its like may say: done, refused as unknown, or used by others.
const ENDS: [c_int; 3] = [0, libc::EINVAL, libc::EBUSY];

impl Clumsy {
    /// A handle that is right, or one that isn't. Where structures are read through a handle by the C
    /// headers themselves, only null and what the library gave out can be passed.
    fn handle(&mut self, kind: Kind) -> Handle {
        match self.random.u8(0..8) {
            0 => null_mut(),
            1 if !self.dead.is_empty() => self.dead[self.random.usize(0..self.dead.len())],
            2 if !self.alive.is_empty() => self.alive[self.random.usize(0..self.alive.len())].1,
            3 => (self.random.usize(1..1 << 40) * 16) as Handle,
            4 => self.random.usize(1..4096) as Handle,
            _ => self.right(kind),
        }
    }

    fn right(&mut self, kind: Kind) -> Handle {
        let of_kind: Vec<Handle> =
            self.alive.iter().filter(|(of, _)| *of == kind).map(|(_, handle)| *handle).collect();
        self.random.choice(&of_kind).copied().unwrap_or(null_mut())
    }

    fn is_alive(&self, kind: Kind, handle: Handle) -> bool {
        self.alive.contains(&(kind, handle))
    }

    fn made<T>(&mut self, kind: Kind, handle: *mut T, by: Handle, of: Kind) {
        if handle.is_null() {
            assert_ne!(errno(), 0);
            return;
        }
        assert!(self.is_alive(of, by), "{kind:?} made of no {of:?}");
        self.dead.retain(|dead| *dead != handle.cast());
        self.alive.push((kind, handle.cast()));
    }

    fn ended(&mut self, kind: Kind, handle: Handle, said: c_int) {
        assert!(ENDS.contains(&said), "{kind:?}: {said}");
        let alive = self.is_alive(kind, handle);
        assert_eq!(said == libc::EINVAL, !alive, "{kind:?} {handle:?}: {said}");
        if said == 0 {
            self.alive.retain(|entry| *entry != (kind, handle));
            self.dead.push(handle);
            if self.dead.len() > 32 {
                self.dead.remove(0);
            }
        }
    }

    fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] = [0, 1, 16, 64, 4096, i32::MAX as u64, u32::MAX as u64, u64::MAX];
        match self.random.u8(0..3) {
            0 => self.random.u64(..),
            _ => EDGES[self.random.usize(0..EDGES.len())],
        }
    }

    /// A structure of numbers that mean nothing, but without pointers.
    fn noise<T>(&mut self, pointers: impl FnOnce(&mut T)) -> T {
        let mut value: T = zeroed();
        let bytes = (&raw mut value).cast::<u8>();
        for at in 0..size_of::<T>() {
            let byte = if self.random.u8(..) < 200 { 0 } else { self.random.u8(..) };
            // SAFETY: within the value, whose bytes are numbers of C.
            unsafe { bytes.add(at).write(byte) };
        }
        pointers(&mut value);
        value
    }

    fn step(&mut self, memory: &mut [u8]) {
        let v = verbs();
        // SAFETY: this is what the library says that it bears: any handle, and structures that are
        // there or null.
        unsafe {
            match self.random.u8(0..20) {
                0 => {
                    let list = (v.ibv_get_device_list)(null_mut());
                    let device =
                        if self.random.bool() { *list } else { self.handle(Kind::Pair).cast() };
                    let right = device == *list;
                    let context = (v.ibv_open_device)(device);
                    (v.ibv_free_device_list)(list);
                    assert_eq!(context.is_null(), !right);
                    if right {
                        self.dead.retain(|dead| *dead != context.cast());
                        self.alive.push((Kind::Context, context.cast()));
                    }
                }
                1 => {
                    let by = self.handle(Kind::Context);
                    let made = (v.ibv_alloc_pd)(by.cast());
                    self.made(Kind::Domain, made, by, Kind::Context);
                }
                2 => {
                    let by = self.handle(Kind::Domain);
                    // Of what lies in this program's memory; anything else is refused or its own fault.
                    let length = self.random.usize(0..=memory.len());
                    let access = self.number() as c_int;
                    let made =
                        (v.ibv_reg_mr)(by.cast(), memory.as_mut_ptr().cast(), length, access);
                    self.made(Kind::Region, made, by, Kind::Domain);
                }
                3 => {
                    let by = self.handle(Kind::Domain);
                    let mut attributes = self.noise::<ibv_ah_attr>(|_| {});
                    let into = if self.random.bool() { &raw mut attributes } else { null_mut() };
                    let made = (v.ibv_create_ah)(by.cast(), into);
                    self.made(Kind::AddressHandle, made, by, Kind::Domain);
                }
                4 => {
                    let by = self.handle(Kind::Context);
                    let depth = self.number() as c_int;
                    let depth = if depth > 4096 { depth | 1 << 30 } else { depth };
                    let channel =
                        if self.random.u8(..) < 20 { self.handle(Kind::Queue) } else { null_mut() };
                    let vector = self.number() as c_int & 1;
                    let made = (v.ibv_create_cq)(by.cast(), depth, null_mut(), channel, vector);
                    self.made(Kind::Queue, made, by, Kind::Context);
                }
                5 => {
                    let by = self.handle(Kind::Domain);
                    let (send, receive) = (self.right(Kind::Queue), self.handle(Kind::Queue));
                    let mut attributes = self.noise::<ibv_qp_init_attr>(|attributes| {
                        (attributes.send_cq, attributes.recv_cq) = (send.cast(), receive.cast());
                        attributes.srq = null_mut();
                    });
                    if self.random.bool() {
                        attributes.qp_type = IBV_QPT_UD;
                        attributes.cap = zeroed();
                        attributes.cap.max_send_wr = 4;
                        attributes.cap.max_recv_wr = 4;
                        attributes.cap.max_send_sge = 1;
                        attributes.cap.max_recv_sge = 1;
                    }
                    let into =
                        if self.random.u8(..) < 250 { &raw mut attributes } else { null_mut() };
                    let made = (v.ibv_create_qp)(by.cast(), into);
                    self.made(Kind::Pair, made, by, Kind::Domain);
                }
                6 => {
                    let pair = self.handle(Kind::Pair);
                    let mut attributes = self.noise::<ibv_qp_attr>(|_| {});
                    let mask = self.number() as c_int;
                    let into =
                        if self.random.u8(..) < 240 { &raw mut attributes } else { null_mut() };
                    let said = (v.ibv_modify_qp)(pair.cast(), into, mask);
                    assert!(said == 0 || said > 0 && said < 200, "{said}");
                    assert!(said != 0 || self.is_alive(Kind::Pair, pair));
                }
                7 => {
                    let pair = self.handle(Kind::Pair);
                    let (mut attributes, mut first) = (zeroed(), zeroed());
                    let (into, and) = match self.random.u8(0..4) {
                        0 => (null_mut(), &raw mut first),
                        1 => (&raw mut attributes, null_mut()),
                        _ => (&raw mut attributes, &raw mut first),
                    };
                    let said = (v.ibv_query_qp)(pair.cast(), into, self.number() as c_int, and);
                    assert!(said != 0 || self.is_alive(Kind::Pair, pair));
                }
                8 => {
                    let context = self.handle(Kind::Context);
                    let mut into: ibv_device_attr = zeroed();
                    let into = if self.random.bool() { &raw mut into } else { null_mut() };
                    let said = (v.ibv_query_device)(context.cast(), into);
                    let right = self.is_alive(Kind::Context, context) && !into.is_null();
                    assert_eq!(said, if right { 0 } else { libc::EINVAL });
                }
                9 => {
                    let context = self.handle(Kind::Context);
                    let mut into: ibv_gid = zeroed();
                    let into = if self.random.bool() { &raw mut into } else { null_mut() };
                    let (port, index) = (self.random.u8(0..4), self.number() as c_int);
                    let said = (v.ibv_query_gid)(context.cast(), port, index, into);
                    let right = self.is_alive(Kind::Context, context) && !into.is_null();
                    assert!(said != 0 || right && port == 1 && index == 0);
                }
                10 => {
                    let context = self.handle(Kind::Context);
                    let mut into: efadv_device_attr = zeroed();
                    let room = (self.number() as u32).min(size_of::<efadv_device_attr>() as u32);
                    let pointer = if self.random.bool() { &raw mut into } else { null_mut() };
                    let said = (v.efadv_query_device)(context.cast(), pointer, room);
                    assert!(said != 0 || self.is_alive(Kind::Context, context));
                }
                11 => {
                    let handle = self.handle(Kind::AddressHandle);
                    let mut into: efadv_ah_attr = zeroed();
                    let room = (self.number() as u32).min(size_of::<efadv_ah_attr>() as u32);
                    let pointer = if self.random.bool() { &raw mut into } else { null_mut() };
                    let said = (v.efadv_query_ah)(handle.cast(), pointer, room);
                    assert!(said != 0 || self.is_alive(Kind::AddressHandle, handle));
                }
                12 => {
                    let context = self.handle(Kind::Context);
                    let (port, key) = (self.random.u8(0..3), self.number() as u16);
                    let _ = (v.ibv_get_pkey_index)(context.cast(), port, key);
                    let _ = (v.ibv_get_device_index)(context.cast());
                    assert_eq!((v.ibv_get_device_guid)(context.cast()), 0, "no device");
                }
                13 => {
                    let domain = self.handle(Kind::Domain);
                    let said = (v.ibv_dealloc_pd)(domain.cast());
                    self.ended(Kind::Domain, domain, said);
                }
                14 => {
                    let region = self.handle(Kind::Region);
                    let said = (v.ibv_dereg_mr)(region.cast());
                    self.ended(Kind::Region, region, said);
                }
                15 => {
                    let handle = self.handle(Kind::AddressHandle);
                    let said = (v.ibv_destroy_ah)(handle.cast());
                    self.ended(Kind::AddressHandle, handle, said);
                }
                16 => {
                    let queue = self.handle(Kind::Queue);
                    let said = (v.ibv_destroy_cq)(queue.cast());
                    self.ended(Kind::Queue, queue, said);
                }
                17 | 18 => {
                    let pair = self.handle(Kind::Pair);
                    let said = (v.ibv_destroy_qp)(pair.cast());
                    self.ended(Kind::Pair, pair, said);
                }
                _ => {
                    let context = self.handle(Kind::Context);
                    let said = (v.ibv_close_device)(context.cast());
                    self.ended(Kind::Context, context, said);
                }
            }
        }
    }
}

#[test]
fn whatever_a_program_holds_wrong_it_gets_an_error_number() {
    let directory = Directory::new();
    std::fs::create_dir(directory.path().join("sysfs")).unwrap();
    // SAFETY: this program has one test, and no other thread yet that reads the environment.
    unsafe {
        std::env::set_var("EFA_SOFT_LINK", "shm");
        std::env::set_var("EFA_SOFT_DIRECTORY", directory.path().join("hosts"));
        std::env::set_var("EFA_SOFT_SYSFS", directory.path().join("sysfs"));
    }
    let steady = End::new(Wish::default());
    let mut clumsy =
        Clumsy { random: fastrand::Rng::with_seed(4), alive: Vec::new(), dead: Vec::new() };
    let mut memory = vec![0; 4096];
    for _ in 0..200_000 {
        clumsy.step(&mut memory);
    }
    let seen = |kind| clumsy.alive.iter().any(|(of, _)| *of == kind);
    assert!(seen(Kind::Context) && seen(Kind::Domain), "{:?}", clumsy.alive);
    let buffer = Memory::of(&[0; 64]);
    let region = steady.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    assert_eq!(steady.post_receive(1, part(region, 0, 64)), 0);
    let handle = steady.handle(steady.gid());
    let to = (handle, steady.number(), steady.qkey);
    assert_eq!(steady.post_send(3, to, &[inline(b"to itself")], IBV_SEND_INLINE), 0);
    assert_eq!(steady.wait().status, IBV_WC_SUCCESS);
    assert_eq!(steady.wait().status, IBV_WC_SUCCESS);
    // SAFETY: they are alive, and nothing uses them any more.
    unsafe {
        assert_eq!((verbs().ibv_dereg_mr)(region), 0);
        assert_eq!((verbs().ibv_destroy_ah)(handle), 0);
    }
}
