//! `scumble bench`: what the stages cost, each on its own.

use std::path::PathBuf;
use std::time::Instant;

use clap::Subcommand;
use scumble_core::pipeline::{Files, Observer, Pipeline};
use scumble_core::request::{MAX_IMAGES, MAX_SIDE_PX};
use scumble_core::sampling::rng::{Rng, RngKind};
use scumble_core::{Error, Result};

use crate::bench_ops::{OpTable, Peaks};
use crate::compute::Compute;
use crate::interrupt::Interrupt;
use crate::output::print;
use crate::{bench_cancel, builtin};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Time loading, text, one denoising step with guidance, and decoding: medians of several runs; and what
    /// each kind of op costs in the step
    Step(Arguments),
    /// Cancel runs at times all over them, and time how long each takes to end; then watch the engine idle
    Cancel(bench_cancel::Arguments),
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Step(arguments) => step(arguments),
        Command::Cancel(arguments) => bench_cancel::run(arguments),
    }
}

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
    /// Pictures in a step
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    batch: usize,
    #[command(flatten)]
    compute: Compute,
    /// Runs of each stage, of which the median counts
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    runs: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// More would only take longer.
const MOST_RUNS: usize = 100;

/// Stops at Ctrl-C and shows nothing.
struct Silent(Interrupt);

impl Observer for Silent {
    fn stop(&self) -> bool {
        self.0.is_set()
    }
}

fn step(arguments: Arguments) -> Result<()> {
    let observer = &mut Silent(Interrupt::install()?);
    check("width", arguments.width, MAX_SIDE_PX)?;
    check("height", arguments.height, MAX_SIDE_PX)?;
    check("batch", arguments.batch, MAX_IMAGES)?;
    check("runs", arguments.runs, MOST_RUNS)?;
    let runs = arguments.runs;
    let mut loaded = None;
    let mut load_times = Vec::with_capacity(runs);
    for _ in 0..runs {
        // The old weights go before the new ones come, so that the peak is that of one model; and
        // outside of the time, which is from opening the files to being ready.
        drop(loaded.take());
        let backend = arguments.compute.backend()?;
        let began = Instant::now();
        let files = Files { model: builtin::open(&arguments.model)?, vae: None, taesd: None };
        loaded = Some(Pipeline::load(&files, backend, observer)?);
        load_times.push(began.elapsed().as_secs_f64());
    }
    let load_s = middle(load_times);
    let Some(mut pipeline) = loaded else { return Ok(()) };

    let description = pipeline.description();
    let unet = description.unet.clone();
    let reduction = description.vae.as_ref().map_or(8, |vae| vae.reduction());
    let (width, height) = (arguments.width.div_ceil(reduction), arguments.height.div_ceil(reduction));
    let text_s = median(runs, || pipeline.encode_text("a mossy red brick wall", "", None, observer).map(drop))?;
    let text = pipeline.encode_text("a mossy red brick wall", "", None, observer)?;

    let mut random = Rng::new(RngKind::Philox, 0);
    let input = random.normal(unet.in_channels * width * height);
    let (step_s, flops, costs) = {
        let mut denoiser = pipeline.denoiser(width, height, &[&text.negative, &text.positive])?;
        let step_s = median(runs, || {
            for _ in 0..arguments.batch {
                pipeline.predict(&mut denoiser, &input, 500.0, observer)?;
            }
            Ok(())
        })?;
        (step_s, denoiser.flops() * arguments.batch as f64, denoiser.costs())
    };
    let latent = random.normal(unet.out_channels * width * height);
    let decode_s = median(runs, || pipeline.decode(&latent, width, height, observer).map(drop))?;

    let gflops = flops / step_s / 1e9;
    let threads = pipeline.backend().threads();
    // Before the yardsticks are measured, which take memory of their own.
    let peak_bytes = peak_bytes();
    let peaks = Peaks::measure(threads);
    let ops = OpTable { costs, steps: runs as f64, peaks };
    if arguments.json {
        let report = serde_json::json!({
            "model": arguments.model.to_string_lossy(), "width": arguments.width, "height": arguments.height,
            "batch": arguments.batch, "threads": threads, "runs": runs,
            "load_s": load_s, "text_s": text_s, "step_s": step_s, "decode_s": decode_s,
            "peak_bytes": peak_bytes, "weight_bytes": pipeline.weight_bytes(),
            "step_flops": flops, "gflops": gflops,
            "matmul_gflops": peaks.gflops, "read_gigabytes_s": peaks.gigabytes, "roofline_share": gflops / peaks.gflops,
            "ops": ops.json(),
        });
        return print(report);
    }
    let Peaks { gflops: peak_gflops, .. } = peaks;
    let share = 100.0 * gflops / peak_gflops;
    print(format!("load   {load_s:9.3} s"))?;
    print(format!("text   {text_s:9.3} s"))?;
    print(format!("step   {step_s:9.3} s   {gflops:.1} GFLOP/s, {share:.0} % of a matmul's {peak_gflops:.1}"))?;
    print(format!("decode {decode_s:9.3} s"))?;
    print(format!(
        "peak   {:9.1} MB, weights {:.1} MB",
        peak_bytes as f64 / 1e6,
        pipeline.weight_bytes() as f64 / 1e6
    ))?;
    print(ops)
}

fn check(field: &'static str, value: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("{value} where 1 to {most} is possible")))
}

/// The median time of `runs` runs, in seconds.
fn median(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let times = (0..runs)
        .map(|_| {
            let began = Instant::now();
            run()?;
            Ok(began.elapsed().as_secs_f64())
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(middle(times))
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The most memory that this process has held, in bytes; 0 where the system doesn't say.
#[cfg(unix)]
fn peak_bytes() -> u64 {
    let usage = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = usage.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    field.and_then(|field| field.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

#[cfg(not(unix))]
fn peak_bytes() -> u64 {
    0
}
