"""The small models: real diffusers and transformers classes, filled from recipes (`recipe.py`).

A model is a folder in the diffusers layout without its weights: configs, tokenizer, and a
`weights.json` in the place of each weight file. `layouts.py` turns such a folder into files.
"""

import json
import re
from pathlib import Path

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

import recipe
import vocabulary

SCHEDULERS = {
    # As the Stable Diffusion 1.5 release has it.
    "sd1": ("PNDMScheduler", dict(
        beta_end=0.012, beta_schedule="scaled_linear", beta_start=0.00085, clip_sample=False,
        num_train_timesteps=1000, prediction_type="epsilon", set_alpha_to_one=False, skip_prk_steps=True,
        steps_offset=1, timestep_spacing="leading", trained_betas=None)),
    # As the Stable Diffusion 2.1 release (768 pixels) has it.
    "sd2v": ("DDIMScheduler", dict(
        beta_end=0.012, beta_schedule="scaled_linear", beta_start=0.00085, clip_sample=False,
        num_train_timesteps=1000, prediction_type="v_prediction", set_alpha_to_one=False, skip_prk_steps=True,
        steps_offset=1, trained_betas=None)),
}


def scale_of(name, shape):
    """`(scale, offset)` of a parameter: norms near 1, biases 0.2, weights by fan-in with gains that keep
    the signal of order one and make every branch count."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "bias" or leaf.endswith("proj_bias"):
        return 0.2, 0.0
    if len(shape) <= 1:
        return (0.2, 1.0) if shape else (0.5, 2.0)
    if "token_embedding" in name:
        return 0.6, 0.0
    if "position" in name:
        return 0.4, 0.0
    fan_in = int(torch.tensor(shape[1:]).prod())
    gain = 1.0
    if re.search(r"\.(to_q|to_k|q_proj|k_proj)\.", name):
        gain = 1.5
    elif re.search(r"(^|\.)(conv1|conv2|conv_out|time_emb_proj|linear_2|fc2|ff\.net\.2)\.", name):
        gain = 1.5
    elif re.search(r"layers\.\d+\.conv\.\d", name):
        gain = 0.7 if ".conv.4." in name else 1.3
    return gain / fan_in**0.5, 0.0


def rows_of(shapes, tuned=None):
    """Recipe rows of {name: shape}; `tuned` gives single tensors a factor on the scale and an offset."""
    rows = {}
    for name, shape in shapes.items():
        scale, offset = scale_of(name, shape)
        if name in (tuned or {}):
            scale, offset = scale * tuned[name][0], tuned[name][1]
        rows[name] = {"shape": list(shape), "scale": float(f"{scale:.4g}"), "offset": offset}
    return rows


def fill(module, tensors, strip="", dtype=torch.float32):
    """Load recipe tensors into a torch module; every parameter must be there. Gives the module in eval mode."""
    state = {name.removeprefix(strip): torch.from_numpy(t.copy()).to(dtype) for name, t in tensors.items()}
    wanted = set(module.state_dict())
    missing = wanted - set(state)
    assert not {name for name in missing if not name.endswith("position_ids")}, missing
    module.to(dtype).load_state_dict({k: v for k, v in state.items() if k in wanted}, strict=False)
    return module.eval()


def stored_names(module, prefix=""):
    """{name on disk: shape} of a module's parameters; transformers 5 dropped `text_model.` in memory only."""
    return {prefix + name.removeprefix(prefix): tuple(p.shape) for name, p in module.state_dict().items()
            if not name.endswith("position_ids")}


def make_unet(folder, seed, dtype, *, channels, layers, context, heads, linear, in_channels=4, latent_channels=4,
              prediction=None, sample_size=8):
    """UNet with one cross-attention level per channel count except the last, as SD 1.x and 2.x have it."""
    deep = len(channels)
    unet = UNet2DConditionModel(
        sample_size=sample_size, in_channels=in_channels, out_channels=latent_channels,
        block_out_channels=tuple(channels), layers_per_block=layers, cross_attention_dim=context,
        down_block_types=("CrossAttnDownBlock2D",) * (deep - 1) + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (deep - 1),
        attention_head_dim=heads, use_linear_projection=linear, norm_num_groups=32)
    finish(unet, Path(folder) / "unet", seed, dtype, "unet")
    return unet


def make_vae(folder, seed, dtype, *, channels, layers, latent_channels, attention=True, scaling=0.18215,
             sub="vae", sample_size=64):
    """AutoencoderKL; the picture is 2^(levels − 1) times the latents' size."""
    deep = len(channels)
    vae = AutoencoderKL(
        block_out_channels=tuple(channels), layers_per_block=layers, latent_channels=latent_channels,
        down_block_types=("DownEncoderBlock2D",) * deep, up_block_types=("UpDecoderBlock2D",) * deep,
        mid_block_add_attention=attention, scaling_factor=scaling, norm_num_groups=32, sample_size=sample_size)
    finish(vae, Path(folder) / sub, seed, dtype, "vae", tuned={
        "encoder.conv_out.weight": (2.0, 0.0), "decoder.conv_out.weight": (0.45, 0.0), "decoder.conv_out.bias": (0.5, 0.0)})
    return vae


def make_taesd(folder, seed, dtype, *, channels=16, latent_channels=4):
    """AutoencoderTiny with the block counts of TAESD and fewer channels."""
    width = (channels,) * 4
    tiny = AutoencoderTiny(encoder_block_out_channels=width, decoder_block_out_channels=width,
                           latent_channels=latent_channels)
    finish(tiny, Path(folder), seed, dtype, "taesd", tuned={
        "decoder.layers.18.weight": (0.4, 0.0), "decoder.layers.18.bias": (0.3, 0.5), "encoder.layers.14.weight": (2.5, 0.0)})
    return tiny


def finish(module, folder, seed, dtype, name, tuned=None):
    """Write config and recipe of a diffusers module and load the recipe into it."""
    module.save_config(folder)
    tidy(folder / "config.json")
    fill(module, recipe.write(folder / "weights.json", f"{seed}/{name}", dtype, rows_of(stored_names(module), tuned)))


def make_text(folder, seed, dtype, *, tokens, width, layers, heads, activation, pad, unused_layers=0):
    """CLIP text encoder. `unused_layers` more layers go into the recipe for the original single file
    (OpenCLIP stores the last layer, which SD 2.x does not use), with `text_projection` and `logit_scale`."""
    config = dict(vocab_size=tokens, hidden_size=width, intermediate_size=width * 4, num_attention_heads=heads,
                  hidden_act=activation, max_position_embeddings=77, layer_norm_eps=1e-5, projection_dim=width,
                  bos_token_id=tokens - 2, eos_token_id=tokens - 1, pad_token_id=pad)
    whole = CLIPTextModel(CLIPTextConfig(num_hidden_layers=layers + unused_layers, **config))
    text = CLIPTextModel(CLIPTextConfig(num_hidden_layers=layers, **config))
    shapes = stored_names(whole, "text_model.")
    if unused_layers:
        shapes |= {"text_projection": (width, width), "logit_scale": ()}
    folder = Path(folder) / "text_encoder"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["CLIPTextModel"], "attention_dropout": 0.0, "dropout": 0.0, "initializer_factor": 1.0,
         "initializer_range": 0.02, "model_type": "clip_text_model", "num_hidden_layers": layers,
         "torch_dtype": "float32"} | config, indent=2, sort_keys=True) + "\n")
    fill(text, recipe.write(folder / "weights.json", f"{seed}/text", dtype, rows_of(shapes)), strip="text_model.")
    return text


def tidy(path):
    """Drop what changes with the machine or the library's version from a config."""
    config = json.loads(path.read_text())
    for key in ("_name_or_path", "_use_default_values"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_index(folder, scheduler, pipeline="StableDiffusionPipeline"):
    """`model_index.json` and `scheduler/scheduler_config.json`."""
    name, config = SCHEDULERS[scheduler]
    folder = Path(folder)
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    (folder / "scheduler/scheduler_config.json").write_text(
        json.dumps({"_class_name": name, "_diffusers_version": "0.6.0"} | config, indent=2) + "\n")
    (folder / "model_index.json").write_text(json.dumps({
        "_class_name": pipeline, "_diffusers_version": "0.6.0", "feature_extractor": [None, None],
        "requires_safety_checker": False, "safety_checker": [None, None], "scheduler": ["diffusers", name],
        "text_encoder": ["transformers", "CLIPTextModel"], "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"]}, indent=2) + "\n")


def read_tokenizer(folder):
    """The tokenizer of a model folder, as transformers loads it."""
    return CLIPTokenizer.from_pretrained(str(Path(folder) / "tokenizer"))


def make_model(out, name, seed, dtype, sizes):
    """Make one of `sd1`, `sd2v`, `inpaint` under `out`. Gives {unet, vae, text, tokenizer} in float32.

    `inpaint` shares the text encoder and the autoencoder of `sd1` (the same recipes, written again).
    """
    folder = Path(out) / name
    two = name == "sd2v"
    at = 1 if two else 0
    own = seed if name != "inpaint" else f"{seed}/inpaint"
    tokens = vocabulary.write(folder / "tokenizer", pad="!" if two else "<|endoftext|>")
    width, latent = sizes["context"][at], sizes["latent_channels"]
    base = f"{seed}/{'sd2v' if two else 'sd1'}"
    text = make_text(folder, base, dtype, tokens=tokens, width=width, layers=3 if two else 2,
                     heads=max(1, width // 64) if two else 4, activation="gelu" if two else "quick_gelu",
                     pad=0 if two else tokens - 1, unused_layers=1 if two else 0)
    channels = sizes["channels2"] if two else sizes["channels"]
    unet = make_unet(folder, f"{own}/{name}", dtype, channels=channels, layers=sizes["layers"][at], context=width,
                     heads=[c // 64 for c in channels] if two else 8, linear=two,
                     in_channels=latent if name != "inpaint" else 2 * latent + 1, latent_channels=latent)
    vae = make_vae(folder, base, dtype, channels=sizes["vae_channels"], layers=1, latent_channels=latent)
    write_index(folder, "sd2v" if two else "sd1",
                "StableDiffusionInpaintPipeline" if name == "inpaint" else "StableDiffusionPipeline")
    return {"unet": unet, "vae": vae, "text": text, "tokenizer": read_tokenizer(folder), "folder": folder}


def load_taesd(folder):
    """TAESD of a fixture folder: its config and recipe."""
    tiny = AutoencoderTiny.from_config(AutoencoderTiny.load_config(str(folder)))
    return fill(tiny, recipe.read(Path(folder) / "weights.json"))
