//! The picture as networks see it: planes of floats.

use super::pixels::{check_growth, check_part};
use crate::error::{Error, Result};

/// An RGB picture of floats from 0 to 1, one plane after the other: [3, height, width].
#[derive(Clone, Debug, PartialEq)]
pub struct FloatImage {
    width: u32,
    height: u32,
    data: Vec<f32>,
}

impl FloatImage {
    /// A picture of the three planes in `data`.
    pub fn new(width: u32, height: u32, data: Vec<f32>) -> Result<Self> {
        let expected = u128::from(width) * u128::from(height) * 3;
        if expected == 0 || data.len() as u128 != expected {
            let found = data.len();
            let reason = format!("three planes of {width}×{height} are {expected} values, found {found}");
            return Err(Error::invalid("image", reason));
        }
        Ok(Self { width, height, data })
    }

    /// Pixels in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The planes, red first.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// The planes, red first, without a copy.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// The part of `width`×`height` whose top left pixel is at (`x`, `y`).
    pub fn crop(&self, x: u32, y: u32, width: u32, height: u32) -> Result<FloatImage> {
        check_part((self.width, self.height), (x, y), (width, height))?;
        let mut data = Vec::with_capacity(3 * width as usize * height as usize);
        for plane in self.data.chunks_exact(self.width as usize * self.height as usize) {
            for row in plane.chunks_exact(self.width as usize).skip(y as usize).take(height as usize) {
                data.extend_from_slice(&row[x as usize..][..width as usize]);
            }
        }
        Ok(FloatImage { width, height, data })
    }

    /// Grown to `width`×`height` on the right and below, with the last column and row repeated.
    pub fn pad_edge(&self, width: u32, height: u32) -> Result<FloatImage> {
        check_growth((self.width, self.height), (width, height))?;
        let (old_width, old_height) = (self.width as usize, self.height as usize);
        let mut data = Vec::with_capacity(3 * width as usize * height as usize);
        for plane in self.data.chunks_exact(old_width * old_height) {
            for y in 0..height as usize {
                let row = &plane[y.min(old_height - 1) * old_width..][..old_width];
                data.extend_from_slice(row);
                data.extend(std::iter::repeat_n(row[old_width - 1], width as usize - old_width));
            }
        }
        Ok(FloatImage { width, height, data })
    }
}
