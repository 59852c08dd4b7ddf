//! Whole pictures against diffusers: ≥ 100 dB for F32 files, ≥ 60 dB for F16 files on the same weights.
//!
//! Each case of an `index.json` says everything that its request needs; `tests/reference/cases.py`
//! made them.

use std::path::{Path, PathBuf};

use ggml::Backend;
use scumble_core::image::{self, Limits, Mask};
use scumble_core::pipeline::{Files, Pipeline};
use scumble_core::request::{Init, Request};
use scumble_core::sampling::rng::RngKind;
use scumble_core::weights::Checkpoint;
use scumble_tests::{Recorder, decibels, derived, fixture, json, relative_l2, tensors};
use serde_json::{Value, json};

const F32_BAR_DB: f64 = 100.0;
const F16_BAR_DB: f64 = 60.0;
/// The latents of each step, relative L2: tighter than the picture, which an autoencoder smooths.
const LATENT_BAR: f64 = 1e-4;

/// What the engine has no option for: the mean of the encoder's distribution, one torch generator
/// for each picture of a batch, noise in DDIM (which `tests/sampling.rs` holds to its numbers).
/// Nor are k-diffusion's own schedules comparable as pictures: it starts from σ times the noise where
/// diffusers and we start from √(σ² + 1) times it. As trajectories they are in `tests/sampling.rs`.
fn is_foreign(case: &Value) -> bool {
    let k_schedule = case["source"] == "k" && ["sgm_uniform", "ays"].contains(&case["schedule"].as_str().unwrap());
    case["posterior"] == "mean" || case["seeds"] == "each" || case["eta"] != 0.0 || k_schedule
}

/// A folder like `model`, with the scheduler's configuration that the case describes.
fn with_scheduler(model: &Path, case: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in std::fs::read_dir(model).unwrap().map(Result::unwrap) {
        if part.file_name() != "scheduler" {
            copy(&part.path(), &folder.path().join(part.file_name()));
        }
    }
    let mut config = json(&model.join("scheduler/scheduler_config.json"));
    config["prediction_type"] = case["prediction"].clone();
    config["timestep_spacing"] = case["spacing"].clone();
    config["steps_offset"] = case["steps_offset"].clone();
    config["rescale_betas_zero_snr"] = case["zero_snr"].clone();
    let path = folder.path().join("scheduler");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("scheduler_config.json"), config.to_string()).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

/// `dpmpp_2m` → `dpmpp-2m`; a schedule of the reference's called "discrete" is the spacing's.
fn sampler_name(case: &Value) -> String {
    case["sampler"].as_str().unwrap().replace('_', "-")
}

fn schedule_name(case: &Value) -> String {
    match case["schedule"].as_str().unwrap() {
        "discrete" => case["spacing"].as_str().unwrap().into(),
        name => name.replace('_', "-"),
    }
}

fn request(case: &Value, folder: &Path) -> Request {
    let count = |name: &str| case[name].as_u64().unwrap() as usize;
    let number = |name: &str| case[name].as_f64().unwrap() as f32;
    let text = |name: &str| case[name].as_str().unwrap().to_owned();
    let index = json(&folder.join("index.json"));
    let input = |name: &str| -> PathBuf { folder.join(index[name].as_str().unwrap()) };
    let init = (case["kind"] != "text").then(|| Init {
        image: image::read(&input("init_image"), &Limits::default()).unwrap().to_float(),
        strength: number("strength"),
        mask: (case["kind"] == "inpaint").then(|| Mask::read(&input("mask"), &Limits::default()).unwrap()),
    });
    Request {
        prompt: text("prompt"),
        negative: text("negative"),
        width_px: count("width"),
        height_px: count("height"),
        steps: count("steps"),
        guidance: number("cfg"),
        guidance_rescale: number("guidance_rescale"),
        sampler: Some(sampler_name(case).parse().unwrap()),
        schedule: Some(schedule_name(case).parse().unwrap()),
        seed: case["seed"].as_u64().unwrap(),
        rng: RngKind::Torch,
        images: count("batch"),
        clip_skip: (count("clip_skip") != 1).then(|| count("clip_skip")),
        init,
        ..Request::default()
    }
}

/// Runs every case of `model` on its folder of type `dtype` and holds the pictures to `bar_db`.
fn check_all(model: &str, dtype: &str, bar_db: f64, wanted: impl Fn(&Value) -> bool) {
    let folder = fixture(model);
    let index = json(&folder.join("index.json"));
    let cases: Vec<&Value> =
        index["cases"].as_array().unwrap().iter().filter(|case| !is_foreign(case) && wanted(case)).collect();
    assert!(!cases.is_empty(), "no case of {model}");
    let mut failures = Vec::new();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let reference = tensors(&folder.join(case["file"].as_str().unwrap()));
        let files = with_scheduler(&derived(&format!("{model}/{dtype}")), case);
        let mut files = Files::open(files.path()).map(|opened| (opened, files)).unwrap();
        if case["autoencoder"] == "taesd" {
            files.0.taesd = Some(Checkpoint::open(&derived("taesd/diffusers")).unwrap());
        }
        let mut recorder = Recorder::default();
        let mut pipeline = Pipeline::load(&files.0, Backend::cpu(1).unwrap(), &mut recorder).unwrap();
        let pictures = pipeline.generate(&request(case, &folder), &mut recorder).unwrap();

        assert_eq!(recorder.noise, reference["noise"].values, "{name}: the noise, bit for bit");
        let found: Vec<f32> = pictures.iter().flat_map(|picture| picture.data()).copied().collect();
        let db = decibels(&found, &reference["image"].values);
        let latents = &reference["latents"];
        assert_eq!(recorder.latents.len(), latents.shape[0], "{name}: steps");
        let worst =
            (0..latents.shape[0]).map(|i| relative_l2(&recorder.latents[i], latents.part(i))).fold(0.0, f64::max);
        println!("{model} {dtype} {name}: {db:.1} dB, latents {worst:.1e}");
        if db < bar_db || (bar_db >= F32_BAR_DB && worst > LATENT_BAR) {
            failures.push(format!("{name}: {db:.1} dB, latents {worst:.1e}"));
        }
    }
    assert!(failures.is_empty(), "{model} {dtype}: {failures:#?}");
}

fn of_kind(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |case| case["kind"] == json!(kind)
}

#[test]
fn sd1_text_to_image() {
    check_all("sd1", "f32", F32_BAR_DB, of_kind("text"));
}

#[test]
fn sd1_image_to_image() {
    check_all("sd1", "f32", F32_BAR_DB, of_kind("image"));
}

#[test]
fn sd1_inpainting_with_an_ordinary_unet() {
    check_all("sd1", "f32", F32_BAR_DB, of_kind("inpaint"));
}

#[test]
fn sd2_with_velocity_prediction() {
    check_all("sd2v", "f32", F32_BAR_DB, |_| true);
}

#[test]
fn inpainting_with_nine_channels() {
    check_all("inpaint", "f32", F32_BAR_DB, |_| true);
}

#[test]
fn half_float_files() {
    let some = |case: &Value| ["euler", "dpmpp_2m", "unguided"].contains(&case["name"].as_str().unwrap());
    check_all("sd1", "f16", F16_BAR_DB, some);
    check_all("sd2v", "f16", F16_BAR_DB, some);
}
