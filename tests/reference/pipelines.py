"""Whole pipelines: the real diffusers ones, run on the small models, with all noise written down."""

import warnings
from contextlib import contextmanager
from pathlib import Path

import diffusers
import numpy as np
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

import cases
import kdiffusion
import models
import prompts
import schedulers
from storing import decibels, save_json, save_tensors

PIPELINES = {"text": diffusers.StableDiffusionPipeline, "image": diffusers.StableDiffusionImg2ImgPipeline,
             "inpaint": diffusers.StableDiffusionInpaintPipeline}


def draw_picture(width, height, seed):
    """A soft random picture, uint8 [H, W, 3]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 8, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
    return (fine[0].permute(1, 2, 0) * 255).round().byte().numpy()


def draw_mask(width, height):
    """White (255) is repainted: a rectangle off the centre that cuts through latent cells. uint8 [H, W]."""
    mask = np.zeros((height, width), np.uint8)
    mask[height // 5 : height * 3 // 4, width // 3 + 3 : width - 5] = 255
    return mask


def write_inputs(folder, width, height, seed):
    """`init.png`, `mask.png` and the same as float32 in `inputs.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, mask = draw_picture(width, height, seed), draw_mask(width, height)
    Image.fromarray(picture).save(folder / "init.png")
    Image.fromarray(mask).save(folder / "mask.png")
    tensors = {"image": torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255,
               "mask": torch.from_numpy(mask)[None, None].float() / 255}
    save_tensors(folder / "inputs.safetensors", tensors)
    return tensors


@contextmanager
def posterior_mean(active):
    """Let the autoencoder's posterior give its mean; nothing is drawn then."""
    kept = DiagonalGaussianDistribution.sample
    if active:
        DiagonalGaussianDistribution.sample = lambda self, generator=None: self.mean
    yield
    DiagonalGaussianDistribution.sample = kept


@contextmanager
def exact(model):
    """Let the networks compute in float64 between float32 latents: what is left is their rounding."""
    unet, vae = model["unet"].double(), model["vae"].double()
    forward, encode, decode = unet.forward, vae.encode, vae.decode
    up = lambda value: value.double() if torch.is_tensor(value) and value.is_floating_point() else value

    def run_unet(sample, timestep, encoder_hidden_states=None, **rest):
        result = forward(up(sample), up(timestep), up(encoder_hidden_states), **rest)
        return tuple(x.float() for x in result) if isinstance(result, tuple) else result

    def run_encode(x, *a, **k):
        result = encode(up(x), *a, **k)
        result.latent_dist = DiagonalGaussianDistribution(result.latent_dist.parameters.float())
        return result

    unet.forward = run_unet
    vae.encode = run_encode
    vae.decode = lambda z, *a, **k: tuple(x.float() for x in decode(up(z), return_dict=False))
    yield
    del unet.forward, vae.encode, vae.decode
    unet.float(), vae.float()


def draws(case, generator_state, shape):
    """The noise of a run, drawn again: `(names, tensors)` in the order of the generator.

    Image kinds draw the posterior's noise first (unless `posterior` is "mean"), then the initial noise;
    inpainting draws the masked picture's posterior after it. Then one draw a step for stochastic samplers.
    """
    before, after = [], []
    if case["posterior"] == "sample":
        if case["kind"] == "image" or (case["kind"] == "inpaint" and (case["strength"] < 1 or not case["nine_channels"])):
            before = ["posterior"]
        after = ["masked_posterior"] if case["kind"] == "inpaint" else []
    generators = [torch.Generator().manual_seed(case["seed"] + i)
                  for i in range(case["batch"] if case["seeds"] == "each" else 1)]
    one = shape if len(generators) == 1 else (1, *shape[1:])
    draw = lambda: torch.cat([torch.randn(one, generator=g) for g in generators])
    named = {name: draw() for name in [*before, "noise", *after]}
    steps = []
    while not torch.equal(generators[0].get_state(), generator_state):
        steps.append(draw())
        assert len(steps) < 100, case["name"]
    if steps:
        named["step_noise"] = torch.stack(steps)
    return named


def run(model, case, inputs):
    """One pipeline run. Gives (image [N, 3, H, W] in 0…1, latents after each step, generator states)."""
    scheduler, _ = schedulers.make_scheduler(*(case[key] for key in (
        "sampler", "schedule", "spacing", "steps_offset", "prediction", "zero_snr")))
    pipe = PIPELINES[case["kind"]](
        vae=model["taesd"] if case["autoencoder"] == "taesd" else model["vae"], text_encoder=model["text"],
        tokenizer=model["tokenizer"], unet=model["unet"], scheduler=scheduler, safety_checker=None,
        feature_extractor=None, requires_safety_checker=False)
    pipe.set_progress_bar_config(disable=True)
    positive, negative = prompts.pair(model, case["prompt"], case["negative"], case["clip_skip"])
    if plain(case) and case["clip_skip"] == 1:  # Then diffusers' own encoding must agree with ours.
        theirs = pipe.encode_prompt(case["prompt"], "cpu", 1, True, case["negative"])
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(theirs, (positive, negative))), case["name"]
    generators = [torch.Generator().manual_seed(case["seed"] + i) for i in range(case["batch"])]
    rows = []

    def after_step(pipeline, index, t, values):
        if getattr(pipeline.scheduler, "state_in_first_order", True) or index == last:
            rows.append(values["latents"].clone())
        return values

    extra = {"image": inputs["image"], "strength": case["strength"]} if case["kind"] != "text" else {}
    if case["kind"] == "inpaint":
        extra |= {"mask_image": inputs["mask"]}
    if case["kind"] != "image":
        extra |= {"width": case["width"], "height": case["height"]}
    if case["kind"] == "text":
        extra |= {"guidance_rescale": case["guidance_rescale"]}
    if case["cfg"] > 1:
        extra |= {"negative_prompt_embeds": negative}
    order = 2 if case["sampler"] in ("heun", "dpm2") else 1
    active = min(int(case["steps"] * case["strength"]), case["steps"])
    last = active * order - order
    with posterior_mean(case["posterior"] == "mean"):
        result = pipe(prompt_embeds=positive, num_inference_steps=case["steps"], guidance_scale=case["cfg"],
                      generator=generators if case["seeds"] == "each" else generators[0], eta=case["eta"],
                      num_images_per_prompt=case["batch"], output_type="pt", callback_on_step_end=after_step, **extra)
    assert len(rows) == active, (case["name"], len(rows), active)
    return result.images.float(), torch.stack(rows), generators, (positive, negative)


def plain(case):
    """Whether the prompts have no brackets and fit one chunk."""
    return not any(len(text) > 150 or set(text) & set("()[]\\") for text in (case["prompt"], case["negative"]))


@torch.no_grad()
def run_k(model, case, _):
    """The same with k-diffusion's samplers: guidance in one batch of (negative, positive)."""
    positive, negative = prompts.pair(model, case["prompt"], case["negative"], case["clip_skip"])
    states = torch.cat([negative, positive])

    def guided(x, t):
        away, toward = model["unet"](torch.cat([x, x]), t, states, return_dict=False)[0].chunk(2)
        return away + case["cfg"] * (toward - away)

    denoiser = kdiffusion.Denoiser(guided, schedulers.alphas_cumprod(), case["prediction"])
    sigmas = schedulers.k_sigmas(case["schedule"], case["steps"], denoiser)
    generator = torch.Generator().manual_seed(case["seed"])
    shape = (1, model["vae"].config.latent_channels, case["height"] // 8, case["width"] // 8)
    rows, name = [], {"dpmpp_2s_a": "dpmpp_2s_ancestral"}.get(case["sampler"], case["sampler"])
    extra = {"noise_sampler": lambda *_: torch.randn(shape, generator=generator)} if name.endswith("ancestral") else {}
    x = torch.randn(shape, generator=generator) * sigmas[0]
    last = getattr(kdiffusion.sampling, f"sample_{name}")(
        denoiser, x, sigmas, disable=True, callback=lambda state: rows.append(state["x"].clone()), **extra)
    image = model["vae"].decode(last / model["vae"].config.scaling_factor, return_dict=False)[0]
    return (image / 2 + 0.5).clamp(0, 1), torch.stack(rows[1:] + [last]), [generator], (positive, negative)


def make(model, name, options):
    """Run all cases of a model; writes `index.json`, `inputs/` and `cases/*.safetensors`; gives the floors."""
    warnings.filterwarnings("ignore")
    folder = Path(options.out) / name
    tiny = Path(options.out) / "taesd"
    model = model | {"taesd": None}
    listed = getattr(cases, name)()
    if options.latent_channels != 4:  # diffusers' inpainting takes four latent channels only
        listed = [case for case in listed if case["kind"] != "inpaint"]
    if any(case["autoencoder"] == "taesd" for case in listed):
        model["taesd"] = models.load_taesd(tiny)
    inputs = write_inputs(folder.parent / "inputs", options.width, options.height, options.seed)
    index, floors = [], {}
    for case in listed:
        case = {"width": options.width, "height": options.height} | case
        case["nine_channels"] = name == "inpaint"
        runner = run_k if case["source"] == "k" else run
        image, latents, generators, states = runner(model, case, inputs)
        shape = (case["batch"], *latents.shape[2:])
        tensors = draws(case, generators[0].get_state(), shape) | {"latents": latents, "image": image}
        if case["name"] in ("long", "weighted", "long_weighted", "clip_skip_2"):
            tensors |= {"positive": states[0], "negative": states[1]}
        save_tensors(folder / f"cases/{case['name']}.safetensors", tensors)
        if case["autoencoder"] == "vae":
            with exact(model):
                again = runner(model, case, inputs)[0]
            floors[case["name"]] = round(float(decibels(image, again, peak=1.0)), 1)
        inside = ((image > 0) & (image < 1)).float().mean().item()
        assert image.isfinite().all() and inside > 0.25 and image.std() > 0.03, (case["name"], inside, image.std())
        index.append(case | {"file": f"cases/{case['name']}.safetensors",
                             "tensors": {key: list(value.shape) for key, value in tensors.items()}})
    save_json(folder / "index.json", {"model": name, "init_image": "../inputs/init.png", "mask": "../inputs/mask.png",
                                      "inputs": "../inputs/inputs.safetensors", "cases": index})
    save_prompts(model, name, folder)
    return {"picture_db": floors, "picture_db_least": min(floors.values())}


def save_prompts(model, name, folder):
    """`reference/prompts.json`: for the prompts of the cases, fragments, chunks, and weights."""
    texts = dict.fromkeys(text for case in getattr(cases, name)() for text in (case["prompt"], case["negative"]))
    rows = [{"prompt": text, "fragments": prompts.parse(text),
             "chunks": [{"ids": ids, "weights": weights} for ids, weights in prompts.chunks(model["tokenizer"], text)]}
            for text in texts]
    save_json(folder / "reference/prompts.json", {"prompts": rows})
