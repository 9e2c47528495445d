//! `efa doctor` says why libfabric doesn't load our provider.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Output;

/// The lines about libfabric and the provider, if `FI_PROVIDER_PATH` and these are set.
fn lines(path: Option<&Path>, variables: &[(&str, &str)]) -> [String; 2] {
    let output = String::from_utf8(run(path, variables).stdout).unwrap();
    ["libfabric  ", "provider for libfabric"].map(|subject| {
        let line = output.lines().find(|line| line.contains(subject));
        line.unwrap_or_else(|| panic!("no {subject}: {output}")).to_owned()
    })
}

fn run(path: Option<&Path>, variables: &[(&str, &str)]) -> Output {
    let mut doctor = common::efa(["doctor", "--device", "soft"]);
    for name in ["FI_PROVIDER_PATH", "FI_PROVIDER", "EFARS_NAME", "FI_EFARS_DEVICE"] {
        doctor.env_remove(name);
    }
    if let Some(path) = path {
        doctor.env("FI_PROVIDER_PATH", path);
    }
    doctor.envs(variables.iter().copied()).output().unwrap()
}

/// The line about the provider, if `FI_PROVIDER_PATH` is this.
fn line(path: Option<&Path>) -> String {
    let [_, provider] = lines(path, &[]);
    provider
}

/// Lays the library where libfabric looks for it; cargo builds it with these tests.
fn lay_library(directory: &Path) {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = [built, built.parent().unwrap()].map(|it| it.join("libefars_fi.so"));
    let library = library.into_iter().find(|it| it.exists()).expect("libefars_fi.so is not built");
    symlink(library, directory.join("libefars-fi.so")).unwrap();
}

#[test]
fn library_that_libfabric_offers_is_ok_and_with_a_mistaken_device_it_is_bad() {
    if !common::with_c_packages() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    lay_library(directory.path());
    for variables in [&[][..], &[("FI_EFARS_DEVICE", "shm"), ("EFARS_NAME", "efa")]] {
        let [libfabric, provider] = lines(Some(directory.path()), variables);
        assert!(libfabric.starts_with("ok"), "{libfabric}");
        assert!(provider.starts_with("ok"), "{provider}");
        assert!(provider.contains("libefars-fi.so"), "{provider}");
    }
    let [_, refused] = lines(Some(directory.path()), &[("FI_EFARS_DEVICE", "nonsense")]);
    assert!(refused.starts_with("BAD"), "{refused}");
    assert!(refused.contains("loads, and libfabric doesn't offer it"), "{refused}");
    assert!(refused.contains("look at FI_PROVIDER, FI_EFARS_DEVICE"), "{refused}");
}

#[test]
fn libfabric_that_is_too_old_is_noted_and_the_library_only_loaded() {
    let directory = tempfile::tempdir().unwrap();
    lay_library(directory.path());
    let fake = directory.path().join("fi_info");
    for (version, expected) in
        [("libfabric: 1.16.1", "1.16.1 is too old"), ("nothing", "fi_info names no release")]
    {
        fs::write(&fake, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
        let path = directory.path().to_str().unwrap();
        let [libfabric, provider] = lines(Some(directory.path()), &[("PATH", path)]);
        assert!(libfabric.starts_with("note") && libfabric.contains(expected), "{libfabric}");
        assert!(libfabric.contains("1.17 or newer is needed"), "{libfabric}");
        assert!(provider.starts_with("note") && provider.contains(" loads"), "{provider}");
    }
}

#[test]
fn unset_path_is_a_note() {
    let line = line(None);
    assert!(line.starts_with("note"), "{line}");
    assert!(line.ends_with("which builds it and says what to set"), "{line}");
}

#[test]
fn library_that_is_missing_is_a_note_and_bad_if_programs_are_to_use_the_provider() {
    let directory = tempfile::tempdir().unwrap();
    for (providers, state) in
        [("", "note"), ("tcp", "note"), ("^efars", "note"), ("efars", "BAD"), ("tcp;efars", "BAD")]
    {
        let variables = [("FI_PROVIDER", providers)];
        let [_, line] = lines(Some(directory.path()), &variables);
        assert!(line.starts_with(state) && line.contains("there is no libefars-fi.so"), "{line}");
        let output = run(Some(directory.path()), &variables);
        let bad = String::from_utf8_lossy(&output.stdout).matches("\nBAD").count();
        assert_eq!(output.status.code(), Some(i32::from(bad > 0)), "{output:?}");
    }
}

#[test]
fn wrong_paths_and_names_are_named() {
    let line = |path| {
        let [_, provider] = lines(Some(path), &[("FI_PROVIDER", "efars")]);
        provider
    };
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("nowhere");
    let missing = line(&nowhere);
    let expected = format!("there is no directory {}", nowhere.display());
    assert!(missing.starts_with("BAD") && missing.contains(&expected), "{missing}");

    let empty = line(directory.path());
    assert!(empty.starts_with("BAD") && empty.contains("there is no libefars-fi.so in"), "{empty}");

    fs::write(directory.path().join("libefars_fi.so"), "").unwrap();
    let misnamed = line(directory.path());
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
