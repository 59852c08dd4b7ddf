//! TAESD (Ollin Boer Bohan, 2023): a tiny autoencoder that stands in for the large one.

use ggml::{Activation, Addend, Picture, Tensor};

use super::unet::dimensions;
use crate::error::{Error, Result};
use crate::nn::{Conv2d, Params};
use crate::weights::Weights;

/// One entry of the encoder's or the decoder's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// Without a bias it follows a change of size, or is one: the encoder halves by stride.
    Conv {
        inputs: usize,
        outputs: usize,
        stride: usize,
        bias: bool,
    },
    Relu,
    Block {
        inputs: usize,
        outputs: usize,
        shortcut: bool,
    },
    Upsample,
}

/// Which of the two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// From a picture to a latent.
    Encoder,
    /// From a latent to a picture.
    Decoder,
}

/// The encoder or the decoder.
pub struct Taesd {
    half: Half,
    layers: Vec<Loaded>,
    latent_channels: usize,
}

enum Loaded {
    Conv(Conv2d),
    Relu,
    Block(Box<Block>),
    Upsample,
}

impl Taesd {
    /// Loads one half: `layers.N` below `encoder` or `decoder`.
    pub fn load(root: &Params<'_>, half: Half) -> Result<Self> {
        let p = root.at(match half {
            Half::Encoder => "encoder.layers",
            Half::Decoder => "decoder.layers",
        });
        let layers = infer(p.weights(), half)?;
        let latent_channels = match (half, layers.first(), layers.last()) {
            (Half::Encoder, _, Some(&Layer::Conv { outputs, .. })) => outputs,
            (Half::Decoder, Some(&Layer::Conv { inputs, .. }), _) => inputs,
            _ => return Err(Error::config("TAESD neither begins nor ends with a convolution")),
        };
        let layers = layers.into_iter().enumerate().map(|(i, layer)| layer.load(&p.at(i))).collect::<Result<_>>()?;
        Ok(Self { half, layers, latent_channels })
    }

    /// Channels of the latent.
    pub fn latent_channels(&self) -> usize {
        self.latent_channels
    }

    /// Encoder: pictures `[N, 3, H, W]` in −1…1 → scaled latents `[N, C, H/8, W/8]`.
    /// Decoder: scaled latents → pictures around −1…1.
    pub fn forward<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        let x = Picture::new(x);
        let mut h = match self.half {
            // Inside, pictures are in 0…1, and latents are held within ±3.
            Half::Encoder => x.scale(0.5, 0.5),
            Half::Decoder => x.scale(1.0 / 3.0, 0.0).tanh().scale(3.0, 0.0),
        };
        for layer in &self.layers {
            h = layer.forward(h);
        }
        match self.half {
            Half::Encoder => h.planes(),
            Half::Decoder => h.scale(2.0, -1.0).planes(),
        }
    }
}

/// Reads the list off the tensors' names: what has no tensors is an activation (after the first
/// convolution of the decoder) or a doubling of the size.
fn infer(w: &Weights, half: Half) -> Result<Vec<Layer>> {
    /// Far more than the published networks have.
    const MOST_LAYERS: usize = 256;
    let length = (0..MOST_LAYERS).rev().find(|&i| w.at(i).has("weight") || w.at(i).has("conv")).map_or(0, |i| i + 1);
    (0..length)
        .map(|i| {
            let layer = w.at(i);
            if layer.exists("weight") {
                let [outputs, inputs, ..] = dimensions::<4>(&layer, "weight")?;
                let bias = layer.exists("bias");
                let stride = if half == Half::Encoder && !bias { 2 } else { 1 };
                Ok(Layer::Conv { inputs, outputs, stride, bias })
            } else if layer.has("conv") {
                let [outputs, inputs, ..] = dimensions::<4>(&layer, "conv.0.weight")?;
                Ok(Layer::Block { inputs, outputs, shortcut: layer.has("skip") })
            } else if i == 1 {
                Ok(Layer::Relu)
            } else {
                Ok(Layer::Upsample)
            }
        })
        .collect()
}

impl Layer {
    fn load(self, p: &Params<'_>) -> Result<Loaded> {
        Ok(match self {
            Self::Conv { inputs, outputs, bias: true, .. } => Loaded::Conv(Conv2d::load(p, inputs, outputs, 3)?),
            Self::Conv { inputs, outputs, stride, bias: false } => {
                Loaded::Conv(Conv2d::load_without_bias(p, inputs, outputs, 3, stride)?)
            }
            Self::Relu => Loaded::Relu,
            Self::Upsample => Loaded::Upsample,
            Self::Block { inputs, outputs, shortcut } => Loaded::Block(Box::new(Block {
                convs: [
                    Conv2d::load(&p.at("conv.0"), inputs, outputs, 3)?,
                    Conv2d::load(&p.at("conv.2"), outputs, outputs, 3)?,
                    Conv2d::load(&p.at("conv.4"), outputs, outputs, 3)?,
                ],
                shortcut: shortcut
                    .then(|| Conv2d::load_without_bias(&p.at("skip"), inputs, outputs, 1, 1))
                    .transpose()?,
            })),
        })
    }
}

/// Three convolutions beside a shortcut.
struct Block {
    convs: [Conv2d; 3],
    shortcut: Option<Conv2d>,
}

impl Loaded {
    fn forward<'g>(&self, x: Picture<'g>) -> Picture<'g> {
        match self {
            Self::Conv(conv) => conv.forward(x),
            Self::Relu => x.activate(Activation::Relu),
            Self::Upsample => x.nearest(2 * x.width(), 2 * x.height()),
            Self::Block(block) => {
                let Block { convs: [first, second, third], shortcut } = &**block;
                let relu = |x: Picture<'g>| x.activate(Activation::Relu);
                let h = relu(second.forward(relu(first.forward(x))));
                let shortcut = shortcut.as_ref().map_or(x, |shortcut| shortcut.forward(x));
                relu(third.forward_onto(h, Addend::Picture(shortcut)))
            }
        }
    }
}
