"""What single networks give: text states, UNet, autoencoder, TAESD, with their inputs beside them.

Each function returns {key: tensor}; README.md lists keys and shapes. All float32.
"""

import copy

import numpy as np
import torch

from storing import decibels, relative_l2

PROMPTS = ["", "Rusty METAL plate, 3 rivets & café crème … 雪", "the cat " * 60]


def normal(seed, *shape):
    """Seeded inputs; the values are stored, so how they were drawn does not matter."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def text(model):
    """`tokens` I64 [3, 77]; `last` [3, 77, C]: last layer, final norm; `before_last` [3, 77, C]: one layer less, final norm."""
    encoder, tokenizer = model["text"], model["tokenizer"]
    tokens = tokenizer(PROMPTS, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
    result = encoder(tokens, output_hidden_states=True)
    assert torch.equal(encoder.final_layer_norm(result.hidden_states[-1]), result.last_hidden_state)
    before = encoder.final_layer_norm(result.hidden_states[-2])
    return {"tokens": tokens, "last": result.last_hidden_state, "before_last": before}


def unet_inputs(unet, seed):
    """Four calls: tall and wide latents, another timestep each, contexts of several lengths, odd sizes."""
    channels, width = unet.config.in_channels, unet.config.cross_attention_dim
    rows = {"wide": (6, 10, [981.0, 20.0], 77), "tall": (12, 8, [500.5, 999.0], 16),
            "long": (4, 8, [1.0, 401.0], 100), "odd": (5, 7, [301.0, 0.0], 5)}
    return {name: (normal(seed + i, 2, channels, h, w), torch.tensor(t), normal(seed + 10 + i, 2, n, width))
            for i, (name, (h, w, t, n)) in enumerate(rows.items())}


@torch.no_grad()
def unet(model, seed):
    """Per call NAME: `NAME/sample` [2, C, h, w], `NAME/timesteps` [2], `NAME/states` [2, n, context],
    `NAME/output` [2, latent, h, w]; and the timestep embedding: `time/…`."""
    net = model["unet"]
    tensors = {}
    for name, (sample, timesteps, states) in unet_inputs(net, seed).items():
        tensors |= {f"{name}/sample": sample, f"{name}/timesteps": timesteps, f"{name}/states": states,
                    f"{name}/output": net(sample, timesteps, states).sample}
    timesteps = torch.tensor([0.0, 1.0, 20.0, 499.5, 981.0, 999.0])
    waves = net.time_proj(timesteps)
    return tensors | {"time/timesteps": timesteps, "time/sinusoidal": waves, "time/embedding": net.time_embedding(waves)}


@torch.no_grad()
def vae(net, seed):
    """`NAME/image` [n, 3, H, W] in −1…1 with `NAME/mean` and `NAME/logvar` of the posterior (logvar clamped
    to −30…20), and `NAME/latents` [n, C, h, w] (not scaled) with `NAME/decoded` [n, 3, H, W], not clamped."""
    factor = 2 ** (len(net.config.block_out_channels) - 1)
    tensors = {}
    for i, (name, h, w, n) in enumerate([("wide", 6, 10, 1), ("tall", 8, 5, 2)]):
        image = normal(seed + i, n, 3, h * factor, w * factor).clamp(-2, 2) / 2
        latents = normal(seed + 10 + i, n, net.config.latent_channels, h, w) * 4
        posterior = net.encode(image).latent_dist
        tensors |= {f"{name}/image": image, f"{name}/mean": posterior.mean, f"{name}/logvar": posterior.logvar,
                    f"{name}/latents": latents, f"{name}/decoded": net.decode(latents).sample}
    return tensors


@torch.no_grad()
def taesd(net, seed):
    """`image` [2, 3, 48, 80] in −1…1 → `encoded` [2, 4, 6, 10]; `latents` → `decoded` in −1…1."""
    image, latents = normal(seed, 2, 3, 48, 80).clamp(-2, 2) / 2, normal(seed + 1, 2, net.config.latent_channels, 6, 10)
    return {"image": image, "encoded": net.encode(image).latents, "latents": latents,
            "decoded": net.decode(latents).sample}


def floor(run, module, *rest):
    """What float32 loses in torch itself: (relative L2, dB) of float32 against float64, worst over the outputs."""
    exact = copy.deepcopy(module).double()
    single, double = run(module, *rest, dtype=torch.float32), run(exact, *rest, dtype=torch.float64)
    pairs = list(zip(single, double))
    return {"relative_l2": float(f"{max(relative_l2(a, b) for a, b in pairs):.2g}"),
            "db": round(min(float(decibels(a, b)) for a, b in pairs), 1)}


@torch.no_grad()
def run_unet(net, seed, dtype):
    return [net(s.to(dtype), t.to(dtype), c.to(dtype)).sample for s, t, c in unet_inputs(net, seed).values()]


@torch.no_grad()
def run_text(net, tokens, dtype):
    return [net(tokens).last_hidden_state]


@torch.no_grad()
def run_vae_encode(net, image, dtype):
    posterior = net.encode(image.to(dtype)).latent_dist
    return [posterior.mean, posterior.logvar]


@torch.no_grad()
def run_vae_decode(net, latents, dtype):
    return [net.decode(latents.to(dtype)).sample]


@torch.no_grad()
def run_taesd(net, image, latents, dtype):
    return [net.encode(image.to(dtype)).latents, net.decode(latents.to(dtype)).sample]


@torch.no_grad()
def sensitivity(module, run, seed=0):
    """How much the output moves (relative L2) when one parameter moves by 10 %: (least, name of the least).

    A value near 0 would mean that a fault in that tensor could hide. Biases of keys are left out: softmax
    does not see them.
    """
    generator = torch.Generator().manual_seed(seed)
    before, least = run(), (np.inf, "")
    for name, parameter in module.named_parameters():
        if name.endswith(("k_proj.bias", "to_k.bias")):
            continue
        kept = parameter.detach().clone()
        parameter.data += 0.1 * kept.std().nan_to_num(1.0) * torch.randn(kept.shape, generator=generator)
        moved = max(relative_l2(a, b) for a, b in zip(run(), before))
        parameter.data.copy_(kept)
        least = min(least, (moved, name))
    return {"least": float(f"{least[0]:.2g}"), "tensor": least[1]}
