//! `efa info --parameters`: libfabric's environment variables, with and without effect here.

use comfy_table::{Table, presets};
use efa::{Environment, Parameter, ParameterKind};
use serde::Serialize;

/// The output.
#[derive(Serialize)]
pub(crate) struct Variables {
    effective: Vec<Effective>,
    without_effect: Vec<WithoutEffect>,
}

#[derive(Serialize)]
struct Effective {
    name: &'static str,
    kind: &'static str,
    value: String,
    default: String,
    meaning: &'static str,
}

#[derive(Serialize)]
struct WithoutEffect {
    name: &'static str,
    reason: &'static str,
}

impl Variables {
    /// Reads the environment of this process; invalid values are logged.
    pub(crate) fn read() -> Self {
        let (now, usual) = (Environment::read(), Environment::default());
        let effective = Parameter::ALL.iter().filter_map(|parameter| {
            Some(Effective {
                name: parameter.name,
                kind: match parameter.kind()? {
                    ParameterKind::Switch => "switch",
                    ParameterKind::Number { .. } => "number",
                    _ => "text",
                },
                value: parameter.value(&now)?.to_string(),
                default: parameter.value(&usual)?.to_string(),
                meaning: parameter.help,
            })
        });
        let without_effect = Parameter::ALL.iter().filter(|parameter| parameter.kind().is_none());
        Self {
            effective: effective.collect(),
            without_effect: without_effect
                .map(|Parameter { name, help, .. }| WithoutEffect { name, reason: help })
                .collect(),
        }
    }

    /// As two tables.
    pub(crate) fn table(&self) -> String {
        let mut effective = bare();
        effective.add_row([" name", "value", "default", "meaning"]);
        for Effective { name, value, default, meaning, .. } in &self.effective {
            effective.add_row([&format!(" {name}"), value, default, *meaning]);
        }
        let mut without = bare();
        for WithoutEffect { name, reason } in &self.without_effect {
            without.add_row([&format!(" {name}"), *reason]);
        }
        format!(
            "environment\n{}\nknown from libfabric, without effect here\n{}",
            effective.trim_fmt(),
            without.trim_fmt()
        )
    }
}

fn bare() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}
