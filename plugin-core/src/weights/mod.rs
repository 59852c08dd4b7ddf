//! Model files to named tensors.
//!
//! [`Checkpoint::open`] takes what people have on disk (a safetensors file with the names of the
//! original release or of diffusers, several with an index, a diffusers folder, a single network)
//! and reads headers and configurations only. Each network's tensors then have one internal
//! naming, that of diffusers and transformers; [`Weights`] is the cursor with which a network
//! asks for them, and [`Entry::read`] reads one, converted, in bounded pieces.
//!
//! Nothing in a file is believed before it is checked: sizes before memory is taken, offsets
//! before they are read from, names of other files before they are opened. What is wrong is an
//! [`Error`](crate::Error) that names the file and the tensor.

// What files consist of.
mod convert;
mod dtype;
mod json;
mod source;

// One file, several with an index, a folder.
mod folder;
mod index;
mod safetensors;

// Their names, and what a network sees of them.
mod cursor;
mod names;
mod tensors;

// A whole model.
mod checkpoint;
mod gather;
mod inspect;
mod tokenizer_files;

pub use checkpoint::{Checkpoint, Layout};
pub use convert::Target;
pub use cursor::Weights;
pub use dtype::Dtype;
pub use folder::ModelIndex;
pub use index::ShardIndex;
pub use inspect::{ComponentInspection, Inspection};
pub use json::Config;
pub use names::{Component, Naming};
pub use tensors::{Entry, ReadControl, Tensors};
pub use tokenizer_files::TokenizerFiles;
