//! Which libraries are loaded, and the errors where that fails, in processes whose loader finds other
//! files than those of rdma-core.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{in_child, on_soft_device, soft_library, soft_settings};
use efa_device::{Device, DeviceError};
use efa_verbs::{LoadError, Presence, VerbsDevice, library_reports, presence};
use tempfile::TempDir;

/// Runs the body where the loader finds these files under the names of the libraries.
#[track_caller]
fn with_libraries(name: &str, ibverbs: &Path, efa: &Path, body: fn()) {
    let directory = TempDir::new().unwrap();
    symlink(ibverbs, directory.path().join("libibverbs.so.1")).unwrap();
    symlink(efa, directory.path().join("libefa.so.1")).unwrap();
    in_child(name, body, |command| {
        command.env("LD_LIBRARY_PATH", directory.path()).env_remove("LD_PRELOAD");
        soft_settings(command, directory.path());
    });
}

/// A library that has no function of rdma-core: the C library.
fn other_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.map(PathBuf::from).find(|path| path.ends_with("libc.so.6")).expect("the C library")
}

/// A file that is no library.
fn text_file(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("text");
    std::fs::write(&path, "no library").unwrap();
    path
}

fn open_error() -> String {
    let Err(DeviceError::Absent { reason }) = VerbsDevice::open(None).map(drop) else { panic!() };
    reason
}

#[test]
fn libraries_are_loaded_by_their_file_names() {
    let soft = soft_library();
    with_libraries("libraries_are_loaded_by_their_file_names", &soft, &soft, || {
        let device = VerbsDevice::open(None).unwrap();
        assert_eq!(device.attributes().name, "efa_soft0");
        for report in library_reports() {
            assert_eq!(report.path, Some(soft_library().canonicalize().unwrap()));
            assert_eq!(report.error, None);
        }
    });
}

#[test]
fn preloaded_library_takes_precedence() {
    on_soft_device("preloaded_library_takes_precedence", &[], || {
        for report in library_reports() {
            assert_eq!(report.path, Some(soft_library().canonicalize().unwrap()));
            assert_eq!((report.versions, report.without, report.error), (vec![], vec![], None));
        }
    });
}

#[test]
fn unloadable_library_is_an_error_that_names_the_package() {
    let name = "unloadable_library_is_an_error_that_names_the_package";
    let directory = TempDir::new().unwrap();
    let text = text_file(&directory);
    with_libraries(name, &text, &text, || {
        let Presence::NoLibrary(error) = presence() else { panic!() };
        let LoadError::Missing { library, package, .. } = &error else { panic!("{error}") };
        assert_eq!((*library, *package), ("libibverbs.so.1", "libibverbs1"));
        let reason = open_error();
        assert!(reason.contains("libibverbs.so.1: "), "{reason}");
        assert!(reason.contains("install libibverbs1 (rdma-core), or use the soft"), "{reason}");
        assert_eq!(efa_verbs::interfaces(), Err(DeviceError::Absent { reason }));
        let [ibverbs, efa] = library_reports();
        assert_eq!((ibverbs.path, ibverbs.error), (None, Some(error)));
        assert!(matches!(efa.error, Some(LoadError::Missing { package: "ibverbs-providers", .. })));
    });
}

#[test]
fn unloadable_libefa_is_an_error_that_names_its_package() {
    let name = "unloadable_libefa_is_an_error_that_names_its_package";
    let directory = TempDir::new().unwrap();
    with_libraries(name, &soft_library(), &text_file(&directory), || {
        let reason = open_error();
        assert!(reason.contains("libefa.so.1: "), "{reason}");
        assert!(reason.contains("install ibverbs-providers"), "{reason}");
    });
}

#[test]
fn library_without_functions_is_an_error_that_names_them() {
    let name = "library_without_functions_is_an_error_that_names_them";
    with_libraries(name, &soft_library(), &other_library(), || {
        let reason = open_error();
        assert!(reason.contains("efadv_create_cq@EFA_1.2"), "{reason}");
        assert!(reason.contains("ibverbs-providers of rdma-core 43 or newer"), "{reason}");
        let [ibverbs, efa] = library_reports();
        assert_eq!(ibverbs.error, None);
        assert!(matches!(efa.error, Some(LoadError::TooOld { .. })), "{efa:?}");
    });
}
