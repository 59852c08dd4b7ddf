//! From noise to a picture's latents: schedules, samplers, guidance and random numbers.
//!
//! Everything here works on plain `f32` slices on the CPU and runs no network: a [`Sampler`] asks its
//! [`Host`] for predictions and hands back the latents after each step.
//! The formulas, their precision and their order are those of the schedulers in diffusers 0.42 (and of
//! k-diffusion for DPM++ 2S ancestral), so that a run gives what the reference gives, number by number.
//!
//! ```
//! use scumble_core::sampling::rng::{Rng, RngKind};
//! use scumble_core::sampling::{Host, NoiseConfig, Sampler, SamplerKind, ScheduleKind, StepEnd};
//!
//! /// In the place of a network: all of the input is noise.
//! struct Nothing(Rng);
//!
//! impl Host for Nothing {
//!     fn predict(&mut self, input: &[f32], _timestep: f32) -> scumble_core::error::Result<Vec<f32>> {
//!         Ok(input.to_vec())
//!     }
//!     fn noise(&mut self, len: usize) -> Vec<f32> {
//!         self.0.normal(len)
//!     }
//!     fn step(&mut self, end: StepEnd<'_>) -> scumble_core::error::Result<()> {
//!         println!("{} of {}", end.step, end.of);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> scumble_core::error::Result<()> {
//! let noise = NoiseConfig::default();
//! let sampler = Sampler::new(SamplerKind::Euler, ScheduleKind::Karras, &noise, 20)?;
//! let mut host = Nothing(Rng::new(RngKind::Philox, 42));
//! let mut latents = host.noise(4 * 8 * 8);
//! latents.iter_mut().for_each(|value| *value *= sampler.initial_scale());
//! sampler.run(&mut latents, &mut host)?;
//! # Ok(())
//! # }
//! ```

mod config;
mod kinds;
mod noise_config;
mod schedule;

mod run;

mod ddim;
mod dpm2;
mod dpmpp;
mod euler;
mod heun;
mod lcm;
mod unipc;

pub mod guidance;
pub mod rng;

use self::run::Run;
use self::schedule::Schedule;
use crate::error::{Error, Result};

pub use self::config::{Defaults, from_scheduler_config};
pub use self::kinds::{SamplerKind, ScheduleKind};
pub use self::noise_config::{BetaSchedule, FinalSigma, NoiseConfig, Prediction, Spacing};

use self::kinds::parse_name;

/// Largest number of steps that a run may have.
pub const STEPS_MAX: usize = 1000;

/// What a [`Sampler`] needs from around it.
pub trait Host {
    /// What the network gives for an input and a training step: noise, velocity or picture, as
    /// [`NoiseConfig::prediction`] says, with guidance already applied.
    fn predict(&mut self, scaled_input: &[f32], timestep: f32) -> Result<Vec<f32>>;

    /// Standard normal numbers, the next ones of the run. They are asked for in the order in which
    /// the reference draws them.
    fn noise(&mut self, len: usize) -> Vec<f32>;

    /// Hears of each finished step, may change the latents, and ends the run by an error.
    fn step(&mut self, end: StepEnd<'_>) -> Result<()>;
}

/// A step that has just been finished.
#[derive(Debug)]
pub struct StepEnd<'a> {
    /// Which step of this run it was, from 1.
    pub step: usize,
    /// How many steps this run has.
    pub of: usize,
    /// How often the network has been asked in this run so far; some samplers ask twice a step.
    pub evaluations: usize,
    /// The latents after the step, in the sampler's own scale.
    pub latents: &'a mut [f32],
    /// What the picture's latents would be if all noise were taken away at once: for previews.
    pub denoised: &'a [f32],
    /// Where the latents now stand, for [`Sampler::add_noise_at`].
    pub next_index: usize,
}

/// A method of going from noise to a picture, with the noise levels that it will visit.
#[derive(Debug, Clone)]
pub struct Sampler {
    kind: SamplerKind,
    noise: NoiseConfig,
    schedule: Schedule,
    spacing: Spacing,
    /// The first step that is taken; those before it are left out by [`Sampler::from_strength`].
    first: usize,
}

impl Sampler {
    /// A run of `steps` steps, from 1 to [`STEPS_MAX`].
    ///
    /// [`SamplerKind::Lcm`] chooses among its teacher's steps and does not heed a spacing.
    pub fn new(kind: SamplerKind, schedule: ScheduleKind, noise: &NoiseConfig, steps: usize) -> Result<Self> {
        if !(1..=STEPS_MAX).contains(&steps) {
            return Err(Error::invalid("steps", format!("{steps} is not in 1..={STEPS_MAX}")));
        }
        noise.validate()?;
        Ok(Self {
            kind,
            schedule: Schedule::new(kind, schedule, noise, steps)?,
            spacing: schedule.spacing().unwrap_or(noise.spacing),
            noise: noise.clone(),
            first: 0,
        })
    }

    /// Leaves out the first steps, for a run that starts from a picture with noise added: the larger
    /// the strength, in (0, 1], the more steps are kept.
    ///
    /// As `get_timesteps` of diffusers' image-to-image pipeline: ⌊steps · strength⌋ are kept.
    pub fn from_strength(mut self, strength: f32) -> Result<Self> {
        if !(strength > 0.0 && strength <= 1.0) {
            return Err(Error::invalid("strength", format!("{strength} is not in (0, 1]")));
        }
        // The number as it was written: 0.7 in `f32` is less than 0.7, and ten steps of it six.
        let written: f64 = strength.to_string().parse().unwrap_or(f64::from(strength));
        let all = self.schedule.timesteps.len();
        let kept = (all as f64 * written) as usize;
        if kept == 0 {
            let reason = format!("{strength} of {all} steps leaves none");
            return Err(Error::invalid("strength", reason));
        }
        self.first = all.saturating_sub(kept);
        Ok(self)
    }

    /// Which method it is.
    pub fn kind(&self) -> SamplerKind {
        self.kind
    }

    /// How many steps a run takes.
    pub fn steps(&self) -> usize {
        self.schedule.timesteps.len() - self.first
    }

    /// The training step that the network is told at the start of each step.
    pub fn timesteps(&self) -> &[f32] {
        &self.schedule.timesteps[self.first..]
    }

    /// The noise levels σ = √((1−ᾱ)/ᾱ) at the start of each step, and the one after the last.
    /// The first is infinite where DDIM or LCM begins at the end of a zero-terminal-SNR table.
    pub fn sigmas(&self) -> &[f32] {
        &self.schedule.sigmas[self.first..]
    }

    /// The training step at each evaluation of the network, as `scheduler.timesteps` lists them in
    /// diffusers: Heun, DPM2 and DPM++ 2S ancestral have two a step, save for the last.
    pub fn evaluation_timesteps(&self) -> Vec<f32> {
        (self.first..self.schedule.timesteps.len())
            .flat_map(|i| {
                let second = match self.kind {
                    SamplerKind::Heun => self.schedule.timesteps.get(i + 1).copied(),
                    SamplerKind::Dpm2 => dpm2::midpoint(self, i).map(|(_, t)| t),
                    SamplerKind::Dpmpp2sAncestral => dpmpp::midpoint(self, i).map(|(_, t)| t),
                    _ => None,
                };
                std::iter::once(self.schedule.timesteps[i]).chain(second)
            })
            .collect()
    }

    /// What standard normal noise is multiplied by to make the latents of a run without a picture:
    /// `init_noise_sigma` in diffusers.
    pub fn initial_scale(&self) -> f32 {
        let sigma = self.schedule.sigmas[0];
        match self.kind {
            SamplerKind::Dpmpp2sAncestral => sigma,
            kind if !kind.keeps_noise_unscaled() => 1.0,
            _ => match self.spacing {
                Spacing::Linspace | Spacing::Trailing => sigma,
                Spacing::Leading => (sigma * sigma + 1.0).sqrt(),
            },
        }
    }

    /// Adds noise to a picture's latents for a run that starts from them: `scheduler.add_noise` at
    /// the first step that is taken.
    pub fn add_noise(&self, latents: &mut [f32], noise: &[f32]) {
        let (keep, add) = self.mix(0);
        for (latent, &noise) in latents.iter_mut().zip(noise) {
            *latent = keep * *latent + add * noise;
        }
    }

    /// What clean latents look like at the start of a step, counted from 0 in this run; after the
    /// last step they are clean. Slices are used as far as the shortest goes.
    ///
    /// This is what keeps the part outside the mask when an ordinary UNet inpaints.
    pub fn add_noise_at(&self, step_index: usize, clean: &[f32], noise: &[f32], out: &mut [f32]) {
        let (keep, add) = self.mix(step_index);
        for ((out, &clean), &noise) in out.iter_mut().zip(clean).zip(noise) {
            *out = keep * clean + add * noise;
        }
    }

    /// Takes all steps, from latents at the first noise level to those of a picture.
    ///
    /// Fails with [`Error::NotFinite`] at the step that gives a value that is no number, and with
    /// whatever the host fails with; the latents are then those of the last step that was finished.
    pub fn run(&self, latents: &mut Vec<f32>, host: &mut dyn Host) -> Result<()> {
        let run = &mut Run::new(self, latents, host);
        match self.kind {
            SamplerKind::Euler => euler::deterministic(run),
            SamplerKind::EulerAncestral => euler::ancestral(run),
            SamplerKind::Heun => heun::sample(run),
            SamplerKind::Dpm2 => dpm2::sample(run),
            SamplerKind::Dpmpp2m => dpmpp::multistep(run),
            SamplerKind::Dpmpp2mSde => dpmpp::multistep_sde(run),
            SamplerKind::Dpmpp2sAncestral => dpmpp::singlestep_ancestral(run),
            SamplerKind::Ddim => ddim::sample(run),
            SamplerKind::Lcm => lcm::sample(run),
            SamplerKind::UniPc => unipc::sample(run),
        }
    }

    /// Shares of picture and noise at the start of a step of this run.
    fn mix(&self, step_index: usize) -> (f32, f32) {
        let index = self.first + step_index;
        if index >= self.schedule.timesteps.len() {
            return (1.0, 0.0);
        }
        if let Some(&(alpha, _)) = self.schedule.alphas.get(index) {
            return (alpha.sqrt(), (1.0 - alpha).sqrt());
        }
        let sigma = self.schedule.sigmas[index];
        if self.kind.keeps_noise_unscaled() { (1.0, sigma) } else { run::shares(sigma) }
    }
}

#[cfg(test)]
mod tests;
