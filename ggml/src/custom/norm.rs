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

/// For each group of each picture: the mean, and what to divide the distance from it by to have a variance
/// of one, inverted. Operand: what [`GroupMoments`] gave.
pub(crate) struct GroupScales {
    pub(crate) sizes: Sizes,
    pub(crate) epsilon: f32,
}

impl Kernel for GroupScales {
    fn name(&self) -> &'static str {
        "group norm"
    }

    fn shape(&self) -> Shape {
        [2, self.sizes.groups, self.sizes.pictures, 1]
    }

    fn bands(&self) -> usize {
        self.sizes.groups * self.sizes.pictures
    }

    /// Puts the moments of the blocks together (Chan et al., "Updating formulae and a pairwise algorithm for
    /// computing sample variances", 1979).
    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let sizes = &self.sizes;
        let (picture, group) = (band / sizes.groups, band % sizes.groups);
        let size = sizes.channels / sizes.groups;
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for block in 0..sizes.blocks() {
            let at = 2 * ((picture * sizes.blocks() + block) * sizes.groups + group);
            let [m, s] = [0, 1].map(|i| f64::from(tensors.operand(0)[at + i]));
            let n = (band_of(block, sizes.pixels, sizes.block_pixels()).len() * size) as f64;
            let (all, beside) = (count + n, m - mean);
            mean += beside * n / all;
            squares += s + beside * beside * count * n / all;
            count = all;
        }
        let scale = 1.0 / (squares / count + f64::from(self.epsilon)).sqrt();
        // SAFETY: a band is a group's numbers.
        let found = unsafe { tensors.output(2 * band..2 * band + 2) };
        found.copy_from_slice(&[mean as f32, scale as f32]);
    }
}

/// Group norm, and SiLU after it if `silu`. Operands: pictures, what [`GroupScales`] gave, weight, bias.
pub(crate) struct GroupNorm {
    pub(crate) sizes: Sizes,
    pub(crate) shape: Shape,
    pub(crate) silu: bool,
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
        let scales = &tensors.operand(1)[2 * picture * sizes.groups..][..2 * sizes.groups];
        let (weight, bias) = (tensors.operand(2), tensors.operand(3));
        let (mean, scale) = scratch.numbers(2 * sizes.channels).split_at_mut(sizes.channels);
        let size = sizes.channels / sizes.groups;
        for (group, found) in scales.as_chunks().0.iter().enumerate() {
            let [middle, factor]: [f32; 2] = *found;
            let channels = group * size..(group + 1) * size;
            mean[channels.clone()].fill(middle);
            scale[channels.clone()].iter_mut().zip(&weight[channels]).for_each(|(scale, w)| *scale = factor * w);
        }
        let range = sizes.range(picture, band_of(part, sizes.pixels, sizes.band_pixels()));
        // SAFETY: a band is some pixels.
        let y = unsafe { tensors.output(range.clone()) };
        let channels = Channels { mean, scale, shift: bias };
        affine(sizes.isa, &tensors.operand(0)[range], &channels, self.silu, y);
    }
}
