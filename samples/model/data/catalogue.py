"""Every material with its names, colours and what can happen to it."""

from dataclasses import dataclass
from typing import Callable

from . import crafted, ground, masonry
from .colours import COLOURS

HARD = ("mossy", "cracked", "snowy", "wet", "worn", "dirty", "dusty", "burnt", "sandy", "dark", "bright", "clean")
METAL = ("rusty", "rusty", "worn", "dirty", "polished", "burnt", "dark", "bright", "wet", "snowy", "clean", "mossy", "cracked")
SOFT = ("worn", "dirty", "wet", "burnt", "dusty", "dark", "bright", "clean")
EARTH = ("wet", "dark", "bright", "snowy", "mossy", "frozen", "cracked")
SHINY = ("polished", "cracked", "dirty", "dusty", "dark", "bright", "worn", "wet", "clean", "mossy")
FLOW = ("dark", "bright")


@dataclass(frozen=True)
class Material:
    make: Callable
    names: tuple[str, ...]
    natural: tuple[str, ...]  # colours it has when the caption names none
    conditions: tuple[str, ...]
    weight: float = 1.0
    any_colour: bool = True  # may it be painted in any colour?
    solid: str = ""  # as an adjective for an object: "stone" in "a stone sphere"


MATERIALS = (
    Material(masonry.bricks, ("brick wall", "bricks", "brickwork"), ("red", "red", "brown", "orange"), HARD, 2.2, solid="brick"),
    Material(masonry.stone_blocks, ("stone wall", "stone blocks", "castle wall"), ("grey", "grey", "beige"), HARD, 1.3, solid="stone block"),
    Material(masonry.cobblestone, ("cobblestone", "cobblestones", "cobble street"), ("grey", "grey", "brown"), HARD, 1.4, solid="cobblestone"),
    Material(masonry.ceramic_tiles, ("ceramic tiles", "tiles", "tiled floor", "bathroom tiles"), ("white", "blue", "teal"), SHINY, 1.4, solid="tiled"),
    Material(masonry.hexagon_tiles, ("hexagon tiles", "hexagonal tiles"), ("grey", "white", "blue"), SHINY, 0.8),
    Material(masonry.mosaic, ("mosaic", "mosaic floor"), ("blue", "teal", "orange"), SHINY, 0.7),
    Material(masonry.checkerboard, ("checkerboard floor", "checkered tiles"), ("black", "black", "red"), SHINY, 0.7, solid="checkered"),
    Material(masonry.roof_tiles, ("roof tiles", "roof shingles"), ("red", "orange", "brown"), HARD, 0.9),
    Material(masonry.planks, ("wooden planks", "wood planks", "wood floor", "wooden boards"), ("brown", "brown", "beige"), HARD, 2.0, solid="wooden"),
    Material(masonry.metal_plates, ("metal plates", "steel plates", "metal panels"), ("grey", "grey", "black"), METAL, 1.8, solid="metal plate"),
    Material(masonry.panels, ("sci-fi panels", "spaceship hull"), ("grey", "white", "black", "blue"), METAL, 0.9, solid="sci-fi"),
    Material(ground.grass, ("grass", "meadow"), ("green",), EARTH, 1.2, False, solid="grassy"),
    Material(ground.moss, ("moss", "mossy ground"), ("green",), ("wet", "dark", "bright", "snowy"), 0.9, False),
    Material(ground.leaves, ("leaves", "fallen leaves", "foliage"), ("green", "orange", "brown", "red", "yellow"), FLOW + ("wet", "snowy"), 0.9, False),
    Material(ground.sand, ("sand", "desert sand"), ("beige", "beige", "yellow"), ("wet", "dark", "bright"), 1.1, solid="sand"),
    Material(ground.snow, ("snow", "fresh snow"), ("white",), ("dirty", "bright"), 1.1, False, solid="snow"),
    Material(ground.gravel, ("gravel", "pebbles"), ("grey", "brown", "beige"), EARTH, 0.9),
    Material(ground.mud, ("mud",), ("brown",), ("dark", "frozen", "mossy"), 0.9, False, solid="mud"),
    Material(ground.dirt, ("dirt", "soil"), ("brown",), EARTH, 0.9, False, solid="dirt"),
    Material(ground.rock, ("rock", "cliff", "rough stone"), ("grey", "grey", "brown", "beige"), HARD, 1.2, solid="stone"),
    Material(ground.water, ("water", "pool water"), ("blue", "teal"), FLOW, 1.1, solid="water"),
    Material(ground.waves, ("ocean waves", "sea"), ("blue", "teal"), FLOW, 0.6),
    Material(ground.lava, ("lava", "molten lava", "magma"), ("orange",), FLOW, 1.3, solid="lava"),
    Material(ground.ice, ("ice", "frozen lake"), ("blue", "teal"), ("snowy", "dark", "bright", "dirty"), 1.0, False, solid="ice"),
    Material(ground.clouds, ("cloudy sky", "clouds"), ("blue",), FLOW, 0.5),
    Material(ground.cracked_earth, ("dry earth", "cracked earth", "desert ground"), ("beige", "brown", "orange"), ("wet", "dark", "mossy"), 0.8),
    Material(ground.crystal, ("crystal", "crystals", "gemstone"), ("purple", "teal", "blue", "pink"), ("dark", "bright", "cracked"), 0.9, solid="crystal"),
    Material(crafted.marble, ("marble", "marble slab"), ("white", "white", "black"), SHINY, 1.5, solid="marble"),
    Material(crafted.granite, ("granite",), ("grey", "pink", "black"), SHINY, 0.7, solid="granite"),
    Material(crafted.terrazzo, ("terrazzo", "terrazzo floor"), ("white", "beige", "grey"), SHINY, 0.5),
    Material(crafted.concrete, ("concrete", "concrete wall", "cement"), ("grey",), HARD, 1.0, solid="concrete"),
    Material(crafted.plaster, ("plaster", "plaster wall", "stucco"), ("white", "beige", "yellow"), HARD, 0.7, solid="plaster"),
    Material(crafted.metal, ("metal", "brushed metal", "steel"), ("grey",), METAL, 1.2, solid="metal"),
    Material(crafted.gold, ("gold", "hammered gold"), ("yellow",), ("polished", "worn", "dirty", "dark"), 0.8, False, solid="golden"),
    Material(crafted.rust, ("rust", "rusty metal", "rusted iron"), ("orange", "brown"), ("wet", "dark", "cracked", "mossy"), 1.1, False, solid="rusty iron"),
    Material(crafted.fabric, ("fabric", "woven cloth", "canvas"), ("beige", "white", "blue"), SOFT, 1.3, solid="cloth"),
    Material(crafted.knit, ("knitted wool", "wool sweater"), ("red", "white", "grey"), SOFT, 0.7),
    Material(crafted.striped_cloth, ("striped fabric", "striped cloth"), ("red", "blue", "green"), SOFT, 0.5, solid="striped"),
    Material(crafted.leather, ("leather",), ("brown", "brown", "black"), SOFT + ("cracked",), 1.0, solid="leather"),
    Material(crafted.scales, ("dragon scales", "reptile scales", "scales"), ("green", "red", "black"), ("wet", "dark", "bright", "polished"), 0.8, solid="scaly"),
    Material(crafted.bark, ("tree bark", "bark"), ("brown", "grey"), ("mossy", "mossy", "burnt", "snowy", "wet", "dark"), 0.9, False, solid="bark"),
    Material(crafted.parchment, ("parchment", "old paper"), ("beige",), ("burnt", "dirty", "worn", "dark"), 0.6, False),
    Material(crafted.slime, ("slime", "goo"), ("green", "green", "purple"), FLOW, 0.6, solid="slime"),
)

SOLID_MATERIALS = tuple(m for m in MATERIALS if m.solid)
GROUNDS = {
    ground.sand: "sand", ground.grass: "grass", ground.snow: "snow", ground.dirt: "dirt", ground.rock: "rock",
    ground.water: "water", ground.lava: "lava", masonry.cobblestone: "cobblestone", masonry.planks: "wooden planks",
    masonry.ceramic_tiles: "tiles", masonry.checkerboard: "a checkerboard floor", crafted.concrete: "concrete",
    crafted.marble: "marble", ground.moss: "moss",
}
COLOUR_NAMES = tuple(COLOURS)
