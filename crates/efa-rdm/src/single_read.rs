//! Messages that a single RDMA operation reads into the receive's buffer. Such a message has no entry among the
//! operations: it lives with its RDMA operation, as a single-packet message does with its packet.
//!
//! ```text
//!   LONGREAD_RTM ─► match ─► RDMA read ─┬─► done ──► EOR, completion
//!                                       └─► failed ─► a receive like others: READ_NACK, or its end
//! ```

use efa_device::{QueuePair, RegionRange, RemoteMemory, Status};
use efa_proto::{LongReadConnid, OpId};

use crate::completion::{Completion, OperationError, ReceiveCompletion};
use crate::event::DropReason;
use crate::ids::PeerId;
use crate::matching::Posted;
use crate::memory::Memory;
use crate::operations::{Operations, Receive, ReceiveRole};
use crate::payload::Payload;
use crate::peer::Active;
use crate::select::Subprotocol;
use crate::work::SingleRead;

/// The identifier of a receive that isn't in the table, which no receive there has.
const NO_OPERATION: OpId = OpId(u32::MAX);

impl<Q: QueuePair, B: Payload<Q::Region>> Operations<Q, B> {
    /// Begins to read a message, if that can be done at once by a single RDMA operation into its receive's buffer. Otherwise
    /// returns the receive.
    #[inline(always)]
    pub(crate) fn read_at_once(
        &mut self,
        posted: Posted<B>,
        peer: PeerId,
        request: &LongReadConnid,
    ) -> Result<(), Posted<B>> {
        let LongReadConnid { msg_id, tag, msg_length: length, send_id, memory, .. } = *request;
        let core = &mut self.core;
        let goes = length > 0
            && length <= posted.buffer.length().min(core.longest_rdma())
            && core.transmit.device.attributes().rdma.read
            && core.transmit.rdma_in_flight() < core.config.max_rdma
            && core.peers.active(peer).is_some_and(Active::is_clear);
        let (Ok(key), true) = (u32::try_from(memory.key()), goes) else { return Err(posted) };
        let Some(local) = posted.buffer.registered_from(0) else { return Err(posted) };
        if (local.length as u64) < length {
            return Err(posted);
        }
        let local = RegionRange { length: length as usize, ..local };
        let remote = RemoteMemory { address: memory.addr(), key };
        let Posted { context, buffer, tag: posted_tag } = posted;
        let buffer = Some(buffer);
        let msg_id = msg_id.0;
        let read = SingleRead { peer, msg_id, context, tag, length, send_id, buffer, failed: None };
        let destination = core.peers.destination(peer);
        match core.transmit.post_single_read(destination, local, remote, read) {
            Ok(()) => {
                core.statistics.rdma_reads += 1;
                self.single_reads += 1;
                Ok(())
            }
            Err(SingleRead { buffer, .. }) => match buffer {
                Some(buffer) => Err(Posted { context, buffer, tag: posted_tag }),
                None => Ok(()),
            },
        }
    }

    /// Handles the end of the RDMA operation that read a message; returns the completion of the receive, unless the sender
    /// is asked to send the message in packets.
    #[inline(always)]
    pub(crate) fn single_read_end(
        &mut self,
        mut read: SingleRead<B>,
        result: Result<(), Status>,
    ) -> Option<Completion<B>> {
        let error = match result {
            Ok(()) => {
                self.core.statistics.rdma_bytes += read.length;
                read.failed
            }
            Err(status) => read.failed.or(Some(OperationError::Device(status))),
        };
        if let Some(error) = error {
            return self.single_read_failed(read, error);
        }
        let buffer = read.buffer.take()?;
        self.single_reads -= 1;
        self.confirm_reading(read.peer, read.send_id, NO_OPERATION);
        Some(self.core.receive_completion(read.ended(buffer, Ok(()))))
    }

    #[cold]
    #[inline(never)]
    fn single_read_failed(
        &mut self,
        mut read: SingleRead<B>,
        error: OperationError,
    ) -> Option<Completion<B>> {
        let buffer = read.buffer.take()?;
        self.single_reads -= 1;
        let peer = read.peer;
        self.core.lose_if_gone(Some(peer), Some(error));
        let error = if self.core.peers.active(peer).is_none() {
            error
        } else if self.receives.is_full() {
            self.core.refuse(peer, Some(read.send_id), DropReason::TooManyOperations);
            OperationError::TooManyOperations
        } else {
            let (memory, coverage) = (Memory::Buffer(buffer), self.coverage());
            let id = self.add_receive(Receive {
                msg_id: read.msg_id,
                context: read.context,
                tagged: read.tag.is_some(),
                tag: read.tag.unwrap_or(0),
                subprotocol: Some(Subprotocol::LongRead),
                send_id: read.send_id,
                ..Receive::new(peer, ReceiveRole::Message, memory, read.length, coverage)
            });
            self.refuse_reading(id, error);
            return None;
        };
        Some(self.core.receive_completion(read.ended(buffer, Err(error))))
    }

    /// Fails the messages of a peer that single RDMA operations read, each when the device is done. Returns whether there
    /// are any.
    pub(crate) fn fail_single_reads(&mut self, peer: PeerId, error: OperationError) -> bool {
        if self.single_reads == 0 {
            return false;
        }
        let reads = self.core.transmit.single_reads_mut().filter(|read| read.peer == peer);
        reads.map(|read| read.failed = Some(error)).count() > 0
    }

    /// Completes all messages that single RDMA operations read. The device is not done with their buffers.
    pub(crate) fn end_single_reads(&mut self) {
        let taken = self.core.transmit.single_reads_mut().filter_map(|read| {
            let buffer = read.buffer.take()?;
            Some(read.ended(buffer, Err(OperationError::Closed)))
        });
        for ended in taken.collect::<Vec<_>>() {
            self.single_reads -= 1;
            self.core.received(ended);
        }
    }
}

impl<B> SingleRead<B> {
    /// The completion of the receive, which has all bytes or none.
    #[inline(always)]
    fn ended(&self, buffer: B, result: Result<(), OperationError>) -> ReceiveCompletion<B> {
        ReceiveCompletion {
            context: self.context,
            peer: Some(self.peer),
            tagged: self.tag.is_some(),
            tag: self.tag.unwrap_or(0),
            length: if result.is_ok() { self.length } else { 0 },
            cq_data: None,
            subprotocol: Some(Subprotocol::LongRead),
            buffer,
            result,
        }
    }
}

#[cfg(test)]
mod tests {
    use efa_device::{Device, QueuePairOptions};
    use efa_sim::local::{LocalFabric, LocalOptions};

    use super::*;
    use crate::config::Config;
    use crate::endpoint::{Accept, Endpoint};

    /// A receive that is read has no place in the table, so there may be none left when the read fails.
    #[test]
    fn failed_single_read_without_place_in_the_table_fails_its_receive() {
        let network = LocalFabric::new(LocalOptions::default());
        let queue_pair = || network.open().create_queue_pair(QueuePairOptions::default()).unwrap();
        let config = Config::default().with(|config| config.max_receives = 1);
        let mut endpoint = Endpoint::<_, Vec<u8>>::new(queue_pair(), config).unwrap();
        let sender = Endpoint::<_, Vec<u8>>::new(queue_pair(), Config::default()).unwrap();
        let peer = endpoint.insert_peer(sender.address()).unwrap();
        let ops = &mut endpoint.matching.ops;
        ops.receives.limit(0);
        ops.single_reads = 1;
        ops.core.peers.activate(peer, &ops.core.config);
        let accept = Accept::Tagged { source: None, tag: 0, ignore: 0 };
        let refused = endpoint.receive(accept, vec![0; 9], 2);
        assert!(refused.is_err(), "the read counts as a receive");
        let (tag, buffer) = (Some(5), Some(vec![1; 9]));
        let read = SingleRead {
            peer,
            msg_id: 3,
            context: 4,
            tag,
            length: 9,
            send_id: OpId(0),
            buffer,
            failed: None,
        };
        let ops = &mut endpoint.matching.ops;
        let ended = ops.single_read_end(read, Err(Status::RemoteBadAddress));
        let Some(Completion::Receive(ended)) = ended else { panic!("{ended:?}") };
        assert_eq!(ended.result, Err(OperationError::TooManyOperations));
        assert_eq!((ended.context, ended.tag, ended.length), (4, 5, 0));
        assert_eq!(ended.buffer, [1; 9]);
        assert!(endpoint.receive(accept, vec![0; 9], 2).is_ok());
    }
}
