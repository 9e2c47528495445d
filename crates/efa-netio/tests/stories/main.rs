//! Stories of contexts on the simulated network: what a program does, and what must happen.

#![allow(clippy::unwrap_used)]

mod ends;
mod hard;
mod model;
mod pairs;
mod partial;
mod publish;
mod send;
mod subscribe;
mod world;
