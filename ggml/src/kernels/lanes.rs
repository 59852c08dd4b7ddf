//! Vectors of f32, as wide as an instruction set has them.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::{bf16, f16};

/// A vector of [`Lanes::COUNT`] numbers. Operations are number by number.
///
/// # Safety
/// Every function may be called only where the processor has the instruction set, and only inlined
/// into a function that is compiled for it. Pointers must be good for [`Lanes::COUNT`] elements;
/// they need not be aligned.
pub(super) trait Lanes: Copy {
    /// How many numbers.
    const COUNT: usize;
    /// The same number everywhere.
    unsafe fn splat(value: f32) -> Self;
    /// Numbers that lie side by side.
    unsafe fn load(from: *const f32) -> Self;
    /// Half floats that lie side by side, widened exactly.
    unsafe fn load_half(from: *const f16) -> Self;
    /// The same of numbers that are the upper halves of F32.
    unsafe fn load_brain(from: *const bf16) -> Self;
    /// Writes the numbers side by side.
    unsafe fn store(v: Self, to: *mut f32);
    /// `a + b`.
    unsafe fn add(a: Self, b: Self) -> Self;
    /// `a - b`.
    unsafe fn sub(a: Self, b: Self) -> Self;
    /// `a * b`.
    unsafe fn mul(a: Self, b: Self) -> Self;
    /// `a / b`.
    unsafe fn div(a: Self, b: Self) -> Self;
    /// The larger; `b` where `b` is no number.
    unsafe fn max(a: Self, b: Self) -> Self;
    /// `a * b + c`; rounded once where the instruction set can.
    unsafe fn mul_add(a: Self, b: Self, c: Self) -> Self;
    /// The number whose bits are those of `v`, moved up by the width of a mantissa: of a small whole
    /// number below the point, 2 to its power.
    unsafe fn raise(v: Self) -> Self;
}

/// A type that numbers are stored in.
pub(super) trait Stored: Copy {
    /// Numbers that lie side by side, as f32.
    ///
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: promised by the caller; so below.
        unsafe { V::load(from) }
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: as above.
        unsafe { V::load_half(from) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Self) -> V {
        // SAFETY: as above.
        unsafe { V::load_brain(from) }
    }
}

/// Bits of a mantissa.
const MANTISSA: i32 = 23;

/// Four numbers in whatever the program is compiled for.
#[derive(Clone, Copy)]
pub(super) struct Four([f32; 4]);

/// An instruction set's vectors: each function's body, to be promised what [`Lanes`] asks for.
macro_rules! lanes {
    ($vector:ty, $count:literal, $($name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? { $body:expr })*) => {
        impl Lanes for $vector {
            const COUNT: usize = $count;
            $(
                #[inline(always)]
                unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: promised by the caller.
                    #[allow(unused_unsafe)]
                    unsafe { $body }
                }
            )*
        }
    };
}

lanes! { Four, 4,
    splat(value: f32) -> Self { Self([value; 4]) }
    load(from: *const f32) -> Self { Self(from.cast::<[f32; 4]>().read_unaligned()) }
    load_half(from: *const f16) -> Self { Self(from.cast::<[u16; 4]>().read_unaligned().map(widened)) }
    load_brain(from: *const bf16) -> Self {
        Self(from.cast::<[u16; 4]>().read_unaligned().map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }
    store(v: Self, to: *mut f32) { to.cast::<[f32; 4]>().write_unaligned(v.0) }
    add(a: Self, b: Self) -> Self { Self(std::array::from_fn(|i| a.0[i] + b.0[i])) }
    sub(a: Self, b: Self) -> Self { Self(std::array::from_fn(|i| a.0[i] - b.0[i])) }
    mul(a: Self, b: Self) -> Self { Self(std::array::from_fn(|i| a.0[i] * b.0[i])) }
    div(a: Self, b: Self) -> Self { Self(std::array::from_fn(|i| a.0[i] / b.0[i])) }
    max(a: Self, b: Self) -> Self { Self(std::array::from_fn(|i| if a.0[i] > b.0[i] { a.0[i] } else { b.0[i] })) }
    mul_add(a: Self, b: Self, c: Self) -> Self { Self(std::array::from_fn(|i| a.0[i] * b.0[i] + c.0[i])) }
    raise(v: Self) -> Self { Self(v.0.map(|x| f32::from_bits(x.to_bits() << MANTISSA))) }
}

/// The number that a half float's bits stand for (IEEE 754 binary16).
#[inline(always)]
fn widened(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias is 15 here and 127 there: multiplying by 2^112 moves it, for numbers too
    // small to be normal as well.
    let scaled = f32::from_bits(rest) * f32::from_bits((112 + 127) << MANTISSA);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

#[cfg(target_arch = "x86_64")]
lanes! { __m256, 8,
    splat(value: f32) -> Self { _mm256_set1_ps(value) }
    load(from: *const f32) -> Self { _mm256_loadu_ps(from) }
    load_half(from: *const f16) -> Self { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    load_brain(from: *const bf16) -> Self {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
    }
    store(v: Self, to: *mut f32) { _mm256_storeu_ps(to, v) }
    add(a: Self, b: Self) -> Self { _mm256_add_ps(a, b) }
    sub(a: Self, b: Self) -> Self { _mm256_sub_ps(a, b) }
    mul(a: Self, b: Self) -> Self { _mm256_mul_ps(a, b) }
    div(a: Self, b: Self) -> Self { _mm256_div_ps(a, b) }
    max(a: Self, b: Self) -> Self { _mm256_max_ps(a, b) }
    mul_add(a: Self, b: Self, c: Self) -> Self { _mm256_fmadd_ps(a, b, c) }
    raise(v: Self) -> Self { _mm256_castsi256_ps(_mm256_slli_epi32::<MANTISSA>(_mm256_castps_si256(v))) }
}

#[cfg(target_arch = "x86_64")]
lanes! { __m512, 16,
    splat(value: f32) -> Self { _mm512_set1_ps(value) }
    load(from: *const f32) -> Self { _mm512_loadu_ps(from) }
    load_half(from: *const f16) -> Self { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    load_brain(from: *const bf16) -> Self {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
    }
    store(v: Self, to: *mut f32) { _mm512_storeu_ps(to, v) }
    add(a: Self, b: Self) -> Self { _mm512_add_ps(a, b) }
    sub(a: Self, b: Self) -> Self { _mm512_sub_ps(a, b) }
    mul(a: Self, b: Self) -> Self { _mm512_mul_ps(a, b) }
    div(a: Self, b: Self) -> Self { _mm512_div_ps(a, b) }
    max(a: Self, b: Self) -> Self { _mm512_max_ps(a, b) }
    mul_add(a: Self, b: Self, c: Self) -> Self { _mm512_fmadd_ps(a, b, c) }
    raise(v: Self) -> Self { _mm512_castsi512_ps(_mm512_slli_epi32::<{ MANTISSA as u32 }>(_mm512_castps_si512(v))) }
}

#[cfg(target_arch = "aarch64")]
lanes! { float32x4_t, 4,
    splat(value: f32) -> Self { vdupq_n_f32(value) }
    load(from: *const f32) -> Self { vld1q_f32(from) }
    // The intrinsic for halves is not in stable Rust.
    load_half(from: *const f16) -> Self { vld1q_f32(from.cast::<[u16; 4]>().read_unaligned().map(widened).as_ptr()) }
    load_brain(from: *const bf16) -> Self { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(from.cast())))) }
    store(v: Self, to: *mut f32) { vst1q_f32(to, v) }
    add(a: Self, b: Self) -> Self { vaddq_f32(a, b) }
    sub(a: Self, b: Self) -> Self { vsubq_f32(a, b) }
    mul(a: Self, b: Self) -> Self { vmulq_f32(a, b) }
    div(a: Self, b: Self) -> Self { vdivq_f32(a, b) }
    max(a: Self, b: Self) -> Self { vmaxq_f32(a, b) }
    mul_add(a: Self, b: Self, c: Self) -> Self { vfmaq_f32(c, a, b) }
    raise(v: Self) -> Self { vreinterpretq_f32_u32(vshlq_n_u32::<MANTISSA>(vreinterpretq_u32_f32(v))) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn halves_are_widened_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let found = super::widened(bits);
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:#06x}");
        }
    }
}
