//! Weights: tensors that outlive the graphs that read them.

use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Contexts;
use crate::{Backend, Dtype, Error, Result, Shape, sys};

/// The weights of one or more networks. First they are declared with [`Storage::add`], then memory
/// for all is had at once with [`Storage::allocate`], then each is written. Clones share it.
#[derive(Clone, Default)]
pub struct Storage(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    // Dropped in this order: buffers hold data of tensors that the contexts describe.
    buffers: Vec<NonNull<sys::ggml_backend_buffer>>,
    contexts: Contexts,
    /// The kind of memory that they lie in, once they have any.
    home: Option<sys::ggml_backend_buffer_type_t>,
    bytes: usize,
    /// Graphs that are running on these weights.
    readers: usize,
}

// SAFETY: a buffer is tied to no thread, and all access goes through the lock.
unsafe impl Send for Inner {}

/// One stored tensor.
#[derive(Clone)]
pub struct Weight {
    raw: NonNull<sys::ggml_tensor>,
    dtype: Dtype,
    shape: Shape,
    storage: Storage,
}

// SAFETY: once it has memory the description is constant, graphs are only given weights that have,
// and data is written only under the storage's lock while no graph runs on it.
unsafe impl Send for Weight {}
// SAFETY: as above.
unsafe impl Sync for Weight {}

impl Storage {
    /// An empty storage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a tensor. `shape` is fastest dimension first.
    pub fn add(&self, dtype: Dtype, shape: Shape) -> Result<Weight> {
        let mut inner = self.lock();
        if inner.home.is_some() {
            return Err(Error::Backend("a weight was declared after the memory had been allocated".into()));
        }
        let raw = inner.contexts.tensor(dtype, shape)?;
        // ggml names what has no name when a graph is built, and graphs are built on many threads.
        // SAFETY: the tensor was just made; the name is NUL-terminated.
        unsafe { sys::ggml_set_name(raw.as_ptr(), c"weight".as_ptr()) };
        Ok(Weight { raw, dtype, shape, storage: self.clone() })
    }

    /// Bytes that [`Storage::allocate`] will ask for on `backend`; 0 once it has.
    pub fn bytes_needed(&self, backend: &Backend) -> usize {
        self.lock().bytes_needed(backend)
    }

    /// Gives every declared tensor its memory.
    ///
    /// # Errors
    /// [`Error::Alloc`] when it can't be had; then none has any, and it may be tried again.
    pub fn allocate(&self, backend: &Backend) -> Result<()> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.home.is_some() {
            return Err(Error::Backend("the memory of these weights was allocated before".into()));
        }
        let home = backend.buffer_type();
        let bytes = inner.bytes_needed(backend);
        let mut make = |context| {
            // SAFETY: the context is alive and its tensors have no memory yet.
            let raw = unsafe { sys::ggml_backend_alloc_ctx_tensors_from_buft(context, home) };
            let Some(raw) = NonNull::new(raw) else { return false };
            inner.buffers.push(raw);
            // SAFETY: the buffer was just made.
            unsafe { sys::ggml_backend_buffer_set_usage(raw.as_ptr(), sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS) };
            true
        };
        if !inner.contexts.iter().all(&mut make) {
            inner.give_back();
            return Err(Error::Alloc { what: "weights", bytes });
        }
        inner.bytes = bytes;
        inner.home = Some(home);
        Ok(())
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Whether both are clones of one storage.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The kind of memory that its tensors lie in, once they have any.
    pub(crate) fn home(&self) -> Option<sys::ggml_backend_buffer_type_t> {
        self.lock().home
    }

    /// Keeps the weights from being written until the guard is dropped.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.lock().readers += 1;
        Reading(self)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn bytes_needed(&self, backend: &Backend) -> usize {
        let home = backend.buffer_type();
        // SAFETY: the contexts are alive; this only measures.
        let needed = |context| unsafe { sys::ggml_backend_alloc_ctx_tensors_from_buft_size(context, home) };
        self.contexts.iter().map(needed).sum()
    }

    /// Frees what was allocated, and makes the tensors forget it.
    fn give_back(&mut self) {
        // SAFETY: the contexts and their tensors are alive, and no graph has seen them.
        unsafe {
            for context in self.contexts.iter() {
                let mut tensor = sys::ggml_get_first_tensor(context);
                while let Some(raw) = tensor.as_mut() {
                    (raw.data, raw.buffer) = (null_mut(), null_mut());
                    tensor = sys::ggml_get_next_tensor(context, tensor);
                }
            }
        }
        self.free_buffers();
    }

    fn free_buffers(&mut self) {
        for raw in self.buffers.drain(..) {
            // SAFETY: made by us, freed once.
            unsafe { sys::ggml_backend_buffer_free(raw.as_ptr()) };
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.free_buffers();
    }
}

/// While it lives, a graph reads the storage's weights.
pub(crate) struct Reading<'a>(&'a Storage);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.lock().readers -= 1;
    }
}

impl Weight {
    /// Its sizes, fastest dimension first.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Its element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Writes `data` (little-endian elements) at byte `offset`.
    ///
    /// # Errors
    /// When the bytes don't fit, when there is no memory yet, and while a graph runs on the storage.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len());
        if end > self.bytes() {
            return Err(Error::Length { what: "write to a weight", expected: self.bytes(), found: end });
        }
        let inner = self.storage.lock();
        if inner.home.is_none() {
            return Err(Error::Backend("a weight was written before its memory was allocated".into()));
        }
        if inner.readers > 0 {
            return Err(Error::Backend("a weight was written while a graph reads it".into()));
        }
        if !data.is_empty() {
            // SAFETY: the tensor has its memory, the range lies inside it, and nobody reads it.
            unsafe { sys::ggml_backend_tensor_set(self.raw.as_ptr(), data.as_ptr().cast(), offset, data.len()) };
        }
        Ok(())
    }

    pub(crate) fn raw(&self) -> NonNull<sys::ggml_tensor> {
        self.raw
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weight({:?} {:?})", self.dtype, self.shape)
    }
}
