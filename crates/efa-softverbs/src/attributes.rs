//! What queries about the device, its port and its limits return.

use std::ffi::{c_char, c_int};

use crate::abi::*;
use crate::boundary::{INVALID, Outcome};
use crate::device::{
    Device, MAX_RECEIVE_SGE, MAX_SEND_RING, MAX_SEND_SGE, USUAL_INLINE, VENDOR_ID,
};
use crate::direct::send::DescriptorSize;
use crate::settings::DirectPath;

/// Most entries of a completion queue.
pub(crate) const MAX_COMPLETIONS: u32 = 1 << 16;
/// The only partition key: default partition, full member.
pub(crate) const PARTITION_KEY: u16 = 0xffff;

/// Most local entries of an RDMA operation.
const MAX_RDMA_SGE: u32 = 1;
/// `active_width` of the port, in InfiniBand's encoding: four lanes, as EFA interfaces report.
const WIDTH_4X: u8 = 2;
const PHYSICAL_STATE_LINK_UP: u8 = 5;

/// The interface's half of the GID, in network byte order.
pub(crate) fn guid(device: &Device) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&device.gid().0[8..]);
    u64::from_ne_bytes(bytes)
}

/// The one entry of the GID table.
pub(crate) fn gid_entry(device: &Device) -> ibv_gid_entry {
    let gid = ibv_gid { raw: device.gid().0 };
    ibv_gid_entry { gid, gid_index: 0, port_num: 1, gid_type: 0, ndev_ifindex: 0 }
}

/// Fails with `EINVAL` for a port other than 1.
pub(crate) fn check_port(port: u32) -> Outcome<()> {
    if port == 1 { Ok(()) } else { Err(INVALID) }
}

pub(crate) fn device_attributes(device: &Device) -> ibv_device_attr {
    let mut attributes: ibv_device_attr = zeroed();
    let limits = device.link.attributes();
    let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    let most = |limit: u64| c_int::try_from(limit).unwrap_or(c_int::MAX);
    for (to, from) in attributes.fw_ver.iter_mut().zip(*b"soft") {
        *to = c_char::from_ne_bytes([from]);
    }
    attributes.node_guid = guid(device);
    attributes.sys_image_guid = guid(device);
    attributes.max_mr_size = limits.max_region_size;
    attributes.page_size_cap = 4096;
    attributes.vendor_id = VENDOR_ID;
    attributes.vendor_part_id = vendor_part_id(device);
    attributes.hw_ver = vendor_part_id(device);
    attributes.max_qp = number(device.link.max_queue_pairs());
    attributes.max_qp_wr = number(limits.max_send.min(limits.max_receive));
    attributes.max_sge = number(MAX_SEND_SGE.min(MAX_RECEIVE_SGE));
    attributes.max_sge_rd = MAX_RDMA_SGE.cast_signed();
    attributes.max_cq = most(device.settings.limits.completion_queues);
    attributes.max_cqe = number(MAX_COMPLETIONS as usize);
    // Without `Device::empty_region`.
    attributes.max_mr = number(limits.max_regions - 1);
    attributes.max_pd = most(device.settings.limits.domains);
    attributes.max_ah = number(limits.max_address_handles);
    attributes.max_pkeys = 1;
    attributes.phys_port_cnt = 1;
    attributes
}

/// The part id of the generation. A device without reads is one of those before the first, as libfabric from 1.18 on
/// aborts if another doesn't read.
fn vendor_part_id(device: &Device) -> u32 {
    if device.rdma().read {
        device.settings.generation.vendor_part_id()
    } else {
        device.link.attributes().vendor_part_id
    }
}

pub(crate) fn extended_device_attributes(device: &Device) -> ibv_device_attr_ex {
    ibv_device_attr_ex {
        orig_attr: device_attributes(device),
        comp_mask: 0,
        _rest: [0; 19],
        _xrc: 0,
        phys_port_cnt_ex: 1,
    }
}

pub(crate) fn port_attributes(device: &Device) -> ibv_port_attr {
    let mut attributes: ibv_port_attr = zeroed();
    attributes.state = IBV_PORT_ACTIVE;
    attributes.max_mtu = IBV_MTU_4096;
    attributes.active_mtu = IBV_MTU_4096;
    attributes.gid_tbl_len = 1;
    attributes.max_msg_sz = u32::try_from(device.settings.mtu).unwrap_or(u32::MAX);
    attributes.pkey_tbl_len = 1;
    attributes.active_width = WIDTH_4X;
    attributes.active_speed = device.settings.generation.lane_speed();
    attributes.phys_state = PHYSICAL_STATE_LINK_UP;
    attributes.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    attributes
}

pub(crate) fn efa_attributes(device: &Device) -> efadv_device_attr {
    let limits = device.link.attributes();
    let short = |value: usize| u16::try_from(value).unwrap_or(u16::MAX);
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let mut capabilities = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
    let rdma = device.rdma();
    if rdma.read {
        capabilities |= EFADV_DEVICE_ATTR_CAPS_RDMA_READ;
    }
    if rdma.write {
        capabilities |= EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE;
    }
    if rdma.unsolicited_write_receive {
        capabilities |= EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
    }
    if device.settings.direct != DirectPath::Off {
        capabilities |= EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF;
    }
    if device.settings.counters {
        capabilities |= EFADV_DEVICE_ATTR_CAPS_COMP_CNTR;
    }
    let max_rdma_size = if rdma.read || rdma.write { limits.max_rdma_size } else { 0 };
    efadv_device_attr {
        comp_mask: 0,
        max_sq_wr: number(limits.max_send),
        max_rq_wr: number(limits.max_receive),
        max_sq_sge: short(MAX_SEND_SGE),
        max_rq_sge: short(MAX_RECEIVE_SGE),
        inline_buf_size: short(USUAL_INLINE),
        // Newer releases: the inline size that is possible, with long descriptors.
        reserved: short(device.max_inline()).to_ne_bytes(),
        device_caps: capabilities,
        max_rdma_size: u32::try_from(max_rdma_size).unwrap_or(u32::MAX),
    }
}

/// The deepest send queue with these properties: one with descriptors of 128 bytes has half the entries.
pub(crate) fn max_send_depth(device: &Device, wanted: &efadv_sq_depth_attr) -> Outcome<usize> {
    let offered = if device.offers_inline_writes() { EFADV_SQ_DEPTH_ATTR_INLINE_WRITE } else { 0 };
    let possible = wanted.comp_mask == 0
        && wanted.flags & !offered == 0
        && wanted.max_send_sge as usize <= MAX_SEND_SGE
        && wanted.max_rdma_sge <= MAX_RDMA_SGE
        && wanted.max_inline_data as usize <= device.max_inline();
    if !possible {
        return Err(INVALID);
    }
    let inline_writes = wanted.flags & EFADV_SQ_DEPTH_ATTR_INLINE_WRITE != 0;
    Ok(send_depth(device, wanted.max_inline_data, inline_writes))
}

fn send_depth(device: &Device, inline: u32, inline_writes: bool) -> usize {
    let descriptor = DescriptorSize::of(inline, inline_writes).bytes();
    device.link.attributes().max_send.min(MAX_SEND_RING / descriptor)
}

/// The deepest receive queue with these properties. Each scatter entry takes one of the queue.
pub(crate) fn max_receive_depth(device: &Device, wanted: &efadv_rq_depth_attr) -> Outcome<usize> {
    let possible = wanted.comp_mask == 0 && wanted.max_recv_sge as usize <= MAX_RECEIVE_SGE;
    if possible { Ok(receive_depth(device, wanted.max_recv_sge)) } else { Err(INVALID) }
}

fn receive_depth(device: &Device, entries: u32) -> usize {
    device.link.attributes().max_receive / (entries as usize).max(1)
}

/// Fails with `EINVAL` for queues that the device doesn't have.
pub(crate) fn check_queues(device: &Device, cap: &ibv_qp_cap, inline_writes: bool) -> Outcome<()> {
    let fits = cap.max_send_sge as usize <= MAX_SEND_SGE
        && cap.max_recv_sge as usize <= MAX_RECEIVE_SGE
        && cap.max_inline_data as usize <= device.max_inline()
        && cap.max_send_wr as usize <= send_depth(device, cap.max_inline_data, inline_writes)
        && cap.max_recv_wr as usize <= receive_depth(device, cap.max_recv_sge);
    if fits { Ok(()) } else { Err(INVALID) }
}

/// The speed of the port in units of 100 Mbit/s.
pub(crate) fn port_speed(device: &Device) -> u64 {
    device.settings.generation.gigabits() * 10
}
