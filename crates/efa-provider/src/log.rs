//! The engine's log goes to libfabric's: events of `tracing` to `fi_log`, with level and subsystem.
//!
//! ```text
//!   tracing::warn!(…) ─► most verbose level that libfabric logs? ─► fi_log_enabled(level, subsystem)? ─► fi_log
//!                        no: one comparison, nothing else
//! ```
//!
//! Level and filters are libfabric's: `FI_LOG_LEVEL`, `FI_LOG_PROV`, `FI_LOG_SUBSYS`.

use std::ffi::CString;
use std::fmt::{self, Write as _};
use std::sync::Once;

use efa::{LogFilter, LogLevel};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::abi::*;
use crate::cancel::NotNow;
use crate::libfabric;

/// Lets events go to libfabric's log. Calls after the first do nothing.
///
/// libfabric knows whether `FI_LOG_PROV` excludes this provider only after `fi_prov_ini` has returned, so this is
/// for the first call of the provider's other functions.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let _ = tracing::subscriber::set_global_default(ToLibfabric { most: most_verbose() });
    });
}

/// Something that the user should mend.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    tracing::warn!("{text}");
}

/// Why something is as it is.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    tracing::debug!("{text}");
}

/// The most verbose level that libfabric logs of any subsystem.
fn most_verbose() -> LevelFilter {
    let logs = |level: &&LogLevel| {
        (FI_LOG_CORE..FI_LOG_SUBSYS_MAX)
            .any(|subsystem| libfabric::log_enabled(number(level.most_verbose()), subsystem))
    };
    LogLevel::ALL
        .iter()
        .rev()
        .find(logs)
        .map_or(LevelFilter::OFF, |level| LevelFilter::from_level(level.most_verbose()))
}

/// libfabric's level for one of `tracing`.
fn number(level: Level) -> fi_log_level {
    match level {
        Level::ERROR | Level::WARN => FI_LOG_WARN,
        Level::INFO => FI_LOG_TRACE,
        Level::DEBUG => FI_LOG_INFO,
        Level::TRACE => FI_LOG_DEBUG,
    }
}

/// The subsystem of an event, by the module that logs it.
fn subsystem(target: &str) -> fi_log_subsys {
    let ours = target.strip_prefix("efars_fi::c::").unwrap_or_default();
    let name = match ours.split("::").next().unwrap_or_default() {
        "" => LogFilter::subsystem(target),
        "fabric" | "entry" => "fabric",
        "domain" => "domain",
        "av" => "av",
        "cq" | "wait" => "cq",
        "eq" => "eq",
        "counter" => "cntr",
        "mr" => "mr",
        "endpoint" | "passive" | "cm" => "ep_ctrl",
        _ => "ep_data",
    };
    match name {
        "fabric" => FI_LOG_FABRIC,
        "domain" => FI_LOG_DOMAIN,
        "ep_ctrl" => FI_LOG_EP_CTRL,
        "ep_data" => FI_LOG_EP_DATA,
        "av" => FI_LOG_AV,
        "cq" => FI_LOG_CQ,
        "eq" => FI_LOG_EQ,
        "mr" => FI_LOG_MR,
        "cntr" => FI_LOG_CNTR,
        _ => FI_LOG_CORE,
    }
}

/// Sends events to `fi_log`. It has no spans.
struct ToLibfabric {
    most: LevelFilter,
}

impl Subscriber for ToLibfabric {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && *metadata.level() <= self.most {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && libfabric::log_enabled(number(*metadata.level()), subsystem(metadata.target()))
    }

    fn event(&self, event: &Event<'_>) {
        // Writing may be a point where threads are cancelled, also of a call of the data path.
        let _not_now = NotNow::begin();
        let metadata = event.metadata();
        let mut line = Line::default();
        event.record(&mut line);
        libfabric::log(
            number(*metadata.level()),
            subsystem(metadata.target()),
            &c_string(metadata.target()),
            metadata.line().and_then(|line| line.try_into().ok()).unwrap_or(0),
            &c_string(&line.0),
        );
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The message of an event and its other fields, as `peer restarted peer=3`.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" if self.0.is_empty() => write!(self.0, "{value:?}"),
            "message" => {
                let fields = std::mem::take(&mut self.0);
                write!(self.0, "{value:?} {fields}")
            }
            name if self.0.is_empty() => write!(self.0, "{name}={value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Without the zero bytes that it may contain.
fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_are_those_of_the_module_that_logs() {
        let of = [
            ("efa_rdm::intake", FI_LOG_EP_DATA),
            ("efa_rdm::handshake", FI_LOG_EP_CTRL),
            ("efa_sim::shm::memory", FI_LOG_MR),
            ("efa::environment", FI_LOG_CORE),
            ("efars_fi::c::cq", FI_LOG_CQ),
            ("efars_fi::c::cq::error", FI_LOG_CQ),
            ("efars_fi::c::tagged", FI_LOG_EP_DATA),
            ("efars_fi::c::passive", FI_LOG_EP_CTRL),
            ("efars_fi::settings", FI_LOG_CORE),
        ];
        for (target, expected) in of {
            assert_eq!(subsystem(target), expected, "{target}");
        }
    }

    #[test]
    fn levels_are_those_of_the_log_filter() {
        for (index, level) in LogLevel::ALL.iter().enumerate() {
            assert_eq!(number(level.most_verbose()) as usize, index, "{level}");
        }
        assert_eq!(number(Level::ERROR), FI_LOG_WARN);
    }
}
