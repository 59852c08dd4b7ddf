"""Procedural training pictures: textures, textured solids, and captions for both."""
