//! Each network against the reference, number by number: relative L2 ≤ 2e-5 in F32.
//!
//! `tests/reference/modules.py` made the numbers, with the inputs beside them.

use std::collections::BTreeMap;
use std::path::Path;

use ggml::{Backend, Builder, Dtype, Slot};
use scumble_core::models::clip_text::{ClipText, causal_mask};
use scumble_core::models::taesd::{Half, Taesd};
use scumble_core::models::unet::{Inputs, Unet, embed_time};
use scumble_core::models::{Description, description, vae};
use scumble_core::nn::{LoadControl, Params, Plan};
use scumble_core::weights::{Checkpoint, Component, Weights};
use scumble_tests::{Tensor, derived, fixture, relative_l2, tensors};

/// The bar for one network.
const BAR: f64 = 2e-5;

type Numbers = BTreeMap<String, Tensor>;

/// Checks one result, and says how far off it is.
fn check(what: &str, found: &[f32], expected: &[f32]) {
    let error = relative_l2(found, expected);
    println!("{what}: {error:.1e}");
    assert!(error <= BAR, "{what}: {error:.1e}");
}

/// Loads a network on its own.
fn load<T>(
    path: &Path,
    component: Component,
    backend: &Backend,
    build: impl FnOnce(&Checkpoint, &Params<'_>) -> scumble_core::Result<T>,
) -> T {
    let checkpoint = Checkpoint::open(path).unwrap();
    let plan = Plan::new();
    let params = Params::new(Weights::root(checkpoint.component(component).expect("component")), &plan);
    let network = build(&checkpoint, &params).unwrap();
    plan.load(backend, &mut LoadControl { stop: &|| false, progress: &mut |_, _| {} }).unwrap();
    network
}

/// Sizes of `[n, c, h, w]` in ggml's order.
fn picture_shape(tensor: &Tensor) -> ggml::Shape {
    let [n, c, h, w] = *tensor.shape.as_slice() else { panic!("{:?}", tensor.shape) };
    [w, h, c, n]
}

/// Runs a network from one picture-like input to one output.
fn run(backend: &Backend, input: &Tensor, forward: impl FnOnce(ggml::Tensor<'_>) -> ggml::Tensor<'_>) -> Vec<f32> {
    let builder = Builder::new(backend).unwrap();
    let (x, slot) = builder.input(Dtype::F32, picture_shape(input));
    let output = builder.output(forward(x));
    let mut graph = builder.build(backend, usize::MAX).unwrap();
    graph.write(slot, &input.values).unwrap();
    graph.compute(backend, &|| false).unwrap();
    graph.read(output).unwrap()
}

fn text(model: &str) {
    let reference = tensors(&fixture(&format!("{model}/reference/text.safetensors")));
    let backend = Backend::cpu(1).unwrap();
    let network = load(&derived(&format!("{model}/f32")), Component::TextEncoder, &backend, |checkpoint, params| {
        ClipText::load(params, &Description::infer(checkpoint)?.text)
    });
    let tokens: Vec<i32> = reference["tokens"].values.iter().map(|&token| token as i32).collect();
    let positions = network.config().positions;
    for (name, skip) in [("last", 0), ("before_last", 1)] {
        let builder = Builder::new(&backend).unwrap();
        let ((token_tensor, token_slot), (mask, mask_slot)) = network.inputs(&builder, tokens.len() / positions);
        let output = builder.output(network.forward(token_tensor, mask, skip));
        let mut graph = builder.build(&backend, usize::MAX).unwrap();
        graph.write_indices(token_slot, &tokens).unwrap();
        graph.write(mask_slot, &causal_mask(positions)).unwrap();
        graph.compute(&backend, &|| false).unwrap();
        check(&format!("{model} text {name}"), &graph.read(output).unwrap(), &reference[name].values);
    }
}

#[test]
fn text_of_sd1_with_quick_gelu() {
    text("sd1");
}

#[test]
fn text_of_sd2_with_exact_gelu() {
    text("sd2v");
}

fn unet(model: &str) {
    let reference = tensors(&fixture(&format!("{model}/reference/unet.safetensors")));
    let backend = Backend::cpu(1).unwrap();
    let mut config = None;
    let network = load(&derived(&format!("{model}/f32")), Component::Unet, &backend, |checkpoint, params| {
        let description = Description::infer(checkpoint)?;
        let network = Unet::load(params, &description.unet);
        config = Some(description.unet);
        network
    });
    let config = config.unwrap();
    let calls = reference.keys().filter_map(|name| name.strip_suffix("/output"));
    for name in calls {
        let part = |part: &str| &reference[&format!("{name}/{part}")];
        let (sample, states) = (part("sample"), part("states"));
        let [w, h, _, n] = picture_shape(sample);
        let builder = Builder::new(&backend).unwrap();
        let inputs = Inputs::new(&builder, &config, n, w, h, states.shape[1]);
        let output = builder.output(network.forward(inputs.latents.0, inputs.time.0, inputs.text.0));
        let slots: [Slot; 3] = [inputs.latents.1, inputs.time.1, inputs.text.1];
        let mut graph = builder.build(&backend, usize::MAX).unwrap();
        let width = config.levels[0].channels;
        let time: Vec<f32> = part("timesteps").values.iter().flat_map(|&t| embed_time(t, width)).collect();
        graph.write(slots[0], &sample.values).unwrap();
        graph.write(slots[1], &time).unwrap();
        graph.write(slots[2], &states.values).unwrap();
        graph.compute(&backend, &|| false).unwrap();
        check(&format!("{model} unet {name}"), &graph.read(output).unwrap(), &part("output").values);
    }
    check_time(model, &reference);
}

/// The sinusoids alone: a fault in their order would still train, and so hide in a picture.
fn check_time(model: &str, reference: &Numbers) {
    let waves = &reference["time/sinusoidal"];
    let width = waves.shape[1];
    let found: Vec<f32> = reference["time/timesteps"].values.iter().flat_map(|&t| embed_time(t, width)).collect();
    check(&format!("{model} time"), &found, &waves.values);
}

#[test]
fn unet_of_sd1() {
    unet("sd1");
}

#[test]
fn unet_of_sd2_with_linear_projections() {
    unet("sd2v");
}

#[test]
fn unet_for_inpainting_with_nine_channels() {
    unet("inpaint");
}

fn autoencoder(name: &str, path: &Path, reference: &Numbers) {
    let backend = Backend::cpu(1).unwrap();
    let encoder = load(path, Component::Vae, &backend, |checkpoint, params| {
        vae::Encoder::load(params, &description::vae_config(checkpoint)?)
    });
    let decoder = load(path, Component::Vae, &backend, |checkpoint, params| {
        vae::Decoder::load(params, &description::vae_config(checkpoint)?)
    });
    for size in ["wide", "tall"] {
        let part = |part: &str| &reference[&format!("{size}/{part}")];
        let image = part("image");
        let (mean, log_variance) = (part("mean"), part("logvar"));
        let moments = run(&backend, image, |x| encoder.forward(x));
        for (i, moments) in moments.chunks_exact(moments.len() / image.shape[0]).enumerate() {
            let (found_mean, found_log_variance) = moments.split_at(moments.len() / 2);
            let clamped: Vec<f32> = found_log_variance.iter().map(|value| value.clamp(-30.0, 20.0)).collect();
            check(&format!("{name} {size} mean"), found_mean, mean.part(i));
            check(&format!("{name} {size} log-variance"), &clamped, log_variance.part(i));
        }
        let decoded = run(&backend, part("latents"), |x| decoder.forward(x));
        check(&format!("{name} {size} decoded"), &decoded, &part("decoded").values);
    }
}

#[test]
fn autoencoder_with_attention() {
    autoencoder("vae", &derived("sd1/f32"), &tensors(&fixture("sd1/reference/vae.safetensors")));
}

#[test]
fn autoencoder_of_eight_channels_without_attention() {
    let reference = tensors(&fixture("vae8/reference.safetensors"));
    autoencoder("vae8", &derived("vae8/diffusers"), &reference);
    autoencoder("vae8 original", &derived("vae8/vae-original.safetensors"), &reference);
}

#[test]
fn tiny_autoencoder() {
    let reference = tensors(&fixture("taesd/reference.safetensors"));
    let backend = Backend::cpu(1).unwrap();
    for layout in ["taesd/diffusers", "taesd/taesd.safetensors"] {
        let half = |half| load(&derived(layout), Component::Taesd, &backend, |_, params| Taesd::load(params, half));
        let encoded = run(&backend, &reference["image"], |x| half(Half::Encoder).forward(x));
        check(&format!("{layout} encoded"), &encoded, &reference["encoded"].values);
        let decoded = run(&backend, &reference["latents"], |x| half(Half::Decoder).forward(x));
        check(&format!("{layout} decoded"), &decoded, &reference["decoded"].values);
    }
}
