//! Exponentials and what is made of them, over vectors.

use super::lanes::Lanes;

/// e to the power of each number, within 2 units in the last place; from -87 down it is 1e-38, from 88 up
/// 1.6e38. The polynomial is that of Moshier's Cephes library (`expf`).
///
/// # Safety
/// As for [`Lanes`]; so for all here.
#[inline(always)]
pub(super) unsafe fn exp<V: Lanes>(x: V) -> V {
    /// 1.5 · 2^23: what is added to it is rounded to a whole number, which then lies in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    /// The bias of an exponent.
    const BIAS: f32 = 127.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const TERMS: [f32; 6] = [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // SAFETY: promised by the caller, here and below.
    unsafe {
        // In this order what is no number stays none.
        let x = V::sub(V::splat(0.0), V::max(V::splat(-88.0), V::sub(V::splat(0.0), V::max(V::splat(-87.0), x))));
        let shifted = V::mul_add(x, V::splat(std::f32::consts::LOG2_E), V::splat(ROUND + BIAS));
        let whole = V::sub(shifted, V::splat(ROUND + BIAS));
        let mut rest = x;
        for part in LN_2 {
            rest = V::mul_add(whole, V::splat(-part), rest);
        }
        let sum = polynomial(TERMS, rest);
        let sum = V::mul_add(sum, V::mul(rest, rest), V::add(rest, V::splat(1.0)));
        V::mul(sum, V::raise(shifted))
    }
}

/// `terms[0]` · xⁿ + … + `terms[n]`.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn polynomial<V: Lanes, const N: usize>(terms: [f32; N], x: V) -> V {
    // SAFETY: as above.
    unsafe {
        let mut sum = V::splat(terms[0]);
        for term in &terms[1..] {
            sum = V::mul_add(sum, x, V::splat(*term));
        }
        sum
    }
}

/// x · sigmoid(`slope` · x).
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn gated_by_sigmoid<V: Lanes>(x: V, slope: f32) -> V {
    // SAFETY: as above.
    unsafe { V::div(x, V::add(V::splat(1.0), exp(V::mul(x, V::splat(-slope))))) }
}

/// The exact GELU, x · Φ(x), within 1.2e-7 of x. The tail of Φ is half of erfc(|x| / √2), by the
/// approximation of Press et al., "Numerical Recipes" (`erfcc`), whose relative error is 1.2e-7.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn gelu<V: Lanes>(x: V) -> V {
    const TERMS: [f32; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ];
    // SAFETY: as above.
    unsafe {
        // Beyond 14 the tail is no f32 any more; an infinity must not meet its zero.
        let negative = V::max(V::splat(-14.0), V::sub(V::splat(0.0), V::max(V::sub(V::splat(0.0), x), x)));
        let size = V::sub(V::splat(0.0), negative);
        let z = V::mul(size, V::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = V::div(V::splat(1.0), V::mul_add(z, V::splat(0.5), V::splat(1.0)));
        let sum = polynomial(TERMS, t);
        let power = V::sub(sum, V::mul(z, z));
        let tail = V::mul(V::mul(t, V::splat(0.5)), exp(power));
        V::sub(V::max(V::splat(0.0), x), V::mul(size, tail))
    }
}

/// max(x, 0).
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn relu<V: Lanes>(x: V) -> V {
    // SAFETY: as above.
    unsafe { V::max(V::splat(0.0), x) }
}

/// The sum of a vector's numbers, from the first to the last.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn sum<V: Lanes>(v: V) -> f32 {
    // SAFETY: as above.
    unsafe { numbers(v)[..V::COUNT].iter().sum() }
}

/// The largest of a vector's numbers, or one that is none.
///
/// # Safety
/// As above.
#[inline(always)]
pub(super) unsafe fn largest<V: Lanes>(v: V) -> f32 {
    // SAFETY: as above.
    unsafe { numbers(v)[..V::COUNT].iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b }) }
}

/// The numbers of a vector, and zeros.
#[inline(always)]
unsafe fn numbers<V: Lanes>(v: V) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    // SAFETY: no vector has more.
    unsafe { V::store(v, numbers.as_mut_ptr()) };
    numbers
}
