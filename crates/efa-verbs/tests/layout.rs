//! The bindings of libefa have the layout of the C header that is installed.
//!
//! What an older header doesn't have yet is left out by the C compiler's own word: a member counts
//! where it is, and the rest of a structure must be reserved there or lie behind its end.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use common::Directory;
use efa_verbs::efadv::*;

/// Something that C says by a number.
struct Number {
    /// The C expression.
    c: String,
    here: u64,
    /// The C text of the header that must be there for it, for what is newer than rdma-core 44.
    since: Option<&'static str>,
}

/// Offsets of members; `since` is of the whole list.
macro_rules! members {
    ($since:expr; $($name:ident { $($member:ident),* $(,)? })*) => {
        [$($(Number {
            c: format!("offsetof(struct {}, {})", stringify!($name), stringify!($member)),
            here: offset_of!($name, $member) as u64,
            since: $since,
        }),*),*]
    };
}

fn numbers() -> Vec<Number> {
    let mut numbers: Vec<Number> = Vec::from(members! { None;
        efadv_device_attr {
            comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, inline_buf_size, device_caps,
            max_rdma_size,
        }
        efadv_ah_attr { comp_mask, ahn, reserved }
        efadv_qp_init_attr { comp_mask, driver_qp_type }
        efadv_cq_init_attr { comp_mask, wc_flags }
        efadv_cq { comp_mask, wc_read_sgid }
    });
    numbers
        .extend(members! { Some("inline_buf_size_ex"); efadv_device_attr { inline_buf_size_ex } });
    numbers.extend(members! { Some("EFADV_QP_FLAGS_"); efadv_qp_init_attr { flags } });
    numbers.extend(members! { Some("uint8_t sl;"); efadv_qp_init_attr { sl } });
    numbers.extend(members! { Some("uint64_t wr_flags;"); efadv_qp_init_attr { wr_flags } });
    let external = "ext_mem_dmabuf";
    numbers.extend(members! { Some(external); efadv_cq_init_attr { flags, ext_mem_dmabuf } });
    numbers.extend(members! { Some("wc_is_unsolicited"); efadv_cq { wc_is_unsolicited } });
    numbers.extend(members! { Some("efadv_sq_depth_attr");
        efadv_sq_depth_attr { comp_mask, flags, max_send_sge, max_rdma_sge, max_inline_data }
    });
    let mut size = |c: &str, here: usize, since| {
        let c = format!("sizeof(struct {c})");
        numbers.push(Number { c, here: here as u64, since });
    };
    size("efadv_device_attr", size_of::<efadv_device_attr>(), None);
    size("efadv_ah_attr", size_of::<efadv_ah_attr>(), None);
    size("efadv_qp_init_attr", size_of::<efadv_qp_init_attr>(), Some("uint64_t wr_flags;"));
    size("efadv_cq_init_attr", size_of::<efadv_cq_init_attr>(), Some("ext_mem_dmabuf"));
    size("efadv_cq", size_of::<efadv_cq>(), Some("wc_is_unsolicited"));
    size("efadv_sq_depth_attr", size_of::<efadv_sq_depth_attr>(), Some("efadv_sq_depth_attr"));
    let mut constant = |c: &'static str, here: u64, since: bool| {
        numbers.push(Number { c: c.into(), here, since: since.then_some(c) });
    };
    constant("EFADV_QP_DRIVER_TYPE_SRD", EFADV_QP_DRIVER_TYPE_SRD.into(), false);
    constant("EFADV_WC_EX_WITH_SGID", EFADV_WC_EX_WITH_SGID, false);
    for (c, here, since) in [
        ("EFADV_DEVICE_ATTR_CAPS_RDMA_READ", EFADV_DEVICE_ATTR_CAPS_RDMA_READ, false),
        ("EFADV_DEVICE_ATTR_CAPS_RNR_RETRY", EFADV_DEVICE_ATTR_CAPS_RNR_RETRY, false),
        ("EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID", EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID, false),
        ("EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE", EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, true),
        (
            "EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV",
            EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
            true,
        ),
        (
            "EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV",
            EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV.into(),
            true,
        ),
    ] {
        constant(c, here.into(), since);
    }
    constant("EFADV_WC_EX_WITH_IS_UNSOLICITED", EFADV_WC_EX_WITH_IS_UNSOLICITED, true);
    numbers
}

#[test]
fn structures_and_numbers_are_those_of_the_c_header() {
    let header = std::fs::read_to_string("/usr/include/infiniband/efadv.h").unwrap();
    let mut numbers = numbers();
    numbers.retain(|number| number.since.is_none_or(|since| header.contains(since)));
    assert!(numbers.len() >= 20, "{} numbers are compared", numbers.len());
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/efadv.h>\nint main(void) {\n",
    );
    for number in &numbers {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({}));", number.c).unwrap();
    }
    source.push_str("}\n");
    let directory = Directory::new();
    let program = directory.0.join("layout");
    let mut compiler = Command::new("cc");
    compiler.args(["-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped());
    let mut compiler = compiler.spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    let output = Command::new(&program).output().unwrap();
    let there = String::from_utf8(output.stdout).unwrap();
    let there: Vec<u64> = there.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(there.len(), numbers.len());
    for (number, there) in numbers.iter().zip(there) {
        assert_eq!(number.here, there, "{}", number.c);
    }
}

/// Every release takes what a structure of its first length says.
#[test]
fn first_lengths_are_those_of_the_first_releases() {
    assert_eq!((FIRST_QP_INIT_ATTR, FIRST_CQ_INIT_ATTR), (16, 16));
    assert!(offset_of!(efadv_qp_init_attr, flags) < FIRST_QP_INIT_ATTR as usize);
    assert!(offset_of!(efadv_cq_init_attr, wc_flags) < FIRST_CQ_INIT_ATTR as usize);
}
