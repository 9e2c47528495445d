//! The libraries that programs open by name: `libibverbs.so.1`, `libefa.so.1`.
//!
//! ```text
//!   run:        PLACE/lib/libibverbs.so.1 …   LD_LIBRARY_PATH=PLACE/lib:…   the device library stays where it is
//!   libraries:  DIR/libibverbs.so.1 …         DIR/libefa_soft.so            a copy, so that DIR can be moved
//! ```

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use efa_soft_names::libraries::{self, DEVICE_LIBRARY};
use rustix::fs::{StatVfsMountFlags, statvfs};

/// The dynamic loader's variable with directories.
pub(super) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Why a program that opens libibverbs itself won't find the device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LibraryError {
    /// Code can't be loaded from there.
    #[error("{} is on a file system mounted with noexec: name a directory on another one by TMPDIR", directory.display())]
    NoExec {
        /// The directory.
        directory: PathBuf,
    },
    /// The loader would read the path as something else.
    #[error("the loader can't search {}: the path contains a colon, a semicolon or a dollar sign, or isn't UTF-8", path.display())]
    Character {
        /// The path.
        path: PathBuf,
    },
    /// The libraries can't be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The directory, or the library.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Writes the libraries for the device library `device` into `directory`, which must not exist. Returns the value of
/// [`LIBRARY_PATH`] with it, where `search` is the value before.
pub(super) fn offer(
    directory: &Path,
    device: &Path,
    search: Option<&OsStr>,
) -> Result<OsString, LibraryError> {
    let failed = |source| LibraryError::Write { path: directory.to_owned(), source };
    let search = search.unwrap_or_default();
    let device = searchable(device)?;
    searchable(directory)?;
    fs::create_dir(directory).map_err(failed)?;
    let mounted = statvfs(directory).map_err(|error| failed(error.into()))?;
    if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(LibraryError::NoExec { directory: directory.to_owned() });
    }
    libraries::write(directory, device, &libraries::with_libibverbs(search)).map_err(failed)?;
    let mut path = directory.as_os_str().to_owned();
    if !search.is_empty() {
        path.push(":");
        path.push(search);
    }
    Ok(path)
}

/// Copies the device library into `directory`, and writes the others beside it.
pub(super) fn export(directory: &Path, device: &Path) -> Result<(), LibraryError> {
    searchable(directory)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| LibraryError::Write { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    let copy = directory.join(DEVICE_LIBRARY);
    let new = directory.join(format!("{DEVICE_LIBRARY}.new"));
    // Programs that run keep the file that was there before.
    let copied = fs::copy(device, &new).and_then(|_| fs::rename(&new, &copy));
    if copied.is_err() {
        let _ = fs::remove_file(&new);
    }
    copied.map_err(failed(&copy))?;
    libraries::write(directory, &format!("$ORIGIN/{DEVICE_LIBRARY}"), &[])
        .map_err(failed(directory))
}

/// A path that the loader takes as it is.
fn searchable(path: &Path) -> Result<&str, LibraryError> {
    let is_plain = !path.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte));
    let text = path.to_str().filter(|_| is_plain);
    text.ok_or_else(|| LibraryError::Character { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn paths_that_the_loader_would_split_or_expand_are_refused() {
        for path in ["/a:b", "/a;b", "/$ORIGIN"] {
            let error = searchable(Path::new(path)).unwrap_err();
            assert!(matches!(error, LibraryError::Character { .. }), "{error}");
        }
        assert_eq!(searchable(Path::new("/my dir")).unwrap(), "/my dir");
    }

    #[test]
    fn directory_comes_before_those_that_are_searched_already() {
        let base = TempDir::new().unwrap();
        let [one, two] = ["1", "2"].map(|name| base.path().join(name));
        let device = Path::new("/d/libefa_soft.so");
        let first = offer(&one, device, None).unwrap();
        assert_eq!(first, one);
        let second = offer(&two, device, Some(OsStr::new("/x:/y"))).unwrap();
        assert_eq!(second.to_str().unwrap(), format!("{}:/x:/y", two.display()));
        let error = offer(&two, device, None).unwrap_err();
        assert!(matches!(error, LibraryError::Write { .. }), "{error}");
    }
}
