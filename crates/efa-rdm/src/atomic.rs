//! Atomic data types and operations and their arithmetic. RTA packets carry libfabric's numbers for
//! types and operations (section 3.3).
//!
//! |                                      | integer | real | complex | write | fetch | compare |
//! |--------------------------------------|---------|------|---------|-------|-------|---------|
//! | Min, Max                             | yes     | yes  |         | yes   | yes   |         |
//! | Sum, Prod, Lor, Land, Lxor           | yes     | yes  | yes     | yes   | yes   |         |
//! | Bor, Band, Bxor                      | yes     |      |         | yes   | yes   |         |
//! | Read                                 | yes     | yes  | yes     |       | yes   |         |
//! | Write                                | yes     | yes  | yes     | yes   | yes   |         |
//! | CompareSwap, CompareSwapNe           | yes     | yes  | yes     |       |       | yes     |
//! | CompareSwapLe, …Lt, …Ge, …Gt         | yes     | yes  |         |       |       | yes     |
//! | MaskedSwap                           | yes     |      |         |       |       | yes     |

use std::cmp::Ordering;
use std::fmt;

use rustc_apfloat::Float;

/// The type of an atomic's elements (`enum fi_datatype`), in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Datatype {
    /// `i8`.
    Int8 = 0,
    /// `u8`.
    Uint8 = 1,
    /// `i16`.
    Int16 = 2,
    /// `u16`.
    Uint16 = 3,
    /// `i32`.
    Int32 = 4,
    /// `u32`.
    Uint32 = 5,
    /// `i64`.
    Int64 = 6,
    /// `u64`.
    Uint64 = 7,
    /// `f32`.
    Float = 8,
    /// `f64`.
    Double = 9,
    /// Real and imaginary part, each `f32`.
    FloatComplex = 10,
    /// Real and imaginary part, each `f64`.
    DoubleComplex = 11,
    /// C's `long double` in 16 bytes: 80 bits and padding on x86, 128 bits elsewhere.
    LongDouble = 12,
    /// Real and imaginary part, each a [`LongDouble`](Self::LongDouble).
    LongDoubleComplex = 13,
}

impl Datatype {
    /// All types that libfabric's EFA provider supports; the index is libfabric's number.
    pub const ALL: &'static [Self] = &[
        Self::Int8,
        Self::Uint8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float,
        Self::Double,
        Self::FloatComplex,
        Self::DoubleComplex,
        Self::LongDouble,
        Self::LongDoubleComplex,
    ];

    /// libfabric's number for the type (`enum fi_datatype`).
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The type with libfabric's number `code`.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float => 4,
            Self::Int64 | Self::Uint64 | Self::Double | Self::FloatComplex => 8,
            Self::DoubleComplex | Self::LongDouble => 16,
            Self::LongDoubleComplex => LARGEST,
        }
    }

    const fn is_integer(self) -> bool {
        self.code() <= Self::Uint64.code()
    }

    const fn is_complex(self) -> bool {
        matches!(self, Self::FloatComplex | Self::DoubleComplex | Self::LongDoubleComplex)
    }
}

/// Size of the largest element in bytes.
pub(crate) const LARGEST: usize = 32;

/// The operation that an atomic applies to each element of the target (`enum fi_op`). The new
/// element is:
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum AtomicOp {
    /// The smaller of target and operand.
    Min = 0,
    /// The greater of target and operand.
    Max = 1,
    /// Target plus operand; integers wrap around.
    Sum = 2,
    /// Target times operand; integers wrap around.
    Prod = 3,
    /// Logical or: 1 if target or operand is nonzero, else 0.
    Lor = 4,
    /// Logical and: 1 if target and operand are nonzero, else 0.
    Land = 5,
    /// Bitwise or.
    Bor = 6,
    /// Bitwise and.
    Band = 7,
    /// Logical exclusive or: 1 if exactly one of target and operand is nonzero, else 0.
    Lxor = 8,
    /// Bitwise exclusive or.
    Bxor = 9,
    /// The target, unchanged.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand if comparand and target are equal in all bits, padding excluded.
    CompareSwap = 12,
    /// The operand if comparand ≠ target.
    CompareSwapNe = 13,
    /// The operand if comparand ≤ target.
    CompareSwapLe = 14,
    /// The operand if comparand < target.
    CompareSwapLt = 15,
    /// The operand if comparand ≥ target.
    CompareSwapGe = 16,
    /// The operand if comparand > target.
    CompareSwapGt = 17,
    /// The operand's bits where the comparand has a 1, the target's bits elsewhere.
    MaskedSwap = 18,
}

impl AtomicOp {
    /// All operations; the index is libfabric's number.
    pub const ALL: &'static [Self] = &[
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Prod,
        Self::Lor,
        Self::Land,
        Self::Bor,
        Self::Band,
        Self::Lxor,
        Self::Bxor,
        Self::Read,
        Self::Write,
        Self::CompareSwap,
        Self::CompareSwapNe,
        Self::CompareSwapLe,
        Self::CompareSwapLt,
        Self::CompareSwapGe,
        Self::CompareSwapGt,
        Self::MaskedSwap,
    ];

    /// libfabric's number for the operation (`enum fi_op`).
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The operation with libfabric's number `code`.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// The operands of an atomic, and whether it returns the previous values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicKind {
    /// An operand; returns nothing (`fi_atomic`).
    Write,
    /// An operand; returns the target's previous values (`fi_fetch_atomic`).
    Fetch,
    /// An operand and a comparand; returns the target's previous values (`fi_compare_atomic`).
    Compare,
}

/// As in `no atomic without a result does …`.
impl fmt::Display for AtomicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "without a result",
            Self::Fetch => "with a result and no comparand",
            Self::Compare => "with a result and a comparand",
        })
    }
}

impl AtomicKind {
    /// Whether `op` can be used with this kind and with `datatype`.
    #[must_use]
    pub const fn allows(self, op: AtomicOp, datatype: Datatype) -> bool {
        use AtomicOp as Op;
        let kind = match op {
            Op::Read => matches!(self, Self::Fetch),
            Op::CompareSwap
            | Op::CompareSwapNe
            | Op::CompareSwapLe
            | Op::CompareSwapLt
            | Op::CompareSwapGe
            | Op::CompareSwapGt
            | Op::MaskedSwap => matches!(self, Self::Compare),
            _ => !matches!(self, Self::Compare),
        };
        let datatype = match op {
            Op::Bor | Op::Band | Op::Bxor | Op::MaskedSwap => datatype.is_integer(),
            Op::Min
            | Op::Max
            | Op::CompareSwapLe
            | Op::CompareSwapLt
            | Op::CompareSwapGe
            | Op::CompareSwapGt => !datatype.is_complex(),
            _ => true,
        };
        kind && datatype
    }
}

/// Applies `op` to one element in place. All slices have the element's size; only compare
/// operations use `comparand`.
pub(crate) fn apply(
    op: AtomicOp,
    datatype: Datatype,
    target: &mut [u8],
    operand: &[u8],
    comparand: &[u8],
) {
    let bitwise = |target: &mut [u8], f: fn(u8, u8, u8) -> u8| {
        for ((target, operand), comparand) in target.iter_mut().zip(operand).zip(comparand) {
            *target = f(*target, *operand, *comparand);
        }
    };
    match op {
        AtomicOp::Read => {}
        AtomicOp::Write => target.copy_from_slice(operand),
        AtomicOp::Bor => bitwise(target, |t, o, _| t | o),
        AtomicOp::Band => bitwise(target, |t, o, _| t & o),
        AtomicOp::Bxor => bitwise(target, |t, o, _| t ^ o),
        AtomicOp::MaskedSwap => bitwise(target, |t, o, c| (o & c) | (t & !c)),
        AtomicOp::CompareSwap => {
            if significant(datatype, target).eq(significant(datatype, comparand)) {
                target.copy_from_slice(operand);
            }
        }
        _ => match datatype {
            Datatype::Int8 => numeric::<i8>(op, target, operand, comparand),
            Datatype::Uint8 => numeric::<u8>(op, target, operand, comparand),
            Datatype::Int16 => numeric::<i16>(op, target, operand, comparand),
            Datatype::Uint16 => numeric::<u16>(op, target, operand, comparand),
            Datatype::Int32 => numeric::<i32>(op, target, operand, comparand),
            Datatype::Uint32 => numeric::<u32>(op, target, operand, comparand),
            Datatype::Int64 => numeric::<i64>(op, target, operand, comparand),
            Datatype::Uint64 => numeric::<u64>(op, target, operand, comparand),
            Datatype::Float => numeric::<f32>(op, target, operand, comparand),
            Datatype::Double => numeric::<f64>(op, target, operand, comparand),
            Datatype::FloatComplex => numeric::<Complex<f32>>(op, target, operand, comparand),
            Datatype::DoubleComplex => numeric::<Complex<f64>>(op, target, operand, comparand),
            Datatype::LongDouble => numeric::<LongDouble>(op, target, operand, comparand),
            Datatype::LongDoubleComplex => {
                numeric::<Complex<LongDouble>>(op, target, operand, comparand);
            }
        },
    }
}

/// The bytes of an element, without the padding of a long double.
fn significant(datatype: Datatype, bytes: &[u8]) -> impl Iterator<Item = &u8> {
    let long = matches!(datatype, Datatype::LongDouble | Datatype::LongDoubleComplex);
    let (step, used) = if long { (16, LongDouble::BYTES) } else { (bytes.len(), bytes.len()) };
    bytes.chunks(step).flat_map(move |part| &part[..used])
}

/// The arithmetic of one element type.
trait Number: Copy {
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn truth(truth: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn equals(self, other: Self) -> bool;
    /// `None` if one of them is NaN, or the type has no order.
    fn order(self, other: Self) -> Option<Ordering>;

    fn is_true(self) -> bool {
        !self.equals(Self::truth(false))
    }
}

fn numeric<N: Number>(op: AtomicOp, target: &mut [u8], operand: &[u8], comparand: &[u8]) {
    let (old, operand) = (N::load(target), N::load(operand));
    let swap_if = |wanted: fn(Ordering) -> bool| {
        let swap = N::load(comparand).order(old).is_some_and(wanted);
        if swap { operand } else { old }
    };
    let new = match op {
        AtomicOp::Min if old.order(operand) == Some(Ordering::Greater) => operand,
        AtomicOp::Max if old.order(operand) == Some(Ordering::Less) => operand,
        AtomicOp::Sum => old.sum(operand),
        AtomicOp::Prod => old.product(operand),
        AtomicOp::Lor => N::truth(old.is_true() || operand.is_true()),
        AtomicOp::Land => N::truth(old.is_true() && operand.is_true()),
        AtomicOp::Lxor => N::truth(old.is_true() != operand.is_true()),
        AtomicOp::CompareSwapNe if !N::load(comparand).equals(old) => operand,
        AtomicOp::CompareSwapLe => swap_if(Ordering::is_le),
        AtomicOp::CompareSwapLt => swap_if(Ordering::is_lt),
        AtomicOp::CompareSwapGe => swap_if(Ordering::is_ge),
        AtomicOp::CompareSwapGt => swap_if(Ordering::is_gt),
        // Don't store: that could change the target's padding or a NaN's bits.
        _ => return,
    };
    new.store(target);
}

macro_rules! integers {
    ($($type:ty)*) => { $(
        impl Number for $type {
            fn load(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0, Self::from_ne_bytes)
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            fn truth(truth: bool) -> Self {
                Self::from(truth)
            }
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn equals(self, other: Self) -> bool {
                self == other
            }
            fn order(self, other: Self) -> Option<Ordering> {
                Some(self.cmp(&other))
            }
        }
    )* };
}

integers!(i8 u8 i16 u16 i32 u32 i64 u64);

/// A type that can be a part of a complex number; their product needs `negative`.
trait Real: Number {
    const BYTES: usize;
    fn negative(self) -> Self;
}

macro_rules! reals {
    ($($type:ty)*) => { $(
        impl Number for $type {
            fn load(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0.0, Self::from_ne_bytes)
            }
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            fn truth(truth: bool) -> Self {
                Self::from(truth)
            }
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn equals(self, other: Self) -> bool {
                self == other
            }
            fn order(self, other: Self) -> Option<Ordering> {
                self.partial_cmp(&other)
            }
        }

        impl Real for $type {
            const BYTES: usize = size_of::<$type>();
            fn negative(self) -> Self {
                -self
            }
        }
    )* };
}

reals!(f32 f64);

/// C's `long double`.
#[derive(Clone, Copy)]
struct LongDouble(Extended);

#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
type Extended = rustc_apfloat::ieee::X87DoubleExtended;
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
type Extended = rustc_apfloat::ieee::Quad;

impl LongDouble {
    /// Size in bytes without padding.
    const BYTES: usize = Extended::BITS / 8;
}

impl Number for LongDouble {
    fn load(bytes: &[u8]) -> Self {
        let mut bits = [0; 16];
        bits[..Self::BYTES].copy_from_slice(&bytes[..Self::BYTES]);
        Self(Extended::from_bits(u128::from_ne_bytes(bits)))
    }
    fn store(self, bytes: &mut [u8]) {
        bytes[..Self::BYTES].copy_from_slice(&self.0.to_bits().to_ne_bytes()[..Self::BYTES]);
    }
    fn truth(truth: bool) -> Self {
        Self(Extended::from_u128(truth.into()).value)
    }
    fn sum(self, other: Self) -> Self {
        Self((self.0 + other.0).value)
    }
    fn product(self, other: Self) -> Self {
        Self((self.0 * other.0).value)
    }
    fn equals(self, other: Self) -> bool {
        self.0 == other.0
    }
    fn order(self, other: Self) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl Real for LongDouble {
    const BYTES: usize = 16;
    fn negative(self) -> Self {
        Self(-self.0)
    }
}

/// A complex number: real and imaginary part.
#[derive(Clone, Copy)]
struct Complex<N>(N, N);

impl<N: Real> Number for Complex<N> {
    fn load(bytes: &[u8]) -> Self {
        let (real, imaginary) = bytes.split_at(N::BYTES);
        Self(N::load(real), N::load(imaginary))
    }
    fn store(self, bytes: &mut [u8]) {
        let (real, imaginary) = bytes.split_at_mut(N::BYTES);
        self.0.store(real);
        self.1.store(imaginary);
    }
    fn truth(truth: bool) -> Self {
        Self(N::truth(truth), N::truth(false))
    }
    fn sum(self, other: Self) -> Self {
        Self(self.0.sum(other.0), self.1.sum(other.1))
    }
    fn product(self, other: Self) -> Self {
        let (a, b, c, d) = (self.0, self.1, other.0, other.1);
        Self(a.product(c).sum(b.product(d).negative()), a.product(d).sum(b.product(c)))
    }
    fn equals(self, other: Self) -> bool {
        self.0.equals(other.0) && self.1.equals(other.1)
    }
    fn order(self, _: Self) -> Option<Ordering> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies an operation to values of a type and returns the new target.
    fn bytes_of<const N: usize>(
        op: AtomicOp,
        datatype: Datatype,
        [target, operand, comparand]: [[u8; N]; 3],
    ) -> [u8; N] {
        let mut result = target;
        apply(op, datatype, &mut result, &operand, &comparand);
        result
    }

    /// The bytes of a long double with an integer value; the padding is 0xee.
    fn long(value: i64) -> [u8; 16] {
        let mut bytes = [0xee; 16];
        LongDouble(Extended::from_i128(value.into()).value).store(&mut bytes);
        bytes
    }

    // conformance: A154
    #[test]
    fn datatype_and_op_codes_are_libfabrics() {
        for (code, &datatype) in (0..).zip(Datatype::ALL) {
            assert_eq!((datatype.code(), Datatype::from_code(code)), (code, Some(datatype)));
        }
        for (code, &op) in (0..).zip(AtomicOp::ALL) {
            assert_eq!((op.code(), AtomicOp::from_code(code)), (code, Some(op)));
        }
        assert_eq!((AtomicOp::CompareSwap.code(), AtomicOp::MaskedSwap.code()), (12, 18));
        assert_eq!((Datatype::Double.code(), Datatype::LongDoubleComplex.code()), (9, 13));
        for beyond in [14, 15, 19, u32::MAX] {
            assert_eq!(Datatype::from_code(beyond), None);
        }
        assert_eq!(AtomicOp::from_code(19), None);
    }

    // conformance: A154
    #[test]
    fn valid_op_and_datatype_pairs_are_as_many_as_in_libfabric() {
        let count = |kind: AtomicKind| {
            let pairs =
                AtomicOp::ALL.iter().flat_map(|&op| Datatype::ALL.iter().map(move |&d| (op, d)));
            pairs.filter(|(op, datatype)| kind.allows(*op, *datatype)).count()
        };
        // Min and Max: 11 types each. Sum, Prod, Lor, Land, Lxor, Write: 14. Bor, Band, Bxor: 8.
        assert_eq!(count(AtomicKind::Write), 2 * 11 + 6 * 14 + 3 * 8);
        assert_eq!(count(AtomicKind::Fetch), 2 * 11 + 7 * 14 + 3 * 8);
        assert_eq!(count(AtomicKind::Compare), 2 * 14 + 4 * 11 + 8);
    }

    // conformance: A154
    #[test]
    fn integer_ops_wrap_on_overflow_and_respect_signedness() {
        let of = |op, t: i16, o: i16| {
            i16::from_ne_bytes(bytes_of(op, Datatype::Int16, [t, o, 0].map(i16::to_ne_bytes)))
        };
        use AtomicOp as Op;
        let results = [Op::Min, Op::Max, Op::Sum, Op::Prod, Op::Lor, Op::Land, Op::Lxor]
            .map(|op| (of(op, -5, 3), of(op, i16::MAX, 2), of(op, 0, 7)));
        assert_eq!(
            results,
            [
                (-5, 2, 0),
                (3, i16::MAX, 7),
                (-2, i16::MIN + 1, 7),
                (-15, -2, 0),
                (1, 1, 1),
                (1, 1, 0),
                (0, 0, 1),
            ]
        );
        let results =
            [Op::Bor, Op::Band, Op::Bxor, Op::Write, Op::Read].map(|op| of(op, 0b1100, 0b1010));
        assert_eq!(results, [0b1110, 0b1000, 0b0110, 0b1010, 0b1100]);
        let unsigned = bytes_of(Op::Min, Datatype::Uint16, [-5_i16, 3, 0].map(i16::to_ne_bytes));
        assert_eq!(u16::from_ne_bytes(unsigned), 3, "-5 as an unsigned value is large");
    }

    // conformance: A154 A158
    #[test]
    fn compare_swap_ops_compare_the_comparand_with_the_target() {
        use AtomicOp as Op;
        for datatype in [Datatype::Int32, Datatype::Uint32] {
            let swapped = |op, target: u32, comparand: u32| {
                bytes_of(op, datatype, [target, 99, comparand].map(u32::to_ne_bytes))
                    == 99_u32.to_ne_bytes()
            };
            for (op, below, equal, above) in [
                (Op::CompareSwap, false, true, false),
                (Op::CompareSwapNe, true, false, true),
                (Op::CompareSwapLe, true, true, false),
                (Op::CompareSwapLt, true, false, false),
                (Op::CompareSwapGe, false, true, true),
                (Op::CompareSwapGt, false, false, true),
            ] {
                let results = [4, 5, 6].map(|comparand| swapped(op, 5, comparand));
                assert_eq!(results, [below, equal, above], "{op:?}");
            }
        }
        let masked =
            bytes_of(Op::MaskedSwap, Datatype::Uint8, [[0b1111_0000], [0b0101_0101], [0b11]]);
        assert_eq!(masked, [0b1111_0001]);
    }

    // conformance: A154
    #[test]
    fn float_ops_compute_and_ordered_ops_with_nan_keep_the_target() {
        use AtomicOp as Op;
        let of = |op, t: f64, o: f64, c: f64| {
            f64::from_ne_bytes(bytes_of(op, Datatype::Double, [t, o, c].map(f64::to_ne_bytes)))
        };
        assert_eq!(of(Op::Sum, 1.5, 2.25, 0.0), 3.75);
        assert_eq!(of(Op::Prod, 1.5, -2.0, 0.0), -3.0);
        assert_eq!((of(Op::Min, 1.5, -2.0, 0.0), of(Op::Max, 1.5, -2.0, 0.0)), (-2.0, 1.5));
        assert_eq!((of(Op::Lor, 0.0, 0.5, 0.0), of(Op::Land, 0.0, 0.5, 0.0)), (1.0, 0.0));
        for op in [Op::Min, Op::Max, Op::CompareSwapLe, Op::CompareSwapGt] {
            assert_eq!(of(op, 1.0, f64::NAN, f64::NAN), 1.0, "{op:?}");
        }
        assert_eq!(of(Op::CompareSwapNe, 1.0, 2.0, f64::NAN), 2.0);
        assert_eq!(of(Op::CompareSwap, -0.0, 2.0, 0.0), 0.0, "-0.0 and 0.0 differ in a bit");
        let float = bytes_of(Op::Sum, Datatype::Float, [0.5_f32, 0.25, 0.0].map(f32::to_ne_bytes));
        assert_eq!(f32::from_ne_bytes(float), 0.75);
    }

    // conformance: A154
    #[test]
    fn complex_ops_compute_sum_product_lxor_and_comparison() {
        let pair = |re: f32, im: f32| {
            let mut bytes = [0; 8];
            Complex(re, im).store(&mut bytes);
            bytes
        };
        let of = |op, t, o, c| bytes_of(op, Datatype::FloatComplex, [t, o, c]);
        let (a, b, zero) = (pair(1.0, 2.0), pair(3.0, -1.0), pair(0.0, 0.0));
        assert_eq!(of(AtomicOp::Sum, a, b, zero), pair(4.0, 1.0));
        assert_eq!(of(AtomicOp::Prod, a, b, zero), pair(5.0, 5.0));
        assert_eq!(of(AtomicOp::Lxor, pair(0.0, 3.0), zero, zero), pair(1.0, 0.0));
        assert_eq!(of(AtomicOp::CompareSwapNe, a, b, a), a);
        assert_eq!(of(AtomicOp::CompareSwapNe, a, b, b), b);
    }

    // conformance: A154
    #[test]
    fn long_double_ops_have_full_precision_and_ignore_padding() {
        let of = |op, t, o, c| bytes_of(op, Datatype::LongDouble, [t, o, c]);
        // 2^62 + 1 doesn't fit a double.
        let large = (1 << 62) + 1;
        let sum = of(AtomicOp::Sum, long(large), long(2), long(0));
        assert_eq!(sum, long(large + 2));
        assert_eq!(of(AtomicOp::Prod, long(-3), long(1 << 40), long(0)), long(-3 << 40));
        assert_eq!(of(AtomicOp::Max, long(-3), long(2), long(0)), long(2));
        let mut other_padding = long(7);
        other_padding[LongDouble::BYTES..].fill(0);
        assert_eq!(of(AtomicOp::CompareSwap, long(7), long(9), other_padding), long(9));
        let mut both = [0; 32];
        Complex(LongDouble::load(&long(1)), LongDouble::load(&long(2))).store(&mut both);
        let square = bytes_of(AtomicOp::Prod, Datatype::LongDoubleComplex, [both; 3]);
        assert_eq!((&square[..10], &square[16..26]), (&long(-3)[..10], &long(4)[..10]));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_double_has_the_x87_bit_layout() {
        // 1.0: exponent 16383, leading bit set.
        assert_eq!(long(1)[..10], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
    }
}
