//! `scumble bench`: what the stages cost, each on its own.

use std::time::Instant;

use clap::Subcommand;
use scumble_core::Result;
use scumble_core::pipeline::{Files, Observer, Pipeline};
use scumble_core::sampling::rng::{Rng, RngKind};

use crate::builtin;
use crate::generate::backend;
use crate::interrupt::Interrupt;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Time loading, text, one denoise step with guidance, and decoding; medians of several runs
    Step(Arguments),
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A safetensors file, a diffusers folder, or the model in this program
    #[arg(long, default_value = builtin::NAME, value_name = "PATH|builtin")]
    model: String,
    /// Width in pixels
    #[arg(long, default_value_t = 512)]
    width: usize,
    /// Height in pixels
    #[arg(long, default_value_t = 512)]
    height: usize,
    /// Pictures in a step
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// The device to compute on, as `scumble devices` names it
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Runs of each stage, of which the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Stops at Ctrl-C and shows nothing.
struct Silent(Interrupt);

impl Observer for Silent {
    fn stop(&self) -> bool {
        self.0.is_set()
    }
}

pub(crate) fn step(arguments: Arguments) -> Result<()> {
    let observer = &mut Silent(Interrupt::install()?);
    let files = Files { model: builtin::open(&arguments.model)?, vae: None, taesd: None };
    let runs = arguments.runs.max(1);
    let open = |observer: &mut Silent| -> Result<Pipeline> {
        Pipeline::load(&files, backend(arguments.device.as_deref(), arguments.threads)?, observer)
    };
    let mut pipeline = open(observer)?;
    let load_s = median(runs, || {
        // The old weights go first, so that the peak is that of one model.
        drop(std::mem::replace(&mut pipeline, open(observer)?));
        Ok(())
    });
    let load_s = load_s?;

    let description = pipeline.description();
    let unet = description.unet.clone();
    let reduction = description.vae.as_ref().map_or(8, |vae| vae.reduction());
    let (width, height) = (arguments.width.div_ceil(reduction), arguments.height.div_ceil(reduction));
    let text_s = median(runs, || pipeline.encode_text("a mossy red brick wall", "", None, observer).map(drop))?;
    let text = pipeline.encode_text("a mossy red brick wall", "", None, observer)?;

    let mut random = Rng::new(RngKind::Philox, 0);
    let input = random.normal(unet.in_channels * width * height);
    let (step_s, flops) = {
        let mut denoiser = pipeline.denoiser(width, height, &[&text.negative, &text.positive])?;
        let step_s = median(runs, || {
            for _ in 0..arguments.batch {
                pipeline.predict(&mut denoiser, &input, 500.0, observer)?;
            }
            Ok(())
        })?;
        (step_s, denoiser.flops() * arguments.batch as f64)
    };
    let latent = random.normal(unet.out_channels * width * height);
    let decode_s = median(runs, || pipeline.decode(&latent, width, height, observer).map(drop))?;

    let gflops = flops / step_s / 1e9;
    let threads = pipeline.backend().threads();
    let peak_gflops = ggml::peak_matmul_gflops(threads);
    let peak_bytes = peak_bytes();
    if arguments.json {
        let report = serde_json::json!({
            "model": arguments.model, "width": arguments.width, "height": arguments.height,
            "batch": arguments.batch, "threads": threads, "runs": runs,
            "load_s": load_s, "text_s": text_s, "step_s": step_s, "decode_s": decode_s,
            "peak_bytes": peak_bytes, "weight_bytes": pipeline.weight_bytes(),
            "step_flops": flops, "gflops": gflops,
            "matmul_gflops": peak_gflops, "roofline_share": gflops / peak_gflops,
        });
        println!("{report}");
        return Ok(());
    }
    println!("load   {load_s:9.3} s");
    println!("text   {text_s:9.3} s");
    println!("step   {step_s:9.3} s   {gflops:.1} GFLOP/s, {:.0} % of a matmul's {peak_gflops:.1}", 100.0 * gflops / peak_gflops);
    println!("decode {decode_s:9.3} s");
    println!("peak   {:9.1} MB, weights {:.1} MB", peak_bytes as f64 / 1e6, pipeline.weight_bytes() as f64 / 1e6);
    Ok(())
}

/// The median time of `runs` runs, in seconds.
fn median(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = (0..runs)
        .map(|_| {
            let began = Instant::now();
            run()?;
            Ok(began.elapsed().as_secs_f64())
        })
        .collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
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
