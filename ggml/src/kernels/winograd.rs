//! 3×3 convolutions with a quarter of the multiplications.
//!
//! F(4×4, 3×3) of Lavin and Gray ("Fast Algorithms for Convolutional Neural Networks", 2016): 16 outputs
//! are made from the 36 inputs around them. Both inputs and weights are transformed, multiplied place by
//! place, and the products are transformed back, which costs 36 multiplications where there were 144. The
//! 36 places are 36 products of matrices, tiles times weights.
//!
//! The points of interpolation are 0, ±1/√2, ±√2 and ∞. With the usual 0, ±1, ±2 the powers of the points are
//! larger, and numbers that are nearly equal are subtracted where they have grown.
//!
//! Transformed weights would take four times the memory, so they are made anew for each band, a block of
//! inputs at a time, and used for all of its tiles while they are in the cache.

#![allow(clippy::needless_range_loop, reason = "the formulas speak of rows and columns")]

use super::Panels;
use super::isa::Routine;
use super::lanes::{Lanes, Stored};
use super::panels::Data;
use super::product::{Part, Scratch, accumulate, inside, room, store, tile};
use crate::Result;

/// Outputs of a tile on a side.
pub(crate) const TILE: usize = 4;

/// Inputs of a tile on a side: those that a 3×3 window over its outputs reads.
pub(crate) const PATCH: usize = TILE + 2;

/// Products of a tile.
const PLACES: usize = PATCH * PATCH;

/// Inputs of a block.
const BLOCK: usize = 64;

/// Numbers between the blocks of two places. Without them, the 36 numbers of a tile would lie so far apart that they
/// all want the same lines of the cache.
const APART: usize = 16;

/// Channels of the input must be a multiple of this, the widest vector.
pub(crate) const CHANNELS: usize = 16;

/// The points, squared, and not.
const A2: f32 = 0.5;
const B2: f32 = 2.0;
const A: f32 = std::f32::consts::FRAC_1_SQRT_2;
const B: f32 = std::f32::consts::SQRT_2;

/// Where tiles come from, and where they go.
pub(crate) trait Tiles {
    /// The input row for a place of a tile's patch, row by row; none for a zero.
    fn source(&self, tile: usize, place: usize) -> Option<usize>;

    /// The output row for a place of a tile, row by row; none outside of the picture.
    fn target(&self, tile: usize, place: usize) -> Option<usize>;
}

/// Adds the convolution's part: some tiles (the part's rows) by some panels.
///
/// # Safety
/// `y` is good for all targets of the part's tiles, and nobody else reads or writes the part meanwhile.
///
/// # Errors
/// [`Error::Length`](crate::Error::Length) when the part, or a source, lies outside.
///
/// # Panics
/// When the panels don't have nine taps, or their inputs are no multiple of [`CHANNELS`].
pub(crate) unsafe fn winograd_into(
    panels: &Panels,
    x: &[f32],
    tiles: &dyn Tiles,
    y: *mut f32,
    part: Part,
    scratch: &mut Scratch,
) -> Result<()> {
    assert!(panels.taps == 9 && panels.inputs.is_multiple_of(CHANNELS));
    inside("panels", part.panels.end, panels.count())?;
    let places = part.rows.clone().flat_map(|tile| (0..PLACES).map(move |place| tiles.source(tile, place)));
    scratch.locate(x, panels.inputs, places)?;
    panels.isa.run(Winograd { panels, tiles, y, part, scratch });
    Ok(())
}

/// A part that lies in the panels, whose tiles' sources are in the scratch.
struct Winograd<'a> {
    panels: &'a Panels,
    tiles: &'a dyn Tiles,
    y: *mut f32,
    part: Part,
    scratch: &'a mut Scratch,
}

impl Routine for Winograd<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self) {
        let Self { panels, tiles, y, part, scratch } = self;
        let (inputs, outputs, width, count) = (panels.inputs, panels.outputs, VECTORS * V::COUNT, part.rows.len());
        let depth = BLOCK.min(inputs);
        // From one place to the next.
        let [patch, weight, product] = [count * depth, depth * width, count * width].map(|length| length + APART);
        let panel_products = PLACES * product;
        let Scratch { sources, numbers, .. } = scratch;
        let lengths = [PLACES * patch, PLACES * weight, part.panels.len() * panel_products];
        let (patches, rest) = room(numbers, lengths.iter().sum()).split_at_mut(lengths[0]);
        let (weights, products) = rest.split_at_mut(lengths[1]);
        for start in (0..inputs).step_by(depth) {
            let length = depth.min(inputs - start);
            for (i, sources) in sources.as_chunks::<PLACES>().0.iter().enumerate() {
                // SAFETY: the caller has the instruction set. Sources have all inputs, and there are patches for as many
                // tiles; here and below lengths are whole vectors.
                unsafe { transform_patch::<V>(sources, start, length, patches[i * length..].as_mut_ptr(), patch) };
            }
            for (panel, products) in part.panels.clone().zip(products.chunks_exact_mut(panel_products)) {
                let at = panel * panels.panel_length() + start * width;
                let to = weights.as_mut_ptr();
                // SAFETY: the panel is one of the weights', and has the block.
                unsafe {
                    match &panels.data {
                        Data::F32(data) => {
                            transform_weights::<V, _>(&data[at..], inputs * width, length * width, to, weight)
                        }
                        Data::F16(data) => {
                            transform_weights::<V, _>(&data[at..], inputs * width, length * width, to, weight)
                        }
                        Data::BF16(data) => {
                            transform_weights::<V, _>(&data[at..], inputs * width, length * width, to, weight)
                        }
                    }
                }
                for (place, products) in products.chunks_exact_mut(product).enumerate() {
                    let patches = &patches[place * patch..][..count * length];
                    let weights = &weights[place * weight..][..length * width];
                    for first in (0..count).step_by(ROWS) {
                        // The last rows are computed with one of them repeated.
                        let mut rows = [patches.as_ptr(); ROWS];
                        for (i, row) in rows.iter_mut().enumerate() {
                            *row = patches[(first + i).min(count - 1) * length..].as_ptr();
                        }
                        let products = products[first * width..count * width].chunks_exact_mut(width);
                        // SAFETY: rows and weights have the block's length.
                        unsafe {
                            let sums = tile::<V, ROWS, VECTORS>(rows, length, weights.as_ptr());
                            for (sums, to) in sums.iter().zip(products) {
                                match start {
                                    0 => store(sums, to),
                                    _ => accumulate(sums, to),
                                }
                            }
                        }
                    }
                }
            }
        }
        for (panel, products) in part.panels.clone().zip(products.chunks_exact(panel_products)) {
            let columns = width.min(outputs - panel * width);
            for (i, tile) in part.rows.clone().enumerate() {
                // SAFETY: each place has as many products.
                let results = unsafe { transform_back::<V, VECTORS>(&products[i * width..], product) };
                for (place, results) in results.iter().flatten().enumerate() {
                    let Some(row) = tiles.target(tile, place) else { continue };
                    // SAFETY: the target is the part's, and has that many columns.
                    unsafe {
                        let y = std::slice::from_raw_parts_mut(y.add(row * outputs + panel * width), columns);
                        accumulate(results, y);
                    }
                }
            }
        }
    }
}

/// Bᵀ d B of some channels from `start` on: from each place's row to `to`, from place to place `stride` further.
///
/// # Safety
/// As for [`Lanes`], for whole vectors of channels.
#[inline(always)]
unsafe fn transform_patch<V: Lanes>(
    from: &[*const f32; PLACES],
    start: usize,
    length: usize,
    to: *mut f32,
    stride: usize,
) {
    for at in (0..length).step_by(V::COUNT) {
        // SAFETY: promised by the caller.
        unsafe {
            let mut columns = [[V::splat(0.0); PATCH]; PATCH];
            for x in 0..PATCH {
                let mut column = [V::splat(0.0); PATCH];
                for y in 0..PATCH {
                    column[y] = V::load(from[y * PATCH + x].add(start + at));
                }
                columns[x] = from_patch(column);
            }
            for y in 0..PATCH {
                let mut row = [V::splat(0.0); PATCH];
                for x in 0..PATCH {
                    row[x] = columns[x][y];
                }
                let row = from_patch(row);
                for x in 0..PATCH {
                    V::store(row[x], to.add((y * PATCH + x) * stride + at));
                }
            }
        }
    }
}

/// G g Gᵀ of `length` windows, which lie side by side, from tap to tap `tap` further: to `to`, from place to place
/// `stride` further.
///
/// # Safety
/// As for [`Lanes`], for whole vectors.
#[inline(always)]
unsafe fn transform_weights<V: Lanes, T: Stored>(from: &[T], tap: usize, length: usize, to: *mut f32, stride: usize) {
    assert!(from.len() >= 8 * tap + length);
    let from = from.as_ptr();
    for at in (0..length).step_by(V::COUNT) {
        // SAFETY: promised by the caller; there are as many weights.
        unsafe {
            let mut columns = [[V::splat(0.0); PATCH]; 3];
            for x in 0..3 {
                let mut column = [V::splat(0.0); 3];
                for y in 0..3 {
                    column[y] = T::load(from.add((y * 3 + x) * tap + at));
                }
                columns[x] = from_window(column);
            }
            for y in 0..PATCH {
                let row = from_window([columns[0][y], columns[1][y], columns[2][y]]);
                for x in 0..PATCH {
                    V::store(row[x], to.add((y * PATCH + x) * stride + at));
                }
            }
        }
    }
}

/// Aᵀ m A: a tile's outputs from its products, from place to place `stride` further.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn transform_back<V: Lanes, const VECTORS: usize>(
    products: &[f32],
    stride: usize,
) -> [[[V; VECTORS]; TILE]; TILE] {
    // SAFETY: promised by the caller.
    unsafe {
        let mut outputs = [[[V::splat(0.0); VECTORS]; TILE]; TILE];
        for v in 0..VECTORS {
            let mut columns = [[V::splat(0.0); TILE]; PATCH];
            for x in 0..PATCH {
                let mut column = [V::splat(0.0); PATCH];
                for y in 0..PATCH {
                    column[y] = V::load(products[(y * PATCH + x) * stride + v * V::COUNT..].as_ptr());
                }
                columns[x] = to_tile(column);
            }
            for y in 0..TILE {
                let mut row = [V::splat(0.0); PATCH];
                for x in 0..PATCH {
                    row[x] = columns[x][y];
                }
                let row = to_tile(row);
                for x in 0..TILE {
                    outputs[y][x][v] = row[x];
                }
            }
        }
        outputs
    }
}

/// Bᵀ d: the rows are the coefficients of the polynomials that are zero at all points but one.
///
/// # Safety
/// As for [`Lanes`]; so for those below.
#[inline(always)]
unsafe fn from_patch<V: Lanes>(d: [V; PATCH]) -> [V; PATCH] {
    // SAFETY: promised by the caller, here and below.
    unsafe {
        let (even_a, odd_a) = (less(d[4], d[2], B2), V::mul(less(d[3], d[1], B2), V::splat(A)));
        let (even_b, odd_b) = (less(d[4], d[2], A2), V::mul(less(d[3], d[1], A2), V::splat(B)));
        // The product of the squares is one.
        let first = V::add(less(d[4], d[2], A2 + B2), d[0]);
        let last = V::add(less(d[5], d[3], A2 + B2), d[1]);
        [first, V::add(even_a, odd_a), V::sub(even_a, odd_a), V::add(even_b, odd_b), V::sub(even_b, odd_b), last]
    }
}

/// G g: the window's polynomial at each point, over the product of its distances from the others.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn from_window<V: Lanes>(g: [V; 3]) -> [V; PATCH] {
    const OF_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
    const OF_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));
    // SAFETY: as above.
    unsafe {
        let [even_a, odd_a] = [V::mul_add(g[2], V::splat(A2), g[0]), V::mul(g[1], V::splat(A))];
        let [even_b, odd_b] = [V::mul_add(g[2], V::splat(B2), g[0]), V::mul(g[1], V::splat(B))];
        let [of_a, of_b] = [V::splat(OF_A), V::splat(OF_B)];
        [
            g[0],
            V::mul(V::add(even_a, odd_a), of_a),
            V::mul(V::sub(even_a, odd_a), of_a),
            V::mul(V::add(even_b, odd_b), of_b),
            V::mul(V::sub(even_b, odd_b), of_b),
            g[2],
        ]
    }
}

/// Aᵀ m: the powers of the points.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn to_tile<V: Lanes>(m: [V; PATCH]) -> [V; TILE] {
    // SAFETY: as above.
    unsafe {
        let (even_a, odd_a) = (V::add(m[1], m[2]), V::sub(m[1], m[2]));
        let (even_b, odd_b) = (V::add(m[3], m[4]), V::sub(m[3], m[4]));
        [
            V::add(m[0], V::add(even_a, even_b)),
            both(odd_a, A, odd_b, B),
            both(even_a, A2, even_b, B2),
            V::add(m[5], both(odd_a, A * A2, odd_b, B * B2)),
        ]
    }
}

/// `x − factor · y`.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn less<V: Lanes>(x: V, y: V, factor: f32) -> V {
    // SAFETY: as above.
    unsafe { V::mul_add(y, V::splat(-factor), x) }
}

/// `x · by_x + y · by_y`.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn both<V: Lanes>(x: V, by_x: f32, y: V, by_y: f32) -> V {
    // SAFETY: as above.
    unsafe { V::mul_add(x, V::splat(by_x), V::mul(y, V::splat(by_y))) }
}
