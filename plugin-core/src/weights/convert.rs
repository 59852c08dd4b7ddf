//! A file's number format to the one that the engine computes in, a chunk at a time.
//!
//! Exact wherever the target can hold the value: F8, F16 and BF16 to F32, and F8 to F16. The
//! rest rounds to nearest, ties to even; F64 to F16 passes through F32, as it does in PyTorch.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::dtype::Dtype;

/// What a tensor is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// 32-bit signed integers, from integers only.
    I32,
}

impl Target {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Target::F32 | Target::I32 => 4,
            Target::F16 | Target::BF16 => 2,
        }
    }

    /// The type that keeps what `source` can say, without taking more room than that needs:
    /// F16 and F8 become F16, everything else F32.
    pub fn natural(source: Dtype) -> Target {
        match source {
            Dtype::F16 | Dtype::F8E4M3 | Dtype::F8E5M2 => Target::F16,
            _ => Target::F32,
        }
    }

    /// As [`Target::natural`], for the weights of maps, which BF16 can be as it is.
    pub fn of_map(source: Dtype) -> Target {
        if source == Dtype::Bf16 { Target::BF16 } else { Target::natural(source) }
    }
}

/// Why a chunk can't be converted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Fractions are not made into integers.
    NotIntegers,
    /// This integer needs more than 32 bits.
    TooLarge(i128),
}

/// Whether the bytes stay as they are.
pub(super) fn is_the_same(source: Dtype, target: Target) -> bool {
    matches!(
        (source, target),
        (Dtype::F32, Target::F32) | (Dtype::F16, Target::F16) | (Dtype::Bf16, Target::BF16) | (Dtype::I32, Target::I32)
    )
}

/// Converts whole elements from `input` and puts them into `out`, which is cleared first.
pub(super) fn convert(source: Dtype, target: Target, input: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    out.clear();
    match (source, target) {
        _ if is_the_same(source, target) => out.extend_from_slice(input),
        (Dtype::F8E5M2, Target::F16) => out.extend(input.iter().flat_map(|&byte| [0, byte])),
        (Dtype::F8E4M3, Target::F16) => {
            out.extend(input.iter().flat_map(|&byte| f16_from_e4m3(byte).to_le_bytes()));
        }
        (_, Target::F32) => put_f32(out, &to_f32(source, input)),
        (_, Target::F16) => {
            let mut halves = vec![f16::ZERO; input.len() / source.size_bytes()];
            halves.convert_from_f32_slice(&to_f32(source, input));
            out.extend(halves.into_iter().flat_map(f16::to_le_bytes));
        }
        (_, Target::BF16) => {
            let singles = to_f32(source, input);
            out.extend(singles.into_iter().flat_map(|single| bf16::from_f32(single).to_le_bytes()));
        }
        (_, Target::I32) if source.is_integer() => {
            for element in input.chunks_exact(source.size_bytes()) {
                let wide = integer(source, element);
                let narrow = i32::try_from(wide).map_err(|_| Refusal::TooLarge(wide))?;
                out.extend(narrow.to_le_bytes());
            }
        }
        (_, Target::I32) => return Err(Refusal::NotIntegers),
    }
    Ok(())
}

fn to_f32(source: Dtype, input: &[u8]) -> Vec<f32> {
    match source {
        Dtype::F64 => elements(input).map(|bytes| f64::from_le_bytes(bytes) as f32).collect(),
        Dtype::F32 => elements(input).map(f32::from_le_bytes).collect(),
        Dtype::F16 => {
            let halves: Vec<f16> = elements(input).map(f16::from_le_bytes).collect();
            halves.to_f32_vec()
        }
        Dtype::Bf16 => elements(input).map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::F8E4M3 => input.iter().map(|&byte| f16_from_e4m3(byte).to_f32()).collect(),
        Dtype::F8E5M2 => input.iter().map(|&byte| f16::from_le_bytes([0, byte]).to_f32()).collect(),
        _ => input.chunks_exact(source.size_bytes()).map(|e| integer(source, e) as f32).collect(),
    }
}

fn put_f32(out: &mut Vec<u8>, values: &[f32]) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn elements<const N: usize>(input: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    input.as_chunks::<N>().0.iter().copied()
}

/// Sign-extended from its own width; wide enough for every integer type.
fn integer(source: Dtype, element: &[u8]) -> i128 {
    let mut wide = [0; 16];
    wide[..element.len()].copy_from_slice(element);
    let unsigned = i128::from_le_bytes(wide);
    match source {
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 => {
            let unused_bits = 128 - 8 * element.len() as u32;
            (unsigned << unused_bits) >> unused_bits
        }
        Dtype::Bool => i128::from(unsigned != 0),
        _ => unsigned,
    }
}

/// Sign, 4 exponent bits with bias 7, 3 mantissa bits; exponent 0 is subnormal, all ones below
/// the sign is NaN, and there is no infinity, so that the largest value is 448.
fn f16_from_e4m3(byte: u8) -> f16 {
    let sign = u16::from(byte & 0x80) << 8;
    let exponent = u16::from(byte >> 3) & 0xf;
    let mantissa = u16::from(byte & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f16::NAN.to_bits(),
        (0, mantissa) => f16::from_f32(f32::from(mantissa) / 512.0).to_bits(),
        // The biases of the two formats are 7 and 15.
        (exponent, mantissa) => (exponent + 8) << 10 | mantissa << 7,
    };
    f16::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(source: Dtype, target: Target, input: &[u8]) -> Vec<u8> {
        let mut out = vec![1, 2, 3];
        convert(source, target, input, &mut out).unwrap();
        out
    }

    fn as_f32(source: Dtype, input: &[u8]) -> Vec<f32> {
        elements(&converted(source, Target::F32, input)).map(f32::from_le_bytes).collect()
    }

    fn as_f16(source: Dtype, input: &[u8]) -> Vec<f16> {
        elements(&converted(source, Target::F16, input)).map(f16::from_le_bytes).collect()
    }

    #[test]
    fn e4m3_holds_what_torch_says() {
        // python: torch.tensor([0, 1, 8, 0x38, 0x7e, 0x7f, 0x80, 0xc0, 7], dtype=torch.uint8)
        //         .view(torch.float8_e4m3fn).float()
        let bytes = [0, 1, 8, 0x38, 0x7e, 0x7f, 0x80, 0xc0, 7];
        let expected = [0.0, 1.0 / 512.0, 1.0 / 64.0, 1.0, 448.0, f32::NAN, -0.0, -2.0, 7.0 / 512.0];
        for (found, expected) in as_f32(Dtype::F8E4M3, &bytes).into_iter().zip(expected) {
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan());
        }
    }

    #[test]
    fn e5m2_holds_what_torch_says() {
        // python: torch.tensor([0, 1, 4, 0x3c, 0x7b, 0x7c, 0xfc, 0xc0], dtype=torch.uint8)
        //         .view(torch.float8_e5m2).float()
        let bytes = [0, 1, 4, 0x3c, 0x7b, 0x7c, 0xfc, 0xc0];
        let expected = [0.0, 1.0 / 65536.0, 1.0 / 16384.0, 1.0, 57344.0, f32::INFINITY, f32::NEG_INFINITY, -2.0];
        assert_eq!(as_f32(Dtype::F8E5M2, &bytes), expected);
    }

    #[test]
    fn each_eighth_of_float_is_the_same_in_both_targets() {
        let bytes: Vec<u8> = (0..=255).collect();
        for dtype in [Dtype::F8E4M3, Dtype::F8E5M2] {
            for (half, single) in as_f16(dtype, &bytes).into_iter().zip(as_f32(dtype, &bytes)) {
                assert!(half.to_f32() == single || half.is_nan() && single.is_nan());
            }
        }
    }

    #[test]
    fn each_half_and_bfloat_survives_the_way_to_single() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for (bits, single) in as_f32(Dtype::F16, &bytes).into_iter().enumerate() {
            let half = f16::from_bits(bits as u16);
            assert!(half.is_nan() && single.is_nan() || f16::from_f32(single) == half);
        }
        for (bits, single) in as_f32(Dtype::Bf16, &bytes).into_iter().enumerate() {
            let expected = f32::from_bits((bits as u32) << 16);
            assert!(single.is_nan() && expected.is_nan() || single == expected);
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        let middle = 1.0 + f32::from(f16::EPSILON) / 2.0;
        assert_eq!(as_f16(Dtype::F32, &middle.to_le_bytes()), [f16::ONE]);
        let above = f32::from_bits(middle.to_bits() + 1);
        assert_eq!(as_f16(Dtype::F32, &above.to_le_bytes()), [f16::from_bits(0x3c01)]);
        let third = 1.0_f64 / 3.0;
        assert_eq!(as_f32(Dtype::F64, &third.to_le_bytes()), [1.0_f32 / 3.0]);
        // python: torch.tensor(1/3, dtype=torch.float64).half().view(torch.int16) is 0x3555
        assert_eq!(as_f16(Dtype::F64, &third.to_le_bytes()), [f16::from_bits(0x3555)]);
        assert_eq!(as_f16(Dtype::F32, &1e6_f32.to_le_bytes()), [f16::INFINITY]);
    }

    #[test]
    fn integers_keep_sign_and_range() {
        assert_eq!(as_f32(Dtype::I64, &(-3_i64).to_le_bytes()), [-3.0]);
        assert_eq!(as_f32(Dtype::I8, &[0xff, 0x7f]), [-1.0, 127.0]);
        assert_eq!(as_f32(Dtype::U8, &[0xff]), [255.0]);
        assert_eq!(as_f32(Dtype::U64, &u64::MAX.to_le_bytes()), [u64::MAX as f32]);
        assert_eq!(as_f32(Dtype::Bool, &[0, 1, 2]), [0.0, 1.0, 1.0]);
        let narrow = converted(Dtype::I64, Target::I32, &(-7_i64).to_le_bytes());
        assert_eq!(narrow, (-7_i32).to_le_bytes());
    }

    #[test]
    fn integers_that_do_not_fit_and_fractions_are_refused() {
        let mut out = Vec::new();
        let wide = i64::from(i32::MAX) + 1;
        let refusal = convert(Dtype::I64, Target::I32, &wide.to_le_bytes(), &mut out);
        assert_eq!(refusal, Err(Refusal::TooLarge(wide.into())));
        let refusal = convert(Dtype::F32, Target::I32, &[0; 4], &mut out);
        assert_eq!(refusal, Err(Refusal::NotIntegers));
    }

    #[test]
    fn the_natural_target_loses_nothing_of_what_people_store() {
        assert_eq!(Target::natural(Dtype::F16), Target::F16);
        assert_eq!(Target::natural(Dtype::F8E4M3), Target::F16);
        assert_eq!(Target::natural(Dtype::Bf16), Target::F32);
        assert_eq!(Target::of_map(Dtype::Bf16), Target::BF16);
        assert_eq!(Target::of_map(Dtype::F8E5M2), Target::F16);
        assert_eq!(Target::natural(Dtype::F64), Target::F32);
        assert_eq!(Target::natural(Dtype::I64), Target::F32);
    }
}
