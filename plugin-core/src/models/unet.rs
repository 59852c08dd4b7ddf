//! The denoiser of Stable Diffusion 1 and 2: a UNet with attention to the text
//! (Rombach et al. 2022, after Ronneberger et al. 2015).

use ggml::{Activation, Builder, Picture, Tensor};

use crate::error::{Error, Result};
use crate::nn::{Conv2d, Downsample, GroupNorm, Linear, Params, Projection, ResBlock, SpatialTransformer, Upsample};
use crate::weights::Weights;

const EPSILON: f32 = 1e-5;

/// How the attention of a level is split into heads: the one thing that shapes can't tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heads {
    /// The same number on every level.
    Count(usize),
    /// Heads of this many channels.
    Channels(usize),
    /// A number for each level, from the top.
    PerLevel(Vec<usize>),
}

/// The sizes of a UNet. Everything but `heads` and `groups` is read off the tensors' shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Channels of the input: 4, or 9 for an inpainting model (latent, mask, masked latent).
    pub in_channels: usize,
    /// Channels of the output: those of the latent.
    pub out_channels: usize,
    /// Width of the time embedding.
    pub time_width: usize,
    /// Width of the text's states.
    pub context_width: usize,
    /// The levels, from the full latent down.
    pub levels: Vec<Level>,
    /// Residual blocks of a level on the way down; there is one more on the way up.
    pub blocks: usize,
    /// How the transformers' outer maps are stored.
    pub projection: Projection,
    /// How attention is split.
    pub heads: Heads,
    /// Groups of every group norm.
    pub groups: usize,
}

/// One level of a [`Config`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Channels of its residual blocks.
    pub channels: usize,
    /// Whether its residual blocks are followed by transformers.
    pub attention: bool,
}

impl Config {
    /// Reads the sizes off the tensors. `heads` and `groups` start as the releases have them.
    pub fn infer(w: &Weights) -> Result<Self> {
        let conv_in = dimensions::<4>(w, "conv_in.weight")?;
        let conv_out = dimensions::<4>(w, "conv_out.weight")?;
        let [time_width, _] = dimensions(w, "time_embedding.linear_1.weight")?;
        let depth = w.count("down_blocks");
        let blocks = w.count("down_blocks.0.resnets");
        let mut levels = Vec::new();
        for i in 0..depth.max(1) {
            let block = w.at("down_blocks").at(i);
            let [channels, ..] = dimensions::<4>(&block, "resnets.0.conv1.weight")?;
            levels.push(Level { channels, attention: block.has("attentions") });
        }
        let transformer = w.at("mid_block.attentions.0");
        let [_, context_width] = dimensions(&transformer, "transformer_blocks.0.attn2.to_k.weight")?;
        let projection = match transformer.shape("proj_in.weight")?.len() {
            4 => Projection::Convolution,
            _ => Projection::Linear,
        };
        // Stable Diffusion 1 has eight heads everywhere, 2 has heads of 64 channels; the releases
        // that store linear maps are those of 2.
        let heads = match projection {
            Projection::Convolution => Heads::Count(8),
            Projection::Linear => Heads::Channels(64),
        };
        Ok(Self {
            in_channels: conv_in[1],
            out_channels: conv_out[0],
            time_width,
            context_width,
            levels,
            blocks,
            projection,
            heads,
            groups: 32,
        })
    }

    /// Refuses numbers that do not divide one another.
    fn check(&self) -> Result<()> {
        for (i, level) in self.levels.iter().enumerate() {
            let heads = self.heads_at(i);
            if heads == 0 || !level.channels.is_multiple_of(heads) {
                return Err(Error::config(format!(
                    "{} channels of the UNet can't be split into {heads} heads",
                    level.channels
                )));
            }
            if self.groups == 0 || !level.channels.is_multiple_of(self.groups) {
                return Err(Error::config(format!(
                    "{} channels of the UNet can't be split into {} groups",
                    level.channels, self.groups
                )));
            }
        }
        Ok(())
    }

    fn heads_at(&self, level: usize) -> usize {
        match &self.heads {
            Heads::Count(heads) => *heads,
            Heads::Channels(channels) => self.levels[level].channels / channels,
            Heads::PerLevel(heads) => heads.get(level).copied().unwrap_or(0),
        }
    }
}

/// The network.
pub struct Unet {
    time_in: Linear,
    time_out: Linear,
    conv_in: Conv2d,
    down: Vec<DownBlock>,
    middle: MiddleBlock,
    up: Vec<UpBlock>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

/// A residual block, and a transformer after it where the level has them.
struct Stage {
    resnet: ResBlock,
    transformer: Option<SpatialTransformer>,
}

struct DownBlock {
    stages: Vec<Stage>,
    downsample: Option<Downsample>,
}

struct MiddleBlock {
    first: ResBlock,
    transformer: SpatialTransformer,
    second: ResBlock,
}

struct UpBlock {
    stages: Vec<Stage>,
    upsample: Option<Upsample>,
}

impl Unet {
    /// Loads a network of the sizes in `config`.
    pub fn load(p: &Params<'_>, config: &Config) -> Result<Self> {
        config.check()?;
        let Config { levels, blocks, groups, time_width, .. } = config;
        let base = levels[0].channels;
        let last = levels.len() - 1;
        let top = levels[last].channels;
        let resnet =
            |p: &Params<'_>, inputs, outputs| ResBlock::load(p, inputs, outputs, Some(*time_width), *groups, EPSILON);
        let transformer = |p: &Params<'_>, level: usize| {
            let (channels, heads) = (levels[level].channels, config.heads_at(level));
            SpatialTransformer::load(p, channels, config.context_width, heads, *groups, config.projection)
        };
        let stage = |p: &Params<'_>, j: usize, level: usize, inputs: usize| -> Result<Stage> {
            let resnet = resnet(&p.at("resnets").at(j), inputs, levels[level].channels)?;
            let attention = levels[level].attention.then(|| transformer(&p.at("attentions").at(j), level));
            Ok(Stage { resnet, transformer: attention.transpose()? })
        };

        let mut down = Vec::new();
        let mut skips = vec![base];
        let mut channels = base;
        for (i, level) in levels.iter().enumerate() {
            let p = p.at("down_blocks").at(i);
            let mut stages = Vec::new();
            for j in 0..*blocks {
                stages.push(stage(&p, j, i, channels)?);
                channels = level.channels;
                skips.push(channels);
            }
            let downsample = (i < last).then(|| Downsample::load(&p.at("downsamplers.0"), channels)).transpose()?;
            if downsample.is_some() {
                skips.push(channels);
            }
            down.push(DownBlock { stages, downsample });
        }

        let mid = p.at("mid_block");
        let middle = MiddleBlock {
            first: resnet(&mid.at("resnets.0"), top, top)?,
            transformer: transformer(&mid.at("attentions.0"), last)?,
            second: resnet(&mid.at("resnets.1"), top, top)?,
        };

        let mut up = Vec::new();
        for (i, level) in levels.iter().enumerate().rev() {
            let p = p.at("up_blocks").at(last - i);
            let mut stages = Vec::new();
            for j in 0..=*blocks {
                let skip = skips.pop().ok_or_else(|| Error::config("the UNet's ways down and up do not match"))?;
                stages.push(stage(&p, j, i, channels + skip)?);
                channels = level.channels;
            }
            let upsample = (i > 0).then(|| Upsample::load(&p.at("upsamplers.0"), channels)).transpose()?;
            up.push(UpBlock { stages, upsample });
        }

        Ok(Self {
            time_in: Linear::load(&p.at("time_embedding.linear_1"), base, *time_width)?,
            time_out: Linear::load(&p.at("time_embedding.linear_2"), *time_width, *time_width)?,
            conv_in: Conv2d::load(&p.at("conv_in"), config.in_channels, base, 3)?,
            down,
            middle,
            up,
            norm_out: GroupNorm::load(&p.at("conv_norm_out"), base, *groups, EPSILON)?,
            conv_out: Conv2d::load(&p.at("conv_out"), base, config.out_channels, 3)?,
        })
    }

    /// Latents `[N, in, H, W]`, their time embedded by [`embed_time`] `[N, base]`, and the text's
    /// states `[N, M, context]` → the prediction `[N, out, H, W]`.
    pub fn forward<'g>(&self, latents: Tensor<'g>, time: Tensor<'g>, text: Tensor<'g>) -> Tensor<'g> {
        // Every residual block begins with the same activation of the time.
        let time =
            self.time_out.forward(self.time_in.forward(time).activate(Activation::Silu)).activate(Activation::Silu);

        let mut h = self.conv_in.forward(Picture::new(latents));
        let mut skips = vec![h];
        for block in &self.down {
            for stage in &block.stages {
                h = stage.forward(h, time, text);
                skips.push(h);
            }
            if let Some(downsample) = &block.downsample {
                h = downsample.forward(h);
                skips.push(h);
            }
        }

        h = self.middle.first.forward(h, Some(time));
        h = self.middle.transformer.forward(h, text);
        h = self.middle.second.forward(h, Some(time));

        for block in &self.up {
            for stage in &block.stages {
                // `load` counted as many skips as stages.
                let Some(skip) = skips.pop() else { break };
                h = stage.forward(h.concat(skip), time, text);
            }
            if let (Some(upsample), Some(skip)) = (&block.upsample, skips.last()) {
                // The size of the next skip, for an odd size was rounded up on the way down.
                h = upsample.forward(h, skip.width(), skip.height());
            }
        }
        self.conv_out.forward(self.norm_out.forward_silu(h)).planes()
    }
}

impl Stage {
    fn forward<'g>(&self, x: Picture<'g>, time: Tensor<'g>, text: Tensor<'g>) -> Picture<'g> {
        let h = self.resnet.forward(x, Some(time));
        match &self.transformer {
            Some(transformer) => transformer.forward(h, text),
            None => h,
        }
    }
}

/// The inputs of a UNet's graph.
pub struct Inputs<'g> {
    /// `[N, in, H, W]`.
    pub latents: (Tensor<'g>, ggml::Slot),
    /// `[N, base]`.
    pub time: (Tensor<'g>, ggml::Slot),
    /// `[N, M, context]`.
    pub text: (Tensor<'g>, ggml::Slot),
}

impl<'g> Inputs<'g> {
    /// Inputs for a batch of `batch` latents of `width`×`height` and texts of `tokens` states.
    pub fn new(
        builder: &'g Builder,
        config: &Config,
        batch: usize,
        width: usize,
        height: usize,
        tokens: usize,
    ) -> Self {
        let f32 = ggml::Dtype::F32;
        Self {
            latents: builder.input(f32, [width, height, config.in_channels, batch]),
            time: builder.input(f32, [config.levels[0].channels, batch, 1, 1]),
            text: builder.input(f32, [config.context_width, tokens, batch, 1]),
        }
    }
}

/// The sinusoidal embedding of a timestep in `width` values, cosines first
/// (Vaswani et al. 2017, in the order of Ho et al.'s code as Stable Diffusion was trained with it).
pub fn embed_time(timestep: f32, width: usize) -> Vec<f32> {
    let half = width / 2;
    let angle = |i: usize| timestep * (-(10000f32.ln()) * i as f32 / half as f32).exp();
    let mut embedding: Vec<f32> = (0..half).map(|i| angle(i).cos()).chain((0..half).map(|i| angle(i).sin())).collect();
    // An odd width ends in a zero.
    embedding.resize(width, 0.0);
    embedding
}

/// The shape of a tensor that must have `N` dimensions, none of them 0.
pub(crate) fn dimensions<const N: usize>(w: &Weights, name: &str) -> Result<[usize; N]> {
    let found = w.shape(name)?;
    match <[usize; N]>::try_from(found) {
        Ok(shape) if !shape.contains(&0) => Ok(shape),
        _ => {
            let name = w.file_name(name);
            Err(Error::config(format!("tensor {name} has the shape {found:?} where {N} dimensions are needed")))
        }
    }
}
