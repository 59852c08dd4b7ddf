//! What a diffusers folder's `scheduler_config.json` says about the noise and the sampler.
//!
//! What changes the meaning of the network's output (prediction, betas, flow matching) must be
//! understood, or loading fails; what is only a choice of solver becomes the nearest one there is.

use serde_json::Value;

use super::noise_config::{BetaSchedule, FinalSigma, NoiseConfig, Prediction, Spacing};
use super::{SamplerKind, ScheduleKind};
use crate::error::{Error, Result};

/// The file that is read, for messages; who knows its folder can put the whole path in its place.
const FILE: &str = "scheduler_config.json";

/// What a model's files say about sampling, for requests that do not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// The sampler that the model's scheduler is, or the nearest to it.
    pub sampler: Option<SamplerKind>,
    /// The schedule; a spacing if the file asks for no other.
    pub schedule: Option<ScheduleKind>,
    /// What the network was trained on.
    pub noise: NoiseConfig,
}

/// What a scheduler class of diffusers is here, and what it assumes where its file is silent.
struct Class {
    name: &'static str,
    sampler: SamplerKind,
    beta_range: (f64, f64),
    beta_schedule: BetaSchedule,
    spacing: Spacing,
    set_alpha_to_one: bool,
    clip_sample: bool,
}

/// A class whose files are silent about what later classes took as their defaults.
const fn class(name: &'static str, sampler: SamplerKind) -> Class {
    Class {
        name,
        sampler,
        beta_range: (0.0001, 0.02),
        beta_schedule: BetaSchedule::Linear,
        spacing: Spacing::Linspace,
        set_alpha_to_one: true,
        clip_sample: false,
    }
}

impl Class {
    /// Betas of latent diffusion.
    const fn latent_betas(self) -> Self {
        Self { beta_range: (0.00085, 0.012), ..self }
    }

    const fn scaled(self) -> Self {
        Self { beta_schedule: BetaSchedule::ScaledLinear, ..self }
    }

    const fn leading(self) -> Self {
        Self { spacing: Spacing::Leading, ..self }
    }

    const fn clipped(self) -> Self {
        Self { clip_sample: true, ..self }
    }

    const fn final_alpha_kept(self) -> Self {
        Self { set_alpha_to_one: false, ..self }
    }
}

/// Every class that is read. Those with no counterpart go to the nearest: other multistep methods
/// (PNDM, LMS, DEIS, singlestep DPM-Solver) to DPM++ 2M, ancestral ones to ancestral ones.
const CLASSES: [Class; 19] = [
    class("DDIMScheduler", SamplerKind::Ddim).leading().clipped(),
    class("DDIMParallelScheduler", SamplerKind::Ddim).leading().clipped(),
    class("DDPMScheduler", SamplerKind::EulerAncestral).leading().clipped(),
    class("DDPMParallelScheduler", SamplerKind::EulerAncestral).leading().clipped(),
    class("PNDMScheduler", SamplerKind::Dpmpp2m).leading().final_alpha_kept(),
    class("LMSDiscreteScheduler", SamplerKind::Dpmpp2m),
    class("EulerDiscreteScheduler", SamplerKind::Euler),
    class("EulerAncestralDiscreteScheduler", SamplerKind::EulerAncestral),
    class("HeunDiscreteScheduler", SamplerKind::Heun).latent_betas(),
    class("KDPM2DiscreteScheduler", SamplerKind::Dpm2).latent_betas(),
    class("KDPM2AncestralDiscreteScheduler", SamplerKind::Dpmpp2sAncestral).latent_betas(),
    class("DPMSolverMultistepScheduler", SamplerKind::Dpmpp2m),
    class("DPMSolverSinglestepScheduler", SamplerKind::Dpmpp2m),
    class("DPMSolverSDEScheduler", SamplerKind::Dpmpp2mSde).latent_betas(),
    class("DEISMultistepScheduler", SamplerKind::Dpmpp2m),
    class("UniPCMultistepScheduler", SamplerKind::UniPc),
    class("SASolverScheduler", SamplerKind::Dpmpp2mSde),
    class("LCMScheduler", SamplerKind::Lcm).latent_betas().scaled().leading(),
    class("TCDScheduler", SamplerKind::Lcm).latent_betas().scaled().leading(),
];

/// Reads a diffusers scheduler's configuration.
///
/// Missing fields take the default of the class that the file names, as diffusers does; a solver's own
/// settings (`solver_order`, `solver_type`) are not heeded.
/// A field of the wrong type or with a value that cannot be is an [`Error::Format`], one that asks for
/// what is not there an [`Error::Unsupported`]; both name the field, and neither panics.
pub fn from_scheduler_config(config: &Value) -> Result<Defaults> {
    let fields = Fields(config.as_object().ok_or_else(|| Error::format(FILE, "not an object"))?);
    let name = fields.text("_class_name")?.ok_or_else(|| Error::format(FILE, "_class_name is missing"))?;
    let class = CLASSES.iter().find(|class| class.name == name).ok_or_else(|| unsupported("_class_name", name))?;
    refuse_what_changes_the_meaning(&fields)?;

    let noise = noise(&fields, class)?;
    if let Some((field, reason)) = noise.problem() {
        return Err(Error::format(FILE, format!("{field}: {reason}")));
    }
    // Steps with less of the picture than this are left out; tables of latent models have none.
    if let Some(clipped) = fields.number("lambda_min_clipped")?
        && clipped > noise.half_log_snr_min()
    {
        return Err(unsupported("lambda_min_clipped", &clipped.to_string()));
    }
    let sampler = match (class.sampler, fields.text("algorithm_type")?) {
        (SamplerKind::Dpmpp2m, Some(algorithm)) if algorithm.starts_with("sde-") => SamplerKind::Dpmpp2mSde,
        (sampler, _) => sampler,
    };
    let karras = fields.flag("use_karras_sigmas")?.unwrap_or(false);
    let exponential = fields.flag("use_exponential_sigmas")?.unwrap_or(false);
    let schedule = match (karras, exponential) {
        (true, true) => {
            let reason = "use_karras_sigmas and use_exponential_sigmas exclude each other";
            return Err(Error::format(FILE, reason));
        }
        (true, false) => ScheduleKind::Karras,
        (false, true) => ScheduleKind::Exponential,
        (false, false) => noise.spacing.into(),
    };
    Ok(Defaults { sampler: Some(sampler), schedule: Some(schedule), noise })
}

fn noise(fields: &Fields<'_>, class: &Class) -> Result<NoiseConfig> {
    let other = NoiseConfig::default();
    let prediction = match fields.text("prediction_type")? {
        None | Some("epsilon") => Prediction::Epsilon,
        Some("v_prediction") => Prediction::V,
        Some("sample" | "original_sample") => Prediction::Sample,
        Some(found) => return Err(unsupported("prediction_type", found)),
    };
    let beta_schedule = match fields.text("beta_schedule")? {
        None => class.beta_schedule,
        Some("linear") => BetaSchedule::Linear,
        Some("scaled_linear") => BetaSchedule::ScaledLinear,
        Some("squaredcos_cap_v2") => BetaSchedule::SquaredcosCapV2,
        Some(found) => return Err(unsupported("beta_schedule", found)),
    };
    let spacing = match fields.text("timestep_spacing")? {
        None => class.spacing,
        Some("leading") => Spacing::Leading,
        Some("trailing") => Spacing::Trailing,
        Some("linspace") => Spacing::Linspace,
        Some(found) => return Err(unsupported("timestep_spacing", found)),
    };
    let final_sigma = match fields.text("final_sigmas_type")? {
        None | Some("zero") => FinalSigma::Zero,
        Some("sigma_min") => FinalSigma::Min,
        Some(found) => return Err(unsupported("final_sigmas_type", found)),
    };
    let clip_range = fields.number("clip_sample_range")?.unwrap_or(1.0);
    let clips = fields.flag("clip_sample")?.unwrap_or(class.clip_sample);

    Ok(NoiseConfig {
        train_steps: fields.count("num_train_timesteps")?.unwrap_or(1000),
        beta_start: fields.number("beta_start")?.unwrap_or(class.beta_range.0),
        beta_end: fields.number("beta_end")?.unwrap_or(class.beta_range.1),
        beta_schedule,
        trained_betas: fields.numbers("trained_betas")?,
        rescale_betas_zero_snr: fields.flag("rescale_betas_zero_snr")?.unwrap_or(false),
        prediction,
        spacing,
        steps_offset: fields.count("steps_offset")?.unwrap_or(0),
        set_alpha_to_one: fields.flag("set_alpha_to_one")?.unwrap_or(class.set_alpha_to_one),
        final_sigma,
        sigma_min: fields.number("sigma_min")?,
        sigma_max: fields.number("sigma_max")?,
        clip_sample: clips.then_some(clip_range as f32),
        lower_order_final: fields.flag("lower_order_final")?.unwrap_or(other.lower_order_final),
        euler_at_final: fields.flag("euler_at_final")?.unwrap_or(other.euler_at_final),
        eta: other.eta,
        original_inference_steps: fields.count("original_inference_steps")?.unwrap_or(other.original_inference_steps),
        timestep_scaling: fields.number("timestep_scaling")?.map_or(other.timestep_scaling, |scaling| scaling as f32),
    })
}

/// Fields that turn the numbers into others, in ways that are not there.
fn refuse_what_changes_the_meaning(fields: &Fields<'_>) -> Result<()> {
    for field in ["thresholding", "use_flow_sigmas", "use_beta_sigmas", "use_lu_lambdas"] {
        if fields.flag(field)? == Some(true) {
            return Err(unsupported(field, "true"));
        }
    }
    let only = [("timestep_type", "discrete"), ("interpolation_type", "linear"), ("alpha_transform_type", "cosine")];
    for (field, expected) in only {
        if let Some(found) = fields.text(field)?
            && found != expected
        {
            return Err(unsupported(field, found));
        }
    }
    match fields.text("variance_type")? {
        Some(found @ ("learned" | "learned_range")) => Err(unsupported("variance_type", found)),
        _ => Ok(()),
    }
}

fn unsupported(field: &str, found: &str) -> Error {
    // A value of any length, from a file of any origin.
    let mut found: String = found.chars().take(80).collect();
    found.retain(|c| !c.is_control());
    Error::unsupported(FILE, format!("{field}: {found} is not supported"))
}

/// An object's fields with the types that are expected; null counts as missing.
struct Fields<'a>(&'a serde_json::Map<String, Value>);

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn read<T>(&self, field: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(field) {
            None => Ok(None),
            Some(value) => {
                read(value).map(Some).ok_or_else(|| Error::format(FILE, format!("{field}: expected {expected}")))
            }
        }
    }

    fn text(&self, field: &str) -> Result<Option<&'a str>> {
        self.read(field, "a string", Value::as_str)
    }

    fn flag(&self, field: &str) -> Result<Option<bool>> {
        self.read(field, "true or false", Value::as_bool)
    }

    fn number(&self, field: &str) -> Result<Option<f64>> {
        self.read(field, "a finite number", |value| value.as_f64().filter(|n| n.is_finite()))
    }

    fn count(&self, field: &str) -> Result<Option<usize>> {
        self.read(field, "a whole number from 0 up", |value| {
            let whole = value.as_u64().or_else(|| {
                let float = value.as_f64()?;
                (float.fract() == 0.0 && (0.0..1e9).contains(&float)).then_some(float as u64)
            });
            whole.and_then(|count| usize::try_from(count).ok())
        })
    }

    fn numbers(&self, field: &str) -> Result<Option<Vec<f64>>> {
        self.read(field, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(config: Value) -> Result<Defaults> {
        from_scheduler_config(&config)
    }

    #[test]
    fn stable_diffusion_1_5() {
        let defaults = read(json!({
            "_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0",
            "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
            "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true,
            "steps_offset": 1, "trained_betas": null, "clip_sample": false
        }))
        .unwrap();
        assert_eq!(defaults.noise, NoiseConfig::default());
        assert_eq!(defaults.sampler, Some(SamplerKind::Dpmpp2m));
        assert_eq!(defaults.schedule, Some(ScheduleKind::Leading));
    }

    #[test]
    fn silence_takes_the_default_of_the_class() {
        let euler = read(json!({"_class_name": "EulerDiscreteScheduler"})).unwrap();
        assert_eq!(euler.schedule, Some(ScheduleKind::Linspace));
        assert_eq!(euler.noise.beta_schedule, BetaSchedule::Linear);
        assert_eq!((euler.noise.beta_start, euler.noise.steps_offset), (0.0001, 0));
        let ddim = read(json!({"_class_name": "DDIMScheduler"})).unwrap();
        assert_eq!(ddim.noise.clip_sample, Some(1.0));
        assert!(ddim.noise.set_alpha_to_one);
    }

    #[test]
    fn sde_karras_and_velocity() {
        let defaults = read(json!({
            "_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "sde-dpmsolver++",
            "use_karras_sigmas": true, "prediction_type": "v_prediction",
            "timestep_spacing": "trailing", "rescale_betas_zero_snr": true
        }))
        .unwrap();
        assert_eq!(defaults.sampler, Some(SamplerKind::Dpmpp2mSde));
        assert_eq!(defaults.schedule, Some(ScheduleKind::Karras));
        assert_eq!(defaults.noise.prediction, Prediction::V);
        assert_eq!(defaults.noise.spacing, Spacing::Trailing);
    }

    #[test]
    fn what_cannot_be_is_an_error_that_names_the_field() {
        let cases = [
            (json!([1]), "not an object"),
            (json!({}), "_class_name"),
            (json!({"_class_name": 3}), "_class_name"),
            (json!({"_class_name": "FlowMatchEulerDiscreteScheduler"}), "_class_name"),
        ];
        for (config, expected) in cases {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }

        let fields = [
            ("beta_start", json!("0.1")),
            ("beta_start", json!(-0.1)),
            ("beta_start", json!(0.0)),
            ("beta_end", json!(1.0)),
            ("beta_end", json!(1e300)),
            ("beta_end", json!(0.00001)),
            ("beta_schedule", json!("sigmoid")),
            ("num_train_timesteps", json!(0)),
            ("num_train_timesteps", json!(1)),
            ("num_train_timesteps", json!(-5)),
            ("num_train_timesteps", json!(1.5)),
            ("num_train_timesteps", json!(1e18)),
            ("num_train_timesteps", json!(u64::MAX)),
            ("trained_betas", json!("linear")),
            ("trained_betas", json!([0.1, 0.2])),
            ("trained_betas", json!(vec![2.0; 1000])),
            ("trained_betas", json!(vec![json!("x"); 1000])),
            ("beta_schedule", json!(1)),
            ("prediction_type", json!("flow_prediction")),
            ("timestep_spacing", json!("sideways")),
            ("steps_offset", json!(5000)),
            ("steps_offset", json!(-1)),
            ("sigma_min", json!(-1.0)),
            ("sigma_max", json!(0.0)),
            ("final_sigmas_type", json!("none")),
            ("use_karras_sigmas", json!("yes")),
            ("use_flow_sigmas", json!(true)),
            ("thresholding", json!(true)),
            ("clip_sample", json!(1)),
            ("original_inference_steps", json!(0)),
            ("timestep_scaling", json!(0.0)),
            ("variance_type", json!("learned")),
            ("lambda_min_clipped", json!(-2.0)),
            ("interpolation_type", json!("log_linear")),
            ("timestep_type", json!("continuous")),
        ];
        for (field, value) in fields {
            let mut config = json!({"_class_name": "EulerDiscreteScheduler"});
            config[field] = value.clone();
            let error = read(config).expect_err(&format!("{field} {value}")).to_string();
            assert!(error.contains(field), "{field} {value}: {error}");
        }
    }

    #[test]
    fn betas_that_leave_nothing_of_the_picture_are_an_error() {
        let config = json!({
            "_class_name": "DDIMScheduler", "trained_betas": vec![0.999; 1000]
        });
        assert!(read(config).unwrap_err().to_string().contains("betas"));
    }
}
