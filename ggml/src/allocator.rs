//! Memory for a graph's tensors.

use std::collections::HashMap;
use std::ptr::NonNull;

use crate::{Backend, Error, Result, sys};

/// The most tensors that a graph may keep alive at once: ggml's allocator aborts at 256 gaps between
/// them, and there is at most one gap more than tensors.
const MAX_ALIVE: usize = 250;

/// ggml's graph allocator: places the tensors of a graph so that memory is used again.
pub(crate) struct Allocator(NonNull<sys::ggml_gallocr>);

// SAFETY: plain memory, tied to no thread.
unsafe impl Send for Allocator {}

impl Allocator {
    pub(crate) fn new(backend: &Backend) -> Result<Self> {
        // SAFETY: the buffer type is a constant of the back end.
        let raw = unsafe { sys::ggml_gallocr_new(backend.buffer_type()) };
        NonNull::new(raw).map(Self).ok_or(Error::Alloc { what: "graph allocator", bytes: 0 })
    }

    /// Bytes that the graph will need, without allocating them. `tensors` are the graph's, in the
    /// order in which they are computed.
    pub(crate) fn measure(
        &self,
        graph: NonNull<sys::ggml_cgraph>,
        tensors: &[NonNull<sys::ggml_tensor>],
    ) -> Result<usize> {
        // SAFETY: the tensors are alive.
        let alive = unsafe { most_alive(tensors) };
        if alive > MAX_ALIVE {
            let reason = format!("a graph keeps {alive} tensors alive at once, ggml can place {MAX_ALIVE}");
            return Err(Error::Backend(reason));
        }
        let mut bytes = 0;
        // SAFETY: with one buffer type no ids are read, and one size is written.
        unsafe {
            let (raw, graph) = (self.0.as_ptr(), graph.as_ptr());
            sys::ggml_gallocr_reserve_n_size(raw, graph, std::ptr::null(), std::ptr::null(), &mut bytes);
        }
        Ok(bytes)
    }

    pub(crate) fn allocate(&self, graph: NonNull<sys::ggml_cgraph>, bytes: usize) -> Result<()> {
        // Measuring left the allocator believing that it holds the memory, so it is reserved by name.
        // SAFETY: allocator and graph are alive.
        let allocated = unsafe {
            sys::ggml_gallocr_reserve(self.0.as_ptr(), graph.as_ptr())
                && sys::ggml_gallocr_alloc_graph(self.0.as_ptr(), graph.as_ptr())
        };
        if allocated { Ok(()) } else { Err(Error::Alloc { what: "graph", bytes }) }
    }
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once.
        unsafe { sys::ggml_gallocr_free(self.0.as_ptr()) };
    }
}

/// The most tensors with memory of their own that are needed at one time; an upper bound, since ggml
/// computes some in place.
///
/// # Safety
/// The tensors, their operands and what they are views of are alive.
unsafe fn most_alive(tensors: &[NonNull<sys::ggml_tensor>]) -> usize {
    // SAFETY: the caller's contract.
    let described = || tensors.iter().map(|tensor| (*tensor, unsafe { tensor.as_ref() })).enumerate();
    // SAFETY: as above.
    let owner = |tensor: NonNull<sys::ggml_tensor>| unsafe { NonNull::new(tensor.as_ref().view_src).unwrap_or(tensor) };

    let mut last_use = HashMap::new();
    for (time, (tensor, raw)) in described() {
        for used in raw.src.iter().copied().filter_map(NonNull::new).chain([tensor]) {
            last_use.insert(owner(used), time);
        }
    }
    for (_, (tensor, raw)) in described() {
        if raw.flags & sys::GGML_TENSOR_FLAG_OUTPUT as i32 != 0 {
            last_use.insert(owner(tensor), tensors.len());
        }
    }

    let mut change = vec![0isize; tensors.len() + 2];
    for (time, (tensor, raw)) in described() {
        if raw.view_src.is_null() && raw.data.is_null() {
            // Inputs, and what is kept from run to run, have their memory from the beginning on.
            let given = raw.op == sys::GGML_OP_NONE || raw.flags & sys::GGML_TENSOR_FLAG_INPUT as i32 != 0;
            let birth = if given { 0 } else { time };
            change[birth] += 1;
            change[last_use[&tensor] + 1] -= 1;
        }
    }
    let alive = change.iter().scan(0, |alive, change| {
        *alive += change;
        Some(*alive)
    });
    alive.max().unwrap_or(0) as usize
}
