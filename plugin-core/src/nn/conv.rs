//! Convolutions and the changes of size around them.

use ggml::{Addend, Picture, Weight, Window};

use super::Params;
use crate::error::Result;

/// A square convolution. The kernel is `[out, in, k, k]`.
pub struct Conv2d {
    weight: Weight,
    bias: Option<Weight>,
    window: Window,
}

impl Conv2d {
    /// A kernel of `size`×`size` that keeps the picture's size (stride 1, padding ⌊size / 2⌋).
    pub fn load(p: &Params<'_>, inputs: usize, outputs: usize, size: usize) -> Result<Self> {
        Self::load_strided(p, inputs, outputs, size, 1, [size / 2; 2])
    }

    /// As [`Conv2d::load`], with another stride and padding: to the left and above, to the right and below.
    pub fn load_strided(
        p: &Params<'_>,
        inputs: usize,
        outputs: usize,
        size: usize,
        stride: usize,
        padding: [usize; 2],
    ) -> Result<Self> {
        let weight = p.map("weight", &[outputs, inputs, size, size])?;
        Ok(Self { weight, bias: Some(p.vector("bias", outputs)?), window: window(stride, padding) })
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
        Ok(Self { weight, bias: None, window: window(stride, [size / 2; 2]) })
    }

    /// `[N, in, H, W]` → `[N, out, H', W']`.
    pub fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        self.forward_onto(x, Addend::None)
    }

    /// As [`Conv2d::forward`], added to something.
    pub fn forward_onto<'g>(&self, x: Picture<'g>, added: Addend<'g>) -> Picture<'g> {
        x.convolve(&self.weight, self.bias.as_ref(), self.window, added)
    }
}

fn window(stride: usize, padding: [usize; 2]) -> Window {
    Window { stride, padding, wraps: false }
}

/// Halves a picture with a 3×3 convolution of stride 2.
pub struct Downsample {
    conv: Conv2d,
}

impl Downsample {
    /// The UNet's: one zero on each side.
    pub fn load(p: &Params<'_>, channels: usize) -> Result<Self> {
        Ok(Self { conv: Conv2d::load_strided(&p.at("conv"), channels, channels, 3, 2, [1, 1])? })
    }

    /// The autoencoder's: one zero on the right and one below.
    pub fn load_one_sided(p: &Params<'_>, channels: usize) -> Result<Self> {
        Ok(Self { conv: Conv2d::load_strided(&p.at("conv"), channels, channels, 3, 2, [0, 1])? })
    }

    /// `[N, C, H, W]` → `[N, C, ⌈H/2⌉, ⌈W/2⌉]` (one-sided: rounded down).
    pub fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        self.conv.forward(x)
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
    pub fn forward<'g>(&self, x: Picture<'g>, width: usize, height: usize) -> Picture<'g> {
        self.conv.forward(x.nearest(width, height))
    }
}
