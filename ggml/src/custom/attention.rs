//! Attention: first keys and values are packed, then bands of queries look at them.

use super::{BAND_FLOPS, Kernel, Tensors, band_of};
use crate::Shape;
use crate::kernels::{Attend, Head, Isa, Scratch, block_length, blocks, pack};

/// Queries of a band, at least and at most; multiples of what each kernel computes at once.
const BAND_QUERIES: [usize; 2] = [48, 96];

/// Sizes of an attention over `batch` batches.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) isa: Isa,
    /// Channels of all heads.
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) batch: usize,
}

impl Sizes {
    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Numbers of a batch's head when it is packed.
    fn packed_length(&self) -> usize {
        blocks(self.keys) * block_length(self.isa, self.head_width())
    }

    /// A batch's head of tokens `[width, length, batch]`.
    fn head<'a>(&self, tokens: &'a [f32], batch: usize, head: usize, length: usize, first_row: usize) -> Head<'a> {
        let width = self.head_width();
        Head { values: &tokens[(batch * length + first_row) * self.width + head * width..], stride: self.width, width }
    }
}

/// Packs keys and values, both `[width, keys, batch]`.
pub(crate) struct Pack(pub(crate) Sizes);

impl Kernel for Pack {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn shape(&self) -> Shape {
        [self.0.packed_length(), self.0.heads, self.0.batch, 1]
    }

    fn may_stay(&self) -> bool {
        true
    }

    fn bands(&self) -> usize {
        blocks(self.0.keys) * self.0.heads * self.0.batch
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, _: &mut Scratch) {
        let sizes = &self.0;
        let length = block_length(sizes.isa, sizes.head_width());
        let (of_head, block) = (band / blocks(sizes.keys), band % blocks(sizes.keys));
        let head = |i| sizes.head(tensors.operand(i), of_head / sizes.heads, of_head % sizes.heads, sizes.keys, 0);
        // SAFETY: a band is a block.
        let packed = unsafe { tensors.output(band * length..(band + 1) * length) };
        pack(sizes.isa, head(0), head(1), sizes.keys, block, packed);
    }
}

/// softmax(`scale` · q kᵀ + mask) v. Operands: queries `[width, queries, batch]`, what [`Pack`] gave, and
/// a mask `[keys, queries]` if there is one. The output is as the queries.
pub(crate) struct Attention {
    pub(crate) sizes: Sizes,
    pub(crate) scale: f32,
}

impl Attention {
    fn band_queries(&self) -> usize {
        let flops = 4 * self.sizes.keys * self.sizes.head_width();
        (BAND_FLOPS / flops / 12 * 12).clamp(BAND_QUERIES[0], BAND_QUERIES[1])
    }

    fn bands_of_head(&self) -> usize {
        self.sizes.queries.div_ceil(self.band_queries())
    }
}

impl Kernel for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn shape(&self) -> Shape {
        [self.sizes.width, self.sizes.queries, self.sizes.batch, 1]
    }

    fn flops(&self) -> f64 {
        let Sizes { width, queries, keys, batch, .. } = self.sizes;
        // The scores, and their product with the values.
        4.0 * [width, queries, keys, batch].map(|size| size as f64).iter().product::<f64>()
    }

    fn bands(&self) -> usize {
        self.bands_of_head() * self.sizes.heads * self.sizes.batch
    }

    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch) {
        let sizes = &self.sizes;
        let of_head = band / self.bands_of_head();
        let (batch, head) = (of_head / sizes.heads, of_head % sizes.heads);
        let rows = band_of(band % self.bands_of_head(), sizes.queries, self.band_queries());
        let mask = tensors.operand(2);
        let width = sizes.head_width();
        let mut y = |row| {
            let at = (batch * sizes.queries + rows.start + row) * sizes.width + head * width;
            // SAFETY: a head's columns of the band's rows are part of it.
            unsafe { tensors.output(at..at + width).as_mut_ptr() }
        };
        let attend = Attend {
            q: sizes.head(tensors.operand(0), batch, head, sizes.queries, rows.start),
            rows: rows.len(),
            keys: sizes.keys,
            packed: &tensors.operand(1)[of_head * sizes.packed_length()..][..sizes.packed_length()],
            mask: (!mask.is_empty()).then(|| &mask[rows.start * sizes.keys..rows.end * sizes.keys]),
            scale: self.scale,
            y: &mut y,
            scratch,
        };
        // SAFETY: as above.
        unsafe { attend.compute(sizes.isa) };
    }
}
