//! Takes the CLIP merges out of the package that carries them.
//!
//! The vocabulary is OpenAI's `bpe_simple_vocab_16e6.txt` (MIT), as the crate
//! `instant-clip-tokenizer` ships it. That crate is pinned under a `cfg` that is never true, so it
//! is in `Cargo.lock` with its checksum and is never compiled; `cargo metadata` names its folder.
//! `SCUMBLE_CLIP_VOCAB` names another copy of the file, for builds without cargo's registry.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "instant-clip-tokenizer";
const FILE: &str = "bpe_simple_vocab_16e6.txt";
const OVERRIDE: &str = "SCUMBLE_CLIP_VOCAB";

/// Merges that CLIP uses: 49152 tokens less 256 bytes and the two specials. The file has more.
const MERGES: usize = 49152 - 256 - 2;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={OVERRIDE}");

    let vocabulary = match env::var_os(OVERRIDE) {
        Some(path) => PathBuf::from(path),
        None => package_folder().join(FILE),
    };
    println!("cargo:rerun-if-changed={}", vocabulary.display());

    let text = fs::read_to_string(&vocabulary).unwrap_or_else(|error| panic!("{}: {error}", vocabulary.display()));
    let merges = merges(&text).unwrap_or_else(|reason| panic!("{}: {reason}", vocabulary.display()));

    let target = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("clip_merges.txt");
    fs::write(&target, merges).unwrap_or_else(|error| panic!("{}: {error}", target.display()));
}

/// The merges that CLIP uses, a line each, without the file's heading.
fn merges(text: &str) -> Result<String, String> {
    // The heading of the published file starts with a quotation mark.
    let mut lines = text.lines();
    if !lines.next().is_some_and(|heading| heading.contains("#version:")) {
        return Err("the first line is not a #version heading".into());
    }
    let lines: Vec<&str> = lines.take(MERGES).collect();
    if lines.len() != MERGES {
        return Err(format!("{} merges, expected {MERGES} or more", lines.len()));
    }
    if let Some(line) = lines.iter().find(|line| line.split(' ').count() != 2) {
        return Err(format!("the line {line:?} is not a pair"));
    }
    Ok(lines.join("\n") + "\n")
}

/// Where cargo keeps the unpacked package; asks the network only when it is not there yet.
fn package_folder() -> PathBuf {
    let mut refusals = String::new();
    for offline in [true, false] {
        match metadata(offline).and_then(|metadata| folder_from_metadata(&metadata)) {
            Ok(folder) if folder.join(FILE).is_file() => return folder,
            Ok(folder) => refusals += &format!("\n{}: {FILE} is not there", folder.display()),
            Err(refusal) => refusals += &format!("\n{refusal}"),
        }
    }
    panic!("the package {PACKAGE} was not found; set {OVERRIDE} to a copy of {FILE}{refusals}")
}

fn metadata(offline: bool) -> Result<String, String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["metadata", "--format-version", "1", "--manifest-path"]);
    command.arg(Path::new(&folder).join("Cargo.toml"));
    if offline {
        command.arg("--offline");
    }
    let output = command.output().map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn folder_from_metadata(metadata: &str) -> Result<PathBuf, String> {
    let metadata: serde_json::Value =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages
        .iter()
        .find(|package| package["name"] == PACKAGE)
        .and_then(|package| package["manifest_path"].as_str())
        .and_then(|manifest| Path::new(manifest).parent())
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("cargo metadata does not name {PACKAGE}"))
}
