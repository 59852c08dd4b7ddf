//! The model inside the program, and the opening of any other.

use std::path::Path;

use scumble_core::weights::Checkpoint;
use scumble_core::{Error, Result};

/// What `--model` calls it.
pub(crate) const NAME: &str = "builtin";

#[cfg(feature = "builtin")]
static BYTES: &[u8] = include_bytes!("../../model/builtin.safetensors");

/// Opens the model that `--model` names.
pub(crate) fn open(model: &Path) -> Result<Checkpoint> {
    if model == Path::new(NAME) { open_builtin() } else { Checkpoint::open(model) }
}

#[cfg(feature = "builtin")]
fn open_builtin() -> Result<Checkpoint> {
    Checkpoint::from_bytes(NAME, BYTES)
}

#[cfg(not(feature = "builtin"))]
fn open_builtin() -> Result<Checkpoint> {
    Err(Error::invalid("model", "this build has no built-in model; name a file or a folder"))
}

/// What a model asks for when a request doesn't say: the `defaults` entry of its metadata.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Defaults {
    pub(crate) width: Option<usize>,
    pub(crate) height: Option<usize>,
    pub(crate) steps: Option<usize>,
    pub(crate) cfg: Option<f32>,
    pub(crate) negative: Option<String>,
}

impl Defaults {
    /// Reads them; a file without the entry has none.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let Some(text) = checkpoint.metadata.get("defaults") else { return Ok(Self::default()) };
        serde_json::from_str(text).map_err(|error| Error::format(&checkpoint.path, format!("defaults: {error}")))
    }
}
