"""The training set as latents, so that the autoencoder runs once per picture only."""

import os

import numpy as np
import torch

import autoencoder
from checkpoints import say
from data import store
from precision import autocast

STD = "latents.std"


@torch.no_grad()
def encode(pictures, work, count, batch=8):
    """Write latents of every picture (32x32) and of solids at half size (16x16), as float16.

    Stops after `count` pictures; a later call goes on from there. The UNet may train meanwhile.
    """
    model = autoencoder.load(work)
    n = len(pictures)
    shapes = {32: (n, autoencoder.LATENT_CHANNELS, 32, 32), 16: (n, autoencoder.LATENT_CHANNELS, 16, 16)}
    paths = {side: work / f"latents{side}.npy" for side in shapes}
    mark = work / "latents.done"
    done = int(mark.read_text()) if mark.exists() else 0
    files = {}
    for side, shape in shapes.items():
        mode = "r+" if done and paths[side].exists() else "w+"
        files[side] = np.lib.format.open_memmap(paths[side], mode, np.float16, shape)
    count = min(count, n)
    while done < count:
        block = torch.from_numpy(pictures[done : done + batch].copy()).permute(0, 3, 1, 2).float() / 127.5 - 1
        block = block.contiguous(memory_format=torch.channels_last)
        solids = [i for i in range(len(block)) if store.is_solid(done + i)]
        half = torch.nn.functional.avg_pool2d(block[solids], 2)
        for side, x, rows in ((32, block, range(len(block))), (16, half, solids)):
            if len(x) == 0:
                continue
            with autocast():
                mean = model.encode(x).latent_dist.mean
            files[side][[done + i for i in rows]] = mean.float().numpy()
        done = min(n, done + batch)
        if done % 400 < batch or done >= count:
            for file in files.values():
                file.flush()
            if not (work / STD).exists():  # measured once: the UNet is trained on this scale
                (work / STD).write_text(repr(float(files[32][:done].astype(np.float32).std())))
            partial = mark.with_suffix(".partial")
            partial.write_text(str(done))
            os.replace(partial, mark)
            say(f"latents {done}/{count}")


def load(work, side):
    """(latents [n, channels, side, side] float16 memory map, how many of them are written)."""
    return np.load(work / f"latents{side}.npy", mmap_mode="r"), int((work / "latents.done").read_text())


def scaling_factor(work):
    return round(1 / float((work / STD).read_text()), 6)
