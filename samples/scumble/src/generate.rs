//! `scumble generate`.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use scumble_core::image::{self, FloatImage, Limits, Mask, write_png};
use scumble_core::memory::Budget;
use scumble_core::models::Description;
use scumble_core::pipeline::{Files, Pipeline};
use scumble_core::request::{self, Init, Request};
use scumble_core::sampling::rng::RngKind;
use scumble_core::sampling::{Prediction, SamplerKind, ScheduleKind};
use scumble_core::weights::Checkpoint;
use scumble_core::{Error, Result};

use crate::builtin::{self, Defaults};
use crate::compute::Compute;
use crate::dump::{Dump, GivenNoise, read_noise};
use crate::interrupt::Interrupt;
use crate::output::{check_folder, check_picture, numbered, print};
use crate::progress::Watcher;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What the picture shows. (word:1.2) and [word] weigh words, a backslash takes brackets as they are
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// What it should not show
    #[arg(long, value_name = "TEXT")]
    negative: Option<String>,
    /// A safetensors file, a diffusers folder, or the model in this program
    #[arg(long, default_value = builtin::NAME, value_name = "PATH|builtin")]
    model: PathBuf,
    /// An autoencoder in place of the model's own
    #[arg(long, value_name = "PATH")]
    vae: Option<PathBuf>,
    /// A tiny autoencoder (TAESD) in place of the model's own
    #[arg(long, value_name = "PATH")]
    taesd: Option<PathBuf>,
    /// Width, 16 to 8192 pixels [default: the initial picture's, the model's, or 512]
    #[arg(long, value_name = "PIXELS")]
    width: Option<usize>,
    /// Height, 16 to 8192 pixels [default: the initial picture's, the model's, or 512]
    #[arg(long, value_name = "PIXELS")]
    height: Option<usize>,
    /// Denoising steps, 1 to 1000 [default: the model's, or 20]
    #[arg(long, value_name = "COUNT")]
    steps: Option<usize>,
    /// Scale of guidance; 1 turns it off [default: the model's, or 7.5]
    #[arg(long, value_name = "SCALE")]
    cfg: Option<f32>,
    /// How far guidance is held to the contrast of the prompt alone, 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    cfg_rescale: f32,
    #[arg(long, value_name = "NAME", help = listing("The sampler", &SamplerKind::ALL.map(SamplerKind::name)))]
    sampler: Option<SamplerKind>,
    #[arg(long, value_name = "NAME", help = listing("The schedule", &schedule_names()))]
    schedule: Option<Schedule>,
    /// What the network predicts [default: the model's]
    #[arg(long, value_name = "eps|v", value_parser = ["eps", "v"])]
    prediction: Option<String>,
    /// Seed of all randomness
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    seed: u64,
    /// Random numbers as CUDA makes them, or as torch does on the CPU
    #[arg(long, default_value = RngKind::Philox.name(), value_name = "NAME", value_parser = names(RngKind::ALL.map(RngKind::name)))]
    rng: String,
    /// Pictures of the prompt, 1 to 64
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    batch: usize,
    /// Which of the text encoder's last layers to take, 1 being the last [default: the model's]
    #[arg(long, value_name = "LAYER")]
    clip_skip: Option<usize>,
    /// A picture to start from (PNG or JPEG)
    #[arg(long, value_name = "FILE")]
    init_image: Option<PathBuf>,
    /// How much of the initial picture is made anew, above 0 to 1
    #[arg(long, requires = "init_image", default_value_t = 0.75, value_name = "SHARE")]
    strength: f32,
    /// A picture of the same size that is white where the initial one is made anew, black where it stays
    #[arg(long, requires = "init_image", value_name = "FILE")]
    mask: Option<PathBuf>,
    #[command(flatten)]
    compute: Compute,
    /// Write a rough picture here after each step
    #[arg(long, value_name = "FILE.png")]
    preview: Option<PathBuf>,
    /// Starting noise: the tensor `noise` of a safetensors file, [N, C, h, w] F32
    #[arg(long, value_name = "FILE.safetensors")]
    noise: Option<PathBuf>,
    /// Write text states, noise, latents of each step and the float picture into this folder
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Where the picture goes; several get numbers: out-1.png, out-2.png, …
    #[arg(short, long, value_name = "FILE.png")]
    output: PathBuf,
    /// Say what was made as JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Which noise levels are visited.
#[derive(Clone, Copy)]
enum Schedule {
    /// Those of the model's own spacing of the training steps.
    Discrete,
    Named(ScheduleKind),
}

/// What `--schedule` calls [`Schedule::Discrete`].
const DISCRETE: &str = "discrete";

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == DISCRETE { Ok(Self::Discrete) } else { text.parse().map(Self::Named) }
    }
}

fn schedule_names() -> Vec<&'static str> {
    [DISCRETE].into_iter().chain(ScheduleKind::ALL.map(ScheduleKind::name)).collect()
}

fn listing(what: &str, names: &[&str]) -> String {
    format!("{what}: {} [default: the model's]", names.join(", "))
}

fn names<const N: usize>(names: [&'static str; N]) -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(names)
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let interrupt = Interrupt::install()?;
    check_picture("output", &arguments.output)?;
    arguments.preview.as_deref().map_or(Ok(()), |path| check_picture("preview", path))?;
    arguments.dump.as_deref().map_or(Ok(()), |folder| check_folder("dump", folder))?;
    let model = builtin::open(&arguments.model)?;
    let defaults = Defaults::of(&model)?;
    let noise = arguments.noise.as_deref().map(read_noise).transpose()?;
    let noise_shape = noise.as_ref().map(|noise| noise.shape.clone());
    let request = request(&arguments, &model, &defaults, noise)?;
    // Before the weights are read: a bad request should not take that long to refuse.
    request.validate()?;
    let files = Files {
        model,
        vae: arguments.vae.as_deref().map(Checkpoint::open).transpose()?,
        taesd: arguments.taesd.as_deref().map(Checkpoint::open).transpose()?,
    };
    let backend = arguments.compute.backend()?;

    let mut watcher = Watcher::new(interrupt, arguments.preview.clone(), arguments.dump.clone().map(Dump::new));
    let began = Instant::now();
    let mut pipeline = Pipeline::load(&files, backend, &mut watcher)?;
    let loaded = began.elapsed();
    let latents = pipeline.latent_shape(&request);
    if let Some(found) = noise_shape.filter(|found| *found != latents) {
        let reason = format!("tensor noise has the wrong shape, expected {latents:?}, found {found:?}");
        return Err(Error::invalid("noise", reason));
    }
    let pictures = pipeline.generate(&request, &mut watcher)?;
    let generated = began.elapsed() - loaded;
    if let Some(dump) = watcher.finish() {
        dump.write(&pictures)?;
    }
    let (sampler, schedule) = pipeline.sampler_and_schedule(&request);
    let vae = arguments.taesd.as_deref().or(arguments.vae.as_deref());
    let parameters = Parameters { request: &request, sampler, schedule, model: &arguments.model, vae };
    let outputs = write_pictures(&arguments.output, &parameters, &pictures)?;
    if arguments.json {
        let report = serde_json::json!({
            "images": outputs.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "model": arguments.model.to_string_lossy(),
            "prompt": request.prompt,
            "negative": request.negative,
            "width": request.width_px,
            "height": request.height_px,
            "steps": request.steps,
            "cfg": request.guidance,
            "sampler": sampler.name(),
            "schedule": schedule.name(),
            "seed": request.seed,
            "rng": request.rng.name(),
            "load_s": loaded.as_secs_f64(),
            "generate_s": generated.as_secs_f64(),
        });
        print(report)?;
    }
    Ok(())
}

/// The request that the flags describe, the model's defaults filled in.
fn request(
    arguments: &Arguments,
    model: &Checkpoint,
    defaults: &Defaults,
    noise: Option<GivenNoise>,
) -> Result<Request> {
    let fallback = Request::default();
    let picture = arguments.init_image.as_deref().map(|path| image::read(path, &limits())).transpose()?;
    let size = picture.as_ref().map(|picture| (picture.width() as usize, picture.height() as usize));
    let width = arguments.width.or(size.map(|size| size.0)).or(defaults.width).unwrap_or(fallback.width_px);
    let height = arguments.height.or(size.map(|size| size.1)).or(defaults.height).unwrap_or(fallback.height_px);
    let schedule = match arguments.schedule {
        None => None,
        Some(Schedule::Named(kind)) => Some(kind),
        Some(Schedule::Discrete) => Some(Description::infer(model)?.sampling.noise.spacing.into()),
    };
    let prediction = arguments.prediction.as_deref().map(|name| match name {
        "v" => Prediction::V,
        _ => Prediction::Epsilon,
    });
    Ok(Request {
        prompt: arguments.prompt.clone(),
        negative: arguments.negative.clone().or(defaults.negative.clone()).unwrap_or_default(),
        width_px: width,
        height_px: height,
        steps: arguments.steps.or(defaults.steps).unwrap_or(fallback.steps),
        guidance: arguments.cfg.or(defaults.cfg).unwrap_or(fallback.guidance),
        guidance_rescale: arguments.cfg_rescale,
        sampler: arguments.sampler,
        schedule,
        prediction,
        seed: arguments.seed,
        rng: arguments.rng.parse()?,
        images: arguments.batch,
        clip_skip: arguments.clip_skip,
        init: picture.map(|picture| init(arguments, picture, width, height)).transpose()?,
        noise: noise.map(|noise| noise.values),
        preview_every: usize::from(arguments.preview.is_some()),
    })
}

/// Bytes that a pixel takes on its way from a file to floats, copies included.
const BYTES_A_PIXEL: usize = 32;

/// Pictures that leave room for what is made of them.
fn limits() -> Limits {
    let limits = Limits::default();
    let available = Budget::of_host().available_bytes;
    let pixels = limits.pixels.min(available / BYTES_A_PIXEL as u64);
    Limits { file_bytes: limits.file_bytes.min(available / 4), pixels, ..limits }
}

/// The initial picture and its mask, brought to the size of the request.
fn init(arguments: &Arguments, picture: image::Image, width: usize, height: usize) -> Result<Init> {
    let size = (picture.width(), picture.height());
    let mask = match &arguments.mask {
        None => None,
        Some(path) => {
            let mask = Mask::read(path, &limits())?;
            if (mask.width(), mask.height()) != size {
                let reason =
                    format!("{}×{} pixels where the picture has {}×{}", mask.width(), mask.height(), size.0, size.1);
                return Err(Error::invalid("mask", reason));
            }
            Some(mask)
        }
    };
    // Checked here as well as by the request, which would come too late for resizing to nonsense.
    let sides = request::MIN_SIDE_PX..=request::MAX_SIDE_PX;
    if !sides.contains(&width) || !sides.contains(&height) {
        let reason = format!("{width}×{height} where {} to {} pixels a side are possible", sides.start(), sides.end());
        return Err(Error::invalid("size", reason));
    }
    let bytes = (width * height * BYTES_A_PIXEL) as u64;
    Budget::of_host().check("the initial picture", bytes)?;
    let (width, height) = (width as u32, height as u32);
    Ok(Init {
        image: picture.resize(width, height)?.to_float(),
        strength: arguments.strength,
        mask: mask.map(|mask| mask.resized_nearest(width, height)).transpose()?,
    })
}

/// Writes each picture with its parameters; gives the files' names.
fn write_pictures(output: &Path, parameters: &Parameters<'_>, pictures: &[FloatImage]) -> Result<Vec<PathBuf>> {
    let several = pictures.len() > 1;
    let mut paths = Vec::with_capacity(pictures.len());
    for (i, picture) in pictures.iter().enumerate() {
        let path = if several { numbered(output, i + 1) } else { output.to_owned() };
        write_png(&path, &picture.to_image(), &[("parameters", &parameters.of_picture(i))])?;
        paths.push(path);
    }
    Ok(paths)
}

/// The parameters in the form that other tools write and read: prompt, negative prompt, settings.
struct Parameters<'a> {
    request: &'a Request,
    sampler: SamplerKind,
    schedule: ScheduleKind,
    model: &'a Path,
    vae: Option<&'a Path>,
}

impl Parameters<'_> {
    fn of_picture(&self, index: usize) -> String {
        let request = self.request;
        let mut text = request.prompt.clone();
        if !request.negative.is_empty() {
            text += &format!("\nNegative prompt: {}", request.negative);
        }
        text += &format!(
            "\nSteps: {}, Sampler: {}, Schedule: {}, CFG scale: {}, Seed: {}, RNG: {}, Size: {}x{}, Model: {}",
            request.steps,
            self.sampler.name(),
            self.schedule.name(),
            request.guidance,
            request.seed,
            request.rng.name(),
            request.width_px,
            request.height_px,
            stem(self.model),
        );
        if request.guidance_rescale > 0.0 {
            text += &format!(", CFG rescale: {}", request.guidance_rescale);
        }
        if let Some(clip_skip) = request.clip_skip {
            text += &format!(", Clip skip: {clip_skip}");
        }
        if let Some(prediction) = request.prediction {
            text += &format!(", Prediction: {}", if prediction == Prediction::V { "v" } else { "eps" });
        }
        if let Some(vae) = self.vae {
            text += &format!(", VAE: {}", stem(vae));
        }
        if let Some(init) = &request.init {
            text += &format!(", Denoising strength: {}", init.strength);
            text += if init.mask.is_some() { ", Mask: yes" } else { "" };
        }
        if request.noise.is_some() {
            text += ", Noise: from a file";
        }
        if request.images > 1 {
            text += &format!(", Batch size: {}, Batch index: {index}", request.images);
        }
        text + &format!(", Version: Scumble {}", env!("CARGO_PKG_VERSION"))
    }
}

/// A file's or folder's name without `.safetensors`.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.strip_suffix(".safetensors").unwrap_or(&name).to_owned()
}
