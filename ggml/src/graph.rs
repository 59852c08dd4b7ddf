//! Graphs: built once for a shape, allocated once, run for every step.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

use crate::allocator::Allocator;
use crate::backend::MAX_THREADS;
use crate::context::Contexts;
use crate::executor::{Executor, Next, OpCost, SLICE};
use crate::ops::CONVOLUTION_SCRATCH;
use crate::steady::Inputs;
use crate::{Backend, Dtype, Error, Result, Storage, sys};

/// An input or an output of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub(crate) usize);

pub(crate) struct SlotInfo {
    pub(crate) raw: NonNull<sys::ggml_tensor>,
    pub(crate) dtype: Dtype,
    pub(crate) elements: usize,
    /// Indices written here must be below this: ggml aborts on a row that does not exist.
    pub(crate) below: usize,
    pub(crate) is_input: bool,
}

/// A graph that is ready to run, any number of times.
///
/// Inputs keep what was written into them from run to run. Only one thread uses a graph at a time,
/// but graphs that share weights may run side by side.
pub struct Graph {
    pub(crate) graph: NonNull<sys::ggml_cgraph>,
    pub(crate) slots: Vec<SlotInfo>,
    pub(crate) bytes: usize,
    /// The kind of memory that its tensors lie in: it runs only where that is at home.
    pub(crate) home: sys::ggml_backend_buffer_type_t,
    /// Whether the outputs hold the results of a whole run.
    pub(crate) computed: bool,
    /// Scratch, never read before it is written.
    pub(crate) work: Vec<MaybeUninit<CacheLine>>,
    pub(crate) storages: Vec<Storage>,
    /// Of each storage, at the last whole run.
    pub(crate) versions: Vec<u64>,
    /// What was written since the last whole run.
    pub(crate) written: Inputs,
    /// Where our own ops are computed.
    pub(crate) executor: Option<Executor>,
    // Dropped after what points into them.
    pub(crate) _allocator: Allocator,
    pub(crate) _contexts: Contexts,
}

/// ggml lays arrays of floats and per-thread areas into its scratch, wherever the global allocator
/// of the host would put bytes.
#[repr(C, align(64))]
pub(crate) struct CacheLine {
    _bytes: [u8; 64],
}

// SAFETY: the graph and its tensors are plain memory that `self` owns or keeps alive.
unsafe impl Send for Graph {}

impl Graph {
    /// Bytes of its compute buffer.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes a whole F32 input.
    pub fn write(&mut self, slot: Slot, data: &[f32]) -> Result<()> {
        let info = self.input(slot, Dtype::F32, data.len())?;
        // SAFETY: the tensor has memory for exactly these elements.
        unsafe { sys::ggml_backend_tensor_set(info.raw.as_ptr(), data.as_ptr().cast(), 0, size_of_val(data)) };
        self.written.add(Inputs::one(slot.0));
        Ok(())
    }

    /// Writes a whole input of indices.
    pub fn write_indices(&mut self, slot: Slot, data: &[i32]) -> Result<()> {
        let info = self.input(slot, Dtype::I32, data.len())?;
        let below = info.below;
        let outside = |&&index: &&i32| usize::try_from(index).map_or(true, |index| index >= below);
        if let Some(&found) = data.iter().find(outside).filter(|_| below != usize::MAX) {
            return Err(Error::Index { found, below });
        }
        // SAFETY: as above.
        unsafe { sys::ggml_backend_tensor_set(info.raw.as_ptr(), data.as_ptr().cast(), 0, size_of_val(data)) };
        self.written.add(Inputs::one(slot.0));
        Ok(())
    }

    /// Reads a whole F32 output.
    pub fn read(&self, slot: Slot) -> Result<Vec<f32>> {
        let elements = self.slots.get(slot.0).map_or(0, |info| info.elements);
        let mut data = Vec::new();
        data.try_reserve_exact(elements).map_err(|_| Error::Alloc { what: "result", bytes: elements * 4 })?;
        data.resize(elements, 0.0);
        self.read_into(slot, &mut data)?;
        Ok(data)
    }

    /// Reads a whole F32 output into `data`.
    pub fn read_into(&self, slot: Slot, data: &mut [f32]) -> Result<()> {
        let info = self.slot(slot, Dtype::F32, data.len())?;
        if !(info.is_input || self.computed) {
            return Err(Error::Backend("an output is read before the graph has run to its end".into()));
        }
        // SAFETY: the tensor has memory for exactly these elements.
        unsafe { sys::ggml_backend_tensor_get(info.raw.as_ptr(), data.as_mut_ptr().cast(), 0, size_of_val(data)) };
        Ok(())
    }

    /// Runs the graph, asking `stop` on the calling thread at least every 20 ms or so on the CPU, and only
    /// before it starts elsewhere.
    ///
    /// # Errors
    /// [`Error::Stopped`] when `stop` said so; the graph can be run again.
    ///
    /// # Panics
    /// When `stop` does, after all threads have come to rest; the graph can be run again then, too.
    pub fn compute(&mut self, backend: &Backend, stop: &dyn Fn() -> bool) -> Result<()> {
        self.compute_in_slices(backend, &mut || if stop() { Next::Stop } else { Next::Run(SLICE) })
    }

    /// As [`Graph::compute`], in slices: `next` is asked at the beginning and after each slice how to go on,
    /// while no thread computes, and may take its time to answer. ggml's own ops are asked about one by one,
    /// however long the slice.
    pub fn compute_in_slices(&mut self, backend: &Backend, next: &mut dyn FnMut() -> Next) -> Result<()> {
        if backend.buffer_type() != self.home || backend.rates().is_some() != self.executor.is_some() {
            return Err(Error::Backend("a graph is run on another back end than it was built for".into()));
        }
        self.computed = false;
        let readings: Vec<_> = self.storages.iter().map(Storage::reading).collect();
        if let Some(executor) = &mut self.executor {
            // Weights may have been written since the last run, too: then nothing is as it was.
            let versions = self.storages.iter().map(Storage::version).collect();
            if self.versions != versions {
                self.written = Inputs::ALL;
            }
            executor.run(backend, self.written, next)?;
            drop(readings);
            (self.written, self.versions) = (Inputs::default(), versions);
            self.computed = true;
            return Ok(());
        }
        if next() == Next::Stop {
            return Err(Error::Stopped);
        }
        let status = match backend.pool() {
            Some(pool) => {
                let next = RefCell::new(next);
                let stop = || next.borrow_mut()() == Next::Stop;
                compute_by_ggml(self.graph, pool, backend.threads(), &mut self.work, &stop)?
            }
            // SAFETY: the graph was allocated on this back end, which supports each of its ops.
            None => unsafe { sys::ggml_backend_graph_compute(backend.raw(), self.graph.as_ptr()) },
        };
        drop(readings);
        match status {
            sys::GGML_STATUS_SUCCESS => {
                self.computed = true;
                Ok(())
            }
            sys::GGML_STATUS_ABORTED => Err(Error::Stopped),
            sys::GGML_STATUS_ALLOC_FAILED => Err(Error::Alloc { what: "graph", bytes: self.bytes }),
            status => Err(Error::Compute { backend: backend.name().into(), reason: format!("status {status}") }),
        }
    }

    /// What the runs so far cost, by kind of op; empty where ggml computes them all.
    pub fn costs(&self) -> Vec<OpCost> {
        self.executor.as_ref().map(Executor::costs).unwrap_or_default()
    }

    /// Zeros for inputs that are never written: what lay there might be no index.
    pub(crate) fn zero_inputs(&self) -> Result<()> {
        let inputs = || self.slots.iter().filter(|info| info.is_input);
        let bytes = inputs().map(|info| info.elements * info.dtype.size()).max().unwrap_or(0);
        let mut zeros = Vec::<u8>::new();
        zeros.try_reserve_exact(bytes).map_err(|_| Error::Alloc { what: "inputs", bytes })?;
        zeros.resize(bytes, 0);
        for info in inputs() {
            let bytes = info.elements * info.dtype.size();
            // SAFETY: the tensor has memory for exactly these bytes.
            unsafe { sys::ggml_backend_tensor_set(info.raw.as_ptr(), zeros.as_ptr().cast(), 0, bytes) };
        }
        Ok(())
    }

    fn input(&self, slot: Slot, dtype: Dtype, elements: usize) -> Result<&SlotInfo> {
        let info = self.slot(slot, dtype, elements)?;
        if info.is_input { Ok(info) } else { Err(Error::Backend("an output is written as if it were an input".into())) }
    }

    fn slot(&self, slot: Slot, dtype: Dtype, elements: usize) -> Result<&SlotInfo> {
        let unknown = Error::Length { what: "slot", expected: self.slots.len(), found: slot.0 };
        let info = self.slots.get(slot.0).ok_or(unknown)?;
        if info.dtype != dtype {
            return Err(Error::Type { op: "slot", expected: "the slot's own type", found: dtype });
        }
        if info.elements != elements {
            return Err(Error::Length { what: "slot", expected: info.elements, found: elements });
        }
        Ok(info)
    }
}

/// Runs a graph through ggml's plan rather than its back end, which allocates scratch with a throwing `new`.
/// `stop` is asked between nodes, on the calling thread.
pub(crate) fn compute_by_ggml(
    graph: NonNull<sys::ggml_cgraph>,
    pool: sys::ggml_threadpool_t,
    threads: usize,
    work: &mut Vec<MaybeUninit<CacheLine>>,
    stop: &dyn Fn() -> bool,
) -> Result<sys::ggml_status> {
    // SAFETY: the graph is alive, and the pool has as many threads.
    let mut plan = unsafe { sys::ggml_graph_plan(graph.as_ptr(), threads as i32, pool) };
    plan.work_size = even_work_size(plan.work_size);
    let lines = plan.work_size.div_ceil(size_of::<CacheLine>());
    work.try_reserve_exact(lines).map_err(|_| Error::Alloc { what: "scratch", bytes: plan.work_size })?;
    plan.work_data = work.as_mut_ptr().cast();
    let question = Question { stop, panic: RefCell::new(None) };
    plan.abort_callback = Some(asked_to_stop);
    plan.abort_callback_data = (&raw const question).cast_mut().cast();
    // SAFETY: the plan's scratch and the callback's data outlive the call.
    let status = unsafe { sys::ggml_graph_compute(graph.as_ptr(), &mut plan) };
    match question.panic.into_inner() {
        Some(panic) => resume_unwind(panic),
        None => Ok(status),
    }
}

/// Scratch of the same size for any number of threads, where convolutions use it: they cut their work
/// into as many patches as fit, and how the last few are computed may depend on how many are left.
fn even_work_size(planned: usize) -> usize {
    const UNIT: usize = CONVOLUTION_SCRATCH + MAX_THREADS * size_of::<CacheLine>();
    if planned < CONVOLUTION_SCRATCH { planned } else { planned.next_multiple_of(UNIT) }
}

/// What ggml hands back to [`asked_to_stop`].
struct Question<'a> {
    stop: &'a dyn Fn() -> bool,
    panic: RefCell<Option<Box<dyn Any + Send>>>,
}

unsafe extern "C" fn asked_to_stop(user: *mut c_void) -> bool {
    // SAFETY: `compute_by_ggml` passes a question that outlives the run, and ggml asks on one thread.
    let question = unsafe { &*user.cast::<Question<'_>>() };
    // A panic must not unwind through ggml: it stops the run, and goes on from there.
    catch_unwind(AssertUnwindSafe(question.stop)).unwrap_or_else(|panic| {
        *question.panic.borrow_mut() = Some(panic);
        true
    })
}
