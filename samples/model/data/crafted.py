"""Materials that are one sheet: metals, cloth, leather, marble, concrete.

Each takes (rng, size, tint) with tint a colour [3] and returns a `Surface`.
"""

import numpy as np

from .colours import rgb
from .noise import cells, grid, mix, smoothstep, spectral
from .surface import Surface


def _none(size):
    return np.zeros((size, size), np.float32)


def marble(rng, size, tint):
    flow = spectral(rng, size, 2.0, 1, 9) + 0.10 * spectral(rng, size, 1.2, 6, 40)
    side = spectral(rng, size, 1.6, 1)
    vein = np.clip(1 - np.abs(np.sin(flow * 2.3)) / 0.2, 0, 1) ** 1.3
    hair = np.clip(1 - np.abs(spectral(rng, size, 2.0, 2, 14)) / 0.06, 0, 1)
    pale = tint.mean() > 0.55
    vein_colour = tint * 0.42 if pale else np.clip(tint * 0.5 + 0.5, 0, 1)
    albedo = tint * (1 + 0.09 * side[..., None])
    albedo = mix(albedo, vein_colour, np.clip(0.8 * vein + 0.35 * hair, 0, 1))
    return Surface(albedo, 0.05 * side, _none(size), 0.25)


def granite(rng, size, tint):
    specks = spectral(rng, size, 0.0, 24, 90)
    other = spectral(rng, size, 0.0, 20, 70)
    cloud = spectral(rng, size, 1.5, 1)
    albedo = tint * (1 + 0.05 * cloud[..., None])
    albedo = mix(albedo, tint * 0.35, smoothstep(0.9, 1.3, specks))
    albedo = mix(albedo, np.clip(tint * 0.4 + 0.55, 0, 1), smoothstep(1.0, 1.4, other))
    return Surface(albedo, 0.15 * specks, _none(size), 0.25)


def terrazzo(rng, size, tint):
    near, gap, tone = cells(rng, size, 13, 13, 1.0, 0.1)
    chip = smoothstep(0.10, 0.16, gap) * (tone > 0.35)
    hues = rgb(120, 100, 90), rgb(220, 214, 206), rgb(70, 74, 80), tint * 0.6
    colour = np.select([tone[..., None] < 0.5, tone[..., None] < 0.66, tone[..., None] < 0.82], hues[:3], hues[3])
    return Surface(mix(tint * np.ones((size, size, 1), np.float32), colour, chip), _none(size), _none(size), 0.2)


def concrete(rng, size, tint):
    stain = spectral(rng, size, 1.7, 1)
    fine = spectral(rng, size, 0.5, 12)
    hole = smoothstep(2.0, 2.6, spectral(rng, size, 0.5, 14, 60))
    albedo = tint * (1 + 0.07 * stain[..., None] + 0.04 * fine[..., None]) * (1 - 0.45 * hole[..., None])
    return Surface(albedo, 0.45 * fine - 2.5 * hole, hole)


def plaster(rng, size, tint):
    strokes = spectral(rng, size, 1.1, 3, stretch=(1, 2.5)) + spectral(rng, size, 1.1, 3, stretch=(2.5, 1))
    fine = spectral(rng, size, 0.5, 20)
    return Surface(tint * (1 + 0.03 * strokes[..., None]), 1.5 * strokes + 0.25 * fine, smoothstep(0, -2, strokes))


def metal(rng, size, tint):
    brushed = spectral(rng, size, 0.45, 4, stretch=(1, 24))
    sheen = spectral(rng, size, 1.8, 1, stretch=(1, 1))
    scratch = smoothstep(2.4, 3.0, spectral(rng, size, 0.3, 8, 120, (1, 16)))
    albedo = tint * (1 + 0.09 * brushed[..., None] + 0.14 * sheen[..., None]) + 0.25 * scratch[..., None]
    return Surface(np.clip(albedo, 0, 1), 0.25 * brushed + 0.8 * sheen, _none(size), 0.35)


def gold(rng, size, tint):
    n = int(rng.choice([6, 8, 10]))
    near, gap, _ = cells(rng, size, n, n, 0.9, 0.03)
    sheen = spectral(rng, size, 1.6, 2)
    dent = near**2
    albedo = tint * (0.95 + 0.16 * sheen[..., None]) * (1.1 - 0.5 * dent[..., None])
    return Surface(albedo, -4.5 * dent + 0.6 * sheen, _none(size), 0.95)


def rust(rng, size, tint):
    blotch = spectral(rng, size, 1.4, 2)
    fine = spectral(rng, size, 0.4, 16)
    pit = smoothstep(1.2, 2.0, spectral(rng, size, 0.6, 10, 60))
    albedo = mix(tint * 1.15, tint * 0.45, smoothstep(-0.5, 1.2, blotch))
    albedo = mix(albedo, rgb(212, 126, 52), smoothstep(0.8, 1.8, -blotch + 0.5 * fine) * 0.7)
    albedo = albedo * (1 + 0.10 * fine[..., None]) * (1 - 0.4 * pit[..., None])
    return Surface(albedo, 0.9 * fine + 1.0 * blotch - 1.6 * pit, pit)


def fabric(rng, size, tint):
    n = int(rng.choice([20, 28, 32]))
    y, x = grid(size)
    fy, fx = y * n, x * n
    over = ((np.floor(fy) + np.floor(fx)) % 2) > 0
    u, v = fx % 1 - 0.5, fy % 1 - 0.5
    along, across = np.where(over, u, v), np.where(over, v, u)
    thread = np.sqrt(np.clip(1 - (2 * across) ** 2, 0, 1)) * (1 - 1.6 * along**2)
    fibre = spectral(rng, size, 0.1, 30)
    fold = spectral(rng, size, 1.9, 1, 6)
    shade = 0.55 + 0.5 * thread + 0.04 * fibre + 0.06 * fold + np.where(over, 0.04, -0.04)
    return Surface(tint * shade[..., None], 1.6 * thread + 2.0 * fold, 1 - np.clip(thread, 0, 1))


def knit(rng, size, tint):
    n = int(rng.choice([10, 12, 16]))
    y, x = grid(size)
    fx, fy = x * n, y * n
    side = np.abs(fx % 1 - 0.5)
    v = (fy + side * 1.1) % 1
    loop = np.sqrt(np.clip(1 - (2 * v - 1) ** 2, 0, 1)) * smoothstep(0.0, 0.12, np.minimum(side, 0.5 - side))
    fuzz = spectral(rng, size, 0.1, 30)
    return Surface(tint * (0.5 + 0.55 * loop + 0.06 * fuzz)[..., None], 4 * loop + 0.3 * fuzz, 1 - loop)


def striped_cloth(rng, size, tint):
    n = int(rng.choice([6, 8, 12]))
    y, x = grid(size)
    band = smoothstep(-0.15, 0.15, np.sin(6.2832 * x * n))
    weave = np.sin(6.2832 * y * 64) * np.sin(6.2832 * x * 64)
    fold = spectral(rng, size, 1.9, 1, 5)
    pale = rgb(230, 224, 210) if tint.mean() < 0.6 else rgb(60, 58, 62)
    albedo = mix(pale, tint, band) * (1 + 0.08 * weave[..., None] + 0.05 * fold[..., None])
    return Surface(albedo, 0.4 * weave + 2.5 * fold, _none(size))


def leather(rng, size, tint):
    n = int(rng.choice([18, 24, 30]))
    near, gap, tone = cells(rng, size, n, n, 1.0, 0.1)
    crease = smoothstep(0.16, 0.0, gap)
    cloud = spectral(rng, size, 1.7, 1)
    albedo = tint * (1 + 0.12 * cloud[..., None] + 0.1 * (tone[..., None] - 0.5)) * (1 - 0.4 * crease[..., None])
    return Surface(albedo, 2.2 * np.sqrt(gap) + 0.6 * cloud, crease, 0.22)


def scales(rng, size, tint):
    n = int(rng.choice([7, 9, 12]))
    y, x = grid(size)
    best = np.full((size, size), -1, np.float32)
    shade = np.zeros((size, size), np.float32)
    tone = rng.random((2 * n, n), dtype=np.float32)
    fy, fx = y * 2 * n, x * n
    base = np.floor(fy).astype(int)
    for dr in (2, 1, 0, -1, -2):  # upper rows lie over lower ones
        row = base + dr
        u = fx - 0.5 * (row % 2)
        col = np.floor(u).astype(int)
        d = np.hypot((u - col - 0.5) * 2, (fy - row) * 0.5)
        inside = d < 1.05
        best = np.where(inside, np.sqrt(np.clip(1.12 - d * d, 0, 1.2)) , best)
        shade = np.where(inside, tone[row % (2 * n), col % n], shade)
    albedo = tint * (0.55 + 0.5 * best + 0.25 * (shade - 0.5))[..., None]
    return Surface(np.clip(albedo, 0, 1), 7 * best, smoothstep(0.4, 0.0, best), 0.4)


def bark(rng, size, tint):
    ridge = -np.abs(spectral(rng, size, 1.0, 2, 60, (5, 1))) - 0.5 * np.abs(spectral(rng, size, 0.8, 6, 90, (4, 1)))
    fine = spectral(rng, size, 0.5, 20, stretch=(3, 1))
    albedo = tint * np.clip(1.25 + 0.42 * ridge + 0.07 * fine, 0.1, 2)[..., None]
    return Surface(albedo, 5.5 * ridge + 0.6 * fine, smoothstep(-1.2, -2.2, ridge))


def parchment(rng, size, tint):
    stain = spectral(rng, size, 1.8, 1)
    fibre = spectral(rng, size, 0.4, 16)
    blot = smoothstep(1.0, 1.8, stain)
    albedo = tint * (1 + 0.06 * stain[..., None] + 0.025 * fibre[..., None]) * (1 - 0.25 * blot[..., None])
    return Surface(albedo, 0.2 * fibre + 0.6 * stain, blot, 0.02)


def slime(rng, size, tint):
    n = int(rng.choice([5, 7, 9]))
    near, gap, _ = cells(rng, size, n, n, 1.0, 0.05)
    swell = spectral(rng, size, 1.8, 2)
    bubble = np.sqrt(np.clip(1 - (near / 0.42) ** 2, 0, 1))
    albedo = tint * (0.8 + 0.12 * swell[..., None] + 0.35 * bubble[..., None])
    return Surface(np.clip(albedo, 0, 1), 7 * bubble + 1.5 * swell, _none(size), 0.8)
