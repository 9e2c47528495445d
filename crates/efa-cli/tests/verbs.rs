//! The tool built with rdma-core, with the software device preloaded.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use common::{Outcome, run};
use serde_json::Value;

/// The directory of the software devices of these tests.
const DEVICES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/efa-verbs-devices");

/// The tool on an EFA interface that isn't one.
fn on_interface(name: &str, arguments: &[&str]) -> Outcome {
    let efa = env!("CARGO_BIN_EXE_efa");
    let soft = ["soft-efa", "run", "--directory", DEVICES, "--device-name", name, "--", efa];
    run([&soft[..], arguments].concat())
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.success()).unwrap()
}

#[test]
fn an_interface_is_taken_where_there_is_one() {
    for arguments in [&["info", "--json"][..], &["info", "--json", "--device", "verbs"]] {
        let info = json(on_interface("info", arguments));
        assert_eq!(
            (&info["link"], &info["device"]["name"]),
            (&"verbs".into(), &"efa_soft0".into())
        );
        assert_eq!(info["interfaces"], serde_json::json!(["efa_soft0"]));
        assert_eq!(info["no_interfaces"], Value::Null);
    }
    // Unless something is asked for that only the software device has.
    let soft = ["info", "--json", "--directory", DEVICES, "--device-name", "other"];
    assert_eq!(json(on_interface("info", &soft))["link"], "shm");
}

#[test]
fn without_an_interface_one_line_says_what_to_do() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return eprintln!("skipped: this machine has RDMA");
    }
    let error = run(["info", "--device", "verbs"]).failure();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("ENOSYS") && error.contains("modprobe ib_uverbs efa"), "{error}");
    let info = run(["info", "--directory", DEVICES, "--device-name", "none"]).success();
    assert!(info.starts_with("interfaces of this machine: none; the kernel has no RDMA"), "{info}");
}

#[test]
fn two_processes_play_ping_pong_by_the_interface() {
    let arguments = ["pingpong", "--device", "verbs", "--json", "--iterations", "5"];
    let report = json(on_interface("pingpong", &arguments));
    assert_eq!(report["device"], "efa_soft0");
    let rows = report["results"].as_array().unwrap();
    assert!(rows.len() > 15, "{report}");
    for subprotocol in ["eager", "medium", "long-CTS", "long-read"] {
        let used =
            |row: &Value| row["subprotocols"].as_array().unwrap().contains(&subprotocol.into());
        assert!(rows.iter().any(used), "{subprotocol} in {report}");
    }
}

#[test]
fn a_process_on_the_interface_and_one_on_the_software_device_reach_each_other() {
    // The interface is the software device by another way: the same packets, the same addresses.
    let server =
        ["pingpong", "--device", "soft", "--listen", "127.0.0.1:0", "--directory", DEVICES];
    let server = [&server[..], &["--device-name", "both"]].concat();
    let mut server = common::Running::start(&mut common::efa(server));
    let line = server.stdout_line("listening on ");
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    let sizes = ["--sizes", "0,8,10k,300k", "--iterations", "3"];
    let client = [&["pingpong", "--device", "verbs", "--json", &address][..], &sizes].concat();
    let report = json(on_interface("both", &client));
    assert_eq!(report["results"].as_array().unwrap().len(), 4);
    server.finish().success();
}

#[test]
fn the_doctor_makes_an_endpoint_on_the_interface() {
    let outcome = on_interface("doctor", &["doctor", "--device", "verbs"]);
    let text = &outcome.stdout;
    assert!(text.contains("\nok    endpoint on the interface"), "{text}");
    assert!(text.contains("\nok    rdma-core in this build          efa_soft0"), "{text}");
}
