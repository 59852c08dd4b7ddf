//! The ops that the networks use, each checked before ggml sees it.
//!
//! Shapes are fastest dimension first. Unless an op says otherwise its operands are contiguous F32,
//! and so is its result. ggml's own preconditions are repeated here one by one, since it answers a
//! violated one with `abort()`, some only while the graph runs.

mod attention;
mod layout;
mod map;
mod product;

pub(crate) use layout::picks_as_pytorch;
pub(crate) use map::misfit;
pub(crate) use product::CONVOLUTION_SCRATCH;

use crate::custom;
use crate::kernels::{Activation, QUICK_GELU_SLOPE};
use crate::{Dtype, Error, Result, Shape, Tensor, sys};

/// `Ok` if `holds`, else the error.
pub(crate) fn check(holds: bool, error: impl FnOnce() -> Error) -> Result<()> {
    if holds { Ok(()) } else { Err(error()) }
}

impl<'g> Tensor<'g> {
    fn check_f32(self, op: &'static str) -> Result<()> {
        check(self.dtype() == Dtype::F32, || Error::Type { op, expected: "F32", found: self.dtype() })
    }

    fn check_float(self, op: &'static str) -> Result<()> {
        check(self.dtype() != Dtype::I32, || Error::Type { op, expected: "F32 or F16", found: self.dtype() })
    }

    fn check_contiguous(self, op: &'static str) -> Result<()> {
        check(self.is_contiguous(), || self.misfit(op, "must be contiguous"))
    }

    fn check_rows(self, op: &'static str) -> Result<()> {
        check(self.has_whole_rows(), || self.misfit(op, "the elements of a row must be neighbours"))
    }

    pub(crate) fn check_dense(self, op: &'static str) -> Result<()> {
        self.check_f32(op)?;
        self.check_contiguous(op)
    }

    pub(crate) fn misfit(self, op: &'static str, reason: impl Into<String>) -> Error {
        Error::Shape { op, shape: self.shape(), reason: reason.into() }
    }

    /// An op from each element to one.
    fn map(
        self,
        op: &'static str,
        make: unsafe extern "C" fn(*mut sys::ggml_context, *mut sys::ggml_tensor) -> *mut sys::ggml_tensor,
    ) -> Self {
        let fits = || self.check_dense(op).map(|()| self.shape());
        // SAFETY: `apply` hands over live tensors and a context with room; so for each op below.
        Self::apply(op, [self], Dtype::F32, fits, |context, [a]| unsafe { make(context, a) })
    }

    /// What the sum and the product ask of their operands.
    fn check_repeated(self, op: &'static str, other: Self) -> Result<Shape> {
        self.check_f32(op)?;
        other.check_f32(op)?;
        self.check_rows(op)?;
        let (whole, part) = (self.shape(), other.shape());
        let repeats = whole.iter().zip(part).all(|(&whole, part)| whole.is_multiple_of(part));
        check(repeats, || Error::Shapes { op, left: whole, right: part })?;
        Ok(whole)
    }

    /// `self + other`, where `other` is repeated along dimensions in which it is smaller. Neither
    /// needs to be contiguous.
    #[allow(clippy::should_implement_trait)]
    pub fn add(self, other: Self) -> Self {
        let fits = || self.check_repeated("add", other);
        // SAFETY: see `map`.
        Self::apply("add", [self, other], Dtype::F32, fits, |context, [a, b]| unsafe { sys::ggml_add(context, a, b) })
    }

    /// `self × other` element by element, where `other` is repeated as in [`Tensor::add`].
    #[allow(clippy::should_implement_trait)]
    pub fn mul(self, other: Self) -> Self {
        let fits = || self.check_repeated("mul", other);
        // SAFETY: see `map`.
        Self::apply("mul", [self, other], Dtype::F32, fits, |context, [a, b]| unsafe { sys::ggml_mul(context, a, b) })
    }

    /// `factor × self + offset`.
    pub fn scale(self, factor: f32, offset: f32) -> Self {
        let fits = || self.check_dense("scale").map(|()| self.shape());
        // SAFETY: see `map`.
        Self::apply("scale", [self], Dtype::F32, fits, |context, [a]| unsafe {
            sys::ggml_scale_bias(context, a, factor, offset)
        })
    }

    /// A function of each element.
    pub fn activate(self, activation: Activation) -> Self {
        if self.builder.isa().is_some() {
            let shape = self.shape();
            return Self::computed("activation", &[self], |isa| Ok(custom::Activate { isa, shape, activation }));
        }
        match activation {
            Activation::Silu => self.map("silu", sys::ggml_silu),
            Activation::Relu => self.map("relu", sys::ggml_relu),
            // ggml's plain `gelu` and its quick one read tables of half floats.
            Activation::Gelu => self.map("gelu", sys::ggml_gelu_erf),
            Activation::QuickGelu => {
                let scaled = self.scale(QUICK_GELU_SLOPE, 0.0).activate(Activation::Silu);
                scaled.scale(1.0 / QUICK_GELU_SLOPE, 0.0)
            }
        }
    }

    /// The hyperbolic tangent.
    pub fn tanh(self) -> Self {
        self.map("tanh", sys::ggml_tanh)
    }

    /// GEGLU of `[2 d, …]`: the first half of each row times the exact GELU of the second, `[d, …]`.
    pub fn geglu(self) -> Self {
        let fits = || {
            self.check_dense("geglu")?;
            let [width, a, b, c] = self.shape();
            check(width.is_multiple_of(2), || self.misfit("geglu", "rows must be even"))?;
            Ok([width / 2, a, b, c])
        };
        if self.builder.isa().is_some() {
            return Self::computed("geglu", &[self], |isa| Ok(custom::Gate { isa, shape: fits()? }));
        }
        // SAFETY: see `map`.
        Self::apply("geglu", [self], Dtype::F32, fits, |context, [a]| unsafe {
            sys::ggml_glu(context, a, sys::GGML_GLU_OP_GEGLU_ERF, true)
        })
    }

    /// Layer norm: each row to mean 0 and variance 1, times `weight`, plus `bias`, both as long as a row.
    pub fn layer_norm(self, weight: Self, bias: Self, epsilon: f32) -> Self {
        const OP: &str = "layer_norm";
        let fits = || {
            self.check_dense(OP)?;
            self.check_epsilon(OP, epsilon)?;
            [weight, bias].into_iter().try_for_each(|vector| {
                let fit = vector.elements() == self.shape()[0];
                check(fit, || Error::Shapes { op: OP, left: self.shape(), right: vector.shape() })
            })?;
            Ok(self.shape())
        };
        if self.builder.isa().is_some() {
            let kernel = |isa| Ok(custom::LayerNorm { isa, shape: fits()?, epsilon });
            return Self::computed(OP, &[self, weight, bias], kernel);
        }
        // SAFETY: see `map`.
        let y = Self::apply(OP, [self, weight, bias], Dtype::F32, fits, |context, [a, ..]| unsafe {
            sys::ggml_norm(context, a, epsilon)
        });
        y.mul(weight).add(bias)
    }

    pub(crate) fn check_groups(self, op: &'static str, channels: usize, groups: usize, epsilon: f32) -> Result<()> {
        self.check_dense(op)?;
        self.check_epsilon(op, epsilon)?;
        let divides = groups > 0 && channels.is_multiple_of(groups);
        check(divides, || self.misfit(op, format!("channels must be a multiple of {groups} groups")))
    }

    /// Each of `groups` groups of channels of `[w, h, c, n]` to mean 0 and variance 1.
    pub(crate) fn group_norm(self, groups: usize, epsilon: f32) -> Self {
        let fits = || self.check_groups("group_norm", self.shape()[2], groups, epsilon).map(|()| self.shape());
        // `groups` divides a dimension and so is no larger: the cast loses nothing.
        // SAFETY: see `map`.
        Self::apply("group_norm", [self], Dtype::F32, fits, |context, [a]| unsafe {
            sys::ggml_group_norm(context, a, groups as i32, epsilon)
        })
    }

    fn check_epsilon(self, op: &'static str, epsilon: f32) -> Result<()> {
        check(epsilon >= 0.0, || self.misfit(op, format!("epsilon is {epsilon}, not a positive number")))
    }
}
