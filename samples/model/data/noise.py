"""Seamless noise and cell patterns, the raw stuff of every material.

All functions take a `numpy.random.Generator` and return float32 arrays [size, size] that tile.
"""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=64)
def _gain(size, slope, low, high, stretch):
    fy = np.fft.fftfreq(size, 1 / size)[:, None] * stretch[0]
    fx = np.fft.rfftfreq(size, 1 / size)[None, :] * stretch[1]
    k = np.hypot(fy, fx)
    gain = np.where((k >= low) & (k <= high), np.maximum(k, 1e-3) ** -slope, 0.0)
    gain = gain * np.exp(-((k / (0.3 * size)) ** 2))  # nothing finer than a pixel can show
    gain[0, 0] = 0.0
    return gain.astype(np.float32)


def spectral(rng, size, slope=1.0, low=1, high=1e9, stretch=(1, 1)):
    """Gaussian noise with a power-law spectrum, zero mean and unit deviation.

    `slope` 0 is white and 2 is smooth clouds; `low` and `high` bound the waves per picture;
    a `stretch` of (1, 8) makes streaks that run along x.
    """
    white = rng.standard_normal((size, size), dtype=np.float32)
    shaped = np.fft.irfft2(np.fft.rfft2(white) * _gain(size, slope, low, high, stretch), (size, size))
    return (shaped / max(shaped.std(), 1e-6)).astype(np.float32)


@lru_cache(maxsize=16)
def _blur_gain(size, radius):
    fy = np.fft.fftfreq(size)[:, None]
    fx = np.fft.rfftfreq(size)[None, :]
    return np.exp(-2 * (np.pi * radius) ** 2 * (fy**2 + fx**2)).astype(np.float32)


def blur(field, radius):
    """Gaussian blur that wraps around the edges; `radius` is the deviation in pixels."""
    size = field.shape[0]
    return np.fft.irfft2(np.fft.rfft2(field) * _blur_gain(size, radius), (size, size)).astype(np.float32)


def smoothstep(low, high, value):
    t = np.clip((value - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def mix(a, b, t):
    """Blend two colours or fields by `t`, a field [size, size] or a number."""
    if np.ndim(t) == 2 and max(np.ndim(a), np.ndim(b)) in (1, 3):
        t = t[..., None]
    return a + (b - a) * t


@lru_cache(maxsize=8)
def grid(size):
    """Pixel centres as (y, x), each [size, size] in 0..1."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size
    return np.meshgrid(axis, axis, indexing="ij")


def pick(values, rows, cols):
    """Look a table [rows, cols] up by integer index fields that wrap."""
    return values[rows % values.shape[0], cols % values.shape[1]]


def cells(rng, size, rows, cols, jitter=0.9, warp=0.0):
    """Worley cells: (distance to the nearest point, gap to the second nearest, a random value per cell).

    Distances are in units of one cell.
    """
    y, x = grid(size)
    y, x = y * rows, x * cols
    if warp:
        y = y + warp * spectral(rng, size, 1.6, 2, 3 * rows)
        x = x + warp * spectral(rng, size, 1.6, 2, 3 * cols)
    points = rng.random((2, rows, cols), dtype=np.float32) * jitter + (1 - jitter) / 2
    tone = rng.random((rows, cols), dtype=np.float32)
    row, col = np.floor(y).astype(np.int32), np.floor(x).astype(np.int32)
    near = np.full((size, size), 9, np.float32)
    second = near.copy()
    value = np.zeros((size, size), np.float32)
    for dr in (-1, 0, 1):
        for dc in (-1, 0, 1):
            r, c = row + dr, col + dc
            d = np.hypot(y - r - pick(points[0], r, c), x - c - pick(points[1], r, c))
            closer = d < near
            second = np.where(closer, near, np.minimum(second, d))
            value = np.where(closer, pick(tone, r, c), value)
            near = np.where(closer, d, near)
    return near, second - near, value


def courses(rng, size, rows, cols, shift=0.5, warp=0.0):
    """Rows of blocks: (distance to the block's edge in pixels, random tone per block, local u, local v).

    Each row is moved by `shift` blocks against the one before; `warp` bends the edges, in pixels.
    """
    y, x = grid(size)
    y, x = y * rows, x * cols
    if warp:
        y = y + warp * rows / size * spectral(rng, size, 1.5, 2, 32)
        x = x + warp * cols / size * spectral(rng, size, 1.5, 2, 32)
    row = np.floor(y).astype(np.int32)
    offsets = (np.arange(rows) * shift).astype(np.float32)
    x = x + offsets[row % rows]
    col = np.floor(x).astype(np.int32)
    v, u = y - row, x - col
    edge = np.minimum(np.minimum(v, 1 - v) * size / rows, np.minimum(u, 1 - u) * size / cols)
    tone = rng.random((rows, cols), dtype=np.float32)
    return edge, pick(tone, row, col), u, v
