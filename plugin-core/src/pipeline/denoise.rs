//! The third stage: the sampler steps, the denoiser predicts.

use ggml::{Builder, Graph, Slot};

use super::latents::{Inpaint, Noise, Start};
use super::{Frame, Observer, Pipeline, Progress, Stage, TextStates, Trace};
use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::models::unet::{Inputs, embed_time};
use crate::request::Request;
use crate::sampling::guidance::guide;
use crate::sampling::{Host, StepEnd};

/// The UNet's graph for one size of picture: built once, run at every step.
pub struct Denoiser {
    graph: Graph,
    latents: Slot,
    time: Slot,
    output: Slot,
    batch: usize,
    time_width: usize,
}

impl Denoiser {
    /// Floating-point operations of one forward pass over the batch.
    pub fn flops(&self) -> f64 {
        self.graph.flops()
    }

    /// What the forward passes so far cost, by kind of op; empty where ggml computes them.
    pub fn costs(&self) -> Vec<ggml::OpCost> {
        self.graph.costs()
    }
}

impl Pipeline {
    /// A denoiser of latents of `width`×`height` that looks at each of `texts`, `[L, context]`, in
    /// one batch.
    pub fn denoiser(&self, width: usize, height: usize, texts: &[&[f32]]) -> Result<Denoiser> {
        let config = &self.description.unet;
        let batch = texts.len();
        let tokens = texts.first().map_or(0, |text| text.len() / config.context_width);
        let builder = Builder::new(&self.backend)?;
        let inputs = Inputs::new(&builder, config, batch, width, height, tokens);
        let prediction = self.unet.forward(inputs.latents.0, inputs.time.0, inputs.text.0);
        let (latents, time, text) = (inputs.latents.1, inputs.time.1, inputs.text.1);
        let output = builder.output(prediction);
        let mut graph = Budget::now(&self.backend).build("denoising", builder, &self.backend)?;
        graph.write(text, &texts.concat())?;
        Ok(Denoiser { graph, latents, time, output, batch, time_width: config.levels[0].channels })
    }

    /// One forward pass over the batch: the same input `[in, h, w]` with each of the texts.
    /// The result is `[N, C, h, w]`.
    pub fn predict(
        &self,
        denoiser: &mut Denoiser,
        input: &[f32],
        timestep: f32,
        observer: &dyn Observer,
    ) -> Result<Vec<f32>> {
        let Denoiser { graph, batch, .. } = denoiser;
        graph.write(denoiser.latents, &input.repeat(*batch))?;
        graph.write(denoiser.time, &embed_time(timestep, denoiser.time_width).repeat(*batch))?;
        graph.compute(&self.backend, &|| observer.stop())?;
        Ok(graph.read(denoiser.output)?)
    }

    /// Runs all steps over the whole batch and gives the latents of the pictures, `[N, C, h, w]`.
    pub(super) fn denoise(
        &mut self,
        request: &Request,
        frame: &Frame,
        text: TextStates,
        start: Start,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>> {
        let Start { sampler, mut latents, noise, inpaint } = start;
        if request.preview_every > 0 && self.preview.is_none() {
            self.preview = Some(self.preview_projection(observer)?);
        }
        // Unconditional first, as in the reference; at scale 1 it has no say and is left away.
        let guided = request.guidance != 1.0;
        let texts: &[&[f32]] = if guided { &[&text.negative, &text.positive] } else { &[&text.positive] };
        let denoiser = self.denoiser(frame.width, frame.height, texts)?;
        observer.progress(Progress::of(Stage::Denoising, 0, sampler.steps()));
        let shape = [request.images, self.pictures.channels, frame.height, frame.width];
        let mut run = Run { pipeline: self, request, denoiser, noise, inpaint, shape, sampler: &sampler, observer };
        sampler.run(&mut latents, &mut run)?;
        Ok(latents)
    }
}

/// What the sampler asks.
struct Run<'a> {
    pipeline: &'a Pipeline,
    request: &'a Request,
    denoiser: Denoiser,
    noise: Noise,
    inpaint: Option<Inpaint>,
    shape: [usize; 4],
    sampler: &'a crate::sampling::Sampler,
    observer: &'a mut dyn Observer,
}

impl Run<'_> {
    /// Values of one picture's latent.
    fn length(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The guided prediction for one picture.
    fn predict_one(&mut self, latent: &[f32], timestep: f32) -> Result<Vec<f32>> {
        let prediction = match &self.inpaint {
            Some(Inpaint::Channels(more)) => {
                let input = [latent, more].concat();
                self.pipeline.predict(&mut self.denoiser, &input, timestep, self.observer)?
            }
            _ => self.pipeline.predict(&mut self.denoiser, latent, timestep, self.observer)?,
        };
        if self.denoiser.batch == 1 {
            return Ok(prediction);
        }
        let (negative, positive) = prediction.split_at(latent.len());
        let mut guided = vec![0.0; latent.len()];
        guide(negative, positive, self.request.guidance, self.request.guidance_rescale, 1, &mut guided)?;
        Ok(guided)
    }
}

impl Host for Run<'_> {
    fn predict(&mut self, scaled_input: &[f32], timestep: f32) -> Result<Vec<f32>> {
        let length = self.length();
        let mut prediction = Vec::with_capacity(scaled_input.len());
        // One after another: the graph and its memory are those of one picture.
        for latent in scaled_input.chunks_exact(length) {
            prediction.extend(self.predict_one(latent, timestep)?);
        }
        Ok(prediction)
    }

    fn noise(&mut self, len: usize) -> Vec<f32> {
        self.noise.draw(len)
    }

    fn step(&mut self, end: StepEnd<'_>) -> Result<()> {
        if let Some(Inpaint::Blend { clean, noise, mask }) = &self.inpaint {
            let mut kept = vec![0.0; clean.len()];
            self.sampler.add_noise_at(end.next_index, clean, noise, &mut kept);
            for ((latent, kept), &anew) in end.latents.iter_mut().zip(kept).zip(mask.iter().cycle()) {
                *latent = (1.0 - anew) * kept + anew * *latent;
            }
        }
        self.observer.trace(Trace::Latents { step: end.step - 1, shape: self.shape, values: end.latents });
        self.observer.progress(Progress::of(Stage::Denoising, end.step, end.of));
        let due =
            self.request.preview_every > 0 && end.step.is_multiple_of(self.request.preview_every) && end.step < end.of;
        if due && let Some(projection) = &self.pipeline.preview {
            let [_, _, height, width] = self.shape;
            let picture = projection.picture(&end.denoised[..self.length()], width, height)?;
            self.observer.preview(end.step, picture);
        }
        if self.observer.stop() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
