//! Where in a folder the files of a model are.

use std::fs;
use std::path::{Path, PathBuf};

use super::json::Config;
use crate::{Error, Result};

/// A diffusers pipeline's own description (`model_index.json`): which class each part has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelIndex {
    /// The pipeline's class, if stated.
    pub class: Option<String>,
    /// Part and class of each part that the pipeline uses.
    pub parts: Vec<(String, String)>,
}

impl ModelIndex {
    /// Parses the text of a `model_index.json`; `path` is only for messages.
    pub fn parse(path: &Path, text: &str) -> Result<ModelIndex> {
        ModelIndex::from_config(&Config::parse(path, text)?)
    }

    pub(super) fn from_config(config: &Config) -> Result<ModelIndex> {
        let class = config.str("_class_name")?.map(str::to_owned);
        let members = config.as_object().into_iter().flatten();
        // A part is `[library, class]`, or `[null, null]` where the pipeline does without.
        let parts = members.filter_map(|(name, value)| match value.as_array()?.as_slice() {
            [_, class] => Some((name.clone(), class.as_str()?.to_owned())),
            _ => None,
        });
        Ok(ModelIndex { parts: parts.collect(), class })
    }

    /// Whether the pipeline uses this part.
    pub fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|(name, _)| name == part)
    }
}

/// What pickled weights are called.
const PICKLES: [&str; 5] = ["bin", "ckpt", "pt", "pth", "pkl"];

/// The names that diffusers and transformers give to a network's weights, preferred ones first:
/// the full precision before its half-precision variant, one file before several.
const FILES: [&str; 10] = [
    "diffusion_pytorch_model.safetensors",
    "model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.fp16.safetensors",
    "model.fp16.safetensors",
    "diffusion_pytorch_model.safetensors.index.fp16.json",
    "model.safetensors.index.fp16.json",
    "diffusion_pytorch_model.fp16.safetensors.index.json",
    "model.fp16.safetensors.index.json",
];

/// The files of one network in its folder: one file, one index, or the two halves of a tiny
/// autoencoder. Empty when the folder has no weights.
pub(super) fn weights_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let named = FILES.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    if let Some(path) = named {
        return Ok(vec![path]);
    }
    let files = files_in(folder)?;
    let with = |extension: &str| -> Vec<PathBuf> {
        let has = |path: &&PathBuf| path.extension().is_some_and(|found| found == extension);
        files.iter().filter(has).cloned().collect()
    };
    let safetensors = with("safetensors");
    match safetensors.as_slice() {
        [] => {}
        [_] => return Ok(safetensors),
        [decoder, encoder] if are_halves(decoder, encoder) => return Ok(safetensors),
        [first, second, ..] => {
            let reason = format!(
                "{} safetensors files are in this folder ({}, {}, …) and nothing says which to \
                 take: name one",
                safetensors.len(),
                shown_name(first),
                shown_name(second)
            );
            return Err(Error::unsupported(folder, reason));
        }
    }
    match PICKLES.iter().find_map(|extension| with(extension).into_iter().next()) {
        None => Ok(Vec::new()),
        Some(pickle) => Err(pickle_error(&pickle)),
    }
}

/// Whether this is what diffusers or transformers call a network's weights.
pub(super) fn is_named_by_diffusers(path: &Path) -> bool {
    FILES.iter().any(|name| path.ends_with(name))
}

/// The error for weights that are a program in disguise.
pub(super) fn pickle_error(path: &Path) -> Error {
    let reason = "this is a pickle, which can run code when it is opened; only safetensors is \
                  read, convert it with diffusers' save_pretrained or safetensors' convert.py";
    Error::unsupported(path, reason)
}

fn are_halves(first: &Path, second: &Path) -> bool {
    shown_name(first).ends_with("decoder.safetensors") && shown_name(second).ends_with("encoder.safetensors")
}

fn shown_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The regular files, sorted, since a folder's own order is anybody's guess.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|e| Error::io(folder, e))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(dir.path().join(name), "").unwrap();
        }
        dir
    }

    #[test]
    fn the_preferred_file_is_taken() {
        let check = |names: &[&str], expected: &[&str]| {
            let dir = touched(names);
            let found = weights_in(dir.path()).unwrap();
            let found: Vec<_> = found.iter().map(|path| shown_name(path)).collect();
            assert_eq!(found, expected);
        };
        let fp16 = "diffusion_pytorch_model.fp16.safetensors";
        check(&[fp16, "diffusion_pytorch_model.safetensors", "config.json"], &["diffusion_pytorch_model.safetensors"]);
        check(&[fp16, "diffusion_pytorch_model.bin"], &[fp16]);
        let index = "model.safetensors.index.json";
        check(&["model-00001-of-00002.safetensors", index], &[index]);
        check(&["other.safetensors"], &["other.safetensors"]);
        let halves = ["taesd_decoder.safetensors", "taesd_encoder.safetensors"];
        check(&halves, &halves);
        check(&["config.json"], &[]);
    }

    #[test]
    fn pickles_and_ambiguity_are_told() {
        let check = |names: &[&str], part: &str| {
            let error = weights_in(touched(names).path()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&["pytorch_model.bin"], "pytorch_model.bin: this is a pickle");
        check(&["sd.ckpt"], "sd.ckpt: this is a pickle");
        check(&["a.safetensors", "b.safetensors"], "2 safetensors files are in this folder (a.");
        let missing = weights_in(Path::new("/nonexistent"));
        assert!(matches!(missing, Err(Error::Io { .. })));
    }

    #[test]
    fn a_model_index_lists_the_parts_in_use() {
        let text = r#"{"_class_name":"StableDiffusionPipeline","unet":["diffusers","U"],
            "safety_checker":[null,null],"requires_safety_checker":false,"x":["a"]}"#;
        let index = ModelIndex::parse(Path::new("i"), text).unwrap();
        assert_eq!(index.class.as_deref(), Some("StableDiffusionPipeline"));
        assert_eq!(index.parts, [("unet".to_owned(), "U".to_owned())]);
        assert!(index.has("unet") && !index.has("safety_checker"));
        let error = ModelIndex::parse(Path::new("i"), r#"{"_class_name":3}"#).unwrap_err();
        assert_eq!(error.to_string(), "i: _class_name is 3, expected a text");
        assert!(ModelIndex::parse(Path::new("i"), "[]").is_err());
    }
}
