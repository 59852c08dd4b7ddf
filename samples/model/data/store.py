"""The training set on disk: pictures, captions, and for solids their depth and joints."""

import json
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from .textures import texture

SOLID_SHARE = 0.18  # of the set, where not said otherwise
MIXED = 4000  # pictures of everything; those after them show blocks overgrown, cracked, snowed in


def is_solid(index, seed=1, share=SOLID_SHARE):
    """Whether picture `index` of a set is a solid, not a flat texture."""
    return index < MIXED and bool(np.random.default_rng((seed, index, 1)).random() < share)


def _make(job):
    index, seed, size, share = job
    if is_solid(index, seed, share):
        from .solids import solid

        scene = solid((seed, index), size)
        return scene.picture, scene.captions
    return texture((seed, index), size, weathered=index >= MIXED)


def build(folder: Path, count, seed=1, size=256, workers=2, name="pictures", solids=SOLID_SHARE):
    """Write `count` pictures to NAME.npy and their captions (several each) to NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{name}.partial.npy"
    pictures = np.lib.format.open_memmap(partial, "w+", np.uint8, (count, size, size, 3))
    captions = []
    with Pool(workers) as pool:
        jobs = ((i, seed, size, solids) for i in range(count))
        for i, (picture, words) in enumerate(pool.imap(_make, jobs, chunksize=16)):
            pictures[i] = picture
            captions.append(words)
            if i % 500 == 499:
                print(f"data: {i + 1}/{count}", flush=True)
    pictures.flush()
    (folder / f"{name}.json").write_text(json.dumps(captions))
    partial.rename(folder / f"{name}.npy")


def load(folder: Path, name="pictures"):
    return np.load(folder / f"{name}.npy", mmap_mode="r"), json.loads((folder / f"{name}.json").read_text())
