#!/usr/bin/env python3
"""Makes the built-in model from nothing: data, autoencoder, latents, UNet, export.

Each stage goes on from its last checkpoint, so a run may be stopped at any time and begun again.
"""

import os

# Waiting threads sleep: the machine may be shared.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
from pathlib import Path

import torch

import autoencoder
import bundle
import denoiser
import exported
import latents
import sampling
import team
import text
from checkpoints import say
from data import store
from precision import autocast

HERE = Path(__file__).resolve().parent


def run_data(args):
    if not (args.work / "pictures.npy").exists():
        store.build(args.work, args.count, workers=args.threads)
    _, captions = store.load(args.work)
    vocab, merges = text.vocabulary([wording for wordings in captions for wording in wordings])
    (args.work / "vocab.json").write_text(vocab)
    (args.work / "merges.txt").write_text(merges)
    say(f"data: {len(captions)} pictures, {merges.count(chr(10)) - 1} merges")


def run_begin(args):
    exported.begin(args.out, args.work, args.keep_text)


def run_autoencoder(args):
    team.run(args.threads, autoencoder.train, args.work, args.pictures, args.autoencoder_minutes)


def run_latents(args):
    latents.encode(store.load(args.work)[0], args.work, args.encode)


def run_unet(args):
    team.run(args.threads, denoiser.train, args.work, args.unet_minutes, args.keep_text)


def write_sheet(args, path, prompts=sampling.PROMPTS):
    unet, encoder = denoiser.load(args.work)
    vae = autoencoder.load(args.work)
    vae.register_to_config(scaling_factor=latents.scaling_factor(args.work))
    made = text.tokenizer((args.work / "vocab.json").read_text(), (args.work / "merges.txt").read_text())
    with autocast():
        pictures = sampling.generate(vae, unet, encoder, made, prompts, args.steps, args.cfg, args.side, args.seed)
    sampling.sheet(pictures).save(path)
    say(f"wrote {path.name}")


def run_sample(args):
    write_sheet(args, args.sheet or args.work / "sheet.png", args.prompt or sampling.PROMPTS)


def run_export(args):
    size = bundle.export(args.work, args.out, {**bundle.DEFAULTS, "steps": args.steps, "cfg": args.cfg})
    say(f"wrote {args.out.name}: {size} bytes")


def run_verify(args):
    """Load the exported file through the real classes in f32 and draw the sheet."""
    vae, unet, encoder, made, _ = bundle.load(args.out)
    pictures = sampling.generate(vae, unet, encoder, made, args.prompt or sampling.PROMPTS, args.steps, args.cfg, args.side, args.seed)
    path = args.sheet or HERE / "sheet.png"
    sampling.sheet(pictures, side=128).quantize(256).save(path, optimize=True)
    say(f"wrote {path.name}")


STAGES = {
    "data": run_data, "begin": run_begin, "autoencoder": run_autoencoder, "latents": run_latents, "unet": run_unet,
    "sample": run_sample, "export": run_export, "verify": run_verify,
}
WHOLE = ("data", "autoencoder", "latents", "unet", "export", "verify")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="+", choices=[*STAGES, "all"], metavar="stage", help=", ".join([*STAGES, "all"]))
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/scumble/training", help="checkpoints and data")
    parser.add_argument("--out", type=Path, default=HERE / "builtin.safetensors", help="the exported model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--count", type=int, default=6000, help="pictures in the training set")
    parser.add_argument("--encode", type=int, default=6000, help="how many of them to turn into latents")
    parser.add_argument("--pictures", default="pictures", help="which set the autoencoder learns from")
    parser.add_argument("--autoencoder-minutes", type=float, default=44, help="total, over all runs")
    parser.add_argument("--unet-minutes", type=float, default=48, help="total, over all runs")
    parser.add_argument("--keep-text", action="store_true", help="leave the text encoder as it is")
    parser.add_argument("--prompt", action="append", help="for `sample` and `verify`; repeatable")
    parser.add_argument("--sheet", type=Path, help="where `sample` and `verify` write their pictures")
    parser.add_argument("--steps", type=int, default=bundle.DEFAULTS["steps"])
    parser.add_argument("--cfg", type=float, default=bundle.DEFAULTS["cfg"])
    parser.add_argument("--side", type=int, default=256, help="of sampled pictures, in pixels")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    for stage in WHOLE if "all" in args.stages else args.stages:
        STAGES[stage](args)


if __name__ == "__main__":
    main()
