//! What a model consists of, from its headers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::checkpoint::{Checkpoint, Layout};
use super::names::{Component, Naming};
use super::tensors::Tensors;

/// Metadata longer than this (a vocabulary, a configuration) is left out.
const METADATA_LIMIT_BYTES: usize = 256;

/// What a model consists of. Which family it is of is told by the networks, not here.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file or folder.
    pub path: PathBuf,
    /// How its parts are arranged.
    pub layout: Layout,
    /// Its networks.
    pub components: Vec<ComponentInspection>,
    /// Its licence, if stated.
    pub licence: Option<String>,
    /// The short ones of its metadata.
    pub metadata: BTreeMap<String, String>,
    /// Whether it brings its own vocabulary.
    pub has_tokenizer: bool,
    /// Whether it brings the parameters of its noise schedule.
    pub has_scheduler_config: bool,
    /// Parts that a model needs, but that are not there.
    pub missing: Vec<String>,
    /// Parts of a folder that nothing here uses.
    pub other_parts: Vec<String>,
    /// Tensors that no network here has.
    pub unknown: Vec<String>,
    /// How many tensors are known to be of no use.
    pub ignored: usize,
}

/// One network of an [`Inspection`].
#[derive(Clone, Debug, Serialize)]
pub struct ComponentInspection {
    /// Which one.
    pub component: Component,
    /// Whose names its tensors have in the file.
    pub naming: Naming,
    /// How many tensors it has, in internal form.
    pub tensors: usize,
    /// How many numbers those hold.
    pub parameters: u64,
    /// Bytes of them in the file.
    pub bytes: u64,
    /// How many tensors there are of each type, by the file's names for types.
    pub dtypes: BTreeMap<&'static str, usize>,
    /// Whether the model brings its configuration.
    pub has_config: bool,
}

impl Inspection {
    /// Looks at an open checkpoint. A vocabulary that can't be read counts as none.
    pub fn of(checkpoint: &Checkpoint) -> Inspection {
        let components = checkpoint.components().map(|(component, tensors)| {
            let has_config = checkpoint.config(component).is_some();
            ComponentInspection::of(component, tensors, has_config)
        });
        let is_short = |text: &str| text.len() <= METADATA_LIMIT_BYTES;
        let metadata = checkpoint.metadata.iter().filter(|(_, text)| is_short(text));
        Inspection {
            path: checkpoint.path.clone(),
            layout: checkpoint.layout,
            components: components.collect(),
            licence: checkpoint.licence.clone(),
            metadata: metadata.map(|(key, text)| (key.clone(), text.clone())).collect(),
            has_tokenizer: matches!(checkpoint.tokenizer(), Ok(Some(_))),
            has_scheduler_config: checkpoint.scheduler_config().is_some(),
            missing: checkpoint.missing.clone(),
            other_parts: checkpoint.other_parts.clone(),
            unknown: checkpoint.unknown.clone(),
            ignored: checkpoint.ignored.len(),
        }
    }
}

impl ComponentInspection {
    fn of(component: Component, tensors: &Tensors, has_config: bool) -> ComponentInspection {
        let mut dtypes = BTreeMap::new();
        for entry in tensors.entries() {
            *dtypes.entry(entry.dtype().name()).or_default() += 1;
        }
        ComponentInspection {
            component,
            naming: tensors.naming(),
            tensors: tensors.entries().len(),
            parameters: tensors.entries().iter().map(|entry| entry.elements() as u64).sum(),
            bytes: tensors.bytes(),
            dtypes,
            has_config,
        }
    }
}
