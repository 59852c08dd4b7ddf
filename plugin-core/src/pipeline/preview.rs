//! Rough pictures of latents on their way.

use super::{Observer, Pipeline};
use crate::error::Result;
use crate::image::FloatImage;

/// A linear map from a latent's channels to colours, one pixel for each place of the latent.
///
/// It is measured rather than tabled, so that it exists for every autoencoder: each channel's colour
/// is what the decoder makes of a flat latent with that channel raised, less what it makes of zeros.
pub(super) struct Projection {
    /// What zeros decode to.
    base: [f32; 3],
    /// Colour per unit of each channel.
    slopes: Vec<[f32; 3]>,
}

/// Sides of the flat latents that are decoded.
const SIDE: usize = 4;

impl Pipeline {
    /// Measures the projection: one small decoding per channel, and one more.
    pub(super) fn preview_projection(&self, observer: &mut dyn Observer) -> Result<Projection> {
        let channels = self.pictures.channels;
        let mut colour = |raised: Option<usize>| -> Result<[f32; 3]> {
            let latent: Vec<f32> =
                (0..channels * SIDE * SIDE).map(|i| f32::from(raised == Some(i / (SIDE * SIDE)))).collect();
            Ok(mean_colour(&self.decode(&latent, SIDE, SIDE, observer)?))
        };
        let base = colour(None)?;
        let slopes = (0..channels).map(|channel| {
            let raised = colour(Some(channel))?;
            Ok(std::array::from_fn(|i| raised[i] - base[i]))
        });
        Ok(Projection { slopes: slopes.collect::<Result<_>>()?, base })
    }
}

impl Projection {
    /// The picture of a scaled latent `[C, h, w]`, of `width`×`height` pixels.
    pub(super) fn picture(&self, latent: &[f32], width: usize, height: usize) -> Result<FloatImage> {
        let area = width * height;
        let mut planes = Vec::with_capacity(3 * area);
        for colour in 0..3 {
            planes.extend((0..area).map(|place| {
                let sum: f32 =
                    self.slopes.iter().enumerate().map(|(c, slope)| slope[colour] * latent[c * area + place]).sum();
                (self.base[colour] + sum).clamp(0.0, 1.0)
            }));
        }
        FloatImage::new(width as u32, height as u32, planes)
    }
}

fn mean_colour(picture: &FloatImage) -> [f32; 3] {
    let area = picture.data().len() / 3;
    std::array::from_fn(|i| picture.data()[i * area..(i + 1) * area].iter().sum::<f32>() / area as f32)
}
