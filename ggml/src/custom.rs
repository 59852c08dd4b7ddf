//! Ops of our own inside a ggml graph.
//!
//! ggml calls such an op on every thread of its pool. The op's output is cut into bands, and each
//! thread takes the next band that nobody has taken, so a thread that another process holds up
//! delays one band and not its share of everything. A band's numbers do not depend on who computes it.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::graph::asked_to_stop;
use crate::kernels::Scratch;
use crate::map::Map;
use crate::sys;

/// What the ops of one graph share during a run.
#[derive(Default)]
pub(crate) struct Run {
    /// What [`asked_to_stop`] takes; null between runs.
    question: AtomicPtr<c_void>,
    stopped: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    scratch: Mutex<Vec<Scratch>>,
}

impl Run {
    pub(crate) fn begin(&self, question: *mut c_void) {
        self.question.store(question, Ordering::Relaxed);
        self.stopped.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether the run was cut short, and by what panic if by one.
    pub(crate) fn end(&self) -> (bool, Option<Box<dyn Any + Send>>) {
        self.question.store(null_mut(), Ordering::Relaxed);
        (self.stopped.load(Ordering::Relaxed), lock(&self.panic).take())
    }
}

/// An op of a graph.
pub(crate) struct Node {
    map: Map,
    run: Arc<Run>,
    /// The next band that nobody has taken.
    next: AtomicUsize,
    /// Threads that have found none left.
    done: AtomicUsize,
}

impl Node {
    pub(crate) fn new(map: Map, run: Arc<Run>) -> Self {
        Self { map, run, next: AtomicUsize::new(0), done: AtomicUsize::new(0) }
    }

    pub(crate) fn flops(&self) -> f64 {
        self.map.flops()
    }

    /// Puts the op into a graph.
    ///
    /// # Safety
    /// The context has room, the operands are those that the map was made for, and the node stays in
    /// its place as long as the graph lives.
    pub(crate) unsafe fn make(
        &self,
        context: *mut sys::ggml_context,
        operands: &mut [*mut sys::ggml_tensor],
    ) -> *mut sys::ggml_tensor {
        let [a, b, c, d] = self.map.shape().map(|size| size as i64);
        let (count, user) = (operands.len() as c_int, std::ptr::from_ref(self).cast_mut().cast());
        // SAFETY: the caller's promise.
        unsafe {
            let args = operands.as_mut_ptr();
            sys::ggml_custom_4d(context, sys::GGML_TYPE_F32, a, b, c, d, args, count, Some(compute), EVERY_THREAD, user)
        }
    }

    /// One thread's part of a run.
    ///
    /// # Safety
    /// `output` and its operands have their memory, and each thread of `threads` calls once a run.
    unsafe fn compute(&self, output: NonNull<sys::ggml_tensor>, thread: usize, threads: usize) {
        let computed = catch_unwind(AssertUnwindSafe(|| {
            let mut scratch = lock(&self.run.scratch).pop().unwrap_or_default();
            loop {
                if self.run.stopped.load(Ordering::Relaxed) {
                    break;
                }
                let band = self.next.fetch_add(1, Ordering::Relaxed);
                if band >= self.map.bands() {
                    break;
                }
                // SAFETY: the caller's promise; no other thread has this band.
                unsafe { self.map.compute(band, output, &mut scratch) };
                // The first thread is the one that started the run, which alone may ask.
                if thread == 0 && self.asked_to_stop() {
                    self.run.stopped.store(true, Ordering::Relaxed);
                }
            }
            lock(&self.run.scratch).push(scratch);
        }));
        if let Err(panic) = computed {
            *lock(&self.run.panic) = Some(panic);
            self.run.stopped.store(true, Ordering::Relaxed);
        }
        // The last one makes ready for the next run; ggml lets nobody past the op before.
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.done.store(0, Ordering::Relaxed);
            self.next.store(0, Ordering::Release);
        }
    }

    fn asked_to_stop(&self) -> bool {
        let question = self.run.question.load(Ordering::Relaxed);
        // SAFETY: the question is alive from `begin` to `end`.
        !question.is_null() && unsafe { asked_to_stop(question) }
    }
}

/// What ggml takes for "as many threads as there are".
const EVERY_THREAD: c_int = sys::GGML_N_TASKS_MAX;

unsafe extern "C" fn compute(output: *mut sys::ggml_tensor, thread: c_int, threads: c_int, user: *mut c_void) {
    let Some(output) = NonNull::new(output) else { return };
    // SAFETY: `make` passed a node that outlives the graph; ggml calls once on each thread.
    unsafe { (*user.cast::<Node>()).compute(output, thread as usize, threads as usize) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
