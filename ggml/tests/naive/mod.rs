//! Every op once more, as its definition reads, in double precision.
//!
//! Shapes are fastest dimension first, as in the crate.

#![allow(dead_code)]

use std::cell::Cell;

use ggml::kernels::Isa;
use ggml::{Backend, Builder, Dtype, Shape, Storage, Tensor, Weight};

/// Numbers with a shape.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Shape,
    pub data: Vec<f32>,
}

/// A small generator (Steele et al., SplitMix64): the same numbers everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// From -`amplitude` to `amplitude`.
    pub fn array(&mut self, shape: Shape, amplitude: f32) -> Array {
        let data = (0..shape.iter().product()).map(|_| amplitude * self.unit()).collect();
        Array { shape, data }
    }
}

impl Array {
    pub fn new(shape: Shape, data: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { shape, data }
    }

    /// An array of `shape` whose element at each place is what `f` says.
    pub fn from_fn(shape: Shape, mut f: impl FnMut([usize; 4]) -> f64) -> Self {
        let mut data = Vec::with_capacity(shape.iter().product());
        for d in 0..shape[3] {
            for c in 0..shape[2] {
                for b in 0..shape[1] {
                    for a in 0..shape[0] {
                        data.push(f([a, b, c, d]) as f32);
                    }
                }
            }
        }
        Self { shape, data }
    }

    pub fn at(&self, [a, b, c, d]: [usize; 4]) -> f64 {
        let [w, h, n, _] = self.shape;
        self.data[((d * n + c) * h + b) * w + a] as f64
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { shape: self.shape, data: self.data.iter().map(|&x| f(x as f64) as f32).collect() }
    }

    /// Rounded to half floats.
    pub fn halves(&self) -> Self {
        self.stored_as(ggml::Dtype::F16)
    }

    /// Rounded to what a type holds.
    pub fn stored_as(&self, dtype: ggml::Dtype) -> Self {
        let rounded = |&x: &f32| match dtype {
            ggml::Dtype::F16 => half::f16::from_f32(x).to_f32(),
            ggml::Dtype::BF16 => half::bf16::from_f32(x).to_f32(),
            _ => x,
        };
        Self { shape: self.shape, data: self.data.iter().map(rounded).collect() }
    }
}

/// The error function, by its series or its continued fraction (Abramowitz and Stegun 7.1.5, 7.1.14).
pub fn erf(x: f64) -> f64 {
    let z = x.abs();
    let value = if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..100).rev().fold(0.0, |below, n| n as f64 / 2.0 / (z + below));
        1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / (z + fraction)
    };
    value.copysign(x)
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub fn gelu(x: f64) -> f64 {
    x * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

pub fn repeated(x: &Array, y: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
    Array::from_fn(x.shape, |i| f(x.at(i), y.at(std::array::from_fn(|d| i[d] % y.shape[d]))))
}

pub fn geglu(x: &Array) -> Array {
    let [w, h, c, n] = x.shape;
    Array::from_fn([w / 2, h, c, n], |[a, b, c, d]| x.at([a, b, c, d]) * gelu(x.at([a + w / 2, b, c, d])))
}

/// To mean 0 and variance 1 over all places that `same` says belong together.
fn normalised(x: &Array, epsilon: f64, group: impl Fn([usize; 4]) -> [usize; 4]) -> Array {
    let mut sums = std::collections::HashMap::new();
    let places = || {
        let [w, h, c, n] = x.shape;
        (0..w * h * c * n).map(move |i| [i % w, i / w % h, i / w / h % c, i / w / h / c])
    };
    for i in places() {
        let (sum, count) = sums.entry(group(i)).or_insert((0.0, 0.0));
        *sum += x.at(i);
        *count += 1.0;
    }
    let mean = |i| {
        let (sum, count): (f64, f64) = sums[&group(i)];
        sum / count
    };
    let mut squares = std::collections::HashMap::new();
    for i in places() {
        *squares.entry(group(i)).or_insert(0.0) += (x.at(i) - mean(i)).powi(2) / sums[&group(i)].1;
    }
    Array::from_fn(x.shape, |i| (x.at(i) - mean(i)) / (squares[&group(i)] + epsilon).sqrt())
}

pub fn norm(x: &Array, epsilon: f64) -> Array {
    normalised(x, epsilon, |[_, b, c, d]| [0, b, c, d])
}

pub fn group_norm(x: &Array, groups: usize, epsilon: f64) -> Array {
    let channels = x.shape[2] / groups;
    normalised(x, epsilon, |[_, _, c, d]| [0, 0, c / channels, d])
}

/// `[k, m, …]` and `[k, n, …]`: `[m, n, …]`.
pub fn matmul(a: &Array, b: &Array) -> Array {
    let ([k, m, a2, a3], [_, n, b2, b3]) = (a.shape, b.shape);
    Array::from_fn([m, n, b2, b3], |[i, j, c, d]| {
        (0..k).map(|l| a.at([l, i, c / (b2 / a2), d / (b3 / a3)]) * b.at([l, j, c, d])).sum()
    })
}

pub fn conv_2d(x: &Array, kernel: &Array, stride: usize, padding: usize) -> Array {
    let ([w, h, inputs, batch], [kw, kh, _, outputs]) = (x.shape, kernel.shape);
    let size = |old: usize, k: usize| (old + 2 * padding - k) / stride + 1;
    Array::from_fn([size(w, kw), size(h, kh), outputs, batch], |[a, b, o, n]| {
        let mut sum = 0.0;
        for i in 0..inputs {
            for ky in 0..kh {
                for kx in 0..kw {
                    let (sx, sy) = ((a * stride + kx).wrapping_sub(padding), (b * stride + ky).wrapping_sub(padding));
                    if sx < w && sy < h {
                        sum += x.at([sx, sy, i, n]) * kernel.at([kx, ky, i, o]);
                    }
                }
            }
        }
        sum
    })
}

pub fn nearest(x: &Array, width: usize, height: usize) -> Array {
    let [w, h, c, n] = x.shape;
    // PyTorch's nearest_idx, in single precision as there.
    let source = |i: usize, old: usize, new: usize| ((i as f32 * (old as f32 / new as f32)) as usize).min(old - 1);
    Array::from_fn([width, height, c, n], |[a, b, c, d]| x.at([source(a, w, width), source(b, h, height), c, d]))
}

pub fn pad(x: &Array, right: usize, bottom: usize) -> Array {
    let [w, h, c, n] = x.shape;
    Array::from_fn([w + right, h + bottom, c, n], |i| if i[0] < w && i[1] < h { x.at(i) } else { 0.0 })
}

pub fn concat(x: &Array, y: &Array, dimension: usize) -> Array {
    let mut shape = x.shape;
    shape[dimension] += y.shape[dimension];
    Array::from_fn(shape, |mut i| {
        if i[dimension] < x.shape[dimension] {
            return x.at(i);
        }
        i[dimension] -= x.shape[dimension];
        y.at(i)
    })
}

pub fn permute(x: &Array, places: [usize; 4]) -> Array {
    let mut shape = [0; 4];
    for d in 0..4 {
        shape[places[d]] = x.shape[d];
    }
    Array::from_fn(shape, |i| x.at(std::array::from_fn(|d| i[places[d]])))
}

pub fn narrow(x: &Array, dimension: usize, start: usize, length: usize) -> Array {
    let mut shape = x.shape;
    shape[dimension] = length;
    Array::from_fn(shape, |mut i| {
        i[dimension] += start;
        x.at(i)
    })
}

/// Scores, softmax, mixture, each written out. A query that sees no key gets zeros.
pub fn attention(q: &Array, k: &Array, v: &Array, mask: Option<&Array>, scale: f64) -> Array {
    let ([d, queries, heads, batch], [e, keys, ..]) = (q.shape, v.shape);
    let mut data = vec![0.0f32; e * heads * queries * batch];
    for n in 0..batch {
        for h in 0..heads {
            for i in 0..queries {
                let score = |j: usize| {
                    let dot: f64 = (0..d).map(|l| q.at([l, i, h, n]) * k.at([l, j, h, n])).sum();
                    dot * scale + mask.map_or(0.0, |mask| mask.at([j, i, 0, 0]))
                };
                let scores: Vec<f64> = (0..keys).map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if top == f64::NEG_INFINITY {
                    continue;
                }
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                for l in 0..e {
                    let mixed: f64 = (0..keys).map(|j| weights[j] * v.at([l, j, h, n])).sum();
                    data[((n * queries + i) * heads + h) * e + l] = (mixed / total) as f32;
                }
            }
        }
    }
    Array::new([e, heads, queries, batch], data)
}

/// Stores `x` as `dtype`.
pub fn weight(backend: &Backend, dtype: Dtype, x: &Array) -> Weight {
    let storage = Storage::new();
    let weight = storage.add(dtype, x.shape).unwrap();
    storage.allocate(backend).unwrap();
    let bytes: Vec<u8> = match dtype {
        Dtype::F32 => x.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::F16 => x.data.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        Dtype::I32 => x.data.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        Dtype::BF16 => unreachable!("only maps are stored so"),
    };
    weight.write(0, &bytes).unwrap();
    weight
}

/// Runs what `make` makes of `inputs`.
pub fn run_on(
    backend: &Backend,
    inputs: &[&Array],
    make: impl for<'g> Fn(&'g Builder, &[Tensor<'g>]) -> Tensor<'g>,
) -> Array {
    let builder = Builder::new(backend).unwrap();
    let (tensors, slots): (Vec<_>, Vec<_>) = inputs.iter().map(|x| builder.input(Dtype::F32, x.shape)).unzip();
    let result = make(&builder, &tensors);
    let (shape, output) = (result.shape(), builder.output(result));
    let mut graph = builder.build(backend, usize::MAX).unwrap();
    for (slot, input) in slots.into_iter().zip(inputs) {
        graph.write(slot, &input.data).unwrap();
    }
    graph.compute(backend, &|| false).unwrap();
    Array::new(shape, graph.read(output).unwrap())
}

thread_local! {
    static KERNELS: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// Checks something with ggml's own ops, and then with each variant of ours that this processor has.
pub fn everywhere(mut check: impl FnMut()) {
    for kernels in [None].into_iter().chain(Isa::available().into_iter().map(Some)) {
        KERNELS.set(kernels);
        check();
    }
}

/// The CPU with `threads` threads, and with the kernels that are being checked.
pub fn cpu(threads: usize) -> Backend {
    Backend::cpu_with(threads, KERNELS.get()).unwrap()
}

/// As [`run_on`], on [`cpu`] with one thread; `determinism.rs` shows that others give the same.
pub fn run(inputs: &[&Array], make: impl for<'g> Fn(&[Tensor<'g>]) -> Tensor<'g>) -> Array {
    run_on(&cpu(1), inputs, |_, tensors| make(tensors))
}

/// Heads inside of tokens: `[d, length, heads, n]` as `[heads · d, length, n]`.
pub fn tokens(x: &Array) -> Array {
    let [d, length, heads, batch] = x.shape;
    Array::new([d * heads, length, batch, 1], permute(x, [0, 2, 1, 3]).data)
}

/// Times a weight and plus a bias along `dimension`.
pub fn affine(x: &Array, weight: &Array, bias: &Array, dimension: usize) -> Array {
    let at = |vector: &Array, i: [usize; 4]| vector.at([i[dimension], 0, 0, 0]);
    Array::from_fn(x.shape, |i| x.at(i) * at(weight, i) + at(bias, i))
}

/// ‖found − expected‖ / ‖expected‖.
pub fn distance(found: &Array, expected: &Array) -> f64 {
    assert_eq!(found.shape, expected.shape);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = norm(&mut found.data.iter().zip(&expected.data).map(|(&a, &b)| a as f64 - b as f64));
    let whole = norm(&mut expected.data.iter().map(|&x| x as f64));
    if off == 0.0 { 0.0 } else { off / whole }
}

/// That both are the same up to `bound`; NaN is never the same.
#[track_caller]
pub fn close(what: &str, found: &Array, expected: &Array, bound: f64) {
    let distance = distance(found, expected);
    let kernels = KERNELS.get().map_or("stock".to_owned(), |isa| isa.to_string());
    assert!(distance <= bound, "{what} {:?} ({kernels}): off by {distance:.2e}, bound {bound:.0e}", expected.shape);
}
