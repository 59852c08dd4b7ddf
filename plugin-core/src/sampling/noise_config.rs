//! What a denoiser was trained on: how much noise each training step adds, and what it predicts.
//!
//! The numbers are made as the reference makes them, in the same precision and order (`f32` with a
//! running product in `f64`), because every sampler's trajectory starts from these tables.

use crate::error::{Error, Result};

/// Largest number of training steps that is believed. Every published model has 1000.
const TRAIN_STEPS_MAX: usize = 100_000;

/// What the network's output means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prediction {
    /// The noise in the input (Stable Diffusion 1, and 2 at 512).
    #[default]
    Epsilon,
    /// The velocity, √ᾱ·noise − √(1−ᾱ)·picture (Salimans and Ho 2022; Stable Diffusion 2 at 768).
    V,
    /// The picture without noise.
    Sample,
}

/// How the noise that a training step adds grows from the first step to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BetaSchedule {
    /// In equal steps.
    Linear,
    /// The square root in equal steps (latent diffusion).
    #[default]
    ScaledLinear,
    /// From a squared cosine of the noise level, at most 0.999 (Nichol and Dhariwal 2021).
    SquaredcosCapV2,
}

/// Which of the training steps are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spacing {
    /// Multiples of a whole stride from 0 up, plus an offset: the first step is not the noisiest.
    #[default]
    Leading,
    /// Multiples of a stride from the noisiest step down, which is always visited.
    Trailing,
    /// Equal distances from the noisiest step to the first.
    Linspace,
}

/// Where a schedule ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinalSigma {
    /// At no noise.
    #[default]
    Zero,
    /// At the noise of the first training step.
    Min,
}

/// A denoiser's training noise, and the choices of a scheduler's configuration that go with it.
///
/// The default is the original release of Stable Diffusion 1.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseConfig {
    /// How many training steps there are.
    pub train_steps: usize,
    /// Variance that the first training step adds, in (0, 1).
    pub beta_start: f64,
    /// Variance that the last training step adds, in (0, 1).
    pub beta_end: f64,
    /// How the variance grows in between.
    pub beta_schedule: BetaSchedule,
    /// The variance of every training step, in place of the three fields above.
    pub trained_betas: Option<Vec<f64>>,
    /// Whether the variances are rescaled so that the last step holds noise only: the
    /// zero-terminal-SNR schedule of Lin et al., "Common diffusion noise schedules and sample steps
    /// are flawed" (2023), which wants [`Prediction::V`] and [`Spacing::Trailing`].
    pub rescale_betas_zero_snr: bool,
    /// What the network predicts.
    pub prediction: Prediction,
    /// Which training steps are visited, unless the schedule of a run says otherwise.
    pub spacing: Spacing,
    /// Added to the steps of [`Spacing::Leading`].
    pub steps_offset: usize,
    /// DDIM and LCM: whether "before the first training step" means no noise at all, rather than
    /// the noise of the first step.
    pub set_alpha_to_one: bool,
    /// Where the schedules of the multistep solvers and of Euler end.
    pub final_sigma: FinalSigma,
    /// Noise level at which Karras and exponential schedules end, in place of the table's.
    pub sigma_min: Option<f64>,
    /// Noise level at which Karras and exponential schedules begin, in place of the table's.
    pub sigma_max: Option<f64>,
    /// DDIM, Heun and LCM: the predicted picture is clamped to plus or minus this.
    pub clip_sample: Option<f32>,
    /// Multistep solvers: whether the last steps are of lower order, which is steadier when there
    /// are few.
    pub lower_order_final: bool,
    /// DPM++ 2M: whether the last step is of first order whatever the number of steps.
    pub euler_at_final: bool,
    /// DDIM: share of the noise that is drawn anew at each step, from 0 (none) to 1 (as in DDPM).
    pub eta: f32,
    /// LCM: how many steps the teacher took, of which a run visits some.
    pub original_inference_steps: usize,
    /// LCM: factor on the training step in the boundary conditions.
    pub timestep_scaling: f32,
}

impl Default for NoiseConfig {
    fn default() -> Self {
        Self {
            train_steps: 1000,
            beta_start: 0.000_85,
            beta_end: 0.012,
            beta_schedule: BetaSchedule::ScaledLinear,
            trained_betas: None,
            rescale_betas_zero_snr: false,
            prediction: Prediction::Epsilon,
            spacing: Spacing::Leading,
            steps_offset: 1,
            set_alpha_to_one: false,
            final_sigma: FinalSigma::Zero,
            sigma_min: None,
            sigma_max: None,
            clip_sample: None,
            lower_order_final: true,
            euler_at_final: false,
            eta: 0.0,
            original_inference_steps: 50,
            timestep_scaling: 10.0,
        }
    }
}

impl NoiseConfig {
    /// Checks every field; the error names the first that cannot be.
    ///
    /// Whatever passes can be turned into tables without a division by zero or an overflow.
    pub fn validate(&self) -> Result<()> {
        self.problem().map_or(Ok(()), |(field, reason)| Err(Error::InvalidRequest { field, reason }))
    }

    /// The first field that cannot be, and why.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        let beta = |value: f64| value > 0.0 && value < 1.0;
        let level = |value: Option<f64>| value.is_none_or(|v| v > 0.0 && v < 1e6);

        if !(2..=TRAIN_STEPS_MAX).contains(&self.train_steps) {
            return Some(("num_train_timesteps", format!("{} is not in 2..={TRAIN_STEPS_MAX}", self.train_steps)));
        }
        if let Some(betas) = &self.trained_betas {
            if betas.len() != self.train_steps {
                let reason = format!("{} values for {} training steps", betas.len(), self.train_steps);
                return Some(("trained_betas", reason));
            }
            if let Some(bad) = betas.iter().find(|&&b| !beta(b)) {
                return Some(("trained_betas", format!("{bad} is not between 0 and 1")));
            }
        }
        if !beta(self.beta_start) {
            return Some(("beta_start", format!("{} is not between 0 and 1", self.beta_start)));
        }
        if !beta(self.beta_end) || self.beta_end < self.beta_start {
            let reason = format!("{} is not between beta_start, {}, and 1", self.beta_end, self.beta_start);
            return Some(("beta_end", reason));
        }
        if self.steps_offset >= self.train_steps {
            let reason = format!("{} is past the last training step", self.steps_offset);
            return Some(("steps_offset", reason));
        }
        if !level(self.sigma_min) {
            return Some(("sigma_min", "not a positive noise level".into()));
        }
        if !level(self.sigma_max) {
            return Some(("sigma_max", "not a positive noise level".into()));
        }
        if let (Some(min), Some(max)) = (self.sigma_min, self.sigma_max)
            && min >= max
        {
            return Some(("sigma_min", format!("{min} is not below sigma_max, {max}")));
        }
        if self.clip_sample.is_some_and(|range| !(range > 0.0 && range.is_finite())) {
            return Some(("clip_sample_range", "not a positive number".into()));
        }
        if !(0.0..=1.0).contains(&self.eta) {
            return Some(("eta", format!("{} is not in 0..=1", self.eta)));
        }
        if !(1..=self.train_steps).contains(&self.original_inference_steps) {
            let reason = format!("{} is not in 1..={}", self.original_inference_steps, self.train_steps);
            return Some(("original_inference_steps", reason));
        }
        if !(self.timestep_scaling > 0.0 && self.timestep_scaling < 1e6) {
            return Some(("timestep_scaling", format!("{} is not positive", self.timestep_scaling)));
        }
        // A zero-terminal-SNR schedule ends at 0, every other one above it.
        let alphas = self.alphas_cumprod();
        let positive = alphas.len() - usize::from(self.rescale_betas_zero_snr);
        if !alphas.is_sorted_by(|a, b| a > b) || !alphas[..positive].iter().all(|&a| a > 1e-12 && a < 1.0) {
            let reason = "the noise does not grow steadily from each training step to the next";
            let field = if self.trained_betas.is_some() { "trained_betas" } else { "beta_schedule" };
            return Some((field, reason.into()));
        }
        None
    }

    /// ᾱ, the share of the picture's variance that is left after each training step.
    ///
    /// With a zero-terminal-SNR schedule the last is 0.
    pub(super) fn alphas_cumprod(&self) -> Vec<f32> {
        let betas = self.betas();
        if !self.rescale_betas_zero_snr {
            return cumulative_product(betas.iter().map(|beta| 1.0 - beta));
        }

        // Algorithm 1 of Lin et al. 2023, by way of `rescale_zero_terminal_snr` in diffusers.
        let mut roots = cumulative_product(betas.iter().map(|beta| 1.0 - beta));
        roots.iter_mut().for_each(|value| *value = value.sqrt());
        let (first, last) = (roots[0], roots[roots.len() - 1]);
        let factor = first / (first - last);
        let squares: Vec<f32> = roots.iter().map(|root| (root - last) * factor).map(|root| root * root).collect();
        let ratios = squares.windows(2).map(|pair| pair[1] / pair[0]);
        let alphas = std::iter::once(squares[0]).chain(ratios);
        cumulative_product(alphas.map(|alpha| 1.0 - (1.0 - alpha)))
    }

    /// log √(ᾱ / (1−ᾱ)) of the noisiest training step.
    pub(super) fn half_log_snr_min(&self) -> f64 {
        let alpha = self.alphas_cumprod().last().map_or(1.0, |&alpha| f64::from(alpha));
        0.5 * libm::log(alpha / (1.0 - alpha))
    }

    fn betas(&self) -> Vec<f32> {
        if let Some(betas) = &self.trained_betas {
            return betas.iter().map(|&beta| beta as f32).collect();
        }
        match self.beta_schedule {
            BetaSchedule::Linear => linspace_f32(self.beta_start as f32, self.beta_end as f32, self.train_steps),
            BetaSchedule::ScaledLinear => {
                let (start, end) = (self.beta_start.sqrt() as f32, self.beta_end.sqrt() as f32);
                linspace_f32(start, end, self.train_steps).into_iter().map(|b| b * b).collect()
            }
            BetaSchedule::SquaredcosCapV2 => {
                let bar = |step: usize| {
                    let time = step as f64 / self.train_steps as f64;
                    let cos = libm::cos((time + 0.008) / 1.008 * std::f64::consts::PI / 2.0);
                    cos * cos
                };
                (0..self.train_steps).map(|step| (1.0 - bar(step + 1) / bar(step)).min(0.999) as f32).collect()
            }
        }
    }
}

/// `torch.linspace` in `f32`: from the start in the first half, from the end in the second, with a
/// fused multiplication and addition.
fn linspace_f32(start: f32, end: f32, count: usize) -> Vec<f32> {
    let step = (end - start) / (count - 1) as f32;
    (0..count)
        .map(
            |i| {
                if i < count / 2 { step.mul_add(i as f32, start) } else { (-step).mul_add((count - i - 1) as f32, end) }
            },
        )
        .collect()
}

/// `torch.cumprod`: the running product is kept in `f64`.
fn cumulative_product(factors: impl Iterator<Item = f32>) -> Vec<f32> {
    factors
        .scan(1.0_f64, |product, factor| {
            *product *= f64::from(factor);
            Some(*product as f32)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```python
    /// betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    /// torch.cumprod(1 - betas, 0)[[0, 1, 499, 500, 999]]
    /// rescale_zero_terminal_snr(betas) → torch.cumprod(1 - …, 0)[[0, 500, 998, 999]]
    /// ```
    #[test]
    fn tables_are_those_of_torch() {
        let at = |noise: &NoiseConfig, steps: &[usize]| {
            let alphas = noise.alphas_cumprod();
            steps.iter().map(|&step| alphas[step]).collect::<Vec<_>>()
        };
        let noise = NoiseConfig::default();
        assert_eq!(at(&noise, &[0, 1, 499, 500, 999]), [0.99915, 0.998296, 0.27766943, 0.27633247, 0.004660095]);
        // torch's square root differs from the exact one in the last place.
        let rescaled = NoiseConfig { rescale_betas_zero_snr: true, ..noise };
        for (found, expected) in at(&rescaled, &[0, 500, 998]).into_iter().zip([0.99915, 0.24101864, 1.9679634e-7]) {
            assert!((found / expected - 1.0_f32).abs() < 1e-6, "{found} vs {expected}");
        }
        assert_eq!(at(&rescaled, &[999]), [0.0]);
    }

    /// `betas_for_alpha_bar(1000)` and `torch.linspace(0.0001, 0.02, 1000)`, as products.
    #[test]
    fn other_tables_are_those_of_torch() {
        let cosine = NoiseConfig { beta_schedule: BetaSchedule::SquaredcosCapV2, ..NoiseConfig::default() };
        let alphas = cosine.alphas_cumprod();
        assert_eq!([alphas[0], alphas[500], alphas[999]], [0.9999587, 0.49228504, 2.428735e-09]);
        let linear = NoiseConfig {
            beta_schedule: BetaSchedule::Linear,
            beta_start: 0.0001,
            beta_end: 0.02,
            ..NoiseConfig::default()
        };
        let alphas = linear.alphas_cumprod();
        assert_eq!([alphas[0], alphas[500], alphas[999]], [0.9999, 0.07779665, 4.0358304e-05]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        type Change = fn(&mut NoiseConfig);
        let cases: [(&str, Change); 8] = [
            ("num_train_timesteps", |noise| noise.train_steps = 0),
            ("beta_start", |noise| noise.beta_start = f64::NAN),
            ("beta_end", |noise| noise.beta_end = f64::INFINITY),
            ("beta_schedule", |noise| (noise.beta_start, noise.beta_end) = (1e-12, 1e-11)),
            ("eta", |noise| noise.eta = f32::NAN),
            ("sigma_min", |noise| (noise.sigma_min, noise.sigma_max) = (Some(3.0), Some(2.0))),
            ("clip_sample_range", |noise| noise.clip_sample = Some(f32::NAN)),
            ("timestep_scaling", |noise| noise.timestep_scaling = f32::INFINITY),
        ];
        for (field, change) in cases {
            let mut noise = NoiseConfig::default();
            change(&mut noise);
            let error = noise.validate().expect_err(field).to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
