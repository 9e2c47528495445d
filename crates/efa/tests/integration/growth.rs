//! Interfaces that grow: what a later release may extend must not be exhaustive.

use std::fs;
use std::path::{Path, PathBuf};

/// Closed on purpose, with the reason.
const CLOSED: &[(&str, &str)] =
    &[("Direction", "a queue serves one direction, the other, or both")];

/// Whether a struct with public fields may get more of them.
fn grows(name: &str) -> bool {
    let ends = ["Options", "Attributes", "Hints", "Limits", "Counts", "Info", "Query", "Filter"];
    ends.iter().any(|end| name.ends_with(end))
        || ["Environment", "Completion", "Parameter"].contains(&name)
}

/// The files of a directory and those below it.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

// conformance: C28
#[test]
fn options_attributes_and_enums_can_grow() {
    let mut checked = Vec::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (number, line) in lines.iter().enumerate() {
            let (is_enum, rest) =
                match (line.strip_prefix("pub enum "), line.strip_prefix("pub struct ")) {
                    (Some(rest), _) => (true, rest),
                    (_, Some(rest)) if rest.ends_with('{') => (false, rest),
                    _ => continue,
                };
            let name = rest.trim_end_matches([' ', '{']);
            let is_closed = CLOSED.iter().any(|(closed, _)| *closed == name);
            if is_closed || !(is_enum || grows(name.trim_start_matches('$'))) {
                continue;
            }
            let mut attributes =
                lines[..number].iter().rev().take_while(|line| line.starts_with("#["));
            let open = attributes.any(|line| *line == "#[non_exhaustive]");
            assert!(open, "{name} in {} can't grow", path.display());
            checked.push(name.to_owned());
        }
    }
    let names = [
        "EndpointOptions",
        "DomainOptions",
        "$Attributes",
        "$Hints",
        "Query",
        "StartError",
        "MsgEndpointOptions",
        "ControlEvent",
    ];
    for name in names {
        assert!(checked.iter().any(|checked| checked == name), "{name} was not looked at");
    }
}

// conformance: C138
#[test]
fn guide_has_code_that_is_run_for_each_flow() {
    /// The flows, and a call that each must have.
    const FLOWS: [(&str, &str); 15] = [
        ("Asking what there is", "discover(&query)"),
        ("An endpoint", ".enable()"),
        ("Listening", ".listen("),
        ("Accepting", ".accept(request"),
        ("A scalable endpoint", ".scalable_endpoint("),
        ("Memory regions, writes and reads", ".write(Rma::at("),
        ("Injection", ".inject("),
        ("Cancelling a receive", ".cancel("),
        ("Looking at a message before it is received", ".claim("),
        ("Completions, and those of failed operations", "Some(Err(error))"),
        ("Levels of completion", ".delivery_complete()"),
        ("Counters", "done.wait("),
        ("A poll set", "set.poll("),
        ("Sleeping on descriptors", "fabric.try_wait("),
        ("Waiting for events", ".bind_event_queue("),
    ];
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide.rs");
    let guide = fs::read_to_string(guide).unwrap();
    // Title and code of each section. A fence without words is compiled and run by `cargo test`.
    let mut sections: Vec<(&str, String)> = Vec::new();
    let mut in_code = false;
    for line in guide.lines().filter_map(|line| line.strip_prefix("//! ")) {
        if line.starts_with("```") {
            assert_eq!(line, "```");
            in_code = !in_code;
        } else if let Some((_, code)) = sections.last_mut().filter(|_| in_code) {
            code.push_str(line);
        } else if let Some(title) = line.strip_prefix("# ") {
            sections.push((title, String::new()));
        }
    }
    // The tables behind them have no code.
    assert_eq!(sections.pop(), Some(("Every call", String::new())));
    let titles: Vec<_> = sections.iter().map(|(title, _)| *title).collect();
    assert_eq!(titles, FLOWS.map(|(title, _)| title));
    for ((title, code), (_, call)) in sections.iter().zip(FLOWS) {
        assert!(code.contains(call), "{title}: {call}");
    }
}
