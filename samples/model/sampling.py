"""Pictures from the model, and sheets of them."""

import diffusers
import numpy as np
import torch
from PIL import Image

import denoiser
import text

PROMPTS = (
    "mossy red brick wall", "blue ceramic tiles", "rusty metal plates", "lava",
    "green marble", "wooden planks", "snow", "a stone sphere on sand",
    "cobblestone", "purple crystal", "worn teal fabric", "water",
    "cracked white concrete", "grass", "gold", "a wooden box on grass",
)


def scheduler(config=denoiser.SCHEDULER):
    made = getattr(diffusers, config["_class_name"])
    return made.from_config({k: v for k, v in config.items() if not k.startswith("_")})


@torch.no_grad()
def generate(vae, unet, encoder, made, prompts, steps=20, cfg=4.0, side=256, seed=0, config=denoiser.SCHEDULER):
    """Pictures [n, side, side, 3] uint8, one per prompt."""
    states = encoder(text.ids(made, [""] * len(prompts) + list(prompts))).last_hidden_state
    plan = scheduler(config)
    plan.set_timesteps(steps)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((len(prompts), unet.config.in_channels, side // 8, side // 8), generator=generator) * plan.init_noise_sigma
    for t in plan.timesteps:
        both = plan.scale_model_input(torch.cat([x, x]), t)
        free, bound = unet(both, t, states).sample.float().chunk(2)
        x = plan.step(free + cfg * (bound - free), t, x).prev_sample
    pictures = torch.cat([vae.decode(one[None] / vae.config.scaling_factor).sample.float() for one in x])
    pictures = ((pictures / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
    return pictures.permute(0, 2, 3, 1).numpy()


def sheet(pictures, columns=4, side=None):
    """All pictures in one, row by row."""
    pictures = list(pictures)
    while len(pictures) % columns:
        pictures.append(np.zeros_like(pictures[0]))
    rows = [np.concatenate(pictures[i : i + columns], 1) for i in range(0, len(pictures), columns)]
    image = Image.fromarray(np.concatenate(rows, 0))
    if side:
        image = image.resize((side * columns, side * len(rows)), Image.LANCZOS)
    return image
