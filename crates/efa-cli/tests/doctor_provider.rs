//! `efa doctor` says why libfabric doesn't load our provider.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

/// The line about the provider, if `FI_PROVIDER_PATH` is this.
fn line(path: Option<&Path>) -> String {
    let mut doctor = common::efa(["doctor", "--device", "soft"]);
    doctor.env_remove("FI_PROVIDER_PATH").env_remove("FI_PROVIDER").env_remove("EFARS_NAME");
    if let Some(path) = path {
        doctor.env("FI_PROVIDER_PATH", path);
    }
    let output = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    let line = output.lines().find(|line| line.contains("provider for libfabric"));
    line.unwrap_or_else(|| panic!("{output}")).to_owned()
}

#[test]
fn unset_path_is_a_note() {
    let line = line(None);
    assert!(line.starts_with("note"), "{line}");
    assert!(line.ends_with("which builds it and says what to set"), "{line}");
}

#[test]
fn wrong_paths_and_names_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("nowhere");
    let missing = line(Some(&nowhere));
    let expected = format!("there is no directory {}", nowhere.display());
    assert!(missing.starts_with("BAD") && missing.contains(&expected), "{missing}");

    let empty = line(Some(directory.path()));
    assert!(empty.starts_with("BAD") && empty.contains("there is no libefars-fi.so in"), "{empty}");

    fs::write(directory.path().join("libefars_fi.so"), "").unwrap();
    let misnamed = line(Some(directory.path()));
    assert!(misnamed.contains("has libefars_fi.so: name it libefars-fi.so"), "{misnamed}");
}

#[test]
fn library_that_does_not_load_is_bad_with_the_loaders_reason() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libefars-fi.so");
    for (content, reason) in [("", "file too short"), ("no library, but a long text\n", "ELF")] {
        fs::write(&library, content.repeat(100)).unwrap();
        let line = line(Some(directory.path()));
        assert!(line.starts_with("BAD") && line.contains(reason), "{line}");
    }
}

/// A dependency that isn't there: the library of another machine.
#[test]
fn library_without_its_dependency_is_bad_with_the_name_of_that() {
    let directory = tempfile::tempdir().unwrap();
    let compile = |source: &str, arguments: &[&str]| {
        let file = directory.path().join("source.c");
        fs::write(&file, source).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.current_dir(directory.path()).args(["-shared", "-fPIC", "source.c"]);
        compiler.args(arguments).status().is_ok_and(|status| status.success())
    };
    let library = ["-o", "libefars-fi.so", "-L.", "-lgone"];
    if !compile("void gone(void) {}", &["-o", "libgone.so"])
        || !compile("void gone(void); void fi_prov_ini(void) { gone(); }", &library)
    {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    fs::remove_file(directory.path().join("libgone.so")).unwrap();
    let line = line(Some(directory.path()));
    assert!(line.starts_with("BAD") && line.contains("libgone.so"), "{line}");
}
