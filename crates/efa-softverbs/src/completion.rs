//! Completions, as a completion queue keeps them.

use std::ffi::{c_int, c_uint};

use efa_device::{Source, Status};

use crate::abi::*;
use crate::direct::completion::{CompletionDescriptor, Event, Sender};
use crate::queue_pair::Serial;

/// `slid` of a sender without address handle.
const UNKNOWN_HANDLE: u16 = 0xffff;

/// What the program reads as one `ibv_wc`.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    pub(crate) result: Result<(), Status>,
    /// `IBV_WC_…`; programs get [`opcode()`](Self::opcode).
    pub(crate) opcode: c_int,
    /// Length in bytes, of receives.
    pub(crate) length: u32,
    pub(crate) qpn: u32,
    /// Which queue pair: one that was created later can have the same number.
    pub(crate) serial: Serial,
    /// The sender, of receives.
    pub(crate) source: Option<Source>,
    /// Immediate data, of receives that have some.
    pub(crate) immediate: Option<u32>,
    /// Whether this reports a write with immediate data that used no receive buffer.
    pub(crate) unsolicited: bool,
}

impl Completion {
    /// What a completion queue shows before the first poll.
    pub(crate) const NONE: Self = Self {
        wr_id: 0,
        result: Ok(()),
        opcode: 0,
        length: 0,
        qpn: 0,
        serial: Serial::NONE,
        source: None,
        immediate: None,
        unsolicited: false,
    };

    /// Of a send, read or write, or of a receive that failed.
    #[inline]
    pub(crate) fn without_data(
        (qpn, serial): (u32, Serial),
        wr_id: u64,
        opcode: c_int,
        result: Result<(), Status>,
    ) -> Self {
        Self { wr_id, result, opcode, qpn, serial, ..Self::NONE }
    }

    /// Of a receive that a message of `length` bytes, headroom included, was copied to.
    #[inline]
    pub(crate) fn received(
        (qpn, serial): (u32, Serial),
        wr_id: u64,
        length: usize,
        source: Source,
        immediate: Option<u32>,
    ) -> Self {
        Self {
            wr_id,
            opcode: IBV_WC_RECV,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            qpn,
            serial,
            source: Some(source),
            immediate,
            ..Self::NONE
        }
    }

    /// Of a peer's write of `length` bytes with immediate data. `wr_id` is that of the receive which
    /// it used, if it used any.
    pub(crate) fn written(
        (qpn, serial): (u32, Serial),
        wr_id: Option<u64>,
        length: u64,
        source: Source,
        immediate: u32,
    ) -> Self {
        Self {
            wr_id: wr_id.unwrap_or(0),
            opcode: IBV_WC_RECV_RDMA_WITH_IMM,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            qpn,
            serial,
            source: Some(source),
            immediate: Some(immediate),
            unsolicited: wr_id.is_none(),
            ..Self::NONE
        }
    }

    /// The opcode that programs get. libefa reports reads as sends, and programs rely on that.
    pub(crate) fn opcode(&self) -> c_int {
        if self.opcode == IBV_WC_RDMA_READ { IBV_WC_SEND } else { self.opcode }
    }

    /// The status of the device, as `ibv_wc::vendor_err`.
    pub(crate) fn vendor_error(&self) -> u32 {
        match self.result {
            Ok(()) => 0,
            // A status newer than this release line, as one that programs know.
            Err(Status::UnreachableRemote) => Status::UnresponsiveRemote.code().into(),
            Err(status) => status.code().into(),
        }
    }

    /// The `ibv_wc_status`.
    pub(crate) fn status(&self) -> c_int {
        let Err(status) = self.result else { return IBV_WC_SUCCESS };
        match status {
            Status::Flushed => IBV_WC_WR_FLUSH_ERR,
            Status::QueuePairInternal | Status::UnsupportedOperation | Status::BadAddressHandle => {
                IBV_WC_LOC_QP_OP_ERR
            }
            Status::BadLocalKey => IBV_WC_LOC_PROT_ERR,
            Status::BadLength => IBV_WC_LOC_LEN_ERR,
            Status::RemoteBadAddress | Status::NotPermitted => IBV_WC_REM_ACCESS_ERR,
            Status::RemoteAbort => IBV_WC_REM_ABORT_ERR,
            Status::BadDestinationQpn => IBV_WC_REM_INV_RD_REQ_ERR,
            Status::UnknownPeer => IBV_WC_REM_OP_ERR,
            Status::ReceiverNotReady => IBV_WC_RNR_RETRY_EXC_ERR,
            Status::RemoteBadLength | Status::FeatureMismatch => IBV_WC_REM_INV_REQ_ERR,
            Status::BadStatus => IBV_WC_BAD_RESP_ERR,
            Status::UnresponsiveRemote | Status::UnreachableRemote => IBV_WC_RESP_TIMEOUT_ERR,
            _ => IBV_WC_GENERAL_ERR,
        }
    }

    /// The `ibv_wc_flags`.
    pub(crate) fn flags(&self) -> c_uint {
        if self.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 }
    }

    pub(crate) fn source_qpn(&self) -> u32 {
        self.source.map_or(0, |source| source.qpn.0.into())
    }

    /// The sender's address handle, as `ibv_wc::slid`.
    pub(crate) fn source_handle(&self) -> u16 {
        let handle = self.source.and_then(|source| source.address_handle);
        handle.map_or(UNKNOWN_HANDLE, |handle| handle.0)
    }

    /// What programs get as the GID of a sender without address handle. A write has the upper half of its length there.
    pub(crate) fn source_gid(&self) -> Option<[u8; 16]> {
        let source = self.source.filter(|source| source.address_handle.is_none())?;
        if self.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            let mut bytes = [0; 16];
            bytes[..2].copy_from_slice(&self.length.to_le_bytes()[2..]);
            return Some(bytes);
        }
        source.gid.map(|gid| gid.0)
    }

    /// Whether it completes an entry of the receive queue.
    pub(crate) fn is_of_receive_queue(&self) -> bool {
        self.opcode >= IBV_WC_RECV && !self.unsolicited
    }

    /// Whether it completes an entry of the send queue.
    pub(crate) fn is_of_send_queue(&self) -> bool {
        self.opcode < IBV_WC_RECV
    }

    /// As a ring has it.
    pub(crate) fn to_descriptor(&self) -> CompletionDescriptor {
        let sender = self.source.map_or(Sender::default(), |source| Sender {
            address_handle: source.address_handle.map(|handle| handle.0),
            queue_pair: source.qpn.0,
            gid: source.gid.map_or([0; 16], |gid| gid.0),
        });
        let (length, request_id) = (self.length, self.wr_id as u16);
        // In network byte order here, in that of this machine there.
        let immediate = self.immediate.map(u32::from_be);
        let event = match self.opcode {
            IBV_WC_RECV => Event::Received { request_id, length, sender, immediate },
            IBV_WC_RECV_RDMA_WITH_IMM => Event::Written {
                request_id: (!self.unsolicited).then_some(request_id),
                length,
                sender,
                immediate: immediate.unwrap_or(0),
            },
            opcode => {
                let operation = match opcode {
                    IBV_WC_RDMA_READ => 1,
                    IBV_WC_RDMA_WRITE => 2,
                    _ => 0,
                };
                Event::Sent { request_id: self.wr_id, operation }
            }
        };
        let status = match self.result {
            Ok(()) => 0,
            Err(Status::NotPermitted) => Status::RemoteBadAddress.code(),
            Err(status) => status.code(),
        };
        CompletionDescriptor { queue_pair: self.qpn as u16, status, event }
    }

    /// As `ibv_poll_cq` returns it.
    pub(crate) fn to_wc(&self) -> ibv_wc {
        ibv_wc {
            wr_id: self.wr_id,
            status: self.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_error(),
            byte_len: self.length,
            imm_data: self.immediate.unwrap_or(0),
            qp_num: self.qpn,
            src_qp: self.source_qpn(),
            wc_flags: self.flags(),
            pkey_index: 0,
            slid: self.source_handle(),
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_of_a_write_is_the_upper_half_of_its_length() {
        let gid = efa_device::Gid([9; 16]);
        let source = Source { gid: Some(gid), ..Source::default() };
        let (id, length) = ((1, Serial::NONE), 0x0102_0000);
        let datagram = Completion::received(id, 0, 8, source, None);
        assert_eq!(datagram.source_gid(), Some([9; 16]));
        let written = Completion::written(id, None, length, source, 0).source_gid();
        assert_eq!(written, Some([2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        let known = Source { address_handle: Some(efa_device::AddressHandle(1)), ..source };
        assert_eq!(Completion::written(id, None, length, known, 0).source_gid(), None);
    }

    #[test]
    fn each_status_has_its_vendor_error_and_wc_status() {
        let expected = [
            (Status::Flushed, 1, 5),
            (Status::QueuePairInternal, 2, 2),
            (Status::UnsupportedOperation, 3, 2),
            (Status::BadAddressHandle, 4, 2),
            (Status::BadLocalKey, 5, 4),
            (Status::BadLength, 6, 1),
            (Status::RemoteBadAddress, 7, 10),
            (Status::RemoteAbort, 8, 16),
            (Status::BadDestinationQpn, 9, 15),
            (Status::ReceiverNotReady, 10, 13),
            (Status::RemoteBadLength, 11, 9),
            (Status::BadStatus, 12, 7),
            (Status::UnresponsiveRemote, 13, 20),
            (Status::UnknownPeer, 14, 11),
            (Status::UnreachableRemote, 13, 20),
            (Status::FeatureMismatch, 18, 9),
            (Status::NotPermitted, 7, 10),
        ];
        for (status, vendor, wc) in expected {
            let completion = Completion { result: Err(status), ..Completion::NONE };
            assert_eq!((completion.vendor_error(), completion.status()), (vendor, wc), "{status}");
        }
        assert_eq!((Completion::NONE.vendor_error(), Completion::NONE.status()), (0, 0));
    }
}
