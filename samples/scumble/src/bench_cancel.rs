//! `scumble bench cancel`: how long a run takes to end once it is told to, and what an engine costs that does
//! nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use scumble_core::pipeline::{Files, Observer, Pipeline, Progress, Quiet, Stage};
use scumble_core::request::Request;
use scumble_core::{Error, Result};

use crate::builtin;
use crate::compute::Compute;
use crate::interrupt::Interrupt;
use crate::output::print;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A safetensors file, a diffusers folder, or the model in this program
    #[arg(long, default_value = builtin::NAME, value_name = "PATH|builtin")]
    model: PathBuf,
    /// Width in pixels
    #[arg(long, default_value_t = 512, value_name = "PIXELS")]
    width: usize,
    /// Height in pixels
    #[arg(long, default_value_t = 512, value_name = "PIXELS")]
    height: usize,
    /// Steps of each run
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    steps: usize,
    /// Runs that are cancelled, at times that are spread over the whole of a run
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    times: usize,
    #[command(flatten)]
    compute: Compute,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// More would only take longer.
const MOST_TIMES: usize = 10_000;

/// How long an idle engine is watched.
const IDLE: Duration = Duration::from_secs(5);

/// A run that somebody else can watch and end.
#[derive(Clone, Default)]
struct Remote {
    cancelled: Arc<AtomicBool>,
    stage: Arc<Mutex<Option<Stage>>>,
}

impl Observer for Remote {
    fn stop(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn progress(&mut self, progress: Progress) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress.stage);
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let interrupt = Interrupt::install()?;
    if !(1..=MOST_TIMES).contains(&arguments.times) {
        return Err(Error::invalid("times", format!("{} where 1 to {MOST_TIMES} is possible", arguments.times)));
    }
    let request = Request {
        prompt: "a mossy red brick wall".into(),
        width_px: arguments.width,
        height_px: arguments.height,
        steps: arguments.steps,
        ..Request::default()
    };
    let files = Files { model: builtin::open(&arguments.model)?, vae: None, taesd: None };
    let mut pipeline = Pipeline::load(&files, arguments.compute.backend()?, &mut Quiet)?;
    // Once to the end: how long that takes, and what the ops cost, so that slices are as they are in use.
    let began = Instant::now();
    pipeline.generate(&request, &mut Remote::default())?;
    let whole = began.elapsed();

    let mut found: Vec<(Stage, f64)> = Vec::new();
    for i in 1..=arguments.times {
        if interrupt.is_set() {
            return Err(Error::Cancelled);
        }
        found.extend(cancel_after(&mut pipeline, &request, whole.mul_f64(spread(i)))?);
    }
    let idle_ms = idle_milliseconds();

    let of = |stage: Option<Stage>| {
        let those = found.iter().filter(|(at, _)| stage.is_none_or(|stage| *at == stage));
        let mut times: Vec<f64> = those.map(|(_, seconds)| 1e3 * seconds).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let stages = [None, Some(Stage::Encoding), Some(Stage::Denoising), Some(Stage::Decoding)];
    let rows: Vec<_> = stages.map(|stage| (stage.map_or("whole run", Stage::name), of(stage))).into_iter().collect();
    if arguments.json {
        let rows = rows.iter().map(|(name, times)| {
            let figures = serde_json::json!({
                "count": times.len(), "p50_ms": percentile(times, 0.5), "p99_ms": percentile(times, 0.99),
                "most_ms": percentile(times, 1.0),
            });
            ((*name).to_owned(), figures)
        });
        let cancel: serde_json::Map<_, _> = rows.collect();
        return print(serde_json::json!({
            "model": arguments.model.to_string_lossy(), "width": arguments.width, "height": arguments.height,
            "steps": arguments.steps, "threads": pipeline.backend().threads(), "run_s": whole.as_secs_f64(),
            "cancel": cancel, "idle_ms_per_s": idle_ms,
        }));
    }
    print(format!("a run of {} steps takes {:.2} s", arguments.steps, whole.as_secs_f64()))?;
    print("from the call to idle threads   times    p50 ms    p99 ms   most ms")?;
    for (name, times) in rows.iter().filter(|(_, times)| !times.is_empty()) {
        let [half, most, all] = [0.5, 0.99, 1.0].map(|share| percentile(times, share));
        print(format!("{name:30} {:6} {half:9.1} {most:9.1} {all:9.1}", times.len()))?;
    }
    match idle_ms {
        Some(ms) => print(format!("idle afterwards: {ms:.3} ms of processor time in a second")),
        None => Ok(()),
    }
}

/// Cancels a run after `delay`: the stage that it was in, and the seconds from the call until it had ended. None
/// if it had ended before.
fn cancel_after(pipeline: &mut Pipeline, request: &Request, delay: Duration) -> Result<Option<(Stage, f64)>> {
    let remote = Remote::default();
    let (sender, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut observer = remote.clone();
        scope.spawn(move || {
            let result = pipeline.generate(request, &mut observer);
            // The receiver waits for it.
            let _ = sender.send((result, Instant::now()));
        });
        let early = ended.recv_timeout(delay);
        let stage = *remote.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let called = Instant::now();
        remote.cancelled.store(true, Ordering::Relaxed);
        let (result, at) = early.or_else(|_| ended.recv()).map_err(|_| Error::Internal("a run was lost".into()))?;
        match (result, stage) {
            (Err(Error::Cancelled), Some(stage)) => Ok(Some((stage, at.duration_since(called).as_secs_f64()))),
            (Ok(_) | Err(Error::Cancelled), _) => Ok(None),
            (Err(error), _) => Err(error),
        }
    })
}

/// The `i`-th of numbers that are spread evenly over 0…1, however many are taken (multiples of the golden ratio).
fn spread(i: usize) -> f64 {
    (i as f64 * 0.618_033_988_749_894_9).fract()
}

/// Of sorted numbers, the least that is as large as a share of them.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Milliseconds of processor time in a second of this process, which does nothing but sleep.
#[cfg(target_os = "linux")]
fn idle_milliseconds() -> Option<f64> {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let before = used();
    std::thread::sleep(IDLE);
    Some(1e3 * (used() - before) / IDLE.as_secs_f64())
}

#[cfg(not(target_os = "linux"))]
fn idle_milliseconds() -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| percentile(&hundred, share)), [50.0, 99.0, 100.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn times_are_spread() {
        for tenth in 0..10 {
            let inside = (1..=200).filter(|&i| (10.0 * spread(i)) as usize == tenth).count();
            assert!((18..=22).contains(&inside), "{tenth}: {inside}");
        }
    }
}
