//! ZeroMQ: XPUB and SUB over ipc. `XPUB_NODROP`, so that the publisher waits for slow subscribers. Messages are given by
//! reference from a ring (`zmq_msg_init_data`), as a data-acquisition program has them.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe, run};
use zmq_sys as zmq;

const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    run(&words, Publisher::new, Subscriber::new)
}

/// A socket, and its context.
struct Socket {
    context: *mut c_void,
    socket: *mut c_void,
}

impl Socket {
    fn new(kind: u32) -> Result<Self> {
        // SAFETY: these have no conditions.
        let context = unsafe { zmq::zmq_ctx_new() };
        ensure!(!context.is_null(), "zmq_ctx_new");
        // SAFETY: the context is alive.
        let socket = unsafe { zmq::zmq_socket(context, kind as c_int) };
        ensure!(!socket.is_null(), "zmq_socket");
        Ok(Self { context, socket })
    }

    fn set(&self, option: u32, value: c_int) -> Result<()> {
        let value = ptr::from_ref(&value).cast();
        // SAFETY: the value has as many bytes.
        let set = unsafe { zmq::zmq_setsockopt(self.socket, option as c_int, value, 4) };
        ensure!(set == 0, "zmq_setsockopt {option}");
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: nobody uses them afterwards. The context waits until all is sent.
        unsafe {
            zmq::zmq_close(self.socket);
            zmq::zmq_ctx_term(self.context);
        }
    }
}

struct Publisher {
    socket: Socket,
    /// Messages, each with a mark that it is under way.
    ring: Vec<(Box<[u8]>, Box<AtomicBool>)>,
    next: usize,
}

impl Publisher {
    fn new(job: &Job) -> Result<Self> {
        let socket = Socket::new(zmq::ZMQ_XPUB)?;
        socket.set(zmq::ZMQ_XPUB_NODROP, 1)?;
        socket.set(zmq::ZMQ_SNDHWM, job.depth() as c_int)?;
        socket.set(zmq::ZMQ_SNDTIMEO, 20_000)?;
        let at = CString::new(format!("ipc://{}", job.socket()))?;
        // SAFETY: a string that ends with 0.
        ensure!(unsafe { zmq::zmq_bind(socket.socket, at.as_ptr()) } == 0, "zmq_bind");
        let slot = |_| (vec![0; job.size].into(), Box::new(AtomicBool::new(false)));
        // As many may be in the pipes of all subscribers and in kernel.
        let ring = (0..2 * job.depth()).map(slot).collect();
        Ok(Self { socket, ring, next: 0 })
    }
}

/// ZeroMQ has sent a message to all.
unsafe extern "C" fn free(_: *mut c_void, mark: *mut c_void) {
    // SAFETY: the mark that was given with the message; the ring outlives the context.
    unsafe { (*mark.cast::<AtomicBool>()).store(false, Ordering::Release) };
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        let begin = Instant::now();
        let slots = self.ring.len();
        let (bytes, is_used) = &mut self.ring[self.next % slots];
        let mut tries = 0_u32;
        while is_used.load(Ordering::Acquire) {
            tries += 1;
            if tries.is_multiple_of(64) {
                ensure!(begin.elapsed() < PATIENCE, "a message doesn't come back");
                std::thread::yield_now();
            }
        }
        self.next += 1;
        bytes[..Stamp::LENGTH].copy_from_slice(stamp);
        is_used.store(true, Ordering::Relaxed);
        let mark = ptr::from_ref(&**is_used).cast_mut().cast();
        // SAFETY: the bytes live, and are not written, until `free` is called. A message that was sent is ZeroMQ's.
        unsafe {
            let mut message: zmq::zmq_msg_t = std::mem::zeroed();
            let (data, length) = (bytes.as_mut_ptr().cast(), bytes.len());
            zmq::zmq_msg_init_data(&raw mut message, data, length, Some(free), mark);
            if zmq::zmq_msg_send(&raw mut message, self.socket.socket, 0) < 0 {
                zmq::zmq_msg_close(&raw mut message);
                bail!("zmq_msg_send");
            }
        }
        Ok(())
    }
}

struct Subscriber(Socket);

impl Subscriber {
    fn new(job: &Job) -> Result<Self> {
        let socket = Socket::new(zmq::ZMQ_SUB)?;
        socket.set(zmq::ZMQ_RCVHWM, job.depth() as c_int)?;
        socket.set(zmq::ZMQ_RCVTIMEO, 1000)?;
        let at = CString::new(format!("ipc://{}", job.socket()))?;
        // SAFETY: a string that ends with 0; an empty subscription.
        unsafe {
            let option = zmq::ZMQ_SUBSCRIBE as c_int;
            ensure!(zmq::zmq_setsockopt(socket.socket, option, ptr::null(), 0) == 0, "subscribe");
            ensure!(zmq::zmq_connect(socket.socket, at.as_ptr()) == 0, "zmq_connect");
        }
        Ok(Self(socket))
    }
}

impl Subscribe for Subscriber {
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // SAFETY: a message that was received is valid until it is closed.
        unsafe {
            let mut message: zmq::zmq_msg_t = std::mem::zeroed();
            zmq::zmq_msg_init(&raw mut message);
            let received = zmq::zmq_msg_recv(&raw mut message, self.0.socket, 0);
            if received >= 0 {
                let data = zmq::zmq_msg_data(&raw mut message).cast::<u8>();
                show(std::slice::from_raw_parts(data, received as usize));
            }
            zmq::zmq_msg_close(&raw mut message);
            Ok(received >= 0)
        }
    }
}
