//! One network's tensors by their internal names, and how their values are read.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::convert::{self, Refusal, Target};
use super::dtype::Dtype;
use super::names::{Group, Naming, Part};
use super::safetensors::TensorInfo;
use super::source::Source;
use crate::{Error, Result};

/// As much as is read, or handed on, at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The tensors of one network. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tensors {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// Sorted by name, so that everything below a prefix is one range.
    entries: Vec<Entry>,
    /// What they were gathered from. How the file spells what is not in it: the first that can,
    /// does.
    groups: Vec<Group>,
}

impl Tensors {
    /// Gathers what `groups` map, from tensors of `path`.
    pub(super) fn new(path: &Path, tensors: &[TensorInfo], groups: Vec<Group>) -> Result<Tensors> {
        let mut by_name: BTreeMap<String, Entry> = BTreeMap::new();
        for group in &groups {
            for (index, internal, part) in &group.members {
                let entry = Entry::new(&tensors[*index], internal, *part)?;
                if let Some(other) = by_name.insert(internal.clone(), entry) {
                    let again = &tensors[*index].name;
                    let reason = format!("tensors {} and {again} both mean {internal}", other.file_name);
                    return Err(Error::format(path, reason));
                }
            }
        }
        let entries = by_name.into_values().collect();
        Ok(Tensors { inner: Arc::new(Inner { path: path.to_owned(), entries, groups }) })
    }

    /// The file or folder they come from.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whose names the file uses. What it tells beyond the names: the original release of SD 2
    /// stores the text encoder's last layer, which it does not use ([`Naming::OpenClip`]), and
    /// diffusers leaves that layer out.
    pub fn naming(&self) -> Naming {
        self.inner.groups.first().map_or(Naming::Diffusers, Group::naming)
    }

    /// The tensor of this internal name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.index_of(name).map(|index| &self.entries()[index])
    }

    /// All tensors, sorted by internal name.
    pub fn entries(&self) -> &[Entry] {
        &self.inner.entries
    }

    /// All internal names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries().iter().map(Entry::name)
    }

    /// Names in the file that lie among this network's but are none that it can have, as far as
    /// is known here: a part of a network of another family.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.inner.groups.iter().flat_map(|group| &group.unknown).map(String::as_str)
    }

    /// Bytes of all of them in the file.
    pub fn bytes(&self) -> u64 {
        self.entries().iter().map(|entry| entry.bytes).sum()
    }

    pub(super) fn index_of(&self, name: &str) -> Option<usize> {
        self.entries().binary_search_by(|entry| entry.name.as_str().cmp(name)).ok()
    }

    /// The tensors whose names begin with these bytes.
    pub(super) fn starting_with(&self, prefix: &str) -> Range<usize> {
        let start = self.entries().partition_point(|entry| entry.name.as_str() < prefix);
        let below = self.entries()[start..].iter().take_while(|entry| entry.name.starts_with(prefix)).count();
        start..start + below
    }

    /// Whether the name of any tensor begins with these bytes.
    pub(super) fn any_starts_with(&self, prefix: &str) -> bool {
        let start = self.entries().partition_point(|entry| entry.name.as_str() < prefix);
        self.entries().get(start).is_some_and(|entry| entry.name.starts_with(prefix))
    }

    /// How the file would spell the name of a tensor that it lacks; the internal name where
    /// that is not known.
    pub fn file_name_of(&self, internal: &str) -> String {
        let spelled = self.inner.groups.iter().find_map(|group| group.file_name(internal));
        spelled.unwrap_or_else(|| internal.to_owned())
    }
}

/// One tensor of a network: a tensor of the file, or a part of one.
#[derive(Clone, Debug)]
pub struct Entry {
    name: String,
    file_name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    offset: u64,
    bytes: u64,
    /// The file holds `[columns, rows]` of what is `[rows, columns]` here.
    transposed: bool,
    source: Arc<Source>,
}

/// What a reader may ask and tell while it reads.
pub struct ReadControl<'a> {
    /// Asked before each chunk; once it says true, reading ends with [`Error::Cancelled`].
    pub cancel: &'a dyn Fn() -> bool,
    /// Told after each chunk how many bytes of the file that was.
    pub progress: &'a mut dyn FnMut(u64),
}

impl Entry {
    fn new(info: &TensorInfo, internal: &str, part: Part) -> Result<Entry> {
        let mut entry = Entry {
            name: internal.to_owned(),
            file_name: info.name.clone(),
            shape: info.shape.clone(),
            dtype: info.dtype,
            offset: info.offset,
            bytes: info.bytes,
            transposed: false,
            source: Arc::clone(&info.source),
        };
        match (part, info.shape.as_slice()) {
            (Part::Rows { index, of }, [rows, ..]) if rows % of == 0 => {
                entry.shape[0] = rows / of;
                entry.bytes = info.bytes / of as u64;
                entry.offset = info.offset + index as u64 * entry.bytes;
            }
            (Part::Rows { of, .. }, shape) => {
                let reason =
                    format!("tensor {} has the shape {shape:?}, which can't be cut into {of} equal parts", info.name);
                return Err(Error::format(info.source.path(), reason));
            }
            (Part::Linear, [_, _, rest @ ..]) if rest.iter().all(|&size| size == 1) => {
                entry.shape.truncate(2);
            }
            (Part::Transposed, [_, _]) => {
                entry.shape.reverse();
                entry.transposed = true;
            }
            (Part::Whole | Part::Linear | Part::Transposed, _) => {}
        }
        Ok(entry)
    }

    /// Its internal name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the file's tensor that it is, or is a part of.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The file that holds it.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// Its shape in internal form, slowest dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How the file stores its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type to read it as when nothing else is asked for: F16 and F8 give F16, which holds
    /// them exactly, everything else F32.
    pub fn natural(&self) -> Target {
        Target::natural(self.dtype)
    }

    /// As [`Entry::natural`], for the weights of maps: BF16 gives BF16.
    pub fn natural_of_map(&self) -> Target {
        Target::of_map(self.dtype)
    }

    /// Reads all elements in their order as `target`, and hands them to `sink` in pieces of at
    /// most 1 MiB, little-endian, each with its byte offset among the target's bytes.
    pub fn read(
        &self,
        target: Target,
        control: &mut ReadControl<'_>,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check_unchanged()?;
        if self.transposed {
            return self.read_transposed(target, control, sink);
        }
        let mut written = 0;
        self.read_chunks(control, target, &mut |converted| {
            sink(written, converted)?;
            written += converted.len() as u64;
            Ok(())
        })
    }

    /// All elements as F32.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let mut control = ReadControl { cancel: &|| false, progress: &mut |_| {} };
        self.read(Target::F32, &mut control, &mut |_, bytes| {
            let (singles, _) = bytes.as_chunks::<4>();
            values.extend(singles.iter().map(|&single| f32::from_le_bytes(single)));
            Ok(())
        })?;
        Ok(values)
    }

    fn read_chunks(
        &self,
        control: &mut ReadControl<'_>,
        target: Target,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let element_bytes = self.dtype.size_bytes();
        let chunk_bytes = CHUNK_BYTES / element_bytes.max(target.size_bytes()) * element_bytes;
        let mut input = vec![0; chunk_bytes.min(self.bytes as usize)];
        let mut output = Vec::new();
        let mut done = 0;
        while done < self.bytes {
            if (control.cancel)() {
                return Err(Error::Cancelled);
            }
            let left = usize::try_from(self.bytes - done).unwrap_or(usize::MAX);
            let piece = &mut input[..chunk_bytes.min(left)];
            self.source.read_exact_at(self.offset + done, piece).map_err(|e| self.read_error(e))?;
            if convert::is_the_same(self.dtype, target) {
                sink(piece)?;
            } else {
                convert::convert(self.dtype, target, piece, &mut output).map_err(|refusal| self.refusal(refusal))?;
                sink(&output)?;
            }
            done += piece.len() as u64;
            (control.progress)(piece.len() as u64);
        }
        Ok(())
    }

    /// Only text projections are stored so: a few megabytes, kept whole.
    fn read_transposed(
        &self,
        target: Target,
        control: &mut ReadControl<'_>,
        sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut stored = Vec::new();
        self.read_chunks(control, target, &mut |converted| {
            stored.extend_from_slice(converted);
            Ok(())
        })?;
        let (rows, columns, size) = (self.shape[0], self.shape[1], target.size_bytes());
        let mut row_bytes = Vec::with_capacity(columns * size);
        for row in 0..rows {
            row_bytes.clear();
            for column in 0..columns {
                let at = (column * rows + row) * size;
                row_bytes.extend_from_slice(&stored[at..at + size]);
            }
            let start = (row * columns * size) as u64;
            for (piece, bytes) in row_bytes.chunks(CHUNK_BYTES).enumerate() {
                sink(start + (piece * CHUNK_BYTES) as u64, bytes)?;
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        let (opened, now) = (self.source.len_bytes(), self.source.len_bytes_now()?);
        if opened == now {
            return Ok(());
        }
        let reason = format!(
            "the file changed while it was in use, tensor {} can't be read: it had {opened} bytes \
             and has {now} now",
            self.file_name
        );
        Err(Error::format(self.path(), reason))
    }

    fn read_error(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let reason = format!("the file ended while tensor {} was read", self.file_name);
                Error::format(self.path(), reason)
            }
            _ => Error::io(self.path(), error),
        }
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        let reason = match refusal {
            Refusal::NotIntegers => {
                format!("tensor {} holds {}, expected integers", self.file_name, self.dtype)
            }
            Refusal::TooLarge(value) => {
                format!("tensor {} holds {value}, which needs more than 32 bits", self.file_name)
            }
        };
        Error::format(self.path(), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::{Component, divide};
    use super::super::safetensors::Header;
    use super::super::safetensors::tests::tensors_file;
    use super::*;

    fn tensors(source: Source, expected: Component) -> Result<Tensors> {
        let path = source.path().to_owned();
        let header = Header::read(&Arc::new(source))?;
        let division = divide(&path, &header.tensors, Some(expected))?;
        Tensors::new(&path, &header.tensors, division.groups)
    }

    fn singles(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
        values.into_iter().flat_map(|value| f32::from(value).to_le_bytes()).collect()
    }

    fn read(entry: &Entry) -> Vec<f32> {
        entry.to_f32().unwrap()
    }

    fn text_encoder(file: &[u8]) -> Result<Tensors> {
        tensors(Source::from_shared("m", Arc::from(file)), Component::TextEncoder)
    }

    #[test]
    fn open_clip_tensors_are_cut_and_turned() {
        let fused = "transformer.resblocks.0.attn.in_proj_weight";
        let file = tensors_file(&[
            (fused, "F32", &[6, 2], &singles(0..12)),
            ("text_projection", "F32", &[2, 3], &singles(0..6)),
        ]);
        let tensors = text_encoder(&file).unwrap();
        let layer = "text_model.encoder.layers.0.self_attn";
        for (part, values) in [("q", [0.0, 1.0, 2.0, 3.0]), ("k", [4.0, 5.0, 6.0, 7.0]), ("v", [8.0, 9.0, 10.0, 11.0])]
        {
            let entry = tensors.get(&format!("{layer}.{part}_proj.weight")).unwrap();
            assert_eq!((entry.shape(), entry.file_name()), (&[2, 2][..], fused));
            assert_eq!(read(entry), values);
        }
        let projection = tensors.get("text_projection.weight").unwrap();
        assert_eq!(projection.shape(), [3, 2]);
        assert_eq!(read(projection), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(tensors.naming(), Naming::OpenClip);
        assert_eq!(tensors.bytes(), 72);
    }

    #[test]
    fn what_can_not_be_cut_is_an_error() {
        let fused = "transformer.resblocks.0.attn.in_proj_bias";
        let error = text_encoder(&tensors_file(&[(fused, "F32", &[4], &[0; 16])])).unwrap_err();
        let reason = "has the shape [4], which can't be cut into 3 equal parts";
        assert_eq!(error.to_string(), format!("m: tensor {fused} {reason}"));
    }

    #[test]
    fn two_spellings_of_one_tensor_are_an_error() {
        let (old, new) = ("encoder.norm_out.bias", "encoder.conv_norm_out.bias");
        let down = "encoder.down.0.block.0.conv1.bias";
        let file = tensors_file(&[(old, "U8", &[1], &[0]), (new, "U8", &[1], &[0]), (down, "U8", &[0], &[])]);
        let source = Source::from_shared("m", Arc::from(file));
        let error = tensors(source, Component::Vae).unwrap_err().to_string();
        assert_eq!(error, format!("m: tensors {old} and {new} both mean {new}"));
    }

    #[test]
    fn large_tensors_come_in_pieces_and_can_be_cancelled() {
        let count = 1 << 20;
        let bytes: Vec<u8> = (0..count).map(|index| index as u8).collect();
        let file = tensors_file(&[("embeddings.token_embedding.weight", "U8", &[count], &bytes)]);
        let tensors = text_encoder(&file).unwrap();
        let entry = &tensors.entries()[0];
        let (mut done, mut expected_offset) = (0, 0);
        let mut control = ReadControl { cancel: &|| false, progress: &mut |bytes| done += bytes };
        entry
            .read(Target::F32, &mut control, &mut |offset, piece| {
                assert_eq!(offset, expected_offset);
                assert!(piece.len() <= CHUNK_BYTES);
                let value = f32::from_le_bytes(piece[4..8].try_into().unwrap());
                assert_eq!(value, f32::from((offset / 4 + 1) as u8));
                expected_offset += piece.len() as u64;
                Ok(())
            })
            .unwrap();
        assert_eq!((done, expected_offset), (count as u64, 4 * count as u64));

        let pieces = std::cell::Cell::new(0);
        let mut control = ReadControl { cancel: &|| pieces.get() == 2, progress: &mut |_| {} };
        let result = entry.read(Target::F32, &mut control, &mut |_, _| {
            pieces.set(pieces.get() + 1);
            Ok(())
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(pieces.get(), 2);
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        let name = "embeddings.token_embedding.weight";
        let count = 1 << 20;
        std::fs::write(&path, tensors_file(&[(name, "F32", &[count], &vec![0; 4 * count])])).unwrap();
        let shorten = |by: u64| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(file.metadata().unwrap().len() - by).unwrap();
        };
        let tensors = tensors(Source::open(&path).unwrap(), Component::TextEncoder).unwrap();
        let entry = &tensors.entries()[0];
        let mut control = ReadControl { cancel: &|| false, progress: &mut |_| {} };
        let result = entry.read(Target::F32, &mut control, &mut |offset, _| {
            if offset == 0 {
                shorten(1);
            }
            Ok(())
        });
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with(&format!("the file ended while tensor {name} was read")), "{error}");
        let error = entry.to_f32().unwrap_err().to_string();
        assert!(error.contains("the file changed while it was in use, tensor embeddings."), "{error}");
    }

    #[test]
    fn only_integers_that_fit_become_integers() {
        let ids = [3_i64, i64::from(i32::MAX) + 1].map(i64::to_le_bytes).concat();
        let file = tensors_file(&[("embeddings.a", "F16", &[1], &[0, 0]), ("embeddings.b", "I64", &[2], &ids)]);
        let tensors = text_encoder(&file).unwrap();
        let refused = |index: usize| {
            let mut control = ReadControl { cancel: &|| false, progress: &mut |_| {} };
            let entry: &Entry = &tensors.entries()[index];
            entry.read(Target::I32, &mut control, &mut |_, _| Ok(())).unwrap_err().to_string()
        };
        assert_eq!(refused(0), "m: tensor embeddings.a holds F16, expected integers");
        let reason = "holds 2147483648, which needs more than 32 bits";
        assert_eq!(refused(1), format!("m: tensor embeddings.b {reason}"));
    }
}
