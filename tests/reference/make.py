"""Makes the reference: small models with random weights, and what every module and pipeline gives on them.

    make.py --seed N --out DIR [--compact] [sizes …]
    make.py --full-size sd15|sd21 --out FILE_OR_DIR [--dtype f16] [--layout original|diffusers]

README.md says what is written. Needs torch, diffusers and transformers (`requirements.txt`); no network.
"""

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

import layouts  # noqa: E402
import models  # noqa: E402
import modules  # noqa: E402
import noise  # noqa: E402
import pipelines  # noqa: E402
import prompts  # noqa: E402
import schedulers  # noqa: E402
import tokens  # noqa: E402
import verify  # noqa: E402
from storing import save_json, save_tensors  # noqa: E402


def numbers(text):
    """`32,64` → (32, 64)."""
    return tuple(int(part) for part in text.split(","))


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seed", type=int, default=1)
    add("--out", required=True)
    add("--compact", action="store_true", help="weights that are exact in f16 (the committed fixtures)")
    add("--only", default="", help="comma-separated parts (sd1 needs taesd before it): "
        "schedulers,noise,prompts,tokens,taesd,vae8,sd1,sd2v,inpaint")
    add("--bpe", help="bpe_simple_vocab_16e6.txt.gz: also make tokens.json (the real vocabulary; needed once)")
    add("--channels", type=numbers, default=(64, 96),
        help="UNet channels a level of sd1 and inpaint: multiples of 32, from 64 (with one channel a group, "
        "normalisation would cancel biases and the timestep)")
    add("--channels2", type=numbers, default=(64, 128), help="the same of sd2v: multiples of 64")
    add("--layers", type=numbers, default=(2, 1), help="residual blocks a level: sd1 and inpaint, sd2v")
    add("--context", type=numbers, default=(64, 128), help="text width: sd1 and inpaint, sd2v")
    add("--vae-channels", type=numbers, default=(64, 64, 64, 96), help="four levels make the usual factor 8")
    add("--latent-channels", type=int, default=4)
    add("--width", type=int, default=48, help="of the pipelines' pictures")
    add("--height", type=int, default=32)
    add("--no-pipelines", action="store_true", help="models and modules only")
    add("--sensitivity", action="store_true", help="also measure that every parameter counts (a minute)")
    add("--threads", type=int, default=1, help="one is fastest on a busy machine, and always sums in one order")
    add("--full-size", choices=("sd15", "sd21"))
    add("--dtype", default="f16", choices=("f16", "f32"), help="of --full-size")
    add("--layout", default="original", choices=("original", "diffusers"), help="of --full-size")
    return parser.parse_args()


def module_references(model, seed, folder, sensitivity):
    """Write `reference/{text,unet,vae}.safetensors` of one model; gives its calibration."""
    text, unet, vae = modules.text(model), modules.unet(model, seed), modules.vae(model["vae"], seed)
    if model["unet"].config.in_channels != model["unet"].config.out_channels:  # inpainting: the rest is that of sd1
        save_tensors(folder / "reference/unet.safetensors", unet)
        return {"unet": modules.floor(modules.run_unet, model["unet"], seed)}
    for name, tensors in (("text", text), ("unet", unet), ("vae", vae)):
        if name == "vae" and folder.name == "sd2v":  # the architecture of sd1's, which is written
            continue
        save_tensors(folder / f"reference/{name}.safetensors", tensors)
    result = {
        "text": modules.floor(modules.run_text, model["text"], text["tokens"]),
        "unet": modules.floor(modules.run_unet, model["unet"], seed),
        "vae_encode": modules.floor(modules.run_vae_encode, model["vae"], vae["wide/image"]),
        "vae_decode": modules.floor(modules.run_vae_decode, model["vae"], vae["wide/latents"]),
    }
    return result | (sensitivity_of(model, text, unet, vae) if sensitivity else {})


def sensitivity_of(model, text, unet, vae):
    """For each network, the parameter that counts least (see `modules.sensitivity`)."""
    short = (unet["wide/sample"], unet["wide/timesteps"], unet["wide/states"])
    run_text = lambda: modules.run_text(model["text"], text["tokens"], torch.float32)
    run_vae = lambda: (modules.run_vae_encode(model["vae"], vae["wide/image"], torch.float32)
                       + modules.run_vae_decode(model["vae"], vae["wide/latents"], torch.float32))
    return {"unet_sensitivity": modules.sensitivity(model["unet"], lambda: [model["unet"](*short).sample]),
            "text_sensitivity": modules.sensitivity(model["text"], run_text),
            "vae_sensitivity": modules.sensitivity(model["vae"], run_vae)}


def make_diffusion(options, name, seed, dtype):
    """One of the three diffusion models with all its references; gives its calibration."""
    out = Path(options.out)
    sizes = {key: getattr(options, key) for key in
             ("channels", "channels2", "layers", "context", "vae_channels", "latent_channels")}
    model = models.make_model(out, name, seed, dtype, sizes)
    result = module_references(model, options.seed * 100, out / name, options.sensitivity)
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / name
        layouts.derive_model(out / name, target, full=name == "sd1")
        for folder in [p.parent for p in target.glob("*/model_index.json")]:
            if folder.name not in ("variant-fp16", "sharded") and (dtype == "F16" or folder.name == "f32"):
                verify.check_folder(folder, model)
        verify.check_index(target)
        verify.check_original(target / "original-f32.safetensors", model)
        if not options.no_pipelines:
            result |= pipelines.make(model, name, options)
    return result


def make_vae8(options, seed, dtype):
    """An autoencoder with 8 latent channels, two levels and no attention in the middle."""
    out = Path(options.out)
    net = models.make_vae(out, seed, dtype, channels=(64, 96), layers=1, latent_channels=8, attention=False,
                          scaling=0.5, sub="vae8")
    tensors = modules.vae(net, options.seed * 100)
    save_tensors(out / "vae8/reference.safetensors", tensors)
    return {"encode": modules.floor(modules.run_vae_encode, net, tensors["wide/image"]),
            "decode": modules.floor(modules.run_vae_decode, net, tensors["wide/latents"])}


def make_taesd(options, seed, dtype):
    """TAESD with its references; the derived files are checked against the class."""
    out = Path(options.out)
    tiny = models.make_taesd(out / "taesd", seed, dtype, latent_channels=options.latent_channels)
    tensors = modules.taesd(tiny, options.seed * 100)
    save_tensors(out / "taesd/reference.safetensors", tensors)
    with tempfile.TemporaryDirectory() as scratch:
        layouts.derive_taesd(out / "taesd", Path(scratch))
        verify.check_taesd(scratch, tiny)
    return {"taesd": modules.floor(modules.run_taesd, tiny, tensors["image"], tensors["latents"])}


def main():
    """Make what was asked for, and say how long each part took."""
    options = arguments()
    if options.full_size:
        import full_size
        return full_size.make(options.full_size, options.out, options.dtype, options.layout, options.seed)
    seed, dtype = f"scumble/{options.seed}", "F16" if options.compact else "F32"
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    parts = {
        "schedulers": lambda: schedulers.make(options.out), "noise": lambda: noise.make(options.out),
        "prompts": lambda: prompts.make(options.out),
        **({"tokens": lambda: tokens.make(options.bpe, options.out)} if options.bpe else {}),
        "taesd": lambda: make_taesd(options, seed, dtype), "vae8": lambda: make_vae8(options, seed, dtype),
        **{name: lambda name=name: make_diffusion(options, name, seed, dtype) for name in ("sd1", "sd2v", "inpaint")},
    }
    for name in options.only.split(",") if options.only else parts:
        if name == "inpaint" and options.latent_channels != 4:
            print("inpaint: left out, diffusers' pipeline takes four latent channels only")
            continue
        begun = time.time()
        result = parts[name]()
        if isinstance(result, dict):
            save_json(Path(options.out) / name / "calibration.json", result)
        print(f"{name}: {time.time() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
