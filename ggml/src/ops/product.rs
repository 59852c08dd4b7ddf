//! Ops that sum products: matrix products, convolutions, attention.

use super::check;
use crate::{Dtype, Error, Result, Tensor, sys};

/// ggml's scratch for one convolution; a single patch with its results must fit.
pub(crate) const CONVOLUTION_SCRATCH: usize = 16 << 20;

/// From this many keys on, ggml splits the keys of a lone query over the threads.
const SPLIT_KEYS: usize = 512;

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

    /// softmax(`scale` · q kᵀ + mask) v, without the score matrix in memory.
    ///
    /// `self` is q: `[d, queries, heads, n]`; k: `[d, keys, heads, n]`; v: `[e, keys, heads, n]`, none
    /// of which needs to be contiguous beyond its rows. `mask`: `[keys, queries]`, added to the scores
    /// after rounding to half floats, which hold its zeros and infinities exactly; a query that may
    /// see no key gets zeros. The result is `[e, heads, queries, n]`.
    pub fn attention(self, k: Self, v: Self, mask: Option<Self>, scale: f32) -> Self {
        let [_, queries, _, batch] = self.shape();
        let split = queries == 1 && batch == 1 && k.shape()[1] >= SPLIT_KEYS;
        if split && self.builder.on_cpu() && !self.is_poisoned() {
            // ggml would split the keys by the number of threads, and the bytes would depend on it.
            // Two queries are not split.
            let fits = self.check_attention(k, v, mask);
            if let Err(error) = fits {
                return Self::poisoned(self.builder, error);
            }
            let twice = |x: Self| x.concat(x, 1);
            return twice(self).attention(k, v, mask.map(twice), scale).narrow(2, 0, 1);
        }
        let fits = || {
            self.check_attention(k, v, mask)?;
            Ok([v.shape()[0], self.shape()[2], queries, batch])
        };
        match mask.map(|mask| mask.cast(Dtype::F16)) {
            Some(mask) => {
                // SAFETY: see `Tensor::map`.
                Self::apply("attention", [self, k, v, mask], Dtype::F32, fits, |context, [q, k, v, mask]| unsafe {
                    sys::ggml_flash_attn_ext(context, q, k, v, mask, scale, 0.0, 0.0)
                })
            }
            // SAFETY: see `Tensor::map`; a null mask means none.
            None => Self::apply("attention", [self, k, v], Dtype::F32, fits, |context, [q, k, v]| unsafe {
                sys::ggml_flash_attn_ext(context, q, k, v, std::ptr::null_mut(), scale, 0.0, 0.0)
            }),
        }
    }

    fn check_attention(self, k: Self, v: Self, mask: Option<Self>) -> Result<()> {
        const OP: &str = "attention";
        for operand in [self, k, v] {
            operand.check_f32(OP)?;
            operand.check_rows(OP)?;
        }
        let (q, k, v) = (self.shape(), k.shape(), v.shape());
        check(q[0] == k[0] && q[2..] == k[2..], || Error::Shapes { op: OP, left: q, right: k })?;
        check(k[1..] == v[1..], || Error::Shapes { op: OP, left: k, right: v })?;
        if let Some(mask) = mask {
            mask.check_dense(OP)?;
            let fit = mask.shape() == [k[1], q[1], 1, 1];
            check(fit, || Error::Shapes { op: OP, left: q, right: mask.shape() })?;
        }
        Ok(())
    }
}
