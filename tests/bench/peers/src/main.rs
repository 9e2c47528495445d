//! Messages between two processes of a host by `efa`, and the limits beside it: the Rust program of
//! `cargo xtask bench peers`. The C programs beside it measure libfabric's providers and MPI.
//!
//! ```text
//! efa-bench-peers ours|mapped|overtcp|engine|device|ring|tcp|readv|memcpy client|server DIRECTORY SECONDS MILLISECONDS POINT...
//!
//!   DIRECTORY      where both sides meet, empty
//!   SECONDS        after which the process ends in any case
//!   MILLISECONDS   that a measurement takes at least
//!   POINT          latency:8:1:one, stream:4096:16:each: size, messages under way, and whether all have one buffer
//!                  or each its own
//! ```
//!
//! What uses TCP does so at the address in `EFA_PEERS_ADDRESS`, or 127.0.0.1.
//!
//! The client prints a line for each point, with the seconds of a message: `stream 4096 16 each 4.1e-7`. The server of
//! `ours` and `mapped` prints how many bytes were received in packets, and how many were read, for each byte delivered: `moved stream
//! 4096 16 each 1.0059 0`.

mod copies;
mod device;
mod engine;
mod measure;
mod ours;
mod ring;
mod tcp;

use std::env::VarError;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::copies::{By, Copies};
use crate::device::Device;
use crate::engine::Engine;
use crate::measure::{Point, Transport, client, server};
use crate::ours::{Ours, Over};
use crate::ring::Ring;
use crate::tcp::Tcp;

/// The variable with the address of this side's host.
const ADDRESS: &str = "EFA_PEERS_ADDRESS";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, role, directory, seconds, milliseconds, points @ ..] = words.as_slice() else {
        bail!("WHAT ROLE DIRECTORY SECONDS MILLISECONDS POINT... are expected");
    };
    let deadline = Duration::from_secs(seconds.parse().context("SECONDS")?);
    // Not joined: it ends with the process, or ends the process.
    std::thread::spawn(move || {
        std::thread::sleep(deadline);
        eprintln!("error: not done after {deadline:?}");
        std::process::exit(1);
    });
    let least = Duration::from_millis(milliseconds.parse().context("MILLISECONDS")?);
    let mut points = points.iter().map(|point| point.parse()).collect::<Result<Vec<Point>>>()?;
    let most = match what.as_str() {
        "ring" => ring::MOST,
        "device" | "engine" => device::MOST,
        _ => usize::MAX,
    };
    points.retain(|point| point.size <= most && (what != "engine" || engine::can(*point)));
    let bytes = points.iter().map(|point| point.bytes()).max().unwrap_or_default();
    let directory = Path::new(directory);
    match (what.as_str(), role.as_str()) {
        ("ours" | "mapped" | "overtcp", role) => {
            let over = match what.as_str() {
                "ours" => Over::Shm,
                "mapped" => Over::Mapped,
                _ => Over::Tcp(address()?),
            };
            let mut ours = Ours::open(over, directory, role, bytes)?;
            run(&mut ours, role, &points, least)?;
            ours.close()
        }
        ("engine", role) => {
            let mut engine = Engine::open(directory, role, bytes)?;
            run(&mut engine, role, &points, least)?;
            engine.close()
        }
        ("device", role) => {
            let mut device = Device::open(directory, role, bytes)?;
            run(&mut device, role, &points, least)?;
            device.close()
        }
        ("ring", role) => run(&mut Ring::open(directory, role)?, role, &points, least),
        ("tcp", role) => {
            run(&mut Tcp::open(directory, role, address()?, bytes)?, role, &points, least)
        }
        ("memcpy" | "readv", role) => {
            let by = if what == "memcpy" { By::Memcpy } else { By::Kernel };
            run(&mut Copies::open(by, directory, role, bytes)?, role, &points, least)
        }
        (other, _) => {
            bail!(
                "`{other}` is none of ours, mapped, overtcp, engine, device, ring, tcp, readv, memcpy"
            )
        }
    }
}

/// The address of this side's host for what uses TCP.
fn address() -> Result<IpAddr> {
    match std::env::var(ADDRESS) {
        Ok(address) => address.parse().with_context(|| format!("{ADDRESS}={address}")),
        Err(VarError::NotPresent) => Ok(Ipv4Addr::LOCALHOST.into()),
        Err(error) => Err(error).context(ADDRESS),
    }
}

fn run(
    transport: &mut impl Transport,
    role: &str,
    points: &[Point],
    least: Duration,
) -> Result<()> {
    match role {
        "client" => client(transport, points, least),
        "server" => server(transport, points),
        other => bail!("`{other}` is neither client nor server"),
    }
}
