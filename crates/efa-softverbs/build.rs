//! How the C library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // It stays when a program unloads it: its thread runs in it, and so do C's handlers of forks.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
