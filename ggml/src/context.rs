//! Where ggml keeps the descriptions of tensors (never their data).

use std::ptr::NonNull;

use crate::{Dtype, Error, Result, Shape, sys};

/// Descriptions that one ggml context holds. Small, for most graphs need more than one anyway.
const TENSORS_PER_CONTEXT: usize = 1024;
/// The most descriptions that one op makes (a convolution of an older kind makes eight).
const TENSORS_PER_OP: usize = 16;

/// A growing list of ggml contexts without data. ggml aborts when a context is full, so a new one
/// is begun before that can happen.
#[derive(Default)]
pub(crate) struct Contexts {
    list: Vec<NonNull<sys::ggml_context>>,
}

// SAFETY: a context is plain memory; ggml ties it to no thread.
unsafe impl Send for Contexts {}
// SAFETY: through a shared reference the list is only read.
unsafe impl Sync for Contexts {}

impl Contexts {
    /// A context with room for one more op.
    pub(crate) fn current(&mut self) -> Result<*mut sys::ggml_context> {
        // SAFETY: a constant of ggml.
        let overhead = unsafe { sys::ggml_tensor_overhead() };
        if let Some(last) = self.list.last() {
            // SAFETY: the context is alive as long as `self`.
            let used = unsafe { sys::ggml_used_mem(last.as_ptr()) };
            if used + TENSORS_PER_OP * overhead <= TENSORS_PER_CONTEXT * overhead {
                return Ok(last.as_ptr());
            }
        }
        self.begin(TENSORS_PER_CONTEXT * overhead)
    }

    /// Begins a context of `bytes` bytes.
    pub(crate) fn begin(&mut self, bytes: usize) -> Result<*mut sys::ggml_context> {
        // ggml asserts that its own allocation worked, so the memory is had here first and given back.
        let mut probe = Vec::<u8>::new();
        probe.try_reserve_exact(bytes).map_err(|_| Error::Alloc { what: "tensor descriptions", bytes })?;
        drop(probe);
        let params = sys::ggml_init_params { mem_size: bytes, mem_buffer: std::ptr::null_mut(), no_alloc: true };
        // SAFETY: the parameters are a plain value.
        let raw = unsafe { sys::ggml_init(params) };
        let raw = NonNull::new(raw).ok_or(Error::Alloc { what: "tensor descriptions", bytes })?;
        self.list.push(raw);
        Ok(raw.as_ptr())
    }

    /// A new tensor without data.
    pub(crate) fn tensor(&mut self, dtype: Dtype, shape: Shape) -> Result<NonNull<sys::ggml_tensor>> {
        check_size("tensor", dtype, shape)?;
        let ne = shape.map(|size| size as i64);
        let context = self.current()?;
        // SAFETY: the context has room, and the sizes are positive and do not overflow.
        let raw = unsafe { sys::ggml_new_tensor(context, dtype.raw(), 4, ne.as_ptr()) };
        NonNull::new(raw).ok_or(Error::Alloc { what: "tensor description", bytes: 0 })
    }

    /// A graph of `tensors`, which are in an order in which they can be computed.
    pub(crate) fn graph(&mut self, tensors: &[NonNull<sys::ggml_tensor>]) -> Result<NonNull<sys::ggml_cgraph>> {
        let size = tensors.len() + 1;
        // SAFETY: a pure computation.
        let bytes = unsafe { sys::ggml_graph_overhead_custom(size, false) };
        let context = self.begin(bytes)?;
        // SAFETY: the context has room for a graph of this size, and all tensors are alive.
        let graph = unsafe {
            let graph = sys::ggml_new_graph_custom(context, size, false);
            for tensor in tensors {
                sys::ggml_build_forward_expand(graph, tensor.as_ptr());
            }
            graph
        };
        NonNull::new(graph).ok_or(Error::Alloc { what: "graph", bytes })
    }

    /// A graph of some `tensors` of another graph, which has placed them and is alive.
    pub(crate) fn part(&mut self, tensors: &[NonNull<sys::ggml_tensor>]) -> Result<NonNull<sys::ggml_cgraph>> {
        let size = tensors.len();
        // SAFETY: a pure computation.
        let bytes = unsafe { sys::ggml_graph_overhead_custom(size, false) };
        let context = self.begin(bytes)?;
        // SAFETY: the context has room for a graph of this size, and all tensors are alive.
        let graph = unsafe {
            let graph = sys::ggml_new_graph_custom(context, size, false);
            for tensor in tensors {
                sys::ggml_graph_add_node(graph, tensor.as_ptr());
            }
            graph
        };
        NonNull::new(graph).ok_or(Error::Alloc { what: "graph", bytes })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = *mut sys::ggml_context> {
        self.list.iter().map(|raw| raw.as_ptr())
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for raw in &self.list {
            // SAFETY: made by us, freed once.
            unsafe { sys::ggml_free(raw.as_ptr()) };
        }
    }
}

/// The most elements of one tensor: ggml counts rows and elements in 32 bits in places, and rounds
/// counts up to the number of threads there.
const MAX_ELEMENTS: usize = i32::MAX as usize - (1 << 16);

/// Refuses empty tensors and sizes that ggml's arithmetic could not hold.
pub(crate) fn check_size(op: &'static str, dtype: Dtype, shape: Shape) -> Result<()> {
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if elements.is_some_and(|elements| (1..=MAX_ELEMENTS).contains(&elements)) {
        return Ok(());
    }
    let reason = format!("{dtype:?} tensors have 1 to {MAX_ELEMENTS} elements");
    Err(Error::Shape { op, shape, reason })
}
