//! What a caller asks for: plain data with a default for everything but the prompt.

use crate::error::{Error, Result};
use crate::image::{FloatImage, Mask};
use crate::sampling::rng::RngKind;
use crate::sampling::{Prediction, SamplerKind, ScheduleKind};

/// Smallest side of a picture in pixels.
pub const MIN_SIDE_PX: usize = 16;
/// Largest side of a picture in pixels.
pub const MAX_SIDE_PX: usize = 8192;
/// Most steps of one run.
pub const MAX_STEPS: usize = 1000;
/// Most pictures of one request.
pub const MAX_IMAGES: usize = 64;

/// One request for one or more pictures of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What the picture shows. `(word:1.2)` and `[word]` weigh words.
    pub prompt: String,
    /// What it should not show.
    pub negative: String,
    /// Width in pixels, from [`MIN_SIDE_PX`] to [`MAX_SIDE_PX`].
    pub width_px: usize,
    /// Height in pixels, likewise.
    pub height_px: usize,
    /// Number of denoising steps, from 1 to [`MAX_STEPS`].
    pub steps: usize,
    /// Scale of classifier-free guidance (Ho and Salimans 2022). At 1 the negative prompt has no
    /// say, and each step takes one forward pass in place of two.
    pub guidance: f32,
    /// How far the guided prediction is brought back to the spread of the conditional one, from 0
    /// to 1 (Lin et al. 2023, section 3.4).
    pub guidance_rescale: f32,
    /// The sampler; the model's own default if `None`.
    pub sampler: Option<SamplerKind>,
    /// The schedule; the model's own default if `None`.
    pub schedule: Option<ScheduleKind>,
    /// What the network predicts; the model's own if `None`.
    pub prediction: Option<Prediction>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Where random numbers come from.
    pub rng: RngKind,
    /// Pictures of this prompt, from 1 to [`MAX_IMAGES`].
    pub images: usize,
    /// Which of the text encoder's last layers to take, counted from 1, the last; the model's own
    /// choice if `None`.
    pub clip_skip: Option<usize>,
    /// A picture to start from.
    pub init: Option<Init>,
    /// Starting noise in place of the generator's, `[images, channels, height / 8, width / 8]`.
    pub noise: Option<Vec<f32>>,
    /// A preview after every this many steps; none at 0.
    pub preview_every: usize,
}

/// A picture to start from, and which part of it to make anew.
#[derive(Debug, Clone, PartialEq)]
pub struct Init {
    /// The picture, of the request's size.
    pub image: FloatImage,
    /// How much of the schedule is run, above 0 (nothing changes) to 1.
    pub strength: f32,
    /// Which pixels are made anew, of the request's size.
    pub mask: Option<Mask>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            negative: String::new(),
            width_px: 512,
            height_px: 512,
            steps: 20,
            guidance: 7.5,
            guidance_rescale: 0.0,
            sampler: None,
            schedule: None,
            prediction: None,
            seed: 0,
            rng: RngKind::Philox,
            images: 1,
            clip_skip: None,
            init: None,
            noise: None,
            preview_every: 0,
        }
    }
}

impl Request {
    /// Checks every field against what can be; the error names the first that can't.
    pub fn validate(&self) -> Result<()> {
        check_side("width", self.width_px)?;
        check_side("height", self.height_px)?;
        check_count("steps", self.steps, MAX_STEPS)?;
        check_count("batch", self.images, MAX_IMAGES)?;
        if !self.guidance.is_finite() || !(0.0..=1000.0).contains(&self.guidance) {
            return Err(Error::invalid("cfg", format!("{} where 0 to 1000 is possible", self.guidance)));
        }
        if !(0.0..=1.0).contains(&self.guidance_rescale) {
            return Err(Error::invalid("cfg-rescale", format!("{} where 0 to 1 is possible", self.guidance_rescale)));
        }
        if self.clip_skip == Some(0) {
            return Err(Error::invalid("clip-skip", "0 where 1 (the last layer) or more is possible"));
        }
        if let Some(init) = &self.init {
            init.validate(self.width_px, self.height_px)?;
        }
        Ok(())
    }
}

impl Init {
    fn validate(&self, width_px: usize, height_px: usize) -> Result<()> {
        // Written so that a NaN fails.
        if !(self.strength > 0.0 && self.strength <= 1.0) {
            return Err(Error::invalid("strength", format!("{} where above 0 to 1 is possible", self.strength)));
        }
        let check = |field, width: u32, height: u32| {
            if (width as usize, height as usize) == (width_px, height_px) {
                return Ok(());
            }
            Err(Error::invalid(field, format!("{width}×{height} pixels where the picture has {width_px}×{height_px}")))
        };
        check("init-image", self.image.width(), self.image.height())?;
        self.mask.as_ref().map_or(Ok(()), |mask| check("mask", mask.width(), mask.height()))
    }
}

fn check_side(field: &'static str, side: usize) -> Result<()> {
    if (MIN_SIDE_PX..=MAX_SIDE_PX).contains(&side) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("{side} where {MIN_SIDE_PX} to {MAX_SIDE_PX} pixels are possible")))
}

fn check_count(field: &'static str, count: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("{count} where 1 to {most} is possible")))
}
