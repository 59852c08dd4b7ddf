//! Kernels of our own, chosen at run time by what the processor can do.
//!
//! ggml is built for a baseline, so that one binary runs everywhere; what nearly all the time goes
//! into is here, in a variant for each instruction set. All variants are the same source over
//! [`lanes::Lanes`], compiled once per set.
//!
//! Activations are rows with the channels next to one another: tokens are `[rows, channels]`, and so
//! are pictures, pixel by pixel. A kernel computes any part of its output, and every number is
//! summed in an order that does not depend on the part. So the bytes are the same however the work
//! is divided among threads.

mod activation;
mod attention;
mod each;
mod functions;
mod isa;
mod lanes;
mod norm;
mod panels;
mod product;
mod winograd;

#[cfg(test)]
mod tests;

pub use activation::Activation;
pub(crate) use activation::{QUICK_GELU_SLOPE, activate, gate};
pub(crate) use attention::{Attend, Head, block_length, blocks, pack};
pub use isa::Isa;
pub(crate) use norm::{Channels, affine, layer_norm, moments};
pub use panels::Panels;
pub(crate) use product::product_into;
pub use product::{Part, Scratch, product};
pub(crate) use winograd::{CHANNELS, PATCH, TILE, Tiles, winograd_into};
