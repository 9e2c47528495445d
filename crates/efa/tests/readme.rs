//! The program in the README is the example `hello`.

#[test]
fn readme_contains_the_hello_example() {
    let readme = include_str!("../../../README.md");
    let example = include_str!("../examples/hello.rs");
    assert!(readme.contains(example), "copy examples/hello.rs into README.md");
    assert!(example.lines().count() <= 40, "the README promises at most 40 lines");
}
