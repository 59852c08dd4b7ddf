"""Ray intersections with simple solids, for many rays at once.

A shape answers `hit(origin, rays)` with the distance along each ray, inf where it misses;
`normal(points)` gives the outward unit normals; rays are unit vectors [n, 3]; y points up.
"""

from dataclasses import dataclass

import numpy as np

FAR = np.float32(np.inf)


def _first(near, ok):
    return np.where(ok & (near > 1e-3), near, FAR).astype(np.float32)


@dataclass
class Plane:
    height: float

    def hit(self, origin, rays):
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (self.height - origin[..., 1]) / rays[:, 1]
        return _first(t, np.isfinite(t) & (t < 60))

    def normal(self, points):
        return np.broadcast_to(np.array([0, 1, 0], np.float32), points.shape)


@dataclass
class Sphere:
    centre: np.ndarray
    radius: float

    def hit(self, origin, rays):
        to = origin - self.centre
        b = (rays * to).sum(-1)
        c = (to * to).sum(-1) - self.radius**2
        inside = b * b - c
        return _first(-b - np.sqrt(np.maximum(inside, 0)), inside > 0)

    def normal(self, points):
        return (points - self.centre) / self.radius


@dataclass
class Box:
    """An upright box turned by `turn` around y."""

    centre: np.ndarray
    half: np.ndarray
    turn: float = 0.0

    def _local(self, v):
        c, s = np.cos(self.turn), np.sin(self.turn)
        return np.stack([v[..., 0] * c - v[..., 2] * s, v[..., 1], v[..., 0] * s + v[..., 2] * c], -1)

    def hit(self, origin, rays):
        o, d = self._local(origin - self.centre), self._local(rays)
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = (-self.half - o) / d, (self.half - o) / d
        near, far = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
        return _first(near, near < far)

    def normal(self, points):
        p = self._local(points - self.centre) / self.half
        axis = np.abs(p).argmax(-1)
        n = np.zeros_like(p)
        rows = np.arange(len(p))
        n[rows, axis] = np.sign(p[rows, axis])
        c, s = np.cos(-self.turn), np.sin(-self.turn)
        return np.stack([n[:, 0] * c - n[:, 2] * s, n[:, 1], n[:, 0] * s + n[:, 2] * c], -1)


@dataclass
class Pillar:
    """An upright cylinder from `bottom` to `top`."""

    x: float
    z: float
    radius: float
    bottom: float
    top: float

    def hit(self, origin, rays):
        ox, oz = origin[..., 0] - self.x, origin[..., 2] - self.z
        a = rays[:, 0] ** 2 + rays[:, 2] ** 2
        b = ox * rays[:, 0] + oz * rays[:, 2]
        inside = b * b - a * (ox * ox + oz * oz - self.radius**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (-b - np.sqrt(np.maximum(inside, 0))) / a
            y = origin[..., 1] + t * rays[:, 1]
            side = _first(t, (inside > 0) & (y > self.bottom) & (y < self.top))
            t = (self.top - origin[..., 1]) / rays[:, 1]
        x, z = ox + t * rays[:, 0], oz + t * rays[:, 2]
        return np.minimum(side, _first(t, (x * x + z * z < self.radius**2) & (rays[:, 1] < 0)))

    def normal(self, points):
        n = np.stack([points[:, 0] - self.x, np.zeros(len(points)), points[:, 2] - self.z], -1) / self.radius
        cap = points[:, 1] > self.top - 1e-3
        n[cap] = (0, 1, 0)
        return n.astype(np.float32)


@dataclass
class Capsule:
    a: np.ndarray
    b: np.ndarray
    radius: float

    def hit(self, origin, rays):
        ba, oa = self.b - self.a, origin - self.a
        baba = float(ba @ ba)
        bard, baoa = rays @ ba, oa @ ba
        rdoa, oaoa = (rays * oa).sum(-1), (oa * oa).sum(-1)
        a = baba - bard**2
        b = baba * rdoa - baoa * bard
        c = baba * oaoa - baoa**2 - self.radius**2 * baba
        inside = b * b - a * c
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (-b - np.sqrt(np.maximum(inside, 0))) / a
        y = baoa + t * bard
        body = _first(t, (inside > 0) & (y > 0) & (y < baba))
        ends = np.minimum(Sphere(self.a, self.radius).hit(origin, rays), Sphere(self.b, self.radius).hit(origin, rays))
        return np.minimum(body, ends)

    def normal(self, points):
        ba = self.b - self.a
        along = np.clip(((points - self.a) @ ba) / float(ba @ ba), 0, 1)[:, None]
        n = points - self.a - along * ba
        return n / np.maximum(np.linalg.norm(n, axis=-1, keepdims=True), 1e-6)


@dataclass
class Terrain:
    """Hills: a height field that repeats every `extent` units."""

    field: np.ndarray
    extent: float
    rise: float
    base: float

    def _height(self, x, z):
        n = self.field.shape[0]
        u, v = x / self.extent * n, z / self.extent * n
        i, j = np.floor(u).astype(int), np.floor(v).astype(int)
        fu, fv = u - i, v - j
        f = self.field
        low = f[i % n, j % n] * (1 - fu) + f[(i + 1) % n, j % n] * fu
        high = f[i % n, (j + 1) % n] * (1 - fu) + f[(i + 1) % n, (j + 1) % n] * fu
        return self.base + self.rise * (low * (1 - fv) + high * fv)

    def hit(self, origin, rays):
        origin = np.broadcast_to(origin, rays.shape)
        t = np.full(len(rays), 0.05, np.float32)
        last, done = t.copy(), np.zeros(len(rays), bool)
        for _ in range(80):
            p = origin + rays * t[:, None]
            gap = p[:, 1] - self._height(p[:, 0], p[:, 2])
            done |= gap < 0
            last = np.where(done, last, t)
            t = np.where(done, t, t + np.clip(gap * 0.4, 0.015 * t, 0.6))
        for _ in range(5):
            middle = (last + t) / 2
            p = origin + rays * middle[:, None]
            below = p[:, 1] < self._height(p[:, 0], p[:, 2])
            t, last = np.where(below, middle, t), np.where(below, last, middle)
        return _first(t, done)

    def normal(self, points):
        e = self.extent / self.field.shape[0]
        x, z = points[:, 0], points[:, 2]
        gx = (self._height(x + e, z) - self._height(x - e, z)) / (2 * e)
        gz = (self._height(x, z + e) - self._height(x, z - e)) / (2 * e)
        n = np.stack([-gx, np.ones_like(gx), -gz], -1)
        return n / np.linalg.norm(n, axis=-1, keepdims=True)
