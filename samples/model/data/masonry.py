"""Materials laid in blocks: bricks, tiles, cobble, planks, plates.

Each takes (rng, size, tint) with tint a colour [3] and returns a `Surface`.
"""

import numpy as np

from .colours import rgb
from .noise import blur, cells, courses, grid, mix, smoothstep, spectral
from .surface import Surface


def _toned(tint, tone, spread):
    """`tint` in slightly different shades, one per block."""
    return tint * (1 + spread * (tone[..., None] - 0.5) * 2)


def bricks(rng, size, tint):
    rows = int(rng.choice([6, 8, 8, 10]))
    edge, tone, _, _ = courses(rng, size, rows, rows // 2, 0.5, rng.uniform(0.3, 1.2))
    face = smoothstep(1.2, 3.4, edge)
    grain = spectral(rng, size, 0.6, 8)
    pits = smoothstep(1.5, 2.3, spectral(rng, size, 0.4, 20, 90))
    mortar = rgb(176, 168, 156) * rng.uniform(0.6, 1.05)
    albedo = mix(mortar * (1 + 0.07 * grain[..., None]), _toned(tint, tone, 0.22) * (1 + 0.06 * grain[..., None]), face)
    height = 3.6 * face + 0.35 * grain * face - 1.2 * pits * face + 0.4 * tone
    return Surface(albedo, height, 1 - face)


def stone_blocks(rng, size, tint):
    rows = int(rng.choice([4, 4, 6]))
    edge, tone, _, _ = courses(rng, size, rows, int(rng.choice([2, 3])), 0.5, rng.uniform(1.0, 2.5))
    face = smoothstep(1.0, 5.0, edge)
    rough = spectral(rng, size, 1.1, 3)
    grain = spectral(rng, size, 0.4, 16)
    albedo = mix(tint * 0.45, _toned(tint, tone, 0.16) * (1 + 0.07 * rough[..., None] + 0.04 * grain[..., None]), face)
    return Surface(albedo, 5 * face + 1.1 * rough + 0.3 * grain, 1 - face)


def cobblestone(rng, size, tint):
    n = int(rng.choice([5, 6, 7, 8]))
    near, gap, tone = cells(rng, size, n, n, 0.75, 0.05)
    dome = np.sqrt(np.clip(gap, 0, 1)) * smoothstep(0.04, 0.22, gap)
    stone = smoothstep(0.05, 0.14, gap)
    grain = spectral(rng, size, 0.7, 6)
    joint = rgb(70, 62, 52) * rng.uniform(0.6, 1.2)
    albedo = mix(joint * (1 + 0.1 * grain[..., None]), _toned(tint, tone, 0.28) * (1 + 0.07 * grain[..., None]), stone)
    return Surface(albedo, 9 * dome * 8 / n + 0.4 * grain, 1 - stone, 0.08)


def ceramic_tiles(rng, size, tint):
    n = int(rng.choice([3, 4, 4, 6]))
    edge, tone, u, v = courses(rng, size, n, n, 0.0)
    face = smoothstep(1.5, 3.5, edge)
    grout = rgb(206, 202, 194) * rng.uniform(0.45, 1.0)
    cloud = spectral(rng, size, 1.6, 1)
    colour = _toned(tint, tone, 0.10) * (1 + 0.03 * cloud[..., None])
    if rng.random() < 0.3:  # a ring or diamond on each tile
        r = np.hypot(u - 0.5, v - 0.5) if rng.random() < 0.5 else np.abs(u - 0.5) + np.abs(v - 0.5)
        colour = mix(colour, colour * 0.4 + 0.5, smoothstep(0.05, 0.02, np.abs(r - 0.3)))
    albedo = mix(grout, colour, face)
    glare = 0.07 * smoothstep(0.9, 0.2, u + v) * face
    return Surface(albedo + glare[..., None], 3.0 * smoothstep(1.0, 6.0, edge), 1 - face, 0.55 * face)


def hexagon_tiles(rng, size, tint):
    n = int(rng.choice([4, 6]))
    y, x = grid(size)
    rows = n  # rows of half height, every second one shifted by half a tile
    fy, fx = y * rows, x * n
    best = np.full((size, size), -9, np.float32)
    tone = np.zeros_like(best)
    table = rng.random((rows, n), dtype=np.float32)
    base = np.floor(fy).astype(int)
    for dr in (-1, 0, 1, 2):
        row = base + dr
        shift = 0.5 * (row % 2)
        col = np.round(fx - shift).astype(int)
        dx, dy = np.abs(fx - shift - col), np.abs(fy - row)
        inside = 0.5 - np.maximum(dx, dx * 0.5 + dy * 0.75)
        tone = np.where(inside > best, table[row % rows, col % n], tone)
        best = np.maximum(best, inside)
    edge = best * size / n
    face = smoothstep(0.8, 2.8, edge)
    albedo = mix(rgb(60, 58, 56) * rng.uniform(0.7, 2.2), _toned(tint, tone, 0.2), face)
    return Surface(albedo, 3 * smoothstep(0.5, 5, edge), 1 - face, 0.35 * face)


def mosaic(rng, size, tint):
    n = int(rng.choice([12, 16]))
    edge, tone, _, _ = courses(rng, size, n, n, 0.0, 0.6)
    face = smoothstep(0.8, 2.2, edge)
    other = np.clip(tint * rng.uniform(0.35, 0.6) + rng.uniform(0, 0.45), 0, 1)
    colour = np.where(tone[..., None] > 0.7, other, tint) * (0.8 + 0.4 * ((tone * 7) % 1)[..., None])
    return Surface(mix(rgb(190, 184, 172), colour, face), 2.2 * face, 1 - face, 0.35 * face)


def checkerboard(rng, size, tint):
    n = int(rng.choice([4, 6]))
    y, x = grid(size)
    odd = (np.floor(y * n) + np.floor(x * n)) % 2
    edge, _, _, _ = courses(rng, size, n, n, 0.0)
    face = smoothstep(0.3, 1.6, edge)
    veins = smoothstep(0.12, 0.0, np.abs(spectral(rng, size, 1.7, 2)))
    pale = rgb(232, 228, 218)
    if tint.min() > 0.7:
        pale = rgb(48, 48, 52)
    colour = np.where(odd[..., None] > 0, tint, pale) * (1 - 0.12 * veins[..., None])
    return Surface(mix(rgb(90, 86, 80), colour, face), 1.6 * face, 1 - face, 0.4 * face)


def roof_tiles(rng, size, tint):
    rows = int(rng.choice([5, 6, 8]))
    cols = rows
    y, x = grid(size)
    bent = np.floor(y * rows)
    local_x = (x * cols + 0.5 * (bent % 2)) % 1
    curve = 0.32 * (1 - np.sqrt(np.clip(1 - (2 * local_x - 1) ** 2, 0, 1)))
    fy = y * rows + curve
    row = np.floor(fy).astype(int)
    # the tile whose rounded lower end covers this pixel
    v = fy - row
    fx = x * cols + 0.5 * (bent % 2)
    tone = rng.random((rows, cols), dtype=np.float32)[row % rows, np.floor(fx).astype(int) % cols]
    grain = spectral(rng, size, 0.8, 6)
    seam = np.maximum(smoothstep(0.1, 0.0, v), smoothstep(0.05, 0.01, np.minimum(local_x, 1 - local_x)))
    albedo = _toned(tint, tone, 0.22) * (1 + 0.06 * grain[..., None]) * (1 - 0.55 * seam[..., None])
    return Surface(albedo, 7 * v + 2 * np.sqrt(np.clip(1 - (2 * local_x - 1) ** 2, 0, 1)) + 0.3 * grain, seam, 0.08)


def planks(rng, size, tint):
    rows = int(rng.choice([4, 5, 6, 8]))
    upright = rng.random() < 0.4
    edge, tone, _, _ = courses(rng, size, rows, 1 if rng.random() < 0.5 else 2, rng.uniform(0.3, 0.5), 0.3)
    shifted = spectral(rng, size, 1.2, 1, stretch=(1, 9))
    rings = np.sin(shifted * 3.2 + tone * 40 + spectral(rng, size, 1.6, 1, stretch=(1, 3)) * 2.0)
    fibre = spectral(rng, size, 0.5, 20, stretch=(1, 12))
    face = smoothstep(0.6, 2.0, edge)
    knots, _, _ = cells(rng, size, rows, 3, 0.9)
    knot = smoothstep(0.16, 0.05, knots) * smoothstep(0.5, 0.7, tone)
    colour = _toned(tint, tone, 0.18) * (1 + 0.13 * rings[..., None] + 0.06 * fibre[..., None])
    albedo = mix(tint * 0.25, mix(colour, tint * 0.4, knot * 0.8), face)
    nails = np.zeros_like(face)
    surface = [albedo, 2.6 * smoothstep(0.3, 3, edge) + 0.35 * rings + 0.3 * fibre - nails, 1 - face]
    if upright:
        surface = [np.swapaxes(part, 0, 1) for part in surface]
    return Surface(*surface)


def metal_plates(rng, size, tint):
    n = int(rng.choice([2, 2, 3, 4]))
    edge, tone, u, v = courses(rng, size, n, n, float(rng.choice([0.0, 0.5])))
    face = smoothstep(1.0, 2.6, edge)
    brushed = spectral(rng, size, 0.5, 6, stretch=(1, 10))
    cloud = spectral(rng, size, 1.7, 1)
    inset = 0.11
    cu, cv = np.minimum(u, 1 - u), np.minimum(v, 1 - v)
    bolts = np.hypot(cu - inset, cv - inset) * size / n
    if rng.random() < 0.5:  # bolts along the edges too
        mid = np.minimum(np.hypot(np.abs(u - 0.5), cv - inset), np.hypot(cu - inset, np.abs(v - 0.5))) * size / n
        bolts = np.minimum(bolts, mid)
    bolt = np.sqrt(np.clip(1 - (bolts / 4.2) ** 2, 0, 1))
    albedo = mix(tint * 0.28, _toned(tint, tone, 0.08) * (1 + 0.04 * brushed[..., None] + 0.05 * cloud[..., None]), face)
    return Surface(albedo, 3.2 * smoothstep(0.5, 4, edge) + 3.5 * bolt + 0.12 * brushed, 1 - face, 0.35 * face)


def panels(rng, size, tint):
    """Science-fiction hull: panels of several sizes with lines and small lights."""
    coarse, tone, _, _ = courses(rng, size, 3, 2, 0.5)
    fine, tone2, u, v = courses(rng, size, 6, 8, 0.5)
    split = tone > 0.5
    edge = np.where(split, np.minimum(coarse, fine), coarse)
    face = smoothstep(0.8, 2.0, edge)
    shade = np.where(split, tone2, tone)
    albedo = mix(tint * 0.3, _toned(tint, shade, 0.2), face)
    lamp = (split & (tone2 > 0.86) & (np.abs(v - 0.5) < 0.12) & (np.abs(u - 0.5) < 0.3)).astype(np.float32)
    hue = rgb(*((90, 220, 255) if rng.random() < 0.6 else (255, 150, 60)))
    glow = (blur(lamp, 3) * 0.8 + lamp * 0.7)[..., None] * hue
    vents = np.where(split & (tone2 < 0.15), np.sin(v * 30), 0)
    return Surface(albedo, 2.4 * face + 0.8 * shade + 0.8 * vents, 1 - face, 0.3 * face, glow)
