"""Random-weight checkpoints of the real sizes, for speed and memory. Outside git; nothing here is a picture.

Tensors are made and written one by one, so memory stays at the largest tensor. The scale keeps the signal
of order one (by fan-in), so nothing overflows.
"""

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

import models
import names
import vocabulary

UNET = dict(in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2,
            down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
            up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3, norm_num_groups=32)
VAE = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, scaling_factor=0.18215,
           down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, sample_size=512)
TEXT = dict(vocab_size=49408, max_position_embeddings=77, bos_token_id=49406, eos_token_id=49407)
SIZES = {
    "sd15": (dict(sample_size=64, cross_attention_dim=768, attention_head_dim=8, use_linear_projection=False),
             dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                  hidden_act="quick_gelu", projection_dim=768, pad_token_id=49407), 0),
    "sd21": (dict(sample_size=96, cross_attention_dim=1024, attention_head_dim=(5, 10, 20, 20),
                  use_linear_projection=True),
             dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=23, num_attention_heads=16,
                  hidden_act="gelu", projection_dim=1024, pad_token_id=0), 1),
}


class Sketch:
    """A tensor that is not made yet: its diffusers name and shape, seen as what `names.py` does to arrays.

    `parts` are the sketches that lie one after another along the first axis (fused q, k, v).
    """

    def __init__(self, parts, shape):
        self.parts, self.shape, self.ndim = parts, tuple(shape), len(shape)

    def __getitem__(self, at):  # [:, :, None, None]: a matrix becomes a 1×1 convolution
        return Sketch(self.parts, (*self.shape, 1, 1))

    @staticmethod
    def join(rows):
        """What `np.concatenate` does to arrays."""
        return Sketch([p for r in rows for p in r.parts], (sum(r.shape[0] for r in rows), *rows[0].shape[1:]))

    def make(self, seed, dtype):
        """The values, as one array of `shape`."""
        rows = [weights(seed, name, shape, dtype) for name, shape in self.parts]
        return np.concatenate(rows).reshape(self.shape) if len(rows) > 1 else rows[0].reshape(self.shape)


def weights(seed, name, shape, dtype):
    """Normal values with the scale that `models.py` gives this name; float16 or float32."""
    scale, offset = models.scale_of(name, shape)
    digest = [seed, *name.encode()]
    values = np.random.default_rng(digest).standard_normal(int(np.prod(shape)), dtype=np.float32)
    return (values * np.float32(scale) + np.float32(offset)).astype(dtype).reshape(shape)


def sketches(kind):
    """{component: {diffusers name: Sketch}} and the configs, without making a single weight."""
    unet_sizes, text_sizes, unused = SIZES[kind]
    with torch.device("meta"):
        unet, vae = UNet2DConditionModel(**UNET, **unet_sizes), AutoencoderKL(**VAE)
        layers = text_sizes["num_hidden_layers"] + unused
        text = CLIPTextModel(CLIPTextConfig(**TEXT, **text_sizes | dict(num_hidden_layers=layers)))
    draw = lambda shapes: {name: Sketch([(name, shape)], shape) for name, shape in shapes.items()}
    shapes = models.stored_names(text, "text_model.")
    if unused:
        shapes |= {"text_projection": (text_sizes["projection_dim"],) * 2, "logit_scale": ()}
    parts = {"unet": draw(models.stored_names(unet)), "vae": draw(models.stored_names(vae)), "text_encoder": draw(shapes)}
    return parts, {"unet": unet, "vae": vae, "text_encoder": TEXT | text_sizes}


def stream(path, tensors, seed, dtype):
    """Write {name: Sketch} as safetensors, making each tensor when its turn comes."""
    kind = {"f16": (np.float16, "F16"), "f32": (np.float32, "F32")}[dtype]
    header, offset = {}, 0
    for name, sketch in tensors.items():
        size = int(np.prod(sketch.shape)) * np.dtype(kind[0]).itemsize
        header[name] = {"dtype": kind[1], "shape": list(sketch.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for sketch in tensors.values():
            file.write(sketch.make(seed, kind[0]).tobytes())


def original_names(parts, two):
    """{original name: Sketch} of the single file."""
    text = names.open_clip(parts["text_encoder"], Sketch.join) if two else {
        f"cond_stage_model.transformer.{name}": t for name, t in parts["text_encoder"].items()}
    return ({f"model.diffusion_model.{n}": t for n, t in names.original_unet(parts["unet"]).items()}
            | {f"first_stage_model.{n}": t for n, t in names.original_vae(parts["vae"]).items()} | text)


def make(kind, out, dtype="f16", layout="original", seed=1):
    """Write the checkpoint: one file (`original`), or a diffusers folder without a tokenizer's real vocabulary."""
    parts, configs = sketches(kind)
    out = Path(out)
    if layout == "original":
        return stream(out, original_names(parts, kind == "sd21"), seed, dtype)
    unused = f"text_model.encoder.layers.{configs['text_encoder']['num_hidden_layers']}."
    for part, tensors in parts.items():
        if part == "text_encoder":
            tensors = {n: t for n, t in tensors.items() if n.startswith("text_model.") and not n.startswith(unused)}
            (out / part).mkdir(parents=True, exist_ok=True)
            (out / part / "config.json").write_text(json.dumps(
                {"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "layer_norm_eps": 1e-5}
                | configs[part], indent=2) + "\n")
        else:
            configs[part].save_config(out / part)
            models.tidy(out / part / "config.json")
        stem = "model" if part == "text_encoder" else "diffusion_pytorch_model"
        stream(out / part / f"{stem}.safetensors", tensors, seed, dtype)
    models.write_index(out, "sd2v" if kind == "sd21" else "sd1")
    vocabulary.write(out / "tokenizer", pad="!" if kind == "sd21" else "<|endoftext|>")
