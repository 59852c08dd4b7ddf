"""Scheduler traces: every sampler and schedule on a fixed formula in the place of the network.

`schedulers.json` lists the cases, `schedulers.safetensors` holds their numbers; see README.md.
The formula is `model(x, t) = 0.7·x·cos(0.0005·t) + 0.3·sin(x + 0.001·t)`, elementwise in float32.
"""

import argparse
import warnings
from pathlib import Path

import diffusers
import numpy as np
import torch

import kdiffusion
from storing import relative_l2, save_json, save_tensors

SHAPE = (1, 4, 2, 2)
SEED = 1234
TRAIN = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")

# Noise levels of "Align Your Steps" (NVIDIA, 2024) for Stable Diffusion 1.x: ten steps.
AYS_SD1 = [14.6146412293, 6.4745760956, 3.8636745985, 2.6946151520, 1.8841921177, 1.3943805092,
           0.9642583904, 0.6523686016, 0.3977456272, 0.1515232662, 0.0291671582]

CLASSES = {
    "euler": ("EulerDiscreteScheduler", {}),
    "euler_a": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "dpm2": ("KDPM2DiscreteScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", dict(algorithm_type="dpmsolver++")),
    "dpmpp_2m_sde": ("DPMSolverMultistepScheduler", dict(algorithm_type="sde-dpmsolver++")),
    "ddim": ("DDIMScheduler", dict(set_alpha_to_one=False, clip_sample=False)),
    "lcm": ("LCMScheduler", dict(set_alpha_to_one=False, clip_sample=False, original_inference_steps=50)),
    "unipc": ("UniPCMultistepScheduler", {}),
}
KARRAS_ABLE = ("euler", "heun", "dpm2", "dpmpp_2m", "dpmpp_2m_sde", "unipc")
ZERO_SNR_ABLE = ("euler", "euler_a", "dpmpp_2m", "dpmpp_2m_sde", "ddim", "unipc", "lcm")
SPACINGS = [("leading", 1), ("leading", 0), ("trailing", 0), ("linspace", 0)]


def formula(x, t):
    """The stand-in for the network: smooth, of order one, different at every timestep."""
    t = torch.as_tensor(t).to(torch.float32)
    return 0.7 * x * torch.cos(0.0005 * t) + 0.3 * torch.sin(x + 0.001 * t)


def trembling(seed):
    """The formula with each value off by about half a float32 step: shows what rounding alone does."""
    generator = torch.Generator().manual_seed(seed)
    return lambda x, t: formula(x, t) * (1 + 6e-8 * torch.randn(x.shape, generator=generator))


def alphas_cumprod():
    """The training schedule of Stable Diffusion, float32, 1000 values."""
    betas = torch.linspace(TRAIN["beta_start"] ** 0.5, TRAIN["beta_end"] ** 0.5, 1000, dtype=torch.float32) ** 2
    return torch.cumprod(1 - betas, dim=0)


def make_scheduler(sampler, schedule="discrete", spacing="leading", steps_offset=1,
                   prediction="epsilon", zero_snr=False):
    """The diffusers scheduler of a case, and its configuration as a dict."""
    name, extra = CLASSES[sampler]
    config = dict(TRAIN, **extra, prediction_type=prediction, timestep_spacing=spacing, steps_offset=steps_offset)
    if sampler == "lcm":
        del config["timestep_spacing"], config["steps_offset"]
    if schedule != "discrete":
        config[f"use_{schedule}_sigmas"] = True
    if zero_snr:
        config["rescale_betas_zero_snr"] = True
    return getattr(diffusers, name)(**config), config


def run_diffusers(case, model):
    """Run one case of a diffusers scheduler; returns its numbers and fills in what the case is."""
    scheduler, config = make_scheduler(case["sampler"], case["schedule"], case["spacing"], case["steps_offset"],
                                       case["prediction"], case["zero_snr"])
    scheduler.set_timesteps(case["steps"])
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SHAPE, generator=generator) * scheduler.init_noise_sigma
    rows = [x]
    extra = {"generator": generator} if case["sampler"] not in ("euler", "heun", "dpm2", "unipc", "dpmpp_2m") else {}
    if case["sampler"] == "ddim":
        extra["eta"] = case["eta"]
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(x, t), t)
        result = scheduler.step(output, t, x, **extra)
        x = result.prev_sample
        if getattr(scheduler, "state_in_first_order", True):
            rows.append(x)
    if len(rows) == case["steps"]:  # Heun and DPM2 end in the middle of a pair: the last one is an Euler step.
        rows.append(x)
    case.update(source=f"diffusers.{type(scheduler).__name__}", config=config,
                space="sigma" if case["sampler"] in ("euler", "euler_a", "heun", "dpm2") else "vp",
                init_noise_sigma=float(scheduler.init_noise_sigma))
    numbers = {"timesteps": scheduler.timesteps.float(), "latents": torch.cat(rows).flatten(1)}
    if case["sampler"] in ("ddim", "lcm"):
        last = scheduler.final_alpha_cumprod
        alphas = torch.cat([scheduler.alphas_cumprod[scheduler.timesteps.long()], last.reshape(1)])
        if case["sampler"] == "ddim":
            before = scheduler.timesteps - 1000 // case["steps"]
            alphas[1:] = torch.stack([scheduler.alphas_cumprod[t] if t >= 0 else last for t in before])
        numbers["alphas"] = alphas
    else:
        sigmas = scheduler.sigmas.float()
        if case["sampler"] in ("heun", "dpm2"):
            sigmas = torch.cat([sigmas[:1], sigmas[1::2][: case["steps"]]])
        numbers["sigmas"] = sigmas
    return numbers


def k_sigmas(schedule, steps, denoiser):
    """Sigmas [steps + 1] of a schedule as k-diffusion and ComfyUI define it; the last is 0.

    * discrete: timesteps linear from 999 to 0, `steps` of them.
    * sgm_uniform: timesteps linear from 999 to 0, `steps + 1` of them, the last left out.
    * karras (rho 7), exponential: between the training schedule's own smallest and largest sigma.
    * ays: the ten-step table, log-linear over the step's position for other counts; the last becomes 0.
    """
    low, high = denoiser.sigma_min.item(), denoiser.sigma_max.item()
    if schedule == "discrete":
        return denoiser.get_sigmas(steps)
    if schedule == "sgm_uniform":
        return kdiffusion.sampling.append_zero(denoiser.t_to_sigma(torch.linspace(999, 0, steps + 1)[:-1]))
    if schedule == "karras":
        return kdiffusion.sampling.get_sigmas_karras(steps, low, high)
    if schedule == "exponential":
        return kdiffusion.sampling.get_sigmas_exponential(steps, low, high)
    at = np.linspace(0, 1, steps + 1)
    sigmas = np.exp(np.interp(at, np.linspace(0, 1, len(AYS_SD1)), np.log(AYS_SD1)))
    sigmas[-1] = 0
    return torch.tensor(sigmas, dtype=torch.float32)


def run_k_diffusion(case, model):
    """Run one case of k-diffusion's own sampler; noise comes from the same generator as in diffusers."""
    denoiser = kdiffusion.Denoiser(model, alphas_cumprod(), case["prediction"])
    sigmas = k_sigmas(case["schedule"], case["steps"], denoiser)
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SHAPE, generator=generator) * sigmas[0]
    function = {"euler": "sample_euler", "euler_a": "sample_euler_ancestral", "heun": "sample_heun",
                "dpm2": "sample_dpm_2", "dpmpp_2m": "sample_dpmpp_2m",
                "dpmpp_2s_a": "sample_dpmpp_2s_ancestral"}[case["sampler"]]
    extra, rows = {}, []
    if case["sampler"].endswith("_a"):
        extra["noise_sampler"] = lambda *_: torch.randn(SHAPE, generator=generator)
    last = getattr(kdiffusion.sampling, function)(
        denoiser, x, sigmas, disable=True, callback=lambda state: rows.append(state["x"].clone()), **extra)
    case.update(source=f"k_diffusion.{function}", config=dict(TRAIN), space="sigma",
                init_noise_sigma=sigmas[0].item())
    return {"timesteps": torch.tensor(denoiser.asked), "sigmas": sigmas,
            "latents": torch.cat(rows + [last]).flatten(1)}


def list_cases():
    """Every case: which sampler, schedule, spacing, prediction and number of steps."""
    cases = []

    def add(run, sampler, steps, schedule="discrete", spacing="leading", steps_offset=1,
            prediction="epsilon", zero_snr=False, eta=0.0):
        parts = [sampler, schedule]
        if run is run_diffusers and sampler != "lcm":
            parts.append(f"{spacing}{steps_offset}")
        parts += ["v"] * (prediction != "epsilon") + ["zsnr"] * zero_snr + [f"eta{eta:g}"] * (eta > 0)
        name = ("k." if run is run_k_diffusion else "") + ".".join(parts) + f".{steps}"
        case = dict(name=name, sampler=sampler, steps=steps, schedule=schedule, spacing=spacing,
                    steps_offset=steps_offset, prediction=prediction, zero_snr=zero_snr, eta=eta, seed=SEED)
        if run is run_k_diffusion:
            case.update(spacing=None, steps_offset=None)
        cases.append((run, case))

    for sampler in CLASSES:
        counts = {"leading1": (1, 2, 5, 10, 25), "linspace0": (1, 5, 10)}
        for spacing, offset in SPACINGS if sampler != "lcm" else SPACINGS[:1]:
            for steps in counts.get(f"{spacing}{offset}", (5, 10)):
                add(run_diffusers, sampler, steps, spacing=spacing, steps_offset=offset)
        if sampler in KARRAS_ABLE:
            for schedule in ("karras", "exponential"):
                for steps in (2, 10):
                    add(run_diffusers, sampler, steps, schedule)
                add(run_diffusers, sampler, 5, schedule, "linspace", 0)
                add(run_diffusers, sampler, 5, schedule, "trailing", 0, "v_prediction")
        add(run_diffusers, sampler, 10, prediction="v_prediction")
        if sampler in ZERO_SNR_ABLE:
            for steps in (5, 10):
                add(run_diffusers, sampler, steps, "discrete", "trailing", 0, "v_prediction", True)
    for spacing, offset in SPACINGS:
        for eta in (0.5, 1.0):
            add(run_diffusers, "ddim", 10, spacing=spacing, steps_offset=offset, eta=eta)
    for sampler in ("euler", "euler_a", "heun", "dpm2", "dpmpp_2m", "dpmpp_2s_a"):
        for schedule in ("discrete", "karras", "exponential", "sgm_uniform", "ays"):
            for steps in (5, 10) if schedule != "ays" else (5, 10, 25):
                add(run_k_diffusion, sampler, steps, schedule)
            add(run_k_diffusion, sampler, 10, schedule, prediction="v_prediction")
        add(run_k_diffusion, sampler, 1, "sgm_uniform")
    return cases


def make(out):
    """Write `schedulers.safetensors` and `schedulers.json` into `out`."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.cat([torch.randn(SHAPE, generator=generator) for _ in range(26)]).flatten(1)
    tensors, rows = {"noise": noise, "alphas_cumprod": alphas_cumprod()}, []
    for run, case in list_cases():
        try:
            numbers = run(case, formula)
        except Exception as error:  # some class cannot do some combination: say so, and go on
            print(f"left out {case['name']}: {error}")
            continue
        assert all(value.isfinite().all() for value in numbers.values()), case["name"]
        levels = numbers["sigmas"] if "sigmas" in numbers else numbers["alphas"]
        assert len(numbers["latents"]) == len(levels) == case["steps"] + 1, case["name"]
        again = [run(dict(case), trembling(seed))["latents"][-1] for seed in (1, 2, 3)]
        case["floor"] = float(f"{max(relative_l2(other, numbers['latents'][-1]) for other in again):.2g}")
        tensors.update({f"{case['name']}/{key}": value for key, value in numbers.items()})
        rows.append(case)
    save_tensors(Path(out) / "schedulers.safetensors", tensors)
    save_json(Path(out) / "schedulers.json", {
        "model": "0.7*x*cos(0.0005*t) + 0.3*sin(x + 0.001*t)", "shape": list(SHAPE), "seed": SEED,
        "ays_sd1": AYS_SD1, "cases": rows})
    return rows


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    made = make(parser.parse_args().out)
    print(f"{len(made)} cases; largest floor {max(case['floor'] for case in made):.1e}")
