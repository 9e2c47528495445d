//! Variables of the environment: the names that users of libfabric's EFA provider know.
//!
//! ```text
//!   FI_EFA_RUNT_SIZE=307200 ─► Parameter ─► EndpointOptions, CompletionQueueOptions
//!                                 └► Mistake: the value makes no sense, the default stands
//! ```
//!
//! Nothing is read behind one's back: a program that wants its users to have these variables calls
//! [`Environment::read`] and makes its objects with the options that come out of it.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use efa_handshake::Extras;

use crate::completion_queue::CompletionQueueOptions;
use crate::endpoint_options::EndpointOptions;
use crate::registrations::RegistrationLimits;

/// Every name that this module knows begins so.
const PREFIX: &str = "FI_EFA_";

/// What the environment asks for: the default options, as far as it doesn't say otherwise.
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
///     "FI_EFA_CQ_SIZE is \"few\": a whole number from 1 to 4294967295 is expected"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// For endpoints.
    pub endpoint: EndpointOptions,
    /// For completion queues.
    pub completion_queue: CompletionQueueOptions,
    /// For [`Domain::limit_registrations`](crate::Domain::limit_registrations).
    pub registrations: RegistrationLimits,
    /// Variables that make no sense; what they would set is as by default.
    pub mistakes: Vec<Mistake>,
}

impl Environment {
    /// What the environment of this process asks for. Mistakes are logged as warnings, too.
    #[must_use]
    pub fn read() -> Self {
        let environment = Self::of(std::env::vars_os());
        for mistake in &environment.mistakes {
            tracing::warn!("{mistake}");
        }
        environment
    }

    /// What these variables ask for. Names that don't begin with `FI_EFA_` are passed by.
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

/// A variable that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// Its value is none that it can have.
    #[error("{name} is {value:?}: {expected} is expected")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it could be.
        expected: ParameterKind,
    },
    /// No release of libfabric knows it.
    #[error("{name} is no parameter of EFA")]
    Unknown {
        /// The variable.
        name: String,
    },
}

/// What the value of a parameter can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterKind {
    /// A whole number, decimal or hexadecimal with `0x`.
    Number {
        /// The least.
        least: u64,
        /// The most.
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
                    // The sign that the standard library takes is no digit.
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
    /// 0 or 1 of a switch, as libfabric takes numbers for switches.
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

/// A variable that some release of libfabric's EFA provider reads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it does, or why it does nothing here.
    pub help: &'static str,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// It sets something.
    Sets { kind: ParameterKind, set: fn(&mut Environment, Value), get: fn(&Environment) -> Value },
    /// It is known and does nothing here.
    Nothing,
}

impl Parameter {
    /// All of them: those that set something first, each part in the order of the alphabet.
    pub const ALL: &'static [Self] = PARAMETERS;

    /// What its value can be; `None` if it does nothing here.
    #[must_use]
    pub fn kind(&self) -> Option<ParameterKind> {
        match self.effect {
            Effect::Sets { kind, .. } => Some(kind),
            Effect::Nothing => None,
        }
    }

    /// What is set in an environment; `None` if it does nothing here.
    #[must_use]
    pub fn value(&self, environment: &Environment) -> Option<Value> {
        match self.effect {
            Effect::Sets { get, .. } => Some(get(environment)),
            Effect::Nothing => None,
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

const fn nothing(name: &'static str, help: &'static str) -> Parameter {
    Parameter { name, help, effect: Effect::Nothing }
}

const ANY: (u64, u64) = (0, u64::MAX);
const SOME: (u64, u64) = (1, u64::MAX);
/// Entries of queues and tables.
const ENTRIES: (u64, u64) = (1, u32::MAX as u64);
/// Microseconds, as far as libfabric takes them.
const MICROSECONDS: (u64, u64) = (0, i32::MAX as u64 / 2 - 1);

fn micros(duration: Duration) -> Value {
    Value::Number(duration.as_micros().try_into().unwrap_or(u64::MAX))
}

/// Announces features or not; those that the device lacks are left out later.
fn offer(environment: &mut Environment, features: Extras, value: Value) {
    environment.endpoint.protocol.profile.extras.set(features, value == Value::Switch(true));
}

fn offers(environment: &Environment, features: Extras) -> Value {
    Value::Switch(environment.endpoint.protocol.profile.extras.intersects(features))
}

const RDMA: Extras = Extras::RDMA_READ.union(Extras::RDMA_WRITE);

static PARAMETERS: &[Parameter] = &[
    number(
        "FI_EFA_CQ_SIZE",
        "completions that a queue holds",
        ENTRIES,
        |at, value| at.completion_queue.capacity = value.count(),
        |at| Value::Number(at.completion_queue.capacity as u64),
    ),
    number(
        "FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE",
        "longest message in bytes that is sent without flow control",
        ANY,
        |at, value| at.endpoint.protocol.max_medium = value.number(),
        |at| Value::Number(at.endpoint.protocol.max_medium),
    ),
    number(
        "FI_EFA_INTER_MIN_READ_MESSAGE_SIZE",
        "shortest message in bytes that the receiver reads from the sender's memory",
        ANY,
        |at, value| at.endpoint.protocol.min_read = value.number(),
        |at| Value::Number(at.endpoint.protocol.min_read),
    ),
    number(
        "FI_EFA_INTER_MIN_READ_WRITE_SIZE",
        "shortest write in bytes that the target reads from the writer's memory",
        ANY,
        |at, value| at.endpoint.protocol.min_read_write = value.number(),
        |at| Value::Number(at.endpoint.protocol.min_read_write),
    ),
    number(
        "FI_EFA_INTER_READ_SEGMENT_SIZE",
        "most bytes of one RDMA operation",
        SOME,
        |at, value| at.endpoint.protocol.rdma_segment = value.number(),
        |at| Value::Number(at.endpoint.protocol.rdma_segment),
    ),
    number(
        "FI_EFA_MAX_MEMCPY_SIZE",
        "longest buffer in bytes that RDMA copies rather than registers",
        (1, 1 << 30),
        |at, value| at.endpoint.protocol.bounce_size = value.count(),
        |at| Value::Number(at.endpoint.protocol.bounce_size as u64),
    ),
    number(
        "FI_EFA_MAX_TIMEOUT",
        "longest time in microseconds that a receiver that isn't ready is left alone",
        MICROSECONDS,
        |at, value| {
            at.endpoint.protocol.backoff.longest = Duration::from_micros(value.number());
        },
        |at| micros(at.endpoint.protocol.backoff.longest),
    ),
    number(
        "FI_EFA_MR_MAX_CACHED_COUNT",
        "most memory regions that stay registered while nobody uses them",
        ANY,
        |at, value| at.registrations.count = value.count(),
        |at| Value::Number(at.registrations.count as u64),
    ),
    number(
        "FI_EFA_MR_MAX_CACHED_SIZE",
        "most bytes of memory that stays registered while nobody uses it",
        ANY,
        |at, value| at.registrations.bytes = value.count(),
        |at| Value::Number(at.registrations.bytes as u64),
    ),
    number(
        "FI_EFA_RUNT_SIZE",
        "bytes of a message that go in packets while the receiver reads the rest",
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
        "first time in microseconds that a receiver that isn't ready is left alone; 0: as by default",
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
        "packets of a long message that the receiver grants at a time",
        ENTRIES,
        |at, value| at.endpoint.protocol.cts_window = value.number() as u32,
        |at| Value::Number(at.endpoint.protocol.cts_window.into()),
    ),
    number(
        "FI_EFA_TX_QUEUE_SIZE",
        "sends that the device holds at a time; 0: as by default",
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
        "most sends under way",
        ENTRIES,
        |at, value| at.endpoint.protocol.max_sends = value.count(),
        |at| Value::Number(at.endpoint.protocol.max_sends as u64),
    ),
    switch(
        "FI_EFA_USE_DEVICE_RDMA",
        "whether devices read and write the memory of others, where they can",
        |at, value| offer(at, RDMA, value),
        |at| offers(at, RDMA),
    ),
    switch(
        "FI_EFA_USE_UNSOLICITED_WRITE_RECV",
        "whether writes with data take no receive buffer, where both devices can",
        |at, value| offer(at, Extras::UNSOLICITED_WRITE_RECV, value),
        |at| offers(at, Extras::UNSOLICITED_WRITE_RECV),
    ),
    nothing("FI_EFA_EFA_CQ_READ_SIZE", "progress handles what the device has, up to 512 at a time"),
    nothing("FI_EFA_ENABLE_HIGH_PPS", "a setting of Amazon's hardware"),
    nothing("FI_EFA_ENABLE_SHM_TRANSFER", "there is no way around the device"),
    nothing("FI_EFA_FORK_SAFE", "a setting of memory registration in rdma-core"),
    nothing("FI_EFA_IFACE", "the device is chosen when the fabric is opened"),
    nothing("FI_EFA_IMPLICIT_AV_SIZE", "peers that write unasked stay known"),
    nothing("FI_EFA_INTERNAL_RX_REFILL_THRESHOLD", "receive buffers follow the traffic"),
    nothing("FI_EFA_INTER_MAX_GDRCOPY_MESSAGE_SIZE", "there is no memory of GPUs"),
    nothing("FI_EFA_MR_CACHE_ENABLE", "FI_EFA_MR_MAX_CACHED_COUNT=0 has no registrations kept"),
    nothing("FI_EFA_MTU_SIZE", "the device says how long packets are"),
    nothing("FI_EFA_READCOPY_POOL_SIZE", "memory that messages are read into grows with use"),
    nothing("FI_EFA_RECVWIN_SIZE", "the window of early messages grows with use"),
    nothing("FI_EFA_RX_COPY_OOO", "early packets are always copied"),
    nothing("FI_EFA_RX_COPY_UNEXP", "unexpected packets are always copied"),
    nothing("FI_EFA_RX_IOV_LIMIT", "a receive has one buffer"),
    nothing("FI_EFA_RX_WINDOW_SIZE", "of releases before 1.16"),
    nothing("FI_EFA_SET_CUDA_SYNC_MEMOPS", "there is no memory of GPUs"),
    nothing("FI_EFA_SHM_AV_SIZE", "there is no way around the device"),
    nothing("FI_EFA_SHM_CQ_READ_SIZE", "there is no way around the device"),
    nothing("FI_EFA_SHM_MAX_MEDIUM_SIZE", "there is no way around the device"),
    nothing("FI_EFA_TRACK_MR", "a help for debugging libfabric"),
    nothing("FI_EFA_TX_IOV_LIMIT", "a send has one buffer"),
    nothing("FI_EFA_TX_MAX_CREDITS", "of releases before 1.16"),
    nothing("FI_EFA_USE_DATA_PATH_DIRECT", "a setting of Amazon's hardware"),
    nothing("FI_EFA_USE_HUGE_PAGE", "packets lie where the device puts them"),
    nothing("FI_EFA_USE_HW_CNTR", "a setting of Amazon's hardware"),
    nothing("FI_EFA_USE_SM2", "there is no way around the device"),
    nothing("FI_EFA_USE_ZCPY_RX", "endpoints receive in place if their program asks for it"),
    nothing("FI_EFA_ZCPY_RX_SEED", "endpoints receive in place if their program asks for it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Environment {
        Environment::of([(name, value)])
    }

    // conformance: C31
    #[test]
    fn every_parameter_sets_what_it_tells() {
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
    fn a_value_without_sense_is_told_and_the_default_stands() {
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
    fn bounds_and_spellings_are_taken() {
        for (text, value) in [("1", true), ("ON", true), ("No", false), (" false ", false)] {
            let environment = set("FI_EFA_USE_DEVICE_RDMA", text);
            assert_eq!(offers(&environment, RDMA), Value::Switch(value), "{text}");
        }
        let most = set("FI_EFA_RUNT_SIZE", &u64::MAX.to_string());
        assert_eq!(most.endpoint.protocol.runt_size, u64::MAX);
        let usual = Environment::default();
        for name in ["FI_EFA_TIMEOUT_INTERVAL", "FI_EFA_TX_QUEUE_SIZE"] {
            assert_eq!(set(name, "0"), usual, "{name}: 0 is the default");
        }
    }

    #[test]
    fn names_that_nobody_knows_are_told_and_others_passed_by() {
        let environment =
            Environment::of([("FI_EFA_RUNTSIZE", "1"), ("FI_PROVIDER", "efa"), ("HOME", "/")]);
        let unknown = Mistake::Unknown { name: "FI_EFA_RUNTSIZE".to_owned() };
        assert_eq!(environment.mistakes, [unknown]);
    }

    #[test]
    fn the_list_is_in_order() {
        let name = |parameter: &Parameter| (parameter.kind().is_none(), parameter.name);
        assert!(Parameter::ALL.windows(2).all(|pair| name(&pair[0]) < name(&pair[1])));
        assert!(Parameter::ALL.iter().all(|parameter| parameter.name.starts_with(PREFIX)));
    }
}
