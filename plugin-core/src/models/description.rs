//! What a checkpoint holds: sizes read off its tensors, and what shapes can't tell from its
//! configuration files or, where there are none, from one table of families.

use std::fmt::Display;

use ggml::Activation;
use serde_json::{Value, json};

use super::clip_text;
use super::unet::{self, Heads};
use super::vae;
use crate::error::{Error, Result};
use crate::nn::Projection;
use crate::sampling::{self, NoiseConfig, Prediction};
use crate::weights::{Checkpoint, Component, Config as JsonConfig, Naming, Weights};

/// A line of models that share what shapes can't tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Stable Diffusion 1.x: OpenAI's text encoder, eight heads, convolutional projections.
    Sd1,
    /// Stable Diffusion 2.x: OpenCLIP's text encoder, heads of 64 channels, linear projections.
    Sd2,
}

impl Family {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sd1 => "Stable Diffusion 1.x",
            Self::Sd2 => "Stable Diffusion 2.x",
        }
    }

    /// What its original release predicts: 2.x in its full form the velocity.
    fn prediction(self) -> Prediction {
        match self {
            Self::Sd1 => Prediction::Epsilon,
            Self::Sd2 => Prediction::V,
        }
    }
}

/// The factor on latents of every release of Stable Diffusion 1 and 2.
const SCALING_FACTOR: f32 = 0.18215;
/// More heads than any network has.
const MOST_HEADS: usize = 4096;

/// How latents are scaled for the denoiser: `(latent − shift) × factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentScale {
    /// Multiplied with the encoder's latents.
    pub factor: f32,
    /// Subtracted before.
    pub shift: f32,
}

/// Everything about a checkpoint that the pipeline needs to know before it loads a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The line of models.
    pub family: Family,
    /// The denoiser.
    pub unet: unet::Config,
    /// The text encoder.
    pub text: clip_text::Config,
    /// The autoencoder, if the checkpoint has one.
    pub vae: Option<vae::Config>,
    /// Layers of the text encoder left out at its end when a request doesn't say.
    pub skipped_text_layers: usize,
    /// The latents' scale.
    pub scale: LatentScale,
    /// Sampler, schedule and noise that the checkpoint's own configuration asks for.
    pub sampling: sampling::Defaults,
}

impl Description {
    /// Reads headers and configuration files only.
    pub fn infer(checkpoint: &Checkpoint) -> Result<Self> {
        Self::infer_parts(checkpoint).map_err(|error| match error {
            Error::Model(reason) => Error::unsupported(&checkpoint.path, reason),
            error => error,
        })
    }

    fn infer_parts(checkpoint: &Checkpoint) -> Result<Self> {
        let unet = unet_config(checkpoint)?;
        let text = text_config(checkpoint)?;
        if text.width != unet.context_width {
            return Err(Error::config(format!(
                "the text encoder's states have {} channels where the UNet takes {}",
                text.width, unet.context_width
            )));
        }
        let family = match unet.projection {
            Projection::Convolution => Family::Sd1,
            Projection::Linear => Family::Sd2,
        };
        let (vae, scale) = match checkpoint.component(Component::Vae) {
            Some(_) => (Some(vae_config(checkpoint)?), latent_scale(checkpoint)?),
            None => (None, LatentScale { factor: SCALING_FACTOR, shift: 0.0 }),
        };
        // OpenCLIP's file has the last block, which Stable Diffusion 2 never used; a folder leaves it away.
        let open_clip =
            checkpoint.component(Component::TextEncoder).is_some_and(|text| text.naming() == Naming::OpenClip);
        let mut sampling = match checkpoint.scheduler_config() {
            Some(config) => sampling::from_scheduler_config(config)?,
            None => sampling::Defaults {
                noise: NoiseConfig { prediction: family.prediction(), ..NoiseConfig::default() },
                ..sampling::Defaults::default()
            },
        };
        if let Some(prediction) = stated_prediction(checkpoint) {
            sampling.noise.prediction = prediction;
        }
        Ok(Self { family, unet, text, vae, skipped_text_layers: usize::from(open_clip), scale, sampling })
    }

    /// What CLIP's own vocabulary is to be used with when a file brings none: OpenCLIP fills up with
    /// token 0, OpenAI's encoder with the token that ends a text.
    pub(crate) fn default_tokenizer_config(&self) -> Option<Value> {
        (self.skipped_text_layers > 0).then(|| json!({ "pad_token": "!" }))
    }

    /// Whether the denoiser was trained to fill masks: it takes the mask and the masked latent too.
    pub fn is_inpainting(&self) -> bool {
        self.unet.in_channels == 2 * self.unet.out_channels + 1
    }
}

fn cursor(checkpoint: &Checkpoint, component: Component, what: &str) -> Result<Weights> {
    let tensors = checkpoint.component(component).ok_or_else(|| Error::config(format!("there is no {what} in it")))?;
    Ok(Weights::root(tensors))
}

fn unet_config(checkpoint: &Checkpoint) -> Result<unet::Config> {
    let w = cursor(checkpoint, Component::Unet, "UNet")?;
    for (part, family) in
        [("add_embedding", "Stable Diffusion XL"), ("time_embedding.cond_proj", "guidance-distilled LCM")]
    {
        if w.has(part) {
            return Err(Error::config(format!("the UNet is of the {family} family, which is not supported")));
        }
    }
    let mut config = unet::Config::infer(&w)?;
    let latent = config.out_channels;
    if config.in_channels != latent && config.in_channels != 2 * latent + 1 {
        return Err(Error::config(format!(
            "the UNet takes {} channels where {latent} or {} are supported",
            config.in_channels,
            2 * latent + 1
        )));
    }
    if let Some(json) = checkpoint.config(Component::Unet) {
        only_text(json, "act_fn", &["silu", "swish"])?;
        only_text(json, "resnet_time_scale_shift", &["default"])?;
        only_text(json, "time_embedding_type", &["positional"])?;
        only_number(json, "norm_eps", 1e-5)?;
        only_number(json, "mid_block_scale_factor", 1.0)?;
        only_number(json, "downsample_padding", 1.0)?;
        only_number(json, "freq_shift", 0.0)?;
        only_flag(json, "flip_sin_to_cos", true)?;
        only_flag(json, "center_input_sample", false)?;
        only_flag(json, "dual_cross_attention", false)?;
        if let Some(groups) = json.usize("norm_num_groups")? {
            config.groups = groups;
        }
        // diffusers named the number of heads `attention_head_dim` and never could change it.
        for name in ["attention_head_dim", "num_attention_heads"] {
            if let Some(heads) = heads(json, name)? {
                config.heads = heads;
            }
        }
    }
    Ok(config)
}

fn text_config(checkpoint: &Checkpoint) -> Result<clip_text::Config> {
    let w = cursor(checkpoint, Component::TextEncoder, "text encoder")?;
    let mut config = clip_text::Config::infer(&w)?;
    if w.tensors().naming() == Naming::OpenClip {
        config.activation = Activation::Gelu;
    }
    if let Some(json) = checkpoint.config(Component::TextEncoder) {
        only_number(json, "layer_norm_eps", 1e-5)?;
        if let Some(heads) = json.usize("num_attention_heads")? {
            config.heads = heads;
        }
        if let Some(name) = json.str("hidden_act")? {
            config.activation = match name {
                "quick_gelu" => Activation::QuickGelu,
                "gelu" => Activation::Gelu,
                _ => return Err(refuse(json, "hidden_act", name, "quick_gelu or gelu")),
            };
        }
    }
    Ok(config)
}

/// The autoencoder's sizes, from a checkpoint that has one.
pub fn vae_config(checkpoint: &Checkpoint) -> Result<vae::Config> {
    let mut config = vae::Config::infer(&cursor(checkpoint, Component::Vae, "autoencoder")?)?;
    if let Some(json) = checkpoint.config(Component::Vae) {
        only_text(json, "act_fn", &["silu", "swish"])?;
        if let Some(groups) = json.usize("norm_num_groups")? {
            config.groups = groups;
        }
    }
    Ok(config)
}

/// The latents' scale, from a checkpoint that has an autoencoder.
pub fn latent_scale(checkpoint: &Checkpoint) -> Result<LatentScale> {
    let mut scale = LatentScale { factor: SCALING_FACTOR, shift: 0.0 };
    if let Some(json) = checkpoint.config(Component::Vae) {
        if let Some(factor) = json.f64("scaling_factor")? {
            if !(1e-6..=1e6).contains(&factor) {
                return Err(refuse(json, "scaling_factor", factor, "0.000001 to 1000000"));
            }
            scale.factor = factor as f32;
        }
        if let Some(shift) = json.f64("shift_factor")? {
            scale.shift = shift as f32;
        }
    }
    Ok(scale)
}

/// What a single file says of its own prediction, in the fields of the ModelSpec convention.
fn stated_prediction(checkpoint: &Checkpoint) -> Option<Prediction> {
    let stated = checkpoint.metadata.get("modelspec.prediction_type")?;
    match stated.to_lowercase().as_str() {
        "epsilon" | "eps" => Some(Prediction::Epsilon),
        "v" | "v_prediction" | "v-prediction" => Some(Prediction::V),
        _ => None,
    }
}

/// Refuses a configuration that asks for `found` where only `supported` is built.
fn refuse(config: &JsonConfig, name: &str, found: impl Display, supported: impl Display) -> Error {
    Error::unsupported(config.path(), format!("{name} is {found} where {supported} is supported"))
}

fn only_text(config: &JsonConfig, name: &str, supported: &[&str]) -> Result<()> {
    match config.str(name)? {
        Some(found) if !supported.contains(&found) => Err(refuse(config, name, found, supported.join(" or "))),
        _ => Ok(()),
    }
}

fn only_number(config: &JsonConfig, name: &str, supported: f64) -> Result<()> {
    match config.f64(name)? {
        Some(found) if found != supported => Err(refuse(config, name, found, supported)),
        _ => Ok(()),
    }
}

fn only_flag(config: &JsonConfig, name: &str, supported: bool) -> Result<()> {
    match config.bool(name)? {
        Some(found) if found != supported => Err(refuse(config, name, found, supported)),
        _ => Ok(()),
    }
}

/// One number of heads, or one for each level.
fn heads(config: &JsonConfig, name: &str) -> Result<Option<Heads>> {
    let several = config.get(name).is_some_and(|value| value.is_array());
    let Some(heads) = config.usizes(name)? else { return Ok(None) };
    if heads.is_empty() || heads.iter().any(|&count| count == 0 || count > MOST_HEADS) {
        return Err(refuse(config, name, format!("{heads:?}"), format!("1 to {MOST_HEADS}")));
    }
    Ok(Some(if several { Heads::PerLevel(heads) } else { Heads::Count(heads[0]) }))
}
