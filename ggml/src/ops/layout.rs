//! Ops that move or convert elements and compute nothing.

use super::check;
use crate::context::check_size;
use crate::{Dtype, Error, Shape, Tensor, sys};

/// The largest width and height that [`Tensor::nearest`] resizes to.
const MAX_NEAREST: usize = 1 << 20;

/// Whether ggml picks the same elements as PyTorch: both compute in single precision, one with the
/// ratio `new / old`, the other with its inverse.
pub(crate) fn picks_as_pytorch(old: usize, new: usize) -> bool {
    let (larger, smaller) = (new as f32 / old as f32, old as f32 / new as f32);
    (0..new).all(|i| (i as f32 / larger) as usize == ((i as f32 * smaller) as usize).min(old - 1))
}

impl<'g> Tensor<'g> {
    /// Enlarges `[w, h, c, n]` to `width` × `height` by the nearest element: the one at
    /// ⌊i · old / new⌋ in single precision, as PyTorch's `nearest` does. Whole factors, and one less
    /// than twice the size, always work; a ratio at which ggml's rounding would differ is refused.
    pub fn nearest(self, width: usize, height: usize) -> Self {
        let [w, h, channels, batch] = self.shape();
        let to = [width, height, channels, batch];
        let fits = || {
            self.check_dense("nearest")?;
            let grows = width >= w && height >= h && width.max(height) <= MAX_NEAREST;
            check(grows, || {
                self.misfit("nearest", format!("can grow, and to {MAX_NEAREST}, not to {width}×{height}"))
            })?;
            let exact = picks_as_pytorch(w, width) && picks_as_pytorch(h, height);
            check(exact, || self.misfit("nearest", format!("rounding makes {width}×{height} inexact")))?;
            Ok(to)
        };
        let ne = to.map(|size| size as i64);
        // SAFETY: see `Tensor::map`.
        Self::apply("nearest", [self], Dtype::F32, fits, |context, [a]| unsafe {
            sys::ggml_interpolate(context, a, ne[0], ne[1], ne[2], ne[3], sys::GGML_SCALE_MODE_NEAREST)
        })
    }

    /// Appends zeros: `right` columns and `bottom` rows.
    pub fn pad(self, right: usize, bottom: usize) -> Self {
        let fits = || {
            self.check_dense("pad")?;
            let [w, h, c, n] = self.shape();
            Ok([w.saturating_add(right), h.saturating_add(bottom), c, n])
        };
        // A result whose sizes fit has margins that fit: the casts lose nothing.
        // SAFETY: see `Tensor::map`.
        Self::apply("pad", [self], Dtype::F32, fits, |context, [a]| unsafe {
            sys::ggml_pad(context, a, right as i32, bottom as i32, 0, 0)
        })
    }

    /// Appends `other` along `dimension`. Neither needs to be contiguous.
    pub fn concat(self, other: Self, dimension: usize) -> Self {
        let fits = || {
            self.check_f32("concat")?;
            other.check_f32("concat")?;
            let (left, right) = (self.shape(), other.shape());
            let fit = dimension < 4 && (0..4).all(|d| d == dimension || left[d] == right[d]);
            check(fit, || Error::Shapes { op: "concat", left, right })?;
            let mut shape = left;
            shape[dimension] += right[dimension];
            Ok(shape)
        };
        // SAFETY: see `Tensor::map`.
        Self::apply("concat", [self, other], Dtype::F32, fits, |context, [a, b]| unsafe {
            sys::ggml_concat(context, a, b, dimension as i32)
        })
    }

    /// The same elements in another shape.
    pub fn reshape(self, shape: Shape) -> Self {
        let fits = || {
            self.check_contiguous("reshape")?;
            check_size("reshape", self.dtype(), shape)?;
            let same = shape.iter().product::<usize>() == self.elements();
            check(same, || Error::Shapes { op: "reshape", left: self.shape(), right: shape })?;
            Ok(shape)
        };
        let ne = shape.map(|size| size as i64);
        // SAFETY: see `Tensor::map`.
        let reshaped = Self::apply("reshape", [self], self.dtype(), fits, |context, [a]| unsafe {
            sys::ggml_reshape_4d(context, a, ne[0], ne[1], ne[2], ne[3])
        });
        reshaped.with_below(self.below())
    }

    /// Moves dimension `i` to place `places[i]`, without moving data: follow with
    /// [`Tensor::contiguous`] where an op needs it.
    pub fn permute(self, places: [usize; 4]) -> Self {
        let fits = || {
            let mut shape = [0; 4];
            for (place, size) in places.into_iter().zip(self.shape()) {
                let slot = shape.get_mut(place).ok_or_else(|| self.misfit("permute", "there is no such dimension"))?;
                *slot = size;
            }
            check(!shape.contains(&0), || self.misfit("permute", "each dimension must have one place"))?;
            Ok(shape)
        };
        let [a, b, c, d] = places.map(|place| place as i32);
        // SAFETY: see `Tensor::map`.
        let view = Self::apply("permute", [self], self.dtype(), fits, |context, [x]| unsafe {
            sys::ggml_permute(context, x, a, b, c, d)
        });
        view.with_below(self.below()).tidied()
    }

    /// A part of one dimension, without moving data.
    pub fn narrow(self, dimension: usize, start: usize, length: usize) -> Self {
        let whole = self.shape();
        let mut shape = whole;
        if let Some(changed) = shape.get_mut(dimension) {
            *changed = length;
        }
        let fits = || {
            self.check_contiguous("narrow")?;
            let inside =
                dimension < 4 && length > 0 && start.checked_add(length).is_some_and(|end| end <= whole[dimension]);
            check(inside, || self.misfit("narrow", format!("{start} + {length} is outside of dimension {dimension}")))?;
            Ok(shape)
        };
        let mut strides = [self.dtype().size(); 4];
        for d in 1..4 {
            strides[d] = strides[d - 1] * whole[d - 1];
        }
        let ne = shape.map(|size| size as i64);
        // SAFETY: see `Tensor::map`; the view lies inside the tensor.
        let view = Self::apply("narrow", [self], self.dtype(), fits, |context, [a]| unsafe {
            let offset = start * strides[dimension];
            sys::ggml_view_4d(context, a, ne[0], ne[1], ne[2], ne[3], strides[1], strides[2], strides[3], offset)
        });
        view.with_below(self.below()).tidied()
    }

    /// Where all elements are in order, strides that say so: a dimension of size 1 may have kept an
    /// odd stride, at which some of ggml's ops abort though ggml calls the tensor contiguous.
    fn tidied(self) -> Self {
        let Some(raw) = self.raw() else { return self };
        // SAFETY: the description lives in the builder's contexts.
        if self.is_contiguous() || !unsafe { sys::ggml_is_contiguous(raw.as_ptr()) } {
            return self;
        }
        let ne = self.shape().map(|size| size as i64);
        // SAFETY: see `Tensor::map`; the shape is its own.
        let view = Self::apply(
            "reshape",
            [self],
            self.dtype(),
            || Ok(self.shape()),
            |context, [a]| unsafe { sys::ggml_reshape_4d(context, a, ne[0], ne[1], ne[2], ne[3]) },
        );
        view.with_below(self.below())
    }

    /// The same tensor with its elements in order; itself if they already are.
    pub fn contiguous(self) -> Self {
        if self.is_contiguous() {
            return self;
        }
        // SAFETY: see `Tensor::map`.
        let copy = Self::apply(
            "contiguous",
            [self],
            self.dtype(),
            || Ok(self.shape()),
            |context, [a]| unsafe { sys::ggml_cont(context, a) },
        );
        copy.with_below(self.below())
    }

    /// Rows of `self` = `[width, rows]` (F32 or F16) at `indices` = `[count]` (I32): `[width, count]`.
    ///
    /// The indices must come from [`crate::Builder::indices`] with a bound of at most `rows`, since
    /// ggml aborts on a row that does not exist.
    pub fn rows(self, indices: Self) -> Self {
        let fits = || {
            self.check_float("rows")?;
            let found = indices.dtype();
            check(found == Dtype::I32, || Error::Type { op: "rows", expected: "I32", found })?;
            self.check_contiguous("rows")?;
            indices.check_contiguous("rows")?;
            let ([width, rows, ..], [count, ..]) = (self.shape(), indices.shape());
            let flat = self.shape()[2..] == [1, 1] && indices.shape()[1..] == [1, 1, 1];
            check(flat, || Error::Shapes { op: "rows", left: self.shape(), right: indices.shape() })?;
            check(indices.below() <= rows, || self.misfit("rows", "the indices may lie beyond the last row"))?;
            Ok([width, count, 1, 1])
        };
        // SAFETY: see `Tensor::map`.
        Self::apply("rows", [self, indices], Dtype::F32, fits, |context, [a, b]| unsafe {
            sys::ggml_get_rows(context, a, b)
        })
    }

    /// The same values as `dtype`, F32 or F16. What half floats can't hold becomes infinite.
    pub fn cast(self, dtype: Dtype) -> Self {
        if self.dtype() == dtype {
            return self;
        }
        let fits = || {
            self.check_float("cast")?;
            check(dtype != Dtype::I32, || Error::Type { op: "cast", expected: "F32 or F16", found: dtype })?;
            self.check_contiguous("cast")?;
            Ok(self.shape())
        };
        // SAFETY: see `Tensor::map`.
        Self::apply("cast", [self], dtype, fits, |context, [a]| unsafe { sys::ggml_cast(context, a, dtype.raw()) })
    }
}
