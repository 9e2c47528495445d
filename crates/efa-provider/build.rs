//! How the C library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // `dlclose` must not unmap the library: thread-local variables of the program's threads, and a thread of
    // automatic progress, outlive it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
