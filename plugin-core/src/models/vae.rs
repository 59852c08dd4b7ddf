//! The autoencoder between pictures and latents (Rombach et al. 2022; without its adversary).

use ggml::{Picture, Tensor};

use super::unet::dimensions;
use crate::error::{Error, Result};
use crate::nn::{Attention, Conv2d, Downsample, GroupNorm, Params, ResBlock, Upsample};
use crate::weights::Weights;

const EPSILON: f32 = 1e-6;

/// The sizes of an autoencoder. Everything but `groups` is read off the tensors' shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Channels of each level, from the picture down.
    pub channels: Vec<usize>,
    /// Residual blocks of a level of the encoder; the decoder's have one more.
    pub blocks: usize,
    /// Whether the middle blocks have attention.
    pub attention: bool,
    /// Whether there is an encoder.
    pub encoder: bool,
    /// Groups of every group norm.
    pub groups: usize,
}

impl Config {
    /// Reads the sizes off the tensors.
    pub fn infer(w: &Weights) -> Result<Self> {
        let decoder = w.at("decoder");
        let [_, latent_channels, ..] = dimensions::<4>(&decoder, "conv_in.weight")?;
        let mut channels = Vec::new();
        for i in (0..decoder.count("up_blocks").max(1)).rev() {
            let [width, ..] = dimensions::<4>(&decoder.at("up_blocks").at(i), "resnets.0.conv1.weight")?;
            channels.push(width);
        }
        let blocks = decoder.count("up_blocks.0.resnets");
        Ok(Self {
            latent_channels,
            channels,
            blocks: blocks.saturating_sub(1),
            attention: decoder.has("mid_block.attentions"),
            encoder: w.has("encoder"),
            groups: 32,
        })
    }

    /// Pixels of the picture's side to one of the latent's.
    pub fn reduction(&self) -> usize {
        1 << (self.channels.len() - 1)
    }

    fn check(&self) -> Result<()> {
        match self.channels.iter().find(|&&channels| self.groups == 0 || channels % self.groups != 0) {
            Some(channels) => Err(Error::config(format!(
                "{channels} channels of the autoencoder can't be split into {} groups",
                self.groups
            ))),
            None => Ok(()),
        }
    }
}

/// From a picture to the distribution of its latent.
pub struct Encoder {
    conv_in: Conv2d,
    down: Vec<(Vec<ResBlock>, Option<Downsample>)>,
    middle: Middle,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    quant: Option<Conv2d>,
}

/// From a latent to a picture.
pub struct Decoder {
    post_quant: Option<Conv2d>,
    conv_in: Conv2d,
    middle: Middle,
    up: Vec<(Vec<ResBlock>, Option<Upsample>)>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    /// Loads the encoder of an autoencoder of the sizes in `config`.
    pub fn load(root: &Params<'_>, config: &Config) -> Result<Self> {
        config.check()?;
        let p = root.at("encoder");
        let (groups, last) = (config.groups, config.channels.len() - 1);
        let mut channels = config.channels[0];
        let mut down = Vec::new();
        for (i, &width) in config.channels.iter().enumerate() {
            let p = p.at("down_blocks").at(i);
            let mut blocks = Vec::new();
            for j in 0..config.blocks {
                blocks.push(ResBlock::load(&p.at("resnets").at(j), channels, width, None, groups, EPSILON)?);
                channels = width;
            }
            let downsample = (i < last).then(|| Downsample::load_one_sided(&p.at("downsamplers.0"), channels));
            down.push((blocks, downsample.transpose()?));
        }
        let moments = 2 * config.latent_channels;
        Ok(Self {
            conv_in: Conv2d::load(&p.at("conv_in"), 3, config.channels[0], 3)?,
            down,
            middle: Middle::load(&p.at("mid_block"), channels, config)?,
            norm_out: GroupNorm::load(&p.at("conv_norm_out"), channels, groups, EPSILON)?,
            conv_out: Conv2d::load(&p.at("conv_out"), channels, moments, 3)?,
            quant: pointwise(root, "quant_conv", moments)?,
        })
    }

    /// Pictures `[N, 3, H, W]` in −1…1 → means and log-variances `[N, 2 C, H/8, W/8]`.
    pub fn forward<'g>(&self, picture: Tensor<'g>) -> Tensor<'g> {
        let mut h = self.conv_in.forward(Picture::new(picture));
        for (blocks, downsample) in &self.down {
            for block in blocks {
                h = block.forward(h, None);
            }
            if let Some(downsample) = downsample {
                h = downsample.forward(h);
            }
        }
        h = self.conv_out.forward(self.norm_out.forward_silu(self.middle.forward(h)));
        self.quant.as_ref().map_or(h, |quant| quant.forward(h)).planes()
    }
}

impl Decoder {
    /// Loads the decoder of an autoencoder of the sizes in `config`.
    pub fn load(root: &Params<'_>, config: &Config) -> Result<Self> {
        config.check()?;
        let p = root.at("decoder");
        let groups = config.groups;
        let last = config.channels.len() - 1;
        let mut channels = config.channels[last];
        let conv_in = Conv2d::load(&p.at("conv_in"), config.latent_channels, channels, 3)?;
        let middle = Middle::load(&p.at("mid_block"), channels, config)?;
        let mut up = Vec::new();
        for (i, &width) in config.channels.iter().rev().enumerate() {
            let p = p.at("up_blocks").at(i);
            let mut blocks = Vec::new();
            for j in 0..=config.blocks {
                blocks.push(ResBlock::load(&p.at("resnets").at(j), channels, width, None, groups, EPSILON)?);
                channels = width;
            }
            let upsample = (i < last).then(|| Upsample::load(&p.at("upsamplers.0"), channels)).transpose()?;
            up.push((blocks, upsample));
        }
        Ok(Self {
            post_quant: pointwise(root, "post_quant_conv", config.latent_channels)?,
            conv_in,
            middle,
            up,
            norm_out: GroupNorm::load(&p.at("conv_norm_out"), channels, groups, EPSILON)?,
            conv_out: Conv2d::load(&p.at("conv_out"), channels, 3, 3)?,
        })
    }

    /// Unscaled latents `[N, C, h, w]` → pictures `[N, 3, 8 h, 8 w]` around −1…1.
    pub fn forward<'g>(&self, latents: Tensor<'g>) -> Tensor<'g> {
        let latents = Picture::new(latents);
        let h = self.post_quant.as_ref().map_or(latents, |conv| conv.forward(latents));
        let mut h = self.middle.forward(self.conv_in.forward(h));
        for (blocks, upsample) in &self.up {
            for block in blocks {
                h = block.forward(h, None);
            }
            if let Some(upsample) = upsample {
                h = upsample.forward(h, 2 * h.width(), 2 * h.height());
            }
        }
        self.conv_out.forward(self.norm_out.forward_silu(h)).planes()
    }
}

/// Two residual blocks at the lowest level, with attention between them or without.
struct Middle {
    first: ResBlock,
    attention: Option<PixelAttention>,
    second: ResBlock,
}

impl Middle {
    fn load(p: &Params<'_>, channels: usize, config: &Config) -> Result<Self> {
        let resnet = |name| ResBlock::load(&p.at(name), channels, channels, None, config.groups, EPSILON);
        let attention = config.attention.then(|| PixelAttention::load(&p.at("attentions.0"), channels, config.groups));
        Ok(Self { first: resnet("resnets.0")?, attention: attention.transpose()?, second: resnet("resnets.1")? })
    }

    fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        let h = self.first.forward(x, None);
        let h = self.attention.as_ref().map_or(h, |attention| attention.forward(h));
        self.second.forward(h, None)
    }
}

/// Self-attention of one head over all pixels, beside a shortcut.
struct PixelAttention {
    norm: GroupNorm,
    attention: Attention,
}

impl PixelAttention {
    fn load(p: &Params<'_>, channels: usize, groups: usize) -> Result<Self> {
        Ok(Self {
            norm: GroupNorm::load(&p.at("group_norm"), channels, groups, EPSILON)?,
            attention: Attention::load(p, Attention::VAE, channels, channels, 1)?,
        })
    }

    fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        let h = self.norm.forward(x).tokens();
        Picture::from_tokens(self.attention.forward(h, h, None, x.tokens()), x.width(), x.height())
    }
}

/// A 1×1 convolution that some autoencoders lack.
fn pointwise(root: &Params<'_>, name: &str, channels: usize) -> Result<Option<Conv2d>> {
    root.weights().has(name).then(|| Conv2d::load(&root.at(name), channels, channels, 1)).transpose()
}
