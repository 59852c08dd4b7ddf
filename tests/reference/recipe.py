"""Weights from a recipe: every tensor of a model as a pure function of (seed, name, shape, scale, offset).

Random weights do not compress, so the repository holds recipes (`weights.json`) in their place.
Only integer arithmetic and single IEEE operations are used: the bytes are the same on every machine.
Needs numpy only.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

ROOT_3 = 1.7320508075688772


def philox(counter, key):
    """Philox4x32 with ten rounds. counter: uint32 [4, n]; key: uint32 [2, n] or [2, 1]; gives uint32 [4, n]."""
    c = [np.asarray(row, dtype=np.uint64) for row in counter]
    k = [np.asarray(row, dtype=np.uint64) for row in key]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(second >> half) ^ c[1] ^ k[0], second & low, (first >> half) ^ c[3] ^ k[1], first & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c).astype(np.uint32)


def uniform(seed, name, count):
    """float64 [count], mean 0 and variance 1, uniform; the stream is chosen by `seed` and `name`."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    key = np.frombuffer(digest[:8], dtype="<u4").reshape(2, 1)
    index = np.arange((count + 3) // 4, dtype=np.uint32)
    zero = np.zeros_like(index)
    words = philox([index, zero, zero, zero], key).T.reshape(-1)[:count]
    return (words.astype(np.float64) * 2.0**-31 + (2.0**-32 - 1.0)) * ROOT_3


def tensor(seed, name, row, dtype):
    """The tensor that `row` = {shape, scale, offset} describes, as float16 or float32."""
    values = uniform(seed, name, int(np.prod(row["shape"]))) * row["scale"] + row["offset"]
    return values.astype(dtype).reshape(row["shape"])


def digest(tensors):
    """SHA-256 over the names and little-endian bytes, in the order of names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(np.ascontiguousarray(tensors[name]).tobytes())
    return total.hexdigest()


def cook(recipe):
    """All tensors of a recipe: {name: float16 or float32 array}."""
    dtype = {"F16": np.float16, "F32": np.float32}[recipe["dtype"]]
    return {name: tensor(recipe["seed"], name, row, dtype) for name, row in recipe["tensors"].items()}


def read(path):
    """Cook the recipe at `path` and check the bytes against the recorded SHA-256."""
    recipe = json.loads(Path(path).read_text(encoding="utf-8"))
    tensors = cook(recipe)
    if digest(tensors) != recipe["sha256"]:
        raise ValueError(f"{path}: the weights differ from those the references were made with")
    return tensors


def write(path, seed, dtype, rows):
    """Write the recipe of `rows` (name → {shape, scale, offset}); gives the tensors."""
    recipe = {"seed": seed, "dtype": dtype, "sha256": "", "tensors": rows}
    tensors = cook(recipe)
    recipe["sha256"] = digest(tensors)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    head = json.dumps({key: recipe[key] for key in ("seed", "dtype", "sha256")})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-1]}, "tensors": {{\n{lines}\n}}}}\n', encoding="utf-8")
    return tensors
