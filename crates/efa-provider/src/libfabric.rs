//! The functions that the libfabric which loaded us has for its providers.
//!
//! They are looked up and not linked: the library is loaded by libfabric, whose symbols need not be global, and the
//! tests of this crate run without it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi::later::fi_domain_attr_2_5;
use crate::abi::{
    FI_PARAM_STRING, FI_VERSION, fi_domain_attr, fi_info, fi_log_level, fi_log_subsys,
    fi_param_type, fi_provider,
};

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

type Define = unsafe extern "C" fn(
    *const fi_provider,
    *const c_char,
    fi_param_type,
    *const c_char,
    ...
) -> c_int;
type Get = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
type LogEnabled = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type Log = unsafe extern "C" fn(
    *const fi_provider,
    fi_log_level,
    fi_log_subsys,
    *const c_char,
    c_int,
    *const c_char,
    ...
);

/// Settings and log of this provider, as libfabric keeps them.
struct Services {
    provider: *mut fi_provider,
    define: Define,
    get: Get,
    log_enabled: LogEnabled,
    log: Log,
}

// SAFETY: the provider's record is never freed, and only libfabric changes it. Its functions may be called by any
// thread.
unsafe impl Send for Services {}
// SAFETY: as above.
unsafe impl Sync for Services {}

static SERVICES: OnceLock<Services> = OnceLock::new();

/// Settings and log are those of this provider from now on. Without libfabric there are none.
pub(crate) fn attach(provider: &'static fi_provider) {
    if let Some(services) = Services::find(provider) {
        let _ = SERVICES.set(services);
    }
}

impl Services {
    fn find(provider: &'static fi_provider) -> Option<Self> {
        let [define, get] = [symbol(c"fi_param_define")?, symbol(c"fi_param_get")?];
        let [log_enabled, log] = [symbol(c"fi_log_enabled")?, symbol(c"fi_log")?];
        // SAFETY: these are functions of libfabric with these types, in all its releases.
        unsafe {
            Some(Self {
                provider: std::ptr::from_ref(provider).cast_mut(),
                define: std::mem::transmute::<NonNull<c_void>, Define>(define),
                get: std::mem::transmute::<NonNull<c_void>, Get>(get),
                log_enabled: std::mem::transmute::<NonNull<c_void>, LogEnabled>(log_enabled),
                log: std::mem::transmute::<NonNull<c_void>, Log>(log),
            })
        }
    }
}

/// Lets libfabric list and read a setting that is a text.
pub(crate) fn define_parameter(name: &str, help: &str) {
    let (Some(of), Ok(name), Ok(help)) = (SERVICES.get(), CString::new(name), CString::new(help))
    else {
        return;
    };
    // SAFETY: libfabric copies the strings; the help is printed by a format of its own. Without memory it has one
    // setting fewer.
    unsafe {
        (of.define)(of.provider, name.as_ptr(), FI_PARAM_STRING, c"%s".as_ptr(), help.as_ptr());
    }
}

/// The value of a setting that was defined; `None` if it isn't set.
pub(crate) fn parameter(name: &str) -> Option<String> {
    let (of, name) = (SERVICES.get()?, CString::new(name).ok()?);
    let mut value: *const c_char = std::ptr::null();
    // SAFETY: settings are defined as texts, so that libfabric stores a pointer to a string, which is copied at
    // once.
    unsafe {
        let found = (of.get)(of.provider, name.as_ptr(), (&raw mut value).cast()) == 0;
        (found && !value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// Whether libfabric logs this.
pub(crate) fn log_enabled(level: fi_log_level, subsystem: fi_log_subsys) -> bool {
    SERVICES.get().is_some_and(|of| {
        // SAFETY: the function has no conditions but the range of its numbers, which are constants of libfabric.
        unsafe { (of.log_enabled)(of.provider, level, subsystem) != 0 }
    })
}

/// Logs a line.
pub(crate) fn log(
    level: fi_log_level,
    subsystem: fi_log_subsys,
    module: &CStr,
    line: c_int,
    text: &CStr,
) {
    let Some(of) = SERVICES.get() else { return };
    // SAFETY: the strings live until the call returns; the text is printed by a format of its own.
    unsafe {
        (of.log)(
            of.provider,
            level,
            subsystem,
            module.as_ptr(),
            line,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// A loaded library, which stays loaded from now on.
fn pin(name: &CStr) -> Option<NonNull<c_void>> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the name is a string, and the library is only looked for.
    NonNull::new(unsafe { libc::dlopen(name.as_ptr(), flags) })
}

/// The file of the library or program that has called this library.
fn caller() -> Option<&'static CStr> {
    let mut frames = [std::ptr::null_mut(); 32];
    // SAFETY: there is room for so many frames.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int) };
    let (base_of_this, _) = library_of((pin as *const ()).cast_mut().cast())?;
    let frames = frames.into_iter().take(usize::try_from(count).ok()?);
    let mut libraries = frames.filter_map(library_of);
    libraries.find(|(base, _)| *base != base_of_this).map(|(_, name)| name)
}

/// Where the library begins that an address is in, and its file.
fn library_of(at: *mut c_void) -> Option<(*mut c_void, &'static CStr)> {
    // SAFETY: zeros are a valid value, and any address may be asked for. The name lives as long as the library is
    // loaded, which is longer than this call of it.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let is_found = libc::dladdr(at, &mut found) != 0 && !found.dli_fname.is_null();
        is_found.then(|| (found.dli_fbase, CStr::from_ptr(found.dli_fname)))
    }
}

/// The address of a symbol of libfabric.
pub(crate) fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    let handle = *HANDLE.get_or_init(|| {
        // A process may have several, each with a name of its own.
        let found = caller().and_then(pin).filter(|found| {
            // SAFETY: the library is loaded, and the name is a string.
            !unsafe { libc::dlsym(found.as_ptr(), c"fi_dupinfo".as_ptr()) }.is_null()
        });
        match found.or_else(|| pin(c"libfabric.so.1")) {
            Some(found) => found.as_ptr().expose_provenance(),
            None => libc::RTLD_DEFAULT.addr(),
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
        unsafe { self.copy_info(std::ptr::null()) }
    }

    /// A copy of an entry without the ones after it.
    ///
    /// # Safety
    /// `info` is an entry as libfabric's programs make them.
    pub(crate) unsafe fn copy_info(&self, info: *const fi_info) -> Option<OwnedInfo<'_>> {
        // SAFETY: the caller's promise.
        let copy = unsafe { (self.dupinfo)(info) };
        let copy = OwnedInfo { at: NonNull::new(copy)?, libfabric: self };
        if self.version() < LONGER_DOMAIN_ATTRIBUTES {
            // SAFETY: libfabric allocated the copy, and nobody else has it.
            unsafe { lengthen(&mut *copy.as_ptr()) }?;
        }
        Some(copy)
    }
}

/// The first release whose attributes of a domain are as long as [`fi_domain_attr_2_5`], or longer.
const LONGER_DOMAIN_ATTRIBUTES: u32 = FI_VERSION(2, 5);

/// Makes the attributes of the domain as long as release 2.5 has them, which an older libfabric has allocated: it may not
/// be the one that the entry goes to.
///
/// # Safety
/// The attributes are null or were allocated by C, and nobody else has them.
unsafe fn lengthen(info: &mut fi_info) -> Option<()> {
    if info.domain_attr.is_null() {
        return Some(());
    }
    // SAFETY: zeroed memory of C, which begins with the attributes that all releases have.
    unsafe {
        let long = libc::calloc(1, size_of::<fi_domain_attr_2_5>()).cast::<fi_domain_attr>();
        NonNull::new(long)?.write(info.domain_attr.read());
        libc::free(info.domain_attr.cast());
        info.domain_attr = long;
    }
    Some(())
}

/// An entry of libfabric, freed with this unless it is given away.
pub(crate) struct OwnedInfo<'a> {
    at: NonNull<fi_info>,
    libfabric: &'a Libfabric,
}

// SAFETY: it is memory that any thread may free, and is changed by its owner alone.
unsafe impl Send for OwnedInfo<'_> {}

// SAFETY: as above.
unsafe impl Sync for OwnedInfo<'_> {}

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

/// Replaces bytes that C frees, such as an address of an entry.
///
/// # Safety
/// `at` is null or was allocated by C, and nobody else has it.
pub(crate) unsafe fn replace_bytes(at: &mut *mut c_void, new: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { libc::free(*at) };
    *at = bytes(new);
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
