//! Debian's unmodified programs of rdma-core on this device.
//!
//! Needs the package ibverbs-utils, and is skipped without `EFA_INTEROP=1`, which `cargo xtask test` sets.

#![allow(clippy::unwrap_used)]

mod common;

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{is_missing, library, loopback, with_c_packages};
use tempfile::TempDir;

/// A program that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends 1000 messages to and fro by UD, and sleeps (`-e`) on a completion channel before each.
#[test]
fn ud_pingpong_sleeps_on_a_completion_channel() {
    const PROGRAM: &str = "ibv_ud_pingpong";
    if !with_c_packages() {
        return eprintln!("skipped: EFA_INTEROP=1 is not set");
    }
    if Command::new(PROGRAM).arg("-?").output().is_err() {
        return is_missing("ibverbs-utils");
    }
    for link in ["shm", "tcp"] {
        let directory = TempDir::new().unwrap();
        // A free port. If another process takes it meanwhile, the test fails.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let command = |host| {
            let mut command = Command::new("timeout");
            command.args(["-k", "5", "60", PROGRAM, "-e", "-g", "0", "-p", &port.to_string()]);
            command.env("LD_PRELOAD", library()).env("EFA_SOFT_LINK", link);
            command.env("EFA_SOFT_DIRECTORY", directory.path().join("hosts"));
            command.env("EFA_SOFT_ADDRESS", loopback(host).to_string());
            command
        };
        let mut server = command(1);
        let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Killed(server);
        let output = loop {
            let output = command(2).arg("127.0.0.1").output().unwrap();
            let not_yet = String::from_utf8_lossy(&output.stderr).contains("Couldn't connect");
            if !not_yet || server.0.try_wait().unwrap().is_some() {
                break output;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = |Output { stdout, stderr, .. }| {
            String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
        };
        let succeeded = output.status.success();
        let client = said(output);
        assert!(succeeded && client.contains("1000 iters"), "{link}: {client}");
        assert!(server.0.wait().unwrap().success(), "{link}: {client}");
    }
}
