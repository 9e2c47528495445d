//! Replays the corpora and regressions of all fuzz targets, and a few thousand random inputs.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::path::{Path, PathBuf};

use efa_hostile::{Inputs, TARGETS, Target, is_seed, seeds, target};

fn files(kind: &str, target: &Target) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind);
    let Ok(entries) = folder.join(target.name).read_dir() else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Runs an input; a failure prints the command that shows it.
fn run(target: &Target, name: &str, bytes: &[u8]) {
    let result = std::panic::catch_unwind(|| (target.run)(bytes));
    assert!(result.is_ok(), "{name}: see `cargo xtask fuzz show {} FILE`", target.name);
}

#[test]
fn regression_inputs_pass() {
    let mut count = 0;
    for target in TARGETS {
        for file in files("regressions", target) {
            run(target, &file.display().to_string(), &std::fs::read(&file).unwrap());
            count += 1;
        }
    }
    assert!(count > 0, "no regressions found: was the folder moved?");
}

#[test]
fn corpus_inputs_pass() {
    for target in TARGETS {
        let files = files("corpus", target);
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        for file in files {
            run(target, &file.display().to_string(), &std::fs::read(&file).unwrap());
        }
    }
}

#[test]
fn random_inputs_pass() {
    for target in TARGETS {
        let files = files("corpus", target);
        let seeds = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        let mut inputs = Inputs::new(1, seeds);
        // Targets with files or connections are slower.
        let slow = [
            "capture",
            "decode",
            "doctor",
            "c_calls",
            "provider_calls",
            "rings",
            "shm_link",
            "subscriptions",
            "tcp_link",
        ]
        .contains(&target.name);
        for number in 0..if slow { 200 } else { 2_000 } {
            let name = format!("{}: input {number} of seed 1", target.name);
            run(target, &name, inputs.advance());
        }
    }
}

#[test]
fn each_target_has_a_fuzzer_with_its_name() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for target in TARGETS {
        let file = fuzz.join("fuzz_targets").join(target.name).with_extension("rs");
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(text.contains(&format!("{:?}", target.name)), "{}", file.display());
    }
    assert!(target("no such target").is_none());
}

#[test]
fn corpora_contain_the_current_seeds_of_each_packet() {
    let packets = files("corpus", target("packet").unwrap());
    assert!(packets.len() > 50, "{packets:?}");
    for packet in packets {
        let name = packet.file_name().unwrap().to_str().unwrap();
        if !is_seed(name) {
            continue;
        }
        let name = format!("packet-{name}");
        for (target, bytes) in seeds(&std::fs::read(&packet).unwrap()) {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
            let kept = std::fs::read(corpus.join(target).join(&name)).unwrap_or_default();
            assert!(kept == bytes, "{target}/{name} is outdated: run `cargo xtask fuzz seeds`");
        }
    }
}
