//! Bytes of the tcp link, for tests that play the other side.

/// What a side says first: queue pair 0x1234, an MTU of 256 bytes.
pub(crate) const HELLO: &[u8; 16] = b"EfaS\x05\0\x34\x12\0\x01\0\0\0\0\0\0";
