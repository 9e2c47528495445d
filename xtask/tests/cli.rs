//! `cargo xtask` as a user meets it: the built program on a small repository made for the test.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A repository with one crate, one test and a checklist of two rows; removed when this is dropped.
struct Repository {
    root: PathBuf,
}

impl Repository {
    fn new(name: &str) -> Self {
        // Runs that share a target directory don't meet.
        let name = format!("{}-{name}", std::process::id());
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&root);
        let repository = Self { root };
        repository.write("docs/checklist/README.md", "# About\n\n| file |\n|---|\n| x |\n");
        repository.write(
            "docs/checklist/a-protocol.md",
            "## A.1 Framing\n\n| row | requirement |\n|---|---|\n| A1 | one |\n| A2 | two |\n",
        );
        repository.write("docs/checklist/claimed.txt", "A1\n");
        repository.write("docs/checklist/not-applicable.md", "| row | reason |\n|---|---|\n");
        repository.write("crates/efa-x/src/lib.rs", "// conformance: A1\n#[test]\nfn shows() {}\n");
        repository
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn report(&self) -> Option<String> {
        std::fs::read_to_string(self.root.join("docs/conformance.md")).ok()
    }

    fn xtask(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.env("CARGO_MANIFEST_DIR", self.root.join("xtask")).args(arguments);
        command
    }

    /// A script in the only directory that [`on_bare_machine`](Self::on_bare_machine) looks into.
    fn program(&self, name: &str, script: &str) {
        let file = format!("bin/{name}");
        self.write(&file, &format!("#!/bin/sh\n{script}\n"));
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.root.join(file), executable).unwrap();
    }

    /// Runs xtask where no program is installed but those of the test.
    fn on_bare_machine(&self, arguments: &[&str]) -> Output {
        self.command(arguments).env("PATH", self.root.join("bin")).output().unwrap()
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn call_without_task_lists_the_tasks() {
    let output = Repository::new("list").xtask(&[]);
    assert!(output.status.success());
    let text = stdout(&output);
    for task in ["test", "setup", "bench", "conformance"] {
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{task} ")));
        let words = line.map_or(0, |line| line.split_whitespace().count());
        assert!(words > 4, "`{task}` has no line that says what it does:\n{text}");
    }
}

#[test]
fn closed_standard_output_changes_nothing() {
    let repository = Repository::new("closed");
    assert!(repository.xtask(&["conformance"]).status.success());
    let tasks: [&[&str]; 5] = [
        &[],
        &["conformance"],
        &["conformance", "--check"],
        &["test", "--only", "conformance"],
        &["interop", "--list"],
    ];
    for task in tasks {
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let output = repository.command(task).stdout(closed).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{task:?}");
    }
    // Nor does it if it is standard error.
    repository.write("docs/checklist/claimed.txt", "A1-A2\n");
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let status = repository.command(&["conformance"]).stderr(closed).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn full_standard_output_is_an_error() {
    let repository = Repository::new("full");
    assert!(repository.xtask(&["conformance"]).status.success());
    let tasks: [&[&str]; 3] = [&[], &["conformance", "--check"], &["interop", "--list"]];
    for task in tasks {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = repository.command(task).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{task:?}");
        let text = stderr(&output);
        assert!(text.starts_with("error: ") && text.contains("No space left"), "{task:?}: {text}");
    }
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_installed() {
    let repository = Repository::new("senseless");
    repository.write("fuzz/Cargo.toml", "");
    repository.write("fuzz/fuzz_targets/f.rs", "fuzz_target!(|data| {});\n");
    let tasks: [(&[&str], &str); 3] = [
        (&["fuzz", "run", "g"], "no target g; there are f"),
        (
            &["fuzz", "run", "--minutes", "1e9"],
            "--minutes 1000000000: a second to a year is expected",
        ),
        (
            &["bench", "vs-libfabric", "--rounds", "1000,2000,1000"],
            "--rounds must have three different numbers at least, not 2",
        ),
    ];
    for (task, expected) in tasks {
        let output = repository.on_bare_machine(task);
        assert_eq!(output.status.code(), Some(1), "{task:?}");
        assert_eq!(stderr(&output), format!("error: {expected}\n"));
        assert_eq!(stdout(&output), "", "{task:?}");
    }
}

#[test]
fn unknown_task_or_step_is_a_usage_error() {
    let repository = Repository::new("refused");
    assert_eq!(repository.xtask(&["tset"]).status.code(), Some(2));
    let output = repository.xtask(&["test", "--only", "clipy"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("clippy"), "the right name is suggested");
}

#[test]
fn conformance_report_is_written_and_then_up_to_date() {
    let repository = Repository::new("written");
    let stale = repository.xtask(&["conformance", "--check"]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(stderr(&stale).contains("docs/conformance.md: out of date"));
    assert_eq!(repository.report(), None, "--check writes nothing");

    assert!(repository.xtask(&["conformance"]).status.success());
    assert!(repository.report().unwrap().contains("| A1 | one | [`efa_x::shows`]"));
    assert!(repository.xtask(&["conformance", "--check"]).status.success());

    repository.write("crates/efa-x/tests/a.rs", "// conformance: A2\n#[test]\nfn test() {}\n");
    assert_eq!(repository.xtask(&["conformance", "--check"]).status.code(), Some(1));
}

#[test]
fn claim_without_test_and_tag_without_row_fail_and_are_named() {
    let repository = Repository::new("wrong");
    repository.write("docs/checklist/claimed.txt", "A1-A2\n");
    repository.write("fuzz/fuzz_targets/f.rs", "// conformance: A9\nfuzz_target!(|data| {});\n");
    repository.write("crates/efa-x/src/m.rs", "// conformance: A1\nconst NO_TEST: u8 = 0;\n");
    let output = repository.xtask(&["conformance"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("A2: claimed, but no test"), "{text}");
    assert!(text.contains("A9: named by fuzz/f in fuzz/fuzz_targets/f.rs"), "{text}");
    assert!(text.contains("crates/efa-x/src/m.rs:1: a tag must stand directly above"), "{text}");
    assert!(repository.report().is_some(), "the report is written all the same");
}

#[test]
fn failing_step_prints_the_command_that_repeats_it() {
    let repository = Repository::new("failing");
    let output = repository.xtask(&["test", "--only", "conformance"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("run it alone with: cargo xtask test --only conformance"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("xtask test: FAILED, 0 of 1 steps"), "{text}");

    repository.xtask(&["conformance"]);
    let output = repository.xtask(&["test", "--only", "conformance"]);
    assert!(output.status.success());
    let text = stdout(&output);
    assert!(text.lines().last().unwrap().starts_with("xtask test: ok, 1 of 1 steps"), "{text}");
}

#[test]
fn missing_package_is_installed_by_root() {
    let repository = Repository::new("root");
    repository.write("fuzz/Cargo.toml", "");
    repository.program("fi_info", "");
    repository.program("id", "echo 0");
    repository.program("cargo-fuzz", "");
    let installed = repository.root.join("bin/c++").display().to_string();
    let log = repository.root.join("apt.log").display().to_string();
    repository.program("apt-get", &format!("echo \"$@\" >>{log}\necho >{installed}"));
    let output = repository.on_bare_machine(&["test", "--only", "fuzz"]);
    assert_eq!(
        std::fs::read_to_string(log).unwrap(),
        "--option=Acquire::Retries=3 update\n\
         --option=Acquire::Retries=3 install --yes --no-install-recommends g++\n"
    );
    assert!(stdout(&output).contains("==> [1/1] fuzz"), "the step comes after the installation");
}

#[test]
fn missing_package_is_named_without_root() {
    let repository = Repository::new("user");
    repository.write("fuzz/Cargo.toml", "");
    repository.program("fi_info", "");
    repository.program("id", "echo 1000");
    repository.program("apt-get", "exit 1");
    let output = repository.on_bare_machine(&["test", "--only", "fuzz"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("run `sudo apt-get install g++`"), "{}", stderr(&output));

    std::fs::remove_file(repository.root.join("bin/apt-get")).unwrap();
    let output = repository.on_bare_machine(&["test", "--only", "fuzz"]);
    assert!(stderr(&output).contains("no apt-get on this machine"), "{}", stderr(&output));
}

#[test]
fn package_without_the_expected_program_is_an_error() {
    let repository = Repository::new("useless");
    repository.write("fuzz/Cargo.toml", "");
    repository.program("fi_info", "");
    repository.program("id", "echo 0");
    repository.program("apt-get", "");
    let output = repository.on_bare_machine(&["test", "--only", "fuzz"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`c++` is still not on PATH"), "{}", stderr(&output));
}

/// A cargo that builds nothing: it writes its arguments to `cargo.log`, and a tool that does so, too.
fn recording_cargo(repository: &Repository) {
    let root = repository.root.display();
    let script = format!(
        r#"[ "$1" = metadata ] && echo '{{"target_directory": "{root}/target", "packages": []}}' && exit
echo "$@" >>{root}/cargo.log
for profile in debug release; do
    mkdir -p {root}/target/$profile
    printf '#!/bin/sh\necho "$0 $@" >>{root}/efa.log\n' >{root}/target/$profile/efa
    chmod +x {root}/target/$profile/efa
    echo $profile >{root}/target/$profile/libefa_soft.so
done"#
    );
    repository.program("cargo", &script);
}

#[test]
fn install_puts_tool_and_library_where_they_find_each_other() {
    let repository = Repository::new("install");
    recording_cargo(&repository);
    let prefix = repository.root.join("prefix");
    let read = |file: &str| std::fs::read_to_string(repository.root.join(file)).unwrap();
    for (option, profile) in [(None, "release"), (Some("--debug"), "debug")] {
        let mut command = repository.command(&["install", "--prefix", "prefix"]);
        command.current_dir(&repository.root).args(option);
        let output = command.env("CARGO", repository.root.join("bin/cargo")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(read("prefix/lib/libefa_soft.so"), format!("{profile}\n"));
        let said = stdout(&output);
        assert!(said.contains(&format!("installed {}\n", prefix.join("bin/efa").display())));
        assert!(said.contains("is not in PATH"), "{said}");
    }
    let build = "build --locked --package=efa-cli --package=efa-softverbs --profile=";
    assert_eq!(read("cargo.log"), format!("{build}release\n{build}dev\n"));
    let tool = prefix.join("bin/efa").display().to_string();
    let check = format!("{tool} soft-efa run -- {tool} --version\n");
    assert_eq!(read("efa.log"), check.repeat(2), "the installed tool is run with the library");
}

#[test]
fn install_into_unwritable_prefix_names_the_directory() {
    let repository = Repository::new("unwritable");
    recording_cargo(&repository);
    let mut command = repository.command(&["install", "--prefix", "/dev/null"]);
    let output = command.env("CARGO", repository.root.join("bin/cargo")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot create /dev/null/lib"), "{}", stderr(&output));
}

#[test]
fn install_without_home_directory_asks_for_a_prefix() {
    let mut command = Repository::new("homeless").command(&["install"]);
    let output = command.env_remove("CARGO_HOME").env_remove("HOME").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("name one by --prefix"), "{}", stderr(&output));
}
