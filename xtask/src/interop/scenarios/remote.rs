//! Writes, reads and atomics on the receiver's memory.

use anyhow::{Context, Result, ensure};

use super::{Faults, Known, SIZES, Scenario};
use crate::interop::build::Release;
use crate::interop::matrix::{Pair, Stack};
use crate::interop::pattern::pattern;
use crate::interop::stage::{Exposed, Side, Stage};

pub(super) static ALL: &[Scenario] = &[
    Scenario { known: UNWRITABLE, ..Scenario::new("write", "written, of every size", write) },
    Scenario { known: UNWRITABLE, ..Scenario::new("write-data", "with CQ data", write_data) },
    Scenario {
        known: UNWRITABLE,
        ..Scenario::new("write-delivery", "with delivery complete", write_delivery)
    },
    Scenario::new("read", "read, of every size", read),
    Scenario::new("atomic-write", "every operation and type", |stage| {
        atomics(stage, &[Form::Write, Form::Delivery])
    }),
    Scenario::new("atomic-fetch", "the same, with what was there", |stage| {
        atomics(stage, &[Form::Fetch])
    }),
    Scenario::new("atomic-compare", "if what is there compares so", compare),
    Scenario {
        faults: Faults { reorder: Some(8), ..Faults::NONE },
        known: UNWRITABLE,
        ..Scenario::new(
            "remote-reordered",
            "writes, reads and atomics with packets reordered",
            all_of_it,
        )
    },
    Scenario {
        faults: Faults { receiver_not_ready: Some("0.3"), ..Faults::NONE },
        known: UNWRITABLE,
        ..Scenario::new("remote-not-ready", "and every third meets RNR", all_of_it)
    },
];

/// Where the device reads and doesn't write. Seen with 1.19 to 2.1; 2.3 has it right.
pub(super) const UNWRITABLE: &[Known] =
    &[Known::with_rdma(Pair::C_RECEIVES, [Release(1, 19), Release(2, 3)], UNWRITABLE_REASON)];
pub(super) const UNWRITABLE_REASON: &str = "libfabric 1.19 to 2.2 registers memory that peers may write without \
    local write access, and then can't read a long write into it";

/// A write, a read and an atomic of each packet type.
pub(super) fn one_of_each(stage: &mut Stage<'_>) -> Result<()> {
    write(stage)?;
    write_delivery(stage)?;
    read(stage)?;
    let (unsigned, sum) = (Integer::of(7), "type=7 op=2");
    let sums = |there: &[u8], operand: &[u8]| unsigned.map(there, operand, i128::wrapping_add);
    for (form, fetches) in [("", false), ("delivery", false), ("fetch", true)] {
        atomic(stage, unsigned, &format!("{sum} {form}"), fetches, sums)?;
    }
    // Nothing is equal to the pattern of another seed.
    let same = |there: &[u8], _: &[u8]| there.to_vec();
    atomic(stage, unsigned, "type=7 op=12 compare-seed=4242", true, same)
}

fn all_of_it(stage: &mut Stage<'_>) -> Result<()> {
    write(stage)?;
    write_delivery(stage)?;
    read(stage)?;
    atomics(stage, &[Form::Delivery, Form::Fetch])
}

/// Around what one packet takes, too.
fn sizes() -> impl Iterator<Item = u64> {
    SIZES.into_iter().chain([8_850, 8_900, 8_904, 8_905, 65_535, 65_536, 65_537])
}

/// Bytes of the exposed memory before and behind what is written.
pub(super) const MARGIN: u64 = 24;

/// Writes into the middle of untouched memory, which is checked when a message behind has come.
fn written(stage: &mut Stage<'_>, options: &str, data: Option<u64>) -> Result<()> {
    for size in sizes() {
        let memory = stage.expose(Side::Receiver, size + 2 * MARGIN, None)?;
        let Exposed { id: target, address, key } = memory;
        let id = stage.new_id();
        let address = address + MARGIN;
        let data_word = data.map(|data| format!("data={data:#x}")).unwrap_or_default();
        let command = format!(
            "write id={id} to=0 size={size} seed={id} address={address:#x} key={key:#x} {options} \
             {data_word}"
        );
        stage.sender()?.run_ok(&command)?;
        let completion = stage.sender()?.completion_of(id)?;
        completion.expect(&["rma", "write"]).with_context(|| command.clone())?;
        if let Some(data) = data {
            let completion = stage.receiver()?.completion_without_context()?;
            // libfabric before 1.18 has FI_WRITE among them, too.
            let flags: &[_] = match stage.stack(Side::Receiver) {
                Stack::C if stage.libfabric() < Release(1, 18) => {
                    &["rma", "write", "remote-write", "data"]
                }
                _ => &["rma", "remote-write", "data"],
            };
            completion.expect(flags).with_context(|| command.clone())?;
            completion.expect_number("data", data)?;
            completion.expect_number("length", size)?;
        } else if options.is_empty() {
            // It may still be on its way.
            stage.settle()?;
        }
        stage
            .check(Side::Receiver, &format!("id={target} from={MARGIN} length={size} seed={id}"))
            .with_context(|| command.clone())?;
        stage.receiver()?.run_ok(&format!("forget id={target}"))?;
    }
    Ok(())
}

fn write(stage: &mut Stage<'_>) -> Result<()> {
    written(stage, "", None)
}

fn write_data(stage: &mut Stage<'_>) -> Result<()> {
    written(stage, "", Some(0x8765_4321))
}

fn write_delivery(stage: &mut Stage<'_>) -> Result<()> {
    written(stage, "delivery", None)
}

fn read(stage: &mut Stage<'_>) -> Result<()> {
    for size in sizes() {
        let seed = stage.new_id();
        let Exposed { id: source, address, key } =
            stage.expose(Side::Receiver, size, Some(seed))?;
        let id = stage.new_id();
        let command = format!("read id={id} to=0 size={size} address={address:#x} key={key:#x}");
        stage.sender()?.run_ok(&command)?;
        let completion = stage.sender()?.completion_of(id)?;
        completion.expect(&["rma", "read"]).with_context(|| command.clone())?;
        stage
            .check(Side::Sender, &format!("id={id} length={size} seed={seed}"))
            .with_context(|| command.clone())?;
        stage.check(Side::Receiver, &format!("id={source} length={size} seed={seed}"))?;
        stage.receiver()?.run_ok(&format!("forget id={source}"))?;
    }
    Ok(())
}

/// How an atomic operation is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Write,
    Delivery,
    Fetch,
}

/// Types by their numbers in OFI: signed and unsigned by turns.
const TYPES: u64 = 8;

/// A type of integers.
#[derive(Clone, Copy)]
struct Integer {
    bytes: usize,
    signed: bool,
}

impl Integer {
    fn of(number: u64) -> Self {
        Self { bytes: 1 << (number / 2), signed: number.is_multiple_of(2) }
    }

    fn value(self, bytes: &[u8]) -> i128 {
        let mut wide = [0; 16];
        wide[..self.bytes].copy_from_slice(bytes);
        let shift = 128 - 8 * self.bytes as u32;
        match self.signed {
            true => i128::from_le_bytes(wide) << shift >> shift,
            false => i128::from_le_bytes(wide),
        }
    }

    /// `result` of each pair of elements.
    fn map(self, there: &[u8], operand: &[u8], result: impl Fn(i128, i128) -> i128) -> Vec<u8> {
        let pairs = there.chunks(self.bytes).zip(operand.chunks(self.bytes));
        let results = pairs.flat_map(|(there, operand)| {
            let value = result(self.value(there), self.value(operand));
            value.to_le_bytes().into_iter().take(self.bytes)
        });
        results.collect()
    }
}

/// An operation: its number in OFI, and what it leaves of what is there and the operand.
struct Operation {
    number: u64,
    result: fn(i128, i128) -> i128,
}

fn truth(value: bool) -> i128 {
    i128::from(value)
}

const OPERATIONS: [Operation; 11] = [
    Operation { number: 0, result: |there, operand| there.min(operand) },
    Operation { number: 1, result: |there, operand| there.max(operand) },
    Operation { number: 2, result: |there, operand| there.wrapping_add(operand) },
    Operation { number: 3, result: |there, operand| there.wrapping_mul(operand) },
    Operation { number: 4, result: |there, operand| truth(there != 0 || operand != 0) },
    Operation { number: 5, result: |there, operand| truth(there != 0 && operand != 0) },
    Operation { number: 6, result: |there, operand| there | operand },
    Operation { number: 7, result: |there, operand| there & operand },
    Operation { number: 8, result: |there, operand| truth((there != 0) != (operand != 0)) },
    Operation { number: 9, result: |there, operand| there ^ operand },
    Operation { number: 11, result: |_, operand| operand },
];

/// `FI_ATOMIC_READ`, which takes no operand.
const READ: Operation = Operation { number: 10, result: |there, _| there };

/// Bytes that one operation works on.
const WORKED: usize = 64;

fn atomics(stage: &mut Stage<'_>, forms: &[Form]) -> Result<()> {
    for form in forms {
        let read = (*form == Form::Fetch).then_some(READ);
        for operation in OPERATIONS.into_iter().chain(read) {
            for number in 0..TYPES {
                let integer = Integer::of(number);
                let options = match form {
                    Form::Write => "",
                    Form::Delivery => "delivery",
                    Form::Fetch => "fetch",
                };
                let options = format!("{options} type={number} op={}", operation.number);
                let expected =
                    |there: &[u8], operand: &[u8]| integer.map(there, operand, operation.result);
                atomic(stage, integer, &options, *form == Form::Fetch, expected)?;
            }
        }
    }
    Ok(())
}

/// A compared operation: its number in OFI, and whether the operand is written, by comparison of
/// the compare operand with what is there.
struct Comparison {
    number: u64,
    holds: fn(i128, i128) -> bool,
}

const COMPARED: [Comparison; 6] = [
    Comparison { number: 12, holds: |compare, there| compare == there },
    Comparison { number: 13, holds: |compare, there| compare != there },
    Comparison { number: 14, holds: |compare, there| compare <= there },
    Comparison { number: 15, holds: |compare, there| compare < there },
    Comparison { number: 16, holds: |compare, there| compare >= there },
    Comparison { number: 17, holds: |compare, there| compare > there },
];
/// `FI_MSWAP`.
const MASKED: u64 = 18;

fn compare(stage: &mut Stage<'_>) -> Result<()> {
    for number in 0..TYPES {
        let integer = Integer::of(number);
        for Comparison { number: op, holds } in COMPARED {
            // With what is there, whose seed is the next number, and with something else.
            for seed in [stage.last_id() + 1, 7_777] {
                let compare = pattern(seed, WORKED);
                let options = format!("type={number} op={op} compare-seed={seed}");
                let expected = |there: &[u8], operand: &[u8]| {
                    let width = integer.bytes;
                    let elements = compare.chunks(width).zip(there.chunks(width));
                    let elements = elements.zip(operand.chunks(width));
                    let left = elements.flat_map(|((compare, there), operand)| {
                        match holds(integer.value(compare), integer.value(there)) {
                            true => operand,
                            false => there,
                        }
                    });
                    left.copied().collect()
                };
                atomic(stage, integer, &options, true, expected)?;
            }
        }
        let mask = pattern(4_242, WORKED);
        let options = format!("type={number} op={MASKED} compare-seed=4242");
        let expected = |there: &[u8], operand: &[u8]| {
            let bytes = there.iter().zip(operand).zip(&mask);
            bytes.map(|((there, operand), mask)| operand & mask | there & !mask).collect()
        };
        atomic(stage, integer, &options, true, expected)?;
    }
    Ok(())
}

/// One operation on the pattern of a seed; what it leaves and what it brings back are compared.
fn atomic(
    stage: &mut Stage<'_>,
    integer: Integer,
    options: &str,
    fetches: bool,
    expected: impl Fn(&[u8], &[u8]) -> Vec<u8>,
) -> Result<()> {
    let seed = stage.new_id();
    let Exposed { id: target, address, key } =
        stage.expose(Side::Receiver, WORKED as u64, Some(seed))?;
    let (there, id) = (pattern(seed, WORKED), stage.new_id());
    let operand = pattern(id, WORKED);
    let command = format!(
        "atomic id={id} to=0 size={WORKED} seed={id} address={address:#x} key={key:#x} width={} \
         {options}",
        integer.bytes
    );
    stage.sender()?.run_ok(&command)?;
    let completion = stage.sender()?.completion_of(id)?;
    ensure!(completion.succeeded(), "`{command}`: seen `{}`", completion.record);
    ensure!(completion.has("atomic"), "`{command}`: seen `{}`", completion.record);
    if !fetches {
        stage.settle()?;
    }
    let left = stage.show(Side::Receiver, &format!("id={target}"))?;
    let wanted = hex(&expected(&there, &operand));
    ensure!(left == wanted, "`{command}`:\nexpected {wanted}\nseen     {left}");
    if fetches {
        let back = stage.show(Side::Sender, &format!("id={id} result"))?;
        let wanted = hex(&there);
        ensure!(back == wanted, "`{command}` brings back:\nexpected {wanted}\nseen     {back}");
    }
    stage.receiver()?.run_ok(&format!("forget id={target}"))?;
    stage.sender()?.run_ok(&format!("forget id={id}"))?;
    Ok(())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_parse_with_their_sign() {
        assert_eq!(Integer::of(0).value(&[0xff]), -1);
        assert_eq!(Integer::of(1).value(&[0xff]), 255);
        assert_eq!(Integer::of(6).value(&[0, 0, 0, 0, 0, 0, 0, 0x80]), i128::from(i64::MIN));
        let sum = Integer::of(2).map(&[0xff, 0x7f], &[1, 0], i128::wrapping_add);
        assert_eq!(sum, [0, 0x80], "wrapped");
    }
}
