//! Reads any bytes as a capture file; what was read is written, whole and bounded, and must read back equal.

use efa_sim::capture::{Capture, CaptureReader, Captured};
use efa_sim::record::Record;

/// Most records that are compared.
const RECORDS: usize = 1000;

fn read(bytes: &[u8]) -> Vec<Captured> {
    let mut reader = match CaptureReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return Vec::new();
        }
    };
    let mut records = Vec::new();
    while records.len() < RECORDS
        && let Some(captured) = reader.next_captured()
    {
        match captured {
            Ok(captured) => {
                assert_eq!(captured.missing(), captured.length - captured.record.bytes.len());
                records.push(captured);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(reader.skipped().is_none_or(|skipped| skipped.records > 0));
    records
}

/// The same records in a file of at most the first `most` bytes of each packet.
fn written(records: &[Captured], most: usize) -> Vec<u8> {
    let memory = "a write to memory succeeds";
    let mut capture = Capture::bounded(Vec::new(), "again", most).expect(memory);
    records.iter().for_each(|captured| capture.write(&captured.record).expect(memory));
    capture.finish().expect(memory)
}

pub(crate) fn run(bytes: &[u8]) {
    let records = read(bytes);
    let most = bytes.first().map_or(0, |byte| usize::from(byte % 64));
    let whole = read(&written(&records, usize::MAX));
    assert_eq!(whole.len(), records.len());
    for (again, original) in whole.iter().zip(&records) {
        assert_eq!((&again.record, again.missing()), (&original.record, 0));
    }
    let bounded = read(&written(&records, most));
    assert_eq!(bounded.len(), records.len());
    for (again, original) in bounded.iter().zip(&records) {
        let whole = &original.record.bytes;
        assert_eq!(
            (&*again.record.bytes, again.length),
            (&whole[..whole.len().min(most)], whole.len())
        );
    }
}

pub(crate) fn show(bytes: &[u8]) {
    for captured in read(bytes) {
        let missing = captured.missing();
        let Record { time, event, source, destination, bytes } = captured.record;
        say!(
            "{} ns {source} → {destination} {event:?}: {bytes:02x?}, {missing} missing",
            time.as_nanos()
        );
    }
    run(bytes);
}
