//! `scumble inspect`, `scumble devices` and `scumble bench`.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::tensors::{Edited, file};
use crate::{Place, fixture, refuse_for, succeed};

fn inspect(path: &Path) -> Value {
    let place = Place::new();
    let command = |more: &[&str]| {
        let mut command = place.command(["inspect"]);
        command.arg(path).args(more);
        command
    };
    let text = succeed(command(&[]));
    assert!(text.lines().next().unwrap().starts_with(&*path.to_string_lossy()), "{text}");
    assert!(text.lines().all(|line| line.contains(':')), "{text}");
    serde_json::from_str(&succeed(command(&["--json"]))).unwrap()
}

#[test]
fn whole_models() {
    let layouts = [
        ("sd1/f32", "diffusers_folder", "Stable Diffusion 1.x", "eps"),
        ("sd1/sharded", "diffusers_folder", "Stable Diffusion 1.x", "eps"),
        ("sd1/original-f16.safetensors", "original", "Stable Diffusion 1.x", "eps"),
        ("sd1/original-nometadata.safetensors", "original", "Stable Diffusion 1.x", "eps"),
        ("sd1/bundle-f16.safetensors", "bundle", "Stable Diffusion 1.x", "eps"),
        ("sd2v/f16", "diffusers_folder", "Stable Diffusion 2.x", "v"),
        ("sd2v/original-f32.safetensors", "original", "Stable Diffusion 2.x", "v"),
        ("inpaint/bundle-f16.safetensors", "bundle", "Stable Diffusion 1.x", "eps"),
    ];
    for (path, layout, family, prediction) in layouts {
        let found = inspect(&fixture(path));
        assert_eq!(found["layout"], layout, "{path}");
        assert_eq!(found["family"], family, "{path}");
        assert_eq!(found["prediction"], prediction, "{path}");
        assert_eq!(found["sizes"]["unet"]["inpainting"], path.starts_with("inpaint"), "{path}");
        assert_eq!(found["sizes"]["vae"]["latent_channels"], 4, "{path}");
        assert_eq!((&found["missing"], &found["unknown"]), (&json!([]), &json!([])), "{path}");
        let parts = found["components"].as_array().unwrap();
        assert_eq!(parts.len(), 3, "{path}");
        for part in parts {
            assert!(part["parameters"].as_u64().unwrap() > 1000, "{path}");
            assert!(part["dtypes"].as_object().is_some_and(|dtypes| !dtypes.is_empty()), "{path}");
        }
    }
    let bundle = inspect(&fixture("sd1/bundle-f16.safetensors"));
    assert_eq!(bundle["licence"], "CC0-1.0");
}

#[test]
fn networks_on_their_own() {
    for path in ["sd1/vae-original.safetensors", "taesd/taesd_decoder.safetensors", "taesd/diffusers"] {
        let found = inspect(&fixture(path));
        assert_eq!(found["layout"], "component", "{path}");
        assert!(found["family"].is_null(), "{path}");
    }
}

#[test]
fn what_is_unknown_is_listed() {
    let place = Place::new();
    let mut model = Edited::open(&fixture("sd1/bundle-f16.safetensors"));
    model.add("lora.weight", &[4, 4]);
    model.save(&place.path("more.safetensors"));
    let found = inspect(&place.path("more.safetensors"));
    assert_eq!(found["unknown"], json!(["lora.weight"]));

    model.add("unet.add_embedding.linear_1.weight", &[4, 4]);
    model.save(&place.path("xl.safetensors"));
    let found = inspect(&place.path("xl.safetensors"));
    assert!(found["family"].is_null());
    assert!(found["family_error"].as_str().unwrap().contains("Stable Diffusion XL"), "{found}");
    let text = succeed(place.command(["inspect", "xl.safetensors"]));
    assert!(text.contains("family:       unknown: "), "{text}");

    model.tensors.retain(|tensor| !tensor.name.starts_with("vae."));
    model.save(&place.path("less.safetensors"));
    assert_eq!(inspect(&place.path("less.safetensors"))["missing"], json!(["vae"]));
}

#[test]
fn only_headers_are_read() {
    // Two gigabytes that take no room on the disk.
    let place = Place::new();
    let data = 2u64 << 30;
    let header = format!(
        r#"{{"model.diffusion_model.input_blocks.0.0.weight":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{data}]}}}}"#,
        data / 4
    );
    let path = place.path("large.safetensors");
    std::fs::write(&path, file(&header, &[])).unwrap();
    let sparse = File::options().write(true).open(&path).unwrap();
    sparse.set_len(8 + header.len() as u64 + data).unwrap();
    let began = std::time::Instant::now();
    let found = inspect(&path);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(found["components"][0]["bytes"], data);
}

#[test]
fn devices_are_listed() {
    let place = Place::new();
    let json: Value = serde_json::from_str(&succeed(place.command(["devices", "--json"]))).unwrap();
    assert!(json["devices"].as_array().unwrap().iter().any(|device| device["kind"] == "cpu"), "{json}");
    assert!(json["cpu_features"].as_array().unwrap().iter().all(|feature| feature["used"].is_boolean()));
    assert!(json["available_bytes"].as_u64().unwrap() > 1 << 20);
    let text = succeed(place.command(["devices"]));
    assert!(text.contains("CPU features used:"), "{text}");
}

#[test]
fn a_benchmark_tells_what_stages_cost() {
    let place = Place::new();
    let flags =
        ["bench", "step", "--width", "32", "--height", "32", "--batch", "2", "--threads", "1", "--runs", "1", "--json"];
    let mut command = place.command(flags);
    command.arg("--model").arg(fixture("sd1/f32"));
    let json: Value = serde_json::from_str(&succeed(command)).unwrap();
    for key in ["load_s", "text_s", "step_s", "decode_s", "peak_bytes", "gflops", "roofline_share"] {
        assert!(json[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {json}");
    }
    assert_eq!((&json["threads"], &json["batch"]), (&json!(1), &json!(2)));
    assert!(json["peak_bytes"].as_u64() > json["weight_bytes"].as_u64());

    // The step's time and arithmetic are those of its ops.
    let sum = |key: &str| json["ops"].as_array().unwrap().iter().map(|op| op[key].as_f64().unwrap()).sum::<f64>();
    let step_s = json["step_s"].as_f64().unwrap();
    assert!((0.5 * step_s..=step_s).contains(&sum("seconds")), "{json}");
    assert!((sum("flops") / json["step_flops"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{json}");
    for op in ["convolution", "linear", "attention", "group norm"] {
        assert!(json["ops"].as_array().unwrap().iter().any(|row| row["op"] == op), "{op}: {json}");
    }
}

#[test]
fn a_benchmark_prints_a_table_of_ops() {
    let place = Place::new();
    let flags = ["bench", "step", "--width", "32", "--height", "32", "--runs", "1", "--model"];
    let table = |kernels| {
        let mut command = place.command(flags);
        command.arg(fixture("sd1/f32")).args(["--kernels", kernels]);
        succeed(command)
    };
    let ours = table("auto");
    assert!(ours.lines().any(|line| line.starts_with("convolution ")) && ours.contains("roofline:"), "{ours}");
    assert!(table("stock").contains("ggml computes all of the step"));
}

#[test]
fn a_benchmark_cancels_runs() {
    let place = Place::new();
    let flags = ["bench", "cancel", "--width", "64", "--height", "64", "--times", "20", "--threads", "2", "--json"];
    let report: Value = serde_json::from_str(&succeed(place.command(flags))).unwrap();
    let whole = &report["cancel"]["whole run"];
    // Some ends come before the call.
    let counts = ["encoding", "denoising", "decoding"].map(|stage| report["cancel"][stage]["count"].as_u64().unwrap());
    assert!((1..=20).contains(&counts.iter().sum::<u64>()) && whole["count"] == counts.iter().sum::<u64>(), "{report}");
    assert!(whole["p50_ms"].as_f64() <= whole["p99_ms"].as_f64() && report["run_s"].as_f64() > Some(0.0), "{report}");
    refuse_for(&place, place.command(["bench", "cancel", "--times", "0"]), "times: 0 where 1 to 10000 is possible");
}

#[cfg(target_os = "linux")]
#[test]
fn a_benchmark_holds_one_model_at_a_time() {
    // A vocabulary of 128 MB, most of which is a hole in the file.
    let place = Place::new();
    crate::memory::write_large(&place.path("large.safetensors"), 128 << 20);
    let flags =
        ["bench", "step", "--width", "16", "--height", "16", "--runs", "3", "--json", "--model", "large.safetensors"];
    let json: Value = serde_json::from_str(&succeed(place.command(flags))).unwrap();
    let (peak, weights) = (json["peak_bytes"].as_u64().unwrap(), json["weight_bytes"].as_u64().unwrap());
    assert!(weights > 128 << 20, "{json}");
    assert!(peak < weights + (120 << 20), "{json}");
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_fault() {
    let place = Place::new();
    let mut command = place.command(["devices"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    if Path::new("/dev/full").exists() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = place.command(["devices"]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("scumble: standard output: "));
    }
}
