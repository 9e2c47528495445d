//! The functions that the libfabric which loaded us has for its providers.
//!
//! They are looked up and not linked: the library is loaded by libfabric, whose symbols need not be global, and the
//! tests of this crate run without it.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi::fi_info;

/// What is used of libfabric.
pub(crate) struct Libfabric {
    version: unsafe extern "C" fn() -> u32,
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
}

static LIBFABRIC: OnceLock<Option<Libfabric>> = OnceLock::new();

/// The loaded libfabric, `None` if this process has none.
pub(crate) fn libfabric() -> Option<&'static Libfabric> {
    LIBFABRIC.get_or_init(Libfabric::find).as_ref()
}

/// The text of an error number.
pub(crate) fn strerror(errno: c_int) -> &'static CStr {
    let Some(found) = symbol(c"fi_strerror") else { return c"an error" };
    // SAFETY: the function of libfabric has this type in all its releases, and its texts live as long as it.
    unsafe {
        let strerror = std::mem::transmute::<
            NonNull<c_void>,
            unsafe extern "C" fn(c_int) -> *const c_char,
        >(found);
        let text = strerror(errno);
        if text.is_null() { c"an error" } else { CStr::from_ptr(text) }
    }
}

/// The address of a symbol of libfabric.
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        // SAFETY: the name is a string. The library is only looked for, and stays loaded as long as we are: it
        // loaded us.
        let found = unsafe {
            libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)
        };
        match found.is_null() {
            true => libc::RTLD_DEFAULT.addr(),
            false => found.expose_provenance(),
        }
    });
    let handle = std::ptr::with_exposed_provenance_mut(handle);
    // SAFETY: the handle is that of a loaded library, or the default one; the name is a string.
    NonNull::new(unsafe { libc::dlsym(handle, name.as_ptr()) })
}

impl Libfabric {
    fn find() -> Option<Self> {
        let [version, dupinfo, freeinfo] =
            [symbol(c"fi_version")?, symbol(c"fi_dupinfo")?, symbol(c"fi_freeinfo")?];
        // SAFETY: these are functions of libfabric with these types, in all its releases.
        unsafe {
            Some(Self {
                version: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> u32>(
                    version,
                ),
                dupinfo: std::mem::transmute::<
                    NonNull<c_void>,
                    unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
                >(dupinfo),
                freeinfo: std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn(*mut fi_info)>(
                    freeinfo,
                ),
            })
        }
    }

    /// Its newest API version.
    pub(crate) fn version(&self) -> u32 {
        // SAFETY: it has no arguments and no conditions.
        unsafe { (self.version)() }
    }

    /// An entry of zeros with all its attributes.
    pub(crate) fn allocate_info(&self) -> Option<OwnedInfo<'_>> {
        // SAFETY: null stands for an empty entry.
        let info = unsafe { (self.dupinfo)(std::ptr::null()) };
        Some(OwnedInfo { at: NonNull::new(info)?, libfabric: self })
    }

    /// A copy of an entry without the ones after it.
    ///
    /// # Safety
    /// `info` is an entry as libfabric's programs make them.
    pub(crate) unsafe fn copy_info(&self, info: *const fi_info) -> Option<OwnedInfo<'_>> {
        // SAFETY: the caller's promise.
        let copy = unsafe { (self.dupinfo)(info) };
        Some(OwnedInfo { at: NonNull::new(copy)?, libfabric: self })
    }
}

/// An entry of libfabric, freed with this unless it is given away.
pub(crate) struct OwnedInfo<'a> {
    at: NonNull<fi_info>,
    libfabric: &'a Libfabric,
}

impl OwnedInfo<'_> {
    pub(crate) fn as_ptr(&self) -> *mut fi_info {
        self.at.as_ptr()
    }

    /// Gives it to the program, which frees it.
    pub(crate) fn into_raw(self) -> *mut fi_info {
        let at = self.at.as_ptr();
        std::mem::forget(self);
        at
    }
}

impl Drop for OwnedInfo<'_> {
    fn drop(&mut self) {
        // SAFETY: libfabric allocated it, and nobody else has it.
        unsafe { (self.libfabric.freeinfo)(self.at.as_ptr()) };
    }
}

/// A copy of a string that C frees; null without memory.
pub(crate) fn string(text: &str) -> *mut c_char {
    // SAFETY: the memory is as long as what is written, and checked.
    unsafe {
        let at = libc::malloc(text.len() + 1).cast::<u8>();
        if !at.is_null() {
            at.copy_from_nonoverlapping(text.as_ptr(), text.len());
            at.add(text.len()).write(0);
        }
        at.cast()
    }
}

/// A copy of bytes that C frees; null without memory.
pub(crate) fn bytes(bytes: &[u8]) -> *mut c_void {
    // SAFETY: as above.
    unsafe {
        let at = libc::malloc(bytes.len().max(1)).cast::<u8>();
        if !at.is_null() {
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        at.cast()
    }
}
