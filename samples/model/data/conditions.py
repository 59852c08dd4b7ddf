"""What has happened to a surface: moss, rust, cracks, snow, wear.

Each condition takes (rng, surface) and returns the changed `Surface`.
"""

from dataclasses import replace

import numpy as np

from .colours import rgb
from .noise import blur, cells, mix, smoothstep, spectral


def _patches(rng, surface, cover, seam_pull=1.2):
    """A soft mask over about `cover` of the surface that prefers seams."""
    size = surface.height.shape[0]
    noise = spectral(rng, size, 1.3, 2) + 0.35 * spectral(rng, size, 0.6, 8)
    noise = noise + seam_pull * blur(surface.seams, 2.0)
    threshold = np.quantile(noise, 1 - cover)
    return smoothstep(threshold - 0.25, threshold + 0.25, noise)


def _coat(surface, colour, mask, thickness=0.0, gloss=0.05):
    return replace(
        surface,
        albedo=mix(surface.albedo, colour, mask),
        height=surface.height + thickness * mask,
        gloss=surface.gloss * (1 - mask) + gloss * mask,
        glow=None if surface.glow is None else surface.glow * (1 - 0.8 * mask[..., None]),
    )


def mossy(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, rng.uniform(0.2, 0.48))
    fuzz = spectral(rng, size, 0.3, 16)
    green = rgb(76, 116, 38) * rng.uniform(0.75, 1.15) * (1 + 0.22 * fuzz[..., None])
    surface = _coat(surface, green, mask * 0.95, 1.2, 0.0)
    return replace(surface, height=surface.height + 0.9 * fuzz * mask)


def rusty(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, rng.uniform(0.35, 0.65), 0.8)
    fine = spectral(rng, size, 0.5, 10)
    brown = mix(rgb(150, 74, 30), rgb(84, 42, 24), smoothstep(-0.8, 1.2, spectral(rng, size, 1.2, 3)))
    surface = _coat(surface, brown * (1 + 0.14 * fine[..., None]), mask, -0.6, 0.0)
    return replace(surface, height=surface.height + 0.6 * fine * mask)


def cracked(rng, surface):
    size = surface.height.shape[0]
    _, gap, _ = cells(rng, size, 4, 4, 1.0, 0.12)
    some = smoothstep(-0.6, 0.2, spectral(rng, size, 1.6, 1))
    crack = np.clip(1 - gap / 0.055, 0, 1) * some
    _, gap, _ = cells(rng, size, 9, 9, 1.0, 0.12)
    crack = np.maximum(crack, np.clip(1 - gap / 0.06, 0, 1) * (1 - some) * 0.8)
    return _coat(surface, surface.albedo * 0.22, smoothstep(0.05, 0.6, crack), -4.0, 0.0)


def snowy(rng, surface):
    size = surface.height.shape[0]
    high = surface.height - blur(surface.height, 6)
    noise = spectral(rng, size, 1.3, 2) - 0.25 * high / max(high.std(), 0.3)
    threshold = np.quantile(noise, 1 - rng.uniform(0.35, 0.6))
    mask = smoothstep(threshold - 0.2, threshold + 0.2, noise)
    return _coat(surface, rgb(238, 243, 250), mask, 3.0, 0.05)


def frozen(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, 0.7, 0.5) * 0.7
    hair = np.clip(1 - np.abs(spectral(rng, size, 1.3, 3)) / 0.08, 0, 1)
    frost = mix(rgb(176, 212, 236), rgb(244, 250, 255), hair)
    return _coat(surface, frost, mask, 0.8, 0.6)


def wet(rng, surface):
    size = surface.height.shape[0]
    pool = smoothstep(0.3, 0.7, spectral(rng, size, 1.7, 1) + 0.8 * surface.seams)
    height = surface.height * (1 - 0.6 * pool)
    return replace(surface, albedo=surface.albedo * (0.68 - 0.14 * pool[..., None]), height=height, gloss=0.55 + 0.35 * pool)


def worn(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, 0.45, -0.6)
    grey = surface.albedo.mean(-1, keepdims=True)
    faded = np.clip(grey + (surface.albedo - grey) * 0.5 + 0.10, 0, 1)
    scratch = smoothstep(1.9, 2.6, spectral(rng, size, 0.3, 8, 90, (1, 7)))
    surface = _coat(surface, faded, mask * 0.85, -0.8, 0.0)
    return replace(surface, albedo=np.clip(surface.albedo + 0.2 * scratch[..., None] * (1 - surface.seams[..., None]), 0, 1))


def dirty(rng, surface):
    mask = _patches(rng, surface, 0.6, 1.6) * rng.uniform(0.6, 0.85)
    return _coat(surface, rgb(74, 60, 42), mask, 0.3, 0.0)


def dusty(rng, surface):
    mask = 0.35 + 0.4 * _patches(rng, surface, 0.6, 0.8)
    return _coat(surface, rgb(188, 174, 150), mask, 0.2, 0.0)


def burnt(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, rng.uniform(0.5, 0.75), 0.3) * 0.93
    ash = spectral(rng, size, 0.8, 6)
    return _coat(surface, rgb(30, 26, 24) * (1 + 0.25 * ash[..., None]), mask, -0.5, 0.0)


def sandy(rng, surface):
    size = surface.height.shape[0]
    mask = _patches(rng, surface, rng.uniform(0.35, 0.55), 1.0)
    grain = spectral(rng, size, 0.1, 30)
    return _coat(surface, rgb(206, 178, 124) * (1 + 0.06 * grain[..., None]), mask, 1.5, 0.0)


def polished(rng, surface):
    return replace(surface, height=surface.height * 0.6, gloss=np.clip(surface.gloss + 0.5, 0, 1))


def dark(rng, surface):
    return replace(surface, albedo=surface.albedo * rng.uniform(0.42, 0.55))


def bright(rng, surface):
    return replace(surface, albedo=np.clip(surface.albedo * 1.25 + 0.12, 0, 1))


def clean(rng, surface):
    return surface


CONDITIONS = {
    "mossy": (mossy, ("mossy", "moss-covered", "overgrown"), "with moss"),
    "rusty": (rusty, ("rusty", "rusted", "corroded"), "with rust"),
    "cracked": (cracked, ("cracked", "broken"), "with cracks"),
    "snowy": (snowy, ("snowy", "snow-covered"), "with snow"),
    "frozen": (frozen, ("frozen", "icy"), "with ice"),
    "wet": (wet, ("wet", "damp"), "after rain"),
    "worn": (worn, ("worn", "old", "weathered"), "with scratches"),
    "dirty": (dirty, ("dirty", "grimy"), "with dirt"),
    "dusty": (dusty, ("dusty",), "with dust"),
    "burnt": (burnt, ("burnt", "charred"), "with soot"),
    "sandy": (sandy, ("sandy",), "with sand"),
    "polished": (polished, ("polished", "shiny"), "with shine"),
    "dark": (dark, ("dark",), "in the dark"),
    "bright": (bright, ("bright", "light"), "in bright light"),
    "clean": (clean, ("clean", "new"), "in good condition"),
}
