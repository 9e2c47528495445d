//! Stories of contexts on the simulated network: what a program does, and what must happen.

#![allow(clippy::unwrap_used)]

mod ends;
mod pairs;
mod publish;
mod send;
mod world;
