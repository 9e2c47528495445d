//! NNG: PUB and SUB over ipc. It drops what a subscriber's queue has no room for; the report tells how much.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use anyhow::{Result, ensure};
use efa_bench_netio_harness::{Job, Publish, Stamp, Subscribe, run};

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Socket {
    id: u32,
}

#[link(name = "nng")]
unsafe extern "C" {
    fn nng_pub0_open(socket: *mut Socket) -> c_int;
    fn nng_sub0_open(socket: *mut Socket) -> c_int;
    fn nng_close(socket: Socket) -> c_int;
    fn nng_listen(socket: Socket, url: *const c_char, listener: *mut c_void, flags: c_int)
    -> c_int;
    fn nng_dial(socket: Socket, url: *const c_char, dialer: *mut c_void, flags: c_int) -> c_int;
    fn nng_socket_set(
        socket: Socket,
        name: *const c_char,
        value: *const c_void,
        size: usize,
    ) -> c_int;
    fn nng_socket_set_int(socket: Socket, name: *const c_char, value: c_int) -> c_int;
    fn nng_socket_set_ms(socket: Socket, name: *const c_char, value: i32) -> c_int;
    fn nng_socket_set_size(socket: Socket, name: *const c_char, value: usize) -> c_int;
    fn nng_msg_alloc(message: *mut *mut c_void, size: usize) -> c_int;
    fn nng_msg_free(message: *mut c_void);
    fn nng_msg_body(message: *mut c_void) -> *mut c_void;
    fn nng_msg_len(message: *const c_void) -> usize;
    fn nng_sendmsg(socket: Socket, message: *mut c_void, flags: c_int) -> c_int;
    fn nng_recvmsg(socket: Socket, message: *mut *mut c_void, flags: c_int) -> c_int;
    fn nng_strerror(error: c_int) -> *const c_char;
}

/// Connects in the background, and again.
const NONBLOCK: c_int = 2;
/// Nothing in time.
const TIMED_OUT: c_int = 5;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    run(&words, Publisher::new, Subscriber::new)
}

fn check(result: c_int, what: &str) -> Result<()> {
    // SAFETY: a string of the library.
    let said = || unsafe { CStr::from_ptr(nng_strerror(result)) }.to_string_lossy();
    ensure!(result == 0, "{what}: {}", said());
    Ok(())
}

fn url(job: &Job) -> Result<CString> {
    Ok(CString::new(format!("ipc://{}", job.socket()))?)
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // SAFETY: nobody uses it afterwards.
        unsafe { nng_close(self.socket) };
    }
}

struct Publisher {
    socket: Socket,
    size: usize,
}

impl Publisher {
    fn new(job: &Job) -> Result<Self> {
        let mut socket = Socket::default();
        let at = url(job)?;
        // SAFETY: strings that end with 0, and a socket that is open.
        unsafe {
            check(nng_pub0_open(&raw mut socket), "nng_pub0_open")?;
            let room = job.depth() as c_int;
            check(nng_socket_set_int(socket, c"send-buffer".as_ptr(), room), "send-buffer")?;
            check(nng_listen(socket, at.as_ptr(), ptr::null_mut(), 0), "nng_listen")?;
        }
        Ok(Self { socket, size: job.size })
    }
}

impl Publish for Publisher {
    fn publish(&mut self, stamp: &[u8; Stamp::LENGTH]) -> Result<()> {
        // SAFETY: a message that was sent is the library's, and one that was not is freed. Its body has as many bytes.
        unsafe {
            let mut message = ptr::null_mut();
            check(nng_msg_alloc(&raw mut message, self.size), "nng_msg_alloc")?;
            ptr::copy_nonoverlapping(stamp.as_ptr(), nng_msg_body(message).cast(), stamp.len());
            let sent = nng_sendmsg(self.socket, message, 0);
            if sent != 0 {
                nng_msg_free(message);
            }
            check(sent, "nng_sendmsg")
        }
    }

    fn loses(&self) -> bool {
        true
    }
}

struct Subscriber(Socket);

impl Subscriber {
    fn new(job: &Job) -> Result<Self> {
        let mut socket = Socket::default();
        let at = url(job)?;
        // SAFETY: strings that end with 0, and a socket that is open.
        unsafe {
            check(nng_sub0_open(&raw mut socket), "nng_sub0_open")?;
            let (room, name) = (job.depth() as c_int, c"sub:subscribe".as_ptr());
            check(nng_socket_set_int(socket, c"recv-buffer".as_ptr(), room), "recv-buffer")?;
            check(nng_socket_set_size(socket, c"recv-size-max".as_ptr(), 0), "recv-size-max")?;
            check(nng_socket_set_ms(socket, c"recv-timeout".as_ptr(), 1000), "recv-timeout")?;
            check(nng_socket_set_ms(socket, c"reconnect-time-min".as_ptr(), 5), "reconnect")?;
            check(nng_socket_set(socket, name, ptr::null(), 0), "sub:subscribe")?;
            check(nng_dial(socket, at.as_ptr(), ptr::null_mut(), NONBLOCK), "nng_dial")?;
        }
        Ok(Self(socket))
    }
}

impl Subscribe for Subscriber {
    fn receive(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // SAFETY: a message that was received is valid until it is freed.
        unsafe {
            let mut message = ptr::null_mut();
            match nng_recvmsg(self.0, &raw mut message, 0) {
                0 => {
                    let body = nng_msg_body(message).cast::<u8>();
                    show(std::slice::from_raw_parts(body, nng_msg_len(message)));
                    nng_msg_free(message);
                    Ok(true)
                }
                TIMED_OUT => Ok(false),
                other => check(other, "nng_recvmsg").map(|()| false),
            }
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // SAFETY: nobody uses it afterwards.
        unsafe { nng_close(self.0) };
    }
}
