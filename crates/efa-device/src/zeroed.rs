//! Memory of zeros, or an error where the system has none.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::slice_from_raw_parts_mut;

use crate::DeviceError;

/// The error number of Linux for want of memory.
const ENOMEM: i32 = 12;

/// Allocates `length` bytes, all zero. The system takes pages for them when they are first used.
///
/// # Errors
/// [`DeviceError::System`] if there is too little memory or address space, which `vec![0; length]` ends the process for.
pub fn zeroed(length: usize) -> Result<Box<[u8]>, DeviceError> {
    let lacking = || DeviceError::System {
        operation: format!("allocating {length} bytes"),
        errno: ENOMEM,
        reason: "out of memory (errno 12)".into(),
    };
    if length == 0 {
        return Ok(Box::default());
    }
    let layout = Layout::array::<u8>(length).map_err(|_| lacking())?;
    // SAFETY: the layout's size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(lacking());
    }
    // SAFETY: the global allocator returned memory of the layout of these bytes, which are initialised, and nobody else
    // has it.
    Ok(unsafe { Box::from_raw(slice_from_raw_parts_mut(memory, length)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shortage;

    #[test]
    fn memory_is_zeros_of_the_length_and_too_much_is_an_error() {
        for length in [0, 1, 1 << 20] {
            let memory = zeroed(length).unwrap();
            assert!(memory.len() == length && memory.iter().all(|&byte| byte == 0));
        }
        for length in [usize::MAX, isize::MAX as usize, 1 << 48] {
            let error = zeroed(length).unwrap_err();
            assert_eq!(error.shortage(), Some(Shortage::Memory));
            assert!(error.to_string().starts_with(&format!("allocating {length} bytes failed")));
        }
    }
}
