//! What the environment says about the device.
//!
//! | variable | means | default |
//! |---|---|---|
//! | `EFA_SOFT_LINK` | `shm`: processes of this host reach each other; `tcp`: those of several | `shm` |
//! | `EFA_SOFT_ADDRESS` | on tcp, the IP address of this host by which the others reach it | `127.0.0.1` |
//! | `EFA_SOFT_NAME` | on shm, the host: processes with the same name reach each other | `default` |
//! | `EFA_SOFT_DIRECTORY` | on shm, where hosts are | `/dev/shm/efa-<uid>` |
//! | `EFA_SOFT_MTU` | largest datagram in bytes, 1024 to 32768 | 8928 |
//! | `EFA_SOFT_DEVICES` | number of devices, 1 to 16; each is a host of its own; 1 on tcp | 1 |
//! | `EFA_SOFT_RDMA` | `read`, `write`, `read,write` or `none` | `read,write` |
//! | `EFA_SOFT_UNSOLICITED` | `1`: immediate data of a write takes no receive buffer of a queue pair that asked for that, as programs of rdma-core 52 and newer can | `0` |
//! | `EFA_SOFT_REORDER` | a seed: datagrams overtake each other | they don't |
//! | `EFA_SOFT_RNR` | chance 0 to 1 that a datagram finds the receiver not ready | 0 |
//! | `EFA_SOFT_RNR_EACH` | how many datagrams that begin with the same byte find the receiver not ready before one gets through | 0 |
//! | `EFA_SOFT_REFUSE` | `LEAST-MOST:COUNT`: so many registrations of so many bytes fail with `ENOMEM` | none |
//! | `EFA_SOFT_CAPTURE` | pcapng file to write; `%p` stands for the process | none |
//! | `EFA_SOFT_STATISTICS` | `1`: print counters at the end of the process | `0` |
//! | `EFA_SOFT_SYSFS` | where processes make their sysfs trees | the temporary directory |
//!
//! A bad value is told on standard error, and there is no device then.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use efa_device::DeviceAttributes;
use efa_sim::faults::{FaultOptions, Refusals};

/// What is under the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkSettings {
    /// Shared memory of this host.
    Shm,
    /// TCP.
    Tcp {
        /// The address of this host.
        address: IpAddr,
    },
}

/// The settings of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What is under the device.
    pub link: LinkSettings,
    /// The host.
    pub name: String,
    /// Where hosts are, if not at the usual place.
    pub directory: Option<PathBuf>,
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// Number of devices.
    pub devices: usize,
    /// Whether the device reads remote memory.
    pub rdma_read: bool,
    /// Whether the device writes remote memory.
    pub rdma_write: bool,
    /// Whether queue pairs can ask that immediate data of a write takes no receive buffer.
    pub unsolicited: bool,
    /// Seed for reordering.
    pub reorder: Option<u64>,
    /// Chance of a receiver that is not ready.
    pub receiver_not_ready: f64,
    /// Of the datagrams that begin with the same byte, how many find the receiver not ready first.
    pub not_ready_of_each: u32,
    /// Registrations that fail.
    pub refusals: Option<Refusals>,
    /// Capture file.
    pub capture: Option<String>,
    /// Whether counters are printed at the end.
    pub statistics: bool,
    /// Where the sysfs tree is made, if not in the temporary directory.
    pub sysfs: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            link: LinkSettings::Shm,
            name: "default".into(),
            directory: None,
            mtu: DeviceAttributes::default().mtu,
            devices: 1,
            rdma_read: true,
            rdma_write: true,
            unsolicited: false,
            reorder: None,
            receiver_not_ready: 0.0,
            not_ready_of_each: 0,
            refusals: None,
            capture: None,
            statistics: false,
            sysfs: None,
        }
    }
}

impl Settings {
    /// What is to go wrong.
    pub(crate) fn faults(&self) -> FaultOptions {
        FaultOptions {
            reorder: self.reorder,
            receiver_not_ready: self.receiver_not_ready,
            not_ready_of_each: self.not_ready_of_each,
            refusals: self.refusals,
        }
    }
}

/// A variable with a value that it can't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not {expected}")]
pub struct SettingsError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub expected: &'static str,
}

/// Longest name, with room for the number of the device.
const MAX_NAME: usize = 60;

impl Settings {
    /// The settings that the environment of this process gives.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable with a bad value.
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::from_variables(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    /// The settings that variables give; an empty variable counts as absent.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable with a bad value.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let read = Variables { variable };
        let default = Self::default();
        let address = read.parse("EFA_SOFT_ADDRESS", "an IP address of this host", |value| {
            value.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
        })?;
        let link = read.parse("EFA_SOFT_LINK", "shm or tcp", |value| match value {
            "shm" => Some(LinkSettings::Shm),
            "tcp" => {
                let address = address.unwrap_or(Ipv4Addr::LOCALHOST.into());
                Some(LinkSettings::Tcp { address })
            }
            _ => None,
        })?;
        let link = link.unwrap_or(default.link);
        let name = read.parse("EFA_SOFT_NAME", NAME, |value| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let good = value.chars().all(allowed) && !value.starts_with('.');
            (good && value.len() <= MAX_NAME).then(|| value.to_owned())
        })?;
        let path = |value: &str| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        let directory = read.parse("EFA_SOFT_DIRECTORY", "an absolute path", path)?;
        let sysfs = read.parse("EFA_SOFT_SYSFS", "an absolute path", path)?;
        let mtu = read.parse("EFA_SOFT_MTU", "a number from 1024 to 32768", |value| {
            value.parse().ok().filter(|mtu| (1024..=32768).contains(mtu))
        })?;
        let (most, expected) = match link {
            LinkSettings::Shm => (16, "a number from 1 to 16"),
            LinkSettings::Tcp { .. } => (1, "1, as a host has one address on the tcp link"),
        };
        let devices = read.parse("EFA_SOFT_DEVICES", expected, |value| {
            value.parse().ok().filter(|devices| (1..=most).contains(devices))
        })?;
        let expected = "read, write, read,write or none";
        let rdma = read.parse("EFA_SOFT_RDMA", expected, |value| match value {
            "none" => Some((false, false)),
            "read" => Some((true, false)),
            "write" => Some((false, true)),
            "read,write" | "write,read" => Some((true, true)),
            _ => None,
        })?;
        let reorder =
            read.parse("EFA_SOFT_REORDER", "a number (the seed)", |value| value.parse().ok())?;
        let rnr = read.parse("EFA_SOFT_RNR", "a number from 0 to 1", |value| {
            value.parse().ok().filter(|rate| (0.0..=1.0).contains(rate))
        })?;
        let of_each = read.parse("EFA_SOFT_RNR_EACH", "a number", |value| value.parse().ok())?;
        let refusals =
            read.parse("EFA_SOFT_REFUSE", "LEAST-MOST:COUNT", |value| value.parse().ok())?;
        let capture =
            read.parse("EFA_SOFT_CAPTURE", "a file name", |value| Some(value.to_owned()))?;
        let statistics = read.parse("EFA_SOFT_STATISTICS", "0 or 1", zero_or_one)?;
        let unsolicited = read.parse("EFA_SOFT_UNSOLICITED", "0 or 1", zero_or_one)?;
        let (rdma_read, rdma_write) = rdma.unwrap_or((default.rdma_read, default.rdma_write));
        Ok(Self {
            link,
            name: name.unwrap_or(default.name),
            directory,
            mtu: mtu.unwrap_or(default.mtu),
            devices: devices.unwrap_or(default.devices),
            rdma_read,
            rdma_write,
            unsolicited: unsolicited.unwrap_or(default.unsolicited),
            reorder,
            receiver_not_ready: rnr.unwrap_or(default.receiver_not_ready),
            not_ready_of_each: of_each.unwrap_or(default.not_ready_of_each),
            refusals,
            capture,
            statistics: statistics.unwrap_or(default.statistics),
            sysfs,
        })
    }

    /// The host that device `index` is on: the first is the one of the plain name.
    #[must_use]
    pub fn host(&self, index: usize) -> String {
        match index {
            0 => self.name.clone(),
            _ => format!("{}.{index}", self.name),
        }
    }
}

fn zero_or_one(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

const NAME: &str = "1 to 60 of letters, digits, '.', '_', '-', not '.' first";

struct Variables<F> {
    variable: F,
}

impl<F: Fn(&'static str) -> Option<String>> Variables<F> {
    fn parse<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingsError> {
        let Some(value) = (self.variable)(variable).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        match parse(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(SettingsError { variable, value, expected }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(parse(&[]), Ok(Settings::default()));
        assert_eq!(parse(&[("EFA_SOFT_MTU", "")]), Ok(Settings::default()));
    }

    #[test]
    fn everything_set_is_taken() {
        let settings = parse(&[
            ("EFA_SOFT_NAME", "a.b-c_1"),
            ("EFA_SOFT_DIRECTORY", "/tmp/x"),
            ("EFA_SOFT_MTU", "4096"),
            ("EFA_SOFT_DEVICES", "2"),
            ("EFA_SOFT_RDMA", "read"),
            ("EFA_SOFT_UNSOLICITED", "1"),
            ("EFA_SOFT_REORDER", "18446744073709551615"),
            ("EFA_SOFT_RNR", "0.25"),
            ("EFA_SOFT_RNR_EACH", "2"),
            ("EFA_SOFT_REFUSE", "1000-2000:3"),
            ("EFA_SOFT_CAPTURE", "/tmp/%p.pcapng"),
            ("EFA_SOFT_STATISTICS", "1"),
            ("EFA_SOFT_SYSFS", "/tmp/y"),
        ]);
        let expected = Settings {
            link: LinkSettings::Shm,
            name: "a.b-c_1".into(),
            directory: Some("/tmp/x".into()),
            mtu: 4096,
            devices: 2,
            rdma_read: true,
            rdma_write: false,
            unsolicited: true,
            reorder: Some(u64::MAX),
            receiver_not_ready: 0.25,
            not_ready_of_each: 2,
            refusals: Some(Refusals { least: 1000, most: 2000, count: 3 }),
            capture: Some("/tmp/%p.pcapng".into()),
            statistics: true,
            sysfs: Some("/tmp/y".into()),
        };
        assert_eq!(settings, Ok(expected.clone()));
        assert_eq!([expected.host(0), expected.host(1)], ["a.b-c_1", "a.b-c_1.1"]);
    }

    #[test]
    fn the_tcp_link_has_an_address() {
        let link = |variables: &[_]| parse(variables).unwrap().link;
        let tcp = |address: &str| LinkSettings::Tcp { address: address.parse().unwrap() };
        assert_eq!(link(&[("EFA_SOFT_LINK", "tcp")]), tcp("127.0.0.1"));
        let both = [("EFA_SOFT_LINK", "tcp"), ("EFA_SOFT_ADDRESS", "fd00::7")];
        assert_eq!(link(&both), tcp("fd00::7"));
        assert_eq!(link(&[("EFA_SOFT_ADDRESS", "10.0.0.1")]), LinkSettings::Shm);
        let two = parse(&[("EFA_SOFT_LINK", "tcp"), ("EFA_SOFT_DEVICES", "2")]).unwrap_err();
        assert!(two.to_string().contains("one address"), "{two}");
    }

    #[test]
    fn bad_values_are_named() {
        for (variable, value) in [
            ("EFA_SOFT_LINK", "udp"),
            ("EFA_SOFT_ADDRESS", "localhost"),
            ("EFA_SOFT_ADDRESS", "0.0.0.0"),
            ("EFA_SOFT_NAME", ".hidden"),
            ("EFA_SOFT_NAME", "a/b"),
            ("EFA_SOFT_DIRECTORY", "relative"),
            ("EFA_SOFT_MTU", "1023"),
            ("EFA_SOFT_MTU", "32769"),
            ("EFA_SOFT_MTU", "8k"),
            ("EFA_SOFT_DEVICES", "0"),
            ("EFA_SOFT_DEVICES", "17"),
            ("EFA_SOFT_RDMA", "reads"),
            ("EFA_SOFT_UNSOLICITED", "2"),
            ("EFA_SOFT_REORDER", "-1"),
            ("EFA_SOFT_RNR", "1.5"),
            ("EFA_SOFT_RNR", "NaN"),
            ("EFA_SOFT_RNR_EACH", "0.5"),
            ("EFA_SOFT_REFUSE", "3"),
            ("EFA_SOFT_STATISTICS", "yes"),
            ("EFA_SOFT_SYSFS", "relative"),
        ] {
            let error = parse(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            let text = error.to_string();
            assert!(text.starts_with(&format!("{variable}={value:?} is not ")), "{text}");
        }
    }
}
