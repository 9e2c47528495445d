//! The library as programs use it, both ends in one process.
//!
//! Each link has a test program that runs these tests: `device_shm.rs`, `device_requests.rs` and
//! `device_tcp.rs`. Tests of several processes are in `tests/processes`.

mod channels;
mod completions;
mod device;
mod files;
mod messages;
mod objects;
mod rdma;
mod refused;
mod reset;

use std::ffi::CStr;
use std::sync::LazyLock;

use efa_soft::abi::*;

use crate::common::verbs::*;
use crate::common::{directory_of_process, loopback};
use crate::{COPIES, DEVICES, LINK};

const ALL_ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/// The host of these tests. Every test creates it before it calls the library.
static HOST: LazyLock<()> = LazyLock::new(|| {
    // SAFETY: every test comes here before it does anything else, and the first one does this while the
    // others wait, so no other thread reads the environment.
    unsafe {
        std::env::set_var("EFA_SOFT_DIRECTORY", directory_of_process().join("hosts"));
        std::env::set_var("EFA_SOFT_LINK", LINK);
        std::env::set_var("EFA_SOFT_COPIES", COPIES);
        // On tcp, a host that no other test program has.
        std::env::set_var("EFA_SOFT_ADDRESS", loopback(1).to_string());
        std::env::set_var("EFA_SOFT_DEVICES", DEVICES.to_string());
    }
    // Makes the library read the environment now.
    // SAFETY: the list is freed after its only use.
    unsafe { (verbs().ibv_free_device_list)((verbs().ibv_get_device_list)(null_mut())) };
});

fn pair(options: QpOptions) -> (Endpoint, Endpoint) {
    LazyLock::force(&HOST);
    (Endpoint::new(options), Endpoint::new(options))
}

/// Has `end` receive one message, as senders wait for the first buffer of a receiver.
fn use_up_one_buffer(end: &Endpoint) {
    let sender = Endpoint::new(QpOptions::default());
    let buffer = Memory::of(&[0; 16]);
    let into = end.register(&buffer, IBV_ACCESS_LOCAL_WRITE);
    let handle = sender.handle(end.gid());
    assert_eq!(end.post_receive(0, sge(into, 0, 16)), 0);
    let to = (handle, end.number(), end.qkey);
    assert_eq!(sender.post_send(0, to, &[inline(b"first")], IBV_SEND_INLINE), 0);
    assert_eq!((end.wait().status, sender.wait().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
    destroy(handle);
    deregister(into);
}

fn text(chars: &[std::ffi::c_char]) -> &str {
    // SAFETY: the text members of an `ibv_device` end with a zero.
    unsafe { CStr::from_ptr(chars.as_ptr()) }.to_str().unwrap()
}

fn destroy(handle: *mut ibv_ah) {
    // SAFETY: callers don't use the address handle afterwards.
    assert_eq!(unsafe { (verbs().ibv_destroy_ah)(handle) }, 0);
}

fn deregister(region: *mut ibv_mr) {
    // SAFETY: callers don't use the region afterwards.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(region) }, 0);
}

fn rkey(region: *mut ibv_mr) -> u32 {
    // SAFETY: the region is not deregistered yet.
    unsafe { (*region).rkey }
}

/// Moves a new queue pair to RTS.
fn connect(end: &Endpoint, rnr_retry: u8) -> i32 {
    let mut attributes: ibv_qp_attr = zeroed();
    (attributes.port_num, attributes.qkey) = (1, end.qkey);
    let flags = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    for (state, more) in [(IBV_QPS_INIT, flags), (IBV_QPS_RTR, 0)] {
        attributes.qp_state = state;
        assert_eq!(end.modify(&mut attributes, IBV_QP_STATE | more), 0);
    }
    (attributes.qp_state, attributes.rnr_retry) = (IBV_QPS_RTS, rnr_retry);
    attributes.sq_psn = 0x12_3456;
    end.modify(&mut attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY)
}
