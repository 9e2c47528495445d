//! The modules of the crate import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

/// A pair of modules may know each other, as an endpoint and its receives in place do; more may not.
const LARGEST_CIRCLE: usize = 3;

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The modules that each module names by `crate::`, outside of comments and unit tests. Its submodules are parts of it.
fn imports() -> io::Result<Imports> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut imports = Imports::new();
    for entry in fs::read_dir(sources)? {
        let path = entry?.path();
        let Some(module) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if module == "lib" {
            continue;
        }
        let files = match path.is_dir() {
            true => fs::read_dir(&path)?.map(|part| Ok(part?.path())).collect::<io::Result<_>>()?,
            false => vec![path.clone()],
        };
        for file in files {
            let text = fs::read_to_string(file)?;
            let others = named(&text).filter(|other| other != module);
            imports.entry(module.to_owned()).or_default().extend(others);
        }
    }
    Ok(imports)
}

fn named(text: &str) -> impl Iterator<Item = String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| {
        line.split("crate::").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            rest[..end].to_owned()
        })
    })
}

/// All modules that can be reached from one by its imports.
fn reached(imports: &Imports, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        for other in imports.get(&module).into_iter().flatten() {
            if imports.contains_key(other) && reached.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    reached
}

#[test]
fn module_imports_form_no_cycle_beyond_three_files() {
    let imports = imports().unwrap();
    assert!(imports["endpoint"].contains("core"), "no imports were found");
    let reached: BTreeMap<_, _> =
        imports.keys().map(|module| (module, reached(&imports, module))).collect();
    for module in imports.keys() {
        let circle: Vec<_> =
            reached[module].iter().filter(|other| reached[other].contains(module)).collect();
        assert!(circle.len() <= LARGEST_CIRCLE, "a circle of imports: {circle:?}");
    }
}
