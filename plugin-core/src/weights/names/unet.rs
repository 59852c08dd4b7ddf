//! The denoising network.

use super::{Leaf, Naming, Rules, Subtrees};

const RESNET: &[Leaf] = &[
    Leaf::new("in_layers.0", "norm1"),
    Leaf::new("in_layers.2", "conv1"),
    Leaf::new("emb_layers.1", "time_emb_proj"),
    Leaf::new("out_layers.0", "norm2"),
    Leaf::new("out_layers.3", "conv2"),
    Leaf::new("skip_connection", "conv_shortcut"),
];

/// The subtrees of a UNet that has diffusers' names.
const DIFFUSERS: &[&str] = &[
    "conv_in",
    "time_embedding",
    "add_embedding",
    "class_embedding",
    "encoder_hid_proj",
    "down_blocks",
    "mid_block",
    "up_blocks",
    "conv_norm_out",
    "conv_out",
];

pub(super) fn rules(subtrees: &Subtrees<'_>) -> Rules {
    if subtrees.has("input_blocks") {
        return original(subtrees);
    }
    let mut rules = Rules::new(Naming::Diffusers);
    rules.keep(DIFFUSERS);
    rules
}

/// The original release numbers its blocks through: a level's residual blocks, then the
/// downsampler, then the next level. A block that is not there is taken for a residual block, so
/// that what it lacks is reported by its name.
fn original(subtrees: &Subtrees<'_>) -> Rules {
    let mut rules = Rules::new(Naming::Original);
    for (file, internal) in [
        ("time_embed.0", "time_embedding.linear_1"),
        ("time_embed.2", "time_embedding.linear_2"),
        ("label_emb.0.0", "add_embedding.linear_1"),
        ("label_emb.0.2", "add_embedding.linear_2"),
        ("input_blocks.0.0", "conv_in"),
        ("out.0", "conv_norm_out"),
        ("out.2", "conv_out"),
    ] {
        rules.add(file, internal, &[]);
    }
    add_down(&mut rules, subtrees);
    add_middle(&mut rules, subtrees);
    add_up(&mut rules, subtrees);
    rules
}

fn add_down(rules: &mut Rules, subtrees: &Subtrees<'_>) {
    let (mut level, mut layer) = (0, 0);
    for index in 1..subtrees.count("input_blocks") {
        let block = format!("input_blocks.{index}");
        if subtrees.has(format!("{block}.0.op")) {
            let internal = format!("down_blocks.{level}.downsamplers.0.conv");
            rules.add(format!("{block}.0.op"), internal, &[]);
            (level, layer) = (level + 1, 0);
            continue;
        }
        let internal = format!("down_blocks.{level}.resnets.{layer}");
        rules.add(format!("{block}.0"), internal, RESNET);
        let internal = format!("down_blocks.{level}.attentions.{layer}");
        rules.add(format!("{block}.1"), internal, &[]);
        layer += 1;
    }
}

fn add_middle(rules: &mut Rules, subtrees: &Subtrees<'_>) {
    let (mut resnets, mut attentions) = (0, 0);
    for index in 0..subtrees.count("middle_block") {
        let block = format!("middle_block.{index}");
        if subtrees.has(format!("{block}.transformer_blocks")) {
            rules.add(block, format!("mid_block.attentions.{attentions}"), &[]);
            attentions += 1;
        } else {
            rules.add(block, format!("mid_block.resnets.{resnets}"), RESNET);
            resnets += 1;
        }
    }
}

fn add_up(rules: &mut Rules, subtrees: &Subtrees<'_>) {
    let (mut level, mut layer) = (0, 0);
    for index in 0..subtrees.count("output_blocks") {
        let block = format!("output_blocks.{index}");
        let internal = format!("up_blocks.{level}.resnets.{layer}");
        rules.add(format!("{block}.0"), internal, RESNET);
        let mut ends_level = false;
        for place in 1..=2 {
            let module = format!("{block}.{place}");
            if subtrees.has(format!("{module}.conv")) {
                let internal = format!("up_blocks.{level}.upsamplers.0.conv");
                rules.add(format!("{module}.conv"), internal, &[]);
                ends_level = true;
            } else if place == 1 {
                rules.add(module, format!("up_blocks.{level}.attentions.{layer}"), &[]);
            }
        }
        (level, layer) = if ends_level { (level + 1, 0) } else { (level, layer + 1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two levels of one block, attention on the first only.
    const NAMES: [&str; 18] = [
        "time_embed.0.weight",
        "input_blocks.0.0.weight",
        "input_blocks.1.0.in_layers.0.weight",
        "input_blocks.1.1.transformer_blocks.0.attn1.to_q.weight",
        "input_blocks.2.0.op.bias",
        "input_blocks.3.0.skip_connection.weight",
        "middle_block.0.emb_layers.1.weight",
        "middle_block.1.transformer_blocks.0.norm1.weight",
        "middle_block.2.out_layers.3.weight",
        "output_blocks.0.0.in_layers.2.weight",
        "output_blocks.1.0.out_layers.0.weight",
        "output_blocks.1.1.conv.weight",
        "output_blocks.2.0.in_layers.0.weight",
        "output_blocks.2.1.proj_in.weight",
        "output_blocks.3.0.in_layers.0.weight",
        "output_blocks.3.1.proj_out.weight",
        "out.0.weight",
        "out.2.bias",
    ];

    #[test]
    fn original_names_map_by_what_is_there() {
        let rules = rules(&Subtrees::of(NAMES.into_iter()));
        let found = NAMES.map(|name| rules.internal(name)[0].0.clone());
        let expected = [
            "time_embedding.linear_1.weight",
            "conv_in.weight",
            "down_blocks.0.resnets.0.norm1.weight",
            "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight",
            "down_blocks.0.downsamplers.0.conv.bias",
            "down_blocks.1.resnets.0.conv_shortcut.weight",
            "mid_block.resnets.0.time_emb_proj.weight",
            "mid_block.attentions.0.transformer_blocks.0.norm1.weight",
            "mid_block.resnets.1.conv2.weight",
            "up_blocks.0.resnets.0.conv1.weight",
            "up_blocks.0.resnets.1.norm2.weight",
            "up_blocks.0.upsamplers.0.conv.weight",
            "up_blocks.1.resnets.0.norm1.weight",
            "up_blocks.1.attentions.0.proj_in.weight",
            "up_blocks.1.resnets.1.norm1.weight",
            "up_blocks.1.attentions.1.proj_out.weight",
            "conv_norm_out.weight",
            "conv_out.bias",
        ];
        assert_eq!(found, expected);
        for (file, internal) in NAMES.into_iter().zip(expected) {
            assert_eq!(rules.file(internal).as_deref(), Some(file));
        }
    }

    #[test]
    fn a_missing_block_is_spelled_as_the_file_would() {
        let present = NAMES.into_iter().filter(|name| !name.starts_with("output_blocks.2."));
        let rules = rules(&Subtrees::of(present));
        let spelled = rules.file("up_blocks.1.resnets.0.norm1.weight");
        assert_eq!(spelled.as_deref(), Some("output_blocks.2.0.in_layers.0.weight"));
        let rules = super::rules(&Subtrees::of(NAMES.into_iter()));
        let spelled = rules.file("down_blocks.1.resnets.0.conv1.bias");
        assert_eq!(spelled.as_deref(), Some("input_blocks.3.0.in_layers.2.bias"));
    }

    #[test]
    fn diffusers_names_stay() {
        let rules = rules(&Subtrees::of(std::iter::once("conv_in.weight")));
        let name = "down_blocks.0.resnets.0.norm1.weight";
        assert_eq!(rules.internal(name)[0].0, name);
        assert!(rules.internal("double_blocks.0.img_attn.weight").is_empty());
        assert_eq!(rules.naming, Naming::Diffusers);
    }
}
