//! Convolutions and the changes of size around them.

use ggml::{Tensor, Weight};

use super::Params;
use crate::error::Result;

/// A square convolution with zero padding. The kernel is `[out, in, k, k]`.
pub struct Conv2d {
    weight: Weight,
    bias: Option<Weight>,
    stride: usize,
    padding: usize,
}

impl Conv2d {
    /// A kernel of `size`×`size` that keeps the picture's size (stride 1, padding ⌊size / 2⌋).
    pub fn load(p: &Params<'_>, inputs: usize, outputs: usize, size: usize) -> Result<Self> {
        Self::load_strided(p, inputs, outputs, size, 1, size / 2)
    }

    /// As [`Conv2d::load`], with another stride and padding.
    pub fn load_strided(
        p: &Params<'_>,
        inputs: usize,
        outputs: usize,
        size: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let weight = p.map("weight", &[outputs, inputs, size, size])?;
        Ok(Self { weight, bias: Some(p.vector("bias", outputs)?), stride, padding })
    }

    /// As [`Conv2d::load`], without a bias and with another stride.
    pub fn load_without_bias(
        p: &Params<'_>,
        inputs: usize,
        outputs: usize,
        size: usize,
        stride: usize,
    ) -> Result<Self> {
        let weight = p.map("weight", &[outputs, inputs, size, size])?;
        Ok(Self { weight, bias: None, stride, padding: size / 2 })
    }

    /// `[N, in, H, W]` → `[N, out, H', W']`.
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        x.convolve(&self.weight, self.bias.as_ref(), self.stride, self.padding)
    }
}

/// Halves a picture with a 3×3 convolution of stride 2.
pub struct Downsample {
    conv: Conv2d,
    /// The autoencoder pads on the right and below only, the UNet on all sides.
    one_sided: bool,
}

impl Downsample {
    /// The UNet's: one zero on each side.
    pub fn load(p: &Params<'_>, channels: usize) -> Result<Self> {
        Ok(Self { conv: Conv2d::load_strided(&p.at("conv"), channels, channels, 3, 2, 1)?, one_sided: false })
    }

    /// The autoencoder's: one zero on the right and one below.
    pub fn load_one_sided(p: &Params<'_>, channels: usize) -> Result<Self> {
        Ok(Self { conv: Conv2d::load_strided(&p.at("conv"), channels, channels, 3, 2, 0)?, one_sided: true })
    }

    /// `[N, C, H, W]` → `[N, C, ⌈H/2⌉, ⌈W/2⌉]` (one-sided: rounded down).
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        self.conv.forward(if self.one_sided { x.pad(1, 1) } else { x })
    }
}

/// Enlarges a picture by the nearest pixel, then convolves it.
pub struct Upsample {
    conv: Conv2d,
}

impl Upsample {
    /// Loads `conv`, 3×3.
    pub fn load(p: &Params<'_>, channels: usize) -> Result<Self> {
        Ok(Self { conv: Conv2d::load(&p.at("conv"), channels, channels, 3)? })
    }

    /// `[N, C, h, w]` → `[N, C, height, width]`.
    pub fn forward<'g>(&self, x: Tensor<'g>, width: usize, height: usize) -> Tensor<'g> {
        self.conv.forward(x.nearest(width, height))
    }
}
