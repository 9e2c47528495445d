//! Stories of contexts on the simulated network: what a program does, and what must happen.

#![allow(clippy::unwrap_used)]

mod driving;
mod ends;
mod other_programs;
mod pairs;
mod publish;
mod random;
mod refused;
mod send;
mod world;
