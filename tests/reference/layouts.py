"""Derives every file layout that the tests need from the model folders in `tests/fixtures`.

    layouts.py --in tests/fixtures --out target/fixtures

Needs numpy and ml_dtypes only (`requirements-derive.txt`). README.md lists what is written.
"""

import argparse
import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np

import names
import recipe

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
          "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
          "I64": np.int64, "I32": np.int32}
NAME_OF = {np.dtype(kind): name for name, kind in DTYPES.items()}
COMPONENTS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}


def save(path, tensors, metadata=None):
    """Write a safetensors file: numpy arrays of any type in DTYPES, in the order given."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        header[name] = {"dtype": NAME_OF[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


def cast(tensors, dtype):
    """Round all floating tensors to `dtype` (a key of DTYPES); integers stay."""
    kind = DTYPES[dtype]
    return {name: t.astype(kind) if t.dtype.kind not in "iu" else t for name, t in tensors.items()}


def read_model(folder):
    """{component: tensors} of a model folder, cooked from its recipes."""
    return {part: recipe.read(Path(folder) / part / "weights.json") for part in COMPONENTS}


def stored_text(tensors, config):
    """What the diffusers folder stores of the text encoder: no unused last layer, no projection."""
    unused = f"text_model.encoder.layers.{config['num_hidden_layers']}."
    return {name: t for name, t in tensors.items()
            if not name.startswith(unused) and name not in ("text_projection", "logit_scale")}


def read_config(folder, part):
    """A component's JSON config as a dict."""
    name = "scheduler_config.json" if part == "scheduler" else "config.json"
    return json.loads((Path(folder) / part / name).read_text(encoding="utf-8"))


def write_folder(source, target, parts, variant="", shards=0, legacy_vae=False):
    """A diffusers folder: configs copied, weights written; optionally a variant or in shards."""
    shutil.copytree(source, target, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("weights.json", "cases", "reference", "index.json", "calibration.json"))
    for part, tensors in parts.items():
        tensors = stored_text(tensors, read_config(source, part)) if part == "text_encoder" else tensors
        if part == "vae" and legacy_vae:
            tensors = names.legacy_vae(tensors)
        stem = f"{COMPONENTS[part]}{variant}"
        if shards and part != "vae":
            write_shards(Path(target) / part, stem, tensors, shards)
        else:
            save(Path(target) / part / f"{stem}.safetensors", tensors, {"format": "pt"})


def write_shards(folder, stem, tensors, count):
    """`count` safetensors files and the index JSON that says which holds what."""
    keys, where, total = sorted(tensors), {}, 0
    for at in range(count):
        name = f"{stem}-{at + 1:05}-of-{count:05}.safetensors"
        part = {key: tensors[key] for key in keys[at::count]}
        save(folder / name, part, {"format": "pt"})
        where |= dict.fromkeys(part, name)
        total += sum(t.nbytes for t in part.values())
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}, indent=2) + "\n")


def original(parts, two):
    """The single file of the original release: UNet, autoencoder and text encoder under its names."""
    unet, vae = names.original_unet(parts["unet"]), names.original_vae(parts["vae"])
    text = names.open_clip(parts["text_encoder"]) if two else {
        f"cond_stage_model.transformer.{name}": t for name, t in parts["text_encoder"].items()}
    tensors = {f"model.diffusion_model.{name}": t for name, t in unet.items()}
    tensors |= {f"first_stage_model.{name}": t for name, t in vae.items()} | text
    return tensors | extras(unet, two)


def extras(unet, two):
    """What training leaves in such files and readers must skip: schedule buffers, averages, position ids."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=np.float64) ** 2
    cumulative = np.cumprod(1 - betas)
    first = next(iter(unet))
    more = {"betas": betas, "alphas_cumprod": cumulative, "alphas_cumprod_prev": np.append(1.0, cumulative[:-1]),
            "sqrt_alphas_cumprod": np.sqrt(cumulative), "sqrt_one_minus_alphas_cumprod": np.sqrt(1 - cumulative)}
    more = {name: t.astype(np.float32) for name, t in more.items()}
    more |= {"model_ema.decay": np.array(0.9999, np.float32), "model_ema.num_updates": np.array(470000, np.int32),
             "model_ema.diffusion_model" + first.replace(".", ""): unet[first] * 0,
             "first_stage_model.loss.logvar": np.zeros((), np.float32)}
    if two:
        more["cond_stage_model.model.attn_mask"] = np.triu(np.full((77, 77), -np.inf, np.float32), 1)
    else:
        more["cond_stage_model.transformer.text_model.embeddings.position_ids"] = np.arange(77, dtype=np.int64)[None]
    return more


def metadata_of(folder):
    """Configs and tokenizer of a model folder as safetensors metadata (strings)."""
    folder = Path(folder)
    read = lambda path: (folder / path).read_text(encoding="utf-8")
    return {"unet.config": read("unet/config.json"), "vae.config": read("vae/config.json"),
            "text_encoder.config": read("text_encoder/config.json"),
            "scheduler.config": read("scheduler/scheduler_config.json"),
            "tokenizer.config": read("tokenizer/tokenizer_config.json"),
            "tokenizer.special_tokens_map": read("tokenizer/special_tokens_map.json"),
            "tokenizer.vocab": read("tokenizer/vocab.json"), "tokenizer.merges": read("tokenizer/merges.txt")}


def bundle(folder, parts):
    """One file with diffusers names behind `unet.`, `vae.`, `text_encoder.`; gives (tensors, metadata)."""
    parts = parts | {"text_encoder": stored_text(parts["text_encoder"], read_config(folder, "text_encoder"))}
    tensors = {f"{part}.{name}": t for part, content in parts.items() for name, t in content.items()}
    return tensors, {"format": "scumble-bundle", "license": "CC0-1.0"} | metadata_of(folder)


def derive_model(source, target, full):
    """All layouts of one diffusion model; `full` adds the rarer ones."""
    parts, two = read_model(source), source.name == "sd2v"
    native = NAME_OF[parts["unet"]["conv_in.weight"].dtype].lower()
    metadata = metadata_of(source)
    wide = {part: cast(tensors, "F32") for part, tensors in parts.items()}
    write_folder(source, target / native, parts)
    write_folder(source, target / "f32", wide)
    save(target / f"original-{native}.safetensors", original(parts, two), metadata)
    save(target / "original-f32.safetensors", original(wide, two), metadata)
    tensors, about = bundle(source, parts)
    save(target / f"bundle-{native}.safetensors", tensors, about)
    if not full:
        return
    write_folder(source, target / "sharded", parts, shards=3)
    write_folder(source, target / "variant-fp16", {p: cast(t, "F16") for p, t in parts.items()}, variant=".fp16")
    write_folder(source, target / "legacy-vae", parts, legacy_vae=True)
    save(target / "original-nometadata.safetensors", original(wide, two))
    save(target / "vae-original.safetensors", names.original_vae(wide["vae"]))
    save(target / "vae-diffusers.safetensors", wide["vae"])
    for dtype in ("F64", "BF16", "F8_E4M3", "F8_E5M2"):
        rounded = {part: cast(tensors, dtype) for part, tensors in parts.items()}
        save(target / f"original-{dtype.lower()}.safetensors", original(rounded, two), metadata)
        if dtype != "F64":
            again = {part: cast(tensors, "F32") for part, tensors in rounded.items()}
            save(target / f"original-{dtype.lower()}-as-f32.safetensors", original(again, two), metadata)


def derive_taesd(source, target):
    """TAESD: the diffusers folder, the two original files, and one file with both halves."""
    tensors = recipe.read(source / "weights.json")
    config = (source / "config.json").read_text()
    save(target / "diffusers/diffusion_pytorch_model.safetensors", tensors, {"format": "pt"})
    (target / "diffusers/config.json").write_text(config)
    wide = cast(tensors, "F32")
    for half, file in (("encoder", "taesd_encoder"), ("decoder", "taesd_decoder")):
        save(target / f"{file}.safetensors", names.original_taesd(wide, half))
    save(target / "taesd.safetensors", wide)


def derive_vae(source, target):
    """A lone autoencoder: diffusers folder and the original names, with the config as metadata."""
    wide = cast(recipe.read(source / "weights.json"), "F32")
    config = (source / "config.json").read_text()
    save(target / "diffusers/diffusion_pytorch_model.safetensors", wide, {"format": "pt"})
    (target / "diffusers/config.json").write_text(config)
    save(target / "vae-original.safetensors", names.original_vae(wide), {"vae.config": config})


def derive(source, target):
    """Everything: `target/<model>/…` for each model folder in `source`."""
    source, target = Path(source), Path(target)
    for model in ("sd1", "sd2v", "inpaint"):
        if (source / model / "model_index.json").exists():
            derive_model(source / model, target / model, full=model == "sd1")
    if (source / "taesd/weights.json").exists():
        derive_taesd(source / "taesd", target / "taesd")
    if (source / "vae8/weights.json").exists():
        derive_vae(source / "vae8", target / "vae8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in", dest="source", required=True)
    parser.add_argument("--out", dest="target", required=True)
    options = parser.parse_args()
    derive(options.source, options.target)
