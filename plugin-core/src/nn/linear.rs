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
        Ok(Self { weight: p.map("weight", &[outputs, inputs])?, bias: None })
    }

    /// Loads a 1×1 convolution `[out, in, 1, 1]` as the linear map over channels that it is.
    pub fn load_pointwise(p: &Params<'_>, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = p.map("weight", &[outputs, inputs, 1, 1])?;
        Ok(Self { weight, bias: Some(p.vector("bias", outputs)?) })
    }

    /// `[N, L, in]` → `[N, L, out]`.
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        x.linear(&self.weight, self.bias.as_ref(), None)
    }

    /// As [`Linear::forward`], added to `shortcut`, `[N, L, out]`.
    pub fn forward_onto<'g>(&self, x: Tensor<'g>, shortcut: Tensor<'g>) -> Tensor<'g> {
        x.linear(&self.weight, self.bias.as_ref(), Some(shortcut))
    }
}

/// A table with a row per index.
pub struct Embedding {
    weight: Weight,
}

impl Embedding {
    /// Loads `weight`: `[rows, width]`.
    pub fn load(p: &Params<'_>, rows: usize, width: usize) -> Result<Self> {
        Ok(Self { weight: p.table("weight", &[rows, width])? })
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
