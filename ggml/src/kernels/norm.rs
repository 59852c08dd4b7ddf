//! Normalisation.

use super::Isa;
use super::functions::{gated_by_sigmoid, sum};
use super::isa::Routine;
use super::lanes::Lanes;
use super::product::Scratch;

/// Layer norm of `rows` of `weight.len()` numbers, with an affine part:
/// y = (x − mean) / √(variance + `epsilon`) · weight + bias.
pub(crate) fn layer_norm(isa: Isa, x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, y: &mut [f32]) {
    isa.run(LayerNorm { x, weight, bias, epsilon, y });
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
    y: &'a mut [f32],
}

impl Routine for LayerNorm<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let width = self.weight.len();
        for (x, y) in self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width)) {
            // SAFETY: the caller has the instruction set.
            unsafe {
                let mean = total::<V>(x, |x| x, |x| x) / width as f32;
                let middle = V::splat(mean);
                let square = |x: V| {
                    let x = V::sub(x, middle);
                    V::mul(x, x)
                };
                let variance = total::<V>(x, square, |x| (x - mean) * (x - mean)) / width as f32;
                let factor = 1.0 / (variance + self.epsilon).sqrt();
                let scale = V::splat(factor);
                each::<V, 3>([x, self.weight, self.bias], y, |[x, weight, bias]| {
                    V::mul_add(V::mul(V::sub(x, middle), scale), weight, bias)
                });
            }
        }
    }
}

/// The sum of `f` of all numbers; `one` is the same for a single one.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn total<V: Lanes>(x: &[f32], f: impl Fn(V) -> V, one: impl Fn(f32) -> f32) -> f32 {
    // SAFETY: promised by the caller.
    unsafe {
        let whole = x.chunks_exact(V::COUNT);
        let rest: f32 = whole.remainder().iter().map(|&x| one(x)).sum();
        sum(whole.fold(V::splat(0.0), |total, x| V::add(total, f(V::load(x.as_ptr()))))) + rest
    }
}

/// `y[i] = f(x[0][i], x[1][i], …)`. The last few, fewer than a vector, are computed as part of one.
///
/// # Safety
/// As for [`Lanes`]; each of `x` has as many numbers as `y`.
#[inline(always)]
pub(super) unsafe fn each<V: Lanes, const N: usize>(x: [&[f32]; N], y: &mut [f32], f: impl Fn([V; N]) -> V) {
    let whole = y.len() / V::COUNT * V::COUNT;
    // SAFETY: promised by the caller.
    unsafe {
        for at in (0..whole).step_by(V::COUNT) {
            let result = f(std::array::from_fn(|i| V::load(x[i][at..].as_ptr())));
            V::store(result, y[at..].as_mut_ptr());
        }
        let rest = &mut y[whole..];
        if !rest.is_empty() {
            let filled: [[f32; 16]; N] = std::array::from_fn(|i| {
                let mut filled = [0.0; 16];
                filled[..rest.len()].copy_from_slice(&x[i][whole..][..rest.len()]);
                filled
            });
            let mut results = [0.0; 16];
            V::store(f(std::array::from_fn(|i| V::load(filled[i].as_ptr()))), results.as_mut_ptr());
            rest.copy_from_slice(&results[..rest.len()]);
        }
    }
}

/// The mean of each group of channels of a block of pixels `[…, channels]`, and the sum of the squares of
/// what lies beside it: `moments` is `[groups, 2]`.
pub(crate) fn moments(isa: Isa, x: &[f32], channels: usize, moments: &mut [f32], scratch: &mut Scratch) {
    isa.run(Moments { x, channels, moments, scratch });
}

struct Moments<'a> {
    x: &'a [f32],
    channels: usize,
    moments: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl Routine for Moments<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let Self { x, channels, moments, scratch } = self;
        let groups = moments.len() / 2;
        let size = channels / groups;
        let count = (x.len() / groups) as f64;
        let (sums, means) = scratch.numbers(2 * channels).split_at_mut(channels);
        let group = |sums: &[f32]| sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
        // SAFETY: the caller has the instruction set.
        unsafe {
            sums.fill(0.0);
            for x in x.chunks_exact(channels) {
                add_each::<V>([x, x], sums, |[x, _]| x);
            }
            for (g, moments) in moments.chunks_exact_mut(2).enumerate() {
                let mean = (group(&sums[g * size..][..size]) / count) as f32;
                means[g * size..][..size].fill(mean);
                moments[0] = mean;
            }
            sums.fill(0.0);
            for x in x.chunks_exact(channels) {
                add_each::<V>([x, means], sums, |[x, mean]| {
                    let x = V::sub(x, mean);
                    V::mul(x, x)
                });
            }
        }
        for (g, moments) in moments.chunks_exact_mut(2).enumerate() {
            moments[1] = group(&sums[g * size..][..size]) as f32;
        }
    }
}

/// `sums[i] += f(x[0][i], …)`.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
unsafe fn add_each<V: Lanes>(x: [&[f32]; 2], sums: &mut [f32], f: impl Fn([V; 2]) -> V) {
    let whole = sums.len() / V::COUNT * V::COUNT;
    // SAFETY: promised by the caller.
    unsafe {
        for at in (0..whole).step_by(V::COUNT) {
            let to = sums[at..].as_mut_ptr();
            V::store(V::add(V::load(to), f(x.map(|x| V::load(x[at..].as_ptr())))), to);
        }
        for at in whole..sums.len() {
            let mut result = [0.0; 16];
            V::store(f(x.map(|x| V::splat(x[at]))), result.as_mut_ptr());
            sums[at] += result[0];
        }
    }
}

/// What a channel's numbers go through: (x − mean) · scale + shift.
pub(crate) struct Channels<'a> {
    pub(crate) mean: &'a [f32],
    pub(crate) scale: &'a [f32],
    pub(crate) shift: &'a [f32],
}

/// Pixels `[…, channels]`, channel by channel, and then through SiLU if `silu`.
pub(crate) fn affine(isa: Isa, x: &[f32], channels: &Channels<'_>, silu: bool, y: &mut [f32]) {
    isa.run(Affine { x, channels, silu, y });
}

struct Affine<'a> {
    x: &'a [f32],
    channels: &'a Channels<'a>,
    silu: bool,
    y: &'a mut [f32],
}

impl Routine for Affine<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let Channels { mean, scale, shift } = *self.channels;
        for (x, y) in self.x.chunks_exact(mean.len()).zip(self.y.chunks_exact_mut(mean.len())) {
            let operands = [x, mean, scale, shift];
            // SAFETY: the caller has the instruction set.
            unsafe {
                match self.silu {
                    true => each::<V, 4>(operands, y, |[x, mean, scale, shift]| {
                        gated_by_sigmoid(V::mul_add(V::sub(x, mean), scale, shift), 1.0)
                    }),
                    false => {
                        each::<V, 4>(operands, y, |[x, mean, scale, shift]| V::mul_add(V::sub(x, mean), scale, shift))
                    }
                }
            }
        }
    }
}
