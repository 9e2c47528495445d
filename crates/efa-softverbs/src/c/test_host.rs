//! A device for unit tests.

use std::sync::Arc;

use tempfile::TempDir;

use super::completion_queue::create_cq_ex;
use super::context::ibv_open_device;
use super::domain::ibv_alloc_pd;
use super::queue_pair::{QueuePairObject, ibv_create_qp};
use crate::abi::*;
use crate::device::DeviceList;
use crate::queue_pair::QueuePair;

/// A host of its own, removed when dropped. A process can have one, as it reads its settings once.
pub(crate) struct TestHost {
    _directory: TempDir,
}

impl TestHost {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().unwrap();
        // SAFETY: the one test that creates a host does so once, and other tests read the environment
        // only through the standard library, which locks it.
        unsafe { std::env::set_var("EFA_SOFT_DIRECTORY", directory.path().join("hosts")) };
        Self { _directory: directory }
    }

    /// A domain, and a UD queue pair in it in the state RESET.
    pub(crate) fn create_queue_pair(&self) -> (*mut ibv_pd, *mut ibv_qp, Arc<QueuePair>) {
        let context = ibv_open_device(DeviceList::get()[0].as_ptr());
        let domain = ibv_alloc_pd(context);
        let mut cq: ibv_cq_init_attr_ex = zeroed();
        cq.cqe = 16;
        // SAFETY: `cq` is valid.
        let cq = unsafe { create_cq_ex(context, &raw mut cq) }.cast();
        let mut attributes: ibv_qp_init_attr = zeroed();
        (attributes.send_cq, attributes.recv_cq) = (cq, cq);
        attributes.qp_type = IBV_QPT_UD;
        // SAFETY: `attributes` is valid.
        let qp = unsafe { ibv_create_qp(domain, &raw mut attributes) };
        assert!(!qp.is_null());
        // SAFETY: the queue pair was just created.
        let queue_pair = unsafe { Arc::clone(&(*qp.cast::<QueuePairObject>()).queue_pair) };
        (domain, qp, queue_pair)
    }
}
