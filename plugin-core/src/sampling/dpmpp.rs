//! DPM-Solver++ (Lu et al., "DPM-Solver++: fast solver for guided sampling of diffusion
//! probabilistic models", 2022): exponential integrators that follow the predicted picture.

use super::Sampler;
use super::euler::{ancestral_levels, euler_step};
use super::run::{Run, exp, exp_m1, half_log_snr, ln, shares, zip};
use crate::error::Result;

/// Fewer steps than this end with one of first order, if the configuration wants that.
const FEW_STEPS: usize = 15;

/// Second order, multistep, midpoint: `dpmsolver++` of diffusers' `DPMSolverMultistepScheduler`.
pub(super) fn multistep(run: &mut Run<'_>) -> Result<()> {
    let mut before: Option<Picture> = None;
    for step in run.steps() {
        let picture = Picture::at(run, step)?;
        let shares_next = shares(run.sigma(step + 1));
        let h = half_log_snr(shares_next) - picture.lambda;
        let (keep, add) = (shares_next.0, shares_next.1 / picture.shares.1);
        let gain = keep * (exp(-h) - 1.0);

        let first = zip(run.x, &picture.denoised, |x, x0| add * x - gain * x0);
        let latents = match before.take_if(|_| is_second_order(run, step)) {
            None => first,
            Some(before) => {
                let slope = before.slope_to(&picture, h);
                zip(&first, &slope, |x, slope| x - 0.5 * gain * slope)
            }
        };
        run.finish(step, latents, &picture.denoised)?;
        before = Some(picture);
    }
    Ok(())
}

/// The same for the stochastic equation: `sde-dpmsolver++` of the same class. Noise is drawn at each
/// step, the last included.
pub(super) fn multistep_sde(run: &mut Run<'_>) -> Result<()> {
    let mut before: Option<Picture> = None;
    for step in run.steps() {
        let picture = Picture::at(run, step)?;
        let noise = run.network.noise(run.x.len())?;
        let shares_next = shares(run.sigma(step + 1));
        let h = half_log_snr(shares_next) - picture.lambda;
        let decay = shares_next.1 / picture.shares.1 * exp(-h);
        let gain = shares_next.0 * (1.0 - exp(-2.0 * h));
        let spread = shares_next.1 * (1.0 - exp(-2.0 * h)).sqrt();

        let first = zip(run.x, &picture.denoised, |x, x0| decay * x + gain * x0);
        let latents = match before.take_if(|_| is_second_order(run, step)) {
            None => first,
            Some(before) => {
                let slope = before.slope_to(&picture, h);
                zip(&first, &slope, |x, slope| x + 0.5 * gain * slope)
            }
        };
        let latents = zip(&latents, &noise, |x, noise| x + spread * noise);
        run.finish(step, latents, &picture.denoised)?;
        before = Some(picture);
    }
    Ok(())
}

/// Second order, singlestep, ancestral: `sample_dpmpp_2s_ancestral` of k-diffusion. The step down to
/// no noise is Euler's, and draws none.
pub(super) fn singlestep_ancestral(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (sigma, next) = (run.sigma(step), run.sigma(step + 1));
        let (down, up) = ancestral_levels(sigma, next);
        let mut denoised = run.network.denoise(run.x, sigma, run.timestep(step))?;
        let mut latents = match midpoint(run.sampler, step) {
            None => euler_step(run.x, &denoised, sigma, down - sigma),
            Some((middle, timestep)) => {
                let (start, end) = (-ln(sigma), -ln(down));
                let h = end - start;
                let reached = exponential_step(run.x, &denoised, middle / exp(-start), -h * 0.5);
                denoised = run.network.denoise(&reached, middle, timestep)?;
                exponential_step(run.x, &denoised, exp(-end) / exp(-start), -h)
            }
        };
        if next > 0.0 {
            let noise = run.network.noise(latents.len())?;
            latents = zip(&latents, &noise, |x, noise| x + noise * up);
        }
        run.finish(step, latents, &denoised)?;
    }
    Ok(())
}

/// Level and training step of the second evaluation in a step of [`singlestep_ancestral`].
pub(super) fn midpoint(sampler: &Sampler, step: usize) -> Option<(f32, f32)> {
    let (sigma, next) = (sampler.schedule.sigmas[step], sampler.schedule.sigmas[step + 1]);
    let (down, _) = ancestral_levels(sigma, next);
    if down == 0.0 {
        return None;
    }
    let (start, end) = (-ln(sigma), -ln(down));
    let middle = exp(-(start + 0.5 * (end - start)));
    Some((middle, sampler.schedule.table.timestep_at(f64::from(middle)) as f32))
}

fn exponential_step(x: &[f32], denoised: &[f32], ratio: f32, minus_h: f32) -> Vec<f32> {
    let gain = exp_m1(minus_h);
    zip(x, denoised, |x, denoised| ratio * x - gain * denoised)
}

/// Whether a step that has one before it uses it.
fn is_second_order(run: &Run<'_>, step: usize) -> bool {
    let noise = &run.sampler.noise;
    let steps = run.steps().end;
    let lower = noise.euler_at_final || noise.lower_order_final && steps < FEW_STEPS || run.sigma(step + 1) == 0.0;
    !(step + 1 == steps && lower)
}

/// What the network saw at the start of a step.
struct Picture {
    denoised: Vec<f32>,
    shares: (f32, f32),
    lambda: f32,
}

impl Picture {
    fn at(run: &mut Run<'_>, step: usize) -> Result<Self> {
        let shares = shares(run.sigma(step));
        let timestep = run.timestep(step);
        let (denoised, _) = run.network.denoise_mixed(run.x, shares, timestep)?;
        Ok(Self { denoised, shares, lambda: half_log_snr(shares) })
    }

    /// The change of the picture from this step to the next, for one of length `h`.
    fn slope_to(&self, next: &Self, h: f32) -> Vec<f32> {
        let weight = 1.0 / ((next.lambda - self.lambda) / h);
        zip(&next.denoised, &self.denoised, |next, before| weight * (next - before))
    }
}
