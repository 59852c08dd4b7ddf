//! The number formats that files hold.

use std::fmt;

/// How one element of a tensor is stored, always little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE double precision.
    F64,
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an [`Dtype::F32`].
    Bf16,
    /// 4 exponent bits, 3 mantissa bits, no infinities (PyTorch's `float8_e4m3fn`).
    F8E4M3,
    /// 5 exponent bits, 2 mantissa bits: the upper half of an [`Dtype::F16`].
    F8E5M2,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// 64-bit unsigned integer.
    U64,
    /// 32-bit unsigned integer.
    U32,
    /// 16-bit unsigned integer.
    U16,
    /// 8-bit unsigned integer.
    U8,
    /// One byte: 0 is false, everything else is true.
    Bool,
}

impl Dtype {
    const ALL: [(Dtype, &'static str, usize); 15] = [
        (Dtype::F64, "F64", 8),
        (Dtype::F32, "F32", 4),
        (Dtype::F16, "F16", 2),
        (Dtype::Bf16, "BF16", 2),
        (Dtype::F8E4M3, "F8_E4M3", 1),
        (Dtype::F8E5M2, "F8_E5M2", 1),
        (Dtype::I64, "I64", 8),
        (Dtype::I32, "I32", 4),
        (Dtype::I16, "I16", 2),
        (Dtype::I8, "I8", 1),
        (Dtype::U64, "U64", 8),
        (Dtype::U32, "U32", 4),
        (Dtype::U16, "U16", 2),
        (Dtype::U8, "U8", 1),
        (Dtype::Bool, "BOOL", 1),
    ];

    /// The type that a safetensors header calls `name`.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name in a safetensors header.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        self.row().2
    }

    /// Whether it holds integers or truth values.
    pub fn is_integer(self) -> bool {
        !matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2)
    }

    fn row(self) -> &'static (Dtype, &'static str, usize) {
        // The table lists the variants in the order of their declaration.
        &Dtype::ALL[self as usize]
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_each_type_at_its_own_place() {
        for (place, (dtype, name, _)) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, place);
            assert_eq!(Dtype::from_name(name), Some(dtype));
        }
        assert_eq!(Dtype::from_name("f32"), None);
        assert_eq!(Dtype::F8E4M3.to_string(), "F8_E4M3");
        assert!(Dtype::Bool.is_integer() && !Dtype::F8E5M2.is_integer());
    }
}
