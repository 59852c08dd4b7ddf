//! What can go wrong in this layer.

use crate::{Dtype, Shape};

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Each variant names the op or the step, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Two operands of an op do not fit together.
    #[error("{op}: shapes {left:?} and {right:?} do not fit")]
    Shapes {
        /// The op.
        op: &'static str,
        /// The first operand's shape, fastest dimension first.
        left: Shape,
        /// The second's.
        right: Shape,
    },

    /// An op can't be applied to this shape.
    #[error("{op}: shape {shape:?} does not fit: {reason}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The operand's shape, fastest dimension first.
        shape: Shape,
        /// What it should have been.
        reason: String,
    },

    /// An op can't be applied to this type.
    #[error("{op}: type {found:?} where {expected} is needed")]
    Type {
        /// The op.
        op: &'static str,
        /// What would be accepted.
        expected: &'static str,
        /// What came.
        found: Dtype,
    },

    /// A slot or a weight was read or written with a wrong number of elements.
    #[error("{what}: {found} where {expected} are needed")]
    Length {
        /// Which access.
        what: &'static str,
        /// The expected number.
        expected: usize,
        /// The number given.
        found: usize,
    },

    /// An index was written that its table does not have.
    #[error("index {found} where all must be in 0..{below}")]
    Index {
        /// The index given.
        found: i32,
        /// The number of rows.
        below: usize,
    },

    /// A back end has no kernel for an op, or not for operands like these.
    #[error("the {backend} back end can't compute {op}, result {shape:?}")]
    Unsupported {
        /// The back end's name.
        backend: String,
        /// ggml's name of the op.
        op: String,
        /// The result's shape, fastest dimension first.
        shape: Shape,
    },

    /// Memory could not be had.
    #[error("{what}: {bytes} bytes could not be allocated")]
    Alloc {
        /// What the memory was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },

    /// The graph was stopped by its caller.
    #[error("stopped")]
    Stopped,

    /// The back end failed while computing.
    #[error("the {backend} back end failed: {reason}")]
    Compute {
        /// The back end's name.
        backend: String,
        /// What is known of the reason.
        reason: String,
    },

    /// A back end could not be opened.
    #[error("{0}")]
    Backend(String),
}
