"""Materials that grow, lie or flow: grass, moss, sand, snow, water, lava.

Each takes (rng, size, tint) with tint a colour [3] and returns a `Surface`.
"""

import numpy as np

from .colours import rgb
from .noise import blur, cells, grid, mix, smoothstep, spectral
from .surface import Surface


def _shaded(tint, *layers):
    """`tint` times one plus the weighted noises: (weight, field) pairs."""
    factor = 1 + sum(weight * layer for weight, layer in layers)
    return tint * np.clip(factor, 0.1, 2.2)[..., None]


def grass(rng, size, tint):
    blades = np.maximum(spectral(rng, size, 0.35, 10, 80, (1, 3)), spectral(rng, size, 0.35, 10, 80, (2, 3)))
    blades = np.maximum(blades, np.roll(spectral(rng, size, 0.35, 10, 80, (1, 4)).T, 7, 0).T)
    patch = spectral(rng, size, 1.6, 1, 12)
    blades = np.swapaxes(blades, 0, 1)
    albedo = _shaded(tint, (0.34, blades - 0.6), (0.10, patch))
    albedo = albedo * (1 + np.array([0.10, 0.03, -0.05], np.float32) * patch[..., None])
    return Surface(albedo, 1.7 * blades + patch, smoothstep(0.2, -0.8, blades))


def moss(rng, size, tint):
    n = int(rng.choice([10, 14, 18]))
    near, gap, tone = cells(rng, size, n, n, 1.0, 0.25)
    fuzz = spectral(rng, size, 0.2, 30)
    lump = spectral(rng, size, 1.5, 2, 20)
    albedo = _shaded(tint, (0.13, fuzz), (0.16, lump), (0.25, tone - 0.5), (-0.3, near - 0.4))
    return Surface(albedo, 3.5 * (1 - near) + 0.9 * fuzz + 2.2 * lump, smoothstep(0.2, 0.0, gap))


def leaves(rng, size, tint):
    albedo = np.broadcast_to(tint * 0.3, (size, size, 3)).astype(np.float32)
    height = np.zeros((size, size), np.float32)
    for layer in range(3):
        n = 7 + layer
        y, x = grid(size)
        y, x = y * n, x * n
        points = rng.random((2, n, n), dtype=np.float32)
        angle = rng.random((n, n), dtype=np.float32) * 6.283
        tone = rng.random((n, n), dtype=np.float32)
        row, col = np.floor(y).astype(int), np.floor(x).astype(int)
        for dr in (-1, 0, 1):
            for dc in (-1, 0, 1):
                r, c = (row + dr) % n, (col + dc) % n
                dy, dx = y - row - dr - points[0][r, c], x - col - dc - points[1][r, c]
                ca, sa = np.cos(angle[r, c]), np.sin(angle[r, c])
                along, across = dx * ca + dy * sa, np.abs(dy * ca - dx * sa)
                width = 0.3 * (1 - (along / 0.62) ** 2)
                on = (across < width).astype(np.float32)
                vein = smoothstep(0.05, 0.0, across) * 0.25
                shade = (0.65 + 0.6 * tone[r, c]) * (0.75 + 0.12 * layer) * (1 - vein)
                albedo = mix(albedo, tint * shade[..., None], on)
                height = mix(height, 3.0 * layer + 3 - 4 * across, on)
    return Surface(albedo, height, smoothstep(3, 0, height), 0.12)


def sand(rng, size, tint):
    y, _ = grid(size)
    bend = spectral(rng, size, 1.8, 1, 8)
    count = int(rng.choice([0, 8, 12, 16]))
    ripples = np.sin(6.2832 * y * count + bend * 2.2) if count else 0.6 * bend
    grain = spectral(rng, size, 0.0, 40)
    albedo = _shaded(tint, (0.06, grain), (0.04, ripples))
    return Surface(albedo, 1.9 * ripples + 0.35 * grain + bend, smoothstep(0, -1, ripples))


def snow(rng, size, tint):
    drift = spectral(rng, size, 1.9, 1, 14)
    grain = spectral(rng, size, 0.1, 40)
    sparkle = smoothstep(2.4, 3.2, spectral(rng, size, 0.0, 60))
    albedo = mix(np.clip(tint * 1.02, 0, 1), rgb(196, 214, 238), smoothstep(0.5, -1.8, drift) * 0.7)
    return Surface(albedo + 0.3 * sparkle[..., None], 4.5 * drift + 0.3 * grain, smoothstep(0, -1, drift), 0.08)


def gravel(rng, size, tint):
    n = int(rng.choice([14, 18, 22]))
    near, gap, tone = cells(rng, size, n, n, 0.9, 0.1)
    grain = spectral(rng, size, 0.5, 12)
    stone = smoothstep(0.02, 0.16, gap)
    albedo = mix(tint * 0.35, _shaded(tint, (0.75, tone - 0.5), (0.05, grain)), stone)
    return Surface(albedo, 6 * np.sqrt(np.clip(gap, 0, 1)) * stone + 2 * tone, 1 - stone, 0.05)


def mud(rng, size, tint):
    lump = spectral(rng, size, 1.6, 2)
    fine = spectral(rng, size, 0.8, 10)
    puddle = smoothstep(0.4, 1.1, -lump)
    albedo = mix(_shaded(tint, (0.12, lump), (0.08, fine)), tint * 0.55, puddle)
    return Surface(albedo, (3.6 * lump + 0.7 * fine) * (1 - puddle) - 3 * puddle, puddle, 0.15 + 0.5 * puddle)


def dirt(rng, size, tint):
    lump = spectral(rng, size, 1.3, 2)
    fine = spectral(rng, size, 0.3, 20)
    near, _, tone = cells(rng, size, 16, 16, 1.0)
    pebble = smoothstep(0.26, 0.2, near) * smoothstep(0.6, 0.7, tone)
    albedo = mix(_shaded(tint, (0.14, lump), (0.10, fine)), rgb(150, 140, 126) * 0.9, pebble)
    return Surface(albedo, 2.2 * lump + 0.7 * fine + 2.5 * pebble, smoothstep(0, -1, lump))


def rock(rng, size, tint):
    ridges = sum(-np.abs(spectral(rng, size, 1.0, low, 4 * low)) / low * 2 for low in (2, 4, 8, 16))
    fine = spectral(rng, size, 0.6, 12)
    strata = np.sin(ridges * 5)
    albedo = _shaded(tint, (0.16, ridges + 1.2), (0.08, fine), (0.06, strata))
    return Surface(albedo, 7.5 * ridges + 0.6 * fine, smoothstep(-1.0, -2.0, ridges))


def water(rng, size, tint):
    n = int(rng.choice([5, 7, 9]))
    near, gap, _ = cells(rng, size, n, n, 1.0, 0.12)
    swell = spectral(rng, size, 1.6, 2, 24)
    light = np.clip(1 - gap / 0.22, 0, 1) ** 2  # caustic lines
    albedo = mix(_shaded(tint, (0.16, swell)), np.clip(tint * 0.5 + 0.52, 0, 1), 0.75 * light)
    return Surface(albedo, 1.5 * swell + 1.2 * near, np.zeros_like(near), 0.3)


def waves(rng, size, tint):
    y, x = grid(size)
    bend = spectral(rng, size, 2.0, 1, 6)
    crest = 1 - np.abs(np.sin(3.1416 * (y * int(rng.choice([5, 7])) * 1.0 + 0.09 * int(size / 64) * bend)))
    chop = spectral(rng, size, 1.0, 6, 60, (1, 0.5))
    foam = smoothstep(0.72, 1.0, crest + 0.12 * chop)
    albedo = mix(_shaded(tint, (0.28, crest - 0.4), (0.08, chop)), rgb(232, 242, 246), foam * 0.85)
    return Surface(albedo, 5 * crest + 0.8 * chop, np.zeros_like(crest), 0.35)


def lava(rng, size, tint):
    n = int(rng.choice([4, 5, 6]))
    near, gap, tone = cells(rng, size, n, n, 0.95, 0.1)
    rough = spectral(rng, size, 1.0, 4)
    crust = smoothstep(0.05, 0.24, gap + 0.05 * rough)
    heat = np.clip(1 - gap / 0.42 + 0.12 * rough, 0, 1)
    rock_colour = rgb(52, 42, 40) * (1 + 0.3 * (tone[..., None] - 0.5) + 0.12 * rough[..., None])
    hot = mix(tint * 0.9, np.clip(tint + np.array([0.25, 0.4, 0.15], np.float32), 0, 1), smoothstep(0.75, 1.0, heat))
    glow = hot * ((1 - crust) * 0.85)[..., None] + tint * (0.25 * heat**2 * crust)[..., None]
    return Surface(rock_colour * crust[..., None], 5 * crust + 1.1 * rough * crust, 1 - crust, 0.05, glow)


def ice(rng, size, tint):
    near, gap, tone = cells(rng, size, 4, 4, 1.0, 0.12)
    crack = np.clip(1 - gap / 0.05, 0, 1)
    hair = np.clip(1 - np.abs(spectral(rng, size, 1.9, 2, 16)) / 0.05, 0, 1)
    cloud = spectral(rng, size, 1.6, 1)
    albedo = mix(_shaded(tint, (0.09, cloud), (0.18, tone - 0.5)), rgb(244, 250, 253), np.clip(0.8 * crack + 0.4 * hair, 0, 1))
    return Surface(albedo, 1.4 * cloud + 1.2 * tone - 1.0 * crack, crack, 0.5)


def clouds(rng, size, tint):
    puff = spectral(rng, size, 1.7, 1)
    cover = smoothstep(-0.2, 1.1, puff)
    white = 0.93 - 0.12 * smoothstep(0.5, 2.2, blur(puff, 4))
    albedo = mix(np.broadcast_to(tint, (size, size, 3)), white[..., None] * np.ones(3, np.float32), cover)
    return Surface(albedo * 1.05, np.zeros_like(puff), np.zeros_like(puff), 0.0)


def cracked_earth(rng, size, tint):
    n = int(rng.choice([5, 6, 8]))
    near, gap, tone = cells(rng, size, n, n, 0.95, 0.07)
    plate = smoothstep(0.03, 0.13, gap)
    fine = spectral(rng, size, 0.8, 8)
    albedo = mix(tint * 0.25, _shaded(tint, (0.25, tone - 0.5), (0.07, fine)), plate)
    return Surface(albedo, 4.5 * smoothstep(0.0, 0.3, gap) + 0.6 * fine, 1 - plate)


def crystal(rng, size, tint):
    n = int(rng.choice([5, 6, 8]))
    y, x = grid(size)
    near, gap, tone = cells(rng, size, n, n, 1.0)
    # each cell is one flat facet, tilted its own way
    tilt = np.sin(tone * 91.7) * (near) + np.cos(tone * 57.3) * 0.5
    edge = np.clip(1 - gap / 0.06, 0, 1)
    albedo = mix(_shaded(tint, (0.9, tone - 0.45), (0.25, tilt)), np.clip(tint * 0.4 + 0.6, 0, 1), 0.6 * edge)
    return Surface(albedo, 8 * (1 - near) + 3 * tone, edge, 0.6)
