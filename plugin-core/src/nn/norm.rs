//! Normalisation.

use ggml::{Picture, Tensor, Weight};

use super::Params;
use crate::error::Result;

/// Layer norm over the last dimension (Ba et al. 2016), with an affine part.
pub struct LayerNorm {
    weight: Weight,
    bias: Weight,
    epsilon: f32,
}

impl LayerNorm {
    /// Loads `weight` and `bias`: `[width]`.
    pub fn load(p: &Params<'_>, width: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: p.vector("weight", width)?, bias: p.vector("bias", width)?, epsilon })
    }

    /// `[N, L, width]` → the same shape.
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        x.layer_norm(x.weight(&self.weight), x.weight(&self.bias), self.epsilon)
    }
}

/// Group norm over channels (Wu and He 2018), with an affine part.
pub struct GroupNorm {
    weight: Weight,
    bias: Weight,
    groups: usize,
    epsilon: f32,
}

impl GroupNorm {
    /// Loads `weight` and `bias`: `[channels]`.
    pub fn load(p: &Params<'_>, channels: usize, groups: usize, epsilon: f32) -> Result<Self> {
        Ok(Self { weight: p.vector("weight", channels)?, bias: p.vector("bias", channels)?, groups, epsilon })
    }

    /// `[N, channels, H, W]` → the same shape.
    pub fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        x.group_norm(&self.weight, &self.bias, self.groups, self.epsilon, false)
    }

    /// As [`GroupNorm::forward`], then SiLU.
    pub fn forward_silu<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        x.group_norm(&self.weight, &self.bias, self.groups, self.epsilon, true)
    }
}
