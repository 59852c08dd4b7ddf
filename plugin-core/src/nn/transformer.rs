//! The transformer that the UNet runs over the pixels of a feature map.

use ggml::{Picture, Tensor};

use super::{Attention, GroupNorm, LayerNorm, Linear, Params};
use crate::error::Result;

/// PyTorch's default for layer norms.
const LAYER_NORM_EPSILON: f32 = 1e-5;
/// The spatial transformer's group norm has a smaller epsilon than the residual blocks'.
const GROUP_NORM_EPSILON: f32 = 1e-6;

/// A gated feed-forward layer of four times the width (GEGLU, Shazeer 2020).
pub struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Loads `net.0.proj`: `[8 width, width]`, and `net.2`: `[width, 4 width]`.
    pub fn load(p: &Params<'_>, width: usize) -> Result<Self> {
        Ok(Self {
            up: Linear::load(&p.at("net.0.proj"), width, 8 * width)?,
            down: Linear::load(&p.at("net.2"), 4 * width, width)?,
        })
    }

    /// `[N, L, width]` → the same shape, added to `shortcut`.
    pub fn forward<'g>(&self, x: Tensor<'g>, shortcut: Tensor<'g>) -> Tensor<'g> {
        self.down.forward_onto(self.up.forward(x).geglu(), shortcut)
    }
}

/// Self-attention, attention to the text, feed-forward, each beside a shortcut.
pub struct TransformerBlock {
    norm1: LayerNorm,
    to_self: Attention,
    norm2: LayerNorm,
    to_text: Attention,
    norm3: LayerNorm,
    feed_forward: FeedForward,
}

impl TransformerBlock {
    /// `width` channels over `heads` heads, looking at a text of `context` channels.
    pub fn load(p: &Params<'_>, width: usize, context: usize, heads: usize) -> Result<Self> {
        let norm = |name| LayerNorm::load(&p.at(name), width, LAYER_NORM_EPSILON);
        Ok(Self {
            norm1: norm("norm1")?,
            to_self: Attention::load(&p.at("attn1"), Attention::UNET, width, width, heads)?,
            norm2: norm("norm2")?,
            to_text: Attention::load(&p.at("attn2"), Attention::UNET, width, context, heads)?,
            norm3: norm("norm3")?,
            feed_forward: FeedForward::load(&p.at("ff"), width)?,
        })
    }

    /// `[N, L, width]` and the text's `[N, M, context]` → `[N, L, width]`.
    pub fn forward<'g>(&self, x: Tensor<'g>, context: Tensor<'g>) -> Tensor<'g> {
        let h = self.norm1.forward(x);
        let x = self.to_self.forward(h, h, None, x);
        let x = self.to_text.forward(self.norm2.forward(x), context, None, x);
        self.feed_forward.forward(self.norm3.forward(x), x)
    }
}

/// How a checkpoint stores the maps into and out of a spatial transformer. Both are the same
/// computation: a 1×1 convolution is a linear map over channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// 1×1 convolutions: Stable Diffusion 1.
    Convolution,
    /// Linear maps: Stable Diffusion 2.
    Linear,
}

/// Transformer blocks over the pixels of a feature map, beside a shortcut (Rombach et al. 2022).
pub struct SpatialTransformer {
    norm: GroupNorm,
    proj_in: Linear,
    blocks: Vec<TransformerBlock>,
    proj_out: Linear,
}

impl SpatialTransformer {
    /// `channels` channels over `heads` heads, looking at a text of `context` channels, with as many
    /// blocks as the checkpoint has.
    pub fn load(
        p: &Params<'_>,
        channels: usize,
        context: usize,
        heads: usize,
        groups: usize,
        projection: Projection,
    ) -> Result<Self> {
        let project = |name| match projection {
            Projection::Convolution => Linear::load_pointwise(&p.at(name), channels, channels),
            Projection::Linear => Linear::load(&p.at(name), channels, channels),
        };
        let depth = p.weights().count("transformer_blocks").max(1);
        let blocks = (0..depth)
            .map(|i| TransformerBlock::load(&p.at("transformer_blocks").at(i), channels, context, heads))
            .collect::<Result<_>>()?;
        Ok(Self {
            norm: GroupNorm::load(&p.at("norm"), channels, groups, GROUP_NORM_EPSILON)?,
            proj_in: project("proj_in")?,
            blocks,
            proj_out: project("proj_out")?,
        })
    }

    /// `[N, C, H, W]` and the text's `[N, M, context]` → `[N, C, H, W]`.
    pub fn forward<'g>(&self, x: Picture<'g>, context: Tensor<'g>) -> Picture<'g> {
        let mut h = self.proj_in.forward(self.norm.forward(x).tokens());
        for block in &self.blocks {
            h = block.forward(h, context);
        }
        Picture::from_tokens(self.proj_out.forward_onto(h, x.tokens()), x.width(), x.height())
    }
}
