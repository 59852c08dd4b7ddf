//! Rows times packed weights: linear maps and convolutions.
//!
//! A convolution is an *indirect* product (Dukhan, "The Indirect Convolution Algorithm", 2019):
//! for each output row and tap a pointer says which input row to read. Stride, padding, wrapping
//! around and enlarging are all in the pointers, so one kernel serves every case, and nothing is
//! copied.
//!
//! The loops around the innermost are those of Goto and van de Geijn ("Anatomy of High-Performance
//! Matrix Multiplication", 2008): a block of a panel's weights, widened to f32 where it is stored
//! smaller, stays in the first-level cache while all rows of the part go past it.

use std::ops::Range;

use super::Panels;
use super::isa::Routine;
use super::lanes::{Lanes, Stored};
use super::panels::Data;
use crate::{Error, Result};

/// Inputs of a block: its weights are 16 or 32 KiB.
const BLOCK: usize = 256;

/// The widest panel.
const WIDEST: usize = 32;

/// The rows and panels of an output that a call computes.
#[derive(Clone, Debug)]
pub struct Part {
    /// Rows of the output.
    pub rows: Range<usize>,
    /// Panels of the weights.
    pub panels: Range<usize>,
}

/// What one thread needs beside inputs and outputs. Kept from call to call, so that nothing is
/// allocated while a graph runs.
#[derive(Default)]
pub struct Scratch {
    /// A block of weights in f32.
    block: Vec<f32>,
    /// An input row of zeros.
    zeros: Vec<f32>,
    /// Input rows.
    pub(super) sources: Vec<*const f32>,
    /// Whatever else a kernel keeps.
    pub(super) numbers: Vec<f32>,
}

impl Scratch {
    /// Room for `count` numbers, which are whatever was there before.
    pub(crate) fn numbers(&mut self, count: usize) -> &mut [f32] {
        room(&mut self.numbers, count)
    }

    /// Notes where rows of `x`, of `inputs` numbers each, lie: those at `indices`; zeros for none.
    ///
    /// # Errors
    /// [`Error::Length`] when one lies outside.
    pub(super) fn locate(
        &mut self,
        x: &[f32],
        inputs: usize,
        indices: impl Iterator<Item = Option<usize>>,
    ) -> Result<()> {
        self.zeros.resize(inputs, 0.0);
        self.sources.clear();
        for index in indices {
            let from = match index {
                None => &self.zeros,
                Some(index) => {
                    inside("source", index.saturating_add(1), x.len() / inputs)?;
                    &x[index * inputs..]
                }
            };
            self.sources.push(from.as_ptr());
        }
        Ok(())
    }
}

/// The first `count` of `numbers`, of which there are made to be enough.
pub(super) fn room(numbers: &mut Vec<f32>, count: usize) -> &mut [f32] {
    if numbers.len() < count {
        numbers.resize(count, 0.0);
    }
    &mut numbers[..count]
}

// SAFETY: the pointers are written anew by each call before it reads them.
unsafe impl Send for Scratch {}

/// Adds the products of a part: `y[row, o] += Σ_tap Σ_i w[o, i, tap] x[source(row, tap), i]`.
///
/// `x` is `[…, inputs]`, `y` is `[…, outputs]`. Where `source` gives none, the input is zero.
///
/// # Errors
/// [`Error::Length`] when the part, or a source, lies outside.
pub fn product(
    panels: &Panels,
    x: &[f32],
    source: &dyn Fn(usize, usize) -> Option<usize>,
    y: &mut [f32],
    part: Part,
    scratch: &mut Scratch,
) -> Result<()> {
    inside("rows", part.rows.end, y.len() / panels.outputs)?;
    // SAFETY: `y` has the rows, and is ours alone.
    unsafe { product_into(panels, x, source, y.as_mut_ptr(), part, scratch) }
}

pub(super) fn inside(what: &'static str, end: usize, size: usize) -> Result<()> {
    if end <= size { Ok(()) } else { Err(Error::Length { what, expected: size, found: end }) }
}

/// As [`product`], for several threads with parts of one output.
///
/// # Safety
/// `y` is good for all rows of the part, and nobody else reads or writes the part meanwhile.
pub(crate) unsafe fn product_into(
    panels: &Panels,
    x: &[f32],
    source: &dyn Fn(usize, usize) -> Option<usize>,
    y: *mut f32,
    part: Part,
    scratch: &mut Scratch,
) -> Result<()> {
    inside("panels", part.panels.end, panels.count())?;
    let (inputs, rows) = (panels.inputs, part.rows.clone());
    scratch.block.resize(BLOCK.min(inputs) * WIDEST, 0.0);
    // By tap, then by row.
    scratch.locate(x, inputs, (0..panels.taps).flat_map(|tap| rows.clone().map(move |row| source(row, tap))))?;
    // Each source points at `inputs` numbers of `x` or of zeros, which are borrowed until the end; the part
    // lies within the panels, and within `y` by the caller's promise.
    panels.isa.run(Blocks { panels, y, part, scratch });
    Ok(())
}

/// Block after block of weights, past all rows of the part: the scratch is prepared for it, and it lies
/// within `y` and the panels.
struct Blocks<'a> {
    panels: &'a Panels,
    y: *mut f32,
    part: Part,
    scratch: &'a mut Scratch,
}

impl Routine for Blocks<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        // SAFETY: promised by the caller, and by whoever made it.
        unsafe { blocks::<V, ROWS, VECTORS>(self.panels, self.y, self.part, self.scratch) };
    }
}

/// Block after block of weights, past all rows of the part.
///
/// # Safety
/// The processor has the instruction set of `V`, and [`Blocks`] holds.
#[inline(always)]
unsafe fn blocks<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    panels: &Panels,
    y: *mut f32,
    part: Part,
    scratch: &mut Scratch,
) {
    let (outputs, width, count) = (panels.outputs, VECTORS * V::COUNT, part.rows.len());
    for panel in part.panels.clone() {
        let columns = width.min(outputs - panel * width);
        for tap in 0..panels.taps {
            let sources = &scratch.sources[tap * count..][..count];
            for start in (0..panels.inputs).step_by(BLOCK) {
                let length = BLOCK.min(panels.inputs - start);
                let at = panel * panels.panel_length() + (tap * panels.inputs + start) * width;
                // SAFETY: the block lies in its panel; the scratch holds a whole one.
                let weights = unsafe { widened::<V>(&panels.data, at..at + length * width, &mut scratch.block) };
                for first in (0..count).step_by(ROWS) {
                    // The last rows are computed with one of them repeated.
                    let row = |i: usize| (first + i).min(count - 1);
                    let x: [*const f32; ROWS] = std::array::from_fn(|i| sources[row(i)].wrapping_add(start));
                    // SAFETY: each `x` is good for `length` numbers, `weights` for a block.
                    let sums = unsafe { tile::<V, ROWS, VECTORS>(x, length, weights) };
                    for (i, sums) in sums.iter().enumerate().take(count - first) {
                        let at = (part.rows.start + first + i) * outputs + panel * width;
                        // SAFETY: the part's row has that many columns, and they are ours alone.
                        unsafe { accumulate(sums, std::slice::from_raw_parts_mut(y.add(at), columns)) };
                    }
                }
            }
        }
    }
}

/// The innermost loop: `Σ_i x[row][i] w[i]` for a few rows.
///
/// # Safety
/// Each `x` must be good for `length` numbers, `weights` for `length` times the panel's width.
#[inline(always)]
pub(super) unsafe fn tile<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    x: [*const f32; ROWS],
    length: usize,
    weights: *const f32,
) -> [[V; VECTORS]; ROWS] {
    // SAFETY: promised by the caller.
    unsafe {
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        for i in 0..length {
            let at = weights.add(i * VECTORS * V::COUNT);
            let w: [V; VECTORS] = std::array::from_fn(|v| V::load(at.add(v * V::COUNT)));
            for row in 0..ROWS {
                let value = V::splat(*x[row].add(i));
                for v in 0..VECTORS {
                    sums[row][v] = V::mul_add(w[v], value, sums[row][v]);
                }
            }
        }
        sums
    }
}

/// Adds a row of sums to as many numbers as the panel has outputs.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn accumulate<V: Lanes, const VECTORS: usize>(sums: &[V; VECTORS], y: &mut [f32]) {
    if y.len() == VECTORS * V::COUNT {
        for (v, sum) in sums.iter().enumerate() {
            let at = y[v * V::COUNT..].as_mut_ptr();
            // SAFETY: there are `COUNT` numbers from there on.
            unsafe { V::store(V::add(V::load(at), *sum), at) };
        }
        return;
    }
    let mut row = [0.0; WIDEST];
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: a panel is no wider than the widest.
        unsafe { V::store(*sum, row[v * V::COUNT..].as_mut_ptr()) };
    }
    for (y, sum) in y.iter_mut().zip(row) {
        *y += sum;
    }
}

/// Writes a row of sums.
///
/// # Safety
/// The processor has the instruction set of `V`; `y` has the panel's width.
#[inline(always)]
pub(super) unsafe fn store<V: Lanes, const VECTORS: usize>(sums: &[V; VECTORS], y: &mut [f32]) {
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: promised by the caller.
        unsafe { V::store(*sum, y[v * V::COUNT..].as_mut_ptr()) };
    }
}

/// A block of weights as f32: where it lies, or widened into `block`.
///
/// # Safety
/// `range` must lie in the weights and be no longer than `block`; its length is a multiple of the
/// vector's.
#[inline(always)]
unsafe fn widened<V: Lanes>(data: &Data, range: Range<usize>, block: &mut [f32]) -> *const f32 {
    // SAFETY: promised by the caller.
    unsafe {
        match data {
            Data::F32(data) => data[range].as_ptr(),
            Data::F16(data) => widen::<V, _>(&data[range], block),
            Data::BF16(data) => widen::<V, _>(&data[range], block),
        }
    }
}

/// Whole vectors of weights as f32, in `block`.
///
/// # Safety
/// The processor has the instruction set of `V`.
#[inline(always)]
unsafe fn widen<V: Lanes, T: Stored>(weights: &[T], block: &mut [f32]) -> *const f32 {
    for (from, to) in weights.chunks_exact(V::COUNT).zip(block.chunks_exact_mut(V::COUNT)) {
        // SAFETY: both have as many elements as the vector.
        unsafe { V::store(T::load(from.as_ptr()), to.as_mut_ptr()) };
    }
    block.as_ptr()
}
