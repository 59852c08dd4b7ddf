//! The tiny autoencoder: two plain sequences of layers, known by their numbers.

use super::{Naming, Rules, Subtrees};

/// Which half a file of bare numbers holds. The encoder begins with a convolution; the decoder
/// begins with a clamp that has no weights, so that its first convolution has number 1.
fn bare_half(subtrees: &Subtrees<'_>) -> Option<&'static str> {
    if subtrees.has("0.weight") {
        Some("encoder")
    } else if subtrees.has("1.weight") {
        Some("decoder")
    } else {
        None
    }
}

/// Whether names without a prefix are those of a tiny autoencoder.
pub(super) fn recognises(subtrees: &Subtrees<'_>) -> bool {
    let halves = ["encoder", "decoder", "taesd_encoder", "taesd_decoder"];
    let starts = ["layers.0.weight", "layers.1.weight", "0.weight", "1.weight"];
    let full = halves.iter().any(|half| starts.iter().any(|start| subtrees.has(format!("{half}.{start}"))));
    full || bare_half(subtrees).is_some() && subtrees.has("3.conv.0.weight")
}

pub(super) fn rules(subtrees: &Subtrees<'_>) -> Rules {
    let diffusers = ["encoder.layers", "decoder.layers"];
    if diffusers.into_iter().any(|subtree| subtrees.has(subtree)) {
        let mut rules = Rules::new(Naming::Diffusers);
        rules.keep(&diffusers);
        return rules;
    }
    let mut rules = Rules::new(Naming::Original);
    for half in ["encoder", "decoder"] {
        for parent in [half.to_owned(), format!("taesd_{half}")] {
            let highest = subtrees.count(&parent);
            let starts_at_0 = subtrees.has(format!("{parent}.0.weight"));
            add_half(&mut rules, &format!("{parent}."), half, highest, starts_at_0);
        }
    }
    if let Some(half) = bare_half(subtrees) {
        add_half(&mut rules, "", half, subtrees.count(""), subtrees.has("0.weight"));
    }
    rules
}

fn add_half(rules: &mut Rules, parent: &str, half: &str, layers: usize, starts_at_0: bool) {
    // diffusers moved the decoder's clamp out of the sequence.
    let first = usize::from(half == "decoder" && !starts_at_0);
    for index in first..layers {
        let internal = format!("{half}.layers.{}", index - first);
        rules.add(format!("{parent}{index}"), internal, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(present: &[&str], file: &str, internal: &str) {
        let subtrees = Subtrees::of(present.iter().copied());
        assert!(recognises(&subtrees));
        let rules = rules(&subtrees);
        assert_eq!(rules.internal(file)[0].0, internal);
        assert_eq!(rules.file(internal).as_deref(), Some(file));
    }

    #[test]
    fn numbers_map_whatever_their_prefix() {
        let encoder = ["0.weight", "1.conv.0.weight", "3.conv.0.weight", "14.bias"];
        check(&encoder, "1.conv.2.bias", "encoder.layers.1.conv.2.bias");
        check(&encoder, "14.bias", "encoder.layers.14.bias");
        let decoder = ["1.weight", "3.conv.0.weight", "19.bias"];
        check(&decoder, "1.weight", "decoder.layers.0.weight");
        check(&decoder, "19.bias", "decoder.layers.18.bias");
        let both = ["encoder.0.weight", "decoder.1.weight", "decoder.19.weight"];
        check(&both, "encoder.0.weight", "encoder.layers.0.weight");
        check(&both, "decoder.19.weight", "decoder.layers.18.weight");
        let both = ["taesd_encoder.0.weight", "taesd_decoder.1.weight"];
        check(&both, "taesd_decoder.1.weight", "decoder.layers.0.weight");
        let diffusers = ["decoder.layers.0.weight", "decoder.layers.2.conv.0.weight"];
        check(&diffusers, "decoder.layers.2.conv.0.weight", "decoder.layers.2.conv.0.weight");
    }

    #[test]
    fn other_networks_are_not_taken_for_it() {
        for name in ["encoder.layers.0.self_attn.q_proj.weight", "encoder.down.0.x", "0.weight"] {
            assert!(!recognises(&Subtrees::of(std::iter::once(name))), "{name}");
        }
    }
}
