//! Denoising diffusion implicit models.

use super::noise_config::Prediction;
use super::run::{Run, zip};
use crate::error::Result;

/// Song, Meng and Ermon, "Denoising diffusion implicit models" (2020), equation 12; diffusers'
/// `DDIMScheduler`. Noise is drawn only if [`NoiseConfig::eta`](super::NoiseConfig::eta) is above 0.
pub(super) fn sample(run: &mut Run<'_>) -> Result<()> {
    for step in run.steps() {
        let (alpha, alpha_next) = run.sampler.schedule.alphas[step];
        let (keep, add) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let timestep = run.timestep(step);
        let (mut denoised, output) = run.network.denoise_mixed(run.x, (keep, add), timestep)?;
        let direction = match run.network.prediction() {
            Prediction::Epsilon => output,
            Prediction::V => zip(run.x, &output, |x, v| keep * v + add * x),
            Prediction::Sample => zip(run.x, &output, |x, x0| (x - keep * x0) / add),
        };
        run.network.clip(&mut denoised);

        let variance = (1.0 - alpha_next) / (1.0 - alpha) * (1.0 - alpha / alpha_next);
        let spread = run.sampler.noise.eta * variance.sqrt();
        let (keep_next, add_next) = (alpha_next.sqrt(), (1.0 - alpha_next - spread * spread).sqrt());
        let mut latents = zip(&denoised, &direction, |x0, noise| keep_next * x0 + add_next * noise);
        if run.sampler.noise.eta > 0.0 {
            let noise = run.network.noise(latents.len())?;
            latents = zip(&latents, &noise, |x, noise| x + spread * noise);
        }
        run.finish(step, latents, &denoised)?;
    }
    Ok(())
}
