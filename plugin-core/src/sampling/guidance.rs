//! Classifier-free guidance.

use crate::error::{Error, Result};

/// Moves a prediction from what the empty (or negative) prompt gives towards, and past, what the
/// prompt gives: `out = uncond + scale · (cond − uncond)` (Ho and Salimans, "Classifier-free
/// diffusion guidance", 2022).
///
/// With `rescale` above 0, each picture's result is then brought back that share of the way to
/// the standard deviation of `cond`, against over-exposure (Lin et al. 2023, section 3.4; diffusers'
/// `rescale_noise_cfg`).
/// `pictures` says how many equal parts the slices hold, each with its own deviation.
pub fn guide(uncond: &[f32], cond: &[f32], scale: f32, rescale: f32, pictures: usize, out: &mut [f32]) -> Result<()> {
    let len = out.len();
    if uncond.len() != len || cond.len() != len || pictures == 0 || !len.is_multiple_of(pictures) {
        let found = format!("{} and {} into {len} of {pictures} pictures", uncond.len(), cond.len());
        return Err(Error::Internal(format!("guidance over slices of other lengths: {found}")));
    }

    for ((out, &uncond), &cond) in out.iter_mut().zip(uncond).zip(cond) {
        *out = uncond + scale * (cond - uncond);
    }
    if rescale > 0.0 && len > 0 {
        let size = len / pictures;
        for (out, cond) in out.chunks_exact_mut(size).zip(cond.chunks_exact(size)) {
            let ratio = deviation(cond) / deviation(out);
            for value in out {
                *value = rescale * (*value * ratio) + (1.0 - rescale) * *value;
            }
        }
    }
    Ok(())
}

/// The standard deviation with n − 1 in the denominator, as `torch.std`.
fn deviation(values: &[f32]) -> f32 {
    let count = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let squares = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
    (squares / (count - 1.0)).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```python
    /// u = torch.tensor([[1., 2., -1., 0.5], [0.25, -2., 3., 1.]])
    /// c = torch.tensor([[0.5, 2.5, -2., 1.], [1., 0., 2., -1.]])
    /// g = u + 7.5 * (c - u)
    /// r = g * (c.std(1, keepdim=True) / g.std(1, keepdim=True)); r = 0.7 * r + (1 - 0.7) * g
    /// ```
    #[test]
    fn matches_diffusers() {
        let uncond = [1.0, 2.0, -1.0, 0.5, 0.25, -2.0, 3.0, 1.0];
        let cond = [0.5, 2.5, -2.0, 1.0, 1.0, 0.0, 2.0, -1.0];
        let mut out = [0.0; 8];
        guide(&uncond, &cond, 7.5, 0.0, 2, &mut out).unwrap();
        assert_eq!(out, [-2.75, 5.75, -8.5, 4.25, 5.875, 13.0, -4.5, -14.0]);
        guide(&uncond, &cond, 7.5, 0.7, 2, &mut out).unwrap();
        let expected = [-1.370937, 2.866504, -4.23744, 2.11872, 2.211355, 4.89321, -1.693804, -5.269611];
        for (found, expected) in out.into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} vs {expected}");
        }
    }

    #[test]
    fn slices_of_other_lengths_are_an_error() {
        assert!(guide(&[0.0; 3], &[0.0; 4], 2.0, 0.0, 1, &mut [0.0; 4]).is_err());
        assert!(guide(&[0.0; 4], &[0.0; 4], 2.0, 0.0, 3, &mut [0.0; 4]).is_err());
    }
}
