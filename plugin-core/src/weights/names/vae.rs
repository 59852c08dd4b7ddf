//! The autoencoder. Both namings share most of their names, so one set of rules takes both.

use super::{Leaf, Naming, Part, Rules, Subtrees};

const RESNET: &[Leaf] = &[
    Leaf::new("norm1", "norm1"),
    Leaf::new("conv1", "conv1"),
    Leaf::new("norm2", "norm2"),
    Leaf::new("conv2", "conv2"),
    Leaf::new("nin_shortcut", "conv_shortcut"),
];

/// The original release makes its projections as 1×1 convolutions.
const ATTENTION: &[Leaf] = &[
    Leaf::new("norm", "group_norm"),
    Leaf::part("q", "to_q", Part::Linear),
    Leaf::part("k", "to_k", Part::Linear),
    Leaf::part("v", "to_v", Part::Linear),
    Leaf::part("proj_out", "to_out.0", Part::Linear),
];

const DIFFUSERS_ATTENTION: &[Leaf] = &[
    Leaf::new("group_norm", "group_norm"),
    Leaf::part("to_q", "to_q", Part::Linear),
    Leaf::part("to_k", "to_k", Part::Linear),
    Leaf::part("to_v", "to_v", Part::Linear),
    Leaf::part("to_out.0", "to_out.0", Part::Linear),
];

/// What diffusers called them in its first releases.
const OLD_DIFFUSERS_ATTENTION: &[Leaf] = &[
    Leaf::new("group_norm", "group_norm"),
    Leaf::part("query", "to_q", Part::Linear),
    Leaf::part("key", "to_k", Part::Linear),
    Leaf::part("value", "to_v", Part::Linear),
    Leaf::part("proj_attn", "to_out.0", Part::Linear),
];

pub(super) fn rules(subtrees: &Subtrees<'_>) -> Rules {
    let original = ["encoder.down", "encoder.mid", "decoder.up", "decoder.mid"];
    // The naming that the file has comes last: it spells what is missing.
    if original.into_iter().any(|subtree| subtrees.has(subtree)) {
        let mut rules = Rules::new(Naming::Original);
        add_diffusers(&mut rules, subtrees);
        add_original(&mut rules, subtrees);
        rules
    } else {
        let mut rules = Rules::new(Naming::Diffusers);
        add_diffusers(&mut rules, subtrees);
        rules
    }
}

fn add_diffusers(rules: &mut Rules, subtrees: &Subtrees<'_>) {
    rules.keep(&["quant_conv", "post_quant_conv", "encoder.down_blocks", "decoder.up_blocks"]);
    for side in ["encoder", "decoder"] {
        for subtree in ["conv_in", "mid_block", "conv_norm_out", "conv_out"] {
            rules.keep(&[&format!("{side}.{subtree}")]);
        }
        let attention = format!("{side}.mid_block.attentions.0");
        let is_old = subtrees.has(format!("{attention}.query"));
        let leaves = if is_old { OLD_DIFFUSERS_ATTENTION } else { DIFFUSERS_ATTENTION };
        rules.add(attention.clone(), attention, leaves);
    }
}

fn add_original(rules: &mut Rules, subtrees: &Subtrees<'_>) {
    for side in ["encoder", "decoder"] {
        rules.add(format!("{side}.norm_out"), format!("{side}.conv_norm_out"), &[]);
        for (file, internal, leaves) in
            [("block_1", "resnets.0", RESNET), ("attn_1", "attentions.0", ATTENTION), ("block_2", "resnets.1", RESNET)]
        {
            rules.add(format!("{side}.mid.{file}"), format!("{side}.mid_block.{internal}"), leaves);
        }
    }
    let levels = subtrees.count("encoder.down");
    for level in 0..levels {
        let file = format!("encoder.down.{level}");
        let internal = format!("encoder.down_blocks.{level}");
        add_level(rules, subtrees, &file, &internal, ("downsample", "downsamplers.0"));
    }
    // The decoder's levels count from the picture, diffusers' from the latent.
    let levels = subtrees.count("decoder.up");
    for level in 0..levels {
        let file = format!("decoder.up.{level}");
        let internal = format!("decoder.up_blocks.{}", levels - 1 - level);
        add_level(rules, subtrees, &file, &internal, ("upsample", "upsamplers.0"));
    }
}

fn add_level(
    rules: &mut Rules,
    subtrees: &Subtrees<'_>,
    file: &str,
    internal: &str,
    (resampler_file, resampler_internal): (&str, &str),
) {
    for block in 0..subtrees.count(&format!("{file}.block")) {
        rules.add(format!("{file}.block.{block}"), format!("{internal}.resnets.{block}"), RESNET);
    }
    rules.add(format!("{file}.{resampler_file}"), format!("{internal}.{resampler_internal}"), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn original_names_map() {
        let pairs = [
            ("encoder.conv_in.weight", "encoder.conv_in.weight"),
            ("encoder.down.0.block.1.norm1.weight", "encoder.down_blocks.0.resnets.1.norm1.weight"),
            ("encoder.down.1.block.0.nin_shortcut.bias", "encoder.down_blocks.1.resnets.0.conv_shortcut.bias"),
            ("encoder.down.0.downsample.conv.weight", "encoder.down_blocks.0.downsamplers.0.conv.weight"),
            ("encoder.mid.block_1.conv2.weight", "encoder.mid_block.resnets.0.conv2.weight"),
            ("encoder.mid.attn_1.norm.bias", "encoder.mid_block.attentions.0.group_norm.bias"),
            ("encoder.norm_out.weight", "encoder.conv_norm_out.weight"),
            ("decoder.mid.attn_1.proj_out.bias", "decoder.mid_block.attentions.0.to_out.0.bias"),
            ("decoder.mid.block_2.norm2.weight", "decoder.mid_block.resnets.1.norm2.weight"),
            ("decoder.up.2.block.0.conv1.weight", "decoder.up_blocks.0.resnets.0.conv1.weight"),
            ("decoder.up.2.upsample.conv.weight", "decoder.up_blocks.0.upsamplers.0.conv.weight"),
            ("decoder.up.0.block.2.conv1.weight", "decoder.up_blocks.2.resnets.2.conv1.weight"),
            ("quant_conv.weight", "quant_conv.weight"),
        ];
        let rules = rules(&Subtrees::of(pairs.into_iter().map(|pair| pair.0)));
        for (file, internal) in pairs {
            assert_eq!(rules.internal(file)[0].0, internal);
            assert_eq!(rules.file(internal).as_deref(), Some(file));
        }
        let part = rules.internal("decoder.mid.attn_1.q.weight")[0].1;
        assert_eq!(part, Part::Linear);
        assert!(rules.internal("loss.logvar").is_empty());
    }

    #[test]
    fn old_and_new_diffusers_names_map() {
        let attention = "decoder.mid_block.attentions.0";
        let old = ["query.weight", "key.weight", "value.weight", "proj_attn.weight", "group_norm.bias"];
        let new = ["to_q.weight", "to_k.weight", "to_v.weight", "to_out.0.weight", "group_norm.bias"];
        for names in [old, new] {
            let names = names.map(|name| format!("{attention}.{name}"));
            let rules = rules(&Subtrees::of(names.iter().map(String::as_str)));
            for (file, internal) in names.iter().zip(new) {
                let internal = format!("{attention}.{internal}");
                assert_eq!(rules.internal(file)[0].0, internal);
                assert_eq!(rules.file(&internal).as_ref(), Some(file));
            }
            let kept = "decoder.up_blocks.0.resnets.0.norm1.bias";
            assert_eq!(rules.internal(kept)[0].0, kept);
        }
    }
}
