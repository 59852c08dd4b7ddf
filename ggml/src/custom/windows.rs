//! Where a convolution's windows lie.

use crate::kernels::{PATCH, TILE, Tiles};

/// How a window passes over pictures, which are rows of pixels.
#[derive(Clone, Copy)]
pub(crate) struct Windows {
    /// Width and height of the input.
    pub(crate) input: [usize; 2],
    /// Width and height that the input is enlarged to before, by the nearest pixel.
    pub(crate) enlarged: [usize; 2],
    /// Width and height of the output.
    pub(crate) output: [usize; 2],
    /// Width of the window.
    pub(crate) window: usize,
    /// Pixels from one window to the next.
    pub(crate) stride: usize,
    /// Pixels to the left of the input and above it.
    pub(crate) padding: usize,
    /// Whether what lies outside is the opposite edge, as in a picture that is laid out in tiles, and not zero.
    pub(crate) wraps: bool,
}

impl Windows {
    /// The input row that tap `tap` of output row `row` reads; none for a zero.
    pub(crate) fn tap(&self, row: usize, tap: usize) -> Option<usize> {
        let (picture, x, y) = parted(row, self.output);
        self.pixel(picture, x * self.stride + tap % self.window, y * self.stride + tap / self.window)
    }

    /// The input row of a pixel, in coordinates that begin with the padding; none for a zero.
    fn pixel(&self, picture: usize, x: usize, y: usize) -> Option<usize> {
        let [x, y] = [self.place(x, 0)?, self.place(y, 1)?];
        Some((picture * self.input[1] + y) * self.input[0] + x)
    }

    fn place(&self, at: usize, axis: usize) -> Option<usize> {
        let (size, padding) = (self.enlarged[axis], self.padding);
        let at = match self.wraps {
            true => (at + size * padding.div_ceil(size) - padding) % size,
            false => at.checked_sub(padding).filter(|&at| at < size)?,
        };
        Some(if size == self.input[axis] { at } else { at * self.input[axis] / size })
    }

    /// Tiles of [`TILE`] × [`TILE`] outputs that a picture has, from left to right and from top to bottom.
    pub(crate) fn tiles(&self) -> [usize; 2] {
        self.output.map(|size| size.div_ceil(TILE))
    }
}

impl Tiles for Windows {
    fn source(&self, tile: usize, place: usize) -> Option<usize> {
        let (picture, x, y) = parted(tile, self.tiles());
        self.pixel(picture, x * TILE + place % PATCH, y * TILE + place / PATCH)
    }

    fn target(&self, tile: usize, place: usize) -> Option<usize> {
        let (picture, x, y) = parted(tile, self.tiles());
        let [x, y] = [x * TILE + place % TILE, y * TILE + place / TILE];
        let [width, height] = self.output;
        (x < width && y < height).then_some((picture * height + y) * width + x)
    }
}

/// Picture, column and row of one of many things that lie in pictures of some size.
fn parted(i: usize, [width, height]: [usize; 2]) -> (usize, usize, usize) {
    (i / (width * height), i % width, i / width % height)
}
