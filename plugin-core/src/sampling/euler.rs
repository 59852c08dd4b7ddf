//! Euler's method, plain and ancestral.

use super::run::{Run, zip};
use crate::error::Result;

/// Karras et al. 2022, algorithm 1 without its correction; diffusers' `EulerDiscreteScheduler`.
pub(super) fn deterministic(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (sigma, next) = (run.sigma(step), run.sigma(step + 1));
        let denoised = run.network.denoise(run.x, sigma, run.timestep(step))?;
        let latents = euler_step(run.x, &denoised, sigma, next - sigma);
        run.finish(step, latents, &denoised)?;
    }
    Ok(())
}

/// A step down to less noise than asked, and new noise for the rest; diffusers'
/// `EulerAncestralDiscreteScheduler`. Noise is drawn at each step, the last included.
pub(super) fn ancestral(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (sigma, next) = (run.sigma(step), run.sigma(step + 1));
        let denoised = run.network.denoise(run.x, sigma, run.timestep(step))?;
        let (down, up) = ancestral_levels(sigma, next);
        let latents = euler_step(run.x, &denoised, sigma, down - sigma);
        let noise = run.network.noise(latents.len())?;
        run.finish(step, zip(&latents, &noise, |x, noise| x + noise * up), &denoised)?;
    }
    Ok(())
}

/// Along the slope at `sigma`.
pub(super) fn euler_step(x: &[f32], denoised: &[f32], sigma: f32, change: f32) -> Vec<f32> {
    zip(x, denoised, |x, denoised| x + (x - denoised) / sigma * change)
}

/// The level to step down to and the noise to add, which together have the variance of `to`
/// (`get_ancestral_step` in k-diffusion, eta 1).
pub(super) fn ancestral_levels(from: f32, to: f32) -> (f32, f32) {
    let (from2, to2) = (from * from, to * to);
    let up = (to2 * (from2 - to2) / from2).sqrt();
    // From a level far above, all of the variance is new, and rounding may make it more than all.
    ((to2 - up * up).max(0.0).sqrt(), up)
}
