//! Linear maps and convolutions with stored weights: our own kernels where the weights are packed,
//! ggml's ops elsewhere.

use super::check;
use crate::map::{Geometry, Map};
use crate::{Dtype, Error, Result, Shape, Tensor, Weight};

impl<'g> Tensor<'g> {
    /// `self` = `[inputs, …]`, contiguous, times a map `[inputs, outputs]` (or the kernel
    /// `[1, 1, inputs, outputs]` of a convolution of single pixels), plus `bias` = `[outputs]`:
    /// `[outputs, …]`.
    pub fn linear(self, weight: &Weight, bias: Option<&Weight>) -> Self {
        const OP: &str = "linear";
        let bias = bias.map(|bias| self.weight(bias));
        let [a, b, c, d] = weight.shape();
        let (inputs, outputs) = if c == 1 && d == 1 { (a, b) } else { (c, d) };
        if weight.packed().is_none() {
            let matrix = self.weight(weight).reshape([inputs, outputs, 1, 1]);
            let y = matrix.matmul(self);
            return bias.map_or(y, |bias| y.add(bias));
        }
        let [_, rest @ ..] = self.shape();
        let shape = [outputs, rest[0], rest[1], rest[2]];
        let fits = || {
            let whole = a * b * c * d == inputs * outputs;
            check(whole && self.shape()[0] == inputs, || misfit(OP, self, weight))
        };
        self.mapped(OP, weight, bias, shape, Geometry::Rows, fits)
    }

    /// Convolves `self` = `[w, h, c_in, n]` with a kernel `[k_w, k_h, c_in, c_out]`, `padding` zeros on
    /// each side, and adds `bias` = `[c_out]`: `[w', h', c_out, n]`.
    pub fn convolve(self, weight: &Weight, bias: Option<&Weight>, stride: usize, padding: usize) -> Self {
        const OP: &str = "convolve";
        if weight.packed().is_none() {
            let y = self.conv_2d(self.weight(weight), stride, padding);
            return bias.map_or(y, |bias| y.add(y.weight(bias).reshape([1, 1, y.shape()[2], 1])));
        }
        let ([width, height, channels, n], k) = (self.shape(), weight.shape());
        // The kernels take pictures pixel by pixel.
        let pixels = self.permute([1, 2, 0, 3]).contiguous();
        let bias = bias.map(|bias| self.weight(bias));
        let size = |size: usize, window: usize| {
            let whole = size.checked_add(padding.checked_mul(2)?)?;
            Some(whole.checked_sub(window)?.checked_div(stride)? + 1)
        };
        let output = [size(width, k[0]), size(height, k[1])].map(Option::unwrap_or_default);
        let fits = || check(channels == k[2] && !output.contains(&0), || misfit(OP, self, weight));
        let window = Geometry::Window { input: [width, height], output, window: k[0], stride, padding };
        let y = pixels.mapped(OP, weight, bias, [k[3], output[0], output[1], n], window, fits);
        y.permute([2, 0, 1, 3]).contiguous()
    }

    /// A map of `self`, whose rows are along the first dimension.
    fn mapped(
        self,
        op: &'static str,
        weight: &Weight,
        bias: Option<Self>,
        shape: Shape,
        geometry: Geometry,
        fits: impl FnOnce() -> Result<()>,
    ) -> Self {
        let builder = self.builder;
        let Some(panels) = weight.packed() else {
            return Self::poisoned(builder, Error::Backend("a map is not packed".into()));
        };
        if let Err(error) = builder.hold(weight) {
            return Self::poisoned(builder, error);
        }
        let checked = || {
            fits()?;
            self.check_dense(op)?;
            if let Some(bias) = bias {
                bias.check_dense(op)?;
                check(bias.elements() == shape[0], || Error::Shapes { op, left: shape, right: bias.shape() })?;
            }
            Ok(shape)
        };
        let make = |context, operands: &mut [_]| {
            let node = builder.custom(Map::new(panels.clone(), geometry, shape));
            // SAFETY: `apply` passes a context with room and the operands that were checked; the graph holds
            // the node.
            unsafe { node.make(context, operands) }
        };
        match bias {
            Some(bias) => {
                Self::apply(op, [self, bias], Dtype::F32, checked, |context, mut raws| make(context, &mut raws))
            }
            None => Self::apply(op, [self], Dtype::F32, checked, |context, mut raws| make(context, &mut raws)),
        }
    }
}

fn misfit(op: &'static str, x: Tensor<'_>, weight: &Weight) -> Error {
    Error::Shapes { op, left: weight.shape(), right: x.shape() }
}
