//! Reads any bytes as a capture file; what was read is written and must read back equal.

use efa_sim::capture::{Capture, CaptureReader};
use efa_sim::record::Record;

/// Most records that are compared.
const RECORDS: usize = 1000;

fn read(bytes: &[u8]) -> Vec<Record<'static>> {
    let reader = match CaptureReader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return Vec::new();
        }
    };
    let mut records = Vec::new();
    for record in reader.take(RECORDS) {
        match record {
            Ok(record) => records.push(record),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    records
}

pub(crate) fn run(bytes: &[u8]) {
    let records = read(bytes);
    if records.is_empty() {
        return;
    }
    let mut capture = Capture::new(Vec::new(), "again").expect("a write to memory succeeds");
    for record in &records {
        capture.write(record).expect("a write to memory succeeds");
    }
    let written = capture.finish().expect("a write to memory succeeds");
    assert_eq!(read(&written), records);
}

pub(crate) fn show(bytes: &[u8]) {
    for Record { time, event, source, destination, bytes } in read(bytes) {
        say!("{} ns {source} → {destination} {event:?}: {bytes:02x?}", time.as_nanos());
    }
    run(bytes);
}
