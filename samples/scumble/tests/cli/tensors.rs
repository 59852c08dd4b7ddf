//! Safetensors files taken apart and put together, also so that they are wrong.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A file that can be changed: its metadata and its tensors.
pub(crate) struct Edited {
    pub(crate) metadata: Value,
    pub(crate) tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

impl Edited {
    pub(crate) fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (header, data) = split(&bytes);
        let mut members: Map<String, Value> = serde_json::from_slice(header).unwrap();
        let metadata = members.remove("__metadata__").unwrap_or_default();
        let tensor = |(name, member): (String, Value)| {
            let [begin, end] = [0, 1].map(|i| member["data_offsets"][i].as_u64().unwrap() as usize);
            Tensor {
                name,
                dtype: member["dtype"].as_str().unwrap().into(),
                shape: serde_json::from_value(member["shape"].clone()).unwrap(),
                data: data[begin..end].to_vec(),
            }
        };
        Self { metadata, tensors: members.into_iter().map(tensor).collect() }
    }

    /// The tensor of this name.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len(), before - 1, "no tensor {name}");
    }

    pub(crate) fn add(&mut self, name: &str, shape: &[usize]) {
        let data = vec![0; 2 * shape.iter().product::<usize>()];
        self.tensors.push(Tensor { name: name.into(), dtype: "F16".into(), shape: shape.into(), data });
    }

    /// Makes the named tensor a large one of zeros that take no room on the disk, and saves.
    pub(crate) fn save_with_hole(&mut self, path: &Path, name: &str, shape: &[usize]) {
        let at = self.tensors.iter().position(|tensor| tensor.name == name).unwrap();
        let mut hole = self.tensors.remove(at);
        let bytes = hole.data.len() / hole.shape.iter().product::<usize>() * shape.iter().product::<usize>();
        hole.shape = shape.into();
        hole.data.clear();
        // Last in the file, so that the file only has to be made longer.
        self.tensors.push(hole);
        self.write(path, bytes);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() + bytes as u64).unwrap();
    }

    pub(crate) fn save(&self, path: &Path) {
        self.write(path, 0);
    }

    /// `hole` is what the last tensor has more than its data.
    fn write(&self, path: &Path, hole: usize) {
        let (mut members, mut data) = (Map::new(), Vec::new());
        if !self.metadata.is_null() {
            members.insert("__metadata__".into(), self.metadata.clone());
        }
        for (i, tensor) in self.tensors.iter().enumerate() {
            let begin = data.len();
            data.extend_from_slice(&tensor.data);
            let end = data.len() + if i + 1 == self.tensors.len() { hole } else { 0 };
            let member = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end] });
            members.insert(tensor.name.clone(), member);
        }
        std::fs::write(path, file(&Value::from(members).to_string(), &data)).unwrap();
    }
}

/// A file's header and what follows it.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8..].split_at(length)
}

/// A file of a header, right or wrong, and data.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Names, types and shapes, read with the format's own library.
pub(crate) fn contents(path: &Path) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut found: Vec<_> = tensors
        .iter()
        .map(|(name, view)| {
            assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
            let values = view.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            (name.to_owned(), view.shape().to_vec(), values.collect())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
