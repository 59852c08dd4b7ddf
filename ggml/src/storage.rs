//! Weights: tensors that outlive the graphs that read them.

use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::context::Contexts;
use crate::kernels::{Isa, Panels};
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
    /// Descriptions of the maps, which have memory of ggml's only where they are not packed.
    map_contexts: Contexts,
    maps: Vec<Declared>,
    /// The kind of memory that they lie in, once they have any.
    home: Option<sys::ggml_backend_buffer_type_t>,
    bytes: usize,
    /// Graphs that are running on these weights.
    readers: usize,
    /// Counts writes.
    version: u64,
}

// SAFETY: a buffer is tied to no thread, and all access goes through the lock.
unsafe impl Send for Inner {}

/// A map that is packed when memory is had, if the back end has kernels for it.
struct Declared {
    dtype: Dtype,
    outputs: usize,
    inputs: usize,
    taps: usize,
    packed: Packed,
}

/// Empty until memory is had, and for good where nothing is packed.
type Packed = Arc<OnceLock<Arc<RwLock<Panels>>>>;

/// The type of the tensor that weights lie in where they are not packed.
pub(crate) fn unpacked(dtype: Dtype) -> Dtype {
    if dtype == Dtype::BF16 { Dtype::F32 } else { dtype }
}

/// What the weights of a map mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// `[inputs, outputs]`.
    Linear,
    /// `[width, height, inputs, outputs]`.
    Convolution,
}

/// One stored tensor.
#[derive(Clone)]
pub struct Weight {
    raw: NonNull<sys::ggml_tensor>,
    dtype: Dtype,
    shape: Shape,
    packed: Option<Packed>,
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
    ///
    /// # Errors
    /// [`Error::Type`] for BF16, in which only maps are stored.
    pub fn add(&self, dtype: Dtype, shape: Shape) -> Result<Weight> {
        if dtype == Dtype::BF16 {
            return Err(Error::Type { op: "weight", expected: "F32, F16 or I32", found: dtype });
        }
        let raw = self.lock().describe(dtype, shape, |inner| &mut inner.contexts)?;
        Ok(Weight { raw, dtype, shape, packed: None, storage: self.clone() })
    }

    /// Declares the weights of a linear map or a convolution, which are packed where the back end has
    /// kernels of our own: only [`Tensor::linear`](crate::Tensor::linear) and
    /// [`Picture::convolve`](crate::Picture::convolve) can use them. BF16 is widened to F32 elsewhere, for ggml would
    /// round what it multiplies with it.
    pub fn add_map(&self, kind: MapKind, dtype: Dtype, shape: Shape) -> Result<Weight> {
        let (outputs, inputs, taps) = match kind {
            MapKind::Linear => (shape[1], shape[0], 1),
            MapKind::Convolution => (shape[3], shape[2], shape[0].saturating_mul(shape[1])),
        };
        if kind == MapKind::Linear && shape[2..] != [1, 1] {
            return Err(Error::Shape { op: "linear map", shape, reason: "it has more than two dimensions".into() });
        }
        let mut inner = self.lock();
        let raw = inner.describe(unpacked(dtype), shape, |inner| &mut inner.map_contexts)?;
        let packed = Packed::default();
        inner.maps.push(Declared { dtype, outputs, inputs, taps, packed: packed.clone() });
        Ok(Weight { raw, dtype, shape, packed: Some(packed), storage: self.clone() })
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
        let unpacked = inner.map_contexts.iter().filter(|_| backend.kernels().is_none());
        if !inner.contexts.iter().chain(unpacked).all(&mut make) {
            inner.give_back();
            return Err(Error::Alloc { what: "weights", bytes });
        }
        if let Err(error) = inner.pack(backend) {
            inner.give_back();
            return Err(error);
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

    /// Another number after each write.
    pub(crate) fn version(&self) -> u64 {
        self.lock().version
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
        let maps: usize = match backend.kernels() {
            None => self.map_contexts.iter().map(needed).sum(),
            Some(isa) => self.maps.iter().map(|map| map.bytes(isa)).fold(0, usize::saturating_add),
        };
        self.contexts.iter().map(needed).sum::<usize>().saturating_add(maps)
    }

    /// A description in one of the lists of contexts.
    fn describe(
        &mut self,
        dtype: Dtype,
        shape: Shape,
        contexts: impl FnOnce(&mut Self) -> &mut Contexts,
    ) -> Result<NonNull<sys::ggml_tensor>> {
        if self.home.is_some() {
            return Err(Error::Backend("a weight was declared after the memory had been allocated".into()));
        }
        let raw = contexts(self).tensor(dtype, shape)?;
        // ggml names what has no name when a graph is built, and graphs are built on many threads.
        // SAFETY: the tensor was just made; the name is NUL-terminated.
        unsafe { sys::ggml_set_name(raw.as_ptr(), c"weight".as_ptr()) };
        Ok(raw)
    }

    /// Gives every map room in panels, where the back end has kernels: all of them, or none.
    fn pack(&mut self, backend: &Backend) -> Result<()> {
        let Some(isa) = backend.kernels() else { return Ok(()) };
        let made: Vec<_> = self.maps.iter().map(|map| map.panels(isa)).collect::<Result<_>>()?;
        for (map, panels) in self.maps.iter().zip(made) {
            // Once only: `home` says that there is no memory yet.
            let _ = map.packed.set(Arc::new(RwLock::new(panels)));
        }
        Ok(())
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

impl Declared {
    fn bytes(&self, isa: Isa) -> usize {
        Panels::length(isa, self.outputs, self.inputs, self.taps).saturating_mul(self.dtype.size())
    }

    fn panels(&self, isa: Isa) -> Result<Panels> {
        Panels::zeros(isa, self.dtype, self.outputs, self.inputs, self.taps)
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
        let mut inner = self.storage.lock();
        if inner.home.is_none() {
            return Err(Error::Backend("a weight was written before its memory was allocated".into()));
        }
        if inner.readers > 0 {
            return Err(Error::Backend("a weight was written while a graph reads it".into()));
        }
        inner.version += 1;
        if let Some(packed) = self.packed() {
            let mut packed = packed.write().unwrap_or_else(PoisonError::into_inner);
            // Others may write other weights meanwhile. A graph that begins now waits for this one.
            drop(inner);
            return packed.write(offset, data);
        }
        let widened: Vec<u8>;
        let (offset, data) = match self.dtype {
            Dtype::BF16 if offset.is_multiple_of(2) && data.len().is_multiple_of(2) => {
                // The upper half of a F32, which is little-endian as the data is.
                widened = data.as_chunks::<2>().0.iter().flat_map(|&[low, high]| [0, 0, low, high]).collect();
                (2 * offset, widened.as_slice())
            }
            Dtype::BF16 => return Err(Error::Length { what: "write to a weight", expected: self.bytes(), found: end }),
            _ => (offset, data),
        };
        if !data.is_empty() {
            // SAFETY: the tensor has its memory, the range lies inside it, and nobody reads it.
            unsafe { sys::ggml_backend_tensor_set(self.raw.as_ptr(), data.as_ptr().cast(), offset, data.len()) };
        }
        Ok(())
    }

    /// The weights as panels, where they are packed.
    pub(crate) fn packed(&self) -> Option<&Arc<RwLock<Panels>>> {
        self.packed.as_ref()?.get()
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
