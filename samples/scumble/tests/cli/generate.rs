//! Pictures that are made.

use std::path::Path;

use scumble_core::image::{Image, Limits, read, text_from_png, write_png};
use serde_json::Value;

use crate::tensors::{Edited, contents};
use crate::{Place, fixture, succeed};

fn picture(path: &Path) -> Image {
    read(path, &Limits::default()).unwrap()
}

fn parameters(path: &Path) -> String {
    let texts = text_from_png(&std::fs::read(path).unwrap(), path).unwrap();
    let [(keyword, text)] = &texts[..] else { panic!("{texts:?}") };
    assert_eq!(keyword, "parameters");
    text.clone()
}

/// A picture to start from, and a mask of its right half.
fn write_start(place: &Place) {
    let (width, height) = (32, 24);
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [8 * x as u8, 10 * y as u8, 99])).collect();
    write_png(&place.path("start.png"), &Image::new(width, height, 3, pixels).unwrap(), &[]).unwrap();
    let mask = (0..height).flat_map(|_| (0..width).flat_map(|x| [if x < 16 { 0 } else { 255 }; 3])).collect();
    write_png(&place.path("mask.png"), &Image::new(width, height, 3, mask).unwrap(), &[]).unwrap();
}

#[test]
fn every_layout_makes_a_picture() {
    let models = [
        "sd1/f32",
        "sd1/variant-fp16",
        "sd1/sharded",
        "sd1/original-f16.safetensors",
        "sd1/bundle-f16.safetensors",
        "sd2v/f32",
        "sd2v/original-f16.safetensors",
    ];
    for model in models {
        let place = Place::new();
        let stdout = succeed(place.generate(fixture(model), "--width 16 --height 16 --steps 1 -o out.png"));
        assert!(stdout.is_empty(), "{model}: {stdout}");
        assert_eq!(place.listing(), ["out.png"], "{model}");
        let made = picture(&place.path("out.png"));
        assert_eq!((made.width(), made.height(), made.channels()), (16, 16, 3), "{model}");
    }
}

/// Kernels differ in how they round, and the eye can't tell.
#[test]
fn every_kernel_makes_the_same_picture() {
    let made = |kernels: &str| {
        let place = Place::new();
        let flags = format!("--width 32 --height 24 --steps 3 --seed 5 --kernels {kernels} -o out.png");
        succeed(place.generate(fixture("sd1/f32"), &flags));
        picture(&place.path("out.png")).into_pixels()
    };
    let expected = made("stock");
    for kernels in ["auto", "baseline"] {
        let found = made(kernels);
        let off = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(off <= Some(1), "{kernels}: off by {off:?}");
    }
}

#[test]
fn a_picture_says_how_it_was_made() {
    let place = Place::new();
    let flags = "--negative=blur --width 50 --height 37 --steps 2 --cfg 4.5 --sampler euler --schedule karras \
                 --seed 7 --rng torch --clip-skip 2 -o wall.PNG";
    succeed(place.generate(fixture("sd1/bundle-f16.safetensors"), flags));
    let path = place.path("wall.PNG");
    let made = picture(&path);
    assert_eq!((made.width(), made.height()), (50, 37));
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "a mossy wall\nNegative prompt: blur\nSteps: 2, Sampler: euler, Schedule: karras, CFG scale: 4.5, Seed: 7, \
         RNG: torch, Size: 50x37, Model: bundle-f16, Clip skip: 2, Version: Scumble {version}"
    );
    assert_eq!(parameters(&path), expected);
    // Where no flag names a sampler the model's own is named.
    succeed(place.generate(fixture("sd1/f32"), "--width 16 --height 16 --steps 1 -o own.png"));
    assert!(!parameters(&place.path("own.png")).contains("default"));
}

#[test]
fn several_pictures_are_numbered_dumped_and_told() {
    let place = Place::new();
    let model = fixture("sd1/f32");
    let flags = "--width 40 --height 20 --steps 3 --batch 3 --json --seed 5";
    let stdout = succeed(place.generate(&model, &format!("{flags} --dump dump/new -o out.png")));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["images"], serde_json::json!(["out-1.png", "out-2.png", "out-3.png"]));
    assert_eq!((&json["width"], &json["height"], &json["seed"]), (&40.into(), &20.into(), &5.into()));
    assert!(json["load_s"].as_f64().unwrap() > 0.0 && json["generate_s"].as_f64().unwrap() > 0.0);
    let written = ["image", "latents", "noise", "text"].map(|name| format!("dump/new/{name}.safetensors"));
    let mut expected = vec!["dump".to_owned(), "dump/new".into()];
    expected.extend(written);
    expected.extend([1, 2, 3].map(|i| format!("out-{i}.png")));
    assert_eq!(place.listing(), expected);

    let dumped = |name: &str| contents(&place.path(&format!("dump/new/{name}.safetensors")));
    let shapes = |name| dumped(name).into_iter().map(|(key, shape, _)| (key, shape)).collect::<Vec<_>>();
    let positions = 77;
    let text = shapes("text");
    assert_eq!([&text[0].0, &text[1].0], ["negative", "positive"]);
    assert_eq!(text[0].1, text[1].1);
    assert_eq!(text[0].1[..2], [1, positions]);
    let latent = vec![3, 4, 3, 5];
    assert_eq!(shapes("noise"), [("noise".to_owned(), latent.clone())]);
    assert_eq!(shapes("latents"), [0, 1, 2].map(|step| (format!("step_{step:03}"), latent.clone())));
    assert_eq!(shapes("image"), [("image".to_owned(), vec![3, 3, 20, 40])]);

    // The dumped pictures are those of the files, before rounding.
    let values = dumped("image").remove(0).2;
    assert!(values.iter().all(|value| (0.0..=1.0).contains(value)));
    assert!(values.iter().any(|value| (value * 255.0).fract() != 0.0));
    for (i, planes) in values.chunks_exact(3 * 20 * 40).enumerate() {
        let file = picture(&place.path(&format!("out-{}.png", i + 1)));
        for (at, pixel) in file.pixels().iter().enumerate() {
            let value = planes[at % 3 * 800 + at / 3] * 255.0;
            assert!((f32::from(*pixel) - value).abs() <= 0.5001, "picture {i} at {at}: {pixel} of {value}");
        }
    }

    // The same again is the same, also with another number of threads; another seed is not.
    let one = |words: &str| {
        let place = Place::new();
        succeed(place.generate(&model, &format!("{flags} {words} -o out.png")));
        [1, 2, 3].map(|i| place.bytes(&format!("out-{i}.png")))
    };
    let first = [1, 2, 3].map(|i| place.bytes(&format!("out-{i}.png")));
    assert!(one("--threads 1") == first);
    assert!(first[0] != first[1]);

    // The noise that was dumped gives the same when it is given.
    let again = Place::new();
    let noise = place.path("dump/new/noise.safetensors");
    let mut command = again.generate(&model, &format!("{flags} --dump dump -o out.png --noise"));
    command.arg(noise).args(["--seed", "6"]);
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "a flag given twice");
    let mut command =
        again.generate(&model, "--width 40 --height 20 --steps 3 --batch 3 --dump dump -o out.png --noise");
    command.arg(place.path("dump/new/noise.safetensors"));
    succeed(command);
    for name in ["noise", "latents", "image"] {
        let name = format!("{name}.safetensors");
        assert!(again.bytes(&format!("dump/{name}")) == place.bytes(&format!("dump/new/{name}")), "{name}");
    }
}

#[test]
fn prompts_may_be_anything() {
    let model = fixture("sd1/bundle-f16.safetensors");
    let make = |prompt: &str| {
        let place = Place::new();
        let mut command = place.command(["generate", "--prompt", prompt, "--model"]);
        command.arg(&model).args(["--width", "16", "--height", "16", "--steps", "1", "-o", "a.png"]);
        succeed(command);
        (picture(&place.path("a.png")), parameters(&place.path("a.png")))
    };
    let (empty, _) = make("");
    let (emoji, text) = make("🧱 (moos:1.3) 苔むした\u{202e}\u{1}壁");
    assert!(text.starts_with("🧱 (moos:1.3) 苔むした"));
    assert!(empty != emoji);
    make(&"long ".repeat(400));
    make("((([[[:1.2)\\(");
}

#[test]
fn other_autoencoders_take_the_place_of_the_models_own() {
    let place = Place::new();
    let model = fixture("sd1/f32");
    let make = |words: &str, autoencoder: &str| {
        let mut command = place.generate(&model, &format!("--width 24 --height 16 --steps 1 -o {words}.png"));
        if !autoencoder.is_empty() {
            command.arg(format!("--{words}")).arg(fixture(autoencoder));
        }
        succeed(command);
        picture(&place.path(&format!("{words}.png")))
    };
    let own = make("own", "");
    assert!(make("vae", "sd1/vae-original.safetensors") == own);
    assert!(make("taesd", "taesd/taesd.safetensors") != own);
    assert!(make("taesd", "taesd/taesd_decoder.safetensors") != own);
    let text = parameters(&place.path("taesd.png"));
    assert!(text.contains(", VAE: taesd_decoder,"), "{text}");
}

#[test]
fn previews_are_small_pictures() {
    let place = Place::new();
    succeed(place.generate(fixture("sd1/f32"), "--width 40 --height 24 --steps 2 --preview now.png -o out.png"));
    assert_eq!(place.listing(), ["now.png", "out.png"]);
    let preview = picture(&place.path("now.png"));
    assert_eq!((preview.width(), preview.height()), (5, 3));
}

#[test]
fn a_picture_can_be_the_start() {
    let place = Place::new();
    write_start(&place);
    let make = |model: &str, words: &str| {
        let flags = format!("--init-image start.png --steps 4 --seed 1 {words} -o out.png");
        succeed(place.generate(fixture(model), &flags));
        picture(&place.path("out.png"))
    };
    let half = make("sd1/f32", "--strength 0.5");
    assert_eq!((half.width(), half.height()), (32, 24));
    assert!(parameters(&place.path("out.png")).contains("Denoising strength: 0.5"));
    assert!(half != make("sd1/f32", "--strength 1.0"));
    let masked = make("sd1/f32", "--strength 0.5 --mask mask.png");
    assert!(masked != half);
    let inpainted = make("inpaint/f16", "--strength 1.0 --mask mask.png");
    assert_eq!((inpainted.width(), inpainted.height()), (32, 24));
    // A size of its own resizes picture and mask.
    let wide = make("inpaint/original-f16.safetensors", "--strength 0.9 --mask mask.png --width 45 --height 17");
    assert_eq!((wide.width(), wide.height()), (45, 17));
}

#[test]
fn what_a_file_asks_for_is_the_default() {
    let place = Place::new();
    let mut model = Edited::open(&fixture("sd1/bundle-f16.safetensors"));
    let defaults = r#"{"width":24,"height":16,"steps":1,"cfg":2.5,"negative":"fog"}"#;
    model.metadata["defaults"] = defaults.into();
    model.save(&place.path("m.safetensors"));
    succeed(place.generate("m.safetensors", "-o a.png"));
    let text = parameters(&place.path("a.png"));
    assert!(text.contains("Negative prompt: fog\nSteps: 1,") && text.contains("Size: 24x16"), "{text}");
    assert!(text.contains("CFG scale: 2.5"), "{text}");
    succeed(place.generate("m.safetensors", "--width 16 --negative= -o b.png"));
    let text = parameters(&place.path("b.png"));
    assert!(text.contains("Size: 16x16") && !text.contains("fog"), "{text}");
}

#[test]
fn files_are_replaced_as_a_whole() {
    let place = Place::new();
    std::fs::write(place.path("out.png"), "old").unwrap();
    let flags = "--width 16 --height 16 --steps 1 -o out.png";
    succeed(place.generate(fixture("sd1/f32"), flags));
    assert_eq!(picture(&place.path("out.png")).width(), 16);
    assert_eq!(place.listing(), ["out.png"]);
}
