"""Colour words and what they look like."""

import numpy as np

COLOURS = {
    "red": (170, 42, 36),
    "orange": (214, 116, 38),
    "yellow": (220, 184, 52),
    "green": (62, 132, 56),
    "teal": (34, 134, 130),
    "blue": (42, 84, 176),
    "purple": (116, 58, 150),
    "pink": (220, 132, 160),
    "brown": (112, 72, 42),
    "beige": (202, 176, 134),
    "white": (228, 226, 220),
    "grey": (130, 130, 128),
    "black": (42, 42, 46),
}

SYNONYMS = {
    "red": ("crimson", "scarlet"),
    "teal": ("turquoise", "cyan"),
    "purple": ("violet",),
    "beige": ("tan", "cream"),
    "grey": ("gray",),
    "blue": ("navy", "azure"),
    "orange": ("amber",),
}


def shade_of(rng, name, spread=0.05):
    """A colour [3] in 0..1 near the one that `name` means."""
    base = np.array(COLOURS[name], np.float32) / 255
    brightness = 1 + rng.uniform(-2.2, 2.2) * spread
    return np.clip(base * brightness + rng.uniform(-spread, spread, 3) * 0.5, 0.02, 0.97).astype(np.float32)


def word_for(rng, name):
    """The name itself, or now and then another word for it."""
    others = SYNONYMS.get(name)
    return str(rng.choice(others)) if others and rng.random() < 0.12 else name


def rgb(*values):
    return np.array(values, np.float32) / 255
