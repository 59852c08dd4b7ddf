//! Vectors of f32, as wide as an instruction set has them.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A vector of [`Lanes::COUNT`] numbers.
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
    unsafe fn load_half(from: *const u16) -> Self;
    /// Writes the numbers side by side.
    unsafe fn store(self, to: *mut f32);
    /// The sum.
    unsafe fn add(self, other: Self) -> Self;
    /// `self * by + plus`; rounded once where the instruction set can.
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self;
}

/// Four numbers in whatever the program is compiled for.
#[derive(Clone, Copy)]
pub(super) struct Four([f32; 4]);

impl Lanes for Four {
    const COUNT: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: promised by the caller.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: promised by the caller.
        let bits = unsafe { from.cast::<[u16; 4]>().read_unaligned() };
        Self(bits.map(widened))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * by.0[i] + plus.0[i]))
    }
}

/// The number that a half float's bits stand for (IEEE 754 binary16).
#[inline(always)]
fn widened(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias is 15 here and 127 there: multiplying by 2^112 moves it, for numbers too
    // small to be normal as well.
    let scaled = f32::from_bits(rest) * f32::from_bits((112 + 127) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m256 {
    const COUNT: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: promised by the caller, here and below.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(self, by, plus) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512 {
    const COUNT: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: promised by the caller, here and below.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(self, by, plus) }
    }
}

#[cfg(target_arch = "aarch64")]
impl Lanes for float32x4_t {
    const COUNT: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: promised by the caller, here and below.
        unsafe { vdupq_n_f32(value) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self {
        // SAFETY: as above. The intrinsic for halves is not in stable Rust.
        unsafe { Self::load(from.cast::<[u16; 4]>().read_unaligned().map(widened).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { vst1q_f32(to, self) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { vaddq_f32(self, other) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: as above.
        unsafe { vfmaq_f32(plus, self, by) }
    }
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
