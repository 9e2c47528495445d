//! libibverbs and libefa, loaded when the first interface is looked for.
//!
//! ```text
//!   libraries() ─► SharedObject::open ─┬─ the process has the functions already (LD_PRELOAD): those
//!                                      └─ dlopen libibverbs.so.1, libefa.so.1
//!                    │
//!                    └─► Libibverbs, Libefa: a function pointer each, by name and symbol version
//! ```
//!
//! Calls go through these pointers, or through those in the objects of the libraries (`ibv_qp_ex`,
//! `ibv_cq_ex`); no symbol is looked up after the load. The libraries stay loaded until the process
//! ends.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::{transmute, zeroed};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::abi::*;

/// The first release of rdma-core that has every function.
const FIRST_RELEASE: u32 = 43;

/// A function of a C library with its symbol version, as `nm -D` prints it:
/// `efadv_create_cq@EFA_1.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name of the function.
    pub name: &'static str,
    /// Version of the symbol.
    pub version: &'static str,
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// Why a library of rdma-core can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not installed, or the dynamic loader doesn't find it.
    #[error("{reason}: install {package} (rdma-core)")]
    Missing {
        /// File name of the library.
        library: &'static str,
        /// The package of Debian and Ubuntu that has it.
        package: &'static str,
        /// What the dynamic loader says.
        reason: String,
    },
    /// It lacks functions.
    #[error(
        "{} is too old, it lacks {}: install {package} of rdma-core {FIRST_RELEASE} or newer",
        .path.display(),
        Listed(.missing)
    )]
    TooOld {
        /// The file.
        path: PathBuf,
        /// The package of Debian and Ubuntu that has it.
        package: &'static str,
        /// The functions that it lacks.
        missing: Vec<Symbol>,
    },
}

/// Symbols separated by commas.
struct Listed<'a>(&'a [Symbol]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.0.iter().enumerate() {
            write!(f, "{}{symbol}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Declares a table of C functions that is filled from a library.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident {
        $($name:ident @ $version:literal: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)*
    }) => {
        $(#[$about])*
        #[derive(Debug)]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            pub(crate) const SYMBOLS: &'static [Symbol] =
                &[$(Symbol { name: stringify!($name), version: $version }),*];

            fn of(object: &SharedObject) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        let symbol = Symbol { name: stringify!($name), version: $version };
                        let address = object.require(symbol)?;
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        // SAFETY: a symbol of this name and version is the function of this C
                        // prototype in every release of rdma-core: an incompatible function gets a
                        // new version.
                        unsafe { transmute::<NonNull<c_void>, Function>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions of libibverbs. What is inline in the C header isn't here.
    Libibverbs {
        ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
        ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device);
        ibv_get_device_name @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
        ibv_open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
        ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
        ibv_create_ah @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah @ "IBVERBS_1.1": fn(*mut ibv_ah) -> c_int;
        ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event @ "IBVERBS_1.1":
            fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
        ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
        ibv_qp_to_qp_ex @ "IBVERBS_1.6": fn(*mut ibv_qp) -> *mut ibv_qp_ex;
    }
}

functions! {
    /// The functions of libefa that every supported release has.
    Libefa {
        efadv_query_device @ "EFA_1.1":
            fn(*mut ibv_context, *mut efadv_device_attr, u32) -> c_int;
        efadv_query_ah @ "EFA_1.1": fn(*mut ibv_ah, *mut efadv_ah_attr, u32) -> c_int;
        efadv_create_qp_ex @ "EFA_1.1":
            fn(*mut ibv_context, *mut ibv_qp_init_attr_ex, *mut efadv_qp_init_attr, u32)
                -> *mut ibv_qp;
        efadv_create_cq @ "EFA_1.2":
            fn(*mut ibv_context, *mut ibv_cq_init_attr_ex, *mut efadv_cq_init_attr, u32)
                -> *mut ibv_cq_ex;
        efadv_cq_from_ibv_cq_ex @ "EFA_1.2": fn(*mut ibv_cq_ex) -> *mut efadv_cq;
    }
}

/// `efadv_get_max_sq_depth`: how deep a send queue can be with so much inline data.
pub(crate) type GetMaxSqDepth =
    unsafe extern "C" fn(*mut ibv_context, *mut efadv_sq_depth_attr, u32) -> c_int;

/// Functions of libefa that older releases lack; `None` is not used.
#[derive(Debug)]
pub(crate) struct LibefaOptional {
    pub(crate) efadv_get_max_sq_depth: Option<GetMaxSqDepth>,
}

impl LibefaOptional {
    const NAMES: [&'static str; 1] = ["efadv_get_max_sq_depth"];

    fn of(object: &SharedObject) -> Self {
        let [name] = Self::NAMES;
        // SAFETY: the function of this name has this C prototype in every release that has it.
        let function = |address| unsafe { transmute::<NonNull<c_void>, GetMaxSqDepth>(address) };
        Self { efadv_get_max_sq_depth: object.handle.default_version(name).map(function) }
    }
}

/// The loaded libraries.
#[derive(Debug)]
pub(crate) struct Libraries {
    pub(crate) ibverbs: Libibverbs,
    pub(crate) efa: Libefa,
    pub(crate) efa_optional: LibefaOptional,
}

/// The libraries, loaded by the first call that succeeds.
pub(crate) fn libraries() -> Result<&'static Libraries, LoadError> {
    static LOADED: OnceLock<Libraries> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let ibverbs = Libibverbs::of(&SharedObject::open(&IBVERBS)?)?;
    let object = SharedObject::open(&EFA)?;
    let efa = Libefa::of(&object)?;
    let loaded = Libraries { ibverbs, efa, efa_optional: LibefaOptional::of(&object) };
    Ok(LOADED.get_or_init(|| loaded))
}

/// What this process finds of a library of rdma-core, for diagnosis.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LibraryReport {
    /// `libibverbs` or `libefa`.
    pub name: &'static str,
    /// The file, with symbolic links resolved; `None` if it can't be loaded.
    pub path: Option<PathBuf>,
    /// Symbol versions of which it has every function that is needed. Empty for a library without
    /// symbol versions, as the software device is.
    pub versions: Vec<&'static str>,
    /// Functions of newer releases that would be used and that it lacks.
    pub without: Vec<&'static str>,
    /// Why it can't be used.
    pub error: Option<LoadError>,
}

/// Looks for libibverbs and libefa, and for the functions of them that are needed.
#[must_use]
pub fn library_reports() -> [LibraryReport; 2] {
    [report(&IBVERBS), report(&EFA)]
}

fn report(wanted: &'static Wanted) -> LibraryReport {
    match SharedObject::open(wanted) {
        Ok(object) => object.report(),
        Err(error) => LibraryReport {
            name: wanted.name,
            path: None,
            versions: Vec::new(),
            without: Vec::new(),
            error: Some(error),
        },
    }
}

/// A library that is to be loaded.
#[derive(Debug)]
struct Wanted {
    name: &'static str,
    file: &'static str,
    /// The package of Debian and Ubuntu.
    package: &'static str,
    symbols: &'static [Symbol],
    optional: &'static [&'static str],
}

const IBVERBS: Wanted = Wanted {
    name: "libibverbs",
    file: "libibverbs.so.1",
    package: "libibverbs1",
    symbols: Libibverbs::SYMBOLS,
    optional: &[],
};
const EFA: Wanted = Wanted {
    name: "libefa",
    file: "libefa.so.1",
    package: "ibverbs-providers",
    symbols: Libefa::SYMBOLS,
    optional: &LibefaOptional::NAMES,
};

/// A shared object that is never unloaded.
#[derive(Debug)]
struct SharedObject {
    handle: Handle,
    wanted: &'static Wanted,
    /// Whether its functions have symbol versions. Those of the software device have none.
    has_versions: bool,
}

/// A handle of `dlopen` that is never closed.
#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

impl SharedObject {
    /// The library, from what the process has already (a preloaded library), or else by its file
    /// name.
    fn open(wanted: &'static Wanted) -> Result<Self, LoadError> {
        match Self::in_process(wanted) {
            Some(object) => Ok(object),
            None => Self::open_file(OsStr::new(wanted.file), wanted),
        }
    }

    /// The object that the program's own calls of the library would go to, if there is one.
    fn in_process(wanted: &'static Wanted) -> Option<Self> {
        let process = Handle(Library::this().into_raw());
        let first = process.default_version(wanted.symbols.first()?.name)?;
        let file = file_of(first);
        // SAFETY: the object is loaded already, so this runs no initializer.
        let open = |file| unsafe { Library::open(Some(file), RTLD_NOW | libc::RTLD_NOLOAD) };
        let object = file.and_then(|file| open(file).ok());
        // The program itself has no handle but that of the process.
        let handle = object.map_or(process, |object| Handle(object.into_raw()));
        Some(Self::new(handle, wanted))
    }

    fn open_file(file: &OsStr, wanted: &'static Wanted) -> Result<Self, LoadError> {
        // SAFETY: loading runs the initializers of libibverbs, libefa and their dependencies, which
        // have no preconditions. No destructor runs before the process ends, as nothing is unloaded.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Missing {
            library: wanted.file,
            package: wanted.package,
            reason: error.to_string(),
        })?;
        Ok(Self::new(Handle(library.into_raw()), wanted))
    }

    fn new(handle: Handle, wanted: &'static Wanted) -> Self {
        let mut symbols = wanted.symbols.iter();
        let has_versions = symbols.any(|symbol| handle.version(*symbol).is_some());
        Self { handle, wanted, has_versions }
    }

    /// The address of a function, in this version if the library has versions.
    fn find(&self, symbol: Symbol) -> Option<NonNull<c_void>> {
        match self.has_versions {
            true => self.handle.version(symbol),
            false => self.handle.default_version(symbol.name),
        }
    }

    fn require(&self, symbol: Symbol) -> Result<NonNull<c_void>, LoadError> {
        self.find(symbol).ok_or_else(|| self.too_old())
    }

    fn too_old(&self) -> LoadError {
        let Wanted { file, package, symbols, .. } = *self.wanted;
        let is_missing = |symbol: &Symbol| self.find(*symbol).is_none();
        LoadError::TooOld {
            path: self.path().unwrap_or_else(|| file.into()),
            package,
            missing: symbols.iter().copied().filter(is_missing).collect(),
        }
    }

    /// The file that the functions are in, with symbolic links resolved.
    fn path(&self) -> Option<PathBuf> {
        let function = self.wanted.symbols.iter().find_map(|symbol| self.find(*symbol))?;
        let path = file_of(function)?;
        Some(path.canonicalize().unwrap_or(path))
    }

    fn report(&self) -> LibraryReport {
        let symbols = self.wanted.symbols;
        let mut versions: Vec<&str> = Vec::new();
        if self.has_versions {
            versions.extend(symbols.iter().map(|symbol| symbol.version));
            versions.dedup();
            versions.retain(|version| {
                let mut of_it = symbols.iter().filter(|symbol| symbol.version == *version);
                of_it.all(|symbol| self.find(*symbol).is_some())
            });
        }
        let optional = self.wanted.optional.iter().copied();
        let has_all = symbols.iter().all(|symbol| self.find(*symbol).is_some());
        LibraryReport {
            name: self.wanted.name,
            path: self.path(),
            versions,
            without: optional.filter(|name| self.handle.default_version(name).is_none()).collect(),
            error: (!has_all).then(|| self.too_old()),
        }
    }
}

impl Handle {
    /// The address of a symbol in this version.
    #[cfg(target_env = "gnu")]
    fn version(self, Symbol { name, version }: Symbol) -> Option<NonNull<c_void>> {
        let (name, version) = (CString::new(name).ok()?, CString::new(version).ok()?);
        // SAFETY: the handle is of `dlopen` and never closed, and both texts end in a zero.
        NonNull::new(unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) })
    }

    /// Only the GNU C library has symbol versions.
    #[cfg(not(target_env = "gnu"))]
    fn version(self, _: Symbol) -> Option<NonNull<c_void>> {
        None
    }

    /// The address of a symbol in its default version.
    fn default_version(self, name: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is of `dlopen` and never closed, and the name ends in a zero.
        NonNull::new(unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }
}

/// The file of the object that a symbol of [`Handle`] is in.
fn file_of(symbol: NonNull<c_void>) -> Option<PathBuf> {
    // SAFETY: a structure of pointers, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { zeroed() };
    // SAFETY: any address may be asked for, and `info` may be written.
    let found = unsafe { libc::dladdr(symbol.as_ptr(), &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dladdr` found the object, so this is its zero-terminated file name, which is valid as
    // long as the object is loaded. Handles are never closed.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(file: &str, wanted: &'static Wanted) -> Result<SharedObject, LoadError> {
        SharedObject::open_file(OsStr::new(file), wanted)
    }

    #[test]
    fn absent_library_is_an_error_that_names_the_package() {
        for (wanted, package) in [(&IBVERBS, "libibverbs1"), (&EFA, "ibverbs-providers")] {
            let error = open("libno-such-file.so.7", wanted).unwrap_err();
            let LoadError::Missing { library, package: named, .. } = &error else { panic!() };
            assert_eq!((*library, *named), (wanted.file, package));
            let text = error.to_string();
            assert!(text.contains("libno-such-file.so.7"), "{text}");
            assert!(text.ends_with(&format!("install {package} (rdma-core)")), "{text}");
        }
    }

    #[test]
    fn library_without_the_functions_is_too_old_and_they_are_named() {
        let object = open("libc.so.6", &EFA).unwrap();
        let error = Libefa::of(&object).unwrap_err();
        let LoadError::TooOld { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing, Libefa::SYMBOLS);
        let text = error.to_string();
        assert!(text.contains("efadv_query_device@EFA_1.1, efadv_query_ah@EFA_1.1"), "{text}");
        assert!(text.contains("rdma-core 43"), "{text}");
        let report = object.report();
        assert_eq!((report.path, report.versions, report.error), (None, vec![], Some(error)));
        assert_eq!(report.without, LibefaOptional::NAMES);
    }

    /// As libibverbs, the C library keeps old functions under their old versions.
    #[test]
    #[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
    fn symbol_is_found_in_the_version_that_is_asked_for() {
        let handle = open("libc.so.6", &IBVERBS).unwrap().handle;
        let find = |version| handle.version(Symbol { name: "pthread_cond_wait", version });
        let (old, new) = (find("GLIBC_2.2.5").unwrap(), find("GLIBC_2.3.2").unwrap());
        assert_ne!(old, new);
        assert_eq!(handle.default_version("pthread_cond_wait"), Some(new));
        assert_eq!(find("GLIBC_2.2"), None);
    }

    #[test]
    fn software_device_has_every_function_without_symbol_versions() {
        let test = std::env::current_exe().unwrap();
        let built = test.parent().unwrap();
        let places = [built, built.parent().unwrap()].map(|place| place.join("libefa_soft.so"));
        let library = places.iter().find(|path| path.exists()).expect("libefa_soft.so is built");
        for wanted in [&IBVERBS, &EFA] {
            let object = SharedObject::open_file(library.as_os_str(), wanted).unwrap();
            let report = object.report();
            assert_eq!(report.error, None);
            assert_eq!(report.path, Some(library.canonicalize().unwrap()));
            assert_eq!((report.versions, report.without), (vec![], vec![]));
        }
    }

    #[test]
    fn installed_libraries_have_every_function_in_its_version() {
        for wanted in [&IBVERBS, &EFA] {
            let object = match open(wanted.file, wanted) {
                Ok(object) => object,
                Err(error) => {
                    let required =
                        std::env::var_os("EFA_INTEROP").is_some_and(|value| value == "1");
                    assert!(!required, "EFA_INTEROP=1, but {error}");
                    return eprintln!("skipped: {error}");
                }
            };
            let report = object.report();
            assert_eq!(report.error, None);
            let file = report.path.unwrap();
            assert!(file.to_string_lossy().contains(wanted.file), "{}", file.display());
            let expected: &[&str] = match wanted.name {
                "libefa" => &["EFA_1.1", "EFA_1.2"],
                _ => &["IBVERBS_1.0", "IBVERBS_1.1", "IBVERBS_1.6"],
            };
            assert_eq!(report.versions, expected);
        }
    }
}
