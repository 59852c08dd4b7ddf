//! Reading picture files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Image, jpeg, png};
use crate::error::{Error, Result};

/// What a picture file may ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Pixels in a row, and rows.
    pub side_px: u32,
    /// Pixels in all.
    pub pixels: u64,
}

impl Default for Limits {
    /// 256 MiB, 16384 pixels a side, 64 million pixels.
    fn default() -> Self {
        Self { file_bytes: 256 << 20, side_px: 16384, pixels: 64 << 20 }
    }
}

impl Limits {
    /// Whether a header's size is allowed, before memory is taken for it.
    pub(super) fn check(&self, width: u32, height: u32, path: &Path) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(Error::format(path, format!("a picture of {width}×{height}")));
        }
        let pixels = u64::from(width) * u64::from(height);
        if width > self.side_px || height > self.side_px || pixels > self.pixels {
            let (side, most) = (self.side_px, self.pixels);
            let reason = format!("a picture of {width}×{height}, at most {side} a side and {most} pixels are accepted");
            return Err(Error::unsupported(path, reason));
        }
        Ok(())
    }
}

/// Reads a PNG or JPEG file; the first bytes tell which.
///
/// All kinds of either become 8-bit RGB, or RGBA where there is transparency. Colour profiles are
/// not applied, nor is the orientation that cameras note in a JPEG.
pub fn read(path: &Path, limits: &Limits) -> Result<Image> {
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let mut bytes = Vec::new();
    let most = limits.file_bytes;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| Error::io(path, error))?;
    if bytes.len() as u64 > most {
        return Err(Error::unsupported(path, format!("larger than the {most} bytes that are accepted")));
    }
    decode(&bytes, path, limits)
}

/// As [`read`], of a file that is in memory already. `path` is for messages.
pub fn decode(bytes: &[u8], path: &Path, limits: &Limits) -> Result<Image> {
    if bytes.starts_with(png::SIGNATURE) {
        png::decode_png(bytes, path, limits)
    } else if bytes.starts_with(jpeg::SIGNATURE) {
        jpeg::decode_jpeg(bytes, path, limits)
    } else {
        Err(Error::unsupported(path, "neither PNG nor JPEG"))
    }
}
