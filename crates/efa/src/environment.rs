//! Environment variables: those of libfabric (`FI_PROVIDER`, `FI_LOG_*`), of its EFA provider (`FI_EFA_*`), and
//! this crate's own for the rest of its settings (`FI_EFARS_*`).
//!
//! ```text
//!   FI_EFA_RUNT_SIZE=307200 ─► Parameter ─► EndpointOptions, CompletionQueueOptions, …
//!                                 └► Mistake: an invalid value, and the default is kept
//! ```
//!
//! The library reads no variables by itself. A program that supports them calls [`Environment::read`] and
//! creates its objects with the options that it returns.

#[cfg(feature = "sim")]
mod links;
mod parameters;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;

use crate::completion_queue::CompletionQueueOptions;
use crate::endpoint_options::EndpointOptions;
#[cfg(feature = "sim")]
use crate::link_options::LinkOptions;
use crate::log_filter::LogFilter;
use crate::name_filter::NameFilter;
use crate::registrations::RegistrationLimits;

/// How the names of parameters of libfabric's EFA provider begin, and those of this crate's own.
const PREFIXES: [&str; 2] = ["FI_EFA_", "FI_EFARS_"];

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
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Environment {
    /// Providers and fabrics that [`Query::providers`](crate::Query::providers) is to leave
    /// (`FI_PROVIDER`).
    pub providers: NameFilter,
    /// What is to be logged (`FI_LOG_LEVEL`, `FI_LOG_PROV`, `FI_LOG_SUBSYS`).
    pub log: LogFilter,
    /// Options of links, for [`Fabric::open_with`](crate::Fabric::open_with).
    #[cfg(feature = "sim")]
    pub links: LinkOptions,
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

    /// Reads these variables. Names that are no [parameter](Parameter) are mistakes if they begin with
    /// `FI_EFA_` or `FI_EFARS_`; others are ignored.
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
            if is_parameter(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
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

fn is_parameter(name: &str) -> bool {
    Parameter::ALL.iter().any(|parameter| parameter.name == name)
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
    /// It is neither a parameter of a release of libfabric nor one of this crate.
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
    /// A whole number that is a power of two.
    PowerOfTwo {
        /// The largest.
        most: u64,
    },
    /// A port, a range of ports, or `any`.
    Ports,
    /// Any text but none.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A [`NameFilter`].
    Names,
}

impl ParameterKind {
    fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Self::Number { least, most } => {
                let number = number(text).filter(|number| (least..=most).contains(number))?;
                Some(Value::Number(number))
            }
            Self::PowerOfTwo { most } => {
                let number = number(text).filter(|number| *number <= most)?;
                number.is_power_of_two().then_some(Value::Number(number))
            }
            Self::Ports if text == "any" => Some(Value::Text(text.to_owned())),
            Self::Ports => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
                (0 < first && first <= last).then(|| Value::Text(format!("{first}-{last}")))
            }
            Self::Text => (!text.is_empty()).then(|| Value::Text(text.to_owned())),
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "on" | "true" | "yes" => Some(Value::Switch(true)),
                "0" | "off" | "false" | "no" => Some(Value::Switch(false)),
                _ => None,
            },
            Self::Choice(words) => {
                let chosen = words.iter().find(|word| word.eq_ignore_ascii_case(text))?;
                Some(Value::Text((*chosen).to_owned()))
            }
            Self::Names => {
                let names: NameFilter = text.parse().ok()?;
                Some(Value::Text(names.to_string()))
            }
        }
    }
}

/// A whole number, decimal or hexadecimal.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match hexadecimal {
        // The standard library accepts a sign; libfabric doesn't.
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        _ => text.parse().ok(),
    }
}

impl fmt::Display for ParameterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { least, most } => write!(f, "a whole number from {least} to {most}"),
            Self::PowerOfTwo { most } => write!(f, "a power of two up to {most}"),
            Self::Ports => f.write_str("a port such as 7000, a range such as 7000-7015, or any"),
            Self::Text => f.write_str("a text"),
            Self::Switch => f.write_str("on or off"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Names => f.write_str("a list of names, with ^ in front to exclude them,"),
        }
    }
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Number(u64),
    /// On or off.
    Switch(bool),
    /// A word or a list of names.
    Text(String),
}

impl Value {
    /// The number; 0 or 1 for a switch.
    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Switch(on) => (*on).into(),
            Self::Text(_) => 0,
        }
    }

    fn count(&self) -> usize {
        usize::try_from(self.number()).unwrap_or(usize::MAX)
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Number(_) | Self::Switch(_) => "",
        }
    }

    /// The names; all if it is no list.
    fn names(&self) -> NameFilter {
        self.text().parse().unwrap_or_default()
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Switch(on) => f.pad(if *on { "on" } else { "off" }),
            Self::Text(text) => f.pad(text),
        }
    }
}

/// A variable: of libfabric, of any release of its EFA provider, or of this crate.
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

#[cfg(feature = "sim")]
const LINKS: &[Parameter] = links::LINKS;
#[cfg(not(feature = "sim"))]
const LINKS: &[Parameter] = &[];

const COUNT: usize = parameters::SETTINGS.len() + LINKS.len() + parameters::WITHOUT_EFFECT.len();

static JOINED: [Parameter; COUNT] = {
    let mut joined = [parameters::SETTINGS[0]; COUNT];
    let (settings, rest) = joined.split_at_mut(parameters::SETTINGS.len());
    let (links, without_effect) = rest.split_at_mut(LINKS.len());
    settings.copy_from_slice(parameters::SETTINGS);
    links.copy_from_slice(LINKS);
    without_effect.copy_from_slice(parameters::WITHOUT_EFFECT);
    joined
};

impl Parameter {
    /// All: first those that set an option of objects, then of links, then those without effect; each group sorted.
    pub const ALL: &'static [Self] = &JOINED;

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
