//! Parses any bytes as TMH and RVH; what parses is emitted and parsed again.

use efa_proto::tm::Message;

pub(crate) fn run(bytes: &[u8]) {
    let message = match Message::parse(bytes) {
        Ok(message) => message,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut again = vec![0; 32];
    let (length, rest) = match message {
        Message::NoTag(all) => return assert_eq!(all, bytes),
        Message::Eager { header, payload } => (header.emit_eager(&mut again), payload),
        Message::Rndv { header, rendezvous, metadata } => {
            (header.emit_rndv(&rendezvous, &mut again), metadata)
        }
        Message::Fin { header, rendezvous: Some(rendezvous) } => {
            (header.emit_fin(&rendezvous, &mut again), &[][..])
        }
        Message::Fin { header, rendezvous: None } => (header.emit_short_fin(&mut again), &[][..]),
    };
    again.truncate(length.expect("the buffer is large enough"));
    again.extend_from_slice(rest);
    assert_eq!(Message::parse(&again), Ok(message));
}
