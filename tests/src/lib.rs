//! What the cross-crate tests share: where fixtures lie, how they are read, how numbers are compared.
//!
//! Fixtures come from `tests/reference/make.py`, what is derived from them from `layouts.py` beside
//! it; `tests/run` makes both. `SCUMBLE_FIXTURES` and `SCUMBLE_DERIVED` name other folders. A missing
//! fixture fails a test, it never skips one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use scumble_core::pipeline::{Observer, Trace};
use serde_json::Value;

/// A file or folder of the reference.
pub fn fixture(name: &str) -> PathBuf {
    named("SCUMBLE_FIXTURES", "tests/fixtures").join(name)
}

/// A model in one of the layouts that are derived from the reference.
pub fn derived(name: &str) -> PathBuf {
    named("SCUMBLE_DERIVED", "target/fixtures").join(name)
}

/// The folder that a variable names, else one of the workspace.
fn named(variable: &str, default: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os(variable).map_or_else(|| workspace.join(default), PathBuf::from)
}

/// A JSON file of the reference.
pub fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One tensor: sizes, slowest first, and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Sizes.
    pub shape: Vec<usize>,
    /// Values in order.
    pub values: Vec<f32>,
}

impl Tensor {
    /// The `i`-th part along the first dimension.
    pub fn part(&self, i: usize) -> &[f32] {
        let length = self.values.len() / self.shape[0];
        &self.values[i * length..(i + 1) * length]
    }
}

/// The tensors of a file, as F32 (I64 tokens too: they are small).
pub fn tensors(path: &Path) -> BTreeMap<String, Tensor> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let read = |view: safetensors::tensor::TensorView<'_>| -> Vec<f32> {
        match view.dtype() {
            Dtype::F32 => view.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::I64 => view.data().as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b) as f32).collect(),
            other => panic!("{}: {other:?}", path.display()),
        }
    };
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, Tensor { shape: view.shape().to_vec(), values: read(view) }))
        .collect()
}

/// ‖found − expected‖ / ‖expected‖; infinite if anything is not a number.
pub fn relative_l2(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths");
    let square = |x: f64| x * x;
    let difference: f64 = found.iter().zip(expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    let size: f64 = expected.iter().map(|&b| square(f64::from(b))).sum();
    let ratio = (difference / size).sqrt();
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}

/// The peak signal-to-noise ratio of pictures in 0…1, in dB.
pub fn decibels(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths");
    let sum: f64 = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
    let ratio = -10.0 * (sum / found.len() as f64).log10();
    if ratio.is_nan() { f64::NEG_INFINITY } else { ratio }
}

/// Keeps what a run tells of its inside.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The starting noise.
    pub noise: Vec<f32>,
    /// The latents after each step.
    pub latents: Vec<Vec<f32>>,
    /// The text's states, positive and negative.
    pub text: (Vec<f32>, Vec<f32>),
}

impl Observer for Recorder {
    fn trace(&mut self, trace: Trace<'_>) {
        match trace {
            Trace::Text { positive, negative, .. } => self.text = (positive.to_vec(), negative.to_vec()),
            Trace::Noise { values, .. } => self.noise = values.to_vec(),
            Trace::Latents { values, .. } => self.latents.push(values.to_vec()),
        }
    }
}
