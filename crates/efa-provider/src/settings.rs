//! The settings of the library: the device, and every parameter of [`efa::Environment`].
//!
//! ```text
//!   FI_EFARS_TX_SIZE ─┐
//!   libfabric.conf ───┼─► first that is set ─► Environment: options of endpoints, queues, links
//!   FI_EFA_TX_SIZE ───┘
//! ```
//!
//! libfabric lists them (`fi_info -e`), since each is defined by `fi_param_define`; and it reads its configuration
//! file (2.x), since each is asked of `fi_param_get`. All are texts for libfabric: it would take `few` for the
//! number 0.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::OnceLock;
use std::time::Duration;

use efa::{Environment, Info, Mistake, Parameter};

use crate::boundary::{INVALID, Outcome};
use crate::device::Device;
use crate::{libfabric, log};

/// How variables of this library begin, and those of Amazon's provider, which count where ours aren't set.
const OWN: &str = "FI_EFARS_";
const AMAZON: &str = "FI_EFA_";

const DEVICE: &str = "DEVICE";
const CLOSE_TIMEOUT: &str = "CLOSE_TIMEOUT";

/// How long closing an endpoint delivers what peers wait for, by default.
const CLOSE_AFTER: Duration = Duration::from_secs(2);

/// Whether this provider calls itself `efa`, for programs that insist on that name (`EFARS_NAME`).
pub(crate) fn takes_the_place_of_efa() -> bool {
    std::env::var_os("EFARS_NAME").is_some_and(|name| name == "efa")
}

/// What the user set.
pub(crate) struct Settings {
    pub(crate) device: Device,
    /// Options of objects and links.
    pub(crate) environment: Environment,
    /// How long closing an endpoint delivers what peers wait for.
    pub(crate) close_timeout: Duration,
    in_place: bool,
}

/// The variables, as they were read.
#[derive(Debug)]
struct Variables {
    /// None if it is left to this machine.
    device: Option<String>,
    environment: Environment,
    close_timeout: Duration,
    /// Variables that set nothing, each in a line.
    mistakes: Vec<String>,
}

/// A setting as libfabric lists it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    /// Its name without `FI_EFARS_`, in small letters.
    pub(crate) name: String,
    /// What it sets, valid values, and the default.
    pub(crate) help: String,
}

/// All settings, for `fi_param_define`.
pub(crate) fn definitions() -> Vec<Definition> {
    let own = [
        (
            DEVICE,
            "device: shm[:NAME], tcp:IP or verbs[:INTERFACE]; default: verbs if there is an interface, \
             else shm"
                .to_owned(),
        ),
        (
            CLOSE_TIMEOUT,
            format!(
                "milliseconds that closing an endpoint delivers what peers wait for: a whole number; \
                 default: {}",
                CLOSE_AFTER.as_millis()
            ),
        ),
    ];
    let default = Environment::default();
    let of_engine = parameters().filter_map(|(name, parameter)| {
        let (kind, value) = (parameter.kind()?, parameter.value(&default)?);
        let value = value.to_string();
        let value = if value.is_empty() { "none".to_owned() } else { value };
        Some((name, format!("{}: {kind}; default: {value}", parameter.help)))
    });
    let define = |(name, help): (&str, String)| Definition { name: name.to_lowercase(), help };
    own.into_iter().chain(of_engine).map(define).collect()
}

/// The parameters of the engine that have an effect, with their names without prefix. libfabric handles those of
/// its own, `FI_PROVIDER` and `FI_LOG_…`.
fn parameters() -> impl Iterator<Item = (&'static str, &'static Parameter)> {
    Parameter::ALL
        .iter()
        .filter(|parameter| parameter.kind().is_some())
        .filter_map(|parameter| Some((without_prefix(parameter.name)?, parameter)))
}

fn without_prefix(name: &str) -> Option<&str> {
    name.strip_prefix(OWN).or_else(|| name.strip_prefix(AMAZON))
}

impl Settings {
    /// Tells libfabric which settings there are.
    pub(crate) fn define() {
        for Definition { name, help } in definitions() {
            libfabric::define_parameter(&name, &help);
        }
    }

    /// What the user set when this was first called.
    ///
    /// # Errors
    /// `FI_EINVAL` if `FI_EFARS_DEVICE` names no device.
    pub(crate) fn read() -> Outcome<Self> {
        static VARIABLES: OnceLock<Variables> = OnceLock::new();
        let Variables { device, environment, close_timeout, .. } =
            VARIABLES.get_or_init(Variables::read);
        let device = match device {
            Some(text) => text.parse().map_err(|error| {
                log::warn(format_args!("{error}"));
                INVALID
            })?,
            None => Device::of_this_machine(),
        };
        Ok(Self {
            device,
            environment: environment.clone(),
            close_timeout: *close_timeout,
            in_place: takes_the_place_of_efa(),
        })
    }

    /// Whether this provider takes the place of the built-in `efa`.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// The name of an entry's fabric.
    pub(crate) fn fabric_name(&self, entry: &Info) -> String {
        if self.in_place { "efa".to_owned() } else { entry.fabric.clone() }
    }

    /// The name of the device that a domain with this name opens: what [`domain_name`](Self::domain_name) adds is taken
    /// away.
    pub(crate) fn device_name<'a>(&self, domain: &'a str) -> &'a str {
        match self.in_place {
            true => domain.strip_suffix("-rdm").unwrap_or(domain),
            false => domain,
        }
    }

    /// The name of an entry's domain.
    pub(crate) fn domain_name(&self, entry: &Info) -> String {
        match (self.in_place, entry.endpoint.kind) {
            (true, efa::EndpointKind::ReliableDatagram) => format!("{}-rdm", entry.domain.name),
            _ => entry.domain.name.clone(),
        }
    }
}

impl Variables {
    /// Those of the process. Mistakes are logged.
    fn read() -> Self {
        log::start();
        let words = |(name, value): (OsString, OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        let variables = Self::of(std::env::vars_os().map(words), libfabric::parameter);
        variables.mistakes.iter().for_each(|mistake| log::warn(format_args!("{mistake}")));
        variables
    }

    /// Reads these variables of the process; what neither is set there, `configured` may know by its name
    /// without prefix in small letters (`fi_param_get`).
    fn of(
        variables: impl IntoIterator<Item = (String, String)>,
        configured: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let variables: HashMap<String, String> = variables.into_iter().collect();
        // The variable that sets something, and its value.
        let setting = |name: &str| {
            let (own, amazon) = (format!("{OWN}{name}"), format!("{AMAZON}{name}"));
            let of = |variable: &String| variables.get(variable).cloned();
            let value = of(&own).or_else(|| configured(&name.to_lowercase()));
            match value {
                Some(value) => Some((own, value)),
                None => of(&amazon).map(|value| (amazon, value)),
            }
        };

        let mut names = HashMap::new();
        let mut set = Vec::new();
        for (name, parameter) in parameters() {
            if let Some((variable, value)) = setting(name) {
                names.insert(parameter.name, variable);
                set.push((parameter.name, value));
            }
        }
        let environment = Environment::of(set);
        let mut mistakes: Vec<_> =
            environment.mistakes.iter().map(|mistake| in_words(mistake, &names)).collect();

        let mut unknown: Vec<_> =
            variables.keys().filter(|variable| is_unknown(variable)).collect();
        unknown.sort();
        mistakes.extend(unknown.iter().map(|name| format!("{name} is no setting of the provider")));

        let device = setting(DEVICE).map(|(_, value)| value);
        let close_timeout = match setting(CLOSE_TIMEOUT) {
            None => CLOSE_AFTER,
            Some((variable, value)) => match value.trim().parse() {
                Ok(milliseconds) => Duration::from_millis(milliseconds),
                Err(_) => {
                    mistakes.push(format!("{variable}={value}: a whole number is expected"));
                    CLOSE_AFTER
                }
            },
        };
        Self { device, close_timeout, environment, mistakes }
    }
}

/// Whether a variable looks like one of ours and sets nothing.
fn is_unknown(variable: &str) -> bool {
    variable.strip_prefix(OWN).is_some_and(|name| {
        ![DEVICE, CLOSE_TIMEOUT].contains(&name) && parameters().all(|(known, _)| known != name)
    })
}

/// A mistake with the name of the variable that the program's user has set.
fn in_words(mistake: &Mistake, variables: &HashMap<&str, String>) -> String {
    match mistake {
        Mistake::Value { name, value, expected } => {
            let variable = variables.get(name).map_or(*name, String::as_str);
            format!("{variable}={value}: {expected} is expected")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Variables {
        configured(variables, &[])
    }

    fn configured(variables: &[(&str, &str)], file: &[(&str, &str)]) -> Variables {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Variables::of(owned, |name| {
            file.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn own_variables_come_before_the_file_and_the_file_before_those_of_amazon() {
        let (own, amazon) = (("FI_EFARS_TX_SIZE", "7"), ("FI_EFA_TX_SIZE", "9"));
        let file = [("tx_size", "8")];
        let sends = |settings: Variables| settings.environment.endpoint.protocol.max_sends;
        assert_eq!(sends(configured(&[own, amazon], &file)), 7);
        assert_eq!(sends(configured(&[amazon], &file)), 8);
        assert_eq!(sends(configured(&[amazon], &[])), 9);
        assert_eq!(sends(configured(&[], &[])), sends(of(&[])));
    }

    #[test]
    fn every_definition_sets_something_under_either_prefix() {
        let default = of(&[]);
        let own: Vec<_> = definitions();
        assert!(own.len() > 60, "{}", own.len());
        for (name, parameter) in parameters() {
            assert!(own.iter().any(|one| one.name == name.to_lowercase()), "{name}");
            let value = match parameter.kind().unwrap() {
                efa::ParameterKind::Number { least, .. } => (least + 1).to_string(),
                efa::ParameterKind::PowerOfTwo { .. } => "2".to_owned(),
                efa::ParameterKind::Ports => "7000-7001".to_owned(),
                efa::ParameterKind::Switch => {
                    let now = parameter.value(&default.environment).unwrap().to_string();
                    (if now == "on" { "off" } else { "on" }).to_owned()
                }
                _ => "word".to_owned(),
            };
            for prefix in [OWN, AMAZON] {
                let variable = format!("{prefix}{name}");
                let settings = of(&[(&variable, &value)]);
                assert_ne!(settings.environment, default.environment, "{variable}={value}");
                assert_eq!(settings.mistakes, [""; 0], "{variable}={value}");
            }
        }
    }

    #[test]
    fn helps_have_what_is_valid_and_the_default() {
        let help = |name: &str| {
            definitions().into_iter().find(|one| one.name == name).map(|one| one.help).unwrap()
        };
        let of_size = "capacity of a completion queue in entries: a whole number from 1 to 4294967295; \
                       default: 8192";
        assert_eq!(help("cq_size"), of_size);
        assert!(help("device").starts_with("device: shm[:NAME], tcp:IP"));
        assert!(help("shm_directory").ends_with("default: none"));
    }

    #[test]
    fn the_device_is_that_of_the_first_variable_that_is_set() {
        assert_eq!(of(&[]).device, None);
        let device = of(&[("FI_EFARS_DEVICE", "shm:job7"), ("FI_EFA_DEVICE", "verbs")]).device;
        assert_eq!(device.as_deref(), Some("shm:job7"));
        let device = configured(&[], &[("device", "tcp:10.0.0.1")]).device;
        assert_eq!(device.as_deref(), Some("tcp:10.0.0.1"));
    }

    #[test]
    fn mistakes_name_the_variable_that_was_set() {
        let settings = of(&[
            ("FI_EFARS_CQ_SIZE", "few"),
            ("FI_EFA_RX_SIZE", "0"),
            ("FI_EFARS_CLOSE_TIMEOUT", "-1"),
            ("FI_EFARS_TX_SISE", "7"),
            ("FI_EFA_SOMETHING", "1"),
            ("FI_PROVIDER", "efars"),
        ]);
        let mut mistakes = settings.mistakes;
        mistakes.sort();
        assert_eq!(
            mistakes,
            [
                "FI_EFARS_CLOSE_TIMEOUT=-1: a whole number is expected",
                "FI_EFARS_CQ_SIZE=few: a whole number from 1 to 4294967295 is expected",
                "FI_EFARS_TX_SISE is no setting of the provider",
                "FI_EFA_RX_SIZE=0: a whole number from 1 to 4294967295 is expected",
            ]
        );
        let mut environment = settings.environment;
        assert_eq!(std::mem::take(&mut environment.mistakes).len(), 2);
        assert_eq!(environment, Environment::default());
        assert_eq!(settings.close_timeout, Duration::from_secs(2));
        let longer = of(&[("FI_EFARS_CLOSE_TIMEOUT", "60000")]);
        assert_eq!(longer.close_timeout, Duration::from_secs(60));
    }
}
