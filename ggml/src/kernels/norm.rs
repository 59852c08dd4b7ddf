//! Normalisation.

use super::Isa;
use super::each::{Function, add_each, each, total};
use super::functions::gated_by_sigmoid;
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
                let mean = total::<V>(x, 0.0, Same) / width as f32;
                let variance = total::<V>(x, mean, SquareBeside { mean }) / width as f32;
                let scale = 1.0 / (variance + self.epsilon).sqrt();
                each::<V, 3>([x, self.weight, self.bias], y, Normalised { mean, scale });
            }
        }
    }
}

/// x.
#[derive(Clone, Copy)]
struct Same;

impl Function<1> for Same {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x]: [V; 1]) -> V {
        x
    }
}

/// (x − mean)².
#[derive(Clone, Copy)]
struct SquareBeside {
    mean: f32,
}

impl Function<1> for SquareBeside {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x]: [V; 1]) -> V {
        // SAFETY: promised by the caller; so for those below.
        unsafe { SquareDifference.of([x, V::splat(self.mean)]) }
    }
}

/// (x − y)².
#[derive(Clone, Copy)]
struct SquareDifference;

impl Function<2> for SquareDifference {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x, y]: [V; 2]) -> V {
        // SAFETY: as above.
        unsafe {
            let difference = V::sub(x, y);
            V::mul(difference, difference)
        }
    }
}

/// (x − mean) · scale · weight + bias.
#[derive(Clone, Copy)]
struct Normalised {
    mean: f32,
    scale: f32,
}

impl Function<3> for Normalised {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x, weight, bias]: [V; 3]) -> V {
        // SAFETY: as above.
        unsafe { V::mul_add(V::mul(V::sub(x, V::splat(self.mean)), V::splat(self.scale)), weight, bias) }
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
                add_each::<V, 1>([x], sums, Same);
            }
            for (g, moments) in moments.chunks_exact_mut(2).enumerate() {
                let mean = (group(&sums[g * size..][..size]) / count) as f32;
                means[g * size..][..size].fill(mean);
                moments[0] = mean;
            }
            sums.fill(0.0);
            for x in x.chunks_exact(channels) {
                add_each::<V, 2>([x, means], sums, SquareDifference);
            }
        }
        for (g, moments) in moments.chunks_exact_mut(2).enumerate() {
            moments[1] = group(&sums[g * size..][..size]) as f32;
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
                    true => each::<V, 4>(operands, y, Scaled::<true>),
                    false => each::<V, 4>(operands, y, Scaled::<false>),
                }
            }
        }
    }
}

/// (x − mean) · scale + shift, and then SiLU if it is wanted.
#[derive(Clone, Copy)]
struct Scaled<const SILU: bool>;

impl<const SILU: bool> Function<4> for Scaled<SILU> {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x, mean, scale, shift]: [V; 4]) -> V {
        // SAFETY: as above.
        unsafe {
            let x = V::mul_add(V::sub(x, mean), scale, shift);
            if SILU { gated_by_sigmoid(x, 1.0) } else { x }
        }
    }
}
