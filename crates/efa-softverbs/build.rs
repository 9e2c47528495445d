//! How the C library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // `dlclose` must not unmap the library: its progress thread and its fork handlers run in it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Its own references to its functions mean these, also where `libibverbs.so.1` of `efa-soft-names`, whose
    // functions jump through the table of this library, comes before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
