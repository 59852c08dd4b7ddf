"""Checks that the derived files are what diffusers itself reads: every tensor, bit for bit."""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.loaders import single_file_utils as reader
from safetensors.torch import load_file
from transformers import CLIPTextModel


def same(found, expected, what):
    """Both dicts hold the same names, shapes and values."""
    assert set(found) == set(expected), (what, set(found) ^ set(expected))
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape and torch.equal(found[name].float(), tensor.float()), (what, name)


def check_folder(folder, model):
    """A diffusers folder loads through `from_pretrained`, and gives the networks we made."""
    pipeline = StableDiffusionPipeline.from_pretrained(
        str(folder), torch_dtype=torch.float32, safety_checker=None, local_files_only=True) \
        if model["unet"].config.in_channels == model["unet"].config.out_channels else None
    parts = (pipeline.unet, pipeline.vae, pipeline.text_encoder) if pipeline else (
        UNet2DConditionModel.from_pretrained(f"{folder}/unet"), AutoencoderKL.from_pretrained(f"{folder}/vae"),
        CLIPTextModel.from_pretrained(f"{folder}/text_encoder"))
    for part, key in zip(parts, ("unet", "vae", "text")):
        same(part.state_dict(), model[key].state_dict(), f"{folder} {key}")


def check_original(path, model):
    """The single file, put through diffusers' converters, gives the networks we made."""
    checkpoint = load_file(str(path))
    unet = reader.convert_ldm_unet_checkpoint(dict(checkpoint), dict(model["unet"].config))
    same(unet, model["unet"].state_dict(), f"{path} unet")
    vae = reader.convert_ldm_vae_checkpoint(dict(checkpoint), dict(model["vae"].config))
    same(vae, model["vae"].state_dict(), f"{path} vae")
    if any(name.startswith("cond_stage_model.model.") for name in checkpoint):
        text = reader.convert_open_clip_checkpoint(model["text"], dict(checkpoint))
        text = {name.removeprefix("transformer."): t for name, t in text.items()}
    else:
        text = reader.convert_ldm_clip_checkpoint(dict(checkpoint))
    wanted = {f"text_model.{name.removeprefix('text_model.')}": t for name, t in model["text"].state_dict().items()}
    extra = set(text) - set(wanted)
    unused = f"text_model.encoder.layers.{model['text'].config.num_hidden_layers}."
    assert all(n.startswith(unused) or n in ("text_projection.weight", "text_model.embeddings.position_ids")
               for n in extra), extra
    same({name: t for name, t in text.items() if name not in extra}, wanted, f"{path} text")


def check_taesd(folder, tiny):
    """TAESD's plain numbers, shifted back, are the diffusers tensors."""
    state = tiny.state_dict()
    for half, shift in (("encoder", 0), ("decoder", 1)):
        found = {}
        for name, tensor in load_file(f"{folder}/taesd_{half}.safetensors").items():
            number, rest = name.split(".", 1)
            found[f"{half}.layers.{int(number) - shift}.{rest}"] = tensor
        same(found, {n: t for n, t in state.items() if n.startswith(half)}, half)


def check_index(folder):
    """A sharded folder's index names files that are there and tensors that are in them."""
    for path in Path(folder).rglob("*.index.json"):
        index = json.loads(path.read_text())
        for file in set(index["weight_map"].values()):
            stored = set(load_file(str(path.parent / file)))
            assert stored == {n for n, f in index["weight_map"].items() if f == file}, file
