//! Model files that can't be used: each is refused in one sentence.

use std::path::Path;

use scumble_core::image::{Image, encode_png};

use crate::tensors::{Edited, file};
use crate::{Place, fixture, refuse, refuse_for};

const SMALL: &str = "--width 16 --height 16 --steps 1 -o out.png";

/// What `generate` says of a file of these bytes.
#[track_caller]
fn refuse_bytes(bytes: impl AsRef<[u8]>, reason: &str) {
    let place = Place::new();
    std::fs::write(place.path("m.safetensors"), bytes).unwrap();
    refuse_for(&place, place.generate("m.safetensors", SMALL), reason);
    // `inspect` has no other opinion of files that are no model at all.
    refuse(&place, place.command(["inspect", "m.safetensors"]));
}

/// What `generate` says of the fixture after a change.
#[track_caller]
fn refuse_edited(change: impl FnOnce(&mut Edited), reason: &str) {
    let place = Place::new();
    let mut model = Edited::open(&fixture("sd1/bundle-f16.safetensors"));
    change(&mut model);
    model.save(&place.path("m.safetensors"));
    refuse_for(&place, place.generate("m.safetensors", SMALL), reason);
}

fn tensor(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of one tensor, and its data.
fn one(dtype: &str, shape: &str, begin: u64, end: u64, data: usize) -> Vec<u8> {
    file(&format!("{{{}}}", tensor("unet.conv_in.bias", dtype, shape, begin, end)), &vec![0; data])
}

#[test]
fn a_missing_file() {
    let place = Place::new();
    refuse_for(&place, place.generate("none.safetensors", SMALL), "none.safetensors: No such file");
    refuse_for(&place, place.generate("two\nlines", SMALL), "two\\nlines");
    refuse_for(&place, place.command(["inspect", "none"]), "none: No such file");
    let bench = ["bench", "step", "--model", "none"];
    refuse_for(&place, place.command(bench), "none: No such file");
    for flag in ["--vae", "--taesd", "--noise", "--init-image"] {
        let mut command = place.generate(fixture("sd1/f32"), SMALL);
        command.args([flag, "none"]);
        refuse_for(&place, command, "none: No such file");
    }
}

#[test]
fn files_of_another_kind() {
    refuse_bytes(encode_png(&Image::new(1, 1, 3, vec![0; 3]).unwrap(), &[]).unwrap(), "PNG");
    refuse_bytes("just some words that somebody wrote\n", "safetensors");
    refuse_bytes("", "too few");
    refuse_bytes(b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "GGUF");
    // What torch.save writes today, and what it wrote before.
    refuse_bytes(b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0archive/data.pkl", "pickle");
    refuse_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "pickle");
}

#[test]
fn files_that_are_no_files() {
    let place = Place::new();
    refuse_for(&place, place.generate(".", SMALL), "no model is in this folder");
    refuse_for(&place, place.generate("/dev/zero", SMALL), "not a regular file");
    let mut command = place.generate(fixture("sd1/f32"), SMALL);
    command.args(["--noise", "/dev/zero"]);
    refuse_for(&place, command, "not a regular file");
}

#[test]
fn broken_headers() {
    let bundle = std::fs::read(fixture("sd1/bundle-f16.safetensors")).unwrap();
    refuse_bytes(&bundle[..bundle.len() - 1], "truncated");
    refuse_bytes(&bundle[..bundle.len() / 2], "truncated");
    refuse_bytes(&bundle[..1000], "truncated");
    refuse_bytes(&bundle[..8], "too few");
    refuse_bytes([&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "the header claims 18446744073709551615 bytes");
    refuse_bytes([&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(), "the header claims");
    refuse_bytes(file(&format!("{{\"a\":{}", "[".repeat(500_000)), b""), "the header is not valid");
    refuse_bytes(file(&"{\"a\":".repeat(200_000), b""), "the header is not valid");
    refuse_bytes(file("{]", b""), "the header is not valid");
    refuse_bytes(file("[]", b""), "not a JSON object");
    refuse_bytes(file("{\"a\":{\"dtype\":\"F32\"}}", b""), "missing field");
    refuse_bytes(file("{\"\u{7}\\u0007\":1}", b""), "the header is not valid");
    refuse_bytes([&8u64.to_le_bytes()[..], b"{\"\xff\xfe\":1}"].concat(), "UTF-8");
}

#[test]
fn wrong_places_of_data() {
    refuse_bytes(one("F32", "[4]", 0, 16, 12), "past the end");
    refuse_bytes(one("F32", "[4]", 16, 0, 16), "backwards");
    refuse_bytes(one("F32", "[5]", 0, 16, 16), "needs 20 bytes");
    refuse_bytes(one("F32", "[4]", 0, 16, 17), "belong to no tensor");
    refuse_bytes(one("F32", "[4294967296,4294967296,2]", 0, 16, 16), "too large to address");
    refuse_bytes(one("F32", "[18446744073709551615]", 0, 16, 16), "too large to address");
    refuse_bytes(one("F32", "[18446744073709551616]", 0, 16, 16), "the header is not valid");
    refuse_bytes(one("Q4_0", "[4]", 0, 16, 16), "Q4_0");
    let two = |begin, end| {
        let tensors = [tensor("a", "U8", "[4]", 0, 4), tensor("b", "U8", "[4]", begin, end)];
        file(&format!("{{{}}}", tensors.join(",")), &[0; 10])
    };
    refuse_bytes(two(2, 6), "overlap");
    refuse_bytes(two(6, 10), "2 bytes between a and b belong to no tensor");
}

#[test]
fn tensors_that_are_missing_or_of_another_shape() {
    refuse_edited(
        |model| model.remove("unet.mid_block.resnets.0.conv1.weight"),
        "tensor unet.mid_block.resnets.0.conv1.weight is missing, expected",
    );
    refuse_edited(
        |model| model.remove("vae.decoder.conv_out.weight"),
        "tensor vae.decoder.conv_out.weight is missing, expected shape [3, 64, 3, 3]",
    );
    refuse_edited(
        |model| model.tensor("unet.conv_out.weight").shape = vec![4, 32, 3, 6],
        "tensor unet.conv_out.weight has the wrong shape, expected [4, 64, 3, 3], found [4, 32, 3, 6]",
    );
    refuse_edited(
        |model| model.tensor("text_encoder.text_model.embeddings.position_embedding.weight").shape = vec![64, 77],
        "text_encoder.text_model.embeddings.position_embedding.weight",
    );
    refuse_edited(
        |model| model.tensor("unet.conv_in.weight").shape = vec![64 * 4 * 9],
        "conv_in.weight has the shape [2304]",
    );
    refuse_edited(|model| model.tensors.retain(|tensor| !tensor.name.starts_with("vae.")), "there is no vae in it");
    refuse_edited(|model| model.tensors.retain(|tensor| !tensor.name.starts_with("text_encoder.")), "text encoder");
    refuse_edited(|model| model.tensors.retain(|tensor| !tensor.name.starts_with("unet.")), "UNet");
}

#[test]
fn unknown_families() {
    refuse_edited(|model| model.add("unet.add_embedding.linear_1.weight", &[64, 64]), "Stable Diffusion XL");
    refuse_edited(|model| model.add("unet.something.new.weight", &[64, 64]), "something.new");
    let flux = ["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight", "img_in.weight"];
    let members: Vec<_> = (0..).zip(flux).map(|(i, name)| tensor(name, "U8", "[1]", i, i + 1)).collect();
    let place = Place::new();
    std::fs::write(place.path("flux.safetensors"), file(&format!("{{{}}}", members.join(",")), &[0; 3])).unwrap();
    refuse(&place, place.generate("flux.safetensors", SMALL));
    // An autoencoder of other latents.
    let mut command = place.generate(fixture("sd1/f32"), SMALL);
    command.arg("--vae").arg(fixture("vae8/vae-original.safetensors"));
    refuse_for(&place, command, "its latents have 8 channels where the UNet has 4");
    // A model that fills masks, without one.
    refuse_for(&place, place.generate(fixture("inpaint/f16"), SMALL), "this model fills masks");
}

#[test]
fn configurations_that_contradict_the_weights() {
    let set = |key: &'static str, value: &'static str| move |model: &mut Edited| model.metadata[key] = value.into();
    refuse_edited(set("unet.config", "{"), "not valid JSON");
    refuse_edited(set("unet.config", r#"{"attention_head_dim":7}"#), "7");
    refuse_edited(set("unet.config", r#"{"attention_head_dim":0}"#), "attention_head_dim");
    refuse_edited(set("unet.config", r#"{"norm_num_groups":7}"#), "7");
    refuse_edited(set("unet.config", r#"{"norm_num_groups":0}"#), "");
    refuse_edited(set("text_encoder.config", r#"{"num_attention_heads":5}"#), "5");
    refuse_edited(set("text_encoder.config", r#"{"hidden_act":"relu"}"#), "hidden_act is relu");
    refuse_edited(set("vae.config", r#"{"scaling_factor":0}"#), "scaling_factor");
    refuse_edited(set("scheduler.config", r#"{"_class_name":"DDIMScheduler","prediction_type":"flow"}"#), "flow");
    refuse_edited(
        set("scheduler.config", r#"{"_class_name":"DDIMScheduler","num_train_timesteps":0}"#),
        "num_train_timesteps",
    );
    refuse_edited(
        set("scheduler.config", r#"{"_class_name":"DDIMScheduler","beta_start":-5,"beta_end":1e30}"#),
        "beta",
    );
    refuse_edited(set("defaults", "[1"), "defaults");
    refuse_edited(set("defaults", r#"{"cfg":-3}"#), "cfg: -3 where");
    refuse_edited(set("tokenizer.vocab", "{"), "");
    refuse_edited(set("tokenizer.vocab", "{}"), "");
    refuse_edited(set("tokenizer.merges", "one two three four"), "");
}

#[test]
fn folders_that_are_not_whole() {
    let place = Place::new();
    let folder = |name: &str| {
        copy(&fixture("sd1/f16"), &place.path(name));
        place.path(name)
    };
    let broken = folder("weights");
    std::fs::write(broken.join("unet/diffusion_pytorch_model.safetensors"), "no").unwrap();
    refuse_for(&place, place.generate("weights", SMALL), "weights/unet/diffusion_pytorch_model.safetensors");
    let broken = folder("config");
    std::fs::write(broken.join("unet/config.json"), "[".repeat(100_000)).unwrap();
    refuse_for(&place, place.generate("config", SMALL), "config/unet/config.json");
    let broken = folder("without-vae");
    std::fs::remove_dir_all(broken.join("vae")).unwrap();
    refuse_for(&place, place.generate("without-vae", SMALL), "there is no vae in it");
    let broken = folder("without-unet");
    std::fs::remove_dir_all(broken.join("unet")).unwrap();
    refuse_for(&place, place.generate("without-unet", SMALL), "UNet");
    let broken = folder("transformer");
    std::fs::write(broken.join("model_index.json"), r#"{"_class_name":"FluxPipeline","transformer":["a","b"]}"#)
        .unwrap();
    refuse_for(&place, place.generate("transformer", SMALL), "FluxPipeline is of an unknown family");
    let broken = folder("pickle");
    let weights = broken.join("unet/diffusion_pytorch_model.safetensors");
    std::fs::rename(&weights, weights.with_extension("bin")).unwrap();
    refuse(&place, place.generate("pickle", SMALL));

    let outside = folder("outside");
    std::fs::remove_file(outside.join("unet/diffusion_pytorch_model.safetensors")).unwrap();
    let index = outside.join("unet/diffusion_pytorch_model.safetensors.index.json");
    std::fs::write(index, r#"{"weight_map":{"conv_in.bias":"../../weights/vae/x.safetensors"}}"#).unwrap();
    refuse_for(&place, place.generate("outside", SMALL), "outside the index's folder");
}

#[test]
fn parts_of_another_network() {
    // How some models take in another encoder's states: no UNet here does.
    let strange = "encoder_hid_proj.weight";
    let bundled = format!("unet.{strange}");
    let reason = format!("the UNet has the tensor {bundled}, which is of no supported family");
    refuse_edited(|model| model.add(&bundled, &[4, 4]), &reason);

    let place = Place::new();
    let folder = place.path("folder");
    copy(&fixture("sd1/f16"), &folder);
    let file = folder.join("unet/diffusion_pytorch_model.safetensors");
    let mut unet = Edited::open(&file);
    unet.add(strange, &[4, 4]);
    unet.save(&file);
    let reason = format!("the UNet has the tensor {strange}, which is of no supported family");
    refuse_for(&place, place.generate("folder", SMALL), &reason);
}

#[test]
fn a_missing_tensor_of_the_autoencoder() {
    let name = "vae.decoder.conv_out.bias";
    refuse_edited(|model| model.remove(name), &format!("tensor {name} is missing, expected shape [3]"));
}

#[test]
fn samples_that_are_clipped_are_checked_before() {
    // Clipping would hide an infinity in a picture of nothing.
    for sampler in ["heun", "lcm"] {
        let place = Place::new();
        let mut model = Edited::open(&fixture("sd1/bundle-f16.safetensors"));
        model.tensor("unet.conv_out.bias").data[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
        let text = model.metadata["scheduler.config"].as_str().unwrap();
        let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
        config["clip_sample"] = true.into();
        model.metadata["scheduler.config"] = config.to_string().into();
        model.save(&place.path("m.safetensors"));
        let arguments = format!("{SMALL} --cfg 1 --sampler {sampler}");
        refuse_for(&place, place.generate("m.safetensors", &arguments), "step 1 of 1 gave values that are not finite");
    }
}

#[test]
fn weights_that_are_not_numbers() {
    // NaN and infinity in F16.
    for bits in [0x7e00u16, 0x7c00] {
        let spoil = |name: &'static str| {
            move |model: &mut Edited| model.tensor(name).data[..2].copy_from_slice(&bits.to_le_bytes())
        };
        refuse_edited(spoil("unet.conv_out.bias"), "step 1 of 1 gave values that are not finite");
        refuse_edited(spoil("unet.conv_in.weight"), "step 1 of 1 gave values that are not finite");
        refuse_edited(spoil("vae.decoder.conv_out.bias"), "decoding gave values that are not finite");
        refuse_edited(spoil("text_encoder.text_model.final_layer_norm.bias"), "not finite");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { std::fs::copy(&path, &target).map(drop).unwrap() }
    }
}
