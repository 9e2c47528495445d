//! `efa info --providers` and `--capabilities`: what discovery finds, without opening a device.

use comfy_table::{Table, presets};
use efa::{Capabilities, Environment, Query, Version};
use serde::Serialize;

/// The output of `--providers`.
#[derive(Serialize)]
pub(crate) struct Providers {
    entries: Vec<Provider>,
}

#[derive(Serialize)]
struct Provider {
    provider: &'static str,
    version: &'static str,
    fabric: String,
    domain: String,
    endpoint: String,
    progress: String,
}

impl Providers {
    /// Asks for all that there is and that `FI_PROVIDER` leaves.
    ///
    /// # Errors
    /// Nothing is left.
    pub(crate) fn find() -> Result<Self, efa::Error> {
        let providers = Environment::read().providers;
        let entries = efa::discover(&Query::new(Version::NEWEST).providers(providers))?;
        let entries = entries.into_iter().map(|info| Provider {
            provider: info.provider,
            version: info.provider_version,
            fabric: info.fabric,
            domain: info.domain.name,
            endpoint: format!("{:?}", info.endpoint.kind),
            progress: info.domain.progress.to_string(),
        });
        Ok(Self { entries: entries.collect() })
    }

    /// As table.
    pub(crate) fn table(&self) -> String {
        let mut table = bare();
        table.add_row([" provider", "version", "fabric", "domain", "endpoint", "progress"]);
        for entry in &self.entries {
            let Provider { provider, version, fabric, domain, endpoint, progress } = entry;
            let provider = format!(" {provider}");
            table.add_row([&provider, *version, fabric, domain, endpoint, progress]);
        }
        table.trim_fmt()
    }
}

/// The output of `--capabilities`.
#[derive(Serialize)]
pub(crate) struct CapabilityList {
    offered: Vec<&'static str>,
    not_offered: Vec<&'static str>,
}

impl CapabilityList {
    pub(crate) fn list() -> Self {
        let names = |some: Capabilities| some.iter_names().map(|(name, _)| name).collect();
        let not_offered = names(Capabilities::all() - Capabilities::OFFERED);
        Self { offered: names(Capabilities::OFFERED), not_offered }
    }

    /// As table.
    pub(crate) fn table(&self) -> String {
        let mut table = bare();
        table.add_row([" offered", &self.offered.join(", ")]);
        table.add_row([" never offered", &self.not_offered.join(", ")]);
        table.trim_fmt()
    }
}

fn bare() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table
}
