//! The program as a whole: its help, its exit codes, and `efa info`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use common::run;

/// The directory of the software devices of these tests.
const DEVICES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/efa-devices");

#[test]
fn help_texts_match_their_snapshots() {
    insta::assert_snapshot!("help", run(["--help"]).success());
    insta::assert_snapshot!("help_pingpong", run(["pingpong", "--help"]).success());
    insta::assert_snapshot!("help_info", run(["info", "--help"]).success());
    insta::assert_snapshot!("help_doctor", run(["doctor", "--help"]).success());
    insta::assert_snapshot!("help_decode", run(["decode", "--help"]).success());
    insta::assert_snapshot!("help_netio", run(["netio", "--help"]).success());
    for command in ["publish", "subscribe", "send", "receive", "bench"] {
        let text = run(["netio", command, "--help"]).success();
        insta::assert_snapshot!(format!("help_netio_{command}"), text);
    }
    for command in ["run", "libraries"] {
        let text = run(["soft-efa", command, "--help"]).success();
        insta::assert_snapshot!(format!("help_soft_efa_{command}"), text);
    }
}

#[test]
fn help_to_a_full_disk_fails_and_to_a_closed_pipe_succeeds() {
    for line in [["--help"], ["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = common::efa(line).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line:?}: {said}");
        assert!(said.starts_with("error: cannot write the output: No space"), "{line:?}: {said}");
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        let status = common::efa(line).stdout(closed).status().unwrap();
        assert_eq!(status.code(), Some(0), "{line:?}");
    }
}

#[test]
fn version_is_that_of_the_crate() {
    assert_eq!(run(["--version"]).success(), concat!("efa ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    assert!(run([""; 0]).usage().contains("Usage: efa <COMMAND>"));
    assert!(run(["pong"]).usage().contains("unrecognized subcommand"));
    assert!(run(["decode"]).usage().contains("<FILE>"));
}

#[test]
fn options_of_one_device_are_usage_errors_for_another() {
    for (line, says) in [
        ("pingpong --device verbs --reorder 1", "--reorder is an option of the software device"),
        ("pingpong --device verbs --capture x", "--capture is an option of the software device"),
        (
            "pingpong --interface a --device-name b",
            "--device-name is an option of the software device",
        ),
        ("info --device soft --interface a", "--interface is not an option of --device soft"),
        ("info --device verbs --link local", "--link is an option of the software device"),
        ("pingpong --device verbs --link tcp", "--link is an option of the software device"),
        ("pingpong --link shm --address 10.0.0.1", "--address needs --link tcp"),
        ("pingpong --link tcp --rnr 0.1", "--rnr needs --link shm"),
        ("pingpong --link tcp --device-name a", "--device-name needs --link shm"),
        ("info --link tcp --device-name a", "--device-name needs --link shm"),
        ("info --link local --directory /x", "--directory needs --link shm"),
        ("pingpong --address 10.0.0.1", "--link <LINK>"),
        ("info --link local --address 10.0.0.1", "--address needs --link tcp"),
        ("doctor --device verbs --directory /x", "--directory is an option of the software device"),
    ] {
        let error = run(line.split(' ')).usage();
        assert!(error.contains(says), "{line}: {error}");
        let command = line.split(' ').next().unwrap();
        assert!(error.contains(&format!("\n\nUsage: efa {command} ")), "{line}: {error}");
    }
}

#[test]
fn lists_of_info_refuse_options_of_a_device() {
    for list in ["--providers", "--capabilities", "--parameters"] {
        for option in
            ["--device soft", "--interface a", "--link tcp", "--device-name a", "--directory /d"]
        {
            let line = format!("info {list} {option}");
            let error = run(line.split(' ')).usage();
            assert!(error.contains("cannot be used with"), "{line}: {error}");
        }
    }
}

#[test]
fn info_prints_device_and_endpoint() {
    let text = run(["info", "--directory", DEVICES, "--device-name", "named"]).success();
    assert!(text.contains("efa-shm-named"), "{text}");
    assert!(text.contains("EFA RDM version 4"), "{text}");
    assert!(text.contains("MSG, TAGGED"), "{text}");
}

#[test]
fn info_json_has_link_device_and_capabilities() {
    for link in ["shm", "tcp", "local"] {
        let mut command = common::efa(["info", "--json", "--link", link]);
        command.env("FI_EFARS_SHM_DIRECTORY", DEVICES);
        let text = common::Running::start(&mut command).finish().success();
        let info: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(info["link"], link);
        assert_eq!(info["device"]["mtu"], 8928);
        assert_eq!(info["endpoint"]["protocol_version"], 4);
        let capabilities = info["endpoint"]["capabilities"].as_array().unwrap();
        assert!(capabilities.contains(&"TAGGED".into()));
    }
}

#[test]
fn info_of_the_tcp_link_has_the_address_of_this_host() {
    let text = run(["info", "--json", "--link", "tcp", "--address", "127.0.0.9"]).success();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["device"]["name"], "efa-tcp-127.0.0.9");
    let error = run(["info", "--link", "tcp", "--address", "192.0.2.1"]).failure();
    assert!(error.contains("192.0.2.1 is not an address of this host"), "{error}");
}

// conformance: C31
#[test]
fn info_env_lists_variables_and_reports_invalid_ones() {
    let mut command = common::efa(["info", "--env"]);
    command.env("FI_EFA_RUNT_SIZE", "307200").env("FI_EFA_CQ_SIZE", "few");
    let outcome = common::Running::start(&mut command).finish();
    assert!(outcome.stderr.contains("FI_EFA_CQ_SIZE=few: a whole number"), "{outcome:?}");
    insta::assert_snapshot!("info_env", outcome.success());

    let text = run(["info", "--env", "--json"]).success();
    let variables: serde_json::Value = serde_json::from_str(&text).unwrap();
    let runt = &variables["effective"].as_array().unwrap().iter();
    let runt = runt.clone().find(|one| one["name"] == "FI_EFA_RUNT_SIZE").unwrap();
    assert_eq!((&runt["value"], &runt["kind"]), (&"0".into(), &"number".into()));
    let without = variables["without_effect"].as_array().unwrap();
    assert!(without.iter().any(|one| one["name"] == "FI_EFA_ENABLE_SHM_TRANSFER"));
}

// conformance: C140
#[test]
fn info_lists_providers_capabilities_and_parameters() {
    let with = |arguments: &[&str], provider: &str| {
        let mut command = common::efa(arguments);
        // Interfaces depend on the machine.
        common::Running::start(command.env("FI_PROVIDER", provider)).finish()
    };
    let providers = with(&["info", "--providers"], "^efa-verbs").success();
    let providers = providers.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!("info_providers", providers);
    insta::assert_snapshot!("info_capabilities", run(["info", "--capabilities"]).success());
    let parameters = run(["info", "--parameters"]).success();
    assert_eq!(parameters, run(["info", "--env"]).success());
    for name in ["FI_PROVIDER", "FI_LOG_LEVEL", "FI_LOG_PROV", "FI_LOG_SUBSYS"] {
        assert!(parameters.contains(name), "{name}");
    }
    let json = with(&["info", "--providers", "--json"], "efa-shm").success();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let entries = json["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 2, "one for each kind of endpoint");
    assert!(entries.iter().all(|entry| entry["domain"] == "efa-shm"));
    let json = run(["info", "--capabilities", "--json"]).success();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["not_offered"].as_array().unwrap().contains(&"TRIGGER".into()));
}

// conformance: C33
#[test]
fn info_lists_only_what_fi_provider_leaves() {
    for (value, fabrics) in
        [("^efa-verbs,efa-local", "shm tcp"), ("efa-shm", "shm"), ("^efa", "none")]
    {
        let mut command = common::efa(["info", "--providers"]);
        let outcome = common::Running::start(command.env("FI_PROVIDER", value)).finish();
        if fabrics == "none" {
            let error = outcome.failure();
            assert_eq!(error, "error: nothing offers the requested providers ^efa\n");
            continue;
        }
        let text = outcome.success();
        for link in ["shm", "tcp", "local"] {
            let listed = text.contains(&format!("efa-{link}"));
            assert_eq!(listed, fabrics.contains(link), "{value}: {text}");
        }
    }
}

// conformance: C32
#[test]
fn fi_log_variables_choose_what_is_logged() {
    let scratch = common::Scratch::new("logs");
    let logged = |variables: &[(&str, &str)]| {
        let mut command = common::efa(["pingpong", "--directory", scratch.as_str()]);
        command.args(["--sizes", "8"]);
        command.args(["--iterations", "3", "--warmup", "0"]).env_remove("RUST_LOG");
        command.env_remove("EFA_LOG").envs(variables.iter().copied());
        let outcome = common::Running::start(&mut command).finish();
        outcome.stderr
    };
    assert_eq!(logged(&[]), "", "warnings only");
    assert_eq!(logged(&[("FI_LOG_LEVEL", "warn")]), "");
    let all = logged(&[("FI_LOG_LEVEL", "debug")]);
    assert!(all.contains("efa_rdm::intake") && all.contains("efa_sim::shm"), "{all}");
    let info = logged(&[("FI_LOG_LEVEL", "info")]);
    assert!(!info.contains("efa_rdm::intake") && info.contains("efa_sim::shm"), "{info}");
    let data = logged(&[("FI_LOG_LEVEL", "debug"), ("FI_LOG_SUBSYS", "domain")]);
    assert!(!data.contains("efa_rdm::intake"), "{data}");
    let none = logged(&[("FI_LOG_LEVEL", "debug"), ("FI_LOG_PROV", "^efa")]);
    assert!(!none.contains("efa_rdm") && !none.contains("efa_sim"), "{none}");
    // A mistake is reported, and the default is used.
    let wrong = logged(&[("FI_LOG_LEVEL", "loud")]);
    assert!(
        wrong.contains("FI_LOG_LEVEL=loud: one of warn, trace, info, debug is expected"),
        "{wrong}"
    );
    assert!(!wrong.contains("efa_rdm::intake"), "{wrong}");
}

#[test]
fn endpoints_of_the_tool_follow_environment_variables() {
    let mut command = common::efa(["info", "--json", "--link", "local"]);
    command.env("FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE", "12345");
    let text = common::Running::start(&mut command).finish().success();
    let info: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(info["endpoint"]["max_medium"], 12345);
}

#[test]
fn info_on_inaccessible_directory_is_one_line_of_error() {
    let error = run(["info", "--directory", "/nonexistent/devices"]).failure();
    assert!(error.starts_with("error: cannot open the device: "), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn info_of_an_absent_interface_names_it() {
    let error = run(["info", "--interface", "nope"]).failure();
    assert_eq!(error.matches("nope").count(), 1, "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn doctor_of_the_software_device_passes_without_an_interface() {
    let soft = ["doctor", "--device", "soft", "--directory", DEVICES];
    let text = run(soft).success();
    assert!(text.contains("\nok    endpoint on the software device"), "{text}");
    // A machine without an interface isn't ill if none is asked for.
    assert!(text.lines().all(|line| !line.starts_with("BAD")), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&run([&soft[..], &["--json"]].concat()).success()).unwrap();
    assert_eq!(json["ok"], true);
    assert!(json["checks"].as_array().unwrap().len() >= 14);
}

#[test]
fn doctor_checks_the_memory_of_the_directory_that_the_environment_names() {
    let scratch = common::Scratch::new("doctor-directory");
    std::fs::create_dir(&scratch).unwrap();
    let line = |arguments: &[&str]| {
        let mut command = common::efa(["doctor", "--device", "soft"].iter().chain(arguments));
        let hosts = format!("{}/hosts", scratch.as_str());
        let command = command.env("FI_EFARS_SHM_DIRECTORY", hosts);
        let text = common::Running::start(command).finish().success();
        let line = text.lines().find(|line| line.contains("memory of the device"));
        line.unwrap().to_owned()
    };
    assert!(line(&[]).contains(scratch.as_str()));
    assert!(!line(&["--directory", DEVICES]).contains(scratch.as_str()));
}

#[test]
fn doctor_of_an_absent_interface_fails() {
    let outcome = common::Running::start(&mut common::efa([
        "doctor",
        "--device",
        "verbs",
        "--interface",
        "no-such",
    ]))
    .finish();
    let bad: Vec<_> = outcome.stdout.lines().filter(|line| line.starts_with("BAD")).collect();
    assert!(bad.last().unwrap().starts_with("BAD   endpoint on the interface"), "{outcome:?}");
    let mut reasons: Vec<_> = bad.iter().map(|line| &line["BAD   ".len() + 32..]).collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), bad.len(), "no reason is printed twice: {bad:#?}");
    let error = outcome.failure();
    assert!(error.contains("checks failed") && error.lines().count() == 1, "{error}");
}

#[test]
fn invalid_log_filter_is_reported_and_ignored() {
    let mut command = common::efa(["info", "--json", "--link", "local"]);
    let outcome = common::Running::start(command.env("EFA_LOG", "efa=loud")).finish();
    assert!(outcome.stderr.starts_with("warning: EFA_LOG=\"efa=loud\": "), "{outcome:?}");
    outcome.success();
}

/// The exit code doesn't depend on whether messages can be written.
#[test]
fn unwritable_standard_error_keeps_the_exit_code() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let code = |arguments: &[&str], log: &str| {
        let mut command = common::efa(arguments);
        command.env("EFA_LOG", log).stdout(full()).stderr(full());
        command.status().unwrap().code()
    };
    assert_eq!(code(&["decode", "/nonexistent/capture"], "warn"), Some(1));
    assert_eq!(code(&["decode", "/nonexistent/capture"], "efa=loud"), Some(1));
    assert_eq!(code(&["decode"], "warn"), Some(2));
    let run = ["pingpong", "--directory", DEVICES, "--sizes", "8", "--iterations", "3"];
    assert_eq!(code(&[&run[..], &["--warmup", "0"]].concat(), "trace"), Some(1));
    let mut command = common::efa(run);
    let log = command.env("EFA_LOG", "trace").stderr(full()).status().unwrap();
    assert_eq!(log.code(), Some(0));
}
