//! `efa-hostile`: runs the fuzz targets without a fuzzer.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use efa_hostile::{Inputs, TARGETS, Target, is_seed, say, seeds, target};

const USAGE: &str = "efa-hostile list
efa-hostile run TARGET FILE...        run inputs
efa-hostile show TARGET FILE          print an input and run it
efa-hostile shrink TARGET FILE        reduce a failing input and write it to FILE.min
efa-hostile seeds CORPUS              write inputs of other targets made from CORPUS/packet
efa-hostile random TARGET SEED COUNT [FOLDER]
                                      run random inputs, most of them mutations of those in
                                      FOLDER; a failing one is written to a file";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => {
            for Target { name, about, .. } in TARGETS {
                say!("{name:<16} {about}");
            }
            ExitCode::SUCCESS
        }
        ["run", name, ref files @ ..] => with(name, |target| {
            for file in files {
                (target.run)(&read(file));
            }
            say!("{name}: {} inputs", files.len());
        }),
        ["show", name, file] => with(name, |target| target.show(&read(file))),
        ["shrink", name, file] => try_with(name, |target| shrink(target, file)),
        ["seeds", corpus] => write_seeds(Path::new(corpus)),
        ["random", name, seed, count, ref folder @ ..] if folder.len() < 2 => {
            match (seed.parse(), count.parse()) {
                (Ok(seed), Ok(count)) => {
                    with(name, |target| random(target, seed, count, folder.first().copied()))
                }
                _ => usage(),
            }
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}

fn with(name: &str, act: impl FnOnce(&'static Target)) -> ExitCode {
    try_with(name, |target| {
        act(target);
        ExitCode::SUCCESS
    })
}

fn try_with(name: &str, act: impl FnOnce(&'static Target) -> ExitCode) -> ExitCode {
    match target(name) {
        Some(target) => act(target),
        None => {
            eprintln!("no target {name}; `efa-hostile list` names them");
            ExitCode::FAILURE
        }
    }
}

fn read(file: &str) -> Vec<u8> {
    match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            eprintln!("cannot read {file}: {error}");
            std::process::exit(1);
        }
    }
}

/// Writes the current input to a file if the target panics.
struct Culprit<'a> {
    name: &'a str,
    seed: u64,
    number: u64,
    bytes: Vec<u8>,
}

impl Drop for Culprit<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed, number, bytes } = self;
            let file = PathBuf::from(format!("{name}-{seed}-{number}"));
            let written = std::fs::write(&file, bytes);
            eprintln!("input {number} of seed {seed} fails: {} {written:?}", file.display());
            eprintln!("efa-hostile show {name} {}", file.display());
        }
    }
}

fn random(target: &Target, seed: u64, count: u64, folder: Option<&str>) {
    let name = target.name;
    let seeds = folder.map(read_all).unwrap_or_default();
    let mut inputs = Inputs::new(seed, seeds);
    let mut culprit = Culprit { name, seed, number: 0, bytes: Vec::new() };
    let (started, mut reported) = (Instant::now(), Instant::now());
    for number in 0..count {
        culprit.number = number;
        culprit.bytes.clear();
        culprit.bytes.extend_from_slice(inputs.advance());
        (target.run)(&culprit.bytes);
        if number % 4096 == 0 && reported.elapsed() > Duration::from_secs(60) {
            reported = Instant::now();
            say!("{name}: seed {seed}: {number} of {count}");
        }
    }
    let took = started.elapsed().as_secs_f64();
    say!("{name}: seed {seed}: {count} executions in {took:.1} s, all passed");
}

fn read_all(folder: &str) -> Vec<Vec<u8>> {
    match files(Path::new(folder)) {
        Ok(files) => files.iter().map(|file| read(&file.display().to_string())).collect(),
        Err(error) => {
            eprintln!("cannot read {folder}: {error}");
            std::process::exit(1);
        }
    }
}

/// The files of a folder, sorted.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = entries.collect::<std::io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Writes each packet of the corpus as input of other targets, under the same name.
fn write_seeds(corpus: &Path) -> ExitCode {
    let written = files(&corpus.join("packet")).and_then(|packets| {
        for packet in packets {
            let name = packet.file_name().unwrap_or_default().to_string_lossy();
            if !is_seed(&name) {
                continue;
            }
            for (target, bytes) in seeds(&std::fs::read(&packet)?) {
                std::fs::write(corpus.join(target).join(format!("packet-{name}")), bytes)?;
            }
        }
        Ok(())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot make seeds in {}: {error}", corpus.display());
            ExitCode::FAILURE
        }
    }
}

/// Reduces a failing input and writes it to `FILE.min`.
fn shrink(target: &Target, file: &str) -> ExitCode {
    let mut bytes = read(file);
    std::panic::set_hook(Box::new(|_| {}));
    let fails = |bytes: &[u8]| std::panic::catch_unwind(|| (target.run)(bytes)).is_err();
    if !fails(&bytes) {
        say!("{file} does not fail");
        return ExitCode::SUCCESS;
    }
    let mut chunk = bytes.len().next_power_of_two() / 2;
    while chunk > 0 {
        let mut at = 0;
        let mut less = false;
        while at < bytes.len() {
            let mut shorter = bytes.clone();
            shorter.drain(at..(at + chunk).min(bytes.len()));
            if fails(&shorter) {
                (bytes, less) = (shorter, true);
            } else {
                at += chunk;
            }
        }
        if !less {
            chunk /= 2;
        }
    }
    for at in 0..bytes.len() {
        let was = std::mem::replace(&mut bytes[at], 0);
        if !fails(&bytes) {
            bytes[at] = was;
        }
    }
    let smaller = format!("{file}.min");
    match std::fs::write(&smaller, &bytes) {
        Ok(()) => {
            say!("{smaller}: {} bytes", bytes.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write {smaller}: {error}");
            ExitCode::FAILURE
        }
    }
}
