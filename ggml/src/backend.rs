//! A back end: where tensors live and graphs run.

use std::ffi::CString;
use std::ptr::NonNull;

use crate::device::text;
use crate::executor::Rates;
use crate::kernels::Isa;
use crate::pool::Pool;
use crate::{DeviceKind, Error, Result, devices, log, sys};

/// The most threads that ggml's pool takes.
pub(crate) const MAX_THREADS: usize = 512;

/// An open back end. One thread owns it: it can be sent, but not shared.
pub struct Backend {
    raw: NonNull<sys::ggml_backend>,
    threads: Threads,
    name: String,
}

/// Who computes.
enum Threads {
    /// Not the CPU.
    Elsewhere,
    /// The CPU, by ggml's ops alone.
    Ggml(GgmlPool),
    /// The CPU: ours, and for ggml's ops the calling thread.
    Ours { pool: Pool, alone: GgmlPool, isa: Isa, rates: Rates },
}

/// ggml's threads. They sleep between graphs: polling would burn a core of the host.
struct GgmlPool {
    raw: NonNull<sys::ggml_threadpool>,
    threads: usize,
}

// SAFETY: ggml ties neither a back end nor a pool to the thread that made it.
unsafe impl Send for Backend {}

impl Backend {
    /// Opens the CPU with `threads` threads, the caller's included, and the best kernels that it can run; `0`
    /// means one thread per core.
    pub fn cpu(threads: usize) -> Result<Self> {
        Self::cpu_with(threads, Some(Isa::best()))
    }

    /// As [`Backend::cpu`], with the kernels of one instruction set, or with ggml's ops alone.
    pub fn cpu_with(threads: usize, kernels: Option<Isa>) -> Result<Self> {
        log::install();
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |count| count.get().min(MAX_THREADS)),
            threads => threads,
        };
        if threads > MAX_THREADS {
            return Err(Error::Backend(format!("{threads} threads where at most {MAX_THREADS} can be had")));
        }
        // SAFETY: no preconditions.
        let raw = NonNull::new(unsafe { sys::ggml_backend_cpu_init() })
            .ok_or_else(|| Error::Backend("the CPU back end could not be opened".into()))?;
        let mut backend = Self { raw, threads: Threads::Elsewhere, name: "CPU".into() };
        backend.threads = match kernels {
            None => Threads::Ggml(GgmlPool::new(threads)?),
            Some(isa) => {
                let (pool, alone) = (Pool::new(threads)?, GgmlPool::new(1)?);
                Threads::Ours { pool, alone, isa, rates: Rates::default() }
            }
        };
        Ok(backend)
    }

    /// Opens the device that [`devices`] lists under `name`.
    pub fn open(name: &str, threads: usize) -> Result<Self> {
        let device = devices()
            .into_iter()
            .find(|device| device.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| Error::Backend(format!("there is no device called {name}")))?;
        if device.kind == DeviceKind::Cpu {
            return Self::cpu(threads);
        }
        let c_name = CString::new(device.name).map_err(|_| Error::Backend("a name with a NUL".into()))?;
        // SAFETY: the name is NUL-terminated; a null parameter string means defaults.
        let raw = unsafe { sys::ggml_backend_init_by_name(c_name.as_ptr(), std::ptr::null()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::Backend(format!("device {name} could not be opened")))?;
        // SAFETY: the name belongs to the open back end.
        let name = unsafe { text(sys::ggml_backend_name(raw.as_ptr())) };
        Ok(Self { raw, threads: Threads::Elsewhere, name })
    }

    /// The instruction set of our own kernels, where they are used.
    pub fn kernels(&self) -> Option<Isa> {
        match self.threads {
            Threads::Ours { isa, .. } => Some(isa),
            _ => None,
        }
    }

    /// The back end's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the CPU, which alone can be stopped in the middle of a run.
    pub fn is_cpu(&self) -> bool {
        !matches!(self.threads, Threads::Elsewhere)
    }

    /// Threads of the CPU's pool; 1 elsewhere.
    pub fn threads(&self) -> usize {
        match &self.threads {
            Threads::Elsewhere => 1,
            Threads::Ggml(pool) => pool.threads,
            Threads::Ours { pool, .. } => pool.threads(),
        }
    }

    /// That the back end has a kernel for each op of a graph; it would abort on one that it lacks.
    pub(crate) fn check_support(&self, tensors: &[NonNull<sys::ggml_tensor>]) -> Result<()> {
        for tensor in tensors {
            // SAFETY: the back end is open, the tensor and its operands are alive.
            let (supported, op, shape) = unsafe {
                let raw = tensor.as_ref();
                let computes = raw.op != sys::GGML_OP_NONE;
                let supported = !computes || sys::ggml_backend_supports_op(self.raw(), raw);
                (supported, text(sys::ggml_op_desc(raw)), raw.ne.map(|size| size as usize))
            };
            if !supported {
                return Err(Error::Unsupported { backend: self.name.clone(), op, shape });
            }
        }
        Ok(())
    }

    pub(crate) fn raw(&self) -> sys::ggml_backend_t {
        self.raw.as_ptr()
    }

    /// ggml's threads, where it computes everything.
    pub(crate) fn pool(&self) -> Option<sys::ggml_threadpool_t> {
        match &self.threads {
            Threads::Ggml(pool) => Some(pool.raw.as_ptr()),
            _ => None,
        }
    }

    /// Our threads, and ggml's single one, where we compute.
    pub(crate) fn executor(&self) -> Option<(&Pool, sys::ggml_threadpool_t)> {
        match &self.threads {
            Threads::Ours { pool, alone, .. } => Some((pool, alone.raw.as_ptr())),
            _ => None,
        }
    }

    /// What ops of ours have been measured to take.
    pub(crate) fn rates(&self) -> Option<Rates> {
        match &self.threads {
            Threads::Ours { rates, .. } => Some(rates.clone()),
            _ => None,
        }
    }

    pub(crate) fn buffer_type(&self) -> sys::ggml_backend_buffer_type_t {
        // SAFETY: the back end is open.
        unsafe { sys::ggml_backend_get_default_buffer_type(self.raw()) }
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name).field("threads", &self.threads()).finish()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.threads = Threads::Elsewhere;
        // SAFETY: opened by us, closed once; buffers outlive their back end in ggml.
        unsafe { sys::ggml_backend_free(self.raw.as_ptr()) };
    }
}

impl GgmlPool {
    fn new(threads: usize) -> Result<Self> {
        // A thread that can't be started makes ggml abort, so starting as many is tried first.
        let tried: std::io::Result<Vec<_>> =
            (1..threads).map(|_| std::thread::Builder::new().spawn(|| std::thread::park_timeout(PROBE))).collect();
        let probes =
            tried.map_err(|error| Error::Backend(format!("{threads} threads could not be started: {error}")))?;
        for probe in probes {
            probe.thread().unpark();
            let _ = probe.join();
        }
        // SAFETY: the parameters are a plain value, read during the call.
        let raw = unsafe {
            let mut params = sys::ggml_threadpool_params_default(threads as i32);
            params.poll = 0;
            sys::ggml_threadpool_new(&mut params)
        };
        let raw = NonNull::new(raw).ok_or(Error::Alloc { what: "thread pool", bytes: 0 })?;
        Ok(Self { raw, threads })
    }
}

/// How long a probing thread waits to be told that all have started.
const PROBE: std::time::Duration = std::time::Duration::from_secs(1);

impl Drop for GgmlPool {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once; this joins its threads.
        unsafe { sys::ggml_threadpool_free(self.raw.as_ptr()) };
    }
}
