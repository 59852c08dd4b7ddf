//! Multi-head attention.

use ggml::Tensor;

use super::{Linear, Params};
use crate::error::Result;

/// Multi-head scaled dot-product attention (Vaswani et al. 2017).
pub struct Attention {
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
    heads: usize,
}

/// What a network calls the four maps, and whether the first three have a bias.
pub struct Maps {
    q: &'static str,
    k: &'static str,
    v: &'static str,
    out: &'static str,
    biased: bool,
}

impl Attention {
    /// The UNet's transformers.
    pub const UNET: Maps = Maps { q: "to_q", k: "to_k", v: "to_v", out: "to_out.0", biased: false };
    /// The autoencoder's middle block.
    pub const VAE: Maps = Maps { biased: true, ..Self::UNET };
    /// CLIP's text encoder.
    pub const CLIP: Maps = Maps { q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj", biased: true };

    /// Queries from `width` channels, keys and values from `context` channels, split over `heads`.
    pub fn load(p: &Params<'_>, maps: Maps, width: usize, context: usize, heads: usize) -> Result<Self> {
        let map = if maps.biased { Linear::load } else { Linear::load_without_bias };
        Ok(Self {
            to_q: map(&p.at(maps.q), width, width)?,
            to_k: map(&p.at(maps.k), context, width)?,
            to_v: map(&p.at(maps.v), context, width)?,
            to_out: Linear::load(&p.at(maps.out), width, width)?,
            heads,
        })
    }

    /// Queries `[N, L, width]` look at `context` `[N, M, context]`, and the result is added to `shortcut`:
    /// `[N, L, width]`. `mask` is `[L, M]`, added to the scores.
    pub fn forward<'g>(
        &self,
        x: Tensor<'g>,
        context: Tensor<'g>,
        mask: Option<Tensor<'g>>,
        shortcut: Tensor<'g>,
    ) -> Tensor<'g> {
        let scale = 1.0 / ((x.shape()[0] / self.heads) as f32).sqrt();
        let [q, k, v] = [(&self.to_q, x), (&self.to_k, context), (&self.to_v, context)].map(|(map, x)| map.forward(x));
        self.to_out.forward_onto(q.attention(k, v, mask, self.heads, scale), shortcut)
    }
}
