//! Linear maps and tables.

use ggml::{Tensor, Weight};

use super::Params;
use crate::error::Result;

/// y = x Wᵀ + b, with W: `[out, in]`.
pub struct Linear {
    weight: Weight,
    bias: Option<Weight>,
}

impl Linear {
    /// Loads `weight` and `bias`.
    pub fn load(p: &Params<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self { bias: Some(p.vector("bias", outputs)?), ..Self::load_without_bias(p, inputs, outputs)? })
    }

    /// Loads `weight` alone.
    pub fn load_without_bias(p: &Params<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self { weight: p.matrix("weight", &[outputs, inputs])?, bias: None })
    }

    /// Loads a 1×1 convolution `[out, in, 1, 1]` as the linear map over channels that it is.
    pub fn load_pointwise(p: &Params<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = p.matrix("weight", &[outputs, inputs, 1, 1])?;
        Ok(Self { weight, bias: Some(p.vector("bias", outputs)?) })
    }

    /// `[N, L, in]` → `[N, L, out]`.
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let weight = x.weight(&self.weight);
        // A pointwise convolution's kernel has two leading ones.
        let [a, b, c, d] = weight.shape();
        let weight = if a == 1 && b == 1 { weight.reshape([c, d, 1, 1]) } else { weight };
        let y = weight.matmul(x);
        match &self.bias {
            Some(bias) => y.add(y.weight(bias)),
            None => y,
        }
    }
}

/// A table with a row per index.
pub struct Embedding {
    weight: Weight,
}

impl Embedding {
    /// Loads `weight`: `[rows, width]`.
    pub fn load(p: &Params<'_>, rows: usize, width: usize) -> Result<Self> {
        Ok(Self { weight: p.matrix("weight", &[rows, width])? })
    }

    /// Indices `[count]` → rows `[count, width]`.
    pub fn forward<'g>(&self, indices: Tensor<'g>) -> Tensor<'g> {
        indices.weight(&self.weight).rows(indices)
    }

    /// The first `count` rows, `[count, width]`, as F32.
    pub fn head<'g>(&self, like: Tensor<'g>, count: usize) -> Tensor<'g> {
        like.weight(&self.weight).narrow(1, 0, count).contiguous().cast(ggml::Dtype::F32)
    }
}
