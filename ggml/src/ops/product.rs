//! Matrix products and convolutions by ggml.

use super::check;
use crate::{Dtype, Error, Tensor, sys};

/// ggml's scratch for one convolution; a single patch with its results must fit.
pub(crate) const CONVOLUTION_SCRATCH: usize = 16 << 20;

impl<'g> Tensor<'g> {
    /// The matrix product of `self` = `[k, m, …]` (F32 or F16) and `right` = `[k, n, …]`: `[m, n, …]`.
    /// In the last two dimensions `self` is repeated where it is smaller.
    pub fn matmul(self, right: Self) -> Self {
        let left = self.widened();
        let fits = || {
            left.check_float("matmul")?;
            right.check_f32("matmul")?;
            let (a, b) = (left.shape(), right.shape());
            let fit = a[0] == b[0] && b[2].is_multiple_of(a[2]) && b[3].is_multiple_of(a[3]);
            check(fit, || Error::Shapes { op: "matmul", left: a, right: b })?;
            left.check_contiguous("matmul")?;
            right.check_contiguous("matmul")?;
            Ok([a[1], b[1], b[2], b[3]])
        };
        // SAFETY: see `Tensor::map`.
        Self::apply("matmul", [left, right], Dtype::F32, fits, |context, [a, b]| unsafe {
            sys::ggml_mul_mat(context, a, b)
        })
    }

    /// Convolves `self` = `[w, h, c_in, n]` with `kernel` = `[k_w, k_h, c_in, c_out]` (F32 or F16),
    /// `padding` zeros on each side: `[w', h', c_out, n]`.
    pub fn conv_2d(self, kernel: Self, stride: usize, padding: usize) -> Self {
        const OP: &str = "conv_2d";
        let kernel = kernel.widened();
        let fits = || {
            kernel.check_float(OP)?;
            self.check_dense(OP)?;
            kernel.check_contiguous(OP)?;
            let (x, k) = (self.shape(), kernel.shape());
            let representable = |size: usize| i32::try_from(size).is_ok_and(|size| size < i32::MAX / 4);
            let sensible = stride > 0 && representable(stride) && representable(padding);
            check(sensible, || self.misfit(OP, format!("not with stride {stride} and padding {padding}")))?;
            let fit = x[2] == k[2] && x[0] + 2 * padding >= k[0] && x[1] + 2 * padding >= k[1];
            check(fit, || Error::Shapes { op: OP, left: x, right: k })?;
            let patch = 4 * (k[0] * k[1] * k[2] + k[3]);
            check(patch < CONVOLUTION_SCRATCH, || kernel.misfit(OP, "the kernel is too large"))?;
            let size = |d: usize| (x[d] + 2 * padding - k[d]) / stride + 1;
            Ok([size(0), size(1), k[3], x[3]])
        };
        let (s, p) = (stride as i32, padding as i32);
        // SAFETY: see `Tensor::map`.
        Self::apply(OP, [kernel, self], Dtype::F32, fits, |context, [k, x]| unsafe {
            sys::ggml_conv_2d_direct(context, k, x, s, s, p, p, 1, 1)
        })
    }

    /// Half floats as F32 on the CPU, where ggml would otherwise round the other operand to half floats.
    fn widened(self) -> Self {
        if self.dtype() == Dtype::F16 && self.builder.on_cpu() { self.cast(Dtype::F32) } else { self }
    }
}
