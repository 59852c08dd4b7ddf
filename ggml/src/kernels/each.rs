//! Functions of vectors, applied all along slices.

use super::functions::sum;
use super::lanes::Lanes;

/// The most numbers of a vector.
const WIDEST: usize = 16;

/// A function of `N` vectors, number by number.
///
/// A closure will not do: nothing makes the compiler inline it, and outside of a function that is compiled
/// for the instruction set each instruction is a call. Implementations are `#[inline(always)]`.
pub(super) trait Function<const N: usize>: Copy {
    /// # Safety
    /// As for [`Lanes`].
    unsafe fn of<V: Lanes>(self, x: [V; N]) -> V;
}

/// `y[i] = f(x[0][i], x[1][i], …)`. The last few, fewer than a vector, are computed as part of one.
///
/// # Safety
/// As for [`Lanes`]; each of `x` has as many numbers as `y`.
#[inline(always)]
pub(super) unsafe fn each<V: Lanes, const N: usize>(x: [&[f32]; N], y: &mut [f32], f: impl Function<N>) {
    let whole = y.len() / V::COUNT * V::COUNT;
    // SAFETY: promised by the caller.
    unsafe {
        for at in (0..whole).step_by(V::COUNT) {
            V::store(f.of(load(x, at)), y[at..].as_mut_ptr());
        }
        let rest = &mut y[whole..];
        if !rest.is_empty() {
            let mut results = [0.0; WIDEST];
            V::store(f.of(load_rest(x, whole)), results.as_mut_ptr());
            rest.copy_from_slice(&results[..rest.len()]);
        }
    }
}

/// `sums[i] += f(x[0][i], x[1][i], …)`.
///
/// # Safety
/// As for [`each`].
#[inline(always)]
pub(super) unsafe fn add_each<V: Lanes, const N: usize>(x: [&[f32]; N], sums: &mut [f32], f: impl Function<N>) {
    let whole = sums.len() / V::COUNT * V::COUNT;
    // SAFETY: promised by the caller.
    unsafe {
        for at in (0..whole).step_by(V::COUNT) {
            let to = sums[at..].as_mut_ptr();
            V::store(V::add(V::load(to), f.of(load(x, at))), to);
        }
        let rest = &mut sums[whole..];
        if !rest.is_empty() {
            let mut results = [0.0; WIDEST];
            V::store(f.of(load_rest(x, whole)), results.as_mut_ptr());
            rest.iter_mut().zip(results).for_each(|(sum, result)| *sum += result);
        }
    }
}

/// The sum of `f` of all numbers. `f` of `nothing` is zero.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
pub(super) unsafe fn total<V: Lanes>(x: &[f32], nothing: f32, f: impl Function<1>) -> f32 {
    // SAFETY: promised by the caller.
    unsafe {
        let mut total = V::splat(0.0);
        let whole = x.len() / V::COUNT * V::COUNT;
        for at in (0..whole).step_by(V::COUNT) {
            total = V::add(total, f.of(load([x], at)));
        }
        if whole < x.len() {
            let mut filled = [nothing; WIDEST];
            filled[..x.len() - whole].copy_from_slice(&x[whole..]);
            total = V::add(total, f.of([V::load(filled.as_ptr())]));
        }
        sum(total)
    }
}

/// A vector of each of `x`, from `at` on.
///
/// # Safety
/// As for [`Lanes`]; there are enough numbers.
#[inline(always)]
unsafe fn load<V: Lanes, const N: usize>(x: [&[f32]; N], at: usize) -> [V; N] {
    // SAFETY: promised by the caller, here and below.
    unsafe {
        let mut vectors = [V::splat(0.0); N];
        for i in 0..N {
            vectors[i] = V::load(x[i][at..].as_ptr());
        }
        vectors
    }
}

/// What is left of each of `x` from `at` on, fewer numbers than a vector, and zeros.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn load_rest<V: Lanes, const N: usize>(x: [&[f32]; N], at: usize) -> [V; N] {
    let mut filled = [[0.0; WIDEST]; N];
    for (filled, x) in filled.iter_mut().zip(x) {
        filled[..x.len() - at].copy_from_slice(&x[at..]);
    }
    // SAFETY: no vector is wider.
    unsafe { load(std::array::from_fn(|i| filled[i].as_slice()), 0) }
}
