//! Which network each tensor of a file belongs to.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Component, Naming, Part, Rules, Subtrees, clip, taesd, unet, vae};
use crate::weights::safetensors::TensorInfo;
use crate::{Error, Result};

/// What a file of several networks puts before their names.
const PREFIXES: [(&str, Component); 8] = [
    ("model.diffusion_model.", Component::Unet),
    ("first_stage_model.", Component::Vae),
    ("cond_stage_model.transformer.", Component::TextEncoder),
    ("cond_stage_model.model.", Component::TextEncoder),
    ("unet.", Component::Unet),
    ("vae.", Component::Vae),
    ("text_encoder.", Component::TextEncoder),
    ("taesd.", Component::Taesd),
];

/// These are part of the names themselves: they tell the half.
const TAESD_HALVES: [&str; 2] = ["taesd_encoder.", "taesd_decoder."];

/// Kept by training programs beside the networks, of no use here.
const IGNORED_PREFIXES: [&str; 8] =
    ["model_ema.", "loss.", "vision_model.", "visual_projection.", "visual.", "safety_checker.", "ddim_", "denoiser."];
const IGNORED_NAMES: [&str; 19] = [
    "alphas_cumprod",
    "alphas_cumprod_prev",
    "attn_mask",
    "betas",
    "log_one_minus_alphas_cumprod",
    "logit_bias",
    "logit_scale",
    "logvar",
    "lvlb_weights",
    "posterior_log_variance_clipped",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "posterior_variance",
    "scale_factor",
    "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod",
    "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod",
    "cond_stage_model.logit_scale",
];

/// The tensors of a file that belong to one network.
#[derive(Debug)]
pub(in crate::weights) struct Group {
    pub(in crate::weights) component: Component,
    /// Index into the file's tensors, internal name, part.
    pub(in crate::weights) members: Vec<(usize, String, Part)>,
    /// The file's names that lie among this network's but are none of its own.
    pub(in crate::weights) unknown: Vec<String>,
    prefix: &'static str,
    rules: Rules,
}

impl Group {
    pub(in crate::weights) fn naming(&self) -> Naming {
        self.rules.naming
    }

    /// Whether the file is one of several networks by our own convention.
    pub(in crate::weights) fn is_of_bundle(&self) -> bool {
        self.prefix.strip_suffix('.') == Some(self.component.name())
    }

    /// How the file calls the internal tensor `internal`, whether it has it or not.
    pub(in crate::weights) fn file_name(&self, internal: &str) -> Option<String> {
        Some(format!("{}{}", self.prefix, self.rules.file(internal)?))
    }
}

/// A file's tensors by what they are good for.
#[derive(Debug, Default)]
pub(in crate::weights) struct Division {
    pub(in crate::weights) groups: Vec<Group>,
    /// Known to be of no use.
    pub(in crate::weights) ignored: Vec<String>,
    /// Of no network at all.
    pub(in crate::weights) unknown: Vec<String>,
}

/// Divides the tensors of `path`, which are all of `expected` if that is given.
pub(in crate::weights) fn divide(path: &Path, tensors: &[TensorInfo], expected: Option<Component>) -> Result<Division> {
    let mut division = Division::default();
    let mut buckets: BTreeMap<(Component, &'static str), Vec<usize>> = BTreeMap::new();
    let mut rest = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        if is_ignored(&tensor.name) {
            division.ignored.push(tensor.name.clone());
        } else if let Some(component) = expected {
            buckets.entry((component, "")).or_default().push(index);
        } else if let Some(bucket) = bucket_of(&tensor.name) {
            buckets.entry(bucket).or_default().push(index);
        } else {
            rest.push(index);
        }
    }
    if buckets.is_empty() {
        let names = rest.iter().map(|&index| tensors[index].name.as_str());
        let component = recognise(path, names)?;
        buckets.insert((component, ""), std::mem::take(&mut rest));
    }
    division.unknown.extend(rest.into_iter().map(|index| tensors[index].name.clone()));
    for ((component, prefix), indices) in buckets {
        division.add(path, tensors, component, prefix, indices)?;
    }
    Ok(division)
}

impl Division {
    fn add(
        &mut self,
        path: &Path,
        tensors: &[TensorInfo],
        component: Component,
        prefix: &'static str,
        indices: Vec<usize>,
    ) -> Result<()> {
        let stripped = |index: usize| &tensors[index].name[prefix.len()..];
        let subtrees = Subtrees::of(indices.iter().map(|&index| stripped(index)));
        let component = match component {
            Component::Vae if taesd::recognises(&subtrees) => Component::Taesd,
            other => other,
        };
        let rules = match component {
            Component::Unet => unet::rules(&subtrees),
            Component::Vae => vae::rules(&subtrees),
            Component::TextEncoder => clip::rules(&subtrees),
            Component::Taesd => taesd::rules(&subtrees),
        };
        let mut members = Vec::with_capacity(indices.len());
        let mut unknown = Vec::new();
        for &index in &indices {
            let name = stripped(index);
            let internal = rules.internal(name);
            if is_ignored(name) {
                self.ignored.push(tensors[index].name.clone());
            } else if internal.is_empty() {
                unknown.push(tensors[index].name.clone());
            }
            members.extend(internal.into_iter().map(|(name, part)| (index, name, part)));
        }
        members.retain(|(index, ..)| !is_ignored(stripped(*index)));
        if members.is_empty() {
            let reason = format!(
                "the {} is of an unknown family: none of its {} tensors has a name that is \
                 known (the first is {})",
                described(component),
                indices.len(),
                tensors[indices[0]].name
            );
            return Err(Error::unsupported(path, reason));
        }
        self.groups.push(Group { component, members, unknown, prefix, rules });
        Ok(())
    }
}

fn described(component: Component) -> &'static str {
    match component {
        Component::Unet => "denoising network",
        Component::Vae => "autoencoder",
        Component::TextEncoder => "text encoder",
        Component::Taesd => "tiny autoencoder",
    }
}

fn bucket_of(name: &str) -> Option<(Component, &'static str)> {
    if TAESD_HALVES.iter().any(|half| name.starts_with(half)) {
        return Some((Component::Taesd, ""));
    }
    PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|&(prefix, component)| (component, prefix))
}

fn is_ignored(name: &str) -> bool {
    IGNORED_NAMES.contains(&name)
        || IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with("position_ids")
}

/// The network of a file whose names have no prefix.
fn recognise<'n>(path: &Path, names: impl Iterator<Item = &'n str> + Clone) -> Result<Component> {
    let subtrees = Subtrees::of(names.clone());
    let has = |subtree: &str| subtrees.has(subtree);
    let refused = |what: &str| Err(Error::unsupported(path, format!("this is {what}")));
    if names.clone().any(|name| name.starts_with("lora_") || name.contains(".lora_")) {
        return refused("a LoRA, which needs a model to be added to");
    }
    if has("control_model") || has("input_hint_block") || has("controlnet_cond_embedding") {
        return refused("a ControlNet, which needs a model beside it");
    }
    if has("input_blocks") || has("conv_in") && has("down_blocks") {
        return Ok(Component::Unet);
    }
    if taesd::recognises(&subtrees) {
        return Ok(Component::Taesd);
    }
    if has("encoder.conv_in") || has("decoder.conv_in") {
        return Ok(Component::Vae);
    }
    if has("text_model") || has("embeddings.token_embedding") || has("transformer.resblocks") {
        return Ok(Component::TextEncoder);
    }
    let mut names = names;
    let reason = match names.next() {
        None => "there is no tensor in it that is of use".to_owned(),
        Some(first) => format!(
            "this model is of an unknown family: none of its {} tensors has a name that is known \
             (the first is {first})",
            1 + names.count()
        ),
    };
    Err(Error::unsupported(path, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::safetensors::Header;
    use crate::weights::safetensors::tests::tensors_file;
    use crate::weights::source::Source;
    use std::sync::Arc;

    fn divided(names: &[&str], expected: Option<Component>) -> Result<Division> {
        let tensors: Vec<_> = names.iter().map(|&name| (name, "U8", &[0][..], &[][..])).collect();
        let source = Source::from_shared("m", Arc::from(tensors_file(&tensors)));
        let header = Header::read(&Arc::new(source)).unwrap();
        divide(Path::new("m"), &header.tensors, expected)
    }

    fn components(names: &[&str]) -> Vec<Component> {
        divided(names, None).unwrap().groups.iter().map(|group| group.component).collect()
    }

    #[test]
    fn prefixes_tell_the_network() {
        let all = [Component::Unet, Component::Vae, Component::TextEncoder];
        let text = "cond_stage_model.transformer.text_model.final_layer_norm.bias";
        for text in [text, "cond_stage_model.model.ln_final.bias"] {
            let names = ["model.diffusion_model.input_blocks.0.0.bias", "first_stage_model.quant_conv.bias"];
            // Without a layer nothing says whose names a text encoder has.
            let layer = "cond_stage_model.model.transformer.resblocks.0.ln_1.bias";
            let names = if text.contains("model.model") {
                vec![names[0], names[1], text, layer]
            } else {
                vec![names[0], names[1], text]
            };
            assert_eq!(components(&names), all);
        }
        let names = ["unet.conv_in.bias", "vae.quant_conv.bias", "text_encoder.text_model.x.bias"];
        assert_eq!(components(&names), all);
        let names = ["taesd_encoder.0.weight", "taesd_decoder.1.weight", "unet.conv_in.bias"];
        assert_eq!(components(&names), [Component::Unet, Component::Taesd]);
        let names = ["first_stage_model.decoder.layers.0.weight"];
        assert_eq!(components(&names), [Component::Taesd]);
    }

    #[test]
    fn a_single_network_is_recognised() {
        let check = |names: &[&str], expected| assert_eq!(components(names), [expected]);
        check(&["input_blocks.0.0.bias"], Component::Unet);
        check(&["conv_in.bias", "down_blocks.0.resnets.0.norm1.bias"], Component::Unet);
        check(&["decoder.conv_in.bias", "decoder.up.0.block.0.norm1.bias"], Component::Vae);
        check(&["encoder.conv_in.bias"], Component::Vae);
        check(&["text_model.final_layer_norm.bias"], Component::TextEncoder);
        check(&["embeddings.token_embedding.weight"], Component::TextEncoder);
        check(&["transformer.resblocks.0.ln_1.bias"], Component::TextEncoder);
        check(&["0.weight", "3.conv.0.weight"], Component::Taesd);
    }

    #[test]
    fn what_is_left_is_sorted_by_whether_it_is_known() {
        let names = [
            "betas",
            "model_ema.decay",
            "first_stage_model.loss.logvar",
            "first_stage_model.quant_conv.bias",
            "first_stage_model.strange",
            "conditioner.embedders.0.x",
            "cond_stage_model.transformer.text_model.embeddings.position_ids",
            "cond_stage_model.transformer.text_model.final_layer_norm.bias",
        ];
        let division = divided(&names, None).unwrap();
        let mut ignored = division.ignored;
        ignored.sort();
        assert_eq!(ignored, [names[0], names[6], names[2], names[1]]);
        assert_eq!(division.unknown, [names[5]]);
        let of_networks: Vec<_> = division.groups.iter().flat_map(|group| &group.unknown).collect();
        assert_eq!(of_networks, [names[4]]);
    }

    #[test]
    fn other_kinds_of_model_are_named() {
        let check = |names: &[&str], expected, reason: &str| {
            let error = divided(names, expected).unwrap_err().to_string();
            assert_eq!(error, format!("m: {reason}"));
        };
        let first = "model.diffusion_model.double_blocks.0.img_attn.qkv.weight";
        let reason = "the denoising network is of an unknown family: none of its 1 tensors has a \
                      name that is known (the first is ";
        check(&[first], None, &format!("{reason}{first})"));
        let reason = "this model is of an unknown family: none of its 2 tensors has a name that \
                      is known (the first is a)";
        check(&["a", "b"], None, reason);
        check(&["betas"], None, "there is no tensor in it that is of use");
        check(&[], None, "there is no tensor in it that is of use");
        let lora = "lora_unet_down_blocks_0.lora_down.weight";
        check(&[lora], None, "this is a LoRA, which needs a model to be added to");
        let reason = "this is a ControlNet, which needs a model beside it";
        check(&["input_hint_block.0.weight", "input_blocks.0.0.bias"], None, reason);
        let reason = "the text encoder is of an unknown family: none of its 1 tensors has a name \
                      that is known (the first is shared.weight)";
        check(&["shared.weight"], Some(Component::TextEncoder), reason);
    }
}
