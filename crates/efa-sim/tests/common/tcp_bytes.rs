//! Bytes of the tcp link, for tests that play the other side.

/// What a sender says first: queue pair 0x1234, an MTU of 256 bytes, RNR retries without end, its token.
pub(crate) const HELLO: &[u8; 24] = b"EfaS\x04\0\x34\x12\0\x01\0\0\x07\0\0\0a-token!";
