//! The command line as its users meet it: the program is run, and its files, streams and exit codes
//! are looked at. The models are the small random ones of `tests/reference`.

mod bad_files;
mod bad_requests;
mod builtin;
mod generate;
mod inspect;
mod interrupt;
mod memory;
mod tensors;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// However slow the machine: a refusal takes no longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// A model or part of one that `tests/reference` made.
fn fixture(path: &str) -> PathBuf {
    let root = match std::env::var_os("SCUMBLE_DERIVED") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures"),
    };
    let path = root.join(path);
    assert!(path.exists(), "{} is missing: tests/run derives it", path.display());
    path.canonicalize().unwrap()
}

/// An empty folder to run the program in.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The program, about to be run here.
    fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scumble"));
        command.args(arguments).current_dir(self.0.path());
        command
    }

    /// `scumble generate --prompt "a mossy wall"` with a model and further words.
    fn generate(&self, model: impl AsRef<Path>, words: &str) -> Command {
        let mut command = self.command(["generate", "--prompt", "a mossy wall", "--model"]);
        command.arg(model.as_ref()).args(words.split_whitespace());
        command
    }

    /// The names of all files and folders in it.
    fn listing(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path.clone());
                }
                found.push(path.strip_prefix(self.0.path()).unwrap().to_str().unwrap().to_owned());
            }
        }
        found.sort();
        found
    }
}

/// Runs a command that must succeed in silence; gives its standard output.
#[track_caller]
fn succeed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success() && stderr.is_empty(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}

/// Runs a command that must be refused as bad input; gives the sentence that says why.
#[track_caller]
fn refuse(place: &Place, mut command: Command) -> String {
    let before = place.listing();
    let began = Instant::now();
    let output = command.output().unwrap();
    let took = began.elapsed();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {}\n{stderr}", output.status);
    assert!(output.stdout.is_empty(), "{command:?} wrote to standard output");
    assert!(stderr.starts_with("scumble: ") && stderr.ends_with('\n'), "{command:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{command:?}: {stderr}");
    assert!(!stderr.contains("internal") && !stderr.contains("panicked"), "{command:?}: {stderr}");
    assert_eq!(place.listing(), before, "{command:?} left something behind");
    assert!(took < PATIENCE, "{command:?} took {took:?}");
    stderr["scumble: ".len()..].trim_end().to_owned()
}

/// [`refuse`], with what the sentence must say.
#[track_caller]
fn refuse_for(place: &Place, command: Command, reason: &str) {
    let shown = format!("{command:?}");
    let sentence = refuse(place, command);
    assert!(sentence.contains(reason), "{shown}: {sentence:?} doesn't say {reason:?}");
}
