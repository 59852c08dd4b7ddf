//! Linear maps and convolutions with packed weights, as ops of a graph.

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};

use crate::kernels::{Panels, Part, Scratch, product_into};
use crate::{Shape, sys};

/// Output rows of a band.
const BAND_ROWS: usize = 128;

/// Arithmetic of a band, about a millisecond of one core.
const BAND_FLOPS: usize = 64 << 20;

/// Where each output row takes its inputs from.
pub(crate) enum Geometry {
    /// From the input row of the same number.
    Rows,
    /// From a window of the input picture; pictures are rows of pixels.
    Window {
        /// Width and height of the input.
        input: [usize; 2],
        /// Width and height of the output.
        output: [usize; 2],
        /// Width of the window.
        window: usize,
        /// Pixels from one window to the next.
        stride: usize,
        /// Zeros around the input.
        padding: usize,
    },
}

impl Geometry {
    /// The input row that tap `tap` of output row `row` reads; none for a zero.
    fn source(&self, row: usize, tap: usize) -> Option<usize> {
        match *self {
            Self::Rows => Some(row),
            Self::Window { input: [width, height], output, window, stride, padding } => {
                let (x, y) = (row % output[0], row / output[0] % output[1]);
                let picture = row / (output[0] * output[1]);
                let x = (x * stride + tap % window).checked_sub(padding).filter(|&x| x < width)?;
                let y = (y * stride + tap / window).checked_sub(padding).filter(|&y| y < height)?;
                Some((picture * height + y) * width + x)
            }
        }
    }
}

/// A linear map, or a convolution, with its weights.
pub(crate) struct Map {
    pub(crate) panels: Arc<RwLock<Panels>>,
    pub(crate) geometry: Geometry,
    /// `[outputs, …]`.
    pub(crate) shape: Shape,
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
    pub(crate) fn new(panels: Arc<RwLock<Panels>>, geometry: Geometry, shape: Shape) -> Self {
        let sizes = {
            let panels = panels.read().unwrap_or_else(PoisonError::into_inner);
            let (count, rows) = (panels.count(), shape[1..].iter().product());
            let products = panels.outputs() * panels.products();
            let panel_flops = 2 * BAND_ROWS.min(rows) * products / count;
            let band_panels = (BAND_FLOPS / panel_flops.max(1)).clamp(1, count);
            Sizes { rows, products, panels: count, band_panels }
        };
        Self { panels, geometry, shape, sizes }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn flops(&self) -> f64 {
        2.0 * self.sizes.rows as f64 * self.sizes.products as f64
    }

    pub(crate) fn bands(&self) -> usize {
        self.sizes.rows.div_ceil(BAND_ROWS) * self.panel_bands()
    }

    fn panel_bands(&self) -> usize {
        self.sizes.panels.div_ceil(self.sizes.band_panels)
    }

    /// Computes a band of `output`.
    ///
    /// # Safety
    /// `output` and its operands (the input rows, and a bias if there is one) have their memory and
    /// the shapes that this map was made for, and nobody else has this band.
    pub(crate) unsafe fn compute(&self, band: usize, output: NonNull<sys::ggml_tensor>, scratch: &mut Scratch) {
        let panels = self.panels.read().unwrap_or_else(PoisonError::into_inner);
        let (rows, columns) =
            (band / self.panel_bands() * BAND_ROWS, band % self.panel_bands() * self.sizes.band_panels);
        let part = Part {
            rows: rows..self.sizes.rows.min(rows + BAND_ROWS),
            panels: columns..self.sizes.panels.min(columns + self.sizes.band_panels),
        };
        // SAFETY: the caller's promise.
        let (x, bias, y) = unsafe {
            let tensor = output.as_ref();
            let values = |operand: *mut sys::ggml_tensor| {
                let operand = operand.as_ref()?;
                let length = operand.ne.iter().product::<i64>() as usize;
                Some(std::slice::from_raw_parts(operand.data.cast::<f32>(), length))
            };
            (values(tensor.src[0]).unwrap_or_default(), values(tensor.src[1]), tensor.data.cast::<f32>())
        };
        let columns = panels.columns(&part.panels);
        for row in part.rows.clone() {
            // SAFETY: the row lies in the output, and these columns of it are ours.
            let y =
                unsafe { std::slice::from_raw_parts_mut(y.add(row * panels.outputs() + columns.start), columns.len()) };
            match bias {
                Some(bias) => y.copy_from_slice(&bias[columns.clone()]),
                None => y.fill(0.0),
            }
        }
        // SAFETY: as above.
        let computed =
            unsafe { product_into(&panels, x, &|row, tap| self.geometry.source(row, tap), y, part, scratch) };
        computed.expect("the geometry was checked when the op was made");
    }
}
