//! Requests that can't be met: each is refused in one sentence.

use std::process::Command;

use scumble_core::image::{Image, write_png};

use crate::tensors::file;
use crate::{Place, fixture, refuse, refuse_for};

/// A place with a picture `start.png` of 32×24, a mask of that size, and a larger one.
fn prepared() -> Place {
    let place = Place::new();
    for (name, width, height) in [("start.png", 32, 24), ("mask.png", 32, 24), ("large.png", 40, 24)] {
        let image = Image::new(width, height, 3, vec![255; (width * height * 3) as usize]).unwrap();
        write_png(&place.path(name), &image, &[]).unwrap();
    }
    place
}

fn with(place: &Place, words: &str) -> Command {
    place.generate(fixture("sd1/f32"), &format!("-o out.png {words}"))
}

#[test]
fn numbers_out_of_range() {
    let cases = [
        ("--width 0 --height 32", "width: 0 where"),
        ("--width 32 --height 8", "height: 8 where"),
        ("--width 7 --height 7", "width: 7 where"),
        ("--width 100000 --height 100000", "width: 100000 where"),
        ("--width 18446744073709551615", "width: 18446744073709551615 where"),
        ("--steps 0", "steps: 0 where 1 to 1000 is possible"),
        ("--steps 100000", "steps: 100000 where"),
        ("--batch 0", "batch: 0 where 1 to 64 is possible"),
        ("--batch 100000", "batch: 100000 where"),
        ("--cfg NaN", "cfg: NaN where"),
        ("--cfg inf", "cfg: inf where"),
        ("--cfg=-1", "cfg: -1 where"),
        ("--cfg-rescale NaN", "cfg-rescale: NaN where"),
        ("--cfg-rescale 2", "cfg-rescale: 2 where"),
        ("--clip-skip 0", "clip-skip: 0 where"),
        ("--clip-skip 99 --width 16 --height 16", "clip-skip: 99 where"),
        ("--threads 100000", "threads: 100000 threads where"),
        ("--device Voodoo", "device: there is no device called Voodoo"),
        ("--kernels mmx", "kernels: \"mmx\" is not one of auto, stock, baseline"),
        ("--init-image start.png --strength NaN", "strength: NaN where"),
        ("--init-image start.png --strength 0", "strength: 0 where"),
        ("--init-image start.png --strength=-0.5", "strength: -0.5 where"),
        ("--init-image start.png --strength 2", "strength: 2 where"),
        ("--init-image start.png --width 100000", "100000×24 where"),
        ("--init-image start.png --height 0", "32×0 where"),
        ("--init-image start.png --mask large.png", "mask: 40×24 pixels where the picture has 32×24"),
        ("--init-image start.png --mask none.png", "none.png: No such file"),
    ];
    let place = prepared();
    for (words, reason) in cases {
        refuse_for(&place, with(&place, words), reason);
    }
}

#[test]
fn words_that_mean_nothing() {
    // clap's own errors: several lines, but the same code, and nothing is written.
    let place = prepared();
    let before = place.listing();
    let cases = [
        "--width none",
        "--width -5",
        "--steps 1.5",
        "--seed none",
        "--sampler best",
        "--schedule best",
        "--rng dice",
        "--prediction flow",
        "--mask mask.png",
        "--strength 0.5",
        "--frobnicate",
        "--output=",
        "--model=",
    ];
    for words in cases {
        let output = with(&place, words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(output.stdout.is_empty(), "{words}");
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: "), "{words}");
        assert_eq!(place.listing(), before, "{words}");
    }
}

#[test]
fn prompts_that_are_too_long() {
    let place = Place::new();
    for flag in ["--prompt", "--negative"] {
        let mut command = place.command(["generate", "-o", "out.png", flag, &"x".repeat(100 << 10)]);
        command.arg("--model").arg(fixture("sd1/f32"));
        if flag == "--negative" {
            command.args(["--prompt", "a"]);
        }
        refuse_for(&place, command, &format!("{}: 102400 bytes, at most 65536 are allowed", &flag[2..]));
    }
    let mut command = place.command(["generate", "-o", "out.png", "--prompt", &"a b ".repeat(9000)]);
    command.arg("--model").arg(fixture("sd1/f32"));
    refuse_for(&place, command, "prompt: needs more than 64 chunks");
}

#[test]
fn outputs_that_can_not_be_written() {
    let place = prepared();
    std::fs::create_dir(place.path("folder.png")).unwrap();
    let model = fixture("sd1/f32");
    let small = "--width 16 --height 16 --steps 1";
    let cases = [
        ("none/out.png", "output: there is no folder none"),
        ("folder.png", "output: folder.png is a folder"),
        (".", "is a folder"),
        ("..", "is a folder"),
        ("start.png/out.png", "output: there is no folder start.png"),
        ("/proc/out.png", "/proc/out.png: "),
        ("out.jpg", "output: out.jpg doesn't end in .png"),
        ("out", "output: out doesn't end in .png"),
    ];
    for (output, reason) in cases {
        let mut command = place.generate(&model, small);
        command.args(["-o", output]);
        refuse_for(&place, command, reason);
        let mut command = place.generate(&model, small);
        command.args(["-o", "fine.png", "--preview", output]);
        refuse_for(&place, command, &reason.replace("output: ", "preview: "));
    }
    for (folder, reason) in
        [("start.png", "dump: start.png is not a folder"), ("start.png/a/b", "is not a folder"), ("/proc/a", "/proc")]
    {
        let mut command = place.generate(&model, small);
        command.args(["-o", "out.png", "--dump", folder]);
        refuse_for(&place, command, reason);
    }
}

#[test]
fn noise_that_does_not_fit() {
    let place = Place::new();
    let refuse_noise = |bytes: Vec<u8>, reason: &str| {
        std::fs::write(place.path("noise.safetensors"), bytes).unwrap();
        let command = with(&place, "--width 32 --height 16 --steps 1 --noise noise.safetensors");
        refuse_for(&place, command, reason);
    };
    let noise = |name: &str, dtype: &str, shape: &str, data: &[u8]| {
        let end = data.len();
        file(&format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#), data)
    };
    let values = [0; 4 * 32];
    let wrong = "noise: tensor noise has the wrong shape, expected [1, 4, 2, 4], found ";
    refuse_noise(noise("noise", "F32", "[1,4,4,2]", &values), &format!("{wrong}[1, 4, 4, 2]"));
    refuse_noise(noise("noise", "F32", "[32]", &values), &format!("{wrong}[32]"));
    refuse_noise(noise("noise", "F32", "[1,4,2,2]", &values[..64]), &format!("{wrong}[1, 4, 2, 2]"));
    refuse_noise(noise("noise", "F16", "[1,4,2,4]", &values[..64]), "tensor noise is F16 where F32 is needed");
    refuse_noise(noise("louder", "F32", "[1,4,2,4]", &values), "there is no tensor called noise");
    refuse_noise(noise("noise", "F32", "[1,4,2,4]", &[255; 128]), "not finite");
    refuse_noise(noise("noise", "F32", "[1,4,2,5]", &values), "no safetensors file");
    refuse_noise(b"\x89PNG\r\n\x1a\n".to_vec(), "no safetensors file");
    refuse_noise([&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "no safetensors file");
    refuse_noise(file(&"[".repeat(100_000), b""), "no safetensors file");
}

#[test]
fn pictures_that_are_none() {
    let place = prepared();
    let whole = std::fs::read(place.path("start.png")).unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"", "neither PNG nor JPEG"),
        (b"some words", "neither PNG nor JPEG"),
        (&whole[..whole.len() / 2], "not a sound PNG"),
        (b"\xff\xd8\xff\xe0 and no more", "broken"),
    ];
    for (bytes, reason) in cases {
        std::fs::write(place.path("broken"), bytes).unwrap();
        refuse_for(&place, with(&place, "--init-image broken"), reason);
        refuse_for(&place, with(&place, "--init-image start.png --mask broken"), reason);
    }
    refuse(&place, with(&place, "--init-image ."));
    // A decoder alone has no way from a picture to latents.
    let mut command = with(&place, "--init-image start.png --strength 1 --steps 1 --taesd");
    command.arg(fixture("taesd/taesd_decoder.safetensors"));
    refuse_for(&place, command, "init-image: the model's autoencoder has no encoder");
}

#[test]
fn benchmarks_of_nothing() {
    let place = Place::new();
    for (words, reason) in [
        ("--width 0", "width: 0 where"),
        ("--height 100000", "height: 100000 where"),
        ("--batch 0", "batch: 0 where"),
        ("--runs 0", "runs: 0 where"),
        ("--runs 100000", "runs: 100000 where"),
        ("--threads 100000", "threads: "),
        ("--device Voodoo", "device: "),
        ("--kernels mmx", "kernels: "),
    ] {
        let mut command = place.command(["bench", "step", "--model"]);
        command.arg(fixture("sd1/f32")).args(words.split(' '));
        refuse_for(&place, command, reason);
    }
}
