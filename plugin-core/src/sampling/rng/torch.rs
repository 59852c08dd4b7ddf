//! The generator behind `torch.randn` on the CPU, bit for bit.
//!
//! Matsumoto and Nishimura's MT19937, seeded with the low 32 bits of the seed, and two ways to
//! turn its words into normal numbers (`aten/src/ATen/native/cpu/DistributionTemplates.h`):
//!
//! * fewer than 16 elements: Box and Muller in `f64`, one number at a time, the second of each pair
//!   kept for the next one, also across calls;
//! * 16 or more: uniform numbers of 24 bits for the whole tensor first, then Box and Muller on blocks of
//!   16 (eight radii, eight angles); if the length is no multiple of 16, the last 16 are made anew.
//!
//! On x86 with AVX2 (AVX-512 included) torch computes the second with the logarithm, sine and
//! cosine of the Cephes library in `f32`, and its compiler fused every multiplication whose only use
//! is an addition.
//! Those are the numbers made here, on any machine; a torch without AVX2 or on ARM calls the C library
//! instead and differs in the last bits.

use std::f64::consts::PI;

const WORDS: usize = 624;
const MIDDLE: usize = 397;
const BLOCK: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct Torch {
    state: [u32; WORDS],
    next: usize,
    /// The second number of a pair, of which the first has been handed out.
    kept: Option<f64>,
}

impl Torch {
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        state[0] = seed as u32;
        for i in 1..WORDS {
            let last: u32 = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: WORDS, kept: None }
    }

    pub(super) fn normal(&mut self, len: usize) -> Vec<f32> {
        if len < BLOCK {
            return (0..len).map(|_| self.normal_f64() as f32).collect();
        }
        let mut values: Vec<f32> = (0..len).map(|_| self.uniform_f32()).collect();
        for block in values.chunks_exact_mut(BLOCK) {
            box_muller(block);
        }
        if !len.is_multiple_of(BLOCK) {
            let last = &mut values[len - BLOCK..];
            last.fill_with(|| self.uniform_f32());
            box_muller(last);
        }
        values
    }

    /// `at::normal_distribution<double>`.
    fn normal_f64(&mut self) -> f64 {
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        let angle = 2.0 * PI * self.uniform_f64();
        let radius = (-2.0 * libm::log1p(-self.uniform_f64())).sqrt();
        self.kept = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }

    fn uniform_f32(&mut self) -> f32 {
        (self.word() & 0x00FF_FFFF) as f32 * (1.0 / 16_777_216.0)
    }

    fn uniform_f64(&mut self) -> f64 {
        let bits = u64::from(self.word()) << 32 | u64::from(self.word());
        (bits & ((1 << 53) - 1)) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            self.twist();
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9d2c_5680;
        word ^= word << 15 & 0xefc6_0000;
        word ^ word >> 18
    }

    fn twist(&mut self) {
        for i in 0..WORDS {
            let (low, high) = (self.state[(i + 1) % WORDS], self.state[i]);
            let mixed = (high & 0x8000_0000) | (low & 0x7fff_ffff);
            let odd = if low & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + MIDDLE) % WORDS] ^ mixed >> 1 ^ odd;
        }
    }
}

/// Turns 8 + 8 uniform numbers into 16 normal ones.
fn box_muller(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (a, b) in first.iter_mut().zip(second) {
        let radius = (-2.0 * ln(1.0 - *a)).sqrt();
        let (sin, cos) = sin_cos((2.0 * PI) as f32 * *b);
        // The mean of zero, added: it turns −0 into 0.
        *a = radius * cos + 0.0;
        *b = radius * sin + 0.0;
    }
}

/// Cephes' `logf` for positive normal numbers, with torch's fused operations.
#[allow(clippy::excessive_precision)] // The digits of the original.
fn ln(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 9] = [
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ];
    // ln 2 in two parts, the first with few bits.
    const LN_2_HIGH: f32 = 0.693359375;
    const LN_2_LOW: f32 = -2.12194440e-4;

    let bits = x.to_bits();
    let mut exponent = (bits >> 23) as f32 - 126.0;
    let mut x = f32::from_bits(bits & 0x007f_ffff | 0x3f00_0000);
    if x < std::f32::consts::FRAC_1_SQRT_2 {
        exponent -= 1.0;
        x = (x - 1.0) + x;
    } else {
        x -= 1.0;
    }
    let square = x * x;
    let sum = COEFFICIENTS.into_iter().reduce(|sum, next| sum.mul_add(x, next)).unwrap_or(0.0);
    let y = (sum * x).mul_add(square, exponent * LN_2_LOW);
    let y = (-square).mul_add(0.5, y);
    exponent.mul_add(LN_2_HIGH, x + y)
}

/// Cephes' `sinf` and `cosf` for an angle from 0 to 2π, with torch's fused operations.
#[allow(clippy::excessive_precision)] // The digits of the original.
fn sin_cos(x: f32) -> (f32, f32) {
    // π/4 in three parts.
    const PI_4: [f32; 3] = [0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8];
    const SIN: [f32; 3] = [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1];
    const COS: [f32; 3] = [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2];

    let octant = ((x * (4.0 / PI) as f32) as u32 + 1) & !1;
    let count = octant as f32;
    let x = PI_4.into_iter().fold(x, |x, part| count.mul_add(-part, x));
    let z = x * x;

    let cos = COS[0].mul_add(z, COS[1]).mul_add(z, COS[2]) * z;
    let cos = cos.mul_add(z, -(z * 0.5)) + 1.0;
    let sin = SIN[0].mul_add(z, SIN[1]).mul_add(z, SIN[2]) * z;
    let sin = sin.mul_add(x, x);

    let (sin, cos) = if octant & 2 == 0 { (sin, cos) } else { (cos, sin) };
    let negate = |value: f32, yes: bool| if yes { -value } else { value };
    (negate(sin, octant & 4 != 0), negate(cos, (octant + 2) & 4 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, counts: &[usize]) -> Vec<f32> {
        let mut torch = Torch::new(seed);
        counts.iter().flat_map(|&count| torch.normal(count)).collect()
    }

    /// `torch.randn(5, generator=torch.Generator().manual_seed(0))`, and 3 more from the same.
    #[test]
    fn small_tensors() {
        let expected: [u32; 8] =
            [0x3fc53f5c, 0xbe963c50, 0xc00b7149, 0x3f1184b6, 0xbf8ad1a1, 0xbfb3052d, 0x3ece837a, 0x3f5688e5];
        assert_eq!(draw(0, &[5, 3]).iter().map(|v| v.to_bits()).collect::<Vec<_>>(), expected);
    }

    /// `torch.randn(20, generator=torch.Generator().manual_seed(42))`: the last 16 are made anew.
    #[test]
    fn large_tensors() {
        let expected: [u32; 20] = [
            0x3ff6a529, 0x3fbe5f53, 0x3f669567, 0xc006c0db, 0xbf4214e2, 0x3f8a0650, 0x3f4d0144, 0x3fd71e93, 0x3eb63345,
            0xbf2fc686, 0xbefc9934, 0x3e774893, 0xbe6d2eed, 0x3d2b0c00, 0xbe80ce7a, 0x3f5c1fb0, 0xbe9e9482, 0xbeca9a91,
            0x3f4dac3c, 0xbf1f20e0,
        ];
        assert_eq!(draw(42, &[20]).iter().map(|v| v.to_bits()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn seeds_count_modulo_two_to_the_32() {
        assert_eq!(draw((1 << 32) + 42, &[33]), draw(42, &[33]));
        assert_ne!(draw(43, &[33]), draw(42, &[33]));
    }

    #[test]
    fn extremes_are_finite() {
        for uniform in [0.0, 1.0 - 1.0 / 16_777_216.0, 0.25, 0.5, 0.75] {
            let mut block = [uniform; BLOCK];
            box_muller(&mut block);
            assert!(block.iter().all(|v| v.is_finite() && v.to_bits() != (-0.0_f32).to_bits()), "{uniform}");
        }
    }
}
