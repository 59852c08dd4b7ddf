"""A textured surface from a seed, with words that describe it."""

from dataclasses import dataclass, replace

import numpy as np

from . import masonry
from .catalogue import COLOUR_NAMES, MATERIALS
from .colours import shade_of, word_for
from .conditions import CONDITIONS
from .surface import lit

CAPTIONS = 4  # ways to say the same, per picture
SUFFIXES = ("", "", "", "", " texture", " texture", ", seamless texture", ", game texture", " material", " surface", ", top view", ", close up")
_WEIGHTS = np.array([m.weight for m in MATERIALS])
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_BLOCKS = [m for m in MATERIALS if m.make.__module__ == masonry.__name__ and "mossy" in m.conditions]


@dataclass
class Look:
    """A material in a colour and condition, before it is made or put into words."""

    material: object
    colour: str
    says_colour: bool
    conditions: tuple[str, ...]

    def surface(self, rng, size):
        tint = shade_of(rng, self.colour)
        surface = self.material.make(rng, size, tint)
        surface.albedo = np.clip(surface.albedo, 0, 1).astype(np.float32)
        for name in self.conditions:
            surface = CONDITIONS[name][0](rng, surface)
        return surface

    def adjectives(self, rng):
        words = [str(rng.choice(CONDITIONS[c][1])) if rng.random() < 0.35 else c for c in self.conditions]
        if self.says_colour:
            words.append(word_for(rng, self.colour))
        return words


def choose_look(rng, material):
    painted = material.any_colour and rng.random() < 0.62
    colour = str(rng.choice(COLOUR_NAMES if painted else material.natural))
    conditions = ()
    draw = rng.random()
    if draw < 0.62:
        conditions = (str(rng.choice(material.conditions)),)
    if draw < 0.08:
        conditions = tuple(dict.fromkeys(conditions + (str(rng.choice(material.conditions)),)))
    says = painted or rng.random() < 0.3 or len(set(material.natural)) > 1 and rng.random() < 0.5
    return Look(material, colour, says, conditions)


def caption(rng, look):
    name = look.material.names[0] if rng.random() < 0.55 else str(rng.choice(look.material.names))
    words = look.adjectives(rng)
    tail = ""
    if look.conditions and rng.random() < 0.12:
        tail = " " + CONDITIONS[look.conditions[-1]][2]
        words = [word_for(rng, look.colour)] if look.says_colour else []
        words = list(look.conditions[:-1]) + words
    rng_order = rng.random()
    if len(words) > 1 and rng_order < 0.12:
        words = words[::-1]
    text = " ".join(words + [name]) + tail + str(rng.choice(SUFFIXES))
    lead = rng.random()
    if lead < 0.06:
        text = "a texture of " + text
    elif lead < 0.10:
        text = "a photo of " + text
    elif lead < 0.13:
        text = "seamless " + text
    return text


def texture(seed, size=256, weathered=False):
    """(picture [size, size, 3] uint8, captions): a flat texture seen from above.

    `weathered` ones are bricks, planks and other blocks in some condition, most often mossy.
    """
    rng = np.random.default_rng(seed)
    if weathered:
        look = choose_look(rng, _BLOCKS[rng.choice(len(_BLOCKS))])
        condition = "mossy" if rng.random() < 0.5 else str(rng.choice(look.material.conditions))
        look = replace(look, conditions=(condition,))
    else:
        look = choose_look(rng, MATERIALS[rng.choice(len(MATERIALS), p=_WEIGHTS)])
    picture = lit(look.surface(rng, size))
    return (picture * 255 + 0.5).astype(np.uint8), [caption(rng, look) for _ in range(CAPTIONS)]
