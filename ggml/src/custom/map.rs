//! Linear maps and convolutions with packed weights.

use std::sync::{Arc, PoisonError, RwLock};

use super::{BAND_FLOPS, Kernel, Tensors, band_of};
use crate::Shape;
use crate::kernels::{Panels, Part, Scratch, product_into};

/// Output rows of a band.
const BAND_ROWS: usize = 128;

/// Where each output row takes its inputs from.
#[derive(Clone, Copy)]
pub(crate) enum Geometry {
    /// From the input row of the same number.
    Rows,
    /// From a window of the input picture; pictures are rows of pixels.
    Window {
        /// Width and height of the input.
        input: [usize; 2],
        /// Width and height that the input is enlarged to before, by the nearest pixel.
        enlarged: [usize; 2],
        /// Width and height of the output.
        output: [usize; 2],
        /// Width of the window.
        window: usize,
        /// Pixels from one window to the next.
        stride: usize,
        /// Pixels to the left of the input and above it.
        padding: usize,
        /// Whether what lies outside is the opposite edge, as in a picture that is laid out in tiles, and
        /// not zero.
        wraps: bool,
    },
}

impl Geometry {
    /// The input row that tap `tap` of output row `row` reads; none for a zero.
    fn source(&self, row: usize, tap: usize) -> Option<usize> {
        let Self::Window { input, enlarged, output, window, stride, padding, wraps } = *self else { return Some(row) };
        let (x, y) = (row % output[0], row / output[0] % output[1]);
        let picture = row / (output[0] * output[1]);
        let place = |at: usize, tap: usize, axis: usize| {
            let (at, size) = (at * stride + tap, enlarged[axis]);
            let at = match wraps {
                true => (at + size * padding.div_ceil(size) - padding) % size,
                false => at.checked_sub(padding).filter(|&at| at < size)?,
            };
            Some(if size == input[axis] { at } else { at * input[axis] / size })
        };
        Some((picture * input[1] + place(y, tap / window, 1)?) * input[0] + place(x, tap % window, 0)?)
    }
}

/// A linear map, or a convolution, with its weights. Operands: the input rows, a bias `[outputs]` if
/// `has_bias`, then what is added: nothing, a row per picture, or as much as the output.
pub(crate) struct Map {
    pub(crate) panels: Arc<RwLock<Panels>>,
    pub(crate) geometry: Geometry,
    /// `[outputs, …]`.
    pub(crate) shape: Shape,
    pub(crate) has_bias: bool,
    sizes: Sizes,
}

/// What the division into bands is made from.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    products: usize,
    panels: usize,
    /// Panels of a band.
    band_panels: usize,
}

impl Map {
    pub(crate) fn new(panels: Arc<RwLock<Panels>>, geometry: Geometry, shape: Shape, has_bias: bool) -> Self {
        let sizes = {
            let panels = panels.read().unwrap_or_else(PoisonError::into_inner);
            let (count, rows) = (panels.count(), shape[1..].iter().product());
            let products = panels.outputs() * panels.products();
            let panel_flops = 2 * BAND_ROWS.min(rows) * products / count;
            let band_panels = (BAND_FLOPS / panel_flops.max(1)).clamp(1, count);
            Sizes { rows, products, panels: count, band_panels }
        };
        Self { panels, geometry, shape, has_bias, sizes }
    }

    fn panel_bands(&self) -> usize {
        self.sizes.panels.div_ceil(self.sizes.band_panels)
    }
}

impl Kernel for Map {
    fn name(&self) -> &'static str {
        match self.geometry {
            Geometry::Rows => "linear",
            Geometry::Window { window: 1, .. } => "convolution 1×1",
            Geometry::Window { .. } => "convolution",
        }
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn flops(&self) -> f64 {
        2.0 * self.sizes.rows as f64 * self.sizes.products as f64
    }

    fn weight_bytes(&self) -> usize {
        self.panels.read().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    fn bands(&self) -> usize {
        self.sizes.rows.div_ceil(BAND_ROWS) * self.panel_bands()
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch) {
        let panels = self.panels.read().unwrap_or_else(PoisonError::into_inner);
        let part = Part {
            rows: band_of(band / self.panel_bands(), self.sizes.rows, BAND_ROWS),
            panels: band_of(band % self.panel_bands(), self.sizes.panels, self.sizes.band_panels),
        };
        let outputs = panels.outputs();
        let columns = panels.columns(&part.panels);
        let bias = if self.has_bias { &tensors.operand(1)[columns.clone()] } else { &[] };
        let added = tensors.operand(1 + usize::from(self.has_bias));
        let rows_per_addend = if added.is_empty() { 1 } else { self.sizes.rows / (added.len() / outputs) };
        for row in part.rows.clone() {
            // SAFETY: these columns of the band's rows are part of it.
            let y = unsafe { tensors.output(row * outputs + columns.start..row * outputs + columns.end) };
            match bias {
                [] => y.fill(0.0),
                bias => y.copy_from_slice(bias),
            }
            if !added.is_empty() {
                let added = &added[row / rows_per_addend * outputs..][columns.clone()];
                y.iter_mut().zip(added).for_each(|(y, added)| *y += added);
            }
        }
        let source = |row, tap| self.geometry.source(row, tap);
        // SAFETY: the part is the band's, and the output has its rows.
        let computed = unsafe { product_into(&panels, tensors.operand(0), &source, tensors.output, part, scratch) };
        computed.expect("the geometry was checked when the op was made");
    }
}
