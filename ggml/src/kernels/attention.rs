//! Attention in one pass over the keys, without a matrix of scores in memory.
//!
//! Queries stay while blocks of keys and values go past them; the softmax is kept up to date as larger
//! scores turn up (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022). Both products use the kernel of linear maps, for which keys and values are
//! packed first: of a block, the keys in panels over keys, the values in panels over channels.

use super::Isa;
use super::functions::{exp, largest, sum};
use super::isa::Routine;
use super::lanes::Lanes;
use super::product::{Scratch, accumulate, tile};

/// Keys of a block. A multiple of each panel's width.
const BLOCK: usize = 128;

/// Rows of tokens in which each head has its own columns.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    /// From the head's first column of the first row on.
    pub(crate) values: &'a [f32],
    /// From row to row.
    pub(crate) stride: usize,
    /// Columns of a head.
    pub(crate) width: usize,
}

impl Head<'_> {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.width]
    }
}

/// How many blocks `keys` keys make.
pub(crate) fn blocks(keys: usize) -> usize {
    keys.div_ceil(BLOCK)
}

/// Numbers in a packed block of keys and values with heads of `width` channels.
pub(crate) fn block_length(isa: Isa, width: usize) -> usize {
    BLOCK * (width + width.next_multiple_of(isa.panel_width()))
}

/// Packs the `block`-th block of `keys` keys and values into `packed`, which has [`block_length`] numbers.
pub(crate) fn pack(isa: Isa, k: Head<'_>, v: Head<'_>, keys: usize, block: usize, packed: &mut [f32]) {
    let panel = isa.panel_width();
    let first = block * BLOCK;
    let count = BLOCK.min(keys - first);
    packed.fill(0.0);
    let (for_keys, for_values) = packed.split_at_mut(BLOCK * k.width);
    for key in 0..count {
        let at = key / panel * panel * k.width + key % panel;
        for (i, &value) in k.row(first + key).iter().enumerate() {
            for_keys[at + i * panel] = value;
        }
        for (part, values) in v.row(first + key).chunks(panel).enumerate() {
            for_values[(part * BLOCK + key) * panel..][..values.len()].copy_from_slice(values);
        }
    }
}

/// Some rows of queries, and what they look at.
pub(crate) struct Attend<'a> {
    /// The queries.
    pub(crate) q: Head<'a>,
    /// How many rows of them.
    pub(crate) rows: usize,
    /// How many keys.
    pub(crate) keys: usize,
    /// All blocks of packed keys and values.
    pub(crate) packed: &'a [f32],
    /// Added to the scores, `[rows, keys]`.
    pub(crate) mask: Option<&'a [f32]>,
    /// What scores are multiplied by before the mask is added.
    pub(crate) scale: f32,
    /// The rows of the result, each for `q.width` numbers from its first column of this head on.
    pub(crate) y: &'a mut dyn FnMut(usize) -> *mut f32,
    pub(crate) scratch: &'a mut Scratch,
}

impl Attend<'_> {
    /// `y = softmax(scale · q kᵀ + mask) v`; zeros for a query that may look at no key.
    ///
    /// # Safety
    /// Each row of `y` is good for a head's numbers and nobody else's.
    pub(crate) unsafe fn compute(self, isa: Isa) {
        isa.run(self);
    }
}

impl Routine for Attend<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let Self { q, rows, keys, packed, mask, scale, y, scratch } = self;
        let (width, panel) = (q.width, VECTORS * V::COUNT);
        let padded = width.next_multiple_of(panel);
        let all = scratch.numbers(rows * (width + BLOCK + padded + 2));
        let (queries, rest) = all.split_at_mut(rows * width);
        let (scores, rest) = rest.split_at_mut(rows * BLOCK);
        let (sums, rest) = rest.split_at_mut(rows * padded);
        let (highest, totals) = rest.split_at_mut(rows);
        for (row, to) in queries.chunks_exact_mut(width).enumerate() {
            to.iter_mut().zip(q.row(row)).for_each(|(to, from)| *to = from * scale);
        }
        sums.fill(0.0);
        highest.fill(f32::NEG_INFINITY);
        totals.fill(0.0);
        for (block, packed) in packed.chunks_exact(BLOCK * (width + padded)).enumerate() {
            let first = block * BLOCK;
            let count = BLOCK.min(keys - first);
            let (for_keys, for_values) = packed.split_at(BLOCK * width);
            // SAFETY: panels lie in the block, and rows in the scratch; the rest is promised by the caller.
            unsafe {
                for start in (0..count).step_by(panel) {
                    let weights = for_keys[start * width..][..panel * width].as_ptr();
                    products::<V, ROWS, VECTORS>(queries, width, width, weights, |row, sums| {
                        let to = &mut scores[row * BLOCK + start..][..panel];
                        for (v, sum) in sums.iter().enumerate() {
                            V::store(*sum, to[v * V::COUNT..].as_mut_ptr());
                        }
                    });
                }
                for row in 0..rows {
                    let scores = &mut scores[row * BLOCK..][..count.next_multiple_of(panel)];
                    // Beyond the last key there are none.
                    scores[count..].fill(f32::NEG_INFINITY);
                    if let Some(mask) = mask {
                        let mask = &mask[row * keys + first..][..count];
                        scores.iter_mut().zip(mask).for_each(|(score, mask)| *score += mask);
                    }
                    let factor = soften::<V>(scores, &mut highest[row], &mut totals[row]);
                    if factor != 1.0 {
                        sums[row * padded..][..padded].iter_mut().for_each(|sum| *sum *= factor);
                    }
                }
                for start in (0..width).step_by(panel) {
                    let weights = for_values[start * BLOCK..][..panel * BLOCK].as_ptr();
                    products::<V, ROWS, VECTORS>(scores, BLOCK, count, weights, |row, added| {
                        accumulate(added, &mut sums[row * padded + start..][..panel]);
                    });
                }
            }
        }
        for row in 0..rows {
            let factor = if totals[row] > 0.0 || totals[row].is_nan() { 1.0 / totals[row] } else { 0.0 };
            // SAFETY: promised by the caller.
            let to = unsafe { std::slice::from_raw_parts_mut(y(row), width) };
            to.iter_mut().zip(&sums[row * padded..]).for_each(|(to, sum)| *to = sum * factor);
        }
    }
}

/// The products of all rows of `x`, `[…, stride]`, with a panel: `take` gets each row's.
///
/// # Safety
/// The processor has the instruction set of `V`; rows have `length` numbers, `weights` as many for each
/// of the panel's columns.
#[inline(always)]
unsafe fn products<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    x: &[f32],
    stride: usize,
    length: usize,
    weights: *const f32,
    mut take: impl FnMut(usize, &[V; VECTORS]),
) {
    let rows = x.len() / stride;
    for first in (0..rows).step_by(ROWS) {
        // The last rows are computed with one of them repeated.
        let from: [*const f32; ROWS] = std::array::from_fn(|i| x[(first + i).min(rows - 1) * stride..].as_ptr());
        // SAFETY: promised by the caller.
        let sums = unsafe { tile::<V, ROWS, VECTORS>(from, length, weights) };
        for (i, sums) in sums.iter().enumerate().take(rows - first) {
            take(first + i, sums);
        }
    }
}

/// Replaces a block of scores by their exponentials relative to the highest score so far, and adds them
/// to the total. Gives the factor that earlier sums are now too large by.
///
/// # Safety
/// As for [`Lanes`]; there are whole vectors of scores.
#[inline(always)]
unsafe fn soften<V: Lanes>(scores: &mut [f32], highest: &mut f32, total: &mut f32) -> f32 {
    // SAFETY: promised by the caller, here and below.
    unsafe {
        let mut top = V::splat(*highest);
        for scores in scores.chunks_exact(V::COUNT) {
            top = V::max(top, V::load(scores.as_ptr()));
        }
        let top = largest(top);
        if top == f32::NEG_INFINITY {
            scores.fill(0.0);
            return 1.0;
        }
        let mut added = V::splat(0.0);
        for scores in scores.chunks_exact_mut(V::COUNT) {
            let power = exp(V::sub(V::load(scores.as_ptr()), V::splat(top)));
            V::store(power, scores.as_mut_ptr());
            added = V::add(added, power);
        }
        let factor = if *highest == f32::NEG_INFINITY { 0.0 } else { largest(exp(V::splat(*highest - top))) };
        *total = *total * factor + sum(added);
        *highest = top;
        factor
    }
}
