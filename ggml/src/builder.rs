//! A graph under construction.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::allocator::Allocator;
use crate::context::Contexts;
use crate::custom::Kernel;
use crate::executor::Executor;
use crate::graph::{Graph, Slot, SlotInfo};
use crate::kernels::Isa;
use crate::steady::{Inputs, dependencies, steady};
use crate::storage::unpacked;
use crate::{Backend, Dtype, Error, Result, Shape, Storage, Tensor, Weight, sys};

/// A graph under construction. [`Tensor`]s borrow it; [`Builder::build`] ends it.
pub struct Builder {
    contexts: RefCell<Contexts>,
    slots: RefCell<Vec<SlotInfo>>,
    storages: RefCell<Vec<Storage>>,
    error: RefCell<Option<Error>>,
    /// The place of each op in the order in which they were made.
    made: RefCell<HashMap<NonNull<sys::ggml_tensor>, usize>>,
    /// What computes each op of ours.
    kernels: RefCell<HashMap<NonNull<sys::ggml_tensor>, Arc<dyn Kernel>>>,
    isa: Option<Isa>,
    home: sys::ggml_backend_buffer_type_t,
    on_cpu: bool,
}

impl Builder {
    /// Begins a graph for `backend`.
    pub fn new(backend: &Backend) -> Result<Self> {
        Ok(Self {
            contexts: RefCell::default(),
            slots: RefCell::default(),
            storages: RefCell::default(),
            error: RefCell::default(),
            made: RefCell::default(),
            kernels: RefCell::default(),
            isa: backend.kernels(),
            home: backend.buffer_type(),
            on_cpu: backend.is_cpu(),
        })
    }

    /// An input: zeros until it is written, and what was written last in every run after that.
    pub fn input(&self, dtype: Dtype, shape: Shape) -> (Tensor<'_>, Slot) {
        self.slot(dtype, shape, usize::MAX)
    }

    /// An input of `count` I32 indices, each below `below`.
    pub fn indices(&self, count: usize, below: usize) -> (Tensor<'_>, Slot) {
        self.slot(Dtype::I32, [count, 1, 1, 1], below)
    }

    fn slot(&self, dtype: Dtype, shape: Shape, below: usize) -> (Tensor<'_>, Slot) {
        let mut slots = self.slots.borrow_mut();
        let slot = Slot(slots.len());
        let made = self.contexts.borrow_mut().tensor(dtype, shape);
        match made {
            Ok(raw) => {
                // An output too: otherwise its memory would be used again, and each run would need it written.
                // SAFETY: the tensor was just made.
                unsafe {
                    sys::ggml_set_input(raw.as_ptr());
                    sys::ggml_set_output(raw.as_ptr());
                }
                let elements = shape.iter().product();
                slots.push(SlotInfo { raw, dtype, elements, below, is_input: true });
                (Tensor::wrap(self, raw, dtype).with_below(below), slot)
            }
            Err(error) => (Tensor::poisoned(self, error), slot),
        }
    }

    /// A stored weight. The graph keeps its storage alive.
    pub fn weight(&self, weight: &Weight) -> Tensor<'_> {
        if let Err(error) = self.hold(weight) {
            return Tensor::poisoned(self, error);
        }
        if weight.packed().is_some() {
            let reason = "a packed weight is used for something else than its map";
            return Tensor::poisoned(self, Error::Backend(reason.into()));
        }
        Tensor::wrap(self, weight.raw(), unpacked(weight.dtype()))
    }

    /// Keeps a weight's storage alive as long as the graph.
    pub(crate) fn hold(&self, weight: &Weight) -> Result<()> {
        if weight.storage().home() != Some(self.home) {
            let reason = "a weight is used before its memory was allocated, or on another back end than it lies on";
            return Err(Error::Backend(reason.into()));
        }
        let mut storages = self.storages.borrow_mut();
        if !storages.iter().any(|storage| storage.is(weight.storage())) {
            storages.push(weight.storage().clone());
        }
        Ok(())
    }

    /// Notes what computes an op of ours.
    pub(crate) fn computed_by(&self, raw: NonNull<sys::ggml_tensor>, kernel: Arc<dyn Kernel>) {
        self.kernels.borrow_mut().insert(raw, kernel);
    }

    /// The instruction set of our own ops, if the graph may have any.
    pub(crate) fn isa(&self) -> Option<Isa> {
        self.isa
    }

    /// Marks `tensor` as a result that can be read after each run.
    pub fn output(&self, tensor: Tensor<'_>) -> Slot {
        let mut slots = self.slots.borrow_mut();
        let slot = Slot(slots.len());
        if !std::ptr::eq(tensor.builder, self) {
            self.fail(Error::Backend("an output belongs to another graph".into()));
            return slot;
        }
        let tensor = tensor.contiguous();
        if let Some(raw) = tensor.raw() {
            // SAFETY: the tensor lives in our contexts, or is a weight in a storage that we hold.
            unsafe { keep(raw) };
            let (dtype, elements, below) = (tensor.dtype(), tensor.elements(), usize::MAX);
            slots.push(SlotInfo { raw, dtype, elements, below, is_input: false });
        }
        slot
    }

    /// Allocates the graph on `backend`, if that takes at most `limit_bytes`.
    ///
    /// # Errors
    /// The first error of any op; [`Error::Unsupported`] when the back end has no kernel for one;
    /// [`Error::Alloc`] when the memory is over the limit or can't be had.
    pub fn build(self, backend: &Backend, limit_bytes: usize) -> Result<Graph> {
        if let Some(error) = self.error.into_inner() {
            return Err(error);
        }
        if backend.buffer_type() != self.home || backend.kernels() != self.isa {
            return Err(Error::Backend("a graph is built on another back end than it was begun for".into()));
        }
        let mut contexts = self.contexts.into_inner();
        let slots = self.slots.into_inner();
        // SAFETY: all of them live in our contexts and storages.
        let mut tensors = unsafe { in_order(slots.iter().map(|slot| slot.raw)) };
        // In the order in which they were made, inputs and weights first. Operands come before what uses
        // them in this order too, and it holds less memory at once: by operands alone, every half-float
        // weight of a network would be widened before its first layer runs.
        let made = self.made.into_inner();
        tensors.sort_by_key(|tensor| made.get(tensor).map_or(0, |place| place + 1));
        if !backend.is_cpu() {
            backend.check_support(&tensors)?;
        }
        let kernels = self.kernels.into_inner();
        let inputs = slots.iter().enumerate().filter(|(_, slot)| slot.is_input);
        let inputs = inputs.map(|(i, slot)| (slot.raw, Inputs::one(i))).collect();
        // SAFETY: all of them live in our contexts and storages.
        let depends = unsafe {
            let depends = dependencies(&tensors, &inputs);
            let may_stay = |tensor| kernels.get(&tensor).is_some_and(|kernel| kernel.may_stay());
            steady(&tensors, &depends, may_stay).into_iter().for_each(|tensor| pin(tensor));
            depends
        };
        let graph = contexts.graph(&tensors)?;
        let allocator = Allocator::new(backend)?;
        let bytes = allocator.measure(graph, &tensors)?;
        if bytes > limit_bytes {
            return Err(Error::Alloc { what: "graph", bytes });
        }
        allocator.allocate(graph, bytes)?;
        let executor = match backend.rates() {
            Some(rates) => Some(Executor::new(&tensors, &kernels, &depends, &mut contexts, rates)?),
            None => None,
        };
        let graph = Graph {
            graph,
            slots,
            bytes,
            home: self.home,
            work: Vec::new(),
            computed: false,
            storages: self.storages.into_inner(),
            executor,
            written: Inputs::ALL,
            versions: Vec::new(),
            _allocator: allocator,
            _contexts: contexts,
        };
        graph.zero_inputs()?;
        Ok(graph)
    }

    /// Notes that an op was made.
    pub(crate) fn note(&self, raw: NonNull<sys::ggml_tensor>) {
        let mut made = self.made.borrow_mut();
        let place = made.len();
        made.insert(raw, place);
    }

    /// Keeps the first error.
    pub(crate) fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// A ggml context with room for one more op.
    pub(crate) fn context(&self) -> Result<*mut sys::ggml_context> {
        self.contexts.borrow_mut().current()
    }

    /// Whether the graph will run on the CPU.
    pub(crate) fn on_cpu(&self) -> bool {
        self.on_cpu
    }
}

/// Marks a tensor, and the one that it is a view of, as not to be overwritten by later ops. Weights
/// never are, and may be in use elsewhere.
///
/// # Safety
/// `raw` is alive.
unsafe fn keep(raw: NonNull<sys::ggml_tensor>) {
    // SAFETY: a view's source lives as long as the view.
    unsafe {
        for tensor in [raw.as_ptr(), raw.as_ref().view_src] {
            if !tensor.is_null() && (*tensor).buffer.is_null() {
                // ggml's own `set_output` would mark the source as well, whatever it is.
                (*tensor).flags |= sys::GGML_TENSOR_FLAG_OUTPUT as i32;
            }
        }
    }
}

/// Gives a tensor memory that no other has at any time of a run, so that its values are still there in the
/// next: that of inputs and outputs.
///
/// # Safety
/// `raw` is alive.
unsafe fn pin(mut raw: NonNull<sys::ggml_tensor>) {
    // SAFETY: the caller's promise.
    unsafe { raw.as_mut().flags |= (sys::GGML_TENSOR_FLAG_INPUT | sys::GGML_TENSOR_FLAG_OUTPUT) as i32 };
}

/// Everything that `results` depend on, operands before what uses them.
///
/// ggml would find the same order by itself, but calls itself for each op on the way, and a long
/// chain would overflow the stack of a small thread.
///
/// # Safety
/// The tensors and their operands are alive.
unsafe fn in_order(results: impl Iterator<Item = NonNull<sys::ggml_tensor>>) -> Vec<NonNull<sys::ggml_tensor>> {
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    for result in results {
        // Each entry: a tensor, and which of its operands is next.
        let mut path = vec![(result, 0)];
        if !seen.insert(result) {
            continue;
        }
        while let Some((tensor, next)) = path.last_mut() {
            // SAFETY: the caller's contract.
            let operands = unsafe { tensor.as_ref().src };
            match operands.get(*next) {
                Some(&operand) => {
                    *next += 1;
                    if let Some(operand) = NonNull::new(operand).filter(|&operand| seen.insert(operand)) {
                        path.push((operand, 0));
                    }
                }
                None => {
                    order.push(*tensor);
                    path.pop();
                }
            }
        }
    }
    order
}
