//! The CLIP text encoder.

use super::{Leaf, Naming, Part, Rules, Subtrees};

/// OpenCLIP stores queries, keys and values in one tensor, below each other.
const OPEN_CLIP_LAYER: &[Leaf] = &[
    Leaf::new("ln_1", "layer_norm1"),
    Leaf::new("ln_2", "layer_norm2"),
    Leaf::new("mlp.c_fc", "mlp.fc1"),
    Leaf::new("mlp.c_proj", "mlp.fc2"),
    Leaf::new("attn.out_proj", "self_attn.out_proj"),
    Leaf::part("attn.in_proj_weight", "self_attn.q_proj.weight", third(0)),
    Leaf::part("attn.in_proj_weight", "self_attn.k_proj.weight", third(1)),
    Leaf::part("attn.in_proj_weight", "self_attn.v_proj.weight", third(2)),
    Leaf::part("attn.in_proj_bias", "self_attn.q_proj.bias", third(0)),
    Leaf::part("attn.in_proj_bias", "self_attn.k_proj.bias", third(1)),
    Leaf::part("attn.in_proj_bias", "self_attn.v_proj.bias", third(2)),
];

/// OpenCLIP multiplies by its projection from the other side.
const OPEN_CLIP_PROJECTION: &[Leaf] = &[Leaf::part("", "weight", Part::Transposed)];

const OPEN_CLIP_POSITIONS: &[Leaf] = &[Leaf::new("", "weight")];

const fn third(index: usize) -> Part {
    Part::Rows { index, of: 3 }
}

pub(super) fn rules(subtrees: &Subtrees<'_>) -> Rules {
    if subtrees.has("transformer.resblocks") { open_clip(subtrees) } else { transformers(subtrees) }
}

/// The transformers library leaves `text_model` away since its version 5.
fn transformers(subtrees: &Subtrees<'_>) -> Rules {
    let mut rules = Rules::new(Naming::Diffusers);
    let bare = |rules: &mut Rules| {
        for subtree in ["embeddings", "encoder", "final_layer_norm"] {
            rules.add(subtree, format!("text_model.{subtree}"), &[]);
        }
    };
    rules.keep(&["text_projection"]);
    if subtrees.has("text_model") {
        rules.keep(&["text_model"]);
    } else {
        bare(&mut rules);
    }
    rules
}

fn open_clip(subtrees: &Subtrees<'_>) -> Rules {
    let mut rules = Rules::new(Naming::OpenClip);
    rules.add("token_embedding", "text_model.embeddings.token_embedding", &[]);
    let positions = "text_model.embeddings.position_embedding";
    rules.add("positional_embedding", positions, OPEN_CLIP_POSITIONS);
    rules.add("ln_final", "text_model.final_layer_norm", &[]);
    rules.add("text_projection", "text_projection", OPEN_CLIP_PROJECTION);
    for layer in 0..subtrees.count("transformer.resblocks") {
        let file = format!("transformer.resblocks.{layer}");
        rules.add(file, format!("text_model.encoder.layers.{layer}"), OPEN_CLIP_LAYER);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transformers_names_map_with_and_without_their_prefix() {
        let internal = "text_model.encoder.layers.0.self_attn.q_proj.weight";
        for file in [internal, internal.strip_prefix("text_model.").unwrap()] {
            let rules = rules(&Subtrees::of(std::iter::once(file)));
            assert_eq!(rules.internal(file), [(internal.to_owned(), Part::Whole)]);
            assert_eq!(rules.file(internal).as_deref(), Some(file));
            assert_eq!(rules.internal("text_projection.weight")[0].0, "text_projection.weight");
            assert!(rules.internal("vision_model.encoder.layers.0.bias").is_empty());
        }
    }

    #[test]
    fn open_clip_names_map() {
        let name = "transformer.resblocks.1.attn.in_proj_weight";
        let rules = rules(&Subtrees::of(std::iter::once(name)));
        let layer = "text_model.encoder.layers.1";
        let expected = ["q", "k", "v"].map(|part| format!("{layer}.self_attn.{part}_proj.weight"));
        for (index, (found, expected)) in rules.internal(name).iter().zip(&expected).enumerate() {
            assert_eq!(found, &(expected.clone(), third(index)));
            assert_eq!(rules.file(expected).as_deref(), Some(name));
        }
        let check = |file: &str, internal: &str, part: Part| {
            assert_eq!(rules.internal(file), [(internal.to_owned(), part)]);
            assert_eq!(rules.file(internal).as_deref(), Some(file));
        };
        let file = "transformer.resblocks.1";
        check(&format!("{file}.mlp.c_fc.bias"), &format!("{layer}.mlp.fc1.bias"), Part::Whole);
        check(&format!("{file}.ln_2.weight"), &format!("{layer}.layer_norm2.weight"), Part::Whole);
        check("ln_final.weight", "text_model.final_layer_norm.weight", Part::Whole);
        check("text_projection", "text_projection.weight", Part::Transposed);
        let positions = "text_model.embeddings.position_embedding.weight";
        check("positional_embedding", positions, Part::Whole);
    }
}
