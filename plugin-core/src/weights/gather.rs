//! From a model's files, one after the other, to a checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{Checkpoint, Layout};
use super::json::{Config, shown};
use super::names::{self, Component, Group};
use super::safetensors::{self, Header, TensorInfo};
use super::source::Source;
use super::tensors::Tensors;
use super::{folder, index};
use crate::{Error, Result};

/// Without these there is no picture from a text.
const NEEDED: [Component; 3] = [Component::Unet, Component::Vae, Component::TextEncoder];

/// What is gathered from a model's files, one after the other.
#[derive(Default)]
pub(super) struct Parts {
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
    pub(super) groups: BTreeMap<Component, Vec<Group>>,
    paths: BTreeMap<Component, PathBuf>,
    pub(super) configs: BTreeMap<Component, Config>,
    pub(super) scheduler_config: Option<Config>,
    ignored: Vec<String>,
    unknown: Vec<String>,
}

impl Parts {
    /// Adds a safetensors file or an index, all of `expected` if that is given.
    pub(super) fn add_file(&mut self, path: &Path, expected: Option<Component>) -> Result<()> {
        let source = Source::open(path)?;
        if is_json(&source) {
            let (tensors, metadata) = index::open(path)?;
            return self.add(path, tensors, metadata, expected);
        }
        self.add_source(source, expected)
    }

    pub(super) fn add_source(&mut self, source: Source, expected: Option<Component>) -> Result<()> {
        refuse_other_kinds(&source)?;
        let path = source.path().to_owned();
        let header = Header::read(&Arc::new(source))?;
        self.add(&path, header.tensors, header.metadata, expected)
    }

    fn add(
        &mut self,
        path: &Path,
        tensors: Vec<TensorInfo>,
        metadata: BTreeMap<String, String>,
        expected: Option<Component>,
    ) -> Result<()> {
        let division = names::divide(path, &tensors, expected)?;
        let base = self.tensors.len();
        self.ignored.extend(division.ignored);
        self.unknown.extend(division.unknown);
        for mut group in division.groups {
            self.unknown.extend_from_slice(&group.unknown);
            for (index, ..) in &mut group.members {
                *index += base;
            }
            let paths = self.paths.entry(group.component);
            // Two halves in two files: the folder speaks for both.
            paths
                .and_modify(|first| {
                    if first != path {
                        first.pop();
                    }
                })
                .or_insert_with(|| path.to_owned());
            self.groups.entry(group.component).or_default().push(group);
        }
        self.tensors.extend(tensors);
        self.metadata.extend(metadata);
        Ok(())
    }

    /// A file that is called as diffusers would call it has its `config.json` beside it.
    pub(super) fn add_config_beside(&mut self, file: &Path) -> Result<()> {
        let mut components = self.groups.keys();
        if let (Some(&component), None) = (components.next(), components.next())
            && folder::is_named_by_diffusers(file)
            && let Some(config) = Config::read_if_exists(&file.with_file_name("config.json"))?
        {
            self.configs.insert(component, config);
        }
        Ok(())
    }

    pub(super) fn finish(mut self, path: &Path, layout: Option<Layout>) -> Result<Checkpoint> {
        for component in Component::ALL {
            if let Some(text) = self.metadata.get(&format!("{}.config", component.name())) {
                self.configs.insert(component, Config::parse(path, text)?);
            }
        }
        if let Some(text) = self.metadata.get("scheduler.config") {
            self.scheduler_config = Some(Config::parse(path, text)?);
        }
        let layout = layout.unwrap_or_else(|| self.layout());
        let mut components = BTreeMap::new();
        for (component, groups) in self.groups {
            let tensors = Tensors::new(&self.paths[&component], &self.tensors, groups)?;
            components.insert(component, tensors);
        }
        let has = |component: &Component| components.contains_key(component);
        let missing = match layout {
            Layout::Component => Vec::new(),
            _ => NEEDED.iter().filter(|part| !has(part)).map(|part| part.name().into()).collect(),
        };
        let stated = ["license", "licence", "modelspec.license"];
        let licence = stated.iter().find_map(|key| self.metadata.get(*key)).map(|text| shown(text));
        Ok(Checkpoint {
            path: path.to_owned(),
            layout,
            licence,
            metadata: self.metadata,
            ignored: self.ignored,
            unknown: self.unknown,
            missing,
            other_parts: Vec::new(),
            components,
            configs: self.configs,
            scheduler_config: self.scheduler_config,
            tokenizer_folders: Vec::new(),
        })
    }

    fn layout(&self) -> Layout {
        let is_marked = self.metadata.get("format").is_some_and(|format| format == "scumble-bundle");
        if is_marked || self.groups.values().flatten().any(Group::is_of_bundle) {
            Layout::Bundle
        } else if self.groups.len() == 1 {
            Layout::Component
        } else {
            Layout::Original
        }
    }
}

/// Whether a file is text that begins with an object. A safetensors file may begin with the
/// same byte, but has zeros in its first eight.
fn is_json(source: &Source) -> bool {
    let mut start = [0; 8];
    let len = source.len_bytes().min(8) as usize;
    source.read_exact_at(0, &mut start[..len]).is_ok()
        && start[..len].trim_ascii_start().first() == Some(&b'{')
        && !start[..len].contains(&0)
}

/// Tells files of other kinds by their first bytes, since their names say little.
fn refuse_other_kinds(source: &Source) -> Result<()> {
    let mut start = [0; 16];
    let len = source.len_bytes().min(16) as usize;
    source.read_exact_at(0, &mut start[..len]).map_err(|e| Error::io(source.path(), e))?;
    if safetensors::looks_like_safetensors(source) {
        return Ok(());
    }
    let what = match &start {
        [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, 1..=255, ..] => {
            return Err(folder::pickle_error(source.path()));
        }
        [b'G', b'G', b'U', b'F', ..] => "a GGUF file",
        [b'v', b'e', b'r', b's', b'i', b'o', b'n', b' ', ..] => "a Git LFS pointer, not the file that it stands for",
        [b'<', ..] => "a web page",
        [0x89, b'P', b'N', b'G', ..] => "a PNG picture",
        _ => return Ok(()),
    };
    let reason = format!("this is {what}; only safetensors is read");
    Err(Error::unsupported(source.path(), reason))
}
