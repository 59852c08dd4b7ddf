"""How references are written to disk: safetensors, and JSON with stable bytes."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def save_tensors(path, tensors, metadata=None):
    """Write `tensors` (name → torch tensor or numpy array) as one safetensors file.

    Every tensor is copied, so views and shared storage are fine.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    ready = {}
    for name, value in tensors.items():
        value = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        ready[name] = value.detach().clone().contiguous()
    save_file(ready, str(path), metadata=metadata)
    path.chmod(0o644)


def save_json(path, value):
    """Write `value` as JSON, one item of the top level's lists a line, so that diffs stay readable."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pretty(value) + "\n", encoding="utf-8")


def pretty(value, depth=0, open_levels=2):
    """JSON that opens the outer `open_levels` levels over lines and keeps the rest on one line."""
    pad = " " * (depth + 1)
    if depth < open_levels and isinstance(value, dict) and value:
        rows = [f"{pad}{json.dumps(key)}: {pretty(item, depth + 1, open_levels)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
    if depth < open_levels and isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        rows = [pad + json.dumps(item, ensure_ascii=False) for item in value]
        return "[\n" + ",\n".join(rows) + "\n" + " " * depth + "]"
    return json.dumps(value, ensure_ascii=False)


def relative_l2(found, expected):
    """‖found − expected‖ / ‖expected‖, computed in float64."""
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    return ((found - expected).norm() / expected.norm().clamp_min(1e-300)).item()


def decibels(found, expected, peak=None):
    """Peak signal to noise ratio in dB; the peak is 1 for pictures, else the largest expected value."""
    found, expected = torch.as_tensor(found).double(), torch.as_tensor(expected).double()
    peak = expected.abs().max().item() if peak is None else peak
    error = (found - expected).pow(2).mean().sqrt().item()
    return float("inf") if error == 0 else 20 * np.log10(peak / error)
