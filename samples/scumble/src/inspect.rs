//! `scumble inspect`.

use std::path::PathBuf;

use scumble_core::Result;
use scumble_core::models::Description;
use scumble_core::sampling::Prediction;
use scumble_core::weights::{Checkpoint, Component, Inspection, Layout};

use crate::builtin;
use crate::output::print;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A model file or folder, or `builtin`
    path: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let checkpoint = builtin::open(&arguments.path)?;
    let inspection = Inspection::of(&checkpoint);
    // Only a whole model has a family; a lone network is what its name says.
    let is_model =
        checkpoint.component(Component::Unet).is_some() && checkpoint.component(Component::TextEncoder).is_some();
    let description = is_model.then(|| Description::infer(&checkpoint));
    if arguments.json {
        return print(json(&inspection, description.as_ref()));
    }
    print(text(&checkpoint, &inspection, description))
}

fn json(inspection: &Inspection, description: Option<&Result<Description>>) -> serde_json::Value {
    let mut json = serde_json::json!(inspection);
    match description {
        Some(Ok(description)) => {
            json["family"] = description.family.name().into();
            json["prediction"] = prediction(description).into();
            json["sizes"] = sizes(description);
        }
        Some(Err(error)) => json["family_error"] = error.to_string().into(),
        None => {}
    }
    json
}

fn sizes(description: &Description) -> serde_json::Value {
    let unet = &description.unet;
    let text = &description.text;
    serde_json::json!({
        "unet": {
            "in_channels": unet.in_channels,
            "out_channels": unet.out_channels,
            "channels": unet.levels.iter().map(|level| level.channels).collect::<Vec<_>>(),
            "attention": unet.levels.iter().map(|level| level.attention).collect::<Vec<_>>(),
            "blocks": unet.blocks,
            "context_width": unet.context_width,
            "inpainting": description.is_inpainting(),
        },
        "text_encoder": {
            "vocabulary": text.vocabulary,
            "positions": text.positions,
            "width": text.width,
            "layers": text.layers,
            "heads": text.heads,
        },
        "vae": description.vae.as_ref().map(|vae| serde_json::json!({
            "latent_channels": vae.latent_channels,
            "channels": vae.channels,
            "reduction": vae.reduction(),
            "attention": vae.attention,
            "scaling_factor": description.scale.factor,
        })),
    })
}

fn prediction(description: &Description) -> &'static str {
    match description.sampling.noise.prediction {
        Prediction::Epsilon => "eps",
        Prediction::V => "v",
        Prediction::Sample => "sample",
    }
}

fn text(checkpoint: &Checkpoint, inspection: &Inspection, description: Option<Result<Description>>) -> String {
    let mut lines = vec![format!("{}: {}", checkpoint.path.display(), layout(inspection.layout))];
    match description {
        Some(Ok(description)) => {
            let unet = &description.unet;
            let channels: Vec<_> = unet.levels.iter().map(|level| level.channels.to_string()).collect();
            lines.push(format!("family:       {}, predicts {}", description.family.name(), prediction(&description)));
            lines.push(format!(
                "unet:         {} → {} channels, levels of {}, text of {}{}",
                unet.in_channels,
                unet.out_channels,
                channels.join("/"),
                unet.context_width,
                if description.is_inpainting() { ", fills masks" } else { "" },
            ));
            let text = &description.text;
            lines.push(format!("text encoder: {} layers of {}, {} tokens", text.layers, text.width, text.vocabulary));
            if let Some(vae) = &description.vae {
                lines.push(format!(
                    "vae:          {} latent channels, {}× smaller",
                    vae.latent_channels,
                    vae.reduction()
                ));
            }
        }
        Some(Err(error)) => lines.push(format!("family:       unknown: {error}")),
        None => {}
    }
    for part in &inspection.components {
        let dtypes: Vec<_> = part.dtypes.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
        lines.push(format!(
            "weights:      {}, {} parameters in {} tensors ({}), {:.1} MB",
            part.component.name(),
            part.parameters,
            part.tensors,
            dtypes.join(", "),
            part.bytes as f64 / 1e6,
        ));
    }
    lines.push(format!("licence:      {}", inspection.licence.as_deref().unwrap_or("not stated")));
    let lists =
        [("missing", &inspection.missing), ("unknown", &inspection.unknown), ("not used", &inspection.other_parts)];
    for (what, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        lines.push(format!("{:<14}{}", format!("{what}:"), shortened(list)));
    }
    lines.join("\n")
}

/// The first of a list that may hold every tensor of a large file.
fn shortened(list: &[String]) -> String {
    const SHOWN: usize = 10;
    let more = list.len().saturating_sub(SHOWN);
    let first = list[..list.len() - more].join(", ");
    if more == 0 { first } else { format!("{first}, and {more} more") }
}

fn layout(layout: Layout) -> &'static str {
    match layout {
        Layout::DiffusersFolder => "a diffusers folder",
        Layout::Original => "one file, as originally released",
        Layout::Bundle => "one file with all its configurations",
        Layout::Component => "a single network",
    }
}
