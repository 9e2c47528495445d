//! The tool on an EFA interface: the software device, preloaded in place of rdma-core.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod common;

use std::path::Path;

use common::{Outcome, run};
use serde_json::Value;

/// The directory of the software devices of these tests.
const DEVICES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/efa-verbs-devices");

/// The tool on the interface of the software device `name`.
fn on_interface(name: &str, arguments: &[&str]) -> Outcome {
    let efa = env!("CARGO_BIN_EXE_efa");
    let soft = ["soft-efa", "run", "--directory", DEVICES, "--device-name", name, "--", efa];
    run([&soft[..], arguments].concat())
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.success()).unwrap()
}

#[test]
fn interface_is_the_default_device_where_there_is_one() {
    for arguments in [&["info", "--json"][..], &["info", "--json", "--device", "verbs"]] {
        let info = json(on_interface("info", arguments));
        assert_eq!(
            (&info["link"], &info["device"]["name"]),
            (&"verbs".into(), &"efa_soft0".into())
        );
        assert_eq!(info["interfaces"], serde_json::json!(["efa_soft0"]));
        assert_eq!(info["no_interfaces"], Value::Null);
    }
    // An option of the software device selects that one.
    let soft = ["info", "--json", "--directory", DEVICES, "--device-name", "other"];
    assert_eq!(json(on_interface("info", &soft))["link"], "shm");
}

#[test]
fn machine_without_interface_is_one_line_that_says_what_to_do() {
    if Path::new("/sys/class/infiniband").exists() {
        return eprintln!("skipped: this machine has RDMA");
    }
    let error = run(["info", "--device", "verbs"]).failure();
    assert_eq!(error.lines().count(), 1, "{error}");
    // What is missing is the libraries, or else the driver.
    let remedies = ["modprobe ib_uverbs efa", "install libibverbs1", "install ibverbs-providers"];
    assert!(remedies.iter().any(|remedy| error.contains(remedy)), "{error}");
    let info = run(["info", "--directory", DEVICES, "--device-name", "none"]).success();
    assert!(info.starts_with("interfaces of this machine: none; "), "{info}");
    assert!(remedies.iter().any(|remedy| info.contains(remedy)), "{info}");
}

#[test]
fn two_processes_exchange_all_sizes_by_the_interface() {
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
fn process_on_the_interface_reaches_process_on_the_software_device() {
    // The interface is the software device through its C functions: the same packets and addresses.
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
fn doctor_reports_the_libraries_and_an_endpoint_on_the_interface() {
    let outcome = on_interface("doctor", &["doctor", "--device", "verbs"]);
    let text = &outcome.stdout;
    let line = |what: &str| {
        let line = text.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no {what} in {text}")).to_owned()
    };
    for library in ["  libibverbs  ", "  libefa  "] {
        let line = line(library);
        assert!(line.starts_with("ok "), "{line}");
        assert!(line.ends_with("libefa_soft.so (no symbol versions)"), "{line}");
    }
    let interfaces = line("EFA interfaces of libibverbs");
    assert!(interfaces.starts_with("ok ") && interfaces.ends_with(" efa_soft0"), "{interfaces}");
    assert!(line("endpoint on the interface").starts_with("ok "), "{text}");
}

#[test]
fn doctor_names_the_package_of_a_missing_library() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-rdma-core");
    std::fs::create_dir_all(&directory).unwrap();
    for library in ["libibverbs.so.1", "libefa.so.1"] {
        std::fs::write(directory.join(library), "no library").unwrap();
    }
    let mut doctor = common::efa(["doctor", "--device", "verbs"]);
    let output = doctor.env("LD_LIBRARY_PATH", &directory).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (library, package) in [("libibverbs", "libibverbs1"), ("libefa", "ibverbs-providers")] {
        let line = text.lines().find(|line| line.starts_with(&format!("BAD   {library} ")));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        let remedy = format!(": apt install {package}, or run the EFA installer of AWS");
        assert!(line.contains(&format!("{library}.so.1: ")) && line.ends_with(&remedy), "{line}");
    }
}
