//! From a request to pictures: encode the prompt, prepare latents, denoise, decode.
//!
//! One file a stage. What differs between families was settled at load, so that no stage asks.

mod denoise;
mod latents;
mod load;
mod observer;
mod picture;
mod preview;
mod prompt;

use ggml::Backend;

use crate::error::{Error, Result};
use crate::image::FloatImage;
use crate::memory::Budget;
use crate::models::clip_text::ClipText;
use crate::models::description::LatentScale;
use crate::models::unet::Unet;
use crate::models::{Description, taesd, vae};
use crate::request::Request;
use crate::sampling::{Sampler, SamplerKind, ScheduleKind};
use crate::text::Tokenizer;

pub use denoise::Denoiser;
pub use load::Files;
pub use observer::{Observer, Progress, Quiet, Stage, Trace};
pub use prompt::TextStates;

/// The networks of a model, loaded and ready. One thread owns it.
pub struct Pipeline {
    backend: Backend,
    description: Description,
    tokenizer: Tokenizer,
    text: ClipText,
    unet: Unet,
    pictures: Autoencoder,
    preview: Option<preview::Projection>,
    weight_bytes: usize,
}

/// What goes between pictures and latents.
struct Autoencoder {
    encoder: Option<Encoder>,
    decoder: Decoder,
    scale: LatentScale,
    channels: usize,
    /// Pixels to one latent, on a side.
    reduction: usize,
}

enum Encoder {
    Full(Box<vae::Encoder>),
    Tiny(taesd::Taesd),
}

enum Decoder {
    Full(Box<vae::Decoder>),
    Tiny(taesd::Taesd),
}

impl Pipeline {
    /// What the model is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Bytes of the loaded weights.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The back end that it runs on.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Sizes of a request's latents, `[N, C, h, w]`: those of [`Request::noise`].
    pub fn latent_shape(&self, request: &Request) -> [usize; 4] {
        let frame = Frame::of(request, self.pictures.reduction);
        [request.images, self.pictures.channels, frame.height, frame.width]
    }

    /// The request's sampler and schedule, or the model's own.
    pub fn sampler_and_schedule(&self, request: &Request) -> (SamplerKind, ScheduleKind) {
        let defaults = &self.description.sampling;
        (
            request.sampler.or(defaults.sampler).unwrap_or(SamplerKind::Ddim),
            request.schedule.or(defaults.schedule).unwrap_or(ScheduleKind::Leading),
        )
    }

    /// Makes the pictures of a request, each `[3, H, W]` in 0…1, before any rounding.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::Cancelled`], [`Error::OutOfMemory`], [`Error::NotFinite`].
    /// After each of them the pipeline can be used again.
    pub fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Vec<FloatImage>> {
        request.validate()?;
        let sampler = self.sampler(request)?;
        let frame = Frame::of(request, self.pictures.reduction);
        // Before minutes of work: afterwards there would be nowhere to put the result.
        Budget::of_host().check("the request", frame.host_bytes(request, self.pictures.channels))?;
        self.check_decoder_memory(&frame)?;

        observer.progress(Progress::of(Stage::Encoding, 0, 1));
        let text = self.encode_text(&request.prompt, &request.negative, request.clip_skip, observer)?;
        observer.trace(Trace::Text { width: text.width, positive: &text.positive, negative: &text.negative });

        let start = self.prepare_latents(request, &frame, sampler, observer)?;
        let latents = self.denoise(request, &frame, text, start, observer)?;
        self.decode_all(&latents, request, &frame, observer)
    }

    fn sampler(&self, request: &Request) -> Result<Sampler> {
        let mut noise = self.description.sampling.noise.clone();
        noise.prediction = request.prediction.unwrap_or(noise.prediction);
        let (kind, schedule) = self.sampler_and_schedule(request);
        let sampler = Sampler::new(kind, schedule, &noise, request.steps)?;
        match &request.init {
            // Filling a mask at full strength starts from noise alone and takes every step.
            Some(init) if init.mask.is_none() || init.strength < 1.0 => sampler.from_strength(init.strength),
            _ => Ok(sampler),
        }
    }
}

/// The sizes of one request: what is computed is a multiple of the autoencoder's reduction.
struct Frame {
    /// Pixels computed.
    padded_width: usize,
    padded_height: usize,
    /// The latent's sides.
    width: usize,
    height: usize,
}

impl Frame {
    fn of(request: &Request, reduction: usize) -> Self {
        let width = request.width_px.div_ceil(reduction);
        let height = request.height_px.div_ceil(reduction);
        Self { padded_width: width * reduction, padded_height: height * reduction, width, height }
    }

    /// About what a run holds beside its graphs: the latents in a few states, the finished pictures,
    /// and one that is being put together.
    fn host_bytes(&self, request: &Request, channels: usize) -> u64 {
        const LATENT_STATES: usize = 8;
        const PLANES_IN_WORK: usize = 10;
        let latents = LATENT_STATES * request.images * channels * self.area();
        let planes = 3 * request.images + PLANES_IN_WORK;
        4 * (latents + planes * self.padded_width * self.padded_height) as u64
    }

    /// Values of one channel of the latent.
    fn area(&self) -> usize {
        self.width * self.height
    }
}

/// A vector of zeros, or an error where there is no memory for it.
fn zeros(length: usize, what: &'static str) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(length).map_err(|_| Error::OutOfMemory {
        what: what.into(),
        needed_bytes: 4 * length as u64,
        available_bytes: None,
    })?;
    values.resize(length, 0.0);
    Ok(values)
}
