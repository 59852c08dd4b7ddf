//! Ops of our own inside a ggml graph.
//!
//! ggml describes such an op and places its output; the executor computes it. The output is cut into
//! bands, and each thread takes the next one that nobody has taken, so a thread that another process holds
//! up delays one band and not its share of everything. A band's numbers do not depend on who computes it.

mod attention;
mod map;
mod norm;
mod simple;
mod windows;

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;

pub(crate) use attention::{Attention, Pack, Sizes as AttentionSizes};
pub(crate) use map::{Geometry, Map};
pub(crate) use norm::{GroupMoments, GroupNorm, GroupScales, LayerNorm, Sizes as GroupSizes};
pub(crate) use simple::{Activate, Concat, Gate};
pub(crate) use windows::Windows;

use crate::kernels::Scratch;
use crate::{Shape, sys};

/// Numbers of a band of an op that only passes over memory.
const BAND_NUMBERS: usize = 1 << 16;

/// Arithmetic of a band, about a millisecond of one core.
const BAND_FLOPS: usize = 64 << 20;

/// What an op computes.
pub(crate) trait Kernel: Send + Sync {
    /// Its name in tables of costs.
    fn name(&self) -> &'static str;

    /// Sizes of the output.
    fn shape(&self) -> Shape;

    /// Multiplications and additions in products; the rest is small beside them.
    fn flops(&self) -> f64 {
        0.0
    }

    /// Bytes of what it reads beside its operands.
    fn weight_bytes(&self) -> usize {
        0
    }

    /// Whether the output is worth keeping from run to run, if what it depends on stays the same.
    fn may_stay(&self) -> bool {
        false
    }

    /// How many parts the output is cut into.
    fn bands(&self) -> usize;

    /// Computes a band: writes that part of the output, and no other.
    fn compute(&self, band: usize, tensors: &Tensors<'_>, scratch: &mut Scratch);
}

/// The most operands of an op.
pub(crate) const MOST_OPERANDS: usize = 5;

/// The operands and the output of an op, F32 and contiguous.
pub(crate) struct Tensors<'a> {
    operands: [&'a [f32]; MOST_OPERANDS],
    output: *mut f32,
    length: usize,
}

// SAFETY: several threads write the output, each its own part.
unsafe impl Sync for Tensors<'_> {}

impl<'a> Tensors<'a> {
    /// Those of a node.
    ///
    /// # Safety
    /// The tensor and its operands have their memory, which stays while these live, and nobody else
    /// writes it meanwhile.
    pub(crate) unsafe fn of(output: NonNull<sys::ggml_tensor>) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let tensor = output.as_ref();
            let length = |tensor: &sys::ggml_tensor| tensor.ne.iter().product::<i64>() as usize;
            let operands = std::array::from_fn(|i| match tensor.src[i].as_ref() {
                Some(operand) => std::slice::from_raw_parts(operand.data.cast::<f32>(), length(operand)),
                None => &[][..],
            });
            Self { operands, output: tensor.data.cast(), length: length(tensor) }
        }
    }

    /// The `i`-th operand; empty if there is none.
    fn operand(&self, i: usize) -> &'a [f32] {
        self.operands[i]
    }

    /// Part of the output.
    ///
    /// # Safety
    /// It lies within the band that is being computed.
    #[allow(clippy::mut_from_ref)]
    unsafe fn output(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.length, "a band lies outside of its output");
        // SAFETY: inside, and nobody else's by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.output.add(range.start), range.len()) }
    }
}

/// The `band`-th of as many parts as it takes to have at most `size` of `count` things in each.
fn band_of(band: usize, count: usize, size: usize) -> Range<usize> {
    band * size..count.min((band + 1) * size)
}

/// Puts an op into a graph, which is only ever computed by the executor.
///
/// # Safety
/// The context has room, and the operands are alive.
pub(crate) unsafe fn describe(
    context: *mut sys::ggml_context,
    shape: Shape,
    operands: &mut [*mut sys::ggml_tensor],
) -> *mut sys::ggml_tensor {
    let ([a, b, c, d], count) = (shape.map(|size| size as i64), operands.len() as c_int);
    // SAFETY: the caller's promise.
    unsafe {
        let (args, none) = (operands.as_mut_ptr(), std::ptr::null_mut());
        sys::ggml_custom_4d(context, sys::GGML_TYPE_F32, a, b, c, d, args, count, Some(never), 1, none)
    }
}

/// ggml asks for a function; the executor never hands it one of these ops.
unsafe extern "C" fn never(_: *mut sys::ggml_tensor, _: c_int, _: c_int, _: *mut c_void) {}
