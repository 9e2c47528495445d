//! The settings of the device: environment variables.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `EFA_SOFT_LINK` | `shm`: connects processes of this host; `tcp`: connects hosts | `shm` |
//! | `EFA_SOFT_ADDRESS` | on tcp, this host's IP address, as the other hosts reach it | `127.0.0.1`, which other hosts don't reach; a message warns |
//! | `EFA_SOFT_NAME` | on shm, the name of the host: processes with the same name reach each other | `efa`, as that of the tool `efa` |
//! | `EFA_SOFT_DIRECTORY` | on shm, the directory of the hosts, which must belong to the user | `/dev/shm/efa-<uid>` |
//! | `EFA_SOFT_GENERATION` | the [generation](crate::generation) of EFA interfaces that the device is like, 1 to 4 | 4, the newest |
//! | `EFA_SOFT_MTU` | largest datagram in bytes, 1024 to 32768 | 8928 |
//! | `EFA_SOFT_DEVICES` | number of devices, 1 to 16, each on a host of its own; 1 on tcp | 1 |
//! | `EFA_SOFT_RDMA` | RDMA operations that the device offers: `read`, `write`, `read,write` or `none` | those of the generation: `read` for 1, otherwise `read,write` |
//! | `EFA_SOFT_COPIES` | on shm, `0`: reads and writes are always requested from the process with the memory, as between [containers](efa_sim::shm#rdma) | `1`: the kernel copies where it can |
//! | `EFA_SOFT_UNSOLICITED` | `1`: queue pairs can be created for which immediate data of a write uses no receive buffer (rdma-core 52 and newer); `0`: they can't | `1` where the generation has it and the device writes |
//! | `EFA_SOFT_NOTIFICATIONS` | `0`: completion queues with a completion channel are refused, as by interfaces without that capability | `1` |
//! | `EFA_SOFT_COUNTERS` | `1`: the device offers completion counters of sends, receives, reads and writes (rdma-core 65 and newer), but not of peers' reads and writes, which libfabric needs for counters of remote operations | `0` |
//! | `EFA_SOFT_REORDER` | delays sends, reads and writes at random, so that they overtake each other: the seed | in order, as far as the link keeps it |
//! | `EFA_SOFT_RNR` | probability, 0 to 1, that a datagram finds the receiver not ready (RNR) | 0 |
//! | `EFA_SOFT_RNR_EACH` | for each value of the first byte of a datagram, how many datagrams fail with RNR before one is delivered | 0 |
//! | `EFA_SOFT_LIMITS` | lower [limits](crate::limits) of the device, beyond which calls fail with `ENOMEM`, such as `qp=2,bytes=1000000`: `qp`, `cq`, `pd`, `ah`, `mr` are most objects of a process, `bytes` is the most memory that it registers | those of the device |
//! | `EFA_SOFT_REFUSE` | `LEAST-MOST:COUNT`: the first COUNT registrations of LEAST to MOST bytes fail with `ENOMEM` | none |
//! | `EFA_SOFT_CAPTURE` | pcapng file to write; `%p` in the name is replaced by the process ID | none |
//! | `EFA_SOFT_CAPTURE_BYTES` | how many bytes of each packet are captured, from its beginning | all |
//! | `EFA_SOFT_STATISTICS` | `1`: prints [counters](#counters) | `0` |
//! | `EFA_SOFT_DIRECT` | whether programs can post by rings in memory and find completions there, without calls ([direct]), and who watches the doorbells: `thread`: a thread; `trap`: the program itself, by a fault; `off`: nobody, so that programs use calls | `off` |
//! | `EFA_SOFT_SYSFS` | directory in which each process creates its sysfs tree | the temporary directory |
//!
//! With an invalid value there is no device, and a message on standard error names it.
//!
//! **Containers.** On shm, processes in different PID, user and mount namespaces reach each other if they share the
//! directory. As the kernel doesn't copy between their memory, the library of the process with the memory does: when the
//! program polls, or in the library's thread.
//!
//! [direct]: crate::direct
//!
//! # Counters
//!
//! With `EFA_SOFT_STATISTICS=1` each device that was used prints a line on standard error when the
//! program closes it, or when the process exits if it is open then:
//!
//! ```text
//! efa-soft: efa_soft0 of process 4711, closed: sends 100 of 800 B, receives 99 of 792 B, …
//! ```
//!
//! | counter | counts |
//! |---|---|
//! | `sends`, `receives` | datagrams that were posted, and that arrived, with their bytes |
//! | `reads`, `writes` | RDMA operations that were posted, with their bytes |
//! | `receiver not ready` | sends and writes that failed because the receiver had no buffer |
//! | `failed` | sends, reads and writes that failed for other reasons |
//! | `background progress` | times that the library's thread moved data because the program didn't poll; many mean that the program is slowed down by that |
//! | `doorbells`, `descriptors` | rings of doorbells of the [direct data path][direct] that were seen, several between two looks as one, and descriptors read from its rings; 0 for programs that use calls |

use std::ffi::OsString;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use efa_device::DeviceAttributes;
use efa_sim::faults::{FaultOptions, Refusals};
use efa_soft_names::{HOST_NAME, is_host_name};

use crate::generation::Generation;
use crate::limits::Limits;
use crate::link::DEFAULT_ADDRESS;

/// The link under the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkSettings {
    /// Shared memory, between processes of this host.
    Shm,
    /// TCP, between hosts.
    Tcp {
        /// The address of this host; `None` for one that only this host reaches.
        address: Option<IpAddr>,
    },
}

/// Who watches the doorbells of the [direct data path](crate::direct).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectPath {
    /// Nobody: programs get no rings, and use calls.
    Off,
    /// A thread of the library.
    Thread,
    /// The thread of the program that rings a doorbell: its write faults, and the signal handler of the library
    /// does the rest.
    Trap,
}

/// What is captured where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSettings {
    /// The file; `%p` stands for the process ID.
    pub file: String,
    /// Most bytes of a packet.
    pub bytes: usize,
}

/// The settings of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The link under the device.
    pub link: LinkSettings,
    /// Name of the host, on shm.
    pub name: String,
    /// Directory of the hosts, on shm, instead of the default.
    pub directory: Option<PathBuf>,
    /// The interfaces that the device is like.
    pub generation: Generation,
    /// Largest datagram in bytes.
    pub mtu: usize,
    /// Number of devices.
    pub devices: usize,
    /// Whether the device offers RDMA read.
    pub rdma_read: bool,
    /// Whether the device offers RDMA write.
    pub rdma_write: bool,
    /// Whether the kernel copies where it can, on shm.
    pub copies: bool,
    /// Whether queue pairs can be created for which immediate data of a write uses no receive buffer.
    pub unsolicited_writes: bool,
    /// Whether completion queues can have a completion channel.
    pub notifications: bool,
    /// Whether queue pairs can have completion counters.
    pub counters: bool,
    /// Seed for delays of sends, reads and writes.
    pub reorder: Option<u64>,
    /// Probability that a datagram finds the receiver not ready.
    pub receiver_not_ready: f64,
    /// For each value of the first byte, how many datagrams find the receiver not ready.
    pub not_ready_of_each: u32,
    /// How many objects a process has.
    pub limits: Limits,
    /// Memory registrations that fail.
    pub refusals: Option<Refusals>,
    /// Capture of packets.
    pub capture: Option<CaptureSettings>,
    /// Whether counters are printed.
    pub statistics: bool,
    /// Whether programs can post by rings and find completions there.
    pub direct: DirectPath,
    /// Directory for the sysfs tree, instead of the temporary directory.
    pub sysfs: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            link: LinkSettings::Shm,
            name: "efa".into(),
            directory: None,
            generation: Generation::default(),
            mtu: DeviceAttributes::default().mtu,
            devices: 1,
            rdma_read: true,
            rdma_write: true,
            copies: true,
            unsolicited_writes: true,
            notifications: true,
            counters: false,
            reorder: None,
            receiver_not_ready: 0.0,
            not_ready_of_each: 0,
            limits: Limits::default(),
            refusals: None,
            capture: None,
            statistics: false,
            direct: DirectPath::Off,
            sysfs: None,
        }
    }
}

impl Settings {
    /// The faults that the settings ask for.
    pub(crate) fn faults(&self) -> FaultOptions {
        FaultOptions::default().with(|faults| {
            faults.reorder = self.reorder;
            faults.receiver_not_ready = self.receiver_not_ready;
            faults.not_ready_of_each = self.not_ready_of_each;
            faults.refusals = self.refusals;
        })
    }

    /// What the user should know about these settings.
    pub(crate) fn warning(&self) -> Option<impl Display> {
        let no_address = self.link == LinkSettings::Tcp { address: None };
        no_address.then(|| {
            format!(
                "EFA_SOFT_LINK=tcp without EFA_SOFT_ADDRESS: the device has the address \
                 {DEFAULT_ADDRESS}, which no other host reaches; set EFA_SOFT_ADDRESS \
                 (`efa soft-efa run --address`) to this host's IP address"
            )
        })
    }
}

/// A variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not {expected}")]
pub struct SettingsError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What is valid.
    pub expected: &'static str,
}

impl Settings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable with an invalid value.
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::from_variables(std::env::var_os::<&str>)
    }

    /// Reads variables; an empty one counts as absent.
    ///
    /// # Errors
    /// [`SettingsError`] for the first variable with an invalid value.
    pub fn from_variables(
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, SettingsError> {
        let read = Variables { variable };
        let default = Self::default();
        let address = read.parse("EFA_SOFT_ADDRESS", "an IP address of this host", |value| {
            value.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
        })?;
        let link = read.parse("EFA_SOFT_LINK", "shm or tcp", |value| match value {
            "shm" => Some(LinkSettings::Shm),
            "tcp" => Some(LinkSettings::Tcp { address }),
            _ => None,
        })?;
        let link = link.unwrap_or(default.link);
        let name = read.parse("EFA_SOFT_NAME", HOST_NAME, |value| {
            is_host_name(value).then(|| value.to_owned())
        })?;
        let path = |value: &str| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        let directory = read.parse("EFA_SOFT_DIRECTORY", "an absolute path", path)?;
        let sysfs = read.parse("EFA_SOFT_SYSFS", "an absolute path", path)?;
        let generation = read.parse("EFA_SOFT_GENERATION", "a number from 1 to 4", |value| {
            value.parse().ok().and_then(Generation::from_number)
        })?;
        let generation = generation.unwrap_or(default.generation);
        let mtu = read.parse("EFA_SOFT_MTU", "a number from 1024 to 32768", |value| {
            value.parse().ok().filter(|mtu| (1024..=32768).contains(mtu))
        })?;
        let (most, expected) = match link {
            LinkSettings::Shm => (16, "a number from 1 to 16"),
            LinkSettings::Tcp { .. } => (1, "1: a host on the tcp link has one address"),
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
        let limits = read.parse("EFA_SOFT_LIMITS", LIMITS, |value| value.parse().ok())?;
        let refusals =
            read.parse("EFA_SOFT_REFUSE", "LEAST-MOST:COUNT", |value| value.parse().ok())?;
        let capture =
            read.parse("EFA_SOFT_CAPTURE", "a file name", |value| Some(value.to_owned()))?;
        let bytes = read.parse("EFA_SOFT_CAPTURE_BYTES", "a number", |value| value.parse().ok())?;
        let bytes = bytes.unwrap_or(usize::MAX);
        let capture = capture.map(|file| CaptureSettings { file, bytes });
        let statistics = read.parse("EFA_SOFT_STATISTICS", "0 or 1", zero_or_one)?;
        let copies = read.parse("EFA_SOFT_COPIES", "0 or 1", zero_or_one)?;
        let unsolicited_writes = read.parse("EFA_SOFT_UNSOLICITED", "0 or 1", zero_or_one)?;
        let direct = read.parse("EFA_SOFT_DIRECT", "thread, trap or off", |value| match value {
            "thread" => Some(DirectPath::Thread),
            "trap" => Some(DirectPath::Trap),
            "off" => Some(DirectPath::Off),
            _ => None,
        })?;
        let notifications = read.parse("EFA_SOFT_NOTIFICATIONS", "0 or 1", zero_or_one)?;
        let counters = read.parse("EFA_SOFT_COUNTERS", "0 or 1", zero_or_one)?;
        let (rdma_read, rdma_write) = rdma.unwrap_or((true, generation.writes()));
        let unsolicited_writes =
            unsolicited_writes.unwrap_or(rdma_write && generation.unsolicited_writes());
        Ok(Self {
            link,
            name: name.unwrap_or(default.name),
            directory,
            generation,
            mtu: mtu.unwrap_or(default.mtu),
            devices: devices.unwrap_or(default.devices),
            rdma_read,
            rdma_write,
            copies: copies.unwrap_or(default.copies),
            unsolicited_writes,
            notifications: notifications.unwrap_or(default.notifications),
            counters: counters.unwrap_or(default.counters),
            reorder,
            receiver_not_ready: rnr.unwrap_or(default.receiver_not_ready),
            not_ready_of_each: of_each.unwrap_or(default.not_ready_of_each),
            limits: limits.unwrap_or_default(),
            refusals,
            capture,
            statistics: statistics.unwrap_or(default.statistics),
            direct: direct.unwrap_or(default.direct),
            sysfs,
        })
    }

    /// The host that device `index` is on, on shm; the first has the name without a number.
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

const LIMITS: &str =
    "a list of NAME=NUMBER, with the names qp, cq, pd, ah, mr, bytes and numbers up to the default";

struct Variables<F> {
    variable: F,
}

impl<F: Fn(&'static str) -> Option<OsString>> Variables<F> {
    fn parse<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingsError> {
        let Some(value) = (self.variable)(variable).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let invalid = |value, expected| SettingsError { variable, value, expected };
        let value = value
            .into_string()
            .map_err(|value| invalid(value.to_string_lossy().into_owned(), "valid UTF-8"))?;
        match parse(&value) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(invalid(value, expected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn settings_without_variables_are_the_defaults() {
        assert_eq!(parse(&[]), Ok(Settings::default()));
        assert_eq!(parse(&[("EFA_SOFT_MTU", "")]), Ok(Settings::default()));
    }

    #[test]
    fn settings_follow_their_variables() {
        let settings = parse(&[
            ("EFA_SOFT_NAME", "a.b-c_1"),
            ("EFA_SOFT_DIRECTORY", "/tmp/x"),
            ("EFA_SOFT_GENERATION", "2"),
            ("EFA_SOFT_MTU", "4096"),
            ("EFA_SOFT_DEVICES", "2"),
            ("EFA_SOFT_RDMA", "read"),
            ("EFA_SOFT_COPIES", "0"),
            ("EFA_SOFT_UNSOLICITED", "1"),
            ("EFA_SOFT_NOTIFICATIONS", "0"),
            ("EFA_SOFT_COUNTERS", "1"),
            ("EFA_SOFT_REORDER", "18446744073709551615"),
            ("EFA_SOFT_RNR", "0.25"),
            ("EFA_SOFT_RNR_EACH", "2"),
            ("EFA_SOFT_LIMITS", "qp=2,ah=3"),
            ("EFA_SOFT_REFUSE", "1000-2000:3"),
            ("EFA_SOFT_CAPTURE", "/tmp/%p.pcapng"),
            ("EFA_SOFT_CAPTURE_BYTES", "128"),
            ("EFA_SOFT_STATISTICS", "1"),
            ("EFA_SOFT_DIRECT", "trap"),
            ("EFA_SOFT_SYSFS", "/tmp/y"),
        ]);
        let expected = Settings {
            link: LinkSettings::Shm,
            name: "a.b-c_1".into(),
            directory: Some("/tmp/x".into()),
            generation: Generation::Second,
            mtu: 4096,
            devices: 2,
            rdma_read: true,
            rdma_write: false,
            copies: false,
            unsolicited_writes: true,
            notifications: false,
            counters: true,
            reorder: Some(u64::MAX),
            receiver_not_ready: 0.25,
            not_ready_of_each: 2,
            limits: Limits { queue_pairs: 2, address_handles: 3, ..Limits::default() },
            refusals: Some(Refusals { least: 1000, most: 2000, count: 3 }),
            capture: Some(CaptureSettings { file: "/tmp/%p.pcapng".into(), bytes: 128 }),
            statistics: true,
            direct: DirectPath::Trap,
            sysfs: Some("/tmp/y".into()),
        };
        assert_eq!(settings, Ok(expected.clone()));
        assert_eq!([expected.host(0), expected.host(1)], ["a.b-c_1", "a.b-c_1.1"]);
    }

    #[test]
    fn generation_decides_what_its_options_leave_open() {
        let offered = |variables: &[_]| {
            let settings = parse(variables).unwrap();
            [settings.rdma_read, settings.rdma_write, settings.unsolicited_writes]
        };
        let of = |number| offered(&[("EFA_SOFT_GENERATION", number)]);
        assert_eq!(of("1"), [true, false, false]);
        assert_eq!(of("2"), [true, true, false]);
        assert_eq!(of("3"), [true; 3]);
        assert_eq!((of("4"), offered(&[])), ([true; 3], [true; 3]));
        let first = ("EFA_SOFT_GENERATION", "1");
        assert_eq!(offered(&[first, ("EFA_SOFT_RDMA", "read,write")]), [true, true, false]);
        assert_eq!(offered(&[first, ("EFA_SOFT_UNSOLICITED", "1")]), [true, false, true]);
        assert_eq!(offered(&[("EFA_SOFT_RDMA", "read")]), [true, false, false]);
        assert_eq!(offered(&[("EFA_SOFT_UNSOLICITED", "0")]), [true, true, false]);
    }

    #[test]
    fn tcp_link_without_address_is_warned_about() {
        let link = |variables: &[_]| parse(variables).unwrap().link;
        let tcp = |address: &str| LinkSettings::Tcp { address: Some(address.parse().unwrap()) };
        let alone = parse(&[("EFA_SOFT_LINK", "tcp")]).unwrap();
        assert_eq!(alone.link, LinkSettings::Tcp { address: None });
        let warning = alone.warning().unwrap().to_string();
        assert!(warning.contains("address 127.0.0.1, which no other host reaches"), "{warning}");
        let both = [("EFA_SOFT_LINK", "tcp"), ("EFA_SOFT_ADDRESS", "fd00::7")];
        assert_eq!(link(&both), tcp("fd00::7"));
        assert!(parse(&both).unwrap().warning().is_none());
        assert_eq!(link(&[("EFA_SOFT_ADDRESS", "10.0.0.1")]), LinkSettings::Shm);
        let two = parse(&[("EFA_SOFT_LINK", "tcp"), ("EFA_SOFT_DEVICES", "2")]).unwrap_err();
        assert!(two.to_string().contains("one address"), "{two}");
    }

    #[test]
    fn value_that_is_not_utf_8_is_an_error_and_not_another_name() {
        let value = || OsString::from_vec(b"/tmp/\xff".to_vec());
        for variable in ["EFA_SOFT_DIRECTORY", "EFA_SOFT_CAPTURE"] {
            let error = Settings::from_variables(|name| (name == variable).then(value));
            let error = error.unwrap_err().to_string();
            assert_eq!(error, format!("{variable}=\"/tmp/\u{fffd}\" is not valid UTF-8"));
        }
    }

    #[test]
    fn invalid_value_is_an_error_with_variable_and_value() {
        for (variable, value) in [
            ("EFA_SOFT_LINK", "udp"),
            ("EFA_SOFT_ADDRESS", "localhost"),
            ("EFA_SOFT_ADDRESS", "0.0.0.0"),
            ("EFA_SOFT_NAME", ".hidden"),
            ("EFA_SOFT_NAME", "a/b"),
            ("EFA_SOFT_DIRECTORY", "relative"),
            ("EFA_SOFT_GENERATION", "0"),
            ("EFA_SOFT_GENERATION", "5"),
            ("EFA_SOFT_GENERATION", "p5"),
            ("EFA_SOFT_MTU", "1023"),
            ("EFA_SOFT_MTU", "32769"),
            ("EFA_SOFT_MTU", "8k"),
            ("EFA_SOFT_DEVICES", "0"),
            ("EFA_SOFT_DEVICES", "17"),
            ("EFA_SOFT_RDMA", "reads"),
            ("EFA_SOFT_COPIES", "no"),
            ("EFA_SOFT_UNSOLICITED", "2"),
            ("EFA_SOFT_REORDER", "-1"),
            ("EFA_SOFT_RNR", "1.5"),
            ("EFA_SOFT_RNR", "NaN"),
            ("EFA_SOFT_RNR_EACH", "0.5"),
            ("EFA_SOFT_LIMITS", "qp=many"),
            ("EFA_SOFT_LIMITS", "cq=1025"),
            ("EFA_SOFT_REFUSE", "3"),
            ("EFA_SOFT_CAPTURE_BYTES", "-1"),
            ("EFA_SOFT_STATISTICS", "yes"),
            ("EFA_SOFT_DIRECT", "1"),
            ("EFA_SOFT_SYSFS", "relative"),
        ] {
            let error = parse(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            let text = error.to_string();
            assert!(text.starts_with(&format!("{variable}={value:?} is not ")), "{text}");
        }
    }
}
