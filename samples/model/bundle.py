"""The one-file model: f16 tensors of all parts, configs and vocabulary in the file's metadata."""

import json
import os

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel

import autoencoder
import denoiser
import latents
import text

LIMIT = 25_000_000  # bytes; the file is embedded in the program
TITLE = "Scumble built-in texture model"
DEFAULTS = {"steps": 20, "cfg": 4.0, "width": 256, "height": 256, "negative": ""}
MODEL_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "feature_extractor": [None, None],
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def _plain(config):
    """A config's JSON without the versions and paths of this machine."""
    table = json.loads(config.to_json_string(use_diff=False) if hasattr(config, "model_type") else config.to_json_string())
    return json.dumps({k: v for k, v in table.items() if not k.startswith("_name_or_path") and k not in ("_diffusers_version", "transformers_version")})


def text_names(state):
    """State of the text encoder under the names that CLIP checkpoints have."""
    return {k if k.startswith("text_model.") else f"text_model.{k}": v for k, v in state.items() if "position_ids" not in k}


def export(work, path, defaults=DEFAULTS):
    vae = autoencoder.load(work)
    vae.register_to_config(scaling_factor=latents.scaling_factor(work))
    unet, encoder = denoiser.load(work)
    tensors = {}
    parts = {"vae": vae.state_dict(), "unet": unet.state_dict(), "text_encoder": text_names(encoder.state_dict())}
    for part, state in parts.items():
        for name, tensor in state.items():
            half = tensor.to(torch.float16).contiguous()
            if not torch.isfinite(half).all():
                raise SystemExit(f"{part}.{name} does not fit into f16")
            tensors[f"{part}.{name}"] = half
    metadata = {
        "format": "scumble-bundle",
        "title": TITLE,
        "license": "MIT OR Apache-2.0",
        "model_index": json.dumps(MODEL_INDEX),
        "unet.config": _plain(unet),
        "vae.config": _plain(vae),
        "text_encoder.config": _plain(encoder.config),
        "scheduler.config": json.dumps(denoiser.SCHEDULER),
        "tokenizer.vocab": (work / "vocab.json").read_text(),
        "tokenizer.merges": (work / "merges.txt").read_text(),
        "tokenizer.config": json.dumps(text.tokenizer_config()),
        "defaults": json.dumps(defaults),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata)
    size = partial.stat().st_size
    if size >= LIMIT:
        raise SystemExit(f"{path.name} would be {size} bytes, over the limit of {LIMIT}")
    os.replace(partial, path)
    return size


def load(path):
    """(vae, unet, text encoder, tokenizer, metadata) from a bundle, through the real classes, in f32."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    if not all(t.dtype == torch.float16 and torch.isfinite(t).all() for t in tensors.values()):
        raise SystemExit(f"{path}: a tensor is not finite f16")

    def part(prefix):
        return {k.removeprefix(prefix + "."): v.float() for k, v in tensors.items() if k.startswith(prefix + ".")}

    vae = AutoencoderKL.from_config(json.loads(metadata["vae.config"]))
    vae.load_state_dict(part("vae"))
    unet = UNet2DConditionModel.from_config(json.loads(metadata["unet.config"]))
    unet.load_state_dict(part("unet"))
    encoder = CLIPTextModel(CLIPTextConfig(**json.loads(metadata["text_encoder.config"])))
    theirs = part("text_encoder")
    if not next(iter(encoder.state_dict())).startswith("text_model."):
        theirs = {k.removeprefix("text_model."): v for k, v in theirs.items()}
    encoder.load_state_dict(theirs)
    made = text.tokenizer(metadata["tokenizer.vocab"], metadata["tokenizer.merges"])
    return vae.eval(), unet.eval(), encoder.eval(), made, metadata
