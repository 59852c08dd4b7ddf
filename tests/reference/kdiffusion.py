"""Loads the samplers of the package `k-diffusion` without the training half of it.

Its `__init__` imports skimage, torchvision, wandb, … which the samplers do not need.
Install it with `pip install --no-deps` (see `requirements-nodeps.txt`).
"""

import importlib
import importlib.util
import sys
import types


def load():
    """`(sampling, external)`: the two modules with the samplers and the eps/v wrappers."""
    if "k_diffusion.sampling" not in sys.modules:
        package = types.ModuleType("k_diffusion")
        package.__path__ = list(importlib.util.find_spec("k_diffusion").submodule_search_locations)
        sys.modules["k_diffusion"] = package
        helpers = types.ModuleType("k_diffusion.utils")
        helpers.append_dims = lambda x, dims: x[(...,) + (None,) * (dims - x.ndim)]
        sys.modules["k_diffusion.utils"] = package.utils = helpers
    return importlib.import_module("k_diffusion.sampling"), importlib.import_module("k_diffusion.external")


sampling, external = load()


class Denoiser(external.DiscreteSchedule):
    """Model in, denoised out, for epsilon and v prediction.

    `model(x, t)` sees the scaled input x / sqrt(σ² + 1) and the unrounded timestep of σ
    (log-linear between the training sigmas).
    """

    def __init__(self, model, alphas_cumprod, prediction):
        super().__init__(((1 - alphas_cumprod) / alphas_cumprod) ** 0.5, quantize=False)
        self.model, self.prediction = model, prediction
        self.asked = []

    def forward(self, x, sigma):
        """x: [1, C, H, W]; sigma: [1]. Gives the denoised latents."""
        sigma = sigma.reshape(-1, 1, 1, 1)
        t = self.sigma_to_t(sigma.flatten()[:1])
        self.asked.append(t.item())
        output = self.model(x / (sigma**2 + 1) ** 0.5, t)
        if self.prediction == "epsilon":
            return x - sigma * output
        return x / (sigma**2 + 1) - output * sigma / (sigma**2 + 1) ** 0.5
