//! The last stage, and a part of the second: between pictures and latents.

use ggml::{Builder, Dtype};

use super::{Autoencoder, Decoder, Encoder, Frame, Observer, Pipeline, Progress, Stage, zeros};
use crate::error::{Computation, Error, Result};
use crate::image::FloatImage;
use crate::memory::Budget;
use crate::request::Request;

/// Sides of a tile's latent. A picture whose latent is larger than [`LARGE`] is done in tiles.
const TILE: usize = 64;
/// Latents that neighbouring tiles share; over them one fades into the other.
const OVERLAP: usize = 16;
/// A latent with a larger side than this is done in tiles: 768 pixels.
const LARGE: usize = 96;

impl Pipeline {
    /// Encodes a picture `[3, H, W]` in −1…1 to a scaled latent `[C, h, w]`. The full autoencoder
    /// gives a distribution, of which `noise` draws.
    pub(super) fn encode_picture(
        &mut self,
        picture: &[f32],
        frame: &Frame,
        noise: &mut dyn FnMut(usize) -> Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>> {
        let Autoencoder { encoder, scale, channels, reduction, .. } = &self.pictures;
        let Some(encoder) = encoder else {
            return Err(Error::invalid("init-image", "the model's autoencoder has no encoder"));
        };
        let outputs = match encoder {
            Encoder::Full(_) => 2 * channels,
            Encoder::Tiny(_) => *channels,
        };
        let (width, height) = (frame.padded_width, frame.padded_height);
        let tiles = Tiles::over(frame.width, frame.height);
        let mut whole = Blend::new(outputs, frame.width, frame.height)?;
        for tile in tiles.iter() {
            let pixels = tile.times(*reduction);
            let input = pixels.cut(picture, 3, width, height);
            let encoded = self.run(&input, [pixels.width, pixels.height, 3, 1], observer, |x| match encoder {
                Encoder::Full(network) => network.forward(x),
                Encoder::Tiny(network) => network.forward(x),
            })?;
            whole.add(&encoded, tile, OVERLAP);
        }
        let mut latent = whole.finish();
        if let Encoder::Full(_) = encoder {
            let (mean, log_variance) = latent.split_at(channels * frame.area());
            let drawn = noise(mean.len());
            // As in the reference, the log-variance is held within −30…20.
            let spread = log_variance.iter().map(|value| (0.5 * value.clamp(-30.0, 20.0)).exp());
            latent = mean.iter().zip(spread).zip(drawn).map(|((mean, spread), noise)| mean + spread * noise).collect();
        }
        latent.iter_mut().for_each(|value| *value = (*value - scale.shift) * scale.factor);
        Ok(latent)
    }

    /// Decodes latents `[N, C, h, w]` and crops each picture to the request's size.
    pub(super) fn decode_all(
        &mut self,
        latents: &[f32],
        request: &Request,
        frame: &Frame,
        observer: &mut dyn Observer,
    ) -> Result<Vec<FloatImage>> {
        let length = self.pictures.channels * frame.area();
        let tiles = Tiles::over(frame.width, frame.height).iter().count();
        let of = request.images * tiles;
        observer.progress(Progress::of(Stage::Decoding, 0, of));
        let mut pictures = Vec::new();
        for (i, latent) in latents.chunks_exact(length).enumerate() {
            let mut report = |tile: usize, observer: &mut dyn Observer| {
                observer.progress(Progress::of(Stage::Decoding, i * tiles + tile, of));
            };
            let picture = self.decode_with(latent, frame.width, frame.height, observer, &mut report)?;
            pictures.push(picture.crop(0, 0, request.width_px as u32, request.height_px as u32)?);
        }
        Ok(pictures)
    }

    /// Decodes one scaled latent `[C, h, w]` to a picture in 0…1.
    pub fn decode(
        &self,
        latent: &[f32],
        width: usize,
        height: usize,
        observer: &mut dyn Observer,
    ) -> Result<FloatImage> {
        self.decode_with(latent, width, height, observer, &mut |_, _| {})
    }

    fn decode_with(
        &self,
        latent: &[f32],
        width: usize,
        height: usize,
        observer: &mut dyn Observer,
        report: &mut dyn FnMut(usize, &mut dyn Observer),
    ) -> Result<FloatImage> {
        let Autoencoder { decoder, scale, channels, reduction, .. } = &self.pictures;
        let unscaled: Vec<f32> = latent.iter().map(|value| value / scale.factor + scale.shift).collect();
        let mut whole = Blend::new(3, width * reduction, height * reduction)?;
        for (done, tile) in Tiles::over(width, height).iter().enumerate() {
            let input = tile.cut(&unscaled, *channels, width, height);
            let decoded =
                self.run(&input, [tile.width, tile.height, *channels, 1], observer, |x| decoder.forward(x))?;
            whole.add(&decoded, tile.times(*reduction), OVERLAP * reduction);
            report(done + 1, observer);
        }
        let values = whole.finish();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite(Computation::Decoding));
        }
        FloatImage::from_signed((width * reduction) as u32, (height * reduction) as u32, &values)
    }

    /// Refuses a picture that could not be decoded in the end for want of memory.
    pub(super) fn check_decoder_memory(&self, frame: &Frame) -> Result<()> {
        let Some(tile) = Tiles::over(frame.width, frame.height).iter().next() else { return Ok(()) };
        let builder = Builder::new(&self.backend)?;
        let (x, _) = builder.input(Dtype::F32, [tile.width, tile.height, self.pictures.channels, 1]);
        builder.output(self.pictures.decoder.forward(x));
        Budget::now(&self.backend).check_graph("decoding", builder, &self.backend)
    }

    /// Runs one network on one input.
    fn run(
        &self,
        input: &[f32],
        shape: ggml::Shape,
        observer: &dyn Observer,
        forward: impl FnOnce(ggml::Tensor<'_>) -> ggml::Tensor<'_>,
    ) -> Result<Vec<f32>> {
        let builder = Builder::new(&self.backend)?;
        let (x, slot) = builder.input(Dtype::F32, shape);
        let output = builder.output(forward(x));
        let mut graph = Budget::now(&self.backend).build("decoding", builder, &self.backend)?;
        graph.write(slot, input)?;
        graph.compute(&self.backend, &|| observer.stop())?;
        Ok(graph.read(output)?)
    }
}

impl Decoder {
    fn forward<'g>(&self, x: ggml::Tensor<'g>) -> ggml::Tensor<'g> {
        match self {
            Self::Full(network) => network.forward(x),
            Self::Tiny(network) => network.forward(x),
        }
    }
}

/// A rectangle of a picture or a latent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl Tile {
    fn times(self, factor: usize) -> Self {
        let Self { x, y, width, height } = self;
        Self { x: x * factor, y: y * factor, width: width * factor, height: height * factor }
    }

    /// The tile's part of each of `channels` planes of `width`×`height`.
    fn cut(self, planes: &[f32], channels: usize, width: usize, height: usize) -> Vec<f32> {
        let mut part = Vec::with_capacity(channels * self.width * self.height);
        for plane in planes.chunks_exact(width * height).take(channels) {
            for row in plane.chunks_exact(width).skip(self.y).take(self.height) {
                part.extend_from_slice(&row[self.x..self.x + self.width]);
            }
        }
        part
    }
}

/// A latent cut into overlapping tiles, or one tile if it is small.
struct Tiles {
    columns: Vec<(usize, usize)>,
    rows: Vec<(usize, usize)>,
}

impl Tiles {
    fn over(width: usize, height: usize) -> Self {
        if width.max(height) <= LARGE {
            return Self { columns: vec![(0, width)], rows: vec![(0, height)] };
        }
        Self { columns: spans(width), rows: spans(height) }
    }

    fn iter(&self) -> impl Iterator<Item = Tile> + '_ {
        self.rows
            .iter()
            .flat_map(move |&(y, height)| self.columns.iter().map(move |&(x, width)| Tile { x, y, width, height }))
    }
}

/// Starts and lengths along one side; the last span ends at the end, however much it shares.
fn spans(length: usize) -> Vec<(usize, usize)> {
    if length <= TILE {
        return vec![(0, length)];
    }
    let starts = (0..length - TILE).step_by(TILE - OVERLAP);
    starts.chain([length - TILE]).map(|start| (start, TILE)).collect()
}

/// Puts tiles together. Each pixel is the mean of the tiles that cover it, weighted by how far it
/// is from their edges, so that no edge shows.
struct Blend {
    width: usize,
    height: usize,
    sum: Vec<f32>,
    weight: Vec<f32>,
}

impl Blend {
    fn new(channels: usize, width: usize, height: usize) -> Result<Self> {
        let sum = zeros(channels * width * height, "the picture")?;
        Ok(Self { width, height, sum, weight: zeros(width * height, "the picture")? })
    }

    fn add(&mut self, part: &[f32], tile: Tile, overlap: usize) {
        if (tile.width, tile.height) == (self.width, self.height) {
            // One tile: its very values, without a detour through weights.
            self.sum.copy_from_slice(part);
            self.weight.fill(1.0);
            return;
        }
        let planes = self.sum.chunks_exact_mut(self.width * self.height);
        for (plane, part) in planes.zip(part.chunks_exact(tile.width * tile.height)) {
            for (j, row) in part.chunks_exact(tile.width).enumerate() {
                let start = (tile.y + j) * self.width + tile.x;
                let fade = ramp(j, tile.height, overlap);
                for (i, (sum, value)) in plane[start..start + tile.width].iter_mut().zip(row).enumerate() {
                    *sum += fade * ramp(i, tile.width, overlap) * value;
                }
            }
        }
        for j in 0..tile.height {
            let start = (tile.y + j) * self.width + tile.x;
            let fade = ramp(j, tile.height, overlap);
            for (i, weight) in self.weight[start..start + tile.width].iter_mut().enumerate() {
                *weight += fade * ramp(i, tile.width, overlap);
            }
        }
    }

    fn finish(mut self) -> Vec<f32> {
        for plane in self.sum.chunks_exact_mut(self.weight.len()) {
            plane.iter_mut().zip(&self.weight).for_each(|(value, weight)| *value /= weight);
        }
        self.sum
    }
}

/// The weight of place `i` of `length`: rises over the overlap from each edge, never 0.
fn ramp(i: usize, length: usize, overlap: usize) -> f32 {
    let edge = (i + 1).min(length - i).min(overlap);
    edge as f32 / overlap as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_every_place() {
        for length in [1, 64, 65, 97, 112, 113, 128, 500] {
            let mut covered = vec![false; length];
            for (start, span) in spans(length) {
                covered[start..start + span].iter_mut().for_each(|place| *place = true);
            }
            assert!(covered.iter().all(|&place| place), "{length}");
        }
    }

    #[test]
    fn tiles_of_one_picture_give_that_picture() {
        let (width, height) = (130, 100);
        let picture: Vec<f32> = (0..2 * width * height).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut blend = Blend::new(2, width, height).unwrap();
        for tile in Tiles::over(width, height).iter() {
            blend.add(&tile.cut(&picture, 2, width, height), tile, OVERLAP);
        }
        for (found, expected) in blend.finish().iter().zip(&picture) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    /// Tiles differ, for each is normalised by its own statistics; nowhere does one end at once.
    #[test]
    fn tiles_that_differ_fade_into_each_other() {
        let (width, height) = (200, 130);
        let mut blend = Blend::new(1, width, height).unwrap();
        let tiles = Tiles::over(width, height);
        for (i, tile) in tiles.iter().enumerate() {
            let flat = vec![if i.is_multiple_of(2) { 1.0 } else { -1.0 }; tile.width * tile.height];
            blend.add(&flat, tile, OVERLAP);
        }
        let picture = blend.finish();
        let (least, most) = picture.iter().fold((0f32, 0f32), |(a, b), &x| (a.min(x), b.max(x)));
        assert_eq!((least, most), (-1.0, 1.0), "the tiles are there");
        let across = picture.chunks_exact(width).flat_map(|row| row.windows(2)).map(|pair| pair[1] - pair[0]);
        let down = picture.iter().zip(&picture[width..]).map(|(a, b)| b - a);
        let steepest = across.chain(down).fold(0f32, |most, step| most.max(step.abs()));
        // From 1 to −1 over the overlap, with a little for where four meet.
        assert!(steepest <= 3.0 / OVERLAP as f32, "{steepest}");
    }
}
