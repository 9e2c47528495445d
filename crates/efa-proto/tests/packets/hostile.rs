//! Whatever the bytes: an answer, never a panic. And what was accepted can be sent on.

use std::sync::LazyLock;

use efa_proto::{EmitError, Packet, PacketType};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::samples;

static SAMPLES: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| samples::all().iter().map(samples::Sample::bytes).collect());

/// Parses; shows, emits and parses again what was accepted.
fn digest(bytes: &[u8]) {
    match Packet::parse(bytes) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!error.field().is_empty());
            assert_ne!(error.missing(), Some(0));
        }
        Ok(packet) => {
            assert!(!packet.to_string().is_empty());
            let mut again = vec![0; packet.header.len()];
            match packet.header.emit(&mut again) {
                Ok(len) => {
                    assert_eq!(len, again.len());
                    again.extend(packet.payload);
                    assert_eq!(Packet::parse(&again), Ok(packet));
                }
                // Readable, but more words than we may send.
                Err(EmitError::Count { packet_type: PacketType::Handshake, .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A type that exists, version 4, any flags, anything behind.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let types = proptest::sample::select(PacketType::ALL);
    let small = prop_oneof![4 => 0..8_u8, 1 => any::<u8>()];
    (types, any::<[u8; 2]>(), vec(small, 0..220)).prop_map(|(packet_type, flags, rest)| {
        let mut bytes = vec![packet_type.as_u8(), 4, flags[0], flags[1]];
        bytes.extend(rest);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 8192, ..ProptestConfig::default() })]

    // conformance: A16 A22 A222
    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..200)) {
        digest(&bytes);
    }

    // conformance: A16 A22 A222
    #[test]
    fn random_bytes_behind_a_good_start(bytes in plausible()) {
        digest(&bytes);
    }

    // conformance: A16 A22 A222
    #[test]
    fn broken_samples(
        sample in any::<Index>(),
        changes in vec((any::<Index>(), any::<u8>()), 0..4),
        len in any::<Index>(),
        extra in vec(any::<u8>(), 0..16),
    ) {
        let mut bytes = sample.get(&SAMPLES).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        digest(&bytes);
        digest(&bytes[..len.index(bytes.len())]);
        bytes.extend(extra);
        digest(&bytes);
    }
}

/// Each 32-bit and 64-bit place of each sample, set to the numbers that overflow.
// conformance: A49 A222
#[test]
fn extreme_numbers_everywhere() {
    for bytes in SAMPLES.iter() {
        for value in
            [0, 1, 0x7fff_ffff, 0x8000_0000, u64::MAX, u64::MAX - 7, 1 << 63, u64::MAX / 24]
        {
            for width in [4, 8] {
                for at in (4..bytes.len().saturating_sub(width)).step_by(4) {
                    let mut bytes = bytes.clone();
                    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                    digest(&bytes);
                }
            }
        }
    }
}
