//! The 8-bit picture that comes in and goes out.

use crate::error::{Error, Result};

/// An sRGB picture of 8 bits a channel, rows from the top, channels interleaved.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    width: u32,
    height: u32,
    channels: u32,
    pixels: Vec<u8>,
}

impl Image {
    /// A picture of `channels` 3 (RGB) or 4 (RGBA, alpha not premultiplied).
    pub fn new(width: u32, height: u32, channels: u32, pixels: Vec<u8>) -> Result<Self> {
        if width == 0 || height == 0 || !(3..=4).contains(&channels) {
            let reason = format!("{width}×{height} with {channels} channels, expected 1×1 or more with 3 or 4");
            return Err(Error::invalid("image", reason));
        }
        let expected = u64::from(width) * u64::from(height);
        let expected = u128::from(expected) * u128::from(channels);
        if pixels.len() as u128 != expected {
            let found = pixels.len();
            let reason = format!("{width}×{height} with {channels} channels is {expected} bytes, found {found}");
            return Err(Error::invalid("image", reason));
        }
        Ok(Self { width, height, channels, pixels })
    }

    /// Pixels in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// 3 for RGB, 4 for RGBA.
    pub fn channels(&self) -> u32 {
        self.channels
    }

    /// All bytes, row after row.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// All bytes, row after row, without a copy.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Without the alpha channel; what it says is dropped, colours stay as they are.
    pub fn to_rgb(&self) -> Image {
        let pixels = match self.channels {
            4 => self.pixels.as_chunks::<4>().0.iter().flat_map(|[r, g, b, _]| [*r, *g, *b]).collect(),
            _ => self.pixels.clone(),
        };
        Image { channels: 3, pixels, ..*self }
    }

    /// The part of `width`×`height` whose top left pixel is at (`x`, `y`).
    pub fn crop(&self, x: u32, y: u32, width: u32, height: u32) -> Result<Image> {
        check_part((self.width, self.height), (x, y), (width, height))?;
        let (row, channels) = (self.width as usize * self.channels as usize, self.channels as usize);
        let (x, y) = (x as usize * channels, y as usize);
        let rows = self.pixels.chunks_exact(row).skip(y).take(height as usize);
        let pixels = rows.flat_map(|row| &row[x..x + width as usize * channels]).copied().collect();
        Ok(Image { width, height, channels: self.channels, pixels })
    }

    /// Grown to `width`×`height` on the right and below, with the last column and row repeated.
    pub fn pad_edge(&self, width: u32, height: u32) -> Result<Image> {
        check_growth((self.width, self.height), (width, height))?;
        let channels = self.channels as usize;
        let mut pixels = Vec::with_capacity(width as usize * height as usize * channels);
        for y in 0..height.min(self.height) as usize {
            let row = &self.pixels[y * self.width as usize * channels..][..self.width as usize * channels];
            pixels.extend_from_slice(row);
            let last = &row[row.len() - channels..];
            (self.width..width).for_each(|_| pixels.extend_from_slice(last));
        }
        let last_row = pixels.len() - width as usize * channels;
        (self.height..height).for_each(|_| pixels.extend_from_within(last_row..last_row + width as usize * channels));
        Ok(Image { width, height, channels: self.channels, pixels })
    }
}

/// Whether a part lies inside a picture.
pub(super) fn check_part(whole: (u32, u32), at: (u32, u32), part: (u32, u32)) -> Result<()> {
    let inside = |whole: u32, at: u32, part: u32| part > 0 && at.checked_add(part).is_some_and(|end| end <= whole);
    if inside(whole.0, at.0, part.0) && inside(whole.1, at.1, part.1) {
        return Ok(());
    }
    let reason = format!("{}×{} at ({}, {}) is not inside {}×{}", part.0, part.1, at.0, at.1, whole.0, whole.1);
    Err(Error::invalid("image", reason))
}

/// Whether a picture can be padded to `to`.
pub(super) fn check_growth(from: (u32, u32), to: (u32, u32)) -> Result<()> {
    if to.0 >= from.0 && to.1 >= from.1 {
        return Ok(());
    }
    let reason = format!("{}×{} can't be padded to {}×{}", from.0, from.1, to.0, to.1);
    Err(Error::invalid("image", reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32, channels: u32) -> Image {
        let count = (width * height * channels) as u8;
        Image::new(width, height, channels, (0..count).collect()).unwrap()
    }

    #[test]
    fn sizes_are_checked() {
        assert!(Image::new(0, 1, 3, vec![]).is_err());
        assert!(Image::new(1, 1, 2, vec![0; 2]).is_err());
        assert!(Image::new(1, 1, 3, vec![0; 4]).is_err());
        assert!(Image::new(u32::MAX, u32::MAX, 4, vec![0; 4]).is_err());
    }

    #[test]
    fn crop_undoes_padding() {
        for channels in [3, 4] {
            let small = picture(3, 2, channels);
            let padded = small.pad_edge(5, 4).unwrap();
            assert_eq!(padded.crop(0, 0, 3, 2).unwrap(), small);
            let pixel = |x: u32, y: u32| &padded.pixels()[((y * 5 + x) * channels) as usize..][..channels as usize];
            assert_eq!(pixel(4, 0), pixel(2, 0));
            assert_eq!(pixel(4, 3), pixel(2, 1));
            assert_eq!(pixel(0, 3), pixel(0, 1));
            assert_eq!(small.pad_edge(3, 2).unwrap(), small);
        }
        let small = picture(3, 2, 3);
        assert!(small.pad_edge(2, 2).is_err());
        assert!(small.crop(0, 0, 4, 1).is_err());
        assert!(small.crop(u32::MAX, 0, 1, 1).is_err());
        assert!(small.crop(0, 0, 0, 1).is_err());
        assert_eq!(small.crop(1, 1, 2, 1).unwrap().pixels(), [12, 13, 14, 15, 16, 17]);
        assert_eq!(picture(1, 2, 4).to_rgb().pixels(), [0, 1, 2, 4, 5, 6]);
    }
}
