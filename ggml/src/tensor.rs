//! A tensor inside a graph that is being built.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::builder::Builder;
use crate::context::check_size;
use crate::custom::{Kernel, MOST_OPERANDS, describe};
use crate::kernels::Isa;
use crate::{Dtype, Error, Result, Shape, Weight, sys};

/// A value of a graph under construction: cheap to copy, alive as long as its [`Builder`].
///
/// After an error its operations go on with a poisoned tensor, so that a network's forward pass
/// reads straight; [`Builder::build`] returns the first error.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(crate) builder: &'g Builder,
    /// `None` when poisoned.
    raw: Option<NonNull<sys::ggml_tensor>>,
    dtype: Dtype,
    shape: Shape,
    layout: Layout,
    /// For indices: every element is in `0..below`. `usize::MAX` when nothing is known.
    below: usize,
}

/// How the elements lie in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// In order, without gaps, and each stride is what the shape says.
    Contiguous,
    /// The elements of a row are neighbours; rows may lie anywhere.
    Rows,
    /// Anything else.
    Scattered,
}

impl<'g> Tensor<'g> {
    /// Its sizes, fastest dimension first. All 1 when poisoned.
    pub fn shape(self) -> Shape {
        self.shape
    }

    /// Its element type.
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Number of elements.
    pub fn elements(self) -> usize {
        self.shape.iter().product()
    }

    /// A stored weight, in the graph that this tensor is in.
    pub fn weight(self, weight: &Weight) -> Self {
        self.builder.weight(weight)
    }

    pub(crate) fn is_contiguous(self) -> bool {
        self.layout == Layout::Contiguous
    }

    pub(crate) fn has_whole_rows(self) -> bool {
        self.layout != Layout::Scattered
    }

    pub(crate) fn is_poisoned(self) -> bool {
        self.raw.is_none()
    }

    pub(crate) fn raw(self) -> Option<NonNull<sys::ggml_tensor>> {
        self.raw
    }

    pub(crate) fn below(self) -> usize {
        self.below
    }

    /// The same tensor, all of whose elements are known to be indices below `below`.
    pub(crate) fn with_below(self, below: usize) -> Self {
        Self { below, ..self }
    }

    /// Wraps what ggml made, reading its description back.
    pub(crate) fn wrap(builder: &'g Builder, raw: NonNull<sys::ggml_tensor>, dtype: Dtype) -> Self {
        // SAFETY: the description lives in the builder's contexts, or in a storage that it holds.
        let (ne, nb) = unsafe { (raw.as_ref().ne, raw.as_ref().nb) };
        let shape = ne.map(|size| size as usize);
        let mut dense = [dtype.size(); 4];
        for d in 1..4 {
            dense[d] = dense[d - 1] * shape[d - 1];
        }
        let layout = match nb {
            _ if nb == dense => Layout::Contiguous,
            _ if nb[0] == dense[0] => Layout::Rows,
            _ => Layout::Scattered,
        };
        Self { builder, raw: Some(raw), dtype, shape, layout, below: usize::MAX }
    }

    pub(crate) fn poisoned(builder: &'g Builder, error: Error) -> Self {
        builder.fail(error);
        let layout = Layout::Contiguous;
        Self { builder, raw: None, dtype: Dtype::F32, shape: [1; 4], layout, below: usize::MAX }
    }

    /// Applies the op called `op`: `check` says whether the operands fit and what shape the result
    /// will have, `make` calls ggml with a context that has room. Any operand being poisoned, any
    /// check failing, or a result that is too large gives a poisoned tensor.
    pub(crate) fn apply<const N: usize>(
        op: &'static str,
        operands: [Self; N],
        dtype: Dtype,
        check: impl FnOnce() -> Result<Shape>,
        make: impl FnOnce(*mut sys::ggml_context, [*mut sys::ggml_tensor; N]) -> *mut sys::ggml_tensor,
    ) -> Self {
        let builder = operands[0].builder;
        let mut raws = [std::ptr::null_mut(); N];
        if let Err(poisoned) = Self::raws(op, &operands, &mut raws) {
            return poisoned;
        }
        let made = check().and_then(|shape| {
            check_size(op, dtype, shape)?;
            let raw = make(builder.context()?, raws);
            let raw = NonNull::new(raw).ok_or(Error::Alloc { what: "tensor description", bytes: 0 })?;
            Ok((raw, shape))
        });
        match made {
            Ok((raw, shape)) => {
                builder.note(raw);
                let tensor = Self::wrap(builder, raw, dtype);
                debug_assert_eq!(tensor.shape, shape, "{op} made another shape than it announced");
                tensor
            }
            Err(error) => Self::poisoned(builder, error),
        }
    }
}

impl<'g> Tensor<'g> {
    /// Applies an op of our own, which must be one that the back end computes: `kernel` checks the operands,
    /// besides that they are contiguous F32, and says what computes it.
    pub(crate) fn computed<K: Kernel + 'static>(
        op: &'static str,
        operands: &[Self],
        kernel: impl FnOnce(Isa) -> Result<K>,
    ) -> Self {
        let builder = operands[0].builder;
        let mut raws = [std::ptr::null_mut(); MOST_OPERANDS];
        let raws = &mut raws[..operands.len()];
        if let Err(poisoned) = Self::raws(op, operands, raws) {
            return poisoned;
        }
        let make = || {
            let isa = builder.isa().ok_or_else(|| Error::Backend(format!("{op}: the back end has no such kernel")))?;
            operands.iter().try_for_each(|operand| operand.check_dense(op))?;
            let kernel = kernel(isa)?;
            check_size(op, Dtype::F32, kernel.shape())?;
            // SAFETY: the context has room, and the operands are alive.
            let raw = unsafe { describe(builder.context()?, kernel.shape(), raws) };
            let raw = NonNull::new(raw).ok_or(Error::Alloc { what: "tensor description", bytes: 0 })?;
            builder.note(raw);
            builder.computed_by(raw, Arc::new(kernel));
            Ok(Self::wrap(builder, raw, Dtype::F32))
        };
        make().unwrap_or_else(|error| Self::poisoned(builder, error))
    }

    /// What ggml knows the operands of `op` by; a poisoned tensor if any is poisoned or of another graph.
    fn raws(op: &str, operands: &[Self], raws: &mut [*mut sys::ggml_tensor]) -> std::result::Result<(), Self> {
        let builder = operands[0].builder;
        for (slot, operand) in raws.iter_mut().zip(operands) {
            match operand.raw {
                Some(raw) if std::ptr::eq(operand.builder, builder) => *slot = raw.as_ptr(),
                Some(_) => {
                    let error = Error::Backend(format!("{op}: the operands belong to different graphs"));
                    operand.builder.fail(error.clone());
                    return Err(Self::poisoned(builder, error));
                }
                None => return Err(Self { builder, ..*operand }),
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.dtype, self.shape)
    }
}
