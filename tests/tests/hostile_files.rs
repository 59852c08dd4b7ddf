//! Model files that are broken, of another kind, or made to do harm: each gives one clear sentence
//! that names the file, and nothing panics, aborts, hangs or takes memory that a header asks for.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scumble_core::error::Error;
use scumble_core::weights::{Checkpoint, Component, ModelIndex, ShardIndex, TokenizerFiles, Weights};
use tempfile::TempDir;

/// A folder of its own for each test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// A safetensors file of this header and so many bytes of data.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn tensor(name: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A network that is known, whole.
fn good() -> Vec<u8> {
    file(&format!("{{{}}}", tensor("decoder.conv_in.bias", "[4]", 0, 16)), 16)
}

/// Opens `path` and expects an error of one line that names it and contains `reason`.
#[track_caller]
fn refused(path: &Path, reason: &str) -> Error {
    let started = Instant::now();
    let error = Checkpoint::open(path).expect_err("this was accepted");
    assert!(started.elapsed() < Duration::from_secs(10), "this took {:?}", started.elapsed());
    let text = error.to_string();
    assert!(text.contains(reason), "{text:?} lacks {reason:?}");
    assert!(text.contains(&*path.file_name().unwrap().to_string_lossy()), "{text:?} lacks the file");
    assert!(!text.contains('\n') && text.len() < 2000, "{text:?} is no sentence");
    error
}

/// Writes one file and expects it to be refused.
#[track_caller]
fn refused_bytes(bytes: impl AsRef<[u8]>, reason: &str) -> Error {
    let folder = Folder::new();
    refused(&folder.write("model.safetensors", bytes), reason)
}

#[track_caller]
fn refused_header(members: &[String], data_bytes: usize, reason: &str) -> Error {
    refused_bytes(file(&format!("{{{}}}", members.join(",")), data_bytes), reason)
}

#[test]
fn a_good_file_is_accepted() {
    let folder = Folder::new();
    let checkpoint = Checkpoint::open(&folder.write("model.safetensors", good())).unwrap();
    assert!(checkpoint.component(Component::Vae).is_some());
}

#[test]
fn a_missing_file() {
    let folder = Folder::new();
    let error = refused(&folder.path().join("none.safetensors"), "No such file");
    assert!(matches!(error, Error::Io { .. }));
}

#[test]
fn an_empty_folder() {
    refused(Folder::new().path(), "no model is in this folder");
}

#[test]
fn a_file_of_another_kind() {
    refused_bytes("", "0 bytes are too few");
    refused_bytes("short", "5 bytes are too few");
    refused_bytes("This is a letter to my aunt.", "it is truncated or no safetensors file");
    refused_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG picture; only safetensors is read");
    refused_bytes(b"GGUF\x03\0\0\0\x10\0\0\0\0\0\0\0", "a GGUF file; only safetensors is read");
}

#[cfg(target_os = "linux")]
#[test]
fn no_regular_file() {
    refused(Path::new("/dev/zero"), "not a regular file");
}

#[test]
fn a_pickle() {
    let reason = "this is a pickle, which can run code when it is opened; only safetensors is read, convert it";
    refused_bytes(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0", reason);
    refused_bytes(b"\x80\x02}q\0X\x05\0\0\0state", reason);
    let folder = Folder::new();
    folder.write("model_index.json", r#"{"unet":["diffusers","UNet2DConditionModel"]}"#);
    folder.write("unet/diffusion_pytorch_model.bin", "PK");
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("diffusion_pytorch_model.bin: this is a pickle"), "{error}");
}

#[test]
fn a_truncated_file() {
    let whole = good();
    let folder = Folder::new();
    for end in 0..whole.len() {
        let path = folder.write("model.safetensors", &whole[..end]);
        assert!(Checkpoint::open(&path).is_err(), "truncated to {end}");
    }
    refused_bytes(&whole[..whole.len() - 1], "past the end of the file's 15 bytes of data: the file may be truncated");
    refused_bytes(&whole[..40], "but the file has only 40: it is truncated");
}

#[test]
fn a_header_larger_than_the_file() {
    for claimed in [200, 1 << 30, 1 << 62, u64::MAX - 1_u64] {
        let mut bytes = good();
        bytes[..8].copy_from_slice(&claimed.to_le_bytes());
        refused_bytes(bytes, &format!("the header claims {claimed} bytes, but the file has only"));
    }
    let mut bytes = good();
    bytes[..8].fill(0xff);
    refused_bytes(bytes, "the header claims 18446744073709551615 bytes");
}

#[test]
fn a_header_beyond_the_limit() {
    let folder = Folder::new();
    let start = [&200_000_000_u64.to_le_bytes()[..], b"{"].concat();
    let path = folder.write("model.safetensors", start);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    refused(&path, "the header has 200000000 bytes, at most 100000000 are read");
}

#[test]
fn deeply_nested_json() {
    let deep = ["[".repeat(1_000_000), r#"{"a":"#.repeat(500_000)];
    for deep in &deep {
        refused_bytes(file(&format!(r#"{{"t":{deep}"#), 0), "the header is not valid: t: ");
        refused_bytes(file(&format!(r#"{{"t":{{"dtype":{deep}"#), 0), "the header is not valid: t: ");
        let folder = Folder::new();
        refused(&folder.write("m.safetensors.index.json", format!(r#"{{"x":{deep}"#)), "the index is not valid: x: ");
        let path = folder.write("model_index.json", format!(r#"{{"x":{deep}"#));
        refused(&path, "not valid JSON: recursion limit exceeded");
    }
}

#[test]
fn wrong_json() {
    refused_bytes(file("[1,2]", 0), "the header is not a JSON object");
    refused_bytes(file("{\"t\"", 0), "the header is not valid: t: EOF");
    refused_bytes(file("{\"t\": \u{fffd}}", 0), "the header is not valid: t: expected value");
    refused_bytes(file(r#"{"t":7}"#, 0), "the header is not valid: t: invalid type: integer `7`");
    refused_bytes(file(r#"{"t":{"dtype":"F32","shape":[1]}}"#, 0), "t: missing field `data_offsets`");
    refused_bytes(file(r#"{"__metadata__":{"a":[]}}"#, 0), "__metadata__: a: invalid type: sequence");
    let mut not_text = file("{}", 0);
    not_text[9] = 0xff;
    refused_bytes(not_text, "the header is not UTF-8");
}

#[test]
fn a_name_that_is_there_twice() {
    let members = [tensor("t", "[1]", 0, 4), tensor("t", "[1]", 4, 8)];
    refused_header(&members, 8, "the header is not valid: t is there twice");
}

#[test]
fn a_name_that_would_spoil_a_terminal() {
    let error = refused_header(&[tensor("\\u001b[2J\\n", "[1]", 0, 4)], 4, "holds control characters");
    assert!(!error.to_string().contains('\u{1b}'));
    refused_header(&[tensor(&"x".repeat(2000), "[1]", 0, 4)], 4, "longer than 1024 bytes");
}

#[test]
fn an_unknown_type() {
    let member = tensor("t", "[1]", 0, 4).replace("F32", "Q4_K");
    let error = refused_header(&[member], 4, "tensor t has the type Q4_K, unknown here");
    assert!(matches!(error, Error::Unsupported { .. }));
}

#[test]
fn offsets_past_the_end() {
    refused_header(&[tensor("t", "[4]", 0, 16)], 8, "tensor t has its data from 0 to 16, past the end");
    let far = u64::MAX;
    refused_header(&[tensor("t", "[1]", far - 4, far)], 4, "past the end of the file's 4 bytes of data");
}

#[test]
fn offsets_backwards() {
    refused_header(&[tensor("t", "[1]", 4, 0)], 4, "tensor t has its data backwards, from 4 to 0");
}

#[test]
fn overlapping_tensors() {
    let members = [tensor("a", "[2]", 0, 8), tensor("b", "[2]", 4, 12)];
    refused_header(&members, 12, "tensors a and b overlap");
    let members = [tensor("a", "[2]", 0, 8), tensor("b", "[2]", 0, 8)];
    refused_header(&members, 8, "tensors a and b overlap");
}

#[test]
fn bytes_that_belong_to_no_tensor() {
    refused_header(&[tensor("a", "[1]", 4, 8)], 8, "4 bytes between the header and a belong to no tensor");
    let members = [tensor("a", "[1]", 0, 4), tensor("b", "[1]", 6, 10)];
    refused_header(&members, 10, "2 bytes between a and b belong to no tensor");
    refused_header(&[tensor("a", "[1]", 0, 4)], 7, "3 bytes after a belong to no tensor");
}

#[test]
fn shapes_that_overflow() {
    for shape in ["[4294967296,4294967296,4]", "[18446744073709551615,2]", "[9223372036854775807]"] {
        refused_header(&[tensor("t", shape, 0, 4)], 4, "too large to address");
    }
    refused_header(&[tensor("t", "[0,4294967296,4294967296]", 0, 0)], 0, "too large to address");
    refused_header(&[tensor("t", "[18446744073709551616]", 0, 4)], 4, "the header is not valid: t: ");
    refused_header(&[tensor("t", "[1,1,1,1,1,1,1,1,1]", 0, 4)], 4, "more than 8 dimensions");
}

#[test]
fn shapes_that_disagree_with_their_bytes() {
    let reason = "tensor t has the shape [3] of F32, which needs 12 bytes, but 16 bytes of data";
    refused_header(&[tensor("t", "[3]", 0, 16)], 16, reason);
    refused_header(&[tensor("t", "[-3]", 0, 16)], 16, "t: invalid value: integer `-3`");
}

#[test]
fn a_missing_tensor_is_named_as_the_file_would() {
    let folder = Folder::new();
    let bytes = file(&format!("{{{}}}", tensor("first_stage_model.decoder.mid.attn_1.q.bias", "[1]", 0, 4)), 4);
    let checkpoint = Checkpoint::open(&folder.write("model.safetensors", bytes)).unwrap();
    let w = Weights::root(checkpoint.component(Component::Vae).unwrap());
    let attention = w.at("decoder.mid_block.attentions.0");
    let error = attention.at("to_k").entry("bias", &[1]).unwrap_err().to_string();
    let name = "first_stage_model.decoder.mid.attn_1.k.bias";
    assert!(error.ends_with(&format!("tensor {name} is missing, expected shape [1]")), "{error}");
    let error = attention.at("to_q").entry("bias", &[2]).unwrap_err().to_string();
    let name = "first_stage_model.decoder.mid.attn_1.q.bias";
    let shapes = "has the wrong shape, expected [2], found [1]";
    assert!(error.ends_with(&format!("tensor {name} {shapes}")), "{error}");
}

#[test]
fn an_unknown_family() {
    let name = "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight";
    refused_header(&[tensor(name, "[1]", 0, 4)], 4, "the denoising network is of an unknown family");
    refused_header(&[tensor("x", "[1]", 0, 4)], 4, "this model is of an unknown family");
    refused_header(&[tensor("lora_unet_x.lora_up.weight", "[1]", 0, 4)], 4, "this is a LoRA");
    refused_header(&[tensor("control_model.input_blocks.0.0.bias", "[1]", 0, 4)], 4, "this is a ControlNet");
    let folder = Folder::new();
    folder.write("model_index.json", r#"{"_class_name":"FluxPipeline","transformer":["diffusers","F"]}"#);
    refused(folder.path(), "this FluxPipeline is of an unknown family");
}

#[test]
fn an_index_that_points_outside_its_folder() {
    let folder = Folder::new();
    folder.write("outside.safetensors", good());
    for shard in ["../outside.safetensors", "/etc/passwd", "a/../../outside.safetensors", "..\\\\outside.safetensors"] {
        let index = format!(r#"{{"weight_map":{{"decoder.conv_in.bias":"{shard}"}}}}"#);
        let path = folder.write("model/m.safetensors.index.json", index);
        refused(&path, "outside the index's folder");
        let error = Checkpoint::open(path.parent().unwrap());
        assert!(error.is_err());
    }
}

#[cfg(unix)]
#[test]
fn an_index_whose_shard_is_a_link_outside() {
    let folder = Folder::new();
    let outside = folder.write("outside.safetensors", good());
    let index = r#"{"weight_map":{"decoder.conv_in.bias":"a.safetensors"}}"#;
    let path = folder.write("model/m.safetensors.index.json", index);
    std::os::unix::fs::symlink(outside, path.with_file_name("a.safetensors")).unwrap();
    refused(&path, "outside the index's folder");
}

#[test]
fn an_index_that_is_wrong() {
    let folder = Folder::new();
    let index = |map: &str| folder.write("m.safetensors.index.json", format!(r#"{{"weight_map":{map}}}"#));
    refused(&index("{}"), "the index lists no tensor");
    refused(&index("3"), "the index is not valid: weight_map: invalid type");
    refused(&index(r#"{"a":"x","a":"y"}"#), "weight_map: a is there twice");
    let missing = Checkpoint::open(&index(r#"{"a":"none.safetensors"}"#)).unwrap_err();
    assert!(matches!(missing, Error::Io { path, .. } if path.ends_with("none.safetensors")));
    folder.write("a.safetensors", good());
    refused(&index(r#"{"a":"a.safetensors"}"#), "tensor a is not in it");
    Checkpoint::open(&index(r#"{"decoder.conv_in.bias":"a.safetensors"}"#)).unwrap();
}

#[test]
fn configurations_of_a_wrong_type() {
    let folder = Folder::new();
    folder.write("model_index.json", r#"{"unet":["diffusers","UNet2DConditionModel"]}"#);
    let unet = file(&format!("{{{}}}", tensor("conv_in.bias", "[1]", 0, 4)), 4);
    folder.write("unet/diffusion_pytorch_model.safetensors", unet);
    for (text, reason) in [("[]", "the JSON is a list, expected an object"), ("{", "not valid JSON")] {
        folder.write("unet/config.json", text);
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("config.json: ") && error.contains(reason), "{error}");
    }
    folder.write("unet/config.json", r#"{"attention_head_dim":"eight"}"#);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = checkpoint.config(Component::Unet).unwrap().usizes("attention_head_dim").unwrap_err().to_string();
    let reason = "attention_head_dim is \"eight\", expected a whole number or a list of them";
    assert!(error.contains(reason), "{error}");
}

#[test]
fn a_file_that_is_truncated_while_it_is_in_use() {
    let folder = Folder::new();
    let path = folder.write("model.safetensors", good());
    let checkpoint = Checkpoint::open(&path).unwrap();
    let entry = checkpoint.component(Component::Vae).unwrap().get("decoder.conv_in.bias").unwrap();
    assert_eq!(entry.to_f32().unwrap(), [0.0; 4]);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(good().len() as u64 - 1).unwrap();
    let error = entry.to_f32().unwrap_err().to_string();
    assert!(error.contains("the file changed while it was in use, tensor decoder.conv_in.bias"), "{error}");
}

#[test]
fn a_header_of_very_many_tensors() {
    let members: Vec<_> =
        (0..200_000).map(|index| tensor(&format!("vae.encoder.down.{index}.x"), "[0]", 0, 0)).collect();
    refused_header(&members, 0, "the autoencoder is of an unknown family");
}

/// What the fuzz targets in `tests/fuzz` do with a seed of their corpus.
fn run_target(target: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let path = Path::new("fuzzed");
    match target {
        "safetensors" => {
            let Ok(checkpoint) = Checkpoint::from_shared_bytes("fuzzed", bytes.into()) else { return };
            for (_, tensors) in checkpoint.components() {
                for entry in tensors.entries() {
                    assert_eq!(entry.to_f32().unwrap().len(), entry.elements());
                }
            }
        }
        "index_json" => drop(ShardIndex::parse(path, &text)),
        "model_index" => drop(ModelIndex::parse(path, &text)),
        "tokenizer_json" => drop(TokenizerFiles::from_tokenizer_json(path, &text, None)),
        "tokenizer" => drop(scumble_core::text::Tokenizer::from_json(&text, None, path)),
        "prompt" => drop(scumble_core::text::weighting::parse(&text)),
        "config" | "scheduler_config" => {
            let Ok(config) = scumble_core::weights::Config::parse(path, &text) else { return };
            drop((config.usize("a"), config.usizes("a"), config.f64("a"), config.str("a")));
            drop(scumble_core::sampling::from_scheduler_config(&config));
        }
        other => panic!("tests/fuzz/corpus/{other} belongs to no target that is known here"),
    }
}

#[test]
fn the_fuzz_corpus_panics_nowhere() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut seeds = 0;
    for target in fs::read_dir(&corpus).unwrap() {
        let target = target.unwrap();
        for seed in fs::read_dir(target.path()).unwrap() {
            run_target(&target.file_name().to_string_lossy(), &fs::read(seed.unwrap().path()).unwrap());
            seeds += 1;
        }
    }
    assert!(seeds >= 40, "only {seeds} seeds");
}
