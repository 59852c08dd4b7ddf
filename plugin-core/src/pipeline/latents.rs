//! The second stage: noise, and where there is one the picture to start from.

use super::{Frame, Observer, Pipeline, Trace};
use crate::error::{Error, Result};
use crate::image::Mask;
use crate::request::{Init, Request};
use crate::sampling::Sampler;
use crate::sampling::rng::{Rng, RngKind};

/// Random numbers for a batch.
///
/// The two kinds follow the programs whose seeds they are meant to reproduce: Philox makes each
/// picture from a seed of its own (`seed`, `seed + 1`, …), so that one of a batch can be made again
/// alone; Torch draws the whole batch from one generator, as diffusers does.
pub(super) struct Noise {
    generators: Vec<Rng>,
}

impl Noise {
    fn new(kind: RngKind, seed: u64, images: usize) -> Self {
        let generators = match kind {
            RngKind::Philox => (0..images as u64).map(|i| Rng::new(kind, seed.wrapping_add(i))).collect(),
            RngKind::Torch => vec![Rng::new(kind, seed)],
        };
        Self { generators }
    }

    /// `len` normal numbers over the whole batch.
    pub(super) fn draw(&mut self, len: usize) -> Vec<f32> {
        let share = len / self.generators.len();
        self.generators.iter_mut().flat_map(|generator| generator.normal(share)).collect()
    }

    /// Numbers for something that the pictures of the batch share.
    fn draw_shared(&mut self, len: usize) -> Vec<f32> {
        self.generators[0].normal(len)
    }
}

/// All that denoising starts from.
pub(super) struct Start {
    pub(super) sampler: Sampler,
    /// `[N, C, h, w]`, at the first step's noise level.
    pub(super) latents: Vec<f32>,
    pub(super) noise: Noise,
    pub(super) inpaint: Option<Inpaint>,
}

/// How a mask is held to.
pub(super) enum Inpaint {
    /// The network was trained for it and takes mask and masked latent as further channels,
    /// `[1 + C, h, w]`.
    Channels(Vec<f32>),
    /// The network is an ordinary one: after each step what is outside the mask is put back, with
    /// the noise of that step.
    Blend {
        /// `[N, C, h, w]`.
        clean: Vec<f32>,
        /// `[N, C, h, w]`.
        noise: Vec<f32>,
        /// `[h, w]`: 1 is made anew.
        mask: Vec<f32>,
    },
}

impl Pipeline {
    /// Draws the noise and encodes the picture to start from, in the order in which diffusers does.
    pub(super) fn prepare_latents(
        &mut self,
        request: &Request,
        frame: &Frame,
        sampler: Sampler,
        observer: &mut dyn Observer,
    ) -> Result<Start> {
        let shape = [request.images, self.pictures.channels, frame.height, frame.width];
        let length = shape.iter().product();
        let mut noise = Noise::new(request.rng, request.seed, request.images);
        let Some(init) = &request.init else {
            if self.description.is_inpainting() {
                return Err(Error::invalid("init-image", "this model fills masks: it needs a picture and a mask"));
            }
            let mut latents = initial_noise(request, &mut noise, shape, observer)?;
            scale(&mut latents, sampler.initial_scale());
            return Ok(Start { sampler, latents, noise, inpaint: None });
        };

        let mask = init.mask.as_ref().map(|mask| prepare_mask(mask, frame)).transpose()?;
        if mask.is_none() && self.description.is_inpainting() {
            return Err(Error::invalid("mask", "this model fills masks: it needs one"));
        }
        // With a mask and full strength the picture leaves no trace in the noise.
        let from_noise = init.mask.is_some() && init.strength >= 1.0;
        let trained_for_masks = self.description.is_inpainting();
        let picture = padded_picture(init, frame)?;
        let clean = if from_noise && trained_for_masks {
            None
        } else {
            Some(self.encode_repeated(&picture, frame, length, &mut noise, observer)?)
        };
        let drawn = initial_noise(request, &mut noise, shape, observer)?;
        let latents = match &clean {
            Some(clean) if !from_noise => {
                let mut latents = clean.clone();
                sampler.add_noise(&mut latents, &drawn);
                latents
            }
            _ => {
                let mut latents = drawn.clone();
                scale(&mut latents, sampler.initial_scale());
                latents
            }
        };
        let inpaint = match (mask, clean) {
            (None, _) => None,
            (Some(mask), _) if trained_for_masks => {
                Some(Inpaint::Channels(self.mask_channels(&picture, mask, frame, &mut noise, observer)?))
            }
            (Some(mask), Some(clean)) => Some(Inpaint::Blend { clean, noise: drawn, mask: mask.latent }),
            (Some(_), None) => return Err(Error::Internal("a mask without a picture".into())),
        };
        Ok(Start { sampler, latents, noise, inpaint })
    }

    /// The picture's latent, once for each image of the batch.
    fn encode_repeated(
        &mut self,
        picture: &[f32],
        frame: &Frame,
        length: usize,
        noise: &mut Noise,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>> {
        let one = self.encode_picture(picture, frame, &mut |len| noise.draw_shared(len), observer)?;
        Ok(one.iter().copied().cycle().take(length).collect())
    }

    /// Mask and masked latent, `[1 + C, h, w]`.
    fn mask_channels(
        &mut self,
        picture: &[f32],
        mask: PreparedMask,
        frame: &Frame,
        noise: &mut Noise,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>> {
        let mut masked = picture.to_vec();
        for plane in masked.chunks_exact_mut(mask.pixels.len()) {
            for (value, &anew) in plane.iter_mut().zip(&mask.pixels) {
                // Grey where the picture is made anew.
                *value = if anew > 0.5 { 0.0 } else { *value };
            }
        }
        let latent = self.encode_picture(&masked, frame, &mut |len| noise.draw_shared(len), observer)?;
        let mut channels = mask.latent;
        channels.extend_from_slice(&latent);
        Ok(channels)
    }
}

/// The caller's noise or the generator's.
fn initial_noise(
    request: &Request,
    noise: &mut Noise,
    shape: [usize; 4],
    observer: &mut dyn Observer,
) -> Result<Vec<f32>> {
    let length = shape.iter().product();
    let values = match &request.noise {
        Some(given) if given.len() != length => {
            let reason = format!("{} values where the latents have {shape:?}", given.len());
            return Err(Error::invalid("noise", reason));
        }
        Some(given) => given.clone(),
        None => noise.draw(length),
    };
    observer.trace(Trace::Noise { shape, values: &values });
    Ok(values)
}

fn scale(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

/// The picture to start from in −1…1, `[3, H, W]`, its edges repeated up to the padded size.
fn padded_picture(init: &Init, frame: &Frame) -> Result<Vec<f32>> {
    let padded = init.image.pad_edge(frame.padded_width as u32, frame.padded_height as u32)?;
    Ok(padded.to_signed())
}

struct PreparedMask {
    /// `[H, W]`, 0 or 1.
    pixels: Vec<f32>,
    /// `[h, w]`, 0 or 1.
    latent: Vec<f32>,
}

fn prepare_mask(mask: &Mask, frame: &Frame) -> Result<PreparedMask> {
    let pixels = mask.binarised().pad_edge(frame.padded_width as u32, frame.padded_height as u32)?;
    let latent = pixels.resized_nearest(frame.width as u32, frame.height as u32)?;
    Ok(PreparedMask { pixels: pixels.values().to_vec(), latent: latent.values().to_vec() })
}
