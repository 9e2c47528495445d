//! How the C library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // `dlclose` must not unmap the library: its progress thread and its fork handlers run in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
