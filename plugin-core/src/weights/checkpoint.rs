//! A model as it lies on disk, opened without reading its weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::folder::{self, ModelIndex};
use super::gather::Parts;
use super::json::{Config, shown};
use super::names::Component;
use super::source::{self, Source};
use super::tensors::Tensors;
use super::tokenizer_files::TokenizerFiles;
use crate::{Error, Result};

/// How a model's parts are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A folder with a subfolder for each part.
    DiffusersFolder,
    /// One file with the names of the original release.
    Original,
    /// One file with diffusers' names behind `unet.`, `vae.`, `text_encoder.`, and the
    /// configurations and the vocabulary in its metadata (`format` is `scumble-bundle`).
    Bundle,
    /// A single network.
    Component,
}

/// A model: the tensors of its networks, and what its files say about them.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The file or folder that was opened.
    pub path: PathBuf,
    /// How its parts are arranged.
    pub layout: Layout,
    /// The metadata of its safetensors files.
    pub metadata: BTreeMap<String, String>,
    /// The licence, where the metadata, `model_index.json` or `README.md` state one.
    pub licence: Option<String>,
    /// Tensors that are known to be of no use.
    pub ignored: Vec<String>,
    /// Tensors that no network here has.
    pub unknown: Vec<String>,
    /// Parts that a model needs or that `model_index.json` lists, but that are not there.
    pub missing: Vec<String>,
    /// Parts of a folder that nothing here uses.
    pub other_parts: Vec<String>,
    pub(super) components: BTreeMap<Component, Tensors>,
    pub(super) configs: BTreeMap<Component, Config>,
    pub(super) scheduler_config: Option<Config>,
    pub(super) tokenizer_folders: Vec<PathBuf>,
}

/// Enough for the front matter of a model card.
const README_LIMIT_BYTES: u64 = 1 << 20;

impl Checkpoint {
    /// Opens a file, an index of several files, or a folder. Reads headers and configurations
    /// only.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let found = fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if found.is_dir() {
            return Checkpoint::open_folder(path, path);
        }
        if path.ends_with("model_index.json") {
            return Checkpoint::open_folder(path, path.parent().unwrap_or(path));
        }
        let mut parts = Parts::default();
        parts.add_file(path, None)?;
        let beside = path.parent().unwrap_or(Path::new(""));
        parts.add_config_beside(path)?;
        let mut checkpoint = parts.finish(path, None)?;
        checkpoint.tokenizer_folders = vec![beside.join("tokenizer"), beside.to_owned()];
        Ok(checkpoint)
    }

    /// A safetensors file that is built into the program; `name` is for messages.
    pub fn from_bytes(name: &str, bytes: &'static [u8]) -> Result<Checkpoint> {
        Checkpoint::from_source(Source::from_static(name, bytes))
    }

    /// A safetensors file that somebody has in memory; `name` is for messages.
    pub fn from_shared_bytes(name: &str, bytes: Arc<[u8]>) -> Result<Checkpoint> {
        Checkpoint::from_source(Source::from_shared(name, bytes))
    }

    fn from_source(source: Source) -> Result<Checkpoint> {
        let path = source.path().to_owned();
        let mut parts = Parts::default();
        parts.add_source(source, None)?;
        parts.finish(&path, None)
    }

    fn open_folder(path: &Path, folder: &Path) -> Result<Checkpoint> {
        let index_path = folder.join("model_index.json");
        let index_config = Config::read_if_exists(&index_path)?;
        if index_config.is_some() || folder.join(Component::Unet.name()).is_dir() {
            return Checkpoint::open_pipeline(path, folder, index_config);
        }
        let files = folder::weights_in(folder)?;
        if files.is_empty() {
            let reason = "no model is in this folder: it has neither model_index.json nor safetensors";
            return Err(Error::format(path, reason));
        }
        let mut parts = Parts::default();
        for file in &files {
            parts.add_file(file, None)?;
        }
        parts.add_config_beside(&files[0])?;
        let mut checkpoint = parts.finish(path, None)?;
        checkpoint.tokenizer_folders = vec![folder.join("tokenizer"), folder.to_owned()];
        checkpoint.licence = checkpoint.licence.or_else(|| licence_of_readme(folder));
        Ok(checkpoint)
    }

    fn open_pipeline(path: &Path, folder: &Path, index: Option<Config>) -> Result<Checkpoint> {
        let model_index = index.as_ref().map(ModelIndex::from_config).transpose()?;
        if let Some(model_index) = &model_index
            && model_index.has("transformer")
            && !model_index.has("unet")
        {
            let class = shown(model_index.class.as_deref().unwrap_or("pipeline"));
            let reason = format!(
                "this {class} is of an unknown family: its denoising network is a transformer, \
                 and only UNets are supported"
            );
            return Err(Error::unsupported(path, reason));
        }
        let mut parts = Parts::default();
        for component in Component::ALL {
            let subfolder = folder.join(component.name());
            if !subfolder.is_dir() {
                continue;
            }
            for file in folder::weights_in(&subfolder)? {
                parts.add_file(&file, Some(component))?;
            }
            if let Some(config) = Config::read_if_exists(&subfolder.join("config.json"))? {
                parts.configs.insert(component, config);
            }
        }
        if parts.groups.is_empty() {
            let reason = "this folder has none of a model's networks: unet, vae or text_encoder";
            return Err(Error::format(path, reason));
        }
        let scheduler = folder.join("scheduler/scheduler_config.json");
        parts.scheduler_config = Config::read_if_exists(&scheduler)?;
        let mut checkpoint = parts.finish(path, Some(Layout::DiffusersFolder))?;
        for (part, _) in model_index.into_iter().flat_map(|index| index.parts) {
            let is_read = Component::ALL.iter().any(|component| component.name() == part)
                || ["scheduler", "tokenizer"].contains(&part.as_str());
            if !is_read {
                checkpoint.other_parts.push(shown(&part));
            } else if !folder.join(&part).is_dir() && !checkpoint.missing.contains(&part) {
                checkpoint.missing.push(part);
            }
        }
        checkpoint.tokenizer_folders = vec![folder.join("tokenizer")];
        let stated = index.as_ref().and_then(|config| config.get("license")?.as_str().map(shown));
        checkpoint.licence = checkpoint.licence.or(stated).or_else(|| licence_of_readme(folder));
        Ok(checkpoint)
    }

    /// The tensors of one network.
    pub fn component(&self, component: Component) -> Option<&Tensors> {
        self.components.get(&component)
    }

    /// All networks that are there.
    pub fn components(&self) -> impl Iterator<Item = (Component, &Tensors)> {
        self.components.iter().map(|(&component, tensors)| (component, tensors))
    }

    /// What a network's `config.json`, or the metadata `<component>.config`, says.
    pub fn config(&self, component: Component) -> Option<&Config> {
        self.configs.get(&component)
    }

    /// `scheduler_config.json`, or the metadata `scheduler.config`.
    pub fn scheduler_config(&self) -> Option<&Config> {
        self.scheduler_config.as_ref()
    }

    /// The text encoder's vocabulary: from the metadata, or from `tokenizer/` in the folder or
    /// beside the file. It is read now, not when the checkpoint was opened.
    pub fn tokenizer(&self) -> Result<Option<TokenizerFiles>> {
        if let Some(files) = TokenizerFiles::in_metadata(&self.path, &self.metadata)? {
            return Ok(Some(files));
        }
        for folder in &self.tokenizer_folders {
            if let Some(files) = TokenizerFiles::in_folder(folder)? {
                return Ok(Some(files));
            }
        }
        Ok(None)
    }
}

/// `license:` in the front matter of a model card.
fn licence_of_readme(folder: &Path) -> Option<String> {
    let text = source::read_text(&folder.join("README.md"), README_LIMIT_BYTES).ok()?;
    let mut lines = text.lines();
    if lines.next()?.trim() != "---" {
        return None;
    }
    let front_matter = lines.take_while(|line| line.trim() != "---");
    let stated = front_matter.filter_map(|line| line.strip_prefix("license:"));
    stated.map(|value| shown(value.trim().trim_matches(['"', '\'']))).find(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::Inspection;
    use super::super::safetensors::tests::tensors_file;
    use super::*;

    /// A file of empty tensors with these names.
    fn named(names: &[&str]) -> Vec<u8> {
        let tensors: Vec<_> = names.iter().map(|&name| (name, "F16", &[0][..], &[][..])).collect();
        tensors_file(&tensors)
    }

    fn with_metadata(metadata: &str, names: &[&str]) -> Vec<u8> {
        let plain = named(names);
        let header = String::from_utf8(plain[9..].to_vec()).unwrap();
        let header = format!("{{\"__metadata__\":{metadata},{header}");
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    }

    fn opened(bytes: Vec<u8>) -> Result<Checkpoint> {
        Checkpoint::from_shared_bytes("m", bytes.into())
    }

    const BUNDLE: [&str; 3] =
        ["unet.conv_in.bias", "vae.quant_conv.bias", "text_encoder.text_model.final_layer_norm.bias"];

    #[test]
    fn a_bundle_brings_all_it_needs() {
        let metadata = r#"{"format":"scumble-bundle","unet.config":"{\"a\":1}","license":"MIT",
            "scheduler.config":"{}","tokenizer.vocab":"{}","tokenizer.merges":"x"}"#;
        let checkpoint = opened(with_metadata(metadata, &BUNDLE)).unwrap();
        assert_eq!(checkpoint.layout, Layout::Bundle);
        assert_eq!(checkpoint.config(Component::Unet).unwrap().usize("a").unwrap(), Some(1));
        assert!(checkpoint.config(Component::Vae).is_none());
        assert!(checkpoint.scheduler_config().is_some());
        assert_eq!(checkpoint.tokenizer().unwrap().unwrap().merges, "x");
        assert_eq!(checkpoint.licence.as_deref(), Some("MIT"));
        assert!(checkpoint.missing.is_empty());
        let inspection = Inspection::of(&checkpoint);
        assert_eq!(inspection.components.len(), 3);
        assert_eq!(inspection.components[0].dtypes["F16"], 1);
        let json = serde_json::to_value(&inspection).unwrap();
        assert_eq!(json["layout"], "bundle");
        assert_eq!(json["components"][2]["component"], "text_encoder");
    }

    #[test]
    fn broken_metadata_is_an_error() {
        let error = opened(with_metadata(r#"{"vae.config":"[]"}"#, &BUNDLE)).unwrap_err();
        assert_eq!(error.to_string(), "m: the JSON is a list, expected an object");
        let error = opened(with_metadata(r#"{"scheduler.config":"{"}"#, &BUNDLE)).unwrap_err();
        assert!(error.to_string().starts_with("m: not valid JSON: EOF"), "{error}");
    }

    #[test]
    fn layouts_are_told_apart() {
        let layout = |names: &[&str]| opened(named(names)).unwrap().layout;
        assert_eq!(layout(&BUNDLE), Layout::Bundle);
        assert_eq!(layout(&["decoder.conv_in.bias"]), Layout::Component);
        assert_eq!(layout(&["first_stage_model.quant_conv.bias"]), Layout::Component);
        let original = ["first_stage_model.quant_conv.bias", "model.diffusion_model.input_blocks.0.0.bias"];
        assert_eq!(layout(&original), Layout::Original);
        assert_eq!(opened(named(&original)).unwrap().missing, ["text_encoder"]);
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let cases: [(&[u8], &str); 9] = [
            (b"PK\x03\x04\0\0\0\0\0\0\0\0", "this is a pickle, which can run code"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 ", "this is a pickle, which can run code"),
            (b"\x80\x04\x95\x10\0\0\0\0\0\0\0", "this is a pickle, which can run code"),
            (b"GGUF\x03\0\0\0\0\0\0\0", "this is a GGUF file; only safetensors is read"),
            (b"version https://git-lfs.github.com", "this is a Git LFS pointer"),
            (b"<!DOCTYPE html>", "this is a web page; only safetensors is read"),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "this is a PNG picture; only safetensors is read"),
            (b"", "0 bytes are too few for a safetensors file"),
            (b"hello, this is a text", "the header claims "),
        ];
        for (bytes, reason) in cases {
            fs::write(&path, bytes).unwrap();
            let error = Checkpoint::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("model.safetensors: {reason}")), "{error}");
        }
    }

    #[test]
    fn folders_are_gathered() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let error = Checkpoint::open(root).unwrap_err().to_string();
        assert!(error.contains("no model is in this folder"), "{error}");

        let index = r#"{"_class_name":"StableDiffusionPipeline","unet":["diffusers","U"],
            "vae":["diffusers","V"],"text_encoder":["t","C"],"scheduler":["d","S"],
            "safety_checker":["s","S"],"feature_extractor":[null,null]}"#;
        fs::write(root.join("model_index.json"), index).unwrap();
        let error = Checkpoint::open(root).unwrap_err().to_string();
        assert!(error.contains("none of a model's networks"), "{error}");

        for part in ["unet", "vae", "scheduler"] {
            fs::create_dir(root.join(part)).unwrap();
        }
        let unet = root.join("unet/diffusion_pytorch_model.fp16.safetensors");
        fs::write(&unet, named(&["conv_in.bias"])).unwrap();
        fs::write(root.join("unet/config.json"), "{}").unwrap();
        fs::write(root.join("scheduler/scheduler_config.json"), "{}").unwrap();
        fs::write(root.join("README.md"), "---\ntags: []\nlicense: mit\n---\n").unwrap();
        let checkpoint = Checkpoint::open(root).unwrap();
        assert_eq!(checkpoint.layout, Layout::DiffusersFolder);
        assert_eq!(checkpoint.missing, ["vae", "text_encoder"]);
        assert_eq!(checkpoint.other_parts, ["safety_checker"]);
        assert_eq!(checkpoint.licence.as_deref(), Some("mit"));
        assert!(checkpoint.config(Component::Unet).is_some());
        assert!(checkpoint.scheduler_config().is_some());
        let unet = checkpoint.component(Component::Unet).unwrap();
        assert_eq!(unet.names().collect::<Vec<_>>(), ["conv_in.bias"]);

        fs::write(root.join("vae/diffusion_pytorch_model.bin"), "").unwrap();
        let error = Checkpoint::open(&root.join("model_index.json")).unwrap_err().to_string();
        assert!(error.contains("diffusion_pytorch_model.bin: this is a pickle"), "{error}");

        let flux = r#"{"_class_name":"FluxPipeline","transformer":["diffusers","T"]}"#;
        fs::write(root.join("model_index.json"), flux).unwrap();
        let error = Checkpoint::open(root).unwrap_err().to_string();
        assert!(error.contains("this FluxPipeline is of an unknown family"), "{error}");
    }

    #[test]
    fn a_network_s_own_folder_and_file_are_components() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("diffusion_pytorch_model.safetensors");
        fs::write(&file, named(&["decoder.conv_in.bias"])).unwrap();
        fs::write(dir.path().join("config.json"), r#"{"scaling_factor":0.5}"#).unwrap();
        for path in [dir.path(), &file] {
            let checkpoint = Checkpoint::open(path).unwrap();
            assert_eq!(checkpoint.layout, Layout::Component);
            let config = checkpoint.config(Component::Vae).unwrap();
            assert_eq!(config.f64("scaling_factor").unwrap(), Some(0.5));
        }
    }

    #[test]
    fn two_halves_are_one_tiny_autoencoder() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, names: &[&str]| fs::write(dir.path().join(name), named(names));
        write("taesd_encoder.safetensors", &["0.weight", "3.conv.0.weight"]).unwrap();
        write("taesd_decoder.safetensors", &["1.weight", "3.conv.0.weight"]).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let taesd = checkpoint.component(Component::Taesd).unwrap();
        let expected = [
            "decoder.layers.0.weight",
            "decoder.layers.2.conv.0.weight",
            "encoder.layers.0.weight",
            "encoder.layers.3.conv.0.weight",
        ];
        assert_eq!(taesd.names().collect::<Vec<_>>(), expected);
        assert_eq!(taesd.path(), dir.path());
    }

    #[test]
    fn the_vocabulary_may_lie_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model.safetensors");
        fs::write(&file, named(&["decoder.conv_in.bias"])).unwrap();
        assert!(Checkpoint::open(&file).unwrap().tokenizer().unwrap().is_none());
        let folder = dir.path().join("tokenizer");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("vocab.json"), "{}").unwrap();
        fs::write(folder.join("merges.txt"), "").unwrap();
        assert!(Checkpoint::open(&file).unwrap().tokenizer().unwrap().is_some());
    }
}
