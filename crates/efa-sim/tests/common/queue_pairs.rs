//! What the tests of several links do with a queue pair.

use efa_device::*;

pub(crate) fn destination(from: &mut impl QueuePair, to: QueuePairAddress) -> Destination {
    let address_handle = from.create_address_handle(to.gid).unwrap();
    Destination { address_handle, qpn: to.qpn, qkey: to.qkey }
}

pub(crate) fn send(
    from: &mut impl QueuePair,
    destination: Destination,
    id: u64,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let mut packet = from.allocate_packet().unwrap();
    packet.as_mut()[..bytes.len()].copy_from_slice(bytes);
    let request =
        SendRequest { id: WorkId(id), packet, length: bytes.len(), destination, immediate: None };
    from.post_send(request).map_err(|refused| refused.error)
}

pub(crate) fn post_receives(qp: &mut impl QueuePair, count: usize) {
    for _ in 0..count {
        let packet = qp.allocate_packet().unwrap();
        qp.post_receive(packet).unwrap();
    }
}
