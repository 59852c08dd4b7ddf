//! Between bytes, floats from 0 to 1, and floats from -1 to 1.

use super::{FloatImage, Image};
use crate::error::Result;

impl Image {
    /// The colours as floats from 0 to 1; alpha is dropped.
    pub fn to_float(&self) -> FloatImage {
        let data = self.planes().map(|byte| f32::from(byte) / 255.0).collect();
        FloatImage::new(self.width(), self.height(), data).expect("three planes of this size")
    }

    /// The colours from -1 to 1, [3, height, width], as an autoencoder takes them; alpha is dropped.
    pub fn to_signed(&self) -> Vec<f32> {
        self.planes().map(|byte| f32::from(byte) / 255.0 * 2.0 - 1.0).collect()
    }

    /// The bytes of the red plane, then green, then blue.
    fn planes(&self) -> impl Iterator<Item = u8> + '_ {
        let channels = self.channels() as usize;
        (0..3).flat_map(move |channel| self.pixels().iter().skip(channel).step_by(channels).copied())
    }
}

impl FloatImage {
    /// What an autoencoder gives, [3, height, width] from -1 to 1, cut to the range from 0 to 1.
    pub fn from_signed(width: u32, height: u32, signed: &[f32]) -> Result<FloatImage> {
        let data = signed.iter().map(|value| (value / 2.0 + 0.5).clamp(0.0, 1.0)).collect();
        FloatImage::new(width, height, data)
    }

    /// From -1 to 1, as an autoencoder takes it.
    pub fn to_signed(&self) -> Vec<f32> {
        self.data().iter().map(|value| value * 2.0 - 1.0).collect()
    }

    /// Rounded to 8 bits; values outside of 0 to 1 are cut, NaN is 0.
    pub fn to_image(&self) -> Image {
        let plane = self.width() as usize * self.height() as usize;
        let pixels = (0..plane).flat_map(|at| [0, 1, 2].map(|c| byte(self.data()[c * plane + at]))).collect();
        Image::new(self.width(), self.height(), 3, pixels).expect("three channels of this size")
    }
}

/// round(x × 255) as numpy rounds it, halves to even; the cast cuts, and makes 0 of NaN.
fn byte(value: f32) -> u8 {
    (value * 255.0).round_ties_even() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding() {
        // python: (np.float32(x) * 255).round().clip(0, 255)
        let expected = [(0.0, 0), (1.0, 255), (0.5, 128), (-1.0, 0), (7.0, 255), (0.25, 64), (0.1, 26)];
        for (value, expected) in expected {
            assert_eq!(byte(value), expected, "{value}");
        }
        assert_eq!(byte(f32::NAN), 0);
        assert_eq!(byte(f32::INFINITY), 255);
        assert_eq!(byte(f32::NEG_INFINITY), 0);
    }

    #[test]
    fn bytes_survive_every_way_around() {
        let pixels: Vec<u8> = (0..=255).chain(0..=43).collect();
        let image = Image::new(20, 5, 3, pixels).unwrap();
        assert_eq!(image.to_float().to_image(), image);
        let signed = image.to_signed();
        assert_eq!(FloatImage::from_signed(20, 5, &signed).unwrap().to_image(), image);
        assert_eq!(image.to_float().to_signed(), signed);
        assert_eq!((signed[0], signed[100]), (-1.0, 1.0 / 255.0 * 2.0 - 1.0));
    }

    #[test]
    fn planes_follow_channels() {
        let image = Image::new(2, 1, 4, vec![0, 51, 102, 9, 153, 204, 255, 9]).unwrap();
        assert_eq!(image.to_float().data(), [0.0, 0.6, 0.2, 0.8, 0.4, 1.0]);
    }

    #[test]
    fn float_crop_undoes_padding() {
        let small = FloatImage::new(3, 2, (0..18).map(|v| v as f32 / 18.0).collect()).unwrap();
        let padded = small.pad_edge(5, 4).unwrap();
        assert_eq!(padded.crop(0, 0, 3, 2).unwrap(), small);
        assert_eq!(padded.to_image(), small.to_image().pad_edge(5, 4).unwrap());
        assert!(small.crop(3, 0, 1, 1).is_err());
        assert!(FloatImage::new(1, 1, vec![0.0; 2]).is_err());
        assert!(FloatImage::new(0, 1, vec![]).is_err());
    }
}
