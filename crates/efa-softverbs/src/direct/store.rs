//! Decodes the instruction with which a program writes to a doorbell, so that the write can be done for it.
//!
//! Compilers make few forms of a 32-bit store. Another one is not decoded; then the doorbell can't be trapped.

/// A 32-bit store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    pub(crate) value: Value,
    /// Bytes of the instruction.
    pub(crate) length: usize,
}

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The lower half of a register, by the number that the instruction has for it.
    Register(u8),
    Constant(u32),
}

/// Decodes an instruction of x86-64; `byte` reads its bytes. It reads none behind its end.
#[cfg(any(test, target_arch = "x86_64"))]
pub(crate) fn x86_64(byte: impl Fn(usize) -> u8) -> Option<Store> {
    const REX: u8 = 0x40;
    const WIDE: u8 = 8;
    const REGISTER_HIGH: u8 = 4;
    let rex = match byte(0) {
        prefix if prefix & 0xf0 == REX => Some(prefix),
        _ => None,
    };
    let mut length = usize::from(rex.is_some());
    let rex = rex.unwrap_or(0);
    if rex & WIDE != 0 {
        return None;
    }
    let opcode = byte(length);
    if !matches!(opcode, 0x89 | 0xc7) {
        return None;
    }
    length += 1;
    let operands = byte(length);
    length += 1;
    let (form, register, base) = (operands >> 6, operands >> 3 & 7, operands & 7);
    let mut has_wide_offset = form == 2 || form == 0 && base == 5;
    match (form, base) {
        (3, _) => return None,
        // With an index. Without a base there is an offset.
        (_, 4) => {
            has_wide_offset |= form == 0 && byte(length) & 7 == 5;
            length += 1;
        }
        _ => {}
    }
    length += match form {
        _ if has_wide_offset => 4,
        1 => 1,
        _ => 0,
    };
    let value = match opcode {
        0x89 => Value::Register(register | if rex & REGISTER_HIGH != 0 { 8 } else { 0 }),
        _ if register != 0 => return None,
        _ => {
            let constant = std::array::from_fn(|at| byte(length + at));
            length += 4;
            Value::Constant(u32::from_le_bytes(constant))
        }
    };
    Some(Store { value, length })
}

/// Decodes an instruction of AArch64.
#[cfg(any(test, target_arch = "aarch64"))]
pub(crate) fn aarch64(instruction: u32) -> Option<Store> {
    // Number 31 is zero, not a register.
    const ZERO: u8 = 31;
    let register = (instruction & 31) as u8;
    let known = [
        // str w, [x, offset]; stur; str w, [x, x]; stlr.
        (0xffc0_0000, 0xb900_0000),
        (0xffe0_0c00, 0xb800_0000),
        (0xffe0_0c00, 0xb820_0800),
        (0xffff_fc00, 0x889f_fc00),
    ];
    let is_store = known.iter().any(|&(mask, code)| instruction & mask == code);
    let value = match register {
        ZERO => Value::Constant(0),
        register => Value::Register(register),
    };
    is_store.then_some(Store { value, length: 4 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(code: &[u8]) -> Option<Store> {
        let store = x86_64(|at| code[at]);
        assert!(store.is_none_or(|store| store.length == code.len()), "{store:?}");
        store
    }

    #[test]
    fn stores_of_x86_64_have_their_register_and_length() {
        for (code, register) in [
            (&[0x89, 0x02][..], 0),                  // mov %eax,(%rdx)
            (&[0x89, 0x4a, 0x08], 1),                // mov %ecx,0x8(%rdx)
            (&[0x89, 0xb2, 0, 1, 0, 0], 6),          // mov %esi,0x100(%rdx)
            (&[0x44, 0x89, 0x38], 15),               // mov %r15d,(%rax)
            (&[0x45, 0x89, 0x04, 0x24], 8),          // mov %r8d,(%r12)
            (&[0x41, 0x89, 0x45, 0x00], 0),          // mov %eax,0x0(%r13)
            (&[0x89, 0x04, 0x8a], 0),                // mov %eax,(%rdx,%rcx,4)
            (&[0x89, 0x04, 0x8d, 0, 0, 0, 0], 0),    // mov %eax,0x0(,%rcx,4)
            (&[0x89, 0x05, 0, 0, 0, 0], 0),          // mov %eax,0x0(%rip)
            (&[0x89, 0x84, 0x24, 0x80, 0, 0, 0], 0), // mov %eax,0x80(%rsp)
        ] {
            let value = Value::Register(register);
            assert_eq!(decoded(code), Some(Store { value, length: code.len() }), "{code:02x?}");
        }
        let code = [0xc7, 0x42, 0x04, 0x78, 0x56, 0x34, 0x12]; // movl $0x12345678,0x4(%rdx)
        let value = Value::Constant(0x1234_5678);
        assert_eq!(decoded(&code), Some(Store { value, length: 7 }));
    }

    #[test]
    fn other_instructions_of_x86_64_are_not_decoded() {
        for code in [
            &[0x48, 0x89, 0x02][..],      // mov %rax,(%rdx)
            &[0x66, 0x89, 0x02],          // mov %ax,(%rdx)
            &[0x89, 0xc2],                // mov %eax,%edx
            &[0x8b, 0x02],                // mov (%rdx),%eax
            &[0x87, 0x02],                // xchg %eax,(%rdx)
            &[0xc7, 0x4a, 0, 0, 0, 0, 0], // not defined
        ] {
            assert_eq!(decoded(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn stores_of_aarch64_have_their_register() {
        for (instruction, value) in [
            (0xb900_0041, Value::Register(1)), // str w1, [x2]
            (0xb900_805f, Value::Constant(0)), // str wzr, [x2, #128]
            (0xb81f_c043, Value::Register(3)), // stur w3, [x2, #-4]
            (0xb823_6844, Value::Register(4)), // str w4, [x2, x3]
            (0x889f_fc45, Value::Register(5)), // stlr w5, [x2]
        ] {
            assert_eq!(aarch64(instruction), Some(Store { value, length: 4 }), "{instruction:#x}");
        }
        for instruction in [0xf900_0041, 0xb940_0041, 0xd503_201f] {
            assert_eq!(aarch64(instruction), None, "{instruction:#x}");
        }
    }
}
