//! One model, one picture: every layout that holds the same weights gives the same bytes.

use std::path::Path;

use ggml::Backend;
use scumble_core::pipeline::{Files, Pipeline, Quiet};
use scumble_core::request::Request;
use scumble_core::sampling::SamplerKind;
use scumble_core::weights::Checkpoint;
use scumble_tests::{decibels, derived};

fn request() -> Request {
    Request {
        prompt: "a (mossy:1.3) red brick wall, 12 rows".into(),
        negative: "blurry".into(),
        width_px: 40,
        height_px: 32,
        steps: 2,
        sampler: Some(SamplerKind::Dpmpp2m),
        seed: 7,
        ..Request::default()
    }
}

fn picture_of(files: &Files) -> Vec<f32> {
    let mut pipeline = Pipeline::load(files, Backend::cpu(1).unwrap(), &mut Quiet).unwrap();
    pipeline.generate(&request(), &mut Quiet).unwrap().remove(0).into_data()
}

fn picture(name: &str) -> Vec<f32> {
    picture_of(&Files::open(&derived(name)).unwrap())
}

fn same(model: &str, first: &str, others: &[&str]) {
    let expected = picture(&format!("{model}/{first}"));
    for other in others {
        assert!(picture(&format!("{model}/{other}")) == expected, "{model}: {other} is not {first}");
    }
}

#[test]
fn sd1_layouts_give_the_same_bytes() {
    same("sd1", "f32", &["original-f32.safetensors", "sharded", "original-f64.safetensors"]);
    same("sd1", "f16", &["original-f16.safetensors", "bundle-f16.safetensors", "variant-fp16"]);
}

#[test]
fn sd2_layouts_give_the_same_bytes() {
    same("sd2v", "f32", &["original-f32.safetensors"]);
    same("sd2v", "f16", &["original-f16.safetensors", "bundle-f16.safetensors"]);
}

#[test]
fn old_names_of_the_autoencoder_give_the_same_bytes() {
    let expected = picture("sd1/f32");
    for vae in ["sd1/legacy-vae", "sd1/vae-original.safetensors", "sd1/vae-diffusers.safetensors"] {
        let mut files = Files::open(&derived("sd1/f32")).unwrap();
        if vae.ends_with("legacy-vae") {
            files = Files::open(&derived(vae)).unwrap();
        } else {
            files.vae = Some(Checkpoint::open(&derived(vae)).unwrap());
        }
        assert!(picture_of(&files) == expected, "{vae}");
    }
}

/// Small types are rounded by their file, not by us: the file of the rounded values in F32 is the judge.
#[test]
fn small_types_are_read_exactly() {
    for dtype in ["bf16", "f8_e4m3", "f8_e5m2"] {
        let found = picture(&format!("sd1/original-{dtype}.safetensors"));
        let expected = picture(&format!("sd1/original-{dtype}-as-f32.safetensors"));
        assert!(found == expected, "{dtype}: {:.1} dB", decibels(&found, &expected));
    }
}

#[test]
fn tiny_autoencoders_give_the_same_bytes() {
    let with = |taesd: &Path| {
        let mut files = Files::open(&derived("sd1/f32")).unwrap();
        files.taesd = Some(Checkpoint::open(taesd).unwrap());
        picture_of(&files)
    };
    assert!(with(&derived("taesd/diffusers")) == with(&derived("taesd/taesd.safetensors")));
}

/// A single file with a vocabulary of its own says so in its metadata; without, the text encoder is
/// too small for CLIP's vocabulary, and the error says that.
#[test]
fn a_vocabulary_that_does_not_fit_is_refused() {
    let files = Files::open(&derived("sd1/original-nometadata.safetensors")).unwrap();
    let error = Pipeline::load(&files, Backend::cpu(1).unwrap(), &mut Quiet).err().expect("an error").to_string();
    assert!(error.contains("49408 tokens") && error.contains("604"), "{error}");
}
