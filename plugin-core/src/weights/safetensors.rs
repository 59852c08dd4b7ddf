//! The header of a safetensors file: which tensors it holds, of which type and shape, and where.
//!
//! A file is: 8 bytes with the length of the header, little-endian; the header, a JSON object of
//! `name: { dtype, shape, data_offsets }` and an optional `__metadata__` of texts; then the data
//! without gaps.
//!
//! This is our own parser and not the `safetensors` crate's, since that one takes the whole file
//! as one slice (so the caller has to map or to read it all before the header is checked), lets
//! the last of two equal names win, and says what is wrong without the tensor's name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};

use super::dtype::Dtype;
use super::json::{Keyed, UniqueMap, shown};
use super::source::Source;
use crate::{Error, Result};

/// The limit of the format's own library.
const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// More dimensions than any network's tensor has.
const RANK_LIMIT: usize = 8;

const PREFIX_BYTES: u64 = 8;

/// One tensor as a file declares it.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    /// Its name in the file.
    pub(super) name: String,
    /// How its elements are stored.
    pub(super) dtype: Dtype,
    /// Its shape, slowest dimension first; empty for a single number.
    pub(super) shape: Vec<usize>,
    /// Where its data begins, counted from the start of the file.
    pub(super) offset: u64,
    /// The length of its data: the product of the shape times the size of an element.
    pub(super) bytes: u64,
    pub(super) source: Arc<Source>,
}

/// What a safetensors file says of itself before its data.
#[derive(Debug)]
pub(super) struct Header {
    /// The tensors in the order of their data.
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Header {
    /// Reads and checks the header. The data is not touched, but that each of its bytes belongs
    /// to exactly one tensor is certain afterwards.
    pub(super) fn read(source: &Arc<Source>) -> Result<Header> {
        let fail = |reason: String| Error::format(source.path(), reason);
        let header_bytes = header_length(source)?;
        let mut text = vec![0; header_bytes as usize];
        source.read_exact_at(PREFIX_BYTES, &mut text).map_err(|e| Error::io(source.path(), e))?;
        let text = str::from_utf8(&text).map_err(|_| fail("the header is not UTF-8".into()))?;
        let members: UniqueMap<Member> = serde_json::from_str(text)
            .map_err(|e| fail(format!("the header is not valid: {}", shown(&e.to_string()))))?;

        let data_start = PREFIX_BYTES + header_bytes;
        let data_bytes = source.len_bytes() - data_start;
        let mut tensors = Vec::with_capacity(members.0.len());
        let mut metadata = BTreeMap::new();
        for (name, member) in members.0 {
            match member {
                Member::Metadata(texts) => metadata.extend(texts.0),
                Member::Tensor(raw) => tensors.push(raw.check(source, name, data_start, data_bytes)?),
            }
        }
        check_tiling(source, &mut tensors, data_start)?;
        Ok(Header { tensors, metadata })
    }
}

/// Whether the file begins as safetensors do: a length that fits, then an object. With that,
/// all other kinds of file can be told apart by their first bytes.
pub(super) fn looks_like_safetensors(source: &Source) -> bool {
    let mut start = [0; 9];
    source.read_exact_at(0, &mut start).is_ok()
        && start[8] == b'{'
        && length_field(&start) <= source.len_bytes() - PREFIX_BYTES
}

fn length_field(start: &[u8; 9]) -> u64 {
    start.iter().take(8).rev().fold(0, |length, &byte| length << 8 | u64::from(byte))
}

fn header_length(source: &Source) -> Result<u64> {
    let fail = |reason: String| Error::format(source.path(), reason);
    let len_bytes = source.len_bytes();
    if len_bytes <= PREFIX_BYTES {
        let reason = format!("{len_bytes} bytes are too few for a safetensors file");
        return Err(fail(reason));
    }
    let mut start = [0; 9];
    source.read_exact_at(0, &mut start).map_err(|e| Error::io(source.path(), e))?;
    let header_bytes = length_field(&start);
    if header_bytes > len_bytes - PREFIX_BYTES {
        let reason = format!(
            "the header claims {header_bytes} bytes, but the file has only {len_bytes}: it is \
             truncated or no safetensors file"
        );
        return Err(fail(reason));
    }
    if header_bytes > HEADER_LIMIT_BYTES {
        let reason = format!("the header has {header_bytes} bytes, at most {HEADER_LIMIT_BYTES} are read");
        return Err(fail(reason));
    }
    if header_bytes == 0 || start[8] != b'{' {
        return Err(fail("the header is not a JSON object".into()));
    }
    Ok(header_bytes)
}

/// Each byte of the data belongs to exactly one tensor.
fn check_tiling(source: &Source, tensors: &mut [TensorInfo], data_start: u64) -> Result<()> {
    let fail = |reason: String| Error::format(source.path(), reason);
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let mut end = data_start;
    let mut last = "the header";
    for tensor in tensors.iter() {
        if tensor.offset < end {
            return Err(fail(format!("tensors {last} and {} overlap", tensor.name)));
        }
        if tensor.offset > end {
            let gap = tensor.offset - end;
            let reason = format!("{gap} bytes between {last} and {} belong to no tensor", tensor.name);
            return Err(fail(reason));
        }
        end += tensor.bytes;
        last = &tensor.name;
    }
    if end < source.len_bytes() {
        let rest = source.len_bytes() - end;
        return Err(fail(format!("{rest} bytes after {last} belong to no tensor")));
    }
    Ok(())
}

/// A value of the header's object, before it is known to make sense.
enum Member {
    Metadata(UniqueMap<String>),
    Tensor(RawTensor),
}

impl Keyed for Member {
    fn read<'de, A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error> {
        match key {
            "__metadata__" => map.next_value().map(Member::Metadata),
            _ => map.next_value().map(Member::Tensor),
        }
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl RawTensor {
    fn check(self, source: &Arc<Source>, name: String, data_start: u64, data_bytes: u64) -> Result<TensorInfo> {
        let fail = |reason: String| Error::format(source.path(), format!("tensor {name} {reason}"));
        let Some(dtype) = Dtype::from_name(&self.dtype) else {
            let reason = format!("tensor {name} has the type {}, unknown here", shown(&self.dtype));
            return Err(Error::unsupported(source.path(), reason));
        };
        let (begin, end) = self.data_offsets;
        if end < begin {
            return Err(fail(format!("has its data backwards, from {begin} to {end}")));
        }
        if end > data_bytes {
            return Err(fail(format!(
                "has its data from {begin} to {end}, past the end of the file's {data_bytes} \
                 bytes of data: the file may be truncated"
            )));
        }
        let overflow = || fail(format!("has the shape {:?}, too large to address", self.shape.0));
        let bytes = bytes_of(&self.shape.0, dtype).ok_or_else(overflow)?;
        if bytes != end - begin {
            return Err(fail(format!(
                "has the shape {:?} of {dtype}, which needs {bytes} bytes, but {} bytes of data",
                self.shape.0,
                end - begin
            )));
        }
        let shape: Option<Vec<usize>> = self.shape.0.iter().map(|&size| usize::try_from(size).ok()).collect();
        Ok(TensorInfo {
            dtype,
            shape: shape.ok_or_else(overflow)?,
            offset: data_start + begin,
            bytes,
            source: Arc::clone(source),
            name,
        })
    }
}

/// `None` when it can't be addressed. Dimensions of 0 don't excuse the others: what multiplies
/// the shape in another order later must not overflow either.
fn bytes_of(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let size_bytes = dtype.size_bytes() as u64;
    let bound = shape.iter().try_fold(size_bytes, |sum, &size| sum.checked_mul(size.max(1)))?;
    isize::try_from(bound).ok()?;
    Some(if shape.contains(&0) { 0 } else { bound })
}

/// A list of sizes that stops where no tensor's shape goes on.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = seq.next_element()? {
                    if sizes.len() == RANK_LIMIT {
                        let reason = format!("more than {RANK_LIMIT} dimensions");
                        return Err(de::Error::custom(reason));
                    }
                    sizes.push(size);
                }
                Ok(Shape(sizes))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of this header and so many bytes of data.
    pub(in crate::weights) fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data_bytes, 7);
        bytes
    }

    /// A whole file of these tensors: name, type, shape, data.
    pub(in crate::weights) fn tensors_file(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
        let (mut members, mut data) = (Vec::new(), Vec::new());
        for &(name, dtype, shape, bytes) in tensors {
            let begin = data.len();
            data.extend_from_slice(bytes);
            let end = data.len();
            members.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#));
        }
        let mut whole = file(&format!("{{{}}}", members.join(",")), 0);
        whole.extend(data);
        whole
    }

    fn read(bytes: &[u8]) -> Result<Header> {
        Header::read(&Arc::new(Source::from_shared("m", Arc::from(bytes))))
    }

    fn refused(header: &str, data_bytes: usize) -> String {
        read(&file(header, data_bytes)).unwrap_err().to_string()
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"I64","shape":[0,5],"data_offsets":[16,16]}}  "#;

    #[test]
    fn tensors_come_in_the_order_of_their_data() {
        let header = read(&file(TWO, 16)).unwrap();
        let names: Vec<_> = header.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "none"]);
        let b = &header.tensors[1];
        assert_eq!((b.dtype, &b.shape[..], b.bytes), (Dtype::F16, &[2, 3][..], 12));
        assert_eq!(b.offset, 8 + TWO.len() as u64 + 4);
        assert_eq!(header.metadata["format"], "pt");
        assert!(read(&file("{}", 0)).unwrap().tensors.is_empty());
    }

    #[test]
    fn each_fault_has_its_own_sentence() {
        let tensor = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
        };
        let one = |dtype, shape, begin, end| format!("{{{}}}", tensor("t", dtype, shape, begin, end));
        let two =
            |begin, end| format!("{{{},{}}}", tensor("a", "U8", "[4]", 0, 4), tensor("b", "U8", "[4]", begin, end));
        let huge = "[4294967296,4294967296]";
        let cases = [
            (one("F32", "[2]", 8, 0), 8, "tensor t has its data backwards, from 8 to 0"),
            (
                one("F32", "[2]", 0, 8),
                7,
                "tensor t has its data from 0 to 8, past the end of the file's 7 bytes of data: \
                 the file may be truncated",
            ),
            (
                one("F32", "[3]", 0, 8),
                8,
                "tensor t has the shape [3] of F32, which needs 12 bytes, but 8 bytes of data",
            ),
            (one("F32", huge, 0, 8), 8, "tensor t has the shape [4294967296, 4294967296], too large to address"),
            (
                one("F32", "[0,4294967296,4294967296]", 0, 0),
                0,
                "tensor t has the shape [0, 4294967296, 4294967296], too large to address",
            ),
            (one("F12", "[2]", 0, 8), 8, "tensor t has the type F12, unknown here"),
            (two(2, 6), 6, "tensors a and b overlap"),
            (two(0, 4), 4, "tensors a and b overlap"),
            (two(6, 10), 10, "2 bytes between a and b belong to no tensor"),
            (two(4, 8), 11, "3 bytes after b belong to no tensor"),
            ("{}".into(), 3, "3 bytes after the header belong to no tensor"),
            ("[]".into(), 0, "the header is not a JSON object"),
        ];
        for (header, data_bytes, sentence) in cases {
            assert_eq!(refused(&header, data_bytes), format!("m: {sentence}"), "{header}");
        }
    }

    #[test]
    fn wrong_json_names_the_tensor() {
        let cases = [
            (r#"{"t":3}"#, "t: invalid type: integer `3`, expected struct RawTensor"),
            (r#"{"t":{"dtype":5}}"#, "t: invalid type: integer `5`, expected a string"),
            (r#"{"t":{"shape":[-1]}}"#, "t: invalid value: integer `-1`, expected u64"),
            (r#"{"t":{"shape":[1.5]}}"#, "t: invalid type: floating point `1.5`, expected u64"),
            (r#"{"t":{"shape":"x"}}"#, "t: invalid type: string \"x\", expected a list of sizes"),
            (r#"{"t":{"shape":[1,1,1,1,1,1,1,1,1]}}"#, "t: more than 8 dimensions"),
            (r#"{"t":{"data_offsets":[1]}}"#, "t: invalid length 1, expected a tuple of size 2"),
            (r#"{"t":{"data_offsets":[1,2,3]}}"#, "t: trailing characters"),
            (r#"{"t":{"dtype":"F32","dtype":"F32"}}"#, "t: duplicate field `dtype`"),
            (r#"{"t":{"dtype":"F32"}}"#, "t: missing field `shape`"),
            (r#"{"t":{"dtype":"F32""#, "t: EOF while parsing an object"),
            (r#"{"__metadata__":{"a":1}}"#, "__metadata__: a: invalid type: integer `1`"),
            (r#"{"__metadata__":{"a":"b","a":"c"}}"#, "__metadata__: a is there twice"),
            (r#"{"t":{"#, "t: EOF while parsing an object"),
            (r#"{} x"#, "trailing characters"),
        ];
        for (header, start) in cases {
            let found = refused(header, 0);
            let start = format!("m: the header is not valid: {start}");
            assert!(found.starts_with(&start), "{header}: {found}");
        }
        let twice = TWO.replace("\"b\"", "\"a\"");
        assert!(refused(&twice, 16).contains("a is there twice"));
        let lists = format!(r#"{{"t":{{"shape":{}"#, "[".repeat(200_000));
        assert!(refused(&lists, 0).contains("t: invalid type: sequence, expected u64"));
        for deep in ["[".repeat(200_000), "{\"a\":".repeat(200_000)] {
            assert!(refused(&format!(r#"{{"t":{{"x":{deep}"#), 0).contains("t: EOF while parsing"));
        }
    }

    #[test]
    fn lengths_are_compared_before_they_are_believed() {
        let cases: [(&[u8], &str); 5] = [
            (b"", "0 bytes are too few for a safetensors file"),
            (b"\x02\0\0\0\0\0\0\0", "8 bytes are too few for a safetensors file"),
            (
                b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
                "the header claims 18446744073709551615 bytes, but the file has only 10: it is \
                 truncated or no safetensors file",
            ),
            (
                b"\x03\0\0\0\0\0\0\0{}",
                "the header claims 3 bytes, but the file has only 10: it is truncated or no \
                 safetensors file",
            ),
            (b"\x01\0\0\0\0\0\0\0\xff", "the header is not a JSON object"),
        ];
        for (bytes, sentence) in cases {
            assert_eq!(read(bytes).unwrap_err().to_string(), format!("m: {sentence}"));
        }
        let not_text = [&b"\x03\0\0\0\0\0\0\0"[..], b"{\xff}"].concat();
        assert_eq!(read(&not_text).unwrap_err().to_string(), "m: the header is not UTF-8");
    }

    #[test]
    fn a_header_beyond_the_limit_is_refused_unread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.safetensors");
        let mut start = (HEADER_LIMIT_BYTES + 1).to_le_bytes().to_vec();
        start.push(b'{');
        std::fs::write(&path, start).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        let error = Header::read(&Arc::new(Source::open(&path).unwrap())).unwrap_err().to_string();
        assert!(error.ends_with("100000001 bytes, at most 100000000 are read"), "{error}");
    }

    #[test]
    fn no_truncation_and_no_changed_byte_panics() {
        let whole = file(TWO, 16);
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "truncated to {end}");
        }
        for at in 0..8 + TWO.len() {
            for byte in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                let _ = read(&bytes);
            }
        }
    }
}
