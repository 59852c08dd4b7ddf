"""Random numbers: what `torch.randn` gives on the CPU, and what it gives on CUDA (Philox).

`rng.json` holds float32 values as their bits (u32), so that equality can be exact; see README.md.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch

from recipe import philox
from storing import save_json

SEEDS = [0, 1, 42, 4242, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**64 - 1]
COUNTS = [1, 2, 3, 5, 15, 16, 17, 24, 31, 32, 33, 64, 100, 1000, 4 * 8 * 8, 4 * 6 * 10, 4 * 64 * 64]

# Known answers of Philox4x32-10 as published with Random123: counter, key, result.
RANDOM123 = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]
# `torch.manual_seed(0); torch.randn(12, device="cuda")`, as several public programs record it.
CUDA_SEED_0 = [-0.92466259, -0.42534415, -2.6438457, 0.14518388, -0.12086647, -0.57972564,
               -0.62285122, -0.32838709, -1.07454231, -0.36314407, -1.67105067, 2.26550497]


def cuda_randn(seed, count, offset=0):
    """`torch.randn(count)` on CUDA, float32 [count], for counts below one grid of threads.

    One value a counter: element i takes counter (offset, 0, i, 0) and key (seed low, seed high), the
    first two words through Box–Muller (sine half). `offset` counts the calls before this one.
    Uniforms and logarithm are taken in float64 here and rounded once at the end; a GPU works in
    float32, so real CUDA values differ by a few 1e-7.
    """
    index = np.arange(count, dtype=np.uint32)
    counter = np.stack([np.full_like(index, offset), np.zeros_like(index), index, np.zeros_like(index)])
    key = np.stack([np.full_like(index, seed & 0xFFFFFFFF), np.full_like(index, seed >> 32)])
    words = philox(counter, key)
    scale = np.float64(np.float32(2.0**-32))
    turn = np.float64(np.float32(2.0**-32 * 2 * np.pi))
    u = words[0] * scale + scale / 2
    v = words[1] * turn + turn / 2
    return (np.sqrt(-2 * np.log(u)) * np.sin(v)).astype(np.float32)


def torch_randn(seed, count):
    """`torch.randn(count)` of a fresh CPU generator, as numpy float32 [count]."""
    return torch.randn(count, generator=torch.Generator("cpu").manual_seed(seed)).numpy()


def bits(values):
    """float32 values as their u32 bit patterns, for JSON."""
    return [int(v) for v in np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)]


def describe(values):
    """All bits of up to 64 values; the first and last 16 and a SHA-256 of the little-endian bytes always."""
    digest = hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").tobytes()).hexdigest()
    row = {"count": len(values), "sha256": digest}
    if len(values) <= 64:
        return row | {"bits": bits(values)}
    return row | {"first_bits": bits(values[:16]), "last_bits": bits(values[-16:])}


def check_philox():
    """Philox against the published known answers and against recorded CUDA output."""
    for counter, key, expected in RANDOM123:
        found = philox(np.array(counter)[:, None], np.array(key)[:, None])[:, 0]
        assert found.tolist() == expected, (found, expected)
    assert np.abs(cuda_randn(0, 12) - np.array(CUDA_SEED_0)).max() < 3e-7


def sequences():
    """Several draws from one CPU generator: sizes below 16 leave half a pair behind for the next draw."""
    rows = []
    for seed in (0, 7):
        for counts in ([5, 5, 3], [5, 16, 3], [1, 1, 1, 1], [16, 16], [17, 5], [15, 64, 1], [64, 64], [3, 1000, 2]):
            generator = torch.Generator("cpu").manual_seed(seed)
            rows.append({"seed": str(seed),
                         "draws": [describe(torch.randn(n, generator=generator).numpy()) for n in counts]})
    return rows


def make(out):
    """Write `rng.json` into `out`. Seeds are strings, because they reach 2⁶⁴ − 1."""
    check_philox()
    save_json(Path(out) / "rng.json", {
        "torch": [{"seed": str(seed), **describe(torch_randn(seed, count))} for seed in SEEDS for count in COUNTS],
        "torch_sequences": sequences(),
        "philox_words": [{"counter": c, "key": k, "words": w} for c, k, w in RANDOM123],
        "philox": [{"seed": str(seed), "offset": offset, **describe(cuda_randn(seed, count, offset))}
                   for seed in SEEDS for offset in (0, 1, 5) for count in (1, 12, 64, 256, 4 * 64 * 64)],
        "cuda_recorded": {"seed": "0", "values": CUDA_SEED_0},
    })


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    make(parser.parse_args().out)
