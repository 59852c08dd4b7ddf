//! Latent consistency models: each step jumps to a whole picture, and noise takes it back part of
//! the way.

use super::run::{Run, zip};
use crate::error::Result;

/// Standard deviation of the data that the boundary conditions assume.
const SIGMA_DATA: f32 = 0.5;

/// Luo et al., "Latent consistency models" (2023), algorithm 3; diffusers' `LCMScheduler`. Noise is
/// drawn at each step but the last.
pub(super) fn sample(run: &mut Run<'_>) -> Result<()> {
    let steps = run.steps();
    for step in steps.clone() {
        let (alpha, alpha_next) = run.sampler.schedule.alphas[step];
        let timestep = run.timestep(step);
        let shares = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (mut picture, _) = run.network.denoise_mixed(run.x, shares, timestep)?;
        run.network.clip(&mut picture);

        // So that the answer at no noise is the input itself.
        let scaled = timestep * run.sampler.noise.timestep_scaling;
        let square = scaled * scaled + SIGMA_DATA * SIGMA_DATA;
        let (skip, out) = (SIGMA_DATA * SIGMA_DATA / square, scaled / square.sqrt());
        let denoised = zip(&picture, run.x, |picture, x| out * picture + skip * x);
        if step + 1 == steps.end {
            run.finish(step, denoised.clone(), &denoised)?;
            continue;
        }

        let noise = run.network.noise(denoised.len())?;
        let (keep, add) = (alpha_next.sqrt(), (1.0 - alpha_next).sqrt());
        run.finish(step, zip(&denoised, &noise, |x0, noise| keep * x0 + add * noise), &denoised)?;
    }
    Ok(())
}
