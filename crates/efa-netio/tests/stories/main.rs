//! Stories of contexts on the simulated network: what a program does, and what must happen.

#![allow(clippy::unwrap_used)]

mod counts;
mod driving;
mod ends;
mod hard;
mod model;
mod other_programs;
mod pairs;
mod partial;
mod publish;
mod random;
mod refused;
mod send;
mod subscribe;
mod world;
