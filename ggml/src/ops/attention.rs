//! Attention.

use super::check;
use crate::custom::{Attention, AttentionSizes, Pack};
use crate::{Dtype, Error, Result, Tensor, sys};

const OP: &str = "attention";

/// From this many keys on, ggml splits the keys of a lone query over the threads.
const SPLIT_KEYS: usize = 512;

impl<'g> Tensor<'g> {
    /// softmax(`scale` · q kᵀ + mask) v in each of `heads` heads, without a matrix of scores in memory.
    ///
    /// `self` is q: `[width, queries, n]`; k and v: `[width, keys, n]`; `mask`: `[keys, queries]`, of zeros
    /// and negative infinities, added to the scores. A query that may see no key gets zeros. The result is
    /// as q.
    pub fn attention(self, k: Self, v: Self, mask: Option<Self>, heads: usize, scale: f32) -> Self {
        let fits = || {
            let (q_shape, k_shape) = (self.shape(), k.shape());
            let [width, queries, ..] = q_shape;
            check(heads > 0 && width.is_multiple_of(heads), || self.misfit(OP, format!("not in {heads} heads")))?;
            let fit = k_shape[0] == width && k_shape[2..] == q_shape[2..] && q_shape[3] == 1;
            check(fit, || Error::Shapes { op: OP, left: q_shape, right: k_shape })?;
            check(v.shape() == k_shape, || Error::Shapes { op: OP, left: k_shape, right: v.shape() })?;
            if let Some(mask) = mask {
                let fit = mask.shape() == [k_shape[1], queries, 1, 1];
                check(fit, || Error::Shapes { op: OP, left: q_shape, right: mask.shape() })?;
            }
            [Some(self), Some(k), Some(v), mask].into_iter().flatten().try_for_each(|operand| operand.check_dense(OP))
        };
        if self.builder.isa().is_none() {
            return self.attention_by_ggml(k, v, mask, heads, scale, fits);
        }
        let sizes = |isa| {
            fits()?;
            let ([width, queries, batch, _], [_, keys, ..]) = (self.shape(), k.shape());
            Ok(AttentionSizes { isa, width, heads, queries, keys, batch })
        };
        let packed = Self::computed(OP, &[k, v], |isa| Ok(Pack(sizes(isa)?)));
        let kernel = |isa| Ok(Attention { sizes: sizes(isa)?, scale });
        match mask {
            Some(mask) => Self::computed(OP, &[self, packed, mask], kernel),
            None => Self::computed(OP, &[self, packed], kernel),
        }
    }

    fn attention_by_ggml(
        self,
        k: Self,
        v: Self,
        mask: Option<Self>,
        heads: usize,
        scale: f32,
        fits: impl FnOnce() -> Result<()>,
    ) -> Self {
        let poisoned = [Some(self), Some(k), Some(v), mask].into_iter().flatten().find(|operand| operand.is_poisoned());
        if let Some(poisoned) = poisoned {
            return poisoned;
        }
        if let Err(error) = fits() {
            return Self::poisoned(self.builder, error);
        }
        let [width, queries, batch, _] = self.shape();
        let split = |x: Self| {
            let [_, length, batch, _] = x.shape();
            x.reshape([width / heads, heads, length, batch]).permute([0, 2, 1, 3])
        };
        let (mut q, k, v) = (split(self), split(k), split(v));
        // ggml would split the keys of a lone query by the number of threads, and the bytes would depend on
        // it. Two queries are not split.
        let doubled = queries == 1 && batch == 1 && k.shape()[1] >= SPLIT_KEYS && self.builder.on_cpu();
        let mut mask = mask;
        if doubled {
            let twice = |x: Self| x.concat(x, 1);
            (q, mask) = (twice(q), mask.map(twice));
        }
        let shape = [width / heads, heads, q.shape()[1], batch];
        // Half floats hold a mask's zeros and infinities exactly.
        let mixed = match mask.map(|mask| mask.cast(Dtype::F16)) {
            Some(mask) => {
                let fits = || Ok(shape);
                // SAFETY: see `Tensor::map`.
                Self::apply(OP, [q, k, v, mask], Dtype::F32, fits, |context, [q, k, v, mask]| unsafe {
                    sys::ggml_flash_attn_ext(context, q, k, v, mask, scale, 0.0, 0.0)
                })
            }
            // SAFETY: see `Tensor::map`; a null mask means none.
            None => Self::apply(
                OP,
                [q, k, v],
                Dtype::F32,
                || Ok(shape),
                |context, [q, k, v]| unsafe {
                    sys::ggml_flash_attn_ext(context, q, k, v, std::ptr::null_mut(), scale, 0.0, 0.0)
                },
            ),
        };
        let mixed = if doubled { mixed.narrow(2, 0, 1).contiguous() } else { mixed };
        mixed.reshape([width, queries, batch, 1])
    }
}
