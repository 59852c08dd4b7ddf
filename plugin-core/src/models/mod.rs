//! The networks, one file each: its sizes read off the tensors, its layers, its forward pass.
//!
//! Networks know nothing of files, threads, prompts or families: they get tensors and numbers.

pub mod clip_text;
pub mod description;
pub mod taesd;
pub mod unet;
pub mod vae;

pub use description::{Description, Family};
