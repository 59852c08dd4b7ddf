//! PNG in and out.

use std::io::Cursor;
use std::path::Path;

use png::{BitDepth, ColorType, DecodeOptions, Decoder, DecodingError, Encoder, EncodingError, Transformations};

use super::{Image, Limits, write_atomically};
use crate::error::{Error, Result};

/// What every PNG file begins with.
pub(super) const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// What the decoder may allocate besides the picture: a few rows and the chunks of metadata.
const DECODER_BYTES: usize = 64 << 20;

/// Any kind becomes 8-bit RGB or RGBA. A file that ends too early or whose sums are wrong is refused.
pub(super) fn decode_png(bytes: &[u8], path: &Path, limits: &Limits) -> Result<Image> {
    let refuse = |error| refused(path, error);
    let mut decoder = open(bytes, true);
    let (width, height) = decoder.read_header_info().map_err(refuse)?.size();
    limits.check(width, height, path)?;

    let mut reader = decoder.read_info().map_err(refuse)?;
    let size = reader.output_buffer_size().ok_or_else(|| refuse(DecodingError::LimitsExceeded))?;
    let mut samples = vec![0; size];
    let frame = reader.next_frame(&mut samples).map_err(refuse)?;
    reader.finish().map_err(refuse)?;
    if (frame.width, frame.height) != (width, height) {
        return Err(Error::format(path, "the first frame has another size than the picture"));
    }
    samples.truncate(frame.buffer_size());

    let samples = match frame.bit_depth {
        BitDepth::Sixteen => samples.as_chunks::<2>().0.iter().map(|two| high_byte(*two)).collect(),
        _ => samples,
    };
    let (channels, pixels) = match frame.color_type {
        ColorType::Rgb => (3, samples),
        ColorType::Rgba => (4, samples),
        ColorType::Grayscale => (3, samples.iter().flat_map(|grey| [*grey; 3]).collect()),
        ColorType::GrayscaleAlpha => {
            (4, samples.as_chunks::<2>().0.iter().flat_map(|[grey, alpha]| [*grey, *grey, *grey, *alpha]).collect())
        }
        ColorType::Indexed => return Err(Error::Internal("png left a palette unexpanded".into())),
    };
    Image::new(width, height, channels, pixels).map_err(|error| Error::format(path, error.to_string()))
}

/// The texts in a PNG file, as keyword and text, such as the `parameters` that [`write_png`] writes.
pub fn text_from_png(bytes: &[u8], path: &Path) -> Result<Vec<(String, String)>> {
    let refuse = |error| refused(path, error);
    let mut reader = open(bytes, false).read_info().map_err(refuse)?;
    reader.finish().map_err(refuse)?;
    let info = reader.info();
    let mut texts: Vec<(String, String)> = Vec::new();
    for chunk in &info.uncompressed_latin1_text {
        texts.push((chunk.keyword.clone(), chunk.text.clone()));
    }
    for chunk in &info.compressed_latin1_text {
        let mut chunk = chunk.clone();
        chunk.decompress_text().map_err(refuse)?;
        texts.push((chunk.keyword.clone(), chunk.get_text().map_err(refuse)?));
    }
    for chunk in &info.utf8_text {
        let mut chunk = chunk.clone();
        chunk.decompress_text().map_err(refuse)?;
        texts.push((chunk.keyword.clone(), chunk.get_text().map_err(refuse)?));
    }
    Ok(texts)
}

/// Writes a picture to a file, with texts as keyword and text; see [`write_atomically`].
///
/// The file says that it is sRGB. A keyword has 1 to 79 characters of Latin-1; a text is any.
pub fn write_png(path: &Path, image: &Image, texts: &[(&str, &str)]) -> Result<()> {
    let bytes = encode_png(image, texts)?;
    write_atomically(path, |out| out.write_all(&bytes).map_err(|error| Error::io(path, error)))
}

/// The bytes of a PNG file; the same picture and texts give the same bytes.
pub fn encode_png(image: &Image, texts: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let encoded = encode(&mut bytes, image, texts);
    encoded.map_err(|error| Error::Internal(format!("png: {error}")))?;
    Ok(bytes)
}

fn encode(out: &mut Vec<u8>, image: &Image, texts: &[(&str, &str)]) -> Result<(), EncodingError> {
    let mut encoder = Encoder::new(out, image.width(), image.height());
    encoder.set_color(if image.channels() == 4 { ColorType::Rgba } else { ColorType::Rgb });
    encoder.set_depth(BitDepth::Eight);
    encoder.set_source_srgb(png::SrgbRenderingIntent::Perceptual);
    for (keyword, text) in texts {
        // The format has no place for NUL.
        let text = text.replace('\0', "\u{fffd}");
        // As PIL does: tEXt, which every tool reads, where Latin-1 is enough, else iTXt.
        if text.chars().all(|c| u32::from(c) < 256) {
            encoder.add_text_chunk((*keyword).into(), text)?;
        } else {
            encoder.add_itxt_chunk((*keyword).into(), text)?;
        }
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(image.pixels())?;
    writer.finish()
}

fn open(bytes: &[u8], ignore_text: bool) -> Decoder<Cursor<&[u8]>> {
    let mut options = DecodeOptions::default();
    options.set_ignore_checksums(false);
    options.set_ignore_text_chunk(ignore_text);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(bytes), options);
    decoder.set_limits(png::Limits { bytes: DECODER_BYTES });
    decoder.set_transformations(Transformations::EXPAND);
    decoder
}

fn refused(path: &Path, error: DecodingError) -> Error {
    Error::format(path, format!("not a sound PNG: {error}"))
}

/// The nearest of 8 bits to a big-endian sample of 16.
fn high_byte(sample: [u8; 2]) -> u8 {
    ((u32::from(u16::from_be_bytes(sample)) * 255 + 32767) / 65535) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Image> {
        super::super::decode(bytes, Path::new("a.png"), &Limits::default())
    }

    /// A file as another program might write it.
    fn encoded(
        color: ColorType,
        depth: BitDepth,
        size: (u32, u32),
        data: &[u8],
        more: impl FnOnce(&mut Encoder<'_, &mut Vec<u8>>),
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, size.0, size.1);
        encoder.set_color(color);
        encoder.set_depth(depth);
        more(&mut encoder);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(data).unwrap();
        writer.finish().unwrap();
        bytes
    }

    #[test]
    fn every_kind_becomes_rgb_or_rgba() {
        let check = |bytes: Vec<u8>, channels, expected: &[u8]| {
            let found = decoded(&bytes).unwrap();
            assert_eq!((found.channels(), found.pixels()), (channels, expected));
        };
        let plain = |color, depth, data: &[u8]| encoded(color, depth, (2, 1), data, |_| ());
        use BitDepth::*;
        check(plain(ColorType::Rgb, Eight, &[1, 2, 3, 4, 5, 6]), 3, &[1, 2, 3, 4, 5, 6]);
        check(plain(ColorType::Rgba, Eight, &[1, 2, 3, 4, 5, 6, 7, 8]), 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
        check(plain(ColorType::Grayscale, Eight, &[7, 8]), 3, &[7, 7, 7, 8, 8, 8]);
        check(plain(ColorType::Grayscale, One, &[0b0100_0000]), 3, &[0, 0, 0, 255, 255, 255]);
        check(plain(ColorType::Grayscale, Four, &[0x3f]), 3, &[51, 51, 51, 255, 255, 255]);
        check(plain(ColorType::Grayscale, Sixteen, &[0x80, 0x7f, 0x80, 0x81]), 3, &[128; 6]);
        check(plain(ColorType::Grayscale, Sixteen, &[0x01, 0x81, 0x01, 0x82]), 3, &[1, 1, 1, 2, 2, 2]);
        check(plain(ColorType::GrayscaleAlpha, Eight, &[7, 8, 9, 10]), 4, &[7, 7, 7, 8, 9, 9, 9, 10]);
        let palette = |trns: Option<&'static [u8]>| {
            encoded(ColorType::Indexed, Four, (2, 1), &[0x10], |encoder| {
                encoder.set_palette(&[1u8, 2, 3, 4, 5, 6][..]);
                trns.into_iter().for_each(|trns| encoder.set_trns(trns));
            })
        };
        check(palette(None), 3, &[4, 5, 6, 1, 2, 3]);
        check(palette(Some(&[9])), 4, &[4, 5, 6, 255, 1, 2, 3, 9]);
    }

    #[test]
    fn texts_come_back() {
        let image = Image::new(1, 1, 4, vec![1, 2, 3, 4]).unwrap();
        let texts = [("parameters", "größe\nSteps: 20"), ("parameters", "漢字 😀\0"), ("Software", "")];
        let bytes = encode_png(&image, &texts).unwrap();
        assert_eq!(decoded(&bytes).unwrap(), image);
        assert!(bytes.windows(4).any(|window| window == b"sRGB"));
        let mut found = text_from_png(&bytes, Path::new("a.png")).unwrap();
        found.sort();
        let expected = [("Software", ""), ("parameters", "größe\nSteps: 20"), ("parameters", "漢字 😀\u{fffd}")];
        assert_eq!(found, expected.map(|(keyword, text)| (keyword.to_string(), text.to_string())));
        assert!(encode_png(&image, &[("", "a")]).is_err());
        assert!(encode_png(&image, &[("漢", "a")]).is_err());
    }

    #[test]
    fn every_truncation_and_flip_is_an_error_or_a_picture() {
        let image = Image::new(5, 3, 3, (0..45).collect()).unwrap();
        let bytes = encode_png(&image, &[("parameters", "a")]).unwrap();
        for length in 0..bytes.len() {
            // Without the last sum alone the picture is whole.
            let found = decoded(&bytes[..length]);
            assert!(found.is_err() || found.is_ok_and(|found| found == image && length + 4 >= bytes.len()), "{length}");
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(decoded(&flipped).is_err() || decoded(&flipped).is_ok_and(|found| found == image), "{at}");
        }
        assert!(decoded(b"").unwrap_err().to_string().contains("neither PNG nor JPEG"));
    }

    #[test]
    fn a_bomb_is_refused_by_its_header() {
        let image = Image::new(1, 1, 3, vec![0; 3]).unwrap();
        let limits = Limits { side_px: 8, pixels: 32, ..Limits::default() };
        let refused = |width: u32, height: u32| {
            let image = Image::new(width, height, 3, vec![0; (width * height * 3) as usize]).unwrap();
            super::super::decode(&encode_png(&image, &[]).unwrap(), Path::new("a"), &limits).is_err()
        };
        assert!(refused(9, 1) && refused(1, 9) && refused(8, 5) && !refused(8, 4));
        // 2³¹-1 a side, with a sum that fits.
        let mut bytes = encode_png(&image, &[]).unwrap();
        bytes[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        let sum = crc(&bytes[12..29]).to_be_bytes();
        bytes[29..33].copy_from_slice(&sum);
        let message = decoded(&bytes).unwrap_err().to_string();
        assert!(message.contains("2147483647×2147483647"), "{message}");
    }

    fn crc(bytes: &[u8]) -> u32 {
        let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let image = Image::new(2, 1, 3, vec![0, 1, 2, 3, 4, 5]).unwrap();
        write_png(&path, &image, &[]).unwrap();
        assert_eq!(super::super::read(&path, &Limits::default()).unwrap(), image);
        let small = Limits { file_bytes: 10, ..Limits::default() };
        assert!(super::super::read(&path, &small).unwrap_err().to_string().contains("larger than the 10 bytes"));
        assert!(matches!(super::super::read(folder.path(), &small), Err(Error::Io { .. })));
        assert!(matches!(super::super::read(&folder.path().join("none"), &small), Err(Error::Io { .. })));
        assert!(write_png(&folder.path().join("none/a.png"), &image, &[]).is_err());
    }
}
