//! Weights as the kernels read them.

use std::ops::Range;

use bytemuck::allocation::try_zeroed_vec;
use bytemuck::{AnyBitPattern, Zeroable};
use half::{bf16, f16};

use super::Isa;
use crate::{Dtype, Error, Result};

/// The weights of a linear map or a convolution, packed for one instruction set.
///
/// A convolution is a sum of linear maps, one for each place in its kernel: its *taps*. A linear
/// map has one. Outputs are divided into panels as wide as the instruction set likes; a panel holds,
/// tap by tap and input by input, the weights of its outputs side by side. The last panel is filled
/// up with zeros. Weights keep the type that they are stored in.
pub struct Panels {
    pub(super) isa: Isa,
    pub(super) outputs: usize,
    pub(super) taps: usize,
    pub(super) inputs: usize,
    pub(super) data: Data,
}

pub(super) enum Data {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Panels {
    /// Room for weights `[outputs, inputs, taps]`, all zero.
    ///
    /// # Errors
    /// [`Error::Type`] for types other than F32, F16 and BF16, [`Error::Alloc`].
    pub fn zeros(isa: Isa, dtype: Dtype, outputs: usize, inputs: usize, taps: usize) -> Result<Self> {
        let length = Self::length(isa, outputs, inputs, taps);
        let data = match dtype {
            Dtype::F32 => Data::F32(zeros(length)?),
            Dtype::F16 => Data::F16(zeros(length)?),
            Dtype::BF16 => Data::BF16(zeros(length)?),
            found => return Err(Error::Type { op: "pack", expected: "F32, F16 or BF16", found }),
        };
        Ok(Self { isa, outputs, taps, inputs, data })
    }

    /// Writes weights, given as the bytes of their type in this machine's order, from the byte
    /// `offset` of `[outputs, inputs, taps]` on: slowest dimension first, as PyTorch stores them, a
    /// kernel's rows and columns being the taps.
    ///
    /// # Errors
    /// [`Error::Length`] when they lie outside or are not whole.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let size = self.dtype().size();
        let all = self.outputs * self.inputs * self.taps * size;
        let end = offset.saturating_add(bytes.len());
        if end > all || !offset.is_multiple_of(size) || !end.is_multiple_of(size) {
            return Err(Error::Length { what: "weights", expected: all, found: end });
        }
        let places = Places { width: self.isa.panel_width(), inputs: self.inputs, taps: self.taps };
        match &mut self.data {
            Data::F32(data) => places.scatter::<_, 4>(data, offset / size, bytes),
            Data::F16(data) => places.scatter::<_, 2>(data, offset / size, bytes),
            Data::BF16(data) => places.scatter::<_, 2>(data, offset / size, bytes),
        }
        Ok(())
    }

    /// The type that the weights are stored in.
    pub fn dtype(&self) -> Dtype {
        match self.data {
            Data::F32(_) => Dtype::F32,
            Data::F16(_) => Dtype::F16,
            Data::BF16(_) => Dtype::BF16,
        }
    }

    /// Numbers that panels of these sizes take; as many as there can be when they overflow.
    pub(crate) fn length(isa: Isa, outputs: usize, inputs: usize, taps: usize) -> usize {
        let width = isa.panel_width();
        outputs.div_ceil(width).saturating_mul(width).saturating_mul(inputs).saturating_mul(taps)
    }

    /// How many panels there are.
    pub fn count(&self) -> usize {
        self.outputs.div_ceil(self.isa.panel_width())
    }

    /// How many outputs there are.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// How many inputs each tap has.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How many weights each output has.
    pub fn products(&self) -> usize {
        self.inputs * self.taps
    }

    /// The outputs of some panels.
    pub(crate) fn columns(&self, panels: &Range<usize>) -> Range<usize> {
        let width = self.isa.panel_width();
        panels.start * width..self.outputs.min(panels.end * width)
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(data) => size_of_val(data.as_slice()),
            Data::F16(data) => size_of_val(data.as_slice()),
            Data::BF16(data) => size_of_val(data.as_slice()),
        }
    }

    /// Weights of one panel.
    pub(super) fn panel_length(&self) -> usize {
        self.taps * self.inputs * self.isa.panel_width()
    }
}

/// Pages are had when they are first written, by those that pack.
fn zeros<T: Zeroable>(length: usize) -> Result<Vec<T>> {
    let bytes = length.saturating_mul(size_of::<T>());
    let mut zeros = try_zeroed_vec(length).map_err(|()| Error::Alloc { what: "weights", bytes })?;
    want_large_pages(&mut zeros);
    Ok(zeros)
}

/// Asks the system to use large pages, where it can: a model's weights are half a million small ones.
#[cfg(all(target_os = "linux", not(miri)))]
fn want_large_pages<T>(memory: &mut [T]) {
    use rustix::mm::{Advice, madvise};
    /// The size of a small page, or a multiple of it.
    const PAGE: usize = 1 << 16;
    let start = memory.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(PAGE);
    let length = size_of_val(memory).saturating_sub(skipped) / PAGE * PAGE;
    if length > 0 {
        // SAFETY: the pages lie in `memory`, and what they hold stays as it is. An advice may be turned down.
        let _ = unsafe { madvise(start.add(skipped).cast(), length, Advice::LinuxHugepage) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn want_large_pages<T>(_: &mut [T]) {}

/// Where a weight lies in the panels.
struct Places {
    width: usize,
    inputs: usize,
    taps: usize,
}

/// Sides of a square of weights that is turned at a time, in the first-level cache. No panel is wider.
const SQUARE: usize = 32;

impl Places {
    /// Writes weights from the `first`-th of `[outputs, inputs, taps]` on.
    fn scatter<T: AnyBitPattern, const BYTES: usize>(&self, data: &mut [T], first: usize, bytes: &[u8]) {
        let (row, mut first, mut values) = (self.inputs * self.taps, first, bytes.as_chunks::<BYTES>().0);
        while !values.is_empty() {
            let (output, start) = (first / row, first % row);
            let lane = output % self.width;
            // What is left of a row, or whole rows as far as the panel goes.
            let rows = if start > 0 { 1 } else { (values.len() / row).clamp(1, self.width - lane) };
            let length = if rows > 1 { row } else { values.len().min(row - start) };
            let (now, later) = values.split_at(rows * length);
            let panel = &mut data[output / self.width * row * self.width..][..row * self.width];
            for part in (0..length).step_by(SQUARE) {
                self.turn(&mut panel[lane..], start + part, now, rows, part..length.min(part + SQUARE));
            }
            (first, values) = (first + now.len(), later);
        }
    }

    /// Writes the weights in the columns `part` of `rows` rows of `values`, of which the first is a row's `start`-th.
    /// `lanes` begins at the first row's place in the panel.
    fn turn<T: AnyBitPattern, const BYTES: usize>(
        &self,
        lanes: &mut [T],
        start: usize,
        values: &[[u8; BYTES]],
        rows: usize,
        part: Range<usize>,
    ) {
        let mut square = [[T::zeroed(); SQUARE]; SQUARE];
        for (square, row) in square.iter_mut().zip(values.chunks_exact(values.len() / rows)) {
            for (to, from) in square.iter_mut().zip(&row[part.clone()]) {
                *to = bytemuck::pod_read_unaligned(from);
            }
        }
        for i in 0..part.len() {
            let place = ((start + i) % self.taps * self.inputs + (start + i) / self.taps) * self.width;
            for (to, row) in lanes[place..].iter_mut().zip(&square[..rows]) {
                *to = row[i];
            }
        }
    }
}
