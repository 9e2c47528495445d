//! Stories of the object model, on a network with a clock that is moved by hand unless a story is
//! about something else.

#![allow(clippy::unwrap_used, reason = "a story that can't go on fails")]

mod accounts;
mod buffers;
mod completions;
mod counters;
mod ends;
mod in_place;
mod lifetimes;
mod links;
mod messages;
mod peers;
mod registrations;
mod rma;
mod setup;
mod threads;
mod world;
