//! Resampling, by the library that computes what PIL computes.

use fast_image_resize as fir;

use super::Image;
use crate::error::{Error, Result};

impl Image {
    /// At another size, with Lanczos of three lobes, as diffusers resizes what it is given.
    ///
    /// Colours are weighted by alpha where there is one.
    pub fn resize(&self, width: u32, height: u32) -> Result<Image> {
        if width == 0 || height == 0 {
            return Err(Error::invalid("image", format!("can't be resized to {width}×{height}")));
        }
        if (width, height) == (self.width(), self.height()) {
            return Ok(self.clone());
        }
        let kind = if self.channels() == 4 { fir::PixelType::U8x4 } else { fir::PixelType::U8x3 };
        let source = fir::images::ImageRef::new(self.width(), self.height(), self.pixels(), kind);
        let source = source.map_err(|error| Error::Internal(format!("resize: {error}")))?;
        let mut target = fir::images::Image::new(width, height, kind);
        let lanczos = fir::ResizeAlg::Convolution(fir::FilterType::Lanczos3);
        fir::Resizer::new()
            .resize(&source, &mut target, &fir::ResizeOptions::new().resize_alg(lanczos))
            .map_err(|error| Error::Internal(format!("resize: {error}")))?;
        Image::new(width, height, self.channels(), target.into_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_pil() {
        // python: p = (np.arange(5 * 4 * 3) * 37 % 256).astype("uint8").reshape(4, 5, 3)
        //         np.array(Image.fromarray(p).resize((3, 2), Image.LANCZOS)).ravel()
        let pixels = (0..60u32).map(|at| (at * 37 % 256) as u8).collect();
        let image = Image::new(5, 4, 3, pixels).unwrap();
        let found = image.resize(3, 2).unwrap();
        let expected = [72, 115, 132, 113, 94, 134, 151, 117, 95, 151, 132, 123, 131, 148, 118, 105, 129, 129];
        for (found, expected) in found.pixels().iter().zip(expected) {
            assert!(found.abs_diff(expected) <= 1, "{found} vs {expected}");
        }
        assert_eq!(image.resize(5, 4).unwrap(), image);
        assert!(image.resize(0, 4).is_err());
    }
}
