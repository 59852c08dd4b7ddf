//! The threads that compute our own ops.
//!
//! They sleep unless there are bands to compute: a host's frame has no core to spare for threads that spin.
//! Whoever starts some work takes part in it, and wakes no more threads than there are bands.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::kernels::Scratch;
use crate::{Error, Result};

/// Work that is cut into bands, any of which may be computed at any time by any thread.
pub(crate) struct Work<'a> {
    bands: usize,
    compute: &'a (dyn Fn(usize, &mut Scratch) + Sync),
    /// The next band that nobody has taken.
    next: AtomicUsize,
    halted: AtomicBool,
}

impl<'a> Work<'a> {
    pub(crate) fn new(bands: usize, compute: &'a (dyn Fn(usize, &mut Scratch) + Sync)) -> Self {
        Self { bands, compute, next: AtomicUsize::new(0), halted: AtomicBool::new(false) }
    }

    /// Whether every band has been taken: once no thread is at work, whether it is done.
    pub(crate) fn is_taken(&self) -> bool {
        self.left() == 0
    }

    fn left(&self) -> usize {
        self.bands.saturating_sub(self.next.load(Ordering::Relaxed))
    }

    /// Computes the next band, if there is one and nobody has called a halt.
    fn take(&self, scratch: &mut Scratch) -> bool {
        if self.halted.load(Ordering::Relaxed) {
            return false;
        }
        let band = self.next.fetch_add(1, Ordering::Relaxed);
        if band >= self.bands {
            return false;
        }
        (self.compute)(band, scratch);
        true
    }
}

/// Threads that wait for work.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is work, or the pool ends.
    woken: Condvar,
    /// The last helper has left the work.
    left: Condvar,
}

#[derive(Default)]
struct State {
    work: Option<Offer>,
    /// Counts offers, so that a helper takes part in each at most once.
    offers: u64,
    /// Helpers that may still come to the offer.
    wanted: usize,
    /// Helpers that are at work.
    busy: usize,
    panic: Option<Box<dyn Any + Send>>,
    ended: bool,
}

/// Work that outlives the offer: [`Pool::run`] withdraws it and waits before it returns.
#[derive(Clone, Copy)]
struct Offer(*const Work<'static>);

// SAFETY: the work is `Sync`.
unsafe impl Send for Offer {}

impl Pool {
    /// A pool of `threads` threads, of which the caller is one.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let mut pool = Self { shared: Arc::default(), helpers: Vec::new() };
        for i in 1..threads {
            let shared = pool.shared.clone();
            let started = std::thread::Builder::new().name(format!("scumble-{i}")).spawn(move || help(&shared));
            // Those that were started end with the pool.
            let helper =
                started.map_err(|error| Error::Backend(format!("{threads} threads could not be started: {error}")))?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Computes bands of `work` until there are none left, or until `goes_on`, which is asked on this thread
    /// after each band of its own, says no. Then no thread is at work any more.
    ///
    /// # Panics
    /// When a band does, after every thread has come to rest.
    pub(crate) fn run(&self, work: &Work<'_>, goes_on: &mut dyn FnMut() -> bool, scratch: &mut Scratch) {
        work.halted.store(false, Ordering::Relaxed);
        let helpers = self.helpers.len().min(work.left().saturating_sub(1));
        if helpers > 0 {
            let mut state = self.lock();
            // SAFETY: only the lifetime changes, and nobody looks at the offer after it is withdrawn below.
            let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
            state.work = Some(Offer(work));
            state.offers += 1;
            state.wanted = helpers;
            drop(state);
            for _ in 0..helpers {
                self.shared.woken.notify_one();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| while work.take(scratch) && goes_on() {}));
        // Bands that are not taken by now are left for the next run.
        work.halted.store(true, Ordering::Relaxed);
        let mut theirs = None;
        if helpers > 0 {
            let mut state = self.lock();
            state.work = None;
            state = self.shared.left.wait_while(state, |state| state.busy > 0).unwrap_or_else(PoisonError::into_inner);
            theirs = state.panic.take();
        }
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A helper's life.
fn help(shared: &Shared) {
    let mut scratch = Scratch::default();
    let mut seen = 0;
    let mut state = shared.lock();
    loop {
        let offer = match state.work {
            _ if state.ended => return,
            Some(offer) if state.offers != seen && state.wanted > 0 => offer,
            _ => {
                state = shared.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
        };
        seen = state.offers;
        state.wanted -= 1;
        state.busy += 1;
        drop(state);
        // SAFETY: `run` waits until nobody is busy before the work ends.
        let work = unsafe { &*offer.0 };
        let computed = catch_unwind(AssertUnwindSafe(|| while work.take(&mut scratch) {}));
        if computed.is_err() {
            work.halted.store(true, Ordering::Relaxed);
        }
        state = shared.lock();
        state.panic = computed.err().or(state.panic.take());
        state.busy -= 1;
        if state.busy == 0 {
            shared.left.notify_all();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.lock().ended = true;
        self.shared.woken.notify_all();
        for helper in self.helpers.drain(..) {
            let _ = helper.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_band_is_computed_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for bands in [0, 1, 2, 7, 1000] {
                let counts: Vec<_> = (0..bands).map(|_| AtomicUsize::new(0)).collect();
                let compute = |band: usize, _: &mut Scratch| {
                    counts[band].fetch_add(1, Ordering::Relaxed);
                };
                let work = Work::new(bands, &compute);
                pool.run(&work, &mut || true, &mut Scratch::default());
                assert!(work.is_taken() && counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_halted_run_goes_on_where_it_was() {
        let pool = Pool::new(3).unwrap();
        let counts: Vec<_> = (0..200).map(|_| AtomicUsize::new(0)).collect();
        let compute = |band: usize, _: &mut Scratch| {
            std::thread::sleep(std::time::Duration::from_micros(50));
            counts[band].fetch_add(1, Ordering::Relaxed);
        };
        let work = Work::new(200, &compute);
        let (mut runs, mut scratch) = (0, Scratch::default());
        while !work.is_taken() {
            pool.run(&work, &mut || false, &mut scratch);
            runs += 1;
            assert_eq!(pool.lock().busy, 0, "somebody is still at work");
        }
        assert!(runs > 3 && counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{runs}");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(4).unwrap();
        for bad in 0..8 {
            let compute = |band: usize, _: &mut Scratch| assert!(band != bad, "band {bad}");
            let work = Work::new(8, &compute);
            let run = || pool.run(&work, &mut || true, &mut Scratch::default());
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(*panic.downcast::<String>().unwrap(), format!("band {bad}"));
        }
        let compute = |_: usize, _: &mut Scratch| ();
        pool.run(&Work::new(8, &compute), &mut || true, &mut Scratch::default());
    }
}
