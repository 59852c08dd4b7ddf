//! Runs a graph on the CPU with our own kernels.
//!
//! The graph is a list of steps: an op of ours, cut into bands that the pool's threads compute, or some of
//! ggml's ops in a row, which are small and computed on the calling thread. Time is divided into slices.
//! Before a band that is expected to go beyond the slice, and never in the middle of one, all threads come
//! to rest and the caller is asked how to go on: it may stop the run, wait as long as it likes, and say how
//! long the next slice is.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::context::Contexts;
use crate::custom::{Kernel, Tensors};
use crate::graph::{CacheLine, compute_by_ggml};
use crate::kernels::Scratch;
use crate::pool::{Pool, Work};
use crate::steady::{Inputs, operands};
use crate::{Backend, Error, Result, Shape, sys};

/// How a run goes on from the end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Not at all.
    Stop,
    /// For about this long, then it is asked again.
    Run(Duration),
}

/// How long a slice is where nobody says.
pub const SLICE: Duration = Duration::from_millis(20);

/// What a graph's ops of one kind cost, over all runs.
#[derive(Clone, Debug)]
pub struct OpCost {
    /// The kind.
    pub name: &'static str,
    /// How many of them a run computes.
    pub ops: usize,
    /// Seconds in all.
    pub seconds: f64,
    /// Multiplications and additions in all; 0 where there are few.
    pub flops: f64,
    /// Bytes read and written in all, if every operand were read once.
    pub bytes: f64,
}

/// Seconds of one thread for a band, by kind of op, shape and arithmetic: learnt by measuring, and kept as
/// long as the back end.
#[derive(Clone, Default)]
pub(crate) struct Rates(Arc<Mutex<HashMap<Key, f64>>>);

type Key = (&'static str, Shape, u64);

/// Arithmetic that any processor does in a second: what is believed before something is measured.
const MODEST_FLOPS: f64 = 4e9;

pub(crate) struct Executor {
    steps: Vec<Step>,
    rates: Rates,
    scratch: Scratch,
    /// ggml's scratch, never read before it is written.
    work: Vec<MaybeUninit<CacheLine>>,
    runs: usize,
}

struct Step {
    op: Op,
    /// Computed only when one of these was written; all for what is always computed.
    inputs: Inputs,
    /// Seconds of one thread for a band; for ggml's, for all.
    band_seconds: f64,
    /// Over all runs.
    seconds: f64,
    bytes: f64,
}

enum Op {
    Ours { kernel: Arc<dyn Kernel>, output: NonNull<sys::ggml_tensor> },
    Ggml(NonNull<sys::ggml_cgraph>),
}

// SAFETY: the tensors are plain memory that the graph owns or keeps alive.
unsafe impl Send for Executor {}

impl Executor {
    /// Plans the run of `tensors`, which are in the order in which they are computed and have their memory.
    pub(crate) fn new(
        tensors: &[NonNull<sys::ggml_tensor>],
        kernels: &HashMap<NonNull<sys::ggml_tensor>, Arc<dyn Kernel>>,
        depends: &HashMap<NonNull<sys::ggml_tensor>, Inputs>,
        contexts: &mut Contexts,
        rates: Rates,
    ) -> Result<Self> {
        // SAFETY: the tensors are alive.
        let staying = unsafe { staying(tensors, kernels) };
        let mut steps = Vec::new();
        let mut row = Vec::new();
        for &tensor in tensors {
            match kernels.get(&tensor) {
                Some(kernel) => {
                    steps.extend(Step::ggml(&mut row, contexts)?);
                    let inputs = if staying.contains(&tensor) { depends[&tensor] } else { Inputs::ALL };
                    steps.push(Step::ours(kernel.clone(), tensor, inputs, &rates));
                }
                // SAFETY: the tensor is alive.
                None if computes(unsafe { tensor.as_ref() }) => row.push(tensor),
                None => (),
            }
        }
        steps.extend(Step::ggml(&mut row, contexts)?);
        Ok(Self { steps, rates, scratch: Scratch::default(), work: Vec::new(), runs: 0 })
    }

    /// Runs all steps but those that would give again what they gave in the last run, since which `written` was
    /// written. `next` is asked between slices, on this thread, while all others rest.
    ///
    /// # Panics
    /// When `next` does.
    pub(crate) fn run(&mut self, backend: &Backend, written: Inputs, next: &mut dyn FnMut() -> Next) -> Result<()> {
        let Some((pool, ggml_pool)) = backend.executor() else {
            return Err(Error::Backend("a graph is run with other kernels than it was built for".into()));
        };
        let mut slice = Slice::begin(next)?;
        for step in self.steps.iter_mut().filter(|step| step.inputs == Inputs::ALL || step.inputs.meets(written)) {
            let began = Instant::now();
            let mut waited = Duration::ZERO;
            let mut control = |slice: &mut Slice| {
                let asked = Instant::now();
                *slice = Slice::begin(next)?;
                waited += asked.elapsed();
                Ok::<(), Error>(())
            };
            if slice.would_end(step.band_seconds) {
                control(&mut slice)?;
            }
            match &step.op {
                Op::Ours { kernel, output } => {
                    // SAFETY: the graph has its memory, which nobody else uses during a run.
                    let tensors = unsafe { Tensors::of(*output) };
                    let compute = |band: usize, scratch: &mut Scratch| kernel.compute(band, &tensors, scratch);
                    let work = Work::new(kernel.bands(), &compute);
                    loop {
                        pool.run(&work, &mut || !slice.would_end(step.band_seconds), &mut self.scratch);
                        if work.is_taken() {
                            break;
                        }
                        control(&mut slice)?;
                    }
                }
                Op::Ggml(graph) => match compute_by_ggml(*graph, ggml_pool, 1, &mut self.work, &|| false)? {
                    sys::GGML_STATUS_SUCCESS => (),
                    status => {
                        return Err(Error::Compute {
                            backend: backend.name().into(),
                            reason: format!("status {status}"),
                        });
                    }
                },
            }
            step.measured((began.elapsed() - waited).as_secs_f64(), pool);
        }
        self.runs += 1;
        self.rates.keep(&self.steps);
        Ok(())
    }

    /// Arithmetic of our own ops in one run.
    pub(crate) fn flops(&self) -> f64 {
        self.steps.iter().map(Step::flops).sum()
    }

    /// What the runs so far cost, by kind of op.
    pub(crate) fn costs(&self) -> Vec<OpCost> {
        let mut costs: Vec<OpCost> = Vec::new();
        for step in &self.steps {
            let name = match &step.op {
                Op::Ours { kernel, .. } => kernel.name(),
                Op::Ggml(_) => "other",
            };
            let at = costs.iter().position(|cost| cost.name == name).unwrap_or_else(|| {
                costs.push(OpCost { name, ops: 0, seconds: 0.0, flops: 0.0, bytes: 0.0 });
                costs.len() - 1
            });
            let cost = &mut costs[at];
            cost.ops += 1;
            cost.seconds += step.seconds;
            cost.flops += step.flops() * self.runs as f64;
            cost.bytes += step.bytes * self.runs as f64;
        }
        costs
    }
}

impl Step {
    fn ours(kernel: Arc<dyn Kernel>, output: NonNull<sys::ggml_tensor>, inputs: Inputs, rates: &Rates) -> Self {
        let guess = kernel.flops() / kernel.bands() as f64 / MODEST_FLOPS;
        let band_seconds = rates.lock().get(&key(&*kernel)).copied().unwrap_or(guess);
        // SAFETY: the tensor and its operands are alive.
        let bytes = unsafe { bytes_of(output) } + kernel.weight_bytes() as f64;
        Self { op: Op::Ours { kernel, output }, inputs, band_seconds, seconds: 0.0, bytes }
    }

    /// Some of ggml's ops in a row, if there are any.
    fn ggml(row: &mut Vec<NonNull<sys::ggml_tensor>>, contexts: &mut Contexts) -> Result<Option<Self>> {
        if row.is_empty() {
            return Ok(None);
        }
        // SAFETY: the tensors and their operands are alive.
        let bytes = row.iter().map(|&tensor| unsafe { bytes_of(tensor) }).sum();
        let graph = contexts.part(row)?;
        row.clear();
        Ok(Some(Self { op: Op::Ggml(graph), inputs: Inputs::ALL, band_seconds: 0.0, seconds: 0.0, bytes }))
    }

    fn flops(&self) -> f64 {
        match &self.op {
            Op::Ours { kernel, .. } => kernel.flops(),
            Op::Ggml(_) => 0.0,
        }
    }

    /// Learns from a run of `seconds`.
    fn measured(&mut self, seconds: f64, pool: &Pool) {
        /// The weight of the newest measurement.
        const NEWEST: f64 = 0.3;
        self.seconds += seconds;
        let band = match &self.op {
            Op::Ours { kernel, .. } => {
                let bands = kernel.bands();
                seconds * pool.threads().min(bands) as f64 / bands as f64
            }
            Op::Ggml(_) => seconds,
        };
        self.band_seconds += NEWEST * (band - self.band_seconds);
    }
}

impl Rates {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, f64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, steps: &[Step]) {
        let mut rates = self.lock();
        for step in steps {
            if let Op::Ours { kernel, .. } = &step.op {
                rates.insert(key(&**kernel), step.band_seconds);
            }
        }
    }
}

fn key(kernel: &dyn Kernel) -> Key {
    (kernel.name(), kernel.shape(), kernel.flops().to_bits())
}

/// A stretch of time between two questions.
struct Slice {
    began: Instant,
    length: Duration,
}

impl Slice {
    fn begin(next: &mut dyn FnMut() -> Next) -> Result<Self> {
        match next() {
            Next::Stop => Err(Error::Stopped),
            Next::Run(length) => Ok(Self { began: Instant::now(), length }),
        }
    }

    /// Whether something of so many seconds would go beyond it.
    fn would_end(&self, seconds: f64) -> bool {
        self.began.elapsed().as_secs_f64() + seconds > self.length.as_secs_f64()
    }
}

/// Ops of ours whose output stays where it is, or is only used by such.
///
/// # Safety
/// The tensors and their operands are alive.
unsafe fn staying(
    tensors: &[NonNull<sys::ggml_tensor>],
    kernels: &HashMap<NonNull<sys::ggml_tensor>, Arc<dyn Kernel>>,
) -> HashSet<NonNull<sys::ggml_tensor>> {
    let mut staying = HashSet::new();
    let mut needed = HashSet::new();
    for &tensor in tensors.iter().rev() {
        // SAFETY: the caller's promise.
        let is_kept = unsafe { tensor.as_ref() }.flags & sys::GGML_TENSOR_FLAG_OUTPUT as i32 != 0;
        let stays = match kernels.get(&tensor) {
            Some(kernel) if is_kept => kernel.may_stay(),
            Some(_) => !needed.contains(&tensor),
            None => false,
        };
        if stays {
            staying.insert(tensor);
        } else {
            // SAFETY: as above.
            needed.extend(unsafe { operands(tensor) });
        }
    }
    staying
}

/// Whether a tensor is computed, and not given or another one seen differently.
fn computes(tensor: &sys::ggml_tensor) -> bool {
    const SEEN: [sys::ggml_op; 5] =
        [sys::GGML_OP_NONE, sys::GGML_OP_RESHAPE, sys::GGML_OP_VIEW, sys::GGML_OP_PERMUTE, sys::GGML_OP_TRANSPOSE];
    !SEEN.contains(&tensor.op)
}

/// Bytes of a tensor and of its operands.
///
/// # Safety
/// They are alive.
unsafe fn bytes_of(tensor: NonNull<sys::ggml_tensor>) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        let own = sys::ggml_nbytes(tensor.as_ptr());
        let operands = tensor.as_ref().src.iter().filter(|operand| !operand.is_null());
        (own + operands.map(|&operand| sys::ggml_nbytes(operand)).sum::<usize>()) as f64
    }
}
