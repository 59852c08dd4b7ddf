//! Linear maps and convolutions with packed weights.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use super::windows::Windows;
use super::{BAND_FLOPS, Kernel, Tensors, band_of};
use crate::Shape;
use crate::kernels::{CHANNELS, Panels, Part, Scratch, TILE, Tiles, product_into, winograd_into};

/// Output rows of a band.
const BAND_ROWS: usize = 128;

/// Tiles of a band, where a convolution is computed by tiles.
const BAND_TILES: usize = 48;

/// Where each output row takes its inputs from.
#[derive(Clone, Copy)]
pub(crate) enum Geometry {
    /// From the input row of the same number.
    Rows,
    /// From a window of the input picture.
    Windows(Windows),
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
    /// Tiles in all, where the output is computed by tiles.
    tiles: Option<usize>,
    /// Panels of a band.
    band_panels: usize,
}

impl Map {
    pub(crate) fn new(panels: Arc<RwLock<Panels>>, geometry: Geometry, shape: Shape, has_bias: bool) -> Self {
        let sizes = {
            let panels = panels.read().unwrap_or_else(PoisonError::into_inner);
            let (count, rows) = (panels.count(), shape[1..].iter().product());
            let products = panels.outputs() * panels.products();
            let tiles = tiles(&panels, &geometry, shape);
            let band_rows = match tiles {
                // Of each tile's products there are a quarter.
                Some(tiles) => BAND_TILES.min(tiles) * TILE * TILE / 4,
                None => BAND_ROWS.min(rows),
            };
            let panel_flops = 2 * band_rows * products / count;
            let band_panels = (BAND_FLOPS / panel_flops.max(1)).clamp(1, count);
            Sizes { rows, products, panels: count, tiles, band_panels }
        };
        Self { panels, geometry, shape, has_bias, sizes }
    }

    fn panel_bands(&self) -> usize {
        self.sizes.panels.div_ceil(self.sizes.band_panels)
    }

    /// Fills the part's rows with what is there without the products: the bias, and what is added.
    fn begin(&self, rows: impl Iterator<Item = usize>, columns: Range<usize>, tensors: &Tensors<'_>) {
        let outputs = self.shape[0];
        let bias = if self.has_bias { &tensors.operand(1)[columns.clone()] } else { &[] };
        let added = tensors.operand(1 + usize::from(self.has_bias));
        let rows_per_addend = if added.is_empty() { 1 } else { self.sizes.rows / (added.len() / outputs) };
        for row in rows {
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
    }
}

/// How many tiles the output is computed by, where that is possible and pays.
fn tiles(panels: &Panels, geometry: &Geometry, shape: Shape) -> Option<usize> {
    /// Below, the weights of a tile cost more to transform than they save.
    const FEWEST: usize = 6;
    let Geometry::Windows(windows) = geometry else { return None };
    let suits = windows.window == 3 && windows.stride == 1 && panels.inputs().is_multiple_of(CHANNELS);
    let count = windows.tiles().iter().product::<usize>() * shape[3];
    // At the edges parts of tiles are computed for nothing.
    let pays = count >= FEWEST && 3 * count * TILE * TILE / 4 < 2 * shape[1..].iter().product::<usize>();
    (suits && pays).then_some(count)
}

impl Kernel for Map {
    fn name(&self) -> &'static str {
        match self.geometry {
            Geometry::Rows => "linear",
            Geometry::Windows(Windows { window: 1, .. }) => "convolution 1×1",
            Geometry::Windows(_) => "convolution",
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
        let bands = match self.sizes.tiles {
            Some(tiles) => tiles.div_ceil(BAND_TILES),
            None => self.sizes.rows.div_ceil(BAND_ROWS),
        };
        bands * self.panel_bands()
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch) {
        let panels = self.panels.read().unwrap_or_else(PoisonError::into_inner);
        let x = tensors.operand(0);
        let rows = |count, size| band_of(band / self.panel_bands(), count, size);
        let part =
            |rows| Part { rows, panels: band_of(band % self.panel_bands(), self.sizes.panels, self.sizes.band_panels) };
        let columns = panels.columns(&part(0..0).panels);
        let computed = match (self.geometry, self.sizes.tiles) {
            (Geometry::Windows(windows), Some(tiles)) => {
                let tiles = rows(tiles, BAND_TILES);
                let targets =
                    tiles.clone().flat_map(|tile| (0..TILE * TILE).filter_map(move |i| windows.target(tile, i)));
                self.begin(targets, columns, tensors);
                // SAFETY: the part is the band's, and the output has its rows.
                unsafe { winograd_into(&panels, x, &windows, tensors.output, part(tiles), scratch) }
            }
            (geometry, _) => {
                let rows = rows(self.sizes.rows, BAND_ROWS);
                self.begin(rows.clone(), columns, tensors);
                let source = |row, tap| match geometry {
                    Geometry::Rows => Some(row),
                    Geometry::Windows(windows) => windows.tap(row, tap),
                };
                // SAFETY: as above.
                unsafe { product_into(&panels, x, &source, tensors.output, part(rows), scratch) }
            }
        };
        computed.expect("the geometry was checked when the op was made");
    }
}
