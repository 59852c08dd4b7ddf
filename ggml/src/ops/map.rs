//! Linear maps with stored weights: our own kernel where they are packed, ggml's products elsewhere.

use super::check;
use crate::custom::{Geometry, Map};
use crate::{Error, Result, Shape, Tensor, Weight};

impl<'g> Tensor<'g> {
    /// `self` = `[inputs, …]`, contiguous, times a map `[inputs, outputs]` (or the kernel
    /// `[1, 1, inputs, outputs]` of a convolution of single pixels), plus `bias` = `[outputs]`, plus
    /// `added`, which is as the result: `[outputs, …]`.
    pub fn linear(self, weight: &Weight, bias: Option<&Weight>, added: Option<Self>) -> Self {
        const OP: &str = "linear";
        let bias = bias.map(|bias| self.weight(bias));
        let [a, b, c, d] = weight.shape();
        let (inputs, outputs) = if c == 1 && d == 1 { (a, b) } else { (c, d) };
        let [_, rest @ ..] = self.shape();
        let shape = [outputs, rest[0], rest[1], rest[2]];
        let fits = || {
            let whole = a * b * c * d == inputs * outputs;
            check(whole && self.shape()[0] == inputs, || misfit(OP, self, weight))?;
            match added {
                Some(added) => {
                    check(added.shape() == shape, || Error::Shapes { op: OP, left: shape, right: added.shape() })
                }
                None => Ok(()),
            }
        };
        if weight.packed().is_some() {
            return self.mapped(OP, weight, bias, added, shape, Geometry::Rows, fits);
        }
        if !self.is_poisoned()
            && let Err(error) = fits()
        {
            return Self::poisoned(self.builder, error);
        }
        let y = self.weight(weight).reshape([inputs, outputs, 1, 1]).matmul(self);
        [bias, added].into_iter().flatten().fold(y, |y, added| y.add(added))
    }

    /// A map of `self`, whose rows are along the first dimension, by our own kernel.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn mapped(
        self,
        op: &'static str,
        weight: &Weight,
        bias: Option<Self>,
        added: Option<Self>,
        shape: Shape,
        geometry: Geometry,
        fits: impl FnOnce() -> Result<()>,
    ) -> Self {
        if let Err(error) = self.builder.hold(weight) {
            return Self::poisoned(self.builder, error);
        }
        let operands: Vec<_> = [Some(self), bias, added].into_iter().flatten().collect();
        Self::computed(op, &operands, |_| {
            fits()?;
            if let Some(bias) = bias {
                let fit = bias.elements() == shape[0];
                check(fit, || Error::Shapes { op, left: shape, right: bias.shape() })?;
            }
            let panels = weight.packed().ok_or_else(|| Error::Backend(format!("{op}: the weights are not packed")))?;
            Ok(Map::new(panels.clone(), geometry, shape, bias.is_some()))
        })
    }
}

/// That `weight` does not fit `x`.
pub(crate) fn misfit(op: &'static str, x: Tensor<'_>, weight: &Weight) -> Error {
    Error::Shapes { op, left: weight.shape(), right: x.shape() }
}
