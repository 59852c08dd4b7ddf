//! Which noise levels a run visits, and which training step the network is told at each.
//!
//! The formulas are those of the schedulers in diffusers 0.42; they differ from one sampler to the
//! next in small ways (what is rounded, between which levels Karras interpolates), and those
//! differences are kept, see [`Family`].

use super::noise_config::{FinalSigma, NoiseConfig, Spacing};
use super::run::ln;
use super::{SamplerKind, ScheduleKind};
use crate::error::{Error, Result};

/// A run's noise levels.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    /// Training step at the start of each step, from the noisiest down; fractional where levels
    /// lie between training steps.
    pub(super) timesteps: Vec<f32>,
    /// Noise level σ = √((1−ᾱ)/ᾱ) at the start of each step, and after the last.
    pub(super) sigmas: Vec<f32>,
    /// ᾱ before and after each step, for the samplers that take it from the training table.
    pub(super) alphas: Vec<(f32, f32)>,
    /// The training table's σ, from the least noisy step up.
    pub(super) table: Table,
}

/// The noise levels of all training steps, ascending.
#[derive(Debug, Clone)]
pub(super) struct Table {
    alphas: Vec<f32>,
    sigmas: Vec<f32>,
    log_sigmas: Vec<f32>,
}

/// Samplers whose schedulers in diffusers choose levels in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Euler, ancestral Euler and Heun: `n` spaced steps, fractional ones as they come, Karras
    /// between the first and last of them.
    Euler,
    /// DPM++ 2S ancestral, which has no scheduler there, as k-diffusion has it: the same, but
    /// logarithms between training levels, and Karras over the whole table.
    KDiffusion,
    /// DPM2: the same, but Karras rounds to whole training steps.
    Dpm2,
    /// DPM++ 2M and its SDE: `n + 1` spaced steps without the last, whole training steps, Karras
    /// over the whole table.
    Multistep,
    /// UniPC: the same, but Karras rounds with every table.
    UniPc,
    /// DDIM: `n` spaced whole training steps.
    Ddim,
    /// LCM: a selection of the teacher's steps, whatever the spacing.
    Lcm,
}

impl Family {
    fn of(kind: SamplerKind) -> Self {
        match kind {
            SamplerKind::Euler | SamplerKind::EulerAncestral | SamplerKind::Heun => Self::Euler,
            SamplerKind::Dpmpp2sAncestral => Self::KDiffusion,
            SamplerKind::Dpm2 => Self::Dpm2,
            SamplerKind::Dpmpp2m | SamplerKind::Dpmpp2mSde => Self::Multistep,
            SamplerKind::UniPc => Self::UniPc,
            SamplerKind::Ddim => Self::Ddim,
            SamplerKind::Lcm => Self::Lcm,
        }
    }

    fn is_multistep(self) -> bool {
        matches!(self, Self::Multistep | Self::UniPc)
    }

    /// Whether the sampler works with ᾱ rather than σ.
    fn uses_alphas(self) -> bool {
        matches!(self, Self::Ddim | Self::Lcm)
    }
}

impl Schedule {
    /// The levels for `steps` steps of `kind`; `noise` has been validated.
    pub(super) fn new(kind: SamplerKind, schedule: ScheduleKind, noise: &NoiseConfig, steps: usize) -> Result<Self> {
        let family = Family::of(kind);
        // What reads ᾱ from the table can have it 0; what goes by σ needs that finite.
        let finite = !family.uses_alphas() || schedule.spacing().is_none();
        let table = Table::new(noise, finite);
        let spacing = schedule.spacing().unwrap_or(noise.spacing);

        let (mut timesteps, sigmas) = match schedule {
            ScheduleKind::Leading | ScheduleKind::Trailing | ScheduleKind::Linspace => {
                let timesteps = spaced(family, spacing, noise, steps)?;
                let sigma = |&t: &f64| match family {
                    Family::KDiffusion => table.sigma_between(t),
                    _ => table.sigma_at(t),
                };
                let sigmas = timesteps.iter().map(sigma).collect();
                (timesteps, sigmas)
            }
            ScheduleKind::Karras | ScheduleKind::Exponential => {
                let (low, high) = if family.is_multistep() || family == Family::KDiffusion {
                    table.ends()
                } else {
                    let spaced = spaced(family, spacing, noise, steps)?;
                    (table.sigma_at(spaced[steps - 1]), table.sigma_at(spaced[0]))
                };
                let low = noise.sigma_min.unwrap_or(low);
                let high = noise.sigma_max.unwrap_or(high);
                let sigmas = match schedule {
                    ScheduleKind::Karras => karras(low, high, steps),
                    _ => exponential(low, high, steps),
                };
                (sigmas.iter().map(|&sigma| table.timestep_at(sigma)).collect(), sigmas)
            }
            ScheduleKind::SgmUniform => sgm_uniform(&table, steps),
            ScheduleKind::Ays => align_your_steps(&table, steps),
        };

        round(&mut timesteps, family, schedule, noise);
        let last = match noise.final_sigma {
            FinalSigma::Min if kind == SamplerKind::Euler || family.is_multistep() => f64::from(table.sigmas[0]),
            _ => 0.0,
        };
        let alphas = if family.uses_alphas() {
            alphas(family, schedule, noise, &table, &timesteps, &sigmas)
        } else {
            Vec::new()
        };
        let sigmas: Vec<f32> = sigmas.into_iter().chain([last]).map(|sigma| sigma as f32).collect();
        if !sigmas[..steps].is_sorted_by(|a, b| a > b) || sigmas[steps] > sigmas[steps - 1] {
            let reason = format!("the noise levels of {steps} {schedule} steps do not fall with {kind}; take fewer");
            return Err(Error::invalid("steps", reason));
        }
        let timesteps = timesteps.into_iter().map(|t| t as f32).collect();
        Ok(Self { timesteps, sigmas, alphas, table })
    }
}

impl Table {
    fn new(noise: &NoiseConfig, finite: bool) -> Self {
        let mut alphas = noise.alphas_cumprod();
        let level = |alpha: &f32| ((1.0 - alpha) / alpha).sqrt();
        let mut sigmas: Vec<f32> = alphas.iter().map(level).collect();
        if noise.rescale_betas_zero_snr && finite {
            // As near to noise alone as keeps σ finite. (The square root is 4095.99988, which `f32`
            // rounds down and the reference up; steps from there multiply the difference.)
            let last = alphas.len() - 1;
            alphas[last] = 1.0 / 16_777_216.0;
            sigmas[last] = 4096.0;
        }
        let log_sigmas = sigmas.iter().map(|&sigma| ln(sigma)).collect();
        Self { alphas, sigmas, log_sigmas }
    }

    fn ends(&self) -> (f64, f64) {
        (f64::from(self.sigmas[0]), f64::from(self.sigmas[self.sigmas.len() - 1]))
    }

    /// `numpy.interp` over the training steps.
    fn sigma_at(&self, timestep: f64) -> f64 {
        let last = self.sigmas.len() - 1;
        let low = timestep.clamp(0.0, last as f64).floor() as usize;
        let from = f64::from(self.sigmas[low]);
        if low == last || timestep <= low as f64 {
            return from;
        }
        let to = f64::from(self.sigmas[low + 1]);
        (to - from) * (timestep - low as f64) + from
    }

    /// `_sigma_to_t` of the schedulers: linear between the logarithms of two training levels.
    pub(super) fn timestep_at(&self, sigma: f64) -> f64 {
        let log_sigma = libm::log(sigma.max(1e-10));
        let above = self.log_sigmas.partition_point(|&level| f64::from(level) <= log_sigma);
        let low = above.saturating_sub(1).min(self.log_sigmas.len() - 2);
        let (from, to) = (self.log_sigmas[low], self.log_sigmas[low + 1]);
        let weight = (f64::from(from) - log_sigma) / f64::from(from - to);
        let weight = weight.clamp(0.0, 1.0);
        (1.0 - weight) * low as f64 + weight * (low + 1) as f64
    }

    /// The inverse of [`Table::timestep_at`].
    fn sigma_between(&self, timestep: f64) -> f64 {
        let last = self.log_sigmas.len() - 1;
        let timestep = timestep.clamp(0.0, last as f64);
        let low = (timestep.floor() as usize).min(last - 1);
        let (from, to) = (f64::from(self.log_sigmas[low]), f64::from(self.log_sigmas[low + 1]));
        libm::exp(from + (to - from) * (timestep - low as f64))
    }
}

/// The training steps of a spacing, noisiest first.
fn spaced(family: Family, spacing: Spacing, noise: &NoiseConfig, steps: usize) -> Result<Vec<f64>> {
    let train_steps = noise.train_steps;
    if family == Family::Lcm {
        return teacher_steps(noise, steps);
    }
    if steps > train_steps {
        let reason = format!("{steps} are more than the model's {train_steps} training steps");
        return Err(Error::invalid("steps", reason));
    }
    // The multistep schedulers space one step more and leave the last, least noisy one out.
    let extra = usize::from(family.is_multistep());
    Ok(match spacing {
        Spacing::Leading => {
            let stride = train_steps / (steps + extra);
            (extra..steps + extra).rev().map(|i| (i * stride + noise.steps_offset) as f64).collect()
        }
        Spacing::Trailing => {
            // The stride as `numpy.arange` has it, for the same rounding.
            let first = train_steps as f64;
            let stride = (first - first / steps as f64) - first;
            (0..steps).map(|i| (first + i as f64 * stride).round_ties_even() - 1.0).collect()
        }
        Spacing::Linspace => {
            let last = (train_steps - 1) as f64;
            if family == Family::KDiffusion {
                return Ok(linspace(last, 0.0, steps));
            }
            let spaced = linspace(0.0, last, steps + extra);
            let whole = family.is_multistep() || family == Family::Ddim;
            spaced[extra..]
                .iter()
                .rev()
                .map(|&t| if whole { t.round_ties_even() } else { f64::from(t as f32) })
                .collect()
        }
    })
}

/// The steps of a latent consistency model: evenly chosen ones of those that its teacher took
/// (`LCMScheduler.set_timesteps`).
fn teacher_steps(noise: &NoiseConfig, steps: usize) -> Result<Vec<f64>> {
    let count = noise.original_inference_steps;
    if steps > count {
        let reason = format!("lcm takes at most {count} steps, those of the model's training");
        return Err(Error::invalid("steps", reason));
    }
    let stride = noise.train_steps / count;
    let width = count as f64 / steps as f64;
    Ok((0..steps).map(|i| (i as f64 * width).floor() as usize).map(|i| ((count - i) * stride - 1) as f64).collect())
}

/// Levels whose 7th root falls in equal steps: Karras et al., "Elucidating the design space of
/// diffusion-based generative models" (2022), equation 5.
fn karras(low: f64, high: f64, steps: usize) -> Vec<f64> {
    const RHO: f64 = 7.0;
    let (low, high) = (libm::pow(low, 1.0 / RHO), libm::pow(high, 1.0 / RHO));
    linspace(0.0, 1.0, steps).into_iter().map(|ramp| libm::pow(high + ramp * (low - high), RHO)).collect()
}

/// Levels whose logarithm falls in equal steps.
fn exponential(low: f64, high: f64, steps: usize) -> Vec<f64> {
    linspace(libm::log(high), libm::log(low), steps).into_iter().map(libm::exp).collect()
}

/// `n + 1` training steps at equal distances from the noisiest to the first, without the last, as
/// the scheduler of that name does elsewhere (it comes from Stability's generative-models).
fn sgm_uniform(table: &Table, steps: usize) -> (Vec<f64>, Vec<f64>) {
    let mut timesteps = linspace((table.sigmas.len() - 1) as f64, 0.0, steps + 1);
    timesteps.pop();
    let sigmas = timesteps.iter().map(|&t| table.sigma_between(t)).collect();
    (timesteps, sigmas)
}

/// Sabour et al., "Align your steps" (2024), the table for Stable Diffusion 1.5.
///
/// Ten steps are the training steps that its authors published, at the model's own noise levels;
/// another number of steps interpolates the logarithm of those levels, with the model's lowest as
/// the eleventh, as the authors propose.
fn align_your_steps(table: &Table, steps: usize) -> (Vec<f64>, Vec<f64>) {
    const TIMESTEPS: [f64; 11] = [999.0, 850.0, 736.0, 645.0, 545.0, 455.0, 343.0, 233.0, 124.0, 24.0, 0.0];
    let scale = (table.sigmas.len() - 1) as f64 / 999.0;
    let knots = TIMESTEPS.map(|t| (t * scale).round());
    let levels = knots.map(|t| table.sigma_at(t));
    if steps == TIMESTEPS.len() - 1 {
        return (knots[..steps].to_vec(), levels[..steps].to_vec());
    }

    let logs = levels.map(libm::log);
    let mut places = linspace(0.0, (TIMESTEPS.len() - 1) as f64, steps + 1);
    places.pop();
    let sigmas: Vec<f64> = places
        .into_iter()
        .map(|place| {
            let low = place.floor() as usize;
            libm::exp(logs[low] + (logs[low + 1] - logs[low]) * (place - low as f64))
        })
        .collect();
    (sigmas.iter().map(|&sigma| table.timestep_at(sigma)).collect(), sigmas)
}

/// Makes whole training steps where the scheduler of a family does; the levels stay.
fn round(timesteps: &mut [f64], family: Family, schedule: ScheduleKind, noise: &NoiseConfig) {
    use super::noise_config::BetaSchedule::SquaredcosCapV2;
    let rule: fn(f64) -> f64 = match (family, schedule) {
        (Family::Dpm2 | Family::UniPc, ScheduleKind::Karras) => f64::round_ties_even,
        (Family::Multistep, ScheduleKind::Karras) if noise.beta_schedule != SquaredcosCapV2 => f64::round_ties_even,
        (Family::Multistep, ScheduleKind::Karras) | (Family::Multistep | Family::UniPc, ScheduleKind::Exponential) => {
            f64::trunc
        }
        _ => return,
    };
    timesteps.iter_mut().for_each(|t| *t = rule(*t));
}

/// ᾱ before and after each step.
fn alphas(
    family: Family,
    schedule: ScheduleKind,
    noise: &NoiseConfig,
    table: &Table,
    timesteps: &[f64],
    sigmas: &[f64],
) -> Vec<(f32, f32)> {
    let end = if noise.set_alpha_to_one { 1.0 } else { table.alphas[0] };
    let steps = timesteps.len();
    if schedule.spacing().is_none() {
        let alpha = |sigma: &f64| (1.0 / (sigma * sigma + 1.0)) as f32;
        let levels: Vec<f32> = sigmas.iter().map(alpha).chain([end]).collect();
        return levels.windows(2).map(|pair| (pair[0], pair[1])).collect();
    }

    let last = table.alphas.len() - 1;
    let at = |timestep: f64| table.alphas[(timestep as usize).min(last)];
    let stride = (noise.train_steps / steps) as f64;
    (0..steps)
        .map(|i| {
            let after = match family {
                Family::Lcm => timesteps.get(i + 1).copied(),
                // DDIM goes back by whole strides, whatever the spacing.
                _ => Some(timesteps[i] - stride).filter(|&t| t >= 0.0),
            };
            (at(timesteps[i]), after.map_or(end, at))
        })
        .collect()
}

/// `numpy.linspace`: `count` values at equal distances, both ends exact.
fn linspace(start: f64, end: f64, count: usize) -> Vec<f64> {
    let step = (end - start) / count.saturating_sub(1).max(1) as f64;
    let mut values: Vec<f64> = (0..count).map(|i| i as f64 * step + start).collect();
    if count > 1 {
        values[count - 1] = end;
    }
    values
}
