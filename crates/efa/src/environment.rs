//! Environment variables of libfabric's EFA provider (`FI_EFA_*`).
//!
//! ```text
//!   FI_EFA_RUNT_SIZE=307200 ─► Parameter ─► EndpointOptions, CompletionQueueOptions
//!                                 └► Mistake: an invalid value, and the default is kept
//! ```
//!
//! The library reads no variables by itself. A program that supports them calls [`Environment::read`] and
//! creates its objects with the options that it returns.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use efa_handshake::Extras;

use crate::completion_queue::CompletionQueueOptions;
use crate::endpoint_options::EndpointOptions;
use crate::registrations::RegistrationLimits;

const PREFIX: &str = "FI_EFA_";

/// Options set by environment variables; defaults where no variable is set.
///
/// ```
/// use efa::Environment;
///
/// let variables = [("FI_EFA_RUNT_SIZE", "0x4b000"), ("FI_EFA_CQ_SIZE", "few")];
/// let environment = Environment::of(variables);
/// assert_eq!(environment.endpoint.protocol.runt_size, 307_200);
/// assert_eq!(environment.completion_queue.capacity, 8192);
/// assert_eq!(
///     environment.mistakes[0].to_string(),
///     "FI_EFA_CQ_SIZE=few: a whole number from 1 to 4294967295 is expected"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// Options of endpoints.
    pub endpoint: EndpointOptions,
    /// Options of completion queues.
    pub completion_queue: CompletionQueueOptions,
    /// Limits for [`Domain::limit_registrations`](crate::Domain::limit_registrations).
    pub registrations: RegistrationLimits,
    /// Unknown variables and invalid values, which set nothing.
    pub mistakes: Vec<Mistake>,
}

impl Environment {
    /// Reads the variables of this process. Mistakes are also logged as warnings.
    #[must_use]
    pub fn read() -> Self {
        let environment = Self::of(std::env::vars_os());
        for mistake in &environment.mistakes {
            tracing::warn!("{mistake}");
        }
        environment
    }

    /// Reads these variables. Names that don't begin with `FI_EFA_` are ignored.
    #[must_use]
    pub fn of<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let mut environment = Self::default();
        for (name, value) in variables {
            let name = name.into();
            let name = name.to_string_lossy();
            if name.starts_with(PREFIX) {
                let value = value.into().to_string_lossy().into_owned();
                if let Err(mistake) = environment.set(&name, value) {
                    environment.mistakes.push(mistake);
                }
            }
        }
        environment
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Mistake> {
        match Parameter::ALL.iter().find(|parameter| parameter.name == name) {
            None => Err(Mistake::Unknown { name: name.to_owned() }),
            Some(Parameter { name, effect: Effect::Sets { kind, set, .. }, .. }) => {
                match kind.parse(&value) {
                    Some(value) => {
                        set(self, value);
                        Ok(())
                    }
                    None => Err(Mistake::Value { name, value, expected: *kind }),
                }
            }
            Some(_) => Ok(()),
        }
    }
}

/// An unknown variable, or an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The value is invalid.
    #[error("{name}={value}: {expected} is expected")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is valid.
        expected: ParameterKind,
    },
    /// No release of libfabric has it.
    #[error("{name} is not a parameter of the EFA provider")]
    Unknown {
        /// The variable.
        name: String,
    },
}

/// Valid values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterKind {
    /// A whole number, decimal or hexadecimal with `0x`.
    Number {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// `1`, `on`, `true`, `yes`, or `0`, `off`, `false`, `no`.
    Switch,
}

impl ParameterKind {
    fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Self::Number { least, most } => {
                let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
                let number = match hexadecimal {
                    // The standard library accepts a sign; libfabric doesn't.
                    Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
                    _ => text.parse(),
                };
                let number = number.ok().filter(|number| (least..=most).contains(number))?;
                Some(Value::Number(number))
            }
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "on" | "true" | "yes" => Some(Value::Switch(true)),
                "0" | "off" | "false" | "no" => Some(Value::Switch(false)),
                _ => None,
            },
        }
    }
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { least, most } => write!(f, "a whole number from {least} to {most}"),
            Self::Switch => f.write_str("on or off"),
        }
    }
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Number(u64),
    /// On or off.
    Switch(bool),
}

impl Value {
    /// The number; 0 or 1 for a switch.
    fn number(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Switch(on) => on.into(),
        }
    }

    fn count(self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Switch(on) => f.pad(if *on { "on" } else { "off" }),
        }
    }
}

/// A variable of any release of libfabric's EFA provider.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it sets, or why it has no effect here.
    pub help: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// It sets an option.
    Sets { kind: ParameterKind, set: fn(&mut Environment, Value), get: fn(&Environment) -> Value },
    /// It has no effect here.
    None,
}

impl Parameter {
    /// All: first those that set an option, then those without effect; each group sorted.
    pub const ALL: &'static [Self] = PARAMETERS;

    /// Valid values; `None` if it has no effect here.
    #[must_use]
    pub fn kind(&self) -> Option<ParameterKind> {
        match self.effect {
            Effect::Sets { kind, .. } => Some(kind),
            Effect::None => None,
        }
    }

    /// Its value in an environment; `None` if it has no effect here.
    #[must_use]
    pub fn value(&self, environment: &Environment) -> Option<Value> {
        match self.effect {
            Effect::Sets { get, .. } => Some(get(environment)),
            Effect::None => None,
        }
    }
}

const fn number(
    name: &'static str,
    help: &'static str,
    (least, most): (u64, u64),
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    let kind = ParameterKind::Number { least, most };
    Parameter { name, help, effect: Effect::Sets { kind, set, get } }
}

const fn switch(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Environment, Value),
    get: fn(&Environment) -> Value,
) -> Parameter {
    Parameter { name, help, effect: Effect::Sets { kind: ParameterKind::Switch, set, get } }
}

const fn no_effect(name: &'static str, help: &'static str) -> Parameter {
    Parameter { name, help, effect: Effect::None }
}

const ANY: (u64, u64) = (0, u64::MAX);
const POSITIVE: (u64, u64) = (1, u64::MAX);
/// Entries of queues and tables.
const ENTRIES: (u64, u64) = (1, u32::MAX as u64);
/// Microseconds, in libfabric's range.
const MICROSECONDS: (u64, u64) = (0, i32::MAX as u64 / 2 - 1);

fn micros(duration: Duration) -> Value {
    Value::Number(duration.as_micros().try_into().unwrap_or(u64::MAX))
}

/// Sets whether features are announced. Those that the device lacks are removed when the endpoint is
/// enabled.
fn announce(environment: &mut Environment, features: Extras, value: Value) {
    environment.endpoint.protocol.profile.extras.set(features, value == Value::Switch(true));
}

fn announces(environment: &Environment, features: Extras) -> Value {
    Value::Switch(environment.endpoint.protocol.profile.extras.intersects(features))
}

const RDMA: Extras = Extras::RDMA_READ.union(Extras::RDMA_WRITE);

static PARAMETERS: &[Parameter] = &[
    number(
        "FI_EFA_CQ_SIZE",
        "capacity of a completion queue in entries",
        ENTRIES,
        |at, value| at.completion_queue.capacity = value.count(),
        |at| Value::Number(at.completion_queue.capacity as u64),
    ),
    number(
        "FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE",
        "longest message in bytes that is sent without flow control (medium)",
        ANY,
        |at, value| at.endpoint.protocol.max_medium = value.number(),
        |at| Value::Number(at.endpoint.protocol.max_medium),
    ),
    number(
        "FI_EFA_INTER_MIN_READ_MESSAGE_SIZE",
        "shortest message in bytes that the receiver reads by RDMA (long-read)",
        ANY,
        |at, value| at.endpoint.protocol.min_read = value.number(),
        |at| Value::Number(at.endpoint.protocol.min_read),
    ),
    number(
        "FI_EFA_INTER_MIN_READ_WRITE_SIZE",
        "shortest write in bytes that the target reads by RDMA",
        ANY,
        |at, value| at.endpoint.protocol.min_read_write = value.number(),
        |at| Value::Number(at.endpoint.protocol.min_read_write),
    ),
    number(
        "FI_EFA_INTER_READ_SEGMENT_SIZE",
        "most bytes of one RDMA operation",
        POSITIVE,
        |at, value| at.endpoint.protocol.rdma_segment = value.number(),
        |at| Value::Number(at.endpoint.protocol.rdma_segment),
    ),
    number(
        "FI_EFA_MAX_MEMCPY_SIZE",
        "longest buffer in bytes that is copied for RDMA rather than registered",
        (1, 1 << 30),
        |at, value| at.endpoint.protocol.bounce_size = value.count(),
        |at| Value::Number(at.endpoint.protocol.bounce_size as u64),
    ),
    number(
        "FI_EFA_MAX_TIMEOUT",
        "longest RNR backoff in microseconds",
        MICROSECONDS,
        |at, value| {
            at.endpoint.protocol.backoff.longest = Duration::from_micros(value.number());
        },
        |at| micros(at.endpoint.protocol.backoff.longest),
    ),
    number(
        "FI_EFA_MR_MAX_CACHED_COUNT",
        "most idle regions in the registration cache",
        ANY,
        |at, value| at.registrations.count = value.count(),
        |at| Value::Number(at.registrations.count as u64),
    ),
    number(
        "FI_EFA_MR_MAX_CACHED_SIZE",
        "most bytes of idle regions in the registration cache",
        ANY,
        |at, value| at.registrations.bytes = value.count(),
        |at| Value::Number(at.registrations.bytes as u64),
    ),
    number(
        "FI_EFA_RUNT_SIZE",
        "bytes of a message sent eagerly while the receiver reads the rest by RDMA (runting read)",
        ANY,
        |at, value| at.endpoint.protocol.runt_size = value.number(),
        |at| Value::Number(at.endpoint.protocol.runt_size),
    ),
    number(
        "FI_EFA_RX_SIZE",
        "most receives posted",
        ENTRIES,
        |at, value| at.endpoint.protocol.max_receives = value.count(),
        |at| Value::Number(at.endpoint.protocol.max_receives as u64),
    ),
    number(
        "FI_EFA_TIMEOUT_INTERVAL",
        "first RNR backoff in microseconds; 0: the default",
        MICROSECONDS,
        |at, value| {
            if value.number() > 0 {
                at.endpoint.protocol.backoff.first = Duration::from_micros(value.number());
            }
        },
        |at| micros(at.endpoint.protocol.backoff.first),
    ),
    number(
        "FI_EFA_TX_MIN_CREDITS",
        "packets of a long message that one CTS grants",
        ENTRIES,
        |at, value| at.endpoint.protocol.cts_window = value.number() as u32,
        |at| Value::Number(at.endpoint.protocol.cts_window.into()),
    ),
    number(
        "FI_EFA_TX_QUEUE_SIZE",
        "most sends posted to the device; 0: the default",
        (0, u32::MAX as u64),
        |at, value| {
            if value.number() > 0 {
                at.endpoint.send_depth = value.count();
            }
        },
        |at| Value::Number(at.endpoint.send_depth as u64),
    ),
    number(
        "FI_EFA_TX_SIZE",
        "most send operations under way",
        ENTRIES,
        |at, value| at.endpoint.protocol.max_sends = value.count(),
        |at| Value::Number(at.endpoint.protocol.max_sends as u64),
    ),
    switch(
        "FI_EFA_USE_DEVICE_RDMA",
        "whether RDMA of the device is used, where both devices have it",
        |at, value| announce(at, RDMA, value),
        |at| announces(at, RDMA),
    ),
    switch(
        "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
        "whether RDMA writes with data use no receive buffer, where both devices can",
        |at, value| announce(at, Extras::UNSOLICITED_WRITE_RECV, value),
        |at| announces(at, Extras::UNSOLICITED_WRITE_RECV),
    ),
    no_effect(
        "FI_EFA_EFA_CQ_READ_SIZE",
        "progress handles up to 512 completions of the device at a time",
    ),
    no_effect("FI_EFA_ENABLE_HIGH_PPS", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_ENABLE_SHM_TRANSFER", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_FORK_SAFE", "a setting of memory registration in rdma-core"),
    no_effect("FI_EFA_IFACE", "the program chooses the device when it opens the fabric"),
    no_effect("FI_EFA_IMPLICIT_AV_SIZE", "peers that are not in the address vector stay known"),
    no_effect(
        "FI_EFA_INTERNAL_RX_REFILL_THRESHOLD",
        "the number of receive buffers follows the traffic",
    ),
    no_effect("FI_EFA_INTER_MAX_GDRCOPY_MESSAGE_SIZE", "GPU memory is not supported"),
    no_effect(
        "FI_EFA_MR_CACHE_ENABLE",
        "FI_EFA_MR_MAX_CACHED_COUNT=0 disables the registration cache",
    ),
    no_effect("FI_EFA_MTU_SIZE", "the MTU is that of the device"),
    no_effect("FI_EFA_READCOPY_POOL_SIZE", "the pool for RDMA reads grows with use"),
    no_effect("FI_EFA_RECVWIN_SIZE", "the reorder window grows with use"),
    no_effect("FI_EFA_RX_COPY_OOO", "out-of-order packets are always copied"),
    no_effect("FI_EFA_RX_COPY_UNEXP", "unexpected packets are always copied"),
    no_effect("FI_EFA_RX_IOV_LIMIT", "a receive has one buffer"),
    no_effect("FI_EFA_RX_WINDOW_SIZE", "of releases before 1.16"),
    no_effect("FI_EFA_SET_CUDA_SYNC_MEMOPS", "GPU memory is not supported"),
    no_effect("FI_EFA_SHM_AV_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_SHM_CQ_READ_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_SHM_MAX_MEDIUM_SIZE", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_TRACK_MR", "for debugging libfabric"),
    no_effect("FI_EFA_TX_IOV_LIMIT", "a send has one buffer"),
    no_effect("FI_EFA_TX_MAX_CREDITS", "of releases before 1.16"),
    no_effect("FI_EFA_USE_DATA_PATH_DIRECT", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_USE_HUGE_PAGE", "the device allocates packets"),
    no_effect("FI_EFA_USE_HW_CNTR", "a setting of Amazon's hardware"),
    no_effect("FI_EFA_USE_SM2", "there is no shm transfer that bypasses the device"),
    no_effect("FI_EFA_USE_ZCPY_RX", "the program chooses endpoints that receive in place"),
    no_effect("FI_EFA_ZCPY_RX_SEED", "the program chooses endpoints that receive in place"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Environment {
        Environment::of([(name, value)])
    }

    // conformance: C31
    #[test]
    fn every_parameter_sets_its_own_value_and_no_other() {
        let default = Environment::default();
        for parameter in Parameter::ALL {
            let Some(kind) = parameter.kind() else {
                assert_eq!(set(parameter.name, "1"), default, "{}", parameter.name);
                assert_eq!(parameter.value(&default), None);
                continue;
            };
            let texts = match kind {
                ParameterKind::Number { .. } => ["4096", "0x777"],
                ParameterKind::Switch => ["off", "yes"],
            };
            for text in texts {
                let environment = set(parameter.name, text);
                assert_eq!(environment.mistakes, []);
                assert_eq!(parameter.value(&environment), kind.parse(text), "{}", parameter.name);
                let others = Parameter::ALL.iter().filter(|other| other.name != parameter.name);
                for other in others {
                    let (value, usual) = (other.value(&environment), other.value(&default));
                    assert_eq!(value, usual, "{} sets {}", parameter.name, other.name);
                }
            }
        }
    }

    // conformance: C34
    #[test]
    fn invalid_value_is_a_mistake_and_sets_nothing() {
        let default = Environment::default();
        let beyond = u128::from(u64::MAX) + 1;
        let nonsense = ["", "many", "-1", "1.5", "0x", "0x+1", "1k", &beyond.to_string()];
        for parameter in Parameter::ALL {
            let Some(expected) = parameter.kind() else { continue };
            let mut wrong: Vec<String> = nonsense.iter().map(ToString::to_string).collect();
            if let ParameterKind::Number { least, most } = expected {
                wrong.extend(least.checked_sub(1).map(|less| less.to_string()));
                wrong.extend(most.checked_add(1).map(|more| more.to_string()));
            }
            for value in wrong {
                let Environment { endpoint, completion_queue, registrations, mistakes } =
                    set(parameter.name, &value);
                assert_eq!(mistakes, [Mistake::Value { name: parameter.name, value, expected }]);
                assert_eq!(endpoint, default.endpoint);
                assert_eq!(completion_queue, default.completion_queue);
                assert_eq!(registrations, default.registrations);
            }
        }
    }

    #[test]
    fn largest_values_and_switch_spellings_are_accepted() {
        for (text, value) in [("1", true), ("ON", true), ("No", false), (" false ", false)] {
            let environment = set("FI_EFA_USE_DEVICE_RDMA", text);
            assert_eq!(announces(&environment, RDMA), Value::Switch(value), "{text}");
        }
        let most = set("FI_EFA_RUNT_SIZE", &u64::MAX.to_string());
        assert_eq!(most.endpoint.protocol.runt_size, u64::MAX);
        let usual = Environment::default();
        for name in ["FI_EFA_TIMEOUT_INTERVAL", "FI_EFA_TX_QUEUE_SIZE"] {
            assert_eq!(set(name, "0"), usual, "{name}: 0 is the default");
        }
    }

    #[test]
    fn unknown_fi_efa_names_are_mistakes_and_other_names_are_ignored() {
        let environment =
            Environment::of([("FI_EFA_RUNTSIZE", "1"), ("FI_PROVIDER", "efa"), ("HOME", "/")]);
        let unknown = Mistake::Unknown { name: "FI_EFA_RUNTSIZE".to_owned() };
        assert_eq!(environment.mistakes, [unknown]);
    }

    #[test]
    fn parameters_are_sorted() {
        let name = |parameter: &Parameter| (parameter.kind().is_none(), parameter.name);
        assert!(Parameter::ALL.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])));
        assert!(Parameter::ALL.iter().all(|parameter| parameter.name.starts_with(PREFIX)));
    }
}
