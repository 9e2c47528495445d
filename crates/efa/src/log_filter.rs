//! What is logged: `FI_LOG_LEVEL`, `FI_LOG_PROV` and `FI_LOG_SUBSYS` for events of `tracing`.

use std::fmt;

use tracing::{Level, Metadata};

use crate::name_filter::NameFilter;

/// Which events of this crate and those below are logged.
///
/// The library logs to `tracing` and installs no subscriber. A program that has one can ask this filter, for
/// example with `tracing_subscriber::filter::filter_fn`:
///
/// ```
/// let environment = efa::Environment::of([("FI_LOG_LEVEL", "info"), ("FI_LOG_SUBSYS", "^ep_data")]);
/// let log = environment.log;
/// let filter = move |metadata: &tracing::Metadata<'_>| log.enabled(metadata);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogFilter {
    /// The level (`FI_LOG_LEVEL`).
    pub level: LogLevel,
    /// Providers and fabrics (`FI_LOG_PROV`): `efa` is all, `efa-verbs`, `efa-shm`, `efa-tcp` and `efa-local`
    /// are the links.
    pub providers: NameFilter,
    /// Subsystems (`FI_LOG_SUBSYS`): `core`, `fabric`, `domain`, `ep_ctrl`, `ep_data`, `av`, `cq`, `eq`,
    /// `mr` and `cntr`.
    pub subsystems: NameFilter,
}

/// How much is logged, as libfabric names it; each level contains those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Errors and warnings.
    #[default]
    Warn,
    /// What happens seldom (`INFO` of `tracing`).
    Trace,
    /// What explains behaviour (`DEBUG` of `tracing`).
    Info,
    /// Every packet and operation (`TRACE` of `tracing`).
    Debug,
}

impl LogLevel {
    /// All, the least first.
    pub const ALL: &'static [Self] = &[Self::Warn, Self::Trace, Self::Info, Self::Debug];

    /// The names that `FI_LOG_LEVEL` has.
    pub(crate) const NAMES: &'static [&'static str] = &["warn", "trace", "info", "debug"];

    pub(crate) fn named(name: &str) -> Self {
        let index = Self::NAMES.iter().position(|known| *known == name);
        index.and_then(|index| Self::ALL.get(index)).copied().unwrap_or_default()
    }

    /// The most verbose level of `tracing` that it contains.
    #[must_use]
    pub const fn most_verbose(self) -> Level {
        match self {
            Self::Warn => Level::WARN,
            Self::Trace => Level::INFO,
            Self::Info => Level::DEBUG,
            Self::Debug => Level::TRACE,
        }
    }
}

/// Prints the name that `FI_LOG_LEVEL` has.
impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// Modules and their subsystems; the first that is the beginning of a target counts.
const SUBSYSTEMS: &[(&str, &str)] = &[
    ("efa_rdm::handshake", "ep_ctrl"),
    ("efa_rdm::event", "ep_ctrl"),
    ("efa_rdm", "ep_data"),
    ("efa_sim::shm::memory", "mr"),
    ("efa_sim::region", "mr"),
    ("efa_sim::shm::link", "ep_data"),
    ("efa_sim::tcp::link", "ep_data"),
    ("efa_sim::shm", "domain"),
    ("efa_sim::tcp", "domain"),
    ("efa_sim::local", "domain"),
    ("efa_verbs::memory", "mr"),
    ("efa_verbs::completion_queue", "cq"),
    ("efa_verbs::device", "ep_data"),
    ("efa_verbs", "domain"),
    ("efa::fabric", "fabric"),
    ("efa::discovery", "fabric"),
    ("efa::domain", "domain"),
    ("efa::address_vector", "av"),
    ("efa::completion_queue", "cq"),
    ("efa::event_queue", "eq"),
    ("efa::counter", "cntr"),
    ("efa::region", "mr"),
    ("efa::registrations", "mr"),
    ("efa::endpoint", "ep_ctrl"),
];

/// Modules of links.
const LINKS: &[(&str, &str)] = &[
    ("efa_verbs", "efa-verbs"),
    ("efa_sim::shm", "efa-shm"),
    ("efa_sim::tcp", "efa-tcp"),
    ("efa_sim::local", "efa-local"),
];

fn of<'a>(table: &[(&str, &'a str)], target: &str) -> Option<&'a str> {
    table.iter().find(|(module, _)| is_within(target, module)).map(|(_, name)| *name)
}

/// Whether a target is a module or inside it.
fn is_within(target: &str, module: &str) -> bool {
    target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

impl LogFilter {
    /// Whether an event or span is logged. Those of other crates have no provider and no subsystem: they are
    /// logged unless a list names what is meant.
    #[must_use]
    pub fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.allows(*metadata.level(), metadata.target())
    }

    /// The subsystem of a module, the [target](Metadata::target) of its events: `core` if no other.
    ///
    /// ```
    /// assert_eq!(efa::LogFilter::subsystem("efa_rdm::handshake"), "ep_ctrl");
    /// ```
    #[must_use]
    pub fn subsystem(target: &str) -> &'static str {
        of(SUBSYSTEMS, target).unwrap_or("core")
    }

    fn allows(&self, level: Level, target: &str) -> bool {
        if level > self.level.most_verbose() {
            return false;
        }
        let root = target.split("::").next().unwrap_or_default();
        let is_ours = root == "efa" || root.starts_with("efa_");
        let link = of(LINKS, target).unwrap_or("efa");
        let subsystem = Self::subsystem(target);
        match is_ours {
            true => self.providers.allows(&["efa", link]) && self.subsystems.allows(&[subsystem]),
            false => self.providers.allows(&[]) && self.subsystems.allows(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(level: LogLevel, providers: &str, subsystems: &str) -> LogFilter {
        let names = |text: &str| text.parse().unwrap_or_default();
        LogFilter { level, providers: names(providers), subsystems: names(subsystems) }
    }

    // conformance: C32
    #[test]
    fn each_log_level_contains_the_one_before() {
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        for (more, level) in LogLevel::ALL.iter().enumerate() {
            let filter = filter(*level, "", "");
            let logged = levels.map(|level| filter.allows(level, "efa_rdm::intake"));
            assert_eq!(logged, [true, true, more > 0, more > 1, more > 2], "{level}");
            assert_eq!(LogLevel::named(LogLevel::NAMES[more]), *level);
        }
        assert_eq!(LogFilter::default().level, LogLevel::Warn);
    }

    // conformance: C32
    #[test]
    fn logs_are_chosen_by_provider_and_subsystem() {
        let table = [
            ("", "", [true, true, true, true, true]),
            ("efa", "", [true, true, true, true, false]),
            ("efa-shm", "", [false, true, false, false, false]),
            ("^efa-shm", "", [true, false, true, true, true]),
            ("^efa", "", [false, false, false, false, true]),
            ("", "ep_data", [true, false, true, false, false]),
            ("", "^ep_data,mr", [false, false, false, true, true]),
            ("efa-tcp,efa-shm", "mr", [false, true, false, false, false]),
        ];
        let targets = [
            "efa_rdm::intake",
            "efa_sim::shm::memory",
            "efa_sim::tcp::link",
            "efa::environment",
            "program",
        ];
        for (providers, subsystems, expected) in table {
            let filter = filter(LogLevel::Warn, providers, subsystems);
            let logged = targets.map(|target| filter.allows(Level::WARN, target));
            assert_eq!(logged, expected, "{providers:?} {subsystems:?}");
        }
        assert!(!filter(LogLevel::Warn, "efa", "").allows(Level::WARN, "efabulous"));
    }
}
