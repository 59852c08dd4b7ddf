//! Every kernel, in every variant that this processor has, over odd sizes against its definition. Small and without
//! ggml, so that Miri, sanitizers and emulators can run it; buffers are as long as what is in them, and begin off
//! any alignment.

use std::ops::Range;

use super::*;
use crate::Dtype;
use crate::custom::Windows;

/// Relative to the largest of what is expected.
const CLOSE: f64 = 2e-6;

const SIZES: [usize; 5] = [1, 3, 7, 31, 33];

/// Numbers in −1…1, the same in every run.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// As [`numbers`], and where they begin in a buffer that has one number more.
fn unaligned(seed: usize, count: usize) -> Vec<f32> {
    numbers(seed, count + 1)
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3, |largest: f64, x| largest.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() <= CLOSE * largest, "{what}, {i}: {found} for {expected}");
    }
}

fn packed(isa: Isa, dtype: Dtype, outputs: usize, inputs: usize, taps: usize) -> (Panels, Vec<f32>) {
    let mut values = numbers(outputs + inputs, outputs * inputs * taps);
    let mut panels = Panels::zeros(isa, dtype, outputs, inputs, taps).unwrap();
    let bytes: Vec<u8> = match dtype {
        Dtype::F16 => {
            values.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32());
            values.iter().flat_map(|&x| half::f16::from_f32(x).to_ne_bytes()).collect()
        }
        Dtype::BF16 => {
            values.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
            values.iter().flat_map(|&x| half::bf16::from_f32(x).to_ne_bytes()).collect()
        }
        _ => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    };
    // In three parts, none of which ends with a row.
    let size = dtype.size();
    let cuts = [0, values.len() / 3 * size, (values.len() - values.len() / 4) * size, bytes.len()];
    for cut in cuts.windows(2) {
        panels.write(cut[0], &bytes[cut[0]..cut[1]]).unwrap();
    }
    (panels, values)
}

/// `Σ_tap Σ_i w[o, i, tap] x[source(row, tap), i]`, row by row.
fn naive_product(
    (x, inputs): (&[f32], usize),
    (weights, taps): (&[f32], usize),
    rows: Range<usize>,
    source: &dyn Fn(usize, usize) -> Option<usize>,
) -> Vec<f64> {
    let row = |row: usize| {
        weights.chunks_exact(inputs * taps).map(move |weights| {
            let of_tap = |tap: usize| match source(row, tap) {
                None => 0.0,
                Some(at) => {
                    (0..inputs).map(|i| f64::from(x[at * inputs + i]) * f64::from(weights[i * taps + tap])).sum()
                }
            };
            (0..taps).map(of_tap).sum()
        })
    };
    rows.flat_map(row).collect()
}

#[test]
fn products() {
    for isa in Isa::available() {
        for (case, (outputs, inputs)) in SIZES.into_iter().zip([33, 31, 7, 3, 1]).enumerate() {
            for rows in [1, 5, 13] {
                let dtype = [Dtype::F16, Dtype::F32, Dtype::BF16][case % 3];
                let (panels, weights) = packed(isa, dtype, outputs, inputs, 1);
                let x = unaligned(rows, rows * inputs);
                let mut y = vec![0.0; 1 + rows * outputs];
                let part = Part { rows: 0..rows, panels: 0..panels.count() };
                let source = |row, _| Some(row);
                product(&panels, &x[1..], &source, &mut y[1..], part, &mut Scratch::default()).unwrap();
                let expected = naive_product((&x[1..], inputs), (&weights, 1), 0..rows, &source);
                assert_close(&y[1..], &expected, &format!("{isa}, {rows} × {inputs} → {outputs}"));
            }
        }
    }
}

#[test]
fn tiled_convolutions() {
    for isa in Isa::available() {
        for (inputs, outputs, [width, height], wraps) in [(16, 33, [5, 6], false), (80, 3, [7, 4], true)] {
            let (panels, weights) = packed(isa, Dtype::F16, outputs, inputs, 9);
            let (input, output) = ([width, height], [width, height]);
            let windows = Windows { input, enlarged: input, output, window: 3, stride: 1, padding: 1, wraps };
            let x = unaligned(1, width * height * inputs);
            let mut y = vec![0.0; 1 + width * height * outputs];
            let part = Part { rows: 0..windows.tiles().iter().product(), panels: 0..panels.count() };
            let mut scratch = Scratch::default();
            // SAFETY: all of `y` is the part's.
            unsafe { winograd_into(&panels, &x[1..], &windows, y[1..].as_mut_ptr(), part, &mut scratch) }.unwrap();
            let source = |row, tap| windows.tap(row, tap);
            let expected = naive_product((&x[1..], inputs), (&weights, 9), 0..width * height, &source);
            assert_close(&y[1..], &expected, &format!("{isa}, {inputs} → {outputs}"));
        }
    }
}

#[test]
fn attention() {
    for isa in Isa::available() {
        for (rows, keys, width, masked) in [(1, 1, 1, false), (3, 7, 33, true), (7, 130, 3, false), (13, 129, 17, true)]
        {
            let [q, k, v] = [(1, rows), (2, keys), (3, keys)].map(|(seed, count)| unaligned(seed, count * width));
            let mask = masked.then(|| numbers(4, rows * keys));
            let head = |values| Head { values, stride: width, width };
            let length = block_length(isa, width);
            let mut blocks = vec![0.0; blocks(keys) * length];
            for (block, packed) in blocks.chunks_exact_mut(length).enumerate() {
                pack(isa, head(&k[1..]), head(&v[1..]), keys, block, packed);
            }
            let mut y = vec![0.0; 1 + rows * width];
            let to = y[1..].as_mut_ptr();
            let attend = Attend {
                q: head(&q[1..]),
                rows,
                keys,
                packed: &blocks,
                mask: mask.as_deref(),
                scale: 0.7,
                y: &mut |row| to.wrapping_add(row * width),
                scratch: &mut Scratch::default(),
            };
            // SAFETY: `y` has the rows.
            unsafe { attend.compute(isa) };
            let expected: Vec<f64> =
                (0..rows).flat_map(|row| naive_attention(row, &q, &k, &v, mask.as_deref(), width)).collect();
            assert_close(&y[1..], &expected, &format!("{isa}, {rows} × {keys} × {width}"));
        }
    }
}

/// One row; tokens begin at their second number.
fn naive_attention(row: usize, q: &[f32], k: &[f32], v: &[f32], mask: Option<&[f32]>, width: usize) -> Vec<f64> {
    let keys = (k.len() - 1) / width;
    let at = |x: &[f32], row: usize, i: usize| f64::from(x[1 + row * width + i]);
    let score = |key: usize| {
        let product: f64 = (0..width).map(|i| at(q, row, i) * at(k, key, i)).sum();
        0.7 * product + mask.map_or(0.0, |mask| f64::from(mask[row * keys + key]))
    };
    let powers: Vec<f64> = (0..keys).map(|key| score(key).exp()).collect();
    let sum: f64 = powers.iter().sum();
    (0..width).map(|i| powers.iter().enumerate().map(|(key, power)| power * at(v, key, i)).sum::<f64>() / sum).collect()
}

/// Mean and variance.
fn moments_of(x: &[f64]) -> [f64; 2] {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    [mean, x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64]
}

#[test]
fn norms() {
    const EPSILON: f32 = 1e-2;
    for isa in Isa::available() {
        for width in SIZES {
            let (x, weight, bias) = (unaligned(1, 2 * width), numbers(2, width), numbers(3, width));
            let mut y = vec![0.0; 2 * width];
            layer_norm(isa, &x[1..], &weight, &bias, EPSILON, &mut y);
            let row = |row: &[f32]| {
                let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
                let [mean, variance] = moments_of(&row);
                let scale = 1.0 / (variance + f64::from(EPSILON)).sqrt();
                let affine = |i: usize| (row[i] - mean) * scale * f64::from(weight[i]) + f64::from(bias[i]);
                (0..width).map(affine).collect::<Vec<_>>()
            };
            let expected: Vec<f64> = x[1..].chunks_exact(width).flat_map(row).collect();
            assert_close(&y, &expected, &format!("{isa}, a row of {width}"));

            let (groups, pixels) = (if width % 3 == 0 { 3 } else { 1 }, 5);
            let x = unaligned(4, pixels * width);
            let mut found = vec![0.0; 2 * groups];
            moments(isa, &x[1..], width, &mut found, &mut Scratch::default());
            let size = width / groups;
            let group = |group: usize| {
                let pixels = x[1..].chunks_exact(width).flat_map(|pixel| &pixel[group * size..][..size]);
                let all: Vec<f64> = pixels.copied().map(f64::from).collect();
                let [mean, variance] = moments_of(&all);
                [mean, variance * all.len() as f64]
            };
            let expected: Vec<f64> = (0..groups).flat_map(group).collect();
            assert_close(&found, &expected, &format!("{isa}, {groups} groups of {size}"));

            let channels = Channels { mean: &numbers(5, width), scale: &numbers(6, width), shift: &numbers(7, width) };
            for silu in [false, true] {
                let mut y = vec![0.0; pixels * width];
                affine(isa, &x[1..], &channels, silu, &mut y);
                let expected: Vec<f64> = (0..pixels * width)
                    .map(|i| {
                        let [mean, scale, shift] =
                            [channels.mean, channels.scale, channels.shift].map(|of| f64::from(of[i % width]));
                        let x = (f64::from(x[1 + i]) - mean) * scale + shift;
                        if silu { x / (1.0 + (-x).exp()) } else { x }
                    })
                    .collect();
                assert_close(&y, &expected, &format!("{isa}, {width} channels, {silu}"));
            }
        }
    }
}

#[test]
fn activations() {
    for isa in Isa::available() {
        for count in SIZES {
            let x = unaligned(1, count);
            let mut y = vec![0.0; count];
            for (activation, slope) in [(Activation::Silu, 1.0), (Activation::QuickGelu, f64::from(QUICK_GELU_SLOPE))] {
                activate(isa, activation, &x[1..], &mut y);
                let expected: Vec<f64> =
                    x[1..].iter().map(|&x| f64::from(x) / (1.0 + (-slope * f64::from(x)).exp())).collect();
                assert_close(&y, &expected, &format!("{isa}, {activation:?}"));
            }
            let mut gelu = vec![0.0; count];
            activate(isa, Activation::Gelu, &x[1..], &mut gelu);
            let other = numbers(2, count);
            gate(isa, &other, &x[1..], &mut y);
            let expected: Vec<f64> = gelu.iter().zip(&other).map(|(gelu, x)| f64::from(gelu * x)).collect();
            assert_close(&y, &expected, &format!("{isa}, a gate"));
        }
    }
}
