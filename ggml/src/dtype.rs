//! Element types.

use crate::sys;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 16-bit float (IEEE half).
    F16,
    /// 16-bit float with the exponent of F32 (bfloat16): only for the weights of maps.
    BF16,
    /// 32-bit signed integer: indices.
    I32,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    pub(crate) fn raw(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::BF16 => sys::GGML_TYPE_BF16,
            Self::I32 => sys::GGML_TYPE_I32,
        }
    }
}
