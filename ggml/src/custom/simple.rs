//! Ops that pass over their operands once.

use super::{BAND_NUMBERS, Kernel, Tensors, band_of};
use crate::Shape;
use crate::kernels::{self, Activation, Isa, Scratch};

/// A function of each number.
pub(crate) struct Activate {
    pub(crate) isa: Isa,
    pub(crate) shape: Shape,
    pub(crate) activation: Activation,
}

impl Kernel for Activate {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn bands(&self) -> usize {
        self.shape.iter().product::<usize>().div_ceil(BAND_NUMBERS)
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let range = band_of(band, tensors.operand(0).len(), BAND_NUMBERS);
        // SAFETY: a band is a range.
        let y = unsafe { tensors.output(range.clone()) };
        kernels::activate(self.isa, self.activation, &tensors.operand(0)[range], y);
    }
}

/// GEGLU: the first half of each row times the exact GELU of the second.
pub(crate) struct Gate {
    pub(crate) isa: Isa,
    /// Of the output: half as wide as the operand.
    pub(crate) shape: Shape,
}

impl Gate {
    fn rows(&self) -> usize {
        self.shape[1..].iter().product()
    }

    fn band_rows(&self) -> usize {
        (BAND_NUMBERS / 2 / self.shape[0]).max(1)
    }
}

impl Kernel for Gate {
    fn name(&self) -> &'static str {
        "geglu"
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn bands(&self) -> usize {
        self.rows().div_ceil(self.band_rows())
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let width = self.shape[0];
        for row in band_of(band, self.rows(), self.band_rows()) {
            let (x, gate) = tensors.operand(0)[2 * row * width..][..2 * width].split_at(width);
            // SAFETY: a band is some rows.
            let y = unsafe { tensors.output(row * width..(row + 1) * width) };
            kernels::gate(self.isa, x, gate, y);
        }
    }
}

/// Two operands row by row, one after the other.
pub(crate) struct Concat {
    /// How wide each operand is.
    pub(crate) widths: [usize; 2],
    pub(crate) shape: Shape,
}

impl Concat {
    fn rows(&self) -> usize {
        self.shape[1..].iter().product()
    }

    fn band_rows(&self) -> usize {
        (BAND_NUMBERS / self.shape[0]).max(1)
    }
}

impl Kernel for Concat {
    fn name(&self) -> &'static str {
        "concatenation"
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn bands(&self) -> usize {
        self.rows().div_ceil(self.band_rows())
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let [left, right] = self.widths;
        for row in band_of(band, self.rows(), self.band_rows()) {
            // SAFETY: a band is some rows.
            let y = unsafe { tensors.output(row * self.shape[0]..(row + 1) * self.shape[0]) };
            let (to_left, to_right) = y.split_at_mut(left);
            to_left.copy_from_slice(&tensors.operand(0)[row * left..][..left]);
            to_right.copy_from_slice(&tensors.operand(1)[row * right..][..right]);
        }
    }
}
