//! From files to a ready pipeline.

use std::path::Path;

use ggml::Backend;

use super::{Autoencoder, Decoder, Encoder, Observer, Pipeline, Progress, Stage};
use crate::error::{Error, Result};
use crate::models::clip_text::ClipText;
use crate::models::description::{self, LatentScale};
use crate::models::taesd::{Half, Taesd};
use crate::models::unet::Unet;
use crate::models::{Description, vae};
use crate::nn::{LoadControl, Params, Plan};
use crate::text::Tokenizer;
use crate::weights::{Checkpoint, Component, Weights};

/// Pixels to one latent of every TAESD.
const TAESD_REDUCTION: usize = 8;

/// The files that a pipeline is made of, opened but not read.
#[derive(Debug)]
pub struct Files {
    /// The model: text encoder, denoiser and, as a rule, autoencoder.
    pub model: Checkpoint,
    /// An autoencoder in place of the model's own.
    pub vae: Option<Checkpoint>,
    /// A tiny autoencoder in place of either: fast, and a little blurred.
    pub taesd: Option<Checkpoint>,
}

impl Files {
    /// A model without replacements.
    pub fn open(model: &Path) -> Result<Self> {
        Ok(Self { model: Checkpoint::open(model)?, vae: None, taesd: None })
    }
}

impl Pipeline {
    /// Loads every network onto `backend`.
    pub fn load(files: &Files, backend: Backend, observer: &mut dyn Observer) -> Result<Self> {
        let model = &files.model;
        let mut description = Description::infer(model)?;
        let tokenizer = tokenizer(model, &description)?;
        let plan = Plan::new();
        let text = ClipText::load(&params(model, Component::TextEncoder, &plan)?, &description.text)?;
        let unet = load_unet(model, &description, &plan)?;
        let pictures = load_autoencoder(files, &mut description, &plan)?;
        if pictures.channels != description.unet.out_channels {
            let file = files.taesd.as_ref().or(files.vae.as_ref()).unwrap_or(model);
            let reason = format!(
                "its latents have {} channels where the UNet has {}",
                pictures.channels, description.unet.out_channels
            );
            return Err(Error::unsupported(&file.path, reason));
        }
        let storage = load_weights(plan, &backend, observer)?;
        let weight_bytes = storage.bytes();
        Ok(Self { backend, description, tokenizer, text, unet, pictures, preview: None, weight_bytes })
    }
}

fn load_weights(plan: Plan, backend: &Backend, observer: &mut dyn Observer) -> Result<ggml::Storage> {
    // The observer is asked and told by two closures, which must not both hold it.
    let observer = std::cell::RefCell::new(observer);
    let stop = || observer.try_borrow().is_ok_and(|observer| observer.stop());
    let mut progress = |done, of| {
        if let Ok(mut observer) = observer.try_borrow_mut() {
            observer.progress(Progress { stage: Stage::Loading, done, of });
        }
    };
    plan.load(backend, &mut LoadControl { stop: &stop, progress: &mut progress })
}

fn params<'a>(checkpoint: &Checkpoint, component: Component, plan: &'a Plan) -> Result<Params<'a>> {
    let tensors = checkpoint
        .component(component)
        .ok_or_else(|| Error::unsupported(&checkpoint.path, format!("there is no {} in it", component.name())))?;
    Ok(Params::new(Weights::root(tensors), plan))
}

fn load_unet(model: &Checkpoint, description: &Description, plan: &Plan) -> Result<Unet> {
    let params = params(model, Component::Unet, plan)?;
    let unet = Unet::load(&params, &description.unet).map_err(|error| placed(error, model))?;
    // A tensor that nobody asked for means a part of the network that we don't have.
    let weights = params.weights();
    match weights.unused().into_iter().next().or(weights.tensors().unknown().next().map(str::to_owned)) {
        None => Ok(unet),
        Some(name) => Err(Error::unsupported(
            &model.path,
            format!("the UNet has the tensor {name}, which is of no supported family"),
        )),
    }
}

fn load_autoencoder(files: &Files, description: &mut Description, plan: &Plan) -> Result<Autoencoder> {
    if let Some(file) = &files.taesd {
        let params = params(file, Component::Taesd, plan)?;
        let has_encoder = params.weights().has("encoder");
        let encoder = has_encoder.then(|| Taesd::load(&params, Half::Encoder)).transpose();
        let decoder = Taesd::load(&params, Half::Decoder).map_err(|error| placed(error, file))?;
        let channels = decoder.latent_channels();
        return Ok(Autoencoder {
            encoder: encoder.map_err(|error| placed(error, file))?.map(Encoder::Tiny),
            decoder: Decoder::Tiny(decoder),
            // TAESD was trained on scaled latents.
            scale: LatentScale { factor: 1.0, shift: 0.0 },
            channels,
            reduction: TAESD_REDUCTION,
        });
    }
    let file = files.vae.as_ref().unwrap_or(&files.model);
    if files.vae.is_some() {
        description.vae = Some(description::vae_config(file).map_err(|error| placed(error, file))?);
        if file.config(Component::Vae).is_some() {
            description.scale = description::latent_scale(file).map_err(|error| placed(error, file))?;
        }
    }
    let params = params(file, Component::Vae, plan)?;
    let config =
        description.vae.as_ref().ok_or_else(|| Error::unsupported(&file.path, "there is no autoencoder in it"))?;
    let encoder = config.encoder.then(|| vae::Encoder::load(&params, config)).transpose();
    let decoder = vae::Decoder::load(&params, config).map_err(|error| placed(error, file))?;
    Ok(Autoencoder {
        encoder: encoder.map_err(|error| placed(error, file))?.map(|encoder| Encoder::Full(Box::new(encoder))),
        decoder: Decoder::Full(Box::new(decoder)),
        scale: description.scale,
        channels: config.latent_channels,
        reduction: config.reduction(),
    })
}

/// Names the file in an error about a model's sizes.
fn placed(error: Error, file: &Checkpoint) -> Error {
    match error {
        Error::Model(reason) => Error::unsupported(&file.path, reason),
        error => error,
    }
}

/// The model's own vocabulary, or CLIP's.
fn tokenizer(model: &Checkpoint, description: &Description) -> Result<Tokenizer> {
    let expected = description.text.vocabulary;
    let tokenizer = match model.tokenizer()? {
        Some(files) => Tokenizer::from_files(&files.vocab_json, &files.merges, files.config.as_deref(), &model.path)?,
        None => Tokenizer::clip_with(description.default_tokenizer_config().as_ref())?,
    };
    if tokenizer.len() > expected {
        let reason = format!("the vocabulary has {} tokens where the text encoder has {expected}", tokenizer.len());
        return Err(Error::unsupported(&model.path, reason));
    }
    Ok(tokenizer)
}
