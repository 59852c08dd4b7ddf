//! Ctrl-C, at every stage.

#![cfg(unix)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Place, fixture};

/// How long a run may go on after Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(2);

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_for(path: &Path, child: &mut Child) {
    let began = Instant::now();
    while !path.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too soon");
        assert!(began.elapsed() < Duration::from_secs(60), "{} never came", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends Ctrl-C (or what `kill` sends by itself); the run must end at once with nothing written.
#[track_caller]
fn interrupt(child: Child, signal: &str) -> bool {
    let sent = Instant::now();
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    let took = sent.elapsed();
    if output.status.success() {
        return false;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{}: {stderr}", output.status);
    assert_eq!(stderr, "scumble: cancelled\n");
    assert!(output.stdout.is_empty());
    assert!(took < PATIENCE, "it took {took:?}");
    true
}

#[test]
fn while_denoising() {
    for signal in ["-INT", "-TERM"] {
        let place = Place::new();
        let flags = "--width 64 --height 64 --steps 900 --preview now.png --dump dump --json -o out.png";
        let mut child = start(place.generate(fixture("sd1/f32"), flags));
        wait_for(&place.path("now.png"), &mut child);
        assert!(interrupt(child, signal));
        // The preview was asked for, and is whole.
        assert_eq!(place.listing(), ["now.png"]);
        let limits = scumble_core::image::Limits::default();
        assert_eq!(scumble_core::image::read(&place.path("now.png"), &limits).unwrap().width(), 8);
    }
}

#[test]
fn while_decoding_or_about_to() {
    let place = Place::new();
    let mut interrupted = 0;
    for delay in [0, 300, 1000, 2500] {
        let flags = "--width 192 --height 192 --steps 2 --cfg 1 --preview now.png -o out.png";
        let mut child = start(place.generate(fixture("sd1/f32"), flags));
        wait_for(&place.path("now.png"), &mut child);
        std::thread::sleep(Duration::from_millis(delay));
        let was_interrupted = interrupt(child, "-INT");
        let expected: &[&str] = if was_interrupted { &["now.png"] } else { &["now.png", "out.png"] };
        assert_eq!(place.listing(), expected);
        interrupted += i32::from(was_interrupted);
        for name in expected {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    }
    assert!(interrupted > 0);
}

#[cfg(target_os = "linux")]
#[test]
fn while_loading() {
    let place = Place::new();
    crate::memory::write_large(&place.path("m.safetensors"), 512 << 20);
    for delay in [50, 120, 250] {
        for words in ["generate --prompt a --steps 900 -o out.png", "bench step"] {
            let mut command = place.command(words.split(' '));
            command.args(["--model", "m.safetensors", "--width", "512", "--height", "512"]);
            let child = start(command);
            std::thread::sleep(Duration::from_millis(delay));
            assert!(interrupt(child, "-INT"), "{words}");
            assert_eq!(place.listing(), ["m.safetensors"]);
        }
    }
}
