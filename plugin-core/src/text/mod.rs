//! From a prompt to the numbers that a text encoder reads.
//!
//! [`weighting`] splits a prompt into spans with a weight each, [`Tokenizer`] turns a span into
//! token ids, [`chunks()`] wraps them into rows of the encoder's length, and [`apply_weights`] scales
//! what the encoder made of them.

pub mod chunks;
mod clip_vocab;
mod special;
pub mod tokenizer;
pub mod weighting;

pub use chunks::{Chunks, apply_weights, chunks};
pub use special::merge_special_tokens;
pub use tokenizer::Tokenizer;
pub use weighting::Span;
