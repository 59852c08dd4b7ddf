//! What a scene knows of the picture: its depth, its poses, its normals, its lines.
//!
//! A host hands its buffers over as its renderer made them ([`depth`]), and its rigs as it holds them ([`pose`]).
//! Each becomes a [`Hint`], the map that a ControlNet was trained on. What is raw and what is already a map are
//! different types, so nothing is processed twice.

pub mod hint;

pub use hint::Hint;
