//! The counters of a device: where its processes count, and the files of sysfs that show the sums.
//!
//! ```text
//!   process A ─► block ┐
//!   process B ─► block ├─ FILE, mapped ─► `efa soft-efa run` ─► class/infiniband/efa_soft0/ports/1/hw_counters/tx_bytes
//!   process A ─► block ┘                  adds up, writes                             …/hw_counters/submitted_cmds
//! ```
//!
//! A process appends a [block](BLOCK) of 64-bit words in the machine's byte order for each device that it opens, and
//! none is taken back: so a sum never falls, and what killed processes counted remains.

use std::collections::BTreeMap;

/// The file in the directory of the sysfs trees (`EFA_SOFT_SYSFS`). Processes count there if it exists.
pub const FILE: &str = "hw-counters";
/// Bytes of a block.
pub const BLOCK: usize = WORDS * 8;
/// Words of a block.
pub const WORDS: usize = 32;

/// The words of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[non_exhaustive]
pub enum Word {
    /// Number of the device, from 1 on; 0 before the block is complete.
    Device,
    /// Longest datagram in bytes.
    Mtu,
    /// 1 if the peers of this device are processes on the same device (shm link), so that what one of them reads is
    /// what another served.
    HasBothEnds,
    /// Sends that were posted.
    Sends,
    /// Their bytes.
    SendBytes,
    /// Receives that completed.
    Receives,
    /// Their bytes.
    ReceiveBytes,
    /// Reads that were posted.
    Reads,
    /// Their bytes.
    ReadBytes,
    /// Reads that failed.
    ReadErrors,
    /// Writes that were posted.
    Writes,
    /// Their bytes.
    WriteBytes,
    /// Writes that failed.
    WriteErrors,
    /// Sends that failed, as the receiver had no buffer.
    ReceiverNotReady,
    /// Other requests that failed.
    Failed,
    /// Rounds in which the library's thread found something to do.
    BackgroundProgress,
    /// Doorbells that were seen.
    Doorbells,
    /// Descriptors that were read from rings.
    Descriptors,
    /// Commands: objects created, changed and destroyed.
    Commands,
    /// Queue pairs that were refused.
    QueuePairErrors,
    /// Memory regions that were refused.
    RegionErrors,
    /// Address handles that were refused.
    AddressHandleErrors,
    /// Not a word: the number of words in use.
    Used,
}

const _: () = assert!(Word::Used as usize <= WORDS, "all words fit");

/// What one device did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files of its port, in `ports/1/hw_counters`.
    pub port: Vec<(&'static str, u64)>,
    /// Files of the device, in `hw_counters`.
    pub device: Vec<(&'static str, u64)>,
}

/// A block in which nothing was counted for the device with this index.
#[must_use]
pub fn empty_block(index: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[Word::Device as usize * 8..][..8].copy_from_slice(&(index as u64 + 1).to_ne_bytes());
    block
}

/// The sums of the blocks in `file` for each device, by its index. A part of a block at the end is ignored.
///
/// ```
/// use efa_soft_names::counters::{Word, empty_block, totals};
///
/// let mut block = empty_block(0);
/// for (word, value) in [(Word::Mtu, 8928_u64), (Word::Sends, 2), (Word::SendBytes, 100)] {
///     block[word as usize * 8..][..8].copy_from_slice(&value.to_ne_bytes());
/// }
/// let totals = totals(&[block, block].concat());
/// assert!(totals[&0].port.contains(&("send_bytes", 200)));
/// assert!(totals[&0].port.contains(&("tx_pkts", 4)));
/// ```
#[must_use]
pub fn totals(file: &[u8]) -> BTreeMap<usize, Totals> {
    let mut sums: BTreeMap<usize, Sum> = BTreeMap::new();
    for block in file.chunks_exact(BLOCK) {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            if cfg!(target_endian = "big") {
                *word = word.swap_bytes();
            }
        }
        let block = Block(words);
        // A device has at most as many, and a wrong number must not make a file of this name.
        if let index @ 0..MOST_DEVICES = block.get(Word::Device).wrapping_sub(1) {
            sums.entry(index as usize).or_default().add(&block);
        }
    }
    sums.into_iter().map(|(index, sum)| (index, sum.totals())).collect()
}

/// More than a process has.
const MOST_DEVICES: u64 = 64;

struct Block([u64; WORDS]);

impl Block {
    fn get(&self, word: Word) -> u64 {
        self.0[word as usize]
    }

    /// Packets of `requests` reads or writes of `bytes` in total: one each at least.
    fn packets(&self, requests: Word, bytes: Word) -> u64 {
        let mtu = self.get(Word::Mtu).max(1);
        self.get(requests).max(self.get(bytes).div_ceil(mtu))
    }
}

/// Any program of the user can write any number into the file, so sums wrap around.
fn sum<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, u64::wrapping_add)
}

/// What the blocks of a device have counted, and what follows from it.
#[derive(Default)]
struct Sum {
    words: [u64; WORDS],
    served_read_bytes: u64,
    served_write_bytes: u64,
    drops: u64,
    sent_packets: u64,
    received_packets: u64,
}

impl Sum {
    fn add(&mut self, block: &Block) {
        for (sum, word) in self.words.iter_mut().zip(block.0) {
            *sum = sum.wrapping_add(word);
        }
        let reads = block.packets(Word::Reads, Word::ReadBytes);
        let writes = block.packets(Word::Writes, Word::WriteBytes);
        // A read is asked for in a packet.
        let (asked, received) = (block.get(Word::Reads), block.get(Word::Receives));
        let mut sent = sum([block.get(Word::Sends), asked, writes]);
        let mut received = sum([received, reads]);
        if block.get(Word::HasBothEnds) == 1 {
            let served = [self.served_read_bytes, block.get(Word::ReadBytes)];
            self.served_read_bytes = sum(served);
            self.served_write_bytes = sum([self.served_write_bytes, block.get(Word::WriteBytes)]);
            self.drops = sum([self.drops, block.get(Word::ReceiverNotReady)]);
            (sent, received) = (sum([sent, reads]), sum([received, asked, writes]));
        }
        self.sent_packets = sum([self.sent_packets, sent]);
        self.received_packets = sum([self.received_packets, received]);
    }

    fn totals(&self) -> Totals {
        let get = |word: Word| self.words[word as usize];
        let sent = sum([get(Word::SendBytes), get(Word::WriteBytes), self.served_read_bytes]);
        let received =
            sum([get(Word::ReceiveBytes), get(Word::ReadBytes), self.served_write_bytes]);
        // The device refuses no other commands than these; what libefa refuses is none.
        let refused = [
            ("alloc_pd_err", 0),
            ("create_qp_err", get(Word::QueuePairErrors)),
            ("create_cq_err", 0),
            ("reg_mr_err", get(Word::RegionErrors)),
            ("alloc_ucontext_err", 0),
            ("create_ah_err", get(Word::AddressHandleErrors)),
            ("mmap_err", 0),
        ];
        let port = vec![
            ("tx_bytes", sent),
            ("tx_pkts", self.sent_packets),
            ("rx_bytes", received),
            ("rx_pkts", self.received_packets),
            ("rx_drops", self.drops),
            ("send_bytes", get(Word::SendBytes)),
            ("send_wrs", get(Word::Sends)),
            ("recv_bytes", get(Word::ReceiveBytes)),
            ("recv_wrs", get(Word::Receives)),
            ("rdma_read_wrs", get(Word::Reads)),
            ("rdma_read_bytes", get(Word::ReadBytes)),
            ("rdma_read_wr_err", get(Word::ReadErrors)),
            ("rdma_read_resp_bytes", self.served_read_bytes),
            ("rdma_write_wrs", get(Word::Writes)),
            ("rdma_write_bytes", get(Word::WriteBytes)),
            ("rdma_write_wr_err", get(Word::WriteErrors)),
            ("rdma_write_recv_bytes", self.served_write_bytes),
            // No link loses packets.
            ("retrans_bytes", 0),
            ("retrans_pkts", 0),
            ("retrans_timeout_events", 0),
            ("unresponsive_remote_events", 0),
            ("impaired_remote_conn_events", 0),
        ];
        let mut device = vec![
            ("submitted_cmds", get(Word::Commands)),
            ("completed_cmds", get(Word::Commands)),
            ("cmds_err", sum(refused.map(|(_, count)| count))),
            ("no_completion_cmds", 0),
            ("keep_alive_rcvd", 0),
        ];
        device.extend(refused);
        Totals { port, device }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(words: &[(Word, u64)]) -> Vec<u8> {
        let mut block = [0_u64; WORDS];
        for &(word, value) in words {
            block[word as usize] = value;
        }
        block.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn value(totals: &Totals, name: &str) -> u64 {
        let mut files = totals.port.iter().chain(&totals.device);
        files.find(|(file, _)| *file == name).unwrap().1
    }

    #[test]
    fn what_is_read_and_written_counts_as_served_where_the_device_has_both_ends() {
        let words =
            [(Word::Mtu, 1000), (Word::Reads, 3), (Word::ReadBytes, 5000), (Word::Writes, 4)];
        let alone = [&words[..], &[(Word::Device, 1), (Word::WriteBytes, 40)]].concat();
        let both =
            [&words[..], &[(Word::Device, 2), (Word::WriteBytes, 40), (Word::HasBothEnds, 1)]];
        let totals = totals(&[block(&alone), block(&both.concat())].concat());
        let of = |index: usize, names: &[&str]| -> Vec<u64> {
            names.iter().map(|name| value(&totals[&index], name)).collect()
        };
        let names = ["rdma_read_resp_bytes", "rdma_write_recv_bytes", "tx_bytes", "rx_bytes"];
        assert_eq!(of(0, &names), [0, 0, 40, 5000]);
        assert_eq!(of(1, &names), [5000, 40, 5040, 5040]);
        assert_eq!(of(0, &["tx_pkts", "rx_pkts"]), [3 + 4, 5]);
        assert_eq!(of(1, &["tx_pkts", "rx_pkts"]), [3 + 4 + 5, 5 + 3 + 4]);
    }

    #[test]
    fn refusals_count_as_errors_of_commands() {
        let words = [(Word::Device, 1), (Word::RegionErrors, 2), (Word::QueuePairErrors, 1)];
        let totals = totals(&block(&words));
        let names = ["cmds_err", "reg_mr_err", "create_qp_err", "create_ah_err"];
        assert_eq!(names.map(|name| value(&totals[&0], name)), [3, 2, 1, 0]);
    }

    #[test]
    fn sums_of_any_numbers_in_the_file_wrap_around() {
        let mut words = [u64::MAX; WORDS];
        words[Word::Device as usize] = 1;
        words[Word::HasBothEnds as usize] = 1;
        let block: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let totals = totals(&[&block[..], &block].concat());
        assert_eq!(value(&totals[&0], "send_wrs"), u64::MAX - 1);
    }

    #[test]
    fn blocks_without_device_and_parts_of_blocks_are_ignored() {
        let none = block(&[(Word::Sends, 1)]);
        let wrong = block(&[(Word::Device, u64::MAX), (Word::Sends, 1)]);
        let part = &block(&[(Word::Device, 1)])[..BLOCK - 1];
        assert!(totals(&[&none[..], &wrong, part].concat()).is_empty());
    }
}
