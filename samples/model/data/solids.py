"""A textured solid on a ground, ray traced, with its depth, its joints and its caption."""

from dataclasses import dataclass

import numpy as np

from .catalogue import GROUNDS, MATERIALS, SOLID_MATERIALS
from .figures import POSES, figure
from .noise import blur, spectral
from .shapes import Box, Pillar, Plane, Sphere, Terrain
from .surface import normals, occlusion
from .textures import CAPTIONS, choose_look

SUN = np.array([-0.55, 0.72, 0.42], np.float32) / np.float32(np.linalg.norm([-0.55, 0.72, 0.42]))
KINDS = ("sphere", "box", "stairs", "pillar", "terrain", "figure")
NOUNS = {"sphere": ("sphere", "ball"), "box": ("box", "cube", "crate"), "stairs": ("stairs", "staircase"),
         "pillar": ("pillar", "column"), "terrain": ("hills", "terrain"), "figure": ("figure", "person", "statue")}


@dataclass
class Scene:
    picture: np.ndarray  # [size, size, 3] uint8
    depth: np.ndarray  # [size, size] float32: 1 near, 0 far, 0 for the sky
    joints: np.ndarray | None  # [18, 3] pixel x, pixel y, visible; only for figures
    captions: list[str]


def _objects(rng, kind):
    """(shapes, joints or None, pose) in a space where the object is about 2 units tall."""
    turn = rng.uniform(-0.8, 0.8)
    if kind == "sphere":
        r = rng.uniform(0.75, 1.0)
        return [Sphere(np.array([0, r, 0], np.float32), r)], None, ""
    if kind == "box":
        half = rng.uniform(0.62, 0.85, 3).astype(np.float32)
        return [Box(np.array([0, half[1], 0], np.float32), half, turn)], None, ""
    if kind == "pillar":
        r, tall = rng.uniform(0.3, 0.5), rng.uniform(1.7, 2.1)
        square = np.array([r * 1.35, 0.12, r * 1.35], np.float32)
        ends = [Box(np.array([0, y, 0], np.float32), square, turn) for y in (0.12, tall + 0.12)]
        return [Pillar(0, 0, r, 0.2, tall), *ends], None, ""
    if kind == "stairs":
        steps = int(rng.integers(4, 7))
        c, s = np.cos(turn), np.sin(turn)
        shapes = []
        for i in range(steps):
            deep, tall = 1.9 / steps, 1.7 / steps
            z = 0.95 - (i + 0.5) * deep
            centre = np.array([z * s, (i + 1) * tall / 2, z * c], np.float32)
            shapes.append(Box(centre, np.array([0.8, (i + 1) * tall / 2, deep / 2], np.float32), turn))
        return shapes, None, ""
    pose = str(rng.choice(list(POSES)))
    shapes, joints = figure(rng, pose, rng.uniform(-0.6, 0.6))
    return shapes, joints, pose


class _Skin:
    """A surface laid on a shape by the axis that its normal is nearest to."""

    def __init__(self, surface, scale):
        self.albedo = surface.albedo * occlusion(surface.height)[..., None]
        if surface.glow is not None:
            self.albedo = self.albedo + surface.glow
        self.mean = self.albedo.mean((0, 1))
        self.bump = normals(blur(surface.height, 0.6))[..., :2]
        self.glow = surface.glow
        self.scale = scale

    def at(self, points, normal):
        """(albedo, bent normal, glow) at each point."""
        axis = np.abs(normal).argmax(-1)
        u = np.where(axis == 0, points[:, 2], points[:, 0])
        v = np.where(axis == 1, points[:, 2], -points[:, 1])
        n = self.albedo.shape[0]
        i, j = (v * self.scale * n).astype(int) % n, (u * self.scale * n).astype(int) % n
        bend = self.bump[i, j]
        across = np.zeros_like(normal)
        rows = np.arange(len(normal))
        across[rows, np.where(axis == 0, 2, 0)] += bend[:, 0]
        across[rows, np.where(axis == 1, 2, 1)] += np.where(axis == 1, 1, -1) * bend[:, 1]
        bent = normal + 0.8 * across
        bent = bent / np.linalg.norm(bent, axis=-1, keepdims=True)
        return self.albedo[i, j], bent, None if self.glow is None else self.glow[i, j]


def _trace(shapes, origin, rays):
    distance = np.full(len(rays), np.inf, np.float32)
    which = np.full(len(rays), -1)
    for k, shape in enumerate(shapes):
        t = shape.hit(origin, rays)
        which = np.where(t < distance, k, which)
        distance = np.minimum(distance, t)
    return distance, which


def _camera(rng, kind, size):
    """(origin, rays [size*size, 3], a function from points to pixels)."""
    if kind == "terrain":
        origin, target = np.array([0, 1.9, 3.0]), np.array([0, 0.7, 0])
    else:
        angle, up = rng.uniform(-0.35, 0.35), rng.uniform(1.6, 3.0)
        origin, target = np.array([6.0 * np.sin(angle), up, 6.0 * np.cos(angle)]), np.array([0, 0.95, 0])
    forward = (target - origin) / np.linalg.norm(target - origin)
    right = np.cross(forward, [0, 1, 0])
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    focus = rng.uniform(2.6, 3.4) if kind != "terrain" else 1.2
    axis = (np.arange(size) + 0.5) / size * 2 - 1
    py, px = np.meshgrid(-axis, axis, indexing="ij")
    rays = forward * focus + px[..., None] * right + py[..., None] * up
    rays = (rays / np.linalg.norm(rays, axis=-1, keepdims=True)).reshape(-1, 3).astype(np.float32)

    def project(points):
        d = points - origin
        z = d @ forward
        return np.stack([(d @ right / z * focus + 1) / 2 * size, (1 - d @ up / z * focus) / 2 * size], -1)

    return origin.astype(np.float32), rays, project


def _say(rng, kind, pose, look, ground_words, adjective):
    words = look.adjectives(rng)
    noun = str(rng.choice(NOUNS[kind])) if kind != "figure" or rng.random() < 0.4 else "figure"
    article = "" if kind in ("stairs", "terrain") and noun != "staircase" else "a "
    text = " ".join(words + [adjective, noun])
    if article and text[0] in "aeiou":
        article = "an "
    if pose:
        text += " " + pose
    if ground_words and rng.random() < 0.85:
        text += " on " + ground_words
    return article + text


def solid(seed, size=256, kind=None):
    """Make a `Scene` from a seed; everything in it repeats exactly."""
    rng = np.random.default_rng(seed)
    kind = kind or str(rng.choice(KINDS, p=(0.24, 0.2, 0.14, 0.16, 0.08, 0.18)))
    look = choose_look(rng, SOLID_MATERIALS[rng.integers(len(SOLID_MATERIALS))])
    skin = _Skin(look.surface(rng, size), 0.42)
    origin, rays, project = _camera(rng, kind, size)
    joints, pose, ground_words = None, "", ""
    if kind == "terrain":
        shapes = [Terrain(spectral(rng, 128, 2.0, 1, 12), 7.0, 0.42, -0.1)]
        skins, owner = [skin], np.array([0])
    else:
        shapes, joints, pose = _objects(rng, kind)
        makers = list(GROUNDS)
        maker = makers[rng.integers(len(makers))]
        material = next(m for m in MATERIALS if m.make is maker)
        below = choose_look(rng, material)
        below.colour, below.says_colour, below.conditions = str(rng.choice(material.natural)), False, ()
        ground_words = GROUNDS[maker]
        skins = [skin, _Skin(below.surface(rng, size), 0.3)]
        owner = np.array([0] * len(shapes) + [1])
        shapes = shapes + [Plane(0.0)]

    distance, which = _trace(shapes, origin, rays)
    seen = which >= 0
    points = (origin + rays * np.where(seen, distance, 0)[:, None]).astype(np.float32)
    height = np.clip(rays[:, 1] * 1.6 + 0.35, 0, 1)[:, None]
    sky = np.array([0.80, 0.86, 0.92], np.float32) * (1 - height) + np.array([0.42, 0.60, 0.86], np.float32) * height
    colour = sky.copy()
    normal = np.zeros_like(points)
    for k, shape in enumerate(shapes):
        mine = which == k
        if mine.any():
            normal[mine] = shape.normal(points[mine])
    lift = points + normal * 0.01
    shade = np.ones(len(rays), np.float32)
    blocked, _ = _trace(shapes if kind != "terrain" else [], lift[seen], np.broadcast_to(SUN, (int(seen.sum()), 3)))
    shade[seen] = np.where(np.isfinite(blocked), 0.0, 1.0)
    for s, skin in enumerate(skins):
        mine = seen & (owner[np.maximum(which, 0)] == s)
        if not mine.any():
            continue
        albedo, bent, glow = skin.at(points[mine], normal[mine])
        # far and slanting pieces fade to the mean, as a mipmap would
        slant = np.abs((rays[mine] * normal[mine]).sum(-1))
        fade = np.clip(0.09 * distance[mine] / np.maximum(slant, 0.02) / 4 - 0.55, 0, 1)[:, None]
        albedo = albedo * (1 - fade) + skin.mean * fade
        bent = bent * (1 - fade) + normal[mine] * fade
        sun = np.clip(bent @ SUN, 0, 1) * shade[mine]
        light = 0.30 + 0.14 * bent[:, 1] + 0.80 * sun
        picked = albedo * light[:, None]
        if glow is not None:
            picked = picked + glow * 0.8
        haze = np.clip((distance[mine] - 9) / 22, 0, 1)[:, None]
        colour[mine] = picked * (1 - haze) + sky[mine] * haze
    depth = np.where(seen, np.clip((11.0 - distance) / 8.0, 0, 1), 0).reshape(size, size).astype(np.float32)
    picture = (np.clip(colour, 0, 1) * 255 + 0.5).astype(np.uint8).reshape(size, size, 3)
    if joints is not None:
        spots = project(joints)
        away = np.linalg.norm(joints - origin, axis=-1)
        inside = ((spots >= 0) & (spots < size)).all(-1)
        pixel = np.clip(spots, 0, size - 1).astype(int)
        reached = distance.reshape(size, size)[pixel[:, 1], pixel[:, 0]]
        joints = np.concatenate([spots, (inside & (away < reached + 0.35))[:, None]], -1).astype(np.float32)
    captions = [_say(rng, kind, pose, look, ground_words, look.material.solid) for _ in range(CAPTIONS)]
    return Scene(picture, depth, joints, captions)
