//! Too little memory: a sentence, not an abort.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use scumble_core::image::{Image, write_png};

use crate::tensors::Edited;
use crate::{Place, fixture, refuse, refuse_for};

const TOKENS: &str = "text_encoder.text_model.embeddings.token_embedding.weight";

/// A model with a vocabulary of about so many bytes, whose weights are a hole in the file.
pub(crate) fn write_large(path: &Path, bytes: usize) {
    let mut model = Edited::open(&fixture("sd1/bundle-f16.safetensors"));
    let width = model.tensor(TOKENS).shape[1];
    model.save_with_hole(path, TOKENS, &[bytes / 2 / width, width]);
}

/// The program under a limit of its address space.
fn limited(command: &Command, kibibytes: u64) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {kibibytes}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

#[test]
fn pictures_too_large_for_the_machine() {
    let place = Place::new();
    let model = fixture("sd1/f32");
    let command = |words: &str| place.generate(&model, &format!("--steps 1 -o out.png {words}"));
    // 51 GB of pictures alone; the limit keeps larger machines from trying.
    let large = command("--width 8192 --height 8192 --batch 64");
    refuse_for(&place, limited(&large, 8 << 20), "out of memory: the request needs ");
    let large = command("--width 8192 --height 8192");
    refuse_for(&place, limited(&large, 4 << 20), "out of memory: ");
    let large = command("--width 2048 --height 2048");
    refuse_for(&place, limited(&large, 800 << 10), "out of memory: ");
}

#[test]
fn models_too_large_for_the_machine() {
    let place = Place::new();
    write_large(&place.path("m.safetensors"), 2 << 30);
    let small = "--width 16 --height 16 --steps 1 -o out.png";
    let command = place.generate("m.safetensors", small);
    refuse_for(&place, limited(&command, 1 << 20), "out of memory: the model");
    let command = place.command(["bench", "step", "--model", "m.safetensors"]);
    refuse_for(&place, limited(&command, 1 << 20), "out of memory: the model");
}

#[test]
fn pictures_to_start_from() {
    let place = Place::new();
    let (width, height) = (3000, 3000);
    let image = Image::new(width, height, 3, vec![0; (width * height * 3) as usize]).unwrap();
    write_png(&place.path("large.png"), &image, &[]).unwrap();
    write_png(&place.path("small.png"), &Image::new(16, 16, 3, vec![0; 768]).unwrap(), &[]).unwrap();
    let model = fixture("sd1/f32");
    for mebibytes in [100, 150, 200, 250, 300, 400, 500] {
        for words in ["large.png", "large.png --width 64 --height 64", "small.png --width 3000 --height 3000"] {
            let words = format!("--strength 1 --steps 1 --cfg 1 --threads 1 -o out.png --init-image {words}");
            let command = || limited(&place.generate(&model, &words), mebibytes << 10);
            if command().output().unwrap().status.success() {
                std::fs::remove_file(place.path("out.png")).unwrap();
            } else {
                let sentence = refuse(&place, command());
                let says = sentence.contains("memory") || sentence.contains("are accepted");
                assert!(says, "{mebibytes} MiB, {words}: {sentence}");
            }
        }
    }
}

#[test]
fn whatever_the_limit_nothing_aborts() {
    let model = fixture("sd1/f32");
    let mut made = 0;
    for mebibytes in [100, 140, 180, 220, 260, 320, 600] {
        let place = Place::new();
        let command = place.generate(&model, "--width 256 --height 256 --steps 1 --cfg 1 --threads 1 -o out.png");
        let output = limited(&command, mebibytes << 10).output().unwrap();
        if output.status.success() {
            assert_eq!(place.listing(), ["out.png"]);
            made += 1;
        } else {
            let sentence = refuse(&place, limited(&command, mebibytes << 10));
            assert!(sentence.contains("memory"), "{mebibytes} MiB: {sentence}");
        }
    }
    assert!(made > 0);
}
