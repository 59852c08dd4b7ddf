//! Normalisation of tokens and of pictures that lie pixel by pixel.

use super::{BAND_NUMBERS, Kernel, Tensors, band_of};
use crate::Shape;
use crate::kernels::{Channels, Isa, Scratch, affine, layer_norm, moments};

/// Layer norm. Operands: rows, weight, bias.
pub(crate) struct LayerNorm {
    pub(crate) isa: Isa,
    pub(crate) shape: Shape,
    pub(crate) epsilon: f32,
}

impl LayerNorm {
    fn rows(&self) -> usize {
        self.shape[1..].iter().product()
    }

    fn band_rows(&self) -> usize {
        (BAND_NUMBERS / self.shape[0]).max(1)
    }
}

impl Kernel for LayerNorm {
    fn name(&self) -> &'static str {
        "layer norm"
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn bands(&self) -> usize {
        self.rows().div_ceil(self.band_rows())
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let width = self.shape[0];
        let rows = band_of(band, self.rows(), self.band_rows());
        let range = rows.start * width..rows.end * width;
        // SAFETY: a band is some rows.
        let y = unsafe { tensors.output(range.clone()) };
        layer_norm(self.isa, &tensors.operand(0)[range], tensors.operand(1), tensors.operand(2), self.epsilon, y);
    }
}

/// Sizes of a group norm over pictures `[channels, w, h, n]`.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) isa: Isa,
    pub(crate) channels: usize,
    /// Of one picture.
    pub(crate) pixels: usize,
    pub(crate) pictures: usize,
    pub(crate) groups: usize,
}

impl Sizes {
    /// Pixels whose moments are taken together: few enough for single precision, and for the cache.
    fn block_pixels(&self) -> usize {
        (BAND_NUMBERS / 4 / self.channels).clamp(1, 64)
    }

    fn blocks(&self) -> usize {
        self.pixels.div_ceil(self.block_pixels())
    }

    /// Pixels of a band.
    fn band_pixels(&self) -> usize {
        (BAND_NUMBERS / self.channels).max(1)
    }

    fn bands_of_picture(&self) -> usize {
        self.pixels.div_ceil(self.band_pixels())
    }

    /// The numbers of some pixels of a picture.
    fn range(&self, picture: usize, pixels: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let first = picture * self.pixels;
        (first + pixels.start) * self.channels..(first + pixels.end) * self.channels
    }
}

/// For each block of pixels and each group: the mean, and the sum of the squares beside it.
pub(crate) struct GroupMoments(pub(crate) Sizes);

impl Kernel for GroupMoments {
    fn name(&self) -> &'static str {
        "group norm"
    }

    fn shape(&self) -> Shape {
        [2, self.0.groups, self.0.blocks(), self.0.pictures]
    }

    fn bands(&self) -> usize {
        self.0.blocks() * self.0.pictures
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch) {
        let sizes = &self.0;
        let pixels = band_of(band % sizes.blocks(), sizes.pixels, sizes.block_pixels());
        let x = &tensors.operand(0)[sizes.range(band / sizes.blocks(), pixels)];
        // SAFETY: a band is a block's moments.
        let found = unsafe { tensors.output(band * 2 * sizes.groups..(band + 1) * 2 * sizes.groups) };
        moments(sizes.isa, x, sizes.channels, found, scratch);
    }
}

/// Group norm, and SiLU after it if `silu`. Operands: pictures, what [`GroupMoments`] gave, weight, bias.
pub(crate) struct GroupNorm {
    pub(crate) sizes: Sizes,
    pub(crate) shape: Shape,
    pub(crate) epsilon: f32,
    pub(crate) silu: bool,
}

impl GroupNorm {
    /// Mean and variance of one group of one picture, from those of its blocks (Chan et al., "Updating
    /// formulae and a pairwise algorithm for computing sample variances", 1979).
    fn whole(&self, moments: &[f32], group: usize) -> [f64; 2] {
        let sizes = &self.sizes;
        let size = sizes.channels / sizes.groups;
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for block in 0..sizes.blocks() {
            let at = 2 * (block * sizes.groups + group);
            let [m, s] = [moments[at], moments[at + 1]].map(f64::from);
            let n = (band_of(block, sizes.pixels, sizes.block_pixels()).len() * size) as f64;
            let (all, beside) = (count + n, m - mean);
            mean += beside * n / all;
            squares += s + beside * beside * count * n / all;
            count = all;
        }
        [mean, squares / count]
    }
}

impl Kernel for GroupNorm {
    fn name(&self) -> &'static str {
        "group norm"
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn bands(&self) -> usize {
        self.sizes.bands_of_picture() * self.sizes.pictures
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch) {
        let sizes = &self.sizes;
        let (picture, part) = (band / sizes.bands_of_picture(), band % sizes.bands_of_picture());
        let moments = sizes.groups * 2 * sizes.blocks();
        let moments = &tensors.operand(1)[picture * moments..][..moments];
        let (weight, bias) = (tensors.operand(2), tensors.operand(3));
        let (mean, scale) = scratch.numbers(2 * sizes.channels).split_at_mut(sizes.channels);
        let size = sizes.channels / sizes.groups;
        for group in 0..sizes.groups {
            let [middle, variance] = self.whole(moments, group);
            let factor = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
            let channels = group * size..(group + 1) * size;
            mean[channels.clone()].fill(middle as f32);
            scale[channels.clone()].iter_mut().zip(&weight[channels]).for_each(|(scale, weight)| {
                *scale = (factor * f64::from(*weight)) as f32;
            });
        }
        let range = sizes.range(picture, band_of(part, sizes.pixels, sizes.band_pixels()));
        // SAFETY: a band is some pixels.
        let y = unsafe { tensors.output(range.clone()) };
        let channels = Channels { mean, scale, shift: bias };
        affine(sizes.isa, &tensors.operand(0)[range], &channels, self.silu, y);
    }
}
