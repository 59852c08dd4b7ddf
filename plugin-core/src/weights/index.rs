//! Models in several files: an index says which tensor is in which.

use std::collections::BTreeMap;
use std::path::{Component as PathPart, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::json::{Keyed, UniqueMap, shown};
use super::safetensors::{Header, TensorInfo};
use super::source::{self, Source};
use crate::{Error, Result};

/// As long as the header of one file may be.
const INDEX_LIMIT_BYTES: u64 = 100_000_000;

/// An index (`….safetensors.index.json`): for each file the names of the tensors to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardIndex {
    /// File names relative to the index's own folder, none of them leading out of it.
    pub shards: BTreeMap<String, Vec<String>>,
}

/// The two members that count; others are skipped.
enum Member {
    WeightMap(UniqueMap<String>),
    Other,
}

impl Keyed for Member {
    fn read<'de, A: serde::de::MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error> {
        match key {
            "weight_map" => map.next_value().map(Member::WeightMap),
            _ => map.next_value::<IgnoredAny>().map(|_| Member::Other),
        }
    }
}

impl ShardIndex {
    /// Parses the text of an index; `path` is only for messages.
    pub fn parse(path: &Path, text: &str) -> Result<ShardIndex> {
        let fail = |reason: String| Error::format(path, reason);
        let mut json = serde_json::Deserializer::from_str(text);
        let members = UniqueMap::<Member>::deserialize(&mut json)
            .and_then(|members| json.end().map(|()| members))
            .map_err(|e| fail(format!("the index is not valid: {}", shown(&e.to_string()))))?;
        let map = members.0.into_iter().find_map(|(_, member)| match member {
            Member::WeightMap(map) => Some(map.0),
            Member::Other => None,
        });
        let map = map.ok_or_else(|| fail("the index has no weight_map".into()))?;
        let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, shard) in map {
            if !stays_inside(&shard) {
                let shard = shown(&shard);
                let reason = format!("tensor {name} is said to be in {shard}, outside the index's folder");
                return Err(fail(reason));
            }
            shards.entry(shard).or_default().push(name);
        }
        if shards.is_empty() {
            return Err(fail("the index lists no tensor".into()));
        }
        Ok(ShardIndex { shards })
    }
}

/// The tensors of all shards, headers only.
pub(super) fn open(path: &Path) -> Result<(Vec<TensorInfo>, BTreeMap<String, String>)> {
    let index = ShardIndex::parse(path, &source::read_text(path, INDEX_LIMIT_BYTES)?)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut tensors, mut metadata) = (Vec::new(), BTreeMap::new());
    for (shard, names) in index.shards {
        let shard = inside(path, folder, &shard)?;
        let header = Header::read(&Arc::new(Source::open(&shard)?))?;
        metadata.extend(header.metadata);
        let mut found: BTreeMap<String, TensorInfo> =
            header.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        for name in names {
            let tensor = found.remove(&name).ok_or_else(|| {
                let reason = format!("tensor {name} is not in it, though {} says so", path.display());
                Error::format(&shard, reason)
            })?;
            tensors.push(tensor);
        }
    }
    Ok((tensors, metadata))
}

/// A relative name of plain segments. Backslashes separate on Windows, so they do here.
fn stays_inside(shard: &str) -> bool {
    let plain = |part: PathPart<'_>| matches!(part, PathPart::Normal(_));
    !shard.is_empty() && !shard.contains(['\\', '\0']) && Path::new(shard).components().all(plain)
}

/// The shard's path, if links don't lead it elsewhere. The exception is the cache of
/// huggingface_hub, where `snapshots/<revision>/…` consists of links into `blobs/` beside it.
fn inside(index: &Path, folder: &Path, shard: &str) -> Result<PathBuf> {
    let path = folder.join(shard);
    // The folder of an index that is given by its bare name is the current one.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = folder.canonicalize().map_err(|e| Error::io(folder, e))?;
    let real = path.canonicalize().map_err(|e| Error::io(&path, e))?;
    let snapshots = folder.ancestors().find(|place| place.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|cache| cache.join("blobs"));
    if real.starts_with(&folder) || blobs.is_some_and(|blobs| real.starts_with(blobs)) {
        return Ok(path);
    }
    let reason = format!("{shard} is a link to {}, outside the index's folder", real.display());
    Err(Error::format(index, reason))
}

#[cfg(test)]
mod tests {
    use super::super::safetensors::tests::file;
    use super::*;
    use std::fs;

    fn parse(text: &str) -> Result<ShardIndex> {
        ShardIndex::parse(Path::new("i.json"), text)
    }

    const ONE: &str = r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    const INDEX: &str = r#"{"metadata":{"total_size":4},"weight_map":{"t":"a.safetensors"}}"#;

    #[test]
    fn names_gather_by_shard() {
        let index = parse(r#"{"weight_map":{"b":"2","a":"1","c":"sub/1"},"x":[[{}]]}"#).unwrap();
        let expected = [("1", "a"), ("2", "b"), ("sub/1", "c")];
        let expected = expected.map(|(shard, name)| (shard.to_owned(), vec![name.to_owned()]));
        assert_eq!(index.shards, BTreeMap::from(expected));
    }

    #[test]
    fn shards_outside_the_folder_are_refused() {
        for shard in ["../a", "/etc/passwd", "a/../../b", "", ".", "./a", "..\\\\a", "C:\\\\a", "a\\u0000"] {
            let error = parse(&format!(r#"{{"weight_map":{{"t":"{shard}"}}}}"#)).unwrap_err();
            assert!(error.to_string().ends_with(", outside the index's folder"), "{error}");
        }
    }

    #[test]
    fn each_fault_has_its_own_sentence() {
        let cases = [
            ("", "the index is not valid: EOF while parsing a value at line 1 column 0"),
            ("[]", "the index is not valid: invalid type: sequence, expected an object at line 1 column 0"),
            ("{}", "the index has no weight_map"),
            (r#"{"weight_map":{}}"#, "the index lists no tensor"),
            (
                r#"{"weight_map":[]}"#,
                "the index is not valid: weight_map: invalid type: sequence, expected an object at line 1 column 14",
            ),
            (
                r#"{"weight_map":{"t":1}}"#,
                "the index is not valid: weight_map: t: invalid type: integer `1`, expected a string at line 1 column 20",
            ),
            (
                r#"{"weight_map":{"t":"a","t":"b"}}"#,
                "the index is not valid: weight_map: t is there twice at line 1 column 26",
            ),
            (r#"{"weight_map":{"t":"a"}} x"#, "the index is not valid: trailing characters at line 1 column 26"),
        ];
        for (text, sentence) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), format!("i.json: {sentence}"));
        }
        let deep = format!(r#"{{"x":{}"#, "[".repeat(200_000));
        assert!(parse(&deep).unwrap_err().to_string().contains("the index is not valid: x: "));
    }

    #[test]
    fn shards_are_opened_and_compared() {
        let dir = tempfile::tempdir().unwrap();
        let index = dir.path().join("m.safetensors.index.json");
        fs::write(&index, INDEX).unwrap();
        assert!(matches!(open(&index), Err(Error::Io { path, .. }) if path.ends_with("a.safetensors")));
        fs::write(dir.path().join("a.safetensors"), file(ONE, 4)).unwrap();
        assert_eq!(open(&index).unwrap().0[0].name, "t");
        fs::write(&index, INDEX.replace("\"t\"", "\"u\"")).unwrap();
        let error = open(&index).unwrap_err().to_string();
        assert!(error.contains("tensor u is not in it, though "), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_nowhere_but_into_a_cache() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("models--x/snapshots/1");
        let blobs = dir.path().join("models--x/blobs");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(&blobs).unwrap();
        let index = snapshot.join("m.safetensors.index.json");
        fs::write(&index, INDEX).unwrap();
        let shard = snapshot.join("a.safetensors");

        let outside = dir.path().join("outside");
        fs::write(&outside, file(ONE, 4)).unwrap();
        std::os::unix::fs::symlink(&outside, &shard).unwrap();
        let error = open(&index).unwrap_err().to_string();
        assert!(error.ends_with("outside the index's folder"), "{error}");

        fs::remove_file(&shard).unwrap();
        fs::rename(&outside, blobs.join("hash")).unwrap();
        std::os::unix::fs::symlink("../../blobs/hash", &shard).unwrap();
        assert_eq!(open(&index).unwrap().0.len(), 1);
    }
}
