"""What a material is made of, and how light turns it into a picture."""

from dataclasses import dataclass, field

import numpy as np

from .noise import blur

LIGHT = np.array([-0.5, -0.6, 0.62], np.float32) / np.float32(np.sqrt(0.25 + 0.36 + 0.3844))


@dataclass
class Surface:
    """Fields are [size, size] unless said otherwise; `height` is in pixels, the rest in 0..1."""

    albedo: np.ndarray  # [size, size, 3]
    height: np.ndarray
    seams: np.ndarray  # where joints and hollows are; moss and dirt gather there
    gloss: float | np.ndarray = 0.05
    glow: np.ndarray | None = field(default=None)  # [size, size, 3] light of its own


def normals(height):
    """Unit normals [size, size, 3] of a height field that wraps."""
    gx = (np.roll(height, -1, 1) - np.roll(height, 1, 1)) * 0.5
    gy = (np.roll(height, -1, 0) - np.roll(height, 1, 0)) * 0.5
    n = np.stack([-gx, -gy, np.ones_like(gx)], -1)
    return n / np.linalg.norm(n, axis=-1, keepdims=True)


def occlusion(height):
    """Darkening of hollows, about 0.5..1.1."""
    return np.clip(1 + 0.09 * (height - blur(height, 5.0)), 0.45, 1.12)


def lit(surface):
    """The picture [size, size, 3] in 0..1, seen from above with the light from the top left."""
    n = normals(blur(surface.height, 0.55) * 0.85)
    diffuse = np.clip(n @ LIGHT, 0, 1)
    half = LIGHT + np.array([0, 0, 1], np.float32)
    half = half / np.linalg.norm(half)
    shine = np.clip(n @ half, 0, 1) ** 24 * surface.gloss
    light = (0.42 + 0.85 * diffuse) * occlusion(surface.height)
    picture = surface.albedo * light[..., None] + shine[..., None]
    if surface.glow is not None:
        picture = picture + surface.glow
    return np.clip(picture, 0, 1)
