//! Every layout's tensor names to one internal naming: that of diffusers and transformers.
//!
//! A file's names are first divided by their prefix (`model.diffusion_model.`, `vae.`, …; a file
//! of a single network has none), which tells the network. What is left goes through that
//! network's [`Rules`]: pairs of what a subtree is called in the file and what it is called
//! inside, made from the names that are there, so that any number of levels and blocks maps. The
//! same pairs, read backwards, spell a missing tensor's name as the file would.

mod clip;
mod groups;
mod taesd;
mod unet;
mod vae;

use std::collections::{HashMap, HashSet};

use serde::Serialize;

pub(super) use groups::{Group, divide};

/// The networks that a model file can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// The denoising network.
    Unet,
    /// The autoencoder between pictures and latents.
    Vae,
    /// The CLIP text encoder.
    TextEncoder,
    /// The tiny autoencoder for previews.
    Taesd,
}

impl Component {
    /// All of them.
    pub const ALL: [Component; 4] = [Component::Unet, Component::Vae, Component::TextEncoder, Component::Taesd];

    /// Its subfolder in a diffusers folder, and its prefix in a bundle.
    pub fn name(self) -> &'static str {
        match self {
            Component::Unet => "unet",
            Component::Vae => "vae",
            Component::TextEncoder => "text_encoder",
            Component::Taesd => "taesd",
        }
    }
}

/// Whose names a network's tensors have in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Naming {
    /// Those of diffusers and transformers, which are the internal ones.
    Diffusers,
    /// Those of the network's original release.
    Original,
    /// Those of OpenCLIP: the text encoder of SD 2's original release.
    OpenClip,
}

/// Which part of a file's tensor an internal tensor is, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it, as it is.
    Whole,
    /// The `index`-th of `of` equal bands of rows.
    Rows { index: usize, of: usize },
    /// All of it; a 1×1 convolution becomes the matrix that it is.
    Linear,
    /// All of it, rows and columns exchanged.
    Transposed,
}

/// What a layer inside a subtree is called in the file and inside.
#[derive(Debug)]
struct Leaf {
    file: &'static str,
    internal: &'static str,
    part: Part,
}

impl Leaf {
    const fn new(file: &'static str, internal: &'static str) -> Leaf {
        Leaf { file, internal, part: Part::Whole }
    }

    const fn part(file: &'static str, internal: &'static str, part: Part) -> Leaf {
        Leaf { file, internal, part }
    }
}

#[derive(Debug)]
struct Rule {
    file: String,
    internal: String,
    /// Empty when everything below keeps its name.
    leaves: &'static [Leaf],
}

/// How one network's names map, both ways.
#[derive(Debug)]
struct Rules {
    naming: Naming,
    rules: Vec<Rule>,
    by_file: HashMap<String, usize>,
    by_internal: HashMap<String, usize>,
}

/// Deeper than any rule. Bounds the work for a name made of nothing but dots.
const DEPTH_LIMIT: usize = 8;

impl Rules {
    fn new(naming: Naming) -> Rules {
        let (by_file, by_internal) = Default::default();
        Rules { naming, rules: Vec::new(), by_file, by_internal }
    }

    /// The subtree `file` is `internal` inside. Of two rules for one internal subtree the later
    /// one spells what is missing.
    fn add(&mut self, file: impl Into<String>, internal: impl Into<String>, leaves: &'static [Leaf]) {
        let rule = Rule { file: file.into(), internal: internal.into(), leaves };
        self.by_file.insert(rule.file.clone(), self.rules.len());
        self.by_internal.insert(rule.internal.clone(), self.rules.len());
        self.rules.push(rule);
    }

    /// These subtrees keep their names.
    fn keep(&mut self, subtrees: &[&str]) {
        for &subtree in subtrees {
            self.add(subtree, subtree, &[]);
        }
    }

    /// The internal tensors that the file's tensor `name` holds; none if the name is unknown.
    fn internal(&self, name: &str) -> Vec<(String, Part)> {
        let Some((rule, rest)) = self.longest(&self.by_file, name) else { return Vec::new() };
        if rule.leaves.is_empty() {
            return vec![(joined(&rule.internal, rest), Part::Whole)];
        }
        let inside = |leaf: &Leaf| {
            let rest = below(leaf.file, rest)?;
            Some((joined(&joined(&rule.internal, leaf.internal), rest), leaf.part))
        };
        rule.leaves.iter().filter_map(inside).collect()
    }

    /// How the file calls the internal tensor `name`.
    fn file(&self, name: &str) -> Option<String> {
        let (rule, rest) = self.longest(&self.by_internal, name)?;
        if rule.leaves.is_empty() {
            return Some(joined(&rule.file, rest));
        }
        rule.leaves.iter().find_map(|leaf| {
            let rest = below(leaf.internal, rest)?;
            Some(joined(&joined(&rule.file, leaf.file), rest))
        })
    }

    /// The rule for the longest prefix of whole segments, and what follows that prefix.
    fn longest<'n>(&self, index: &HashMap<String, usize>, name: &'n str) -> Option<(&Rule, &'n str)> {
        let dots = name.match_indices('.').map(|(at, _)| at).take(DEPTH_LIMIT);
        let mut ends: Vec<usize> = dots.collect();
        ends.push(name.len());
        ends.into_iter().rev().find_map(|end| {
            let rule = &self.rules[*index.get(&name[..end])?];
            Some((rule, name[end..].trim_start_matches('.')))
        })
    }
}

/// What of `name` follows the segments `prefix`.
fn below<'n>(prefix: &str, name: &'n str) -> Option<&'n str> {
    let rest = name.strip_prefix(prefix)?;
    if prefix.is_empty() {
        // The subtree itself is the tensor.
        return rest.is_empty().then_some(rest);
    }
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('.') }
}

fn joined(prefix: &str, rest: &str) -> String {
    match (prefix, rest) {
        ("", _) => rest.to_owned(),
        (_, "") => prefix.to_owned(),
        _ => format!("{prefix}.{rest}"),
    }
}

/// The subtrees that some names span, to ask what there is.
struct Subtrees<'n>(HashSet<&'n str>);

impl<'n> Subtrees<'n> {
    fn of(names: impl Iterator<Item = &'n str>) -> Subtrees<'n> {
        let mut subtrees = HashSet::new();
        for name in names {
            let dots = name.match_indices('.').map(|(at, _)| at).take(DEPTH_LIMIT);
            subtrees.extend(dots.map(|end| &name[..end]));
            subtrees.insert(name);
        }
        Subtrees(subtrees)
    }

    fn has(&self, subtree: impl AsRef<str>) -> bool {
        self.0.contains(subtree.as_ref())
    }

    /// One more than the highest index below `parent` (empty for the top); at most
    /// [`INDEX_LIMIT`].
    fn count(&self, parent: &str) -> usize {
        let there = |index: &usize| self.has(joined(parent, &index.to_string()));
        (0..INDEX_LIMIT).rev().find(there).map_or(0, |highest| highest + 1)
    }
}

/// More blocks than any network has. Bounds the rules that a file can cause.
const INDEX_LIMIT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        const LEAVES: &[Leaf] = &[
            Leaf::new("in", "first"),
            Leaf::part("qkv", "q", Part::Rows { index: 0, of: 2 }),
            Leaf::part("qkv", "k", Part::Rows { index: 1, of: 2 }),
        ];
        const ALONE: &[Leaf] = &[Leaf::part("", "", Part::Transposed)];
        let mut rules = Rules::new(Naming::Original);
        rules.add("old", "new", &[]);
        rules.add("old.deep", "deep", LEAVES);
        rules.add("alone", "alone.weight", ALONE);
        rules
    }

    #[test]
    fn the_longest_prefix_of_whole_segments_wins() {
        let check = |name: &str, expected: &[(&str, Part)]| {
            let found = rules().internal(name);
            let found: Vec<_> = found.iter().map(|(name, part)| (name.as_str(), *part)).collect();
            assert_eq!(found, expected, "{name}");
        };
        check("old.weight", &[("new.weight", Part::Whole)]);
        check("old", &[("new", Part::Whole)]);
        check("older.weight", &[]);
        check("old.deep.in.weight", &[("deep.first.weight", Part::Whole)]);
        check("old.deep.inner.weight", &[]);
        let half = |index| Part::Rows { index, of: 2 };
        check("old.deep.qkv", &[("deep.q", half(0)), ("deep.k", half(1))]);
        check("alone", &[("alone.weight", Part::Transposed)]);
        check("", &[]);
        check("...", &[]);
    }

    #[test]
    fn names_go_back() {
        for (internal, file) in [
            ("new.weight", Some("old.weight")),
            ("deep.first.bias", Some("old.deep.in.bias")),
            ("deep.k", Some("old.deep.qkv")),
            ("deep.other", None),
            ("other", None),
        ] {
            assert_eq!(rules().file(internal).as_deref(), file);
        }
    }

    #[test]
    fn a_name_of_dots_costs_little() {
        let dots = ".".repeat(1024);
        assert!(rules().internal(&dots).is_empty());
        let subtrees = Subtrees::of(std::iter::once(dots.as_str()));
        assert_eq!(subtrees.0.len(), DEPTH_LIMIT + 1);
    }

    #[test]
    fn indices_are_counted_to_the_highest() {
        let names = ["a.0.x", "a.3.x", "a.1000.x", "a.b.x", "ab.9.x"];
        let subtrees = Subtrees::of(names.into_iter());
        assert_eq!(subtrees.count("a"), 4);
        assert_eq!(subtrees.count("c"), 0);
    }
}
