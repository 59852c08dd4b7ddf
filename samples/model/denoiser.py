"""The UNet and the text encoder, trained together on stored latents."""

import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel

import autoencoder
import latents as stored
import text
from checkpoints import Checkpoint, say
from data import store
from optimiser import Pair
from precision import autocast

STEPS = 1000
SCHEDULER = dict(
    _class_name="DPMSolverMultistepScheduler",
    beta_start=0.00085,
    beta_end=0.012,
    beta_schedule="scaled_linear",
    num_train_timesteps=STEPS,
    prediction_type="v_prediction",
    timestep_spacing="trailing",
    steps_offset=1,
    clip_sample=False,
    set_alpha_to_one=False,
    trained_betas=None,
    algorithm_type="dpmsolver++",
    solver_order=2,
    solver_type="midpoint",
    lower_order_final=True,
    use_karras_sigmas=False,
)
DROP_CAPTION = 0.1
SMALL_BATCH, LARGE_BATCH = 32, 8  # of the whole team, at 16x16 and at 32x32
RATES = 0.006, 7e-4  # of Muon and AdamW, at their peak


def build():
    torch.manual_seed(13)
    model = UNet2DConditionModel(
        sample_size=32,
        in_channels=autoencoder.LATENT_CHANNELS,
        out_channels=autoencoder.LATENT_CHANNELS,
        layers_per_block=1,
        block_out_channels=(96, 128, 160),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=text.WIDTH,
        attention_head_dim=8,
        norm_num_groups=32,
        use_linear_projection=False,
    )
    return model


def alphas_cumprod():
    betas = torch.linspace(SCHEDULER["beta_start"] ** 0.5, SCHEDULER["beta_end"] ** 0.5, STEPS) ** 2
    return torch.cumprod(1 - betas, 0)


class Average:
    """Exponential moving averages of the parameters of several modules."""

    def __init__(self, modules, limit=0.998):
        self.live = [p for m in modules for p in m.parameters()]
        self.mean = [p.detach().clone() for p in self.live]
        self.limit = limit

    @torch.no_grad()
    def update(self, step):
        decay = min(self.limit, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.mean, [p.detach() for p in self.live], 1 - decay)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        for mine, theirs in zip(self.mean, state["mean"], strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def copy_to(self, modules):
        for p, mean in zip((p for m in modules for p in m.parameters()), self.mean, strict=True):
            p.copy_(mean)


class Captions:
    """Token ids of every caption; a draw picks one of the wordings, or none at all."""

    def __init__(self, captions, made):
        self.table = torch.stack([text.ids(made, wordings) for wordings in captions])
        self.empty = text.ids(made, [""])[0]

    def draw(self, index, generator):
        which = torch.randint(0, self.table.shape[1], (len(index),), generator=generator)
        ids = self.table[index, which]
        dropped = torch.rand(len(index), generator=generator) < DROP_CAPTION
        return torch.where(dropped[:, None], self.empty, ids)


HARD = ("brick", "tile", "plank", "wood", "plates", "cobble", "stone")


def draw_weights(captions):
    """How often to draw each picture: materials laid in blocks are the hardest to learn and the most asked for."""
    return torch.tensor([2.0 if any(word in wordings[0] for word in HARD) else 1.0 for wordings in captions])


def batch_of(files, weights, scale, side, batch, generator, is_solid):
    """(latents, their indices). At side 16: crops of whole textures, and solids at half their size."""
    index = torch.multinomial(weights, batch, True, generator=generator)
    corner = torch.randint(0, 17, (batch, 2), generator=generator).tolist()
    rows = []
    for i, (y, x) in zip(index.tolist(), corner):
        if side == 32:
            rows.append(files[32][i])
        elif is_solid[i]:
            rows.append(files[16][i])
        else:
            rows.append(files[32][i, :, y : y + 16, x : x + 16])
    return torch.from_numpy(np.stack(rows).astype(np.float32)) * scale, index


def learning(modules, keep_text):
    """Those of (UNet, text encoder) that learn."""
    return modules[:1] if keep_text else modules


def timesteps(batch, generator):
    """One from each of `batch` ranges, so that no step sees only easy or only hard ones.

    Those with much noise, where the layout is decided, come more often: density t^0.43.
    """
    share = (torch.arange(batch) + torch.rand(batch, generator=generator)) / batch
    return (STEPS * share**0.7).long().clamp(max=STEPS - 1)


def train(team, work, minutes, keep_text):
    """Train for `minutes` in all, on 16x16 and 32x32 latents in turn.

    The small ones teach what the words mean, at a quarter of the price; the whole ones how a picture is laid out.
    With `keep_text` the text encoder stays as it is: at the rates of a new beginning it forgets colours.
    """
    _, captions = store.load(work)
    is_solid = [store.is_solid(i) for i in range(len(captions))]
    vocab, merges = (work / "vocab.json").read_text(), (work / "merges.txt").read_text()
    made = text.tokenizer(vocab, merges)
    words = Captions(captions, made)
    unet, encoder = build(), text.build(made.get_vocab_size())
    modules = [unet, encoder]
    encoder.requires_grad_(not keep_text)
    parameters = [p for m in learning(modules, keep_text) for p in m.parameters()]
    optimiser = Pair(learning(modules, keep_text), team, *RATES)
    average = Average(modules)
    state = Checkpoint(work / "unet.pt", unet=unet, text=encoder, optimiser=optimiser, average=average)
    state.restore()
    files = {side: stored.load(work, side)[0] for side in (16, 32)}
    count = stored.load(work, 32)[1]
    scale = stored.scaling_factor(work)
    weights = draw_weights(captions)
    alphas = alphas_cumprod()
    generator = torch.Generator().manual_seed(2000 + state.step * team.size + team.rank)
    started, spent = time.monotonic(), state.seconds
    totals = {16: 0.0, 32: 0.0}
    while state.seconds < minutes * 60:
        progress = state.seconds / (minutes * 60)
        side, batch = (32, LARGE_BATCH // team.size) if state.step % 2 else (16, SMALL_BATCH // team.size)
        rate = min(1, (state.step + 1) / 100) * max(0.03, math.cos(progress * math.pi / 2))
        optimiser.set_rate(rate)
        if state.step % 50 == 0:
            count = stored.load(work, 32)[1]
        clean, index = batch_of(files, weights[:count], scale, side, batch, generator, is_solid)
        noise = torch.randn(clean.shape, generator=generator)
        t = timesteps(batch, generator)
        signal, sigma = alphas[t].sqrt()[:, None, None, None], (1 - alphas[t]).sqrt()[:, None, None, None]
        target = signal * noise - sigma * clean
        with autocast():
            states = encoder(words.draw(index, generator)).last_hidden_state
            out = unet(signal * clean + sigma * noise, t, states).sample
        loss = F.mse_loss(out.float(), target)
        optimiser.zero_grad()
        loss.backward()
        mean, state.seconds = team.combine(parameters, loss.detach()[None], spent + time.monotonic() - started)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        state.step += 1
        average.update(state.step)
        totals[side] += float(mean)
        if not team.leads:
            continue
        if state.step % 50 == 0:
            say(f"unet step {state.step} {state.seconds / 60:.1f} min rate {rate:.2f} "
                f"loss {totals[16] / 25:.4f} at 16x16, {totals[32] / 25:.4f} at 32x32")
            totals = dict.fromkeys(totals, 0.0)
        if state.due():
            state.save()
    if not team.leads:
        return
    state.save()
    say(f"unet done: step {state.step}, {state.seconds / 60:.1f} min")


def load(work):
    """(unet, text encoder) with the averaged weights, ready to sample."""
    made = text.tokenizer((work / "vocab.json").read_text(), (work / "merges.txt").read_text())
    modules = [build(), text.build(made.get_vocab_size())]
    state = torch.load(work / "unet.pt", weights_only=True)
    average = Average(modules)
    average.load_state_dict(state["average"])
    average.copy_to(modules)
    return [m.eval().requires_grad_(False) for m in modules]
