"""Going on from the exported model where the checkpoints of its training are gone."""

import torch

import autoencoder
import bundle
import denoiser
import latents
import text
from checkpoints import Checkpoint, say
from optimiser import Pair
from team import ALONE


def begin(path, work, keep_text):
    """Write the checkpoints in `work` anew from the model at `path`: its weights, fresh optimisers, no time spent.

    The UNet may have other blocks than the model's: those that both have are taken over, and new
    transformers begin as if they were not there.
    """
    vae, unet, encoder, made, metadata = bundle.load(path)
    (work / "vocab.json").write_text(metadata["tokenizer.vocab"])
    (work / "merges.txt").write_text(metadata["tokenizer.merges"])
    (work / latents.STD).write_text(repr(1 / vae.config.scaling_factor))

    model = autoencoder.build()
    model.load_state_dict(vae.state_dict())
    rates = autoencoder.RATES
    Checkpoint(work / "autoencoder.pt", model=model, optimiser=Pair([model], ALONE, *rates)).save()

    modules = [denoiser.build(), text.build(made.get_vocab_size())]
    changed = modules[0].load_state_dict(unet.state_dict(), strict=False)
    for name, parameter in modules[0].named_parameters():
        if name in changed.missing_keys and "proj_out" in name:
            torch.nn.init.zeros_(parameter)
    modules[1].load_state_dict(encoder.state_dict())
    optimiser = Pair(denoiser.learning(modules, keep_text), ALONE, *denoiser.RATES)
    average = denoiser.Average(modules)
    Checkpoint(work / "unet.pt", unet=modules[0], text=modules[1], optimiser=optimiser, average=average).save()
    say(f"begun from {path.name}: {len(changed.missing_keys)} tensors new, {len(changed.unexpected_keys)} dropped")
