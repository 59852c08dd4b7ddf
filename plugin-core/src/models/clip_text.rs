//! The text encoder of CLIP (Radford et al. 2021): a causal transformer over 77 tokens.

use ggml::{Activation, Builder, Slot, Tensor};

use super::unet::dimensions;
use crate::error::{Error, Result};
use crate::nn::{Attention, Embedding, LayerNorm, Linear, Params};
use crate::weights::Weights;

const EPSILON: f32 = 1e-5;

/// The sizes of a text encoder. Heads and activation can't be read off the shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens in a chunk.
    pub positions: usize,
    /// Width of the states.
    pub width: usize,
    /// Width between the two maps of the feed-forward part.
    pub inner_width: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// The feed-forward part's activation.
    pub activation: Activation,
}

impl Config {
    /// Reads the sizes off the tensors. Heads start at 64 channels each, as every release has them.
    pub fn infer(w: &Weights) -> Result<Self> {
        let model = w.at("text_model");
        let [vocabulary, width] = dimensions(&model, "embeddings.token_embedding.weight")?;
        let [positions, _] = dimensions(&model, "embeddings.position_embedding.weight")?;
        let [inner_width, _] = dimensions(&model, "encoder.layers.0.mlp.fc1.weight")?;
        let layers = model.count("encoder.layers");
        Ok(Self {
            vocabulary,
            positions,
            width,
            inner_width,
            layers,
            heads: (width / 64).max(1),
            activation: Activation::QuickGelu,
        })
    }

    fn check(&self) -> Result<()> {
        if self.heads == 0 || !self.width.is_multiple_of(self.heads) {
            return Err(Error::config(format!(
                "{} channels of the text encoder can't be split into {} heads",
                self.width, self.heads
            )));
        }
        if self.positions < 3 {
            return Err(Error::config(format!(
                "the text encoder has {} positions where at least 3 are needed",
                self.positions
            )));
        }
        Ok(())
    }
}

/// The network.
pub struct ClipText {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    final_norm: LayerNorm,
    config: Config,
}

struct Block {
    norm1: LayerNorm,
    attention: Attention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl ClipText {
    /// Loads a network of the sizes in `config`.
    pub fn load(p: &Params<'_>, config: &Config) -> Result<Self> {
        config.check()?;
        let p = p.at("text_model");
        let width = config.width;
        let block = |i: usize| -> Result<Block> {
            let p = p.at("encoder.layers").at(i);
            Ok(Block {
                norm1: LayerNorm::load(&p.at("layer_norm1"), width, EPSILON)?,
                attention: Attention::load(&p.at("self_attn"), Attention::CLIP, width, width, config.heads)?,
                norm2: LayerNorm::load(&p.at("layer_norm2"), width, EPSILON)?,
                fc1: Linear::load(&p.at("mlp.fc1"), width, config.inner_width)?,
                fc2: Linear::load(&p.at("mlp.fc2"), config.inner_width, width)?,
            })
        };
        Ok(Self {
            tokens: Embedding::load(&p.at("embeddings.token_embedding"), config.vocabulary, width)?,
            positions: Embedding::load(&p.at("embeddings.position_embedding"), config.positions, width)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            final_norm: LayerNorm::load(&p.at("final_layer_norm"), width, EPSILON)?,
            config: config.clone(),
        })
    }

    /// The network's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Tokens `[N · L]` (each below the vocabulary's size) in chunks of `L` = `positions`, and the
    /// causal mask `[L, L]` → states `[N, L, width]`.
    ///
    /// `skip` blocks at the end are left out; the final norm is applied all the same.
    pub fn forward<'g>(&self, tokens: Tensor<'g>, mask: Tensor<'g>, skip: usize) -> Tensor<'g> {
        let Config { positions, width, .. } = self.config;
        let chunks = tokens.elements() / positions;
        let mut x = self.tokens.forward(tokens).reshape([width, positions, chunks, 1]);
        x = x.add(self.positions.head(x, positions));
        let kept = self.blocks.len().saturating_sub(skip);
        for block in &self.blocks[..kept] {
            x = block.forward(x, mask, self.config.activation);
        }
        self.final_norm.forward(x)
    }

    /// The inputs of a graph over `chunks` chunks: tokens and mask.
    pub fn inputs<'g>(&self, builder: &'g Builder, chunks: usize) -> ((Tensor<'g>, Slot), (Tensor<'g>, Slot)) {
        let Config { positions, vocabulary, .. } = self.config;
        let tokens = builder.indices(chunks * positions, vocabulary);
        (tokens, builder.input(ggml::Dtype::F32, [positions, positions, 1, 1]))
    }
}

/// The mask that hides later tokens from earlier ones, `[L, L]`: 0 where a query may look, else −∞.
pub fn causal_mask(length: usize) -> Vec<f32> {
    (0..length * length).map(|i| if i % length > i / length { f32::NEG_INFINITY } else { 0.0 }).collect()
}

impl Block {
    fn forward<'g>(&self, x: Tensor<'g>, mask: Tensor<'g>, activation: Activation) -> Tensor<'g> {
        let h = self.norm1.forward(x);
        let x = self.attention.forward(h, h, Some(mask), x);
        let h = self.fc1.forward(self.norm2.forward(x)).activate(activation);
        self.fc2.forward_onto(h, x)
    }
}
