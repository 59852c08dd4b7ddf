//! Heun's method: an Euler step, and then the mean of the slopes at its two ends.

use super::euler::euler_step;
use super::run::{Run, zip};
use crate::error::Result;

/// Karras et al. 2022, algorithm 1; diffusers' `HeunDiscreteScheduler`. The last step is Euler's.
pub(super) fn sample(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (sigma, next) = (run.sigma(step), run.sigma(step + 1));
        let denoised = run.network.denoise(run.x, sigma, run.timestep(step))?;
        let reached = euler_step(run.x, &denoised, sigma, next - sigma);
        if next == 0.0 {
            run.finish(step, reached, &denoised)?;
            continue;
        }

        let there = run.network.denoise(&reached, next, run.timestep(step + 1))?;
        let first = zip(run.x, &denoised, |x, denoised| (x - denoised) / sigma);
        let second = zip(&reached, &there, |x, denoised| (x - denoised) / next);
        let slope = zip(&first, &second, |first, second| (first + second) / 2.0);
        let latents = zip(run.x, &slope, |x, slope| x + slope * (next - sigma));
        run.finish(step, latents, &there)?;
    }
    Ok(())
}
