"""Tensor names: from the diffusers layout to those of the original releases. numpy only.

The other direction, written independently, is diffusers' own single-file loader; `make.py` checks one
against the other.
"""

import re

import numpy as np

RESNET = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1",
          "norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
UNET = {"conv_in": "input_blocks.0.0", "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2", "conv_norm_out": "out.0", "conv_out": "out.2"}
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
LEGACY_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
OPEN_CLIP = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
             "self_attn.out_proj": "attn.out_proj"}


def resnet(rest):
    """`norm1.weight` → `in_layers.0.weight`."""
    head, leaf = rest.rsplit(".", 1)
    return f"{RESNET[head]}.{leaf}"


def original_unet(tensors):
    """UNet under the original names, without the prefix `model.diffusion_model.`."""
    per_block = 1 + max(int(m[1]) for n in tensors if (m := re.match(r"down_blocks\.0\.resnets\.(\d+)", n))) + 1
    attended = {m[1] for n in tensors if (m := re.match(r"up_blocks\.(\d+)\.attentions", n))}
    renamed = {}
    for name, value in tensors.items():
        head, leaf = name.rsplit(".", 1)
        part = re.match(r"(down|up|mid)_blocks?\.(?:(\d+)\.)?(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)", name)
        if not part:
            renamed[f"{UNET[head]}.{leaf}"] = value
            continue
        where, block, kind, index, rest = part[1], int(part[2] or 0), part[3], int(part[4]), part[5]
        rest = resnet(rest) if kind == "resnets" else rest
        slot = {"resnets": 0, "attentions": 1}.get(kind)
        if where == "mid":
            new = f"middle_block.{1 if kind == 'attentions' else 2 * index}.{rest}"
        elif kind == "downsamplers":
            new = f"input_blocks.{(block + 1) * per_block}.0.op.{leaf}"
        elif kind == "upsamplers":
            new = f"output_blocks.{(block + 1) * per_block - 1}.{2 if str(block) in attended else 1}.conv.{leaf}"
        elif where == "down":
            new = f"input_blocks.{1 + block * per_block + index}.{slot}.{rest}"
        else:
            new = f"output_blocks.{block * per_block + index}.{slot}.{rest}"
        renamed[new] = value
    return renamed


def original_vae(tensors):
    """Autoencoder under the original names, without `first_stage_model.`; attention becomes 1×1 convolutions."""
    top = max(int(m[1]) for n in tensors if (m := re.match(r"decoder\.up_blocks\.(\d+)", n)))
    renamed = {}
    for name, value in tensors.items():
        new = re.sub(r"down_blocks\.(\d+)\.resnets", r"down.\1.block", name)
        new = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", new)
        new = re.sub(r"up_blocks\.(\d+)\.resnets", lambda m: f"up.{top - int(m[1])}.block", new)
        new = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"up.{top - int(m[1])}.upsample", new)
        new = re.sub(r"mid_block\.resnets\.(\d+)", lambda m: f"mid.block_{int(m[1]) + 1}", new)
        new = new.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        if "mid_block.attentions.0." in new:
            head, rest = new.split("mid_block.attentions.0.")
            part, leaf = rest.rsplit(".", 1)
            new = f"{head}mid.attn_1.{VAE_ATTENTION[part]}.{leaf}"
            value = value[:, :, None, None] if value.ndim == 2 else value
        renamed[new] = value
    return renamed


def legacy_vae(tensors):
    """The autoencoder's attention names as the Stable Diffusion 1.5 diffusers folder still stores them."""
    renamed = {}
    for name, value in tensors.items():
        if ".attentions.0." in name:
            for new, old in LEGACY_ATTENTION.items():
                name = name.replace(f".attentions.0.{new}.", f".attentions.0.{old}.")
        renamed[name] = value
    return renamed


def open_clip(tensors, join=np.concatenate):
    """The SD 2.x text encoder under OpenCLIP's names: fused q, k, v (by `join`), and every layer, used or not."""
    root = "cond_stage_model.model."
    renamed = {f"{root}token_embedding.weight": tensors["text_model.embeddings.token_embedding.weight"],
               f"{root}positional_embedding": tensors["text_model.embeddings.position_embedding.weight"],
               f"{root}text_projection": tensors["text_projection"], f"{root}logit_scale": tensors["logit_scale"]}
    for name, value in tensors.items():
        if match := re.match(r"text_model\.final_layer_norm\.(.*)", name):
            renamed[f"{root}ln_final.{match[1]}"] = value
        if not (match := re.match(r"text_model\.encoder\.layers\.(\d+)\.(.*)\.(\w+)", name)):
            continue
        block, part, leaf = f"{root}transformer.resblocks.{match[1]}", match[2], match[3]
        if part in OPEN_CLIP:
            renamed[f"{block}.{OPEN_CLIP[part]}.{leaf}"] = value
        elif part == "self_attn.q_proj":
            rows = [tensors[name.replace("q_proj", f"{which}_proj")] for which in "qkv"]
            renamed[f"{block}.attn.in_proj_{leaf}"] = join(rows)
    return renamed


def original_taesd(tensors, half):
    """One half of TAESD with plain `Sequential` numbers; the decoder's begin with a clamp without weights."""
    shift = 1 if half == "decoder" else 0
    found = {}
    for name, value in tensors.items():
        if match := re.match(rf"{half}\.layers\.(\d+)\.(.*)", name):
            found[f"{int(match[1]) + shift}.{match[2]}"] = value
    return found
