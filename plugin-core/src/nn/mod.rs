//! The layers that networks are made of.
//!
//! A layer is loaded from a place in a checkpoint ([`Params`]) and applied to tensors of a graph.
//! Shapes in these docs are written as PyTorch writes them, slowest dimension first: pictures are
//! `[N, C, H, W]`, tokens `[N, L, C]`.

mod attention;
mod conv;
mod linear;
mod norm;
mod params;
mod reading;
mod resnet;
mod transformer;

pub use attention::Attention;
pub use conv::{Conv2d, Downsample, Upsample};
pub use linear::{Embedding, Linear};
pub use norm::{GroupNorm, LayerNorm};
pub use params::{LoadControl, Params, Plan};
pub use resnet::ResBlock;
pub use transformer::{FeedForward, Projection, SpatialTransformer, TransformerBlock};
