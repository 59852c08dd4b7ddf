//! DPM2: a half step to the geometric middle of two levels, whose slope then serves for the whole.

use super::Sampler;
use super::euler::euler_step;
use super::run::{Run, exp, ln, zip};
use crate::error::Result;

/// After DPM-Solver-2 (Lu et al. 2022), as diffusers' `KDPM2DiscreteScheduler`: the last step is
/// Euler's. (k-diffusion's `sample_dpm_2` takes another middle.)
pub(super) fn sample(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (sigma, next) = (run.sigma(step), run.sigma(step + 1));
        let denoised = run.network.denoise(run.x, sigma, run.timestep(step))?;
        let Some((middle, timestep)) = midpoint(run.sampler, step) else {
            let latents = euler_step(run.x, &denoised, sigma, next - sigma);
            run.finish(step, latents, &denoised)?;
            continue;
        };

        let reached = euler_step(run.x, &denoised, sigma, middle - sigma);
        let there = run.network.denoise(&reached, middle, timestep)?;
        let slope = zip(&reached, &there, |x, denoised| (x - denoised) / middle);
        let latents = zip(run.x, &slope, |x, slope| x + slope * (next - sigma));
        run.finish(step, latents, &there)?;
    }
    Ok(())
}

/// Level and training step of a step's second evaluation; the step down to no noise has none.
pub(super) fn midpoint(sampler: &Sampler, step: usize) -> Option<(f32, f32)> {
    let (sigma, next) = (sampler.schedule.sigmas[step], sampler.schedule.sigmas[step + 1]);
    if next == 0.0 {
        return None;
    }
    let (from, to) = (ln(sigma), ln(next));
    let middle = exp(from - (from - to) * 0.5);
    Some((middle, sampler.schedule.table.timestep_at(f64::from(middle)) as f32))
}
