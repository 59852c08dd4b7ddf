//! Numbers from inside a run, as safetensors files, for comparing it with another program's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use scumble_core::image::{FloatImage, write_atomically};
use scumble_core::memory::Budget;
use scumble_core::pipeline::Trace;
use scumble_core::{Error, Result};

/// A tensor in memory: sizes and little-endian F32 values.
type Tensor = (Vec<usize>, Vec<u8>);

/// What `--dump` writes, gathered until the run has succeeded.
pub(crate) struct Dump {
    folder: PathBuf,
    text: BTreeMap<String, Tensor>,
    noise: BTreeMap<String, Tensor>,
    latents: BTreeMap<String, Tensor>,
}

impl Dump {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, text: BTreeMap::new(), noise: BTreeMap::new(), latents: BTreeMap::new() }
    }

    pub(crate) fn take(&mut self, trace: Trace<'_>) {
        match trace {
            Trace::Text { width, positive, negative } => {
                for (name, values) in [("positive", positive), ("negative", negative)] {
                    self.text.insert(name.into(), tensor(&[1, values.len() / width, width], values));
                }
            }
            Trace::Noise { shape, values } => {
                self.noise.insert("noise".into(), tensor(&shape, values));
            }
            Trace::Latents { step, shape, values } => {
                self.latents.insert(format!("step_{step:03}"), tensor(&shape, values));
            }
        }
    }

    /// Writes `text`, `noise`, `latents` and `image`, each a file of its own.
    pub(crate) fn write(mut self, pictures: &[FloatImage]) -> Result<()> {
        std::fs::create_dir_all(&self.folder).map_err(|error| Error::io(&self.folder, error))?;
        if let Some(first) = pictures.first() {
            let values: Vec<f32> = pictures.iter().flat_map(|picture| picture.data()).copied().collect();
            let shape = [pictures.len(), 3, first.height() as usize, first.width() as usize];
            let image = BTreeMap::from([("image".to_owned(), tensor(&shape, &values))]);
            write(&self.folder.join("image.safetensors"), image)?;
        }
        write(&self.folder.join("text.safetensors"), std::mem::take(&mut self.text))?;
        write(&self.folder.join("noise.safetensors"), std::mem::take(&mut self.noise))?;
        write(&self.folder.join("latents.safetensors"), self.latents)
    }
}

/// Starting noise from a file.
pub(crate) struct GivenNoise {
    /// `[N, C, h, w]`.
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// More than the latents of the largest request have.
const NOISE_LIMIT_BYTES: u64 = 4 << 30;

/// Reads `noise`, `[N, C, h, w]` F32, from a safetensors file.
pub(crate) fn read_noise(path: &Path) -> Result<GivenNoise> {
    let io = |error| Error::io(path, error);
    let bad = |reason: String| Error::format(path, reason);
    let found = std::fs::metadata(path).map_err(io)?;
    if !found.is_file() {
        return Err(bad("this is not a regular file".into()));
    }
    if found.len() > NOISE_LIMIT_BYTES {
        return Err(bad(format!("{} bytes where at most {NOISE_LIMIT_BYTES} are read", found.len())));
    }
    // The bytes and the values are in memory together.
    Budget::of_host().check("the noise", 2 * found.len())?;
    let bytes = std::fs::read(path).map_err(io)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| bad(format!("no safetensors file: {error}")))?;
    let noise = tensors.tensor("noise").map_err(|_| bad("there is no tensor called noise".into()))?;
    if noise.dtype() != Dtype::F32 {
        return Err(bad(format!("tensor noise is {:?} where F32 is needed", noise.dtype())));
    }
    let values = noise.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect::<Vec<_>>();
    if values.iter().any(|value| !value.is_finite()) {
        return Err(bad("tensor noise has values that are not finite".into()));
    }
    Ok(GivenNoise { shape: noise.shape().to_vec(), values })
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    (shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn write(path: &Path, tensors: BTreeMap<String, Tensor>) -> Result<()> {
    let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(internal)?)))
        .collect::<Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None).map_err(internal)?;
    write_atomically(path, |out| out.write_all(&bytes).map_err(|error| Error::io(path, error)))
}
