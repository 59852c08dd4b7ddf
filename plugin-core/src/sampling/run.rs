//! What the samplers share: asking the network, turning its answer into a picture, ending a step.

use std::ops::Range;

use super::noise_config::Prediction;
use super::{Host, Sampler, SamplerKind, StepEnd};
use crate::error::{Computation, Error, Result};

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) sampler: &'a Sampler,
    pub(super) network: Network<'a>,
    /// The latents after the last finished step.
    pub(super) x: &'a mut Vec<f32>,
}

/// The host, as the samplers see it.
pub(super) struct Network<'a> {
    host: &'a mut dyn Host,
    prediction: Prediction,
    clip: Option<f32>,
    evaluations: usize,
    scaled: Vec<f32>,
}

impl<'a> Run<'a> {
    pub(super) fn new(sampler: &'a Sampler, x: &'a mut Vec<f32>, host: &'a mut dyn Host) -> Self {
        let clips = matches!(sampler.kind, SamplerKind::Ddim | SamplerKind::Heun | SamplerKind::Lcm);
        let network = Network {
            host,
            prediction: sampler.noise.prediction,
            clip: sampler.noise.clip_sample.filter(|_| clips),
            evaluations: 0,
            scaled: Vec::new(),
        };
        Self { sampler, network, x }
    }

    /// The steps to take, as indices into the whole schedule.
    pub(super) fn steps(&self) -> Range<usize> {
        self.sampler.first..self.sampler.schedule.timesteps.len()
    }

    pub(super) fn timestep(&self, step: usize) -> f32 {
        self.sampler.schedule.timesteps[step]
    }

    /// The noise level at the start of a step, or after the last.
    pub(super) fn sigma(&self, step: usize) -> f32 {
        self.sampler.schedule.sigmas[step]
    }

    /// Checks the latents that a step gave, keeps them, and tells the host.
    pub(super) fn finish(&mut self, step: usize, latents: Vec<f32>, denoised: &[f32]) -> Result<()> {
        let done = step + 1 - self.sampler.first;
        let of = self.sampler.steps();
        if !latents.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite(Computation::Step { step: done, of }));
        }
        *self.x = latents;
        self.network.host.step(StepEnd {
            step: done,
            of,
            evaluations: self.network.evaluations,
            latents: self.x,
            denoised,
            next_index: done,
        })
    }
}

impl Network<'_> {
    /// The picture that the network sees in `x` = picture + σ · noise.
    pub(super) fn denoise(&mut self, x: &[f32], sigma: f32, timestep: f32) -> Result<Vec<f32>> {
        let square = sigma * sigma + 1.0;
        let root = square.sqrt();
        let mut scaled = std::mem::take(&mut self.scaled);
        scaled.clear();
        scaled.extend(x.iter().map(|value| value / root));
        let output = self.predict(&scaled, timestep);
        self.scaled = scaled;

        let mut denoised = match self.prediction {
            Prediction::Epsilon => zip(x, &output?, |x, noise| x - sigma * noise),
            Prediction::V => zip(x, &output?, |x, v| v * (-sigma / root) + x / square),
            Prediction::Sample => output?,
        };
        self.clip(&mut denoised);
        Ok(denoised)
    }

    /// The picture that the network sees in `x` = `keep` · picture + `add` · noise, before clipping,
    /// with what the network said.
    pub(super) fn denoise_mixed(
        &mut self,
        x: &[f32],
        (keep, add): (f32, f32),
        timestep: f32,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        let output = self.predict(x, timestep)?;
        let denoised = match self.prediction {
            Prediction::Epsilon => zip(x, &output, |x, noise| (x - add * noise) / keep),
            Prediction::V => zip(x, &output, |x, v| keep * x - add * v),
            Prediction::Sample => output.clone(),
        };
        Ok((denoised, output))
    }

    pub(super) fn prediction(&self) -> Prediction {
        self.prediction
    }

    pub(super) fn clip(&self, denoised: &mut [f32]) {
        if let Some(range) = self.clip {
            // Infinity stays, for the guard at the step's end to see.
            let finite = denoised.iter_mut().filter(|value| value.is_finite());
            finite.for_each(|value| *value = value.clamp(-range, range));
        }
    }

    pub(super) fn noise(&mut self, len: usize) -> Result<Vec<f32>> {
        let noise = self.host.noise(len);
        check_len("noise", &noise, len).map(|()| noise)
    }

    fn predict(&mut self, input: &[f32], timestep: f32) -> Result<Vec<f32>> {
        self.evaluations += 1;
        let output = self.host.predict(input, timestep)?;
        check_len("a prediction", &output, input.len()).map(|()| output)
    }
}

/// Shares √ᾱ of picture and √(1−ᾱ) of noise at a noise level σ.
pub(super) fn shares(sigma: f32) -> (f32, f32) {
    let keep = 1.0 / (sigma * sigma + 1.0).sqrt();
    (keep, sigma * keep)
}

/// λ = log(√ᾱ / √(1−ᾱ)), in which the multistep solvers measure their steps; infinite without noise.
pub(super) fn half_log_snr((keep, add): (f32, f32)) -> f32 {
    ln(keep) - ln(add)
}

pub(super) fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

/// The logarithm of an `f32`, rounded once.
pub(super) fn ln(value: f32) -> f32 {
    libm::log(f64::from(value)) as f32
}

/// The exponential of an `f32`, rounded once.
pub(super) fn exp(value: f32) -> f32 {
    libm::exp(f64::from(value)) as f32
}

/// `exp(value) − 1`, rounded once.
pub(super) fn exp_m1(value: f32) -> f32 {
    libm::expm1(f64::from(value)) as f32
}

fn check_len(what: &str, values: &[f32], len: usize) -> Result<()> {
    if values.len() == len {
        return Ok(());
    }
    Err(Error::Internal(format!("{what} of {} values, expected {len}", values.len())))
}
