//! Where a picture is painted anew.

use super::{Image, Limits};
use crate::error::{Error, Result};
use std::path::Path;

/// How much each pixel is painted anew: 1 (white) is repainted, 0 (black) is kept.
///
/// From a picture, a pixel counts its brightness (as PIL's `convert("L")`) times its alpha, so that
/// strokes of white on a transparent layer are a mask too.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    width: u32,
    height: u32,
    values: Vec<f32>,
}

impl Mask {
    /// A mask of the given values, row after row, each from 0 to 1.
    pub fn new(width: u32, height: u32, values: Vec<f32>) -> Result<Self> {
        let expected = u128::from(width) * u128::from(height);
        if expected == 0 || values.len() as u128 != expected {
            let found = values.len();
            let reason = format!("{width}×{height} is {expected} values, found {found}");
            return Err(Error::invalid("mask", reason));
        }
        if let Some(value) = values.iter().find(|value| !(0.0..=1.0).contains(*value)) {
            return Err(Error::invalid("mask", format!("holds {value}, expected values from 0 to 1")));
        }
        Ok(Self { width, height, values })
    }

    /// Reads a picture as a mask.
    pub fn read(path: &Path, limits: &Limits) -> Result<Self> {
        Ok(Self::from_image(&super::read(path, limits)?))
    }

    /// Brightness times alpha.
    pub fn from_image(image: &Image) -> Self {
        let values = match image.channels() {
            4 => {
                let pixels = image.pixels().as_chunks::<4>().0.iter();
                pixels.map(|[r, g, b, a]| luma(*r, *g, *b) * (f32::from(*a) / 255.0)).collect()
            }
            _ => image.pixels().as_chunks::<3>().0.iter().map(|[r, g, b]| luma(*r, *g, *b)).collect(),
        };
        Self { width: image.width(), height: image.height(), values }
    }

    /// Pixels in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The values, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Only 0 and 1: what is 0.5 or more becomes 1. Inpainting networks were trained on such masks.
    pub fn binarised(&self) -> Mask {
        let values = self.values.iter().map(|value| if *value < 0.5 { 0.0 } else { 1.0 }).collect();
        Mask { values, ..*self }
    }

    /// At another size, by the nearest value up and to the left, as torch's `interpolate` does by
    /// default; this is how a mask comes down to the size of latents.
    pub fn resized_nearest(&self, width: u32, height: u32) -> Result<Mask> {
        if width == 0 || height == 0 {
            return Err(Error::invalid("mask", format!("can't be resized to {width}×{height}")));
        }
        let columns: Vec<usize> = (0..width).map(|x| source(x, self.width, width)).collect();
        let mut values = Vec::with_capacity(width as usize * height as usize);
        for y in 0..height {
            let row = source(y, self.height, height) * self.width as usize;
            values.extend(columns.iter().map(|x| self.values[row + x]));
        }
        Ok(Mask { width, height, values })
    }

    /// Grown to `width`×`height` on the right and below, with the last column and row repeated.
    pub fn pad_edge(&self, width: u32, height: u32) -> Result<Mask> {
        super::pixels::check_growth((self.width, self.height), (width, height))?;
        let (old_width, old_height) = (self.width as usize, self.height as usize);
        let mut values = Vec::with_capacity(width as usize * height as usize);
        for y in 0..height as usize {
            let row = &self.values[y.min(old_height - 1) * old_width..][..old_width];
            values.extend_from_slice(row);
            values.extend(std::iter::repeat_n(row[old_width - 1], width as usize - old_width));
        }
        Ok(Mask { width, height, values })
    }
}

/// floor(at × from / to) in f32, as torch computes it.
fn source(at: u32, from: u32, to: u32) -> usize {
    let scale = from as f32 / to as f32;
    ((at as f32 * scale).floor() as usize).min(from as usize - 1)
}

/// ITU-R 601, in PIL's fixed point.
fn luma(r: u8, g: u8, b: u8) -> f32 {
    let sum = u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000;
    (sum >> 16) as f32 / 255.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_is_repainted() {
        let rgb = Image::new(3, 1, 3, vec![255, 255, 255, 0, 0, 0, 255, 0, 0]).unwrap();
        // python: Image.new("RGB", (1, 1), (255, 0, 0)).convert("L").getpixel((0, 0)) == 76
        assert_eq!(Mask::from_image(&rgb).values(), [1.0, 0.0, 76.0 / 255.0]);
        let rgba = Image::new(2, 1, 4, vec![255, 255, 255, 0, 255, 255, 255, 51]).unwrap();
        assert_eq!(Mask::from_image(&rgba).values(), [0.0, 0.2]);
    }

    #[test]
    fn values_are_checked() {
        assert!(Mask::new(1, 1, vec![f32::NAN]).is_err());
        assert!(Mask::new(1, 1, vec![1.5]).is_err());
        assert!(Mask::new(2, 1, vec![1.0]).is_err());
        assert!(Mask::new(0, 0, vec![]).is_err());
    }

    #[test]
    fn nearest_matches_torch() {
        // python: F.interpolate(torch.arange(7.).reshape(1, 1, 1, 7) / 6, size=(1, 3))
        let mask = Mask::new(7, 1, (0..7).map(|v| v as f32 / 6.0).collect()).unwrap();
        assert_eq!(mask.resized_nearest(3, 1).unwrap().values(), [0.0, 2.0 / 6.0, 4.0 / 6.0]);
        assert_eq!(mask.binarised().values(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert!(mask.resized_nearest(0, 1).is_err());
        assert_eq!(mask.pad_edge(8, 2).unwrap().values()[7..9], [1.0, 0.0]);
    }
}
