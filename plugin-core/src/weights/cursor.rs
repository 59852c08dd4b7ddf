//! The cursor with which a network asks for its tensors.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::tensors::{Entry, Tensors};
use crate::{Error, Result};

/// A place in the tree of a network's tensor names. Cheap to clone.
///
/// `w.at("down_blocks").at(0)` steps down as `cd` does; what is asked for there is relative.
/// All cursors from one root remember together which tensors were taken.
#[derive(Clone, Debug)]
pub struct Weights {
    tensors: Tensors,
    prefix: String,
    used: Arc<[AtomicBool]>,
}

impl Weights {
    /// The top of the tree, with nothing taken yet.
    pub fn root(tensors: &Tensors) -> Weights {
        let used = tensors.entries().iter().map(|_| AtomicBool::new(false)).collect();
        Weights { tensors: tensors.clone(), prefix: String::new(), used }
    }

    /// One or more steps down: a name, an index, or several joined by dots.
    pub fn at(&self, segment: impl Display) -> Weights {
        Weights { prefix: self.full(segment), ..self.clone() }
    }

    /// The internal name of this place.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The file or folder, for messages.
    pub fn path(&self) -> &Path {
        self.tensors.path()
    }

    /// All tensors of the tree, wherever the cursor stands.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Whether there is a tensor of this name.
    pub fn exists(&self, name: &str) -> bool {
        self.tensors.get(&self.full(name)).is_some()
    }

    /// Whether there is a tensor of this name or any below it.
    pub fn has(&self, prefix: impl Display) -> bool {
        let full = self.full(prefix);
        self.tensors.get(&full).is_some() || self.tensors.any_starts_with(&format!("{full}."))
    }

    /// How many of `prefix.0`, `prefix.1`, … follow each other without a gap.
    pub fn count(&self, prefix: &str) -> usize {
        let place = self.at(prefix);
        (0..).take_while(|index| place.has(index)).count()
    }

    /// The shape of a tensor that must be there. It does not count as taken.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        let full = self.full(name);
        match self.tensors.get(&full) {
            Some(entry) => Ok(entry.shape()),
            None => Err(self.missing(&full, &[])),
        }
    }

    /// What the file calls the tensor `name` here.
    pub fn file_name(&self, name: &str) -> String {
        let full = self.full(name);
        let found = self.tensors.get(&full).map(|entry| entry.file_name().to_owned());
        found.unwrap_or_else(|| self.tensors.file_name_of(&full))
    }

    /// Takes a tensor that must be there and have this shape.
    pub fn entry(&self, name: &str, expected: &[usize]) -> Result<&Entry> {
        let full = self.full(name);
        let Some(index) = self.tensors.index_of(&full) else {
            return Err(self.missing(&full, expected));
        };
        let entry = &self.tensors.entries()[index];
        if entry.shape() != expected {
            return Err(Error::WrongShape {
                path: entry.path().to_owned(),
                name: entry.file_name().to_owned(),
                expected: expected.to_vec(),
                found: entry.shape().to_vec(),
            });
        }
        self.used[index].store(true, Ordering::Relaxed);
        Ok(entry)
    }

    /// The tensors below this place that nobody has taken, by the names that the file has.
    pub fn unused(&self) -> Vec<String> {
        let prefix = match self.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}."),
        };
        self.tensors
            .starting_with(&prefix)
            .filter(|&index| !self.used[index].load(Ordering::Relaxed))
            .map(|index| self.tensors.entries()[index].file_name().to_owned())
            .collect()
    }

    /// The internal name of what is called `name` here; this place's own for an empty one.
    fn full(&self, name: impl Display) -> String {
        let name = name.to_string();
        match (self.prefix.as_str(), name.as_str()) {
            ("", _) => name,
            (prefix, "") => prefix.to_owned(),
            (prefix, name) => format!("{prefix}.{name}"),
        }
    }

    fn missing(&self, full: &str, expected: &[usize]) -> Error {
        Error::MissingTensor {
            path: self.path().to_owned(),
            name: self.tensors.file_name_of(full),
            expected: expected.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Checkpoint;
    use super::super::names::Component;
    use super::super::safetensors::tests::tensors_file;
    use super::*;

    fn checkpoint(tensors: &[(&str, &str, &[usize], &[u8])]) -> Checkpoint {
        Checkpoint::from_shared_bytes("m", Arc::from(tensors_file(tensors))).unwrap()
    }

    fn original() -> Weights {
        let checkpoint = checkpoint(&[
            ("model.diffusion_model.input_blocks.0.0.weight", "U8", &[2, 1], &[0; 2]),
            ("model.diffusion_model.input_blocks.1.0.in_layers.2.weight", "U8", &[3], &[0; 3]),
            ("model.diffusion_model.input_blocks.2.0.in_layers.2.weight", "U8", &[3], &[0; 3]),
            ("model.diffusion_model.input_blocks.10.0.in_layers.2.bias", "U8", &[1], &[0; 1]),
        ]);
        Weights::root(checkpoint.component(Component::Unet).unwrap())
    }

    #[test]
    fn the_cursor_steps_and_counts() {
        let w = original();
        let block = w.at("down_blocks").at(0);
        assert_eq!(block.prefix(), "down_blocks.0");
        assert_eq!(block.count("resnets"), 2, "a gap ends the count");
        assert!(block.has("resnets") && block.has("resnets.9") && !block.has("attentions"));
        assert!(!w.has("down") && w.has("down_blocks.0.resnets.1.conv1.weight"));
        assert!(w.exists("conv_in.weight") && !w.exists("conv_in"));
        assert!(block.at("resnets.0.conv1").exists("weight"));
        assert_eq!(w.at("conv_in").shape("weight").unwrap(), [2, 1]);
        assert_eq!(w.at("down_blocks.0.resnets").count(""), 2);
    }

    #[test]
    fn errors_speak_the_file_s_language() {
        let w = original();
        let error = w.at("conv_in").entry("weight", &[2, 2]).unwrap_err().to_string();
        let name = "model.diffusion_model.input_blocks.0.0.weight";
        let sizes = "expected [2, 2], found [2, 1]";
        assert_eq!(error, format!("m: tensor {name} has the wrong shape, {sizes}"));
        let error = w.at("down_blocks.0.resnets.1.norm1").entry("bias", &[3]).unwrap_err();
        let name = "model.diffusion_model.input_blocks.2.0.in_layers.0.bias";
        assert_eq!(error.to_string(), format!("m: tensor {name} is missing, expected shape [3]"));
        let error = w.shape("other.weight").unwrap_err();
        assert!(matches!(error, Error::MissingTensor { name, .. } if name == "other.weight"));
    }

    #[test]
    fn what_nobody_takes_is_told() {
        let w = original();
        assert_eq!(w.unused().len(), 4);
        w.at("conv_in").entry("weight", &[2, 1]).unwrap();
        w.at("down_blocks.0.resnets.0.conv1").entry("weight", &[3]).unwrap();
        assert!(w.at("down_blocks.0.resnets.1.conv1").entry("weight", &[4]).is_err());
        let left = [
            "model.diffusion_model.input_blocks.2.0.in_layers.2.weight",
            "model.diffusion_model.input_blocks.10.0.in_layers.2.bias",
        ];
        assert_eq!(w.unused(), left);
        assert_eq!(w.at("down_blocks.0.resnets.1").unused(), left[..1]);
        assert!(w.at("conv_in").unused().is_empty());
    }

    #[test]
    fn names_are_told_as_the_file_spells_them() {
        let conv = original().at("conv_in");
        assert_eq!(conv.file_name("weight"), "model.diffusion_model.input_blocks.0.0.weight");
        assert_eq!(conv.file_name("bias"), "model.diffusion_model.input_blocks.0.0.bias");
    }
}
