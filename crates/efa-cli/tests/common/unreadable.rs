//! Programs whose memory other processes of their user can't read.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::Scratch;

/// `nobody`, an ordinary user: root may read anything.
const USER: u32 = 65534;
/// Starts a program as that user.
pub(crate) const AS_USER: [&str; 4] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// A place for programs that the user may run and not read, which the kernel then makes not dumpable; and for
/// the devices of the user.
pub(crate) struct Unreadable {
    place: Scratch,
    devices: String,
}

impl Unreadable {
    /// `None`, said with the reason, if this user can't start programs as another, or the kernel lets programs
    /// be dumpable that their user can't read.
    pub(crate) fn new() -> Option<Self> {
        let setting = std::fs::read_to_string("/proc/sys/fs/suid_dumpable");
        if setting.is_ok_and(|setting| setting.trim() == "1") {
            eprintln!("skipped: fs.suid_dumpable is 1");
            return None;
        }
        let possible = Command::new(AS_USER[0]).args(&AS_USER[1..]).arg("true").output();
        if !possible.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: a program can't be started as user {USER}: {possible:?}");
            return None;
        }
        let place = Scratch::new("unreadable");
        let devices = format!("{}/devices", place.as_str());
        std::fs::create_dir_all(&devices).unwrap();
        std::fs::set_permissions(&devices, PermissionsExt::from_mode(0o700)).unwrap();
        chown(&devices, Some(USER), Some(USER)).unwrap();
        let mut reaches = Command::new(AS_USER[0]);
        reaches.args(&AS_USER[1..]).args(["test", "-w", &devices]);
        if !reaches.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: user {USER} can't reach {devices}");
            return None;
        }
        Some(Self { place, devices })
    }

    /// The user's directory for devices.
    pub(crate) fn devices(&self) -> &str {
        &self.devices
    }

    /// The path of a copy of the program.
    pub(crate) fn copy(&self, program: &str) -> String {
        let name = Path::new(program).file_name().unwrap();
        let copy = Path::new(self.place.as_str()).join(name);
        std::fs::copy(program, &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o711)).unwrap();
        copy.to_str().unwrap().to_owned()
    }
}
