//! Activations.

use super::Isa;
use super::each::{Function, each};
use super::functions::{gated_by_sigmoid, gelu, relu};
use super::isa::Routine;
use super::lanes::Lanes;

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// x · Φ(x).
    Gelu,
    /// x · sigmoid(1.702 x), OpenAI's quick GELU.
    QuickGelu,
    /// max(x, 0).
    Relu,
}

/// OpenAI's approximation of the GELU by a sigmoid.
pub(crate) const QUICK_GELU_SLOPE: f32 = 1.702;

/// `y = f(x)`.
pub(crate) fn activate(isa: Isa, activation: Activation, x: &[f32], y: &mut [f32]) {
    isa.run(Activate { activation, x, y });
}

/// `y = x · gelu(gate)`.
pub(crate) fn gate(isa: Isa, x: &[f32], gate: &[f32], y: &mut [f32]) {
    isa.run(Gate { x, gate, y });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Routine for Activate<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let (x, y) = ([self.x], self.y);
        // SAFETY: the caller has the instruction set.
        unsafe {
            match self.activation {
                Activation::Silu => each::<V, 1>(x, y, BySigmoid { slope: 1.0 }),
                Activation::QuickGelu => each::<V, 1>(x, y, BySigmoid { slope: QUICK_GELU_SLOPE }),
                Activation::Gelu => each::<V, 1>(x, y, Gelu),
                Activation::Relu => each::<V, 1>(x, y, Relu),
            }
        }
    }
}

struct Gate<'a> {
    x: &'a [f32],
    gate: &'a [f32],
    y: &'a mut [f32],
}

impl Routine for Gate<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        // SAFETY: the caller has the instruction set.
        unsafe { each::<V, 2>([self.x, self.gate], self.y, Gated) };
    }
}

/// x · sigmoid(slope · x).
#[derive(Clone, Copy)]
struct BySigmoid {
    slope: f32,
}

impl Function<1> for BySigmoid {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x]: [V; 1]) -> V {
        // SAFETY: promised by the caller; so for those below.
        unsafe { gated_by_sigmoid(x, self.slope) }
    }
}

#[derive(Clone, Copy)]
struct Gelu;

impl Function<1> for Gelu {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x]: [V; 1]) -> V {
        // SAFETY: as above.
        unsafe { gelu(x) }
    }
}

#[derive(Clone, Copy)]
struct Relu;

impl Function<1> for Relu {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x]: [V; 1]) -> V {
        // SAFETY: as above.
        unsafe { relu(x) }
    }
}

/// x · gelu(gate).
#[derive(Clone, Copy)]
struct Gated;

impl Function<2> for Gated {
    #[inline(always)]
    unsafe fn of<V: Lanes>(self, [x, gate]: [V; 2]) -> V {
        // SAFETY: as above.
        unsafe { V::mul(x, gelu(gate)) }
    }
}
