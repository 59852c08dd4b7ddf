//! Scumble's engine: image generation inside a host that must keep running.
//!
//! ```no_run
//! use scumble_core::pipeline::{Files, Pipeline, Quiet};
//! use scumble_core::request::Request;
//!
//! # fn main() -> scumble_core::error::Result<()> {
//! let files = Files::open("model.safetensors".as_ref())?;
//! let mut pipeline = Pipeline::load(&files, ggml::Backend::cpu(0)?, &mut Quiet)?;
//! let request = Request { prompt: "a mossy red brick wall".into(), ..Request::default() };
//! let pictures = pipeline.generate(&request, &mut Quiet)?;
//! # Ok(())
//! # }
//! ```
//!
//! Modules stand in the order in which data flows from a file to a picture.

#![forbid(unsafe_code)]

pub mod control;
pub mod error;
pub mod image;
pub mod memory;
pub mod request;

pub mod sampling;
pub mod text;
pub mod weights;

pub mod models;
pub mod nn;
pub mod pipeline;

pub use error::{Computation, Error, Result};
