//! The residual block of the UNet and of the autoencoder.

use ggml::{Addend, Picture, Tensor};

use super::{Conv2d, GroupNorm, Linear, Params};
use crate::error::Result;

/// Two convolutions beside a shortcut, with the time embedding added between them
/// (Ho et al. 2020, appendix B; the autoencoder's have no time).
pub struct ResBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    time: Option<Linear>,
    norm2: GroupNorm,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
}

impl ResBlock {
    /// From `inputs` to `outputs` channels; `time` is the time embedding's width, if there is one.
    pub fn load(
        p: &Params<'_>,
        inputs: usize,
        outputs: usize,
        time: Option<usize>,
        groups: usize,
        epsilon: f32,
    ) -> Result<Self> {
        let shortcut = (inputs != outputs).then(|| Conv2d::load(&p.at("conv_shortcut"), inputs, outputs, 1));
        Ok(Self {
            norm1: GroupNorm::load(&p.at("norm1"), inputs, groups, epsilon)?,
            conv1: Conv2d::load(&p.at("conv1"), inputs, outputs, 3)?,
            time: time.map(|width| Linear::load(&p.at("time_emb_proj"), width, outputs)).transpose()?,
            norm2: GroupNorm::load(&p.at("norm2"), outputs, groups, epsilon)?,
            conv2: Conv2d::load(&p.at("conv2"), outputs, outputs, 3)?,
            shortcut: shortcut.transpose()?,
        })
    }

    /// `[N, inputs, H, W]` → `[N, outputs, H, W]`. `time` is the activated embedding, `[N, width]`.
    pub fn forward<'g>(&self, x: Picture<'g>, time: Option<Tensor<'g>>) -> Picture<'g> {
        let time = match (&self.time, time) {
            (Some(map), Some(time)) => Addend::Channels(map.forward(time)),
            _ => Addend::None,
        };
        let h = self.conv1.forward_onto(self.norm1.forward_silu(x), time);
        let shortcut = self.shortcut.as_ref().map_or(x, |shortcut| shortcut.forward(x));
        self.conv2.forward_onto(self.norm2.forward_silu(h), Addend::Picture(shortcut))
    }
}
