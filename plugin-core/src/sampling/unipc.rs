//! UniPC: a predictor of second order, and a corrector that uses the next evaluation once more.

use super::run::{Run, exp_m1, half_log_snr, shares, zip};
use crate::error::Result;

/// Zhao et al., "UniPC: a unified predictor-corrector framework for fast sampling of diffusion
/// models" (2023), with B₂(h) = eʰ − 1 and the picture as what is followed; diffusers'
/// `UniPCMultistepScheduler` with its defaults (`bh2`, order 2).
pub(super) fn sample(run: &mut Run<'_>) -> Result<()> {
    let steps = run.steps();
    let mut before: Option<Picture> = None;
    let mut last: Option<Step> = None;
    for step in steps.clone() {
        let shares_here = shares(run.sigma(step));
        let timestep = run.timestep(step);
        let (denoised, _) = run.network.denoise_mixed(run.x, shares_here, timestep)?;
        let corrected = match last.take() {
            Some(last) => {
                let corrected = last.correct(before.as_ref(), &denoised);
                before = Some(last.picture);
                corrected
            }
            None => run.x.clone(),
        };

        let next = run.sigma(step + 1);
        let is_last = step + 1 == steps.end;
        let lower = is_last && (run.sampler.noise.lower_order_final || next == 0.0);
        let picture = Picture { denoised, lambda: half_log_snr(shares_here) };
        let this = Step::new(corrected, picture, shares_here, shares(next));
        let latents = this.predict(before.as_ref().filter(|_| !lower));
        run.finish(step, latents, &this.picture.denoised)?;
        last = Some(this);
    }
    Ok(())
}

/// What the network saw at one level.
struct Picture {
    denoised: Vec<f32>,
    lambda: f32,
}

/// A step from one level to the next.
struct Step {
    x: Vec<f32>,
    picture: Picture,
    /// Factor on the latents.
    ratio: f32,
    /// Factor on pictures: √ᾱ · (e⁻ʰ − 1).
    gain: f32,
    h: f32,
}

impl Step {
    fn new(x: Vec<f32>, picture: Picture, here: (f32, f32), next: (f32, f32)) -> Self {
        let h = half_log_snr(next) - picture.lambda;
        Self { x, picture, ratio: next.1 / here.1, gain: next.0 * exp_m1(-h), h }
    }

    /// UniP of second order, or of first without a picture before.
    fn predict(&self, before: Option<&Picture>) -> Vec<f32> {
        let first = self.first_order();
        let Some(before) = before else {
            return first;
        };
        let slope = self.slope(before, self.distance(before));
        zip(&first, &slope, |x, slope| x - self.gain * (0.5 * slope))
    }

    /// UniC of the same order: the step again, now that the picture at its end is known.
    fn correct(&self, before: Option<&Picture>, there: &[f32]) -> Vec<f32> {
        let first = self.first_order();
        let change = zip(there, &self.picture.denoised, |there, here| there - here);
        let Some(before) = before else {
            return zip(&first, &change, |x, change| x - self.gain * (0.5 * change));
        };

        let distance = self.distance(before);
        let (old, new) = self.weights(distance);
        let slope = self.slope(before, distance);
        let sum = zip(&slope, &change, |slope, change| old * slope + new * change);
        zip(&first, &sum, |x, sum| x - self.gain * sum)
    }

    fn first_order(&self) -> Vec<f32> {
        zip(&self.x, &self.picture.denoised, |x, x0| self.ratio * x - self.gain * x0)
    }

    /// How far back a picture lies, in steps of this length.
    fn distance(&self, before: &Picture) -> f32 {
        (before.lambda - self.picture.lambda) / self.h
    }

    fn slope(&self, before: &Picture, distance: f32) -> Vec<f32> {
        zip(&before.denoised, &self.picture.denoised, |before, here| (before - here) / distance)
    }

    /// Weights of the corrector's two differences: the solution of the paper's equation 5,
    /// `[[1, 1], [distance, 1]] · weights = b`.
    fn weights(&self, distance: f32) -> (f32, f32) {
        let minus_h = -self.h;
        let growth = exp_m1(minus_h);
        let phi = growth / minus_h - 1.0;
        let b = (phi / growth, (phi / minus_h - 0.5) * 2.0 / growth);

        // By elimination with the larger pivot first, as LAPACK does it.
        if distance.abs() > 1.0 {
            let factor = 1.0 / distance;
            let new = (b.0 - factor * b.1) / (1.0 - factor);
            ((b.1 - new) / distance, new)
        } else {
            let new = (b.1 - distance * b.0) / (1.0 - distance);
            (b.0 - new, new)
        }
    }
}
