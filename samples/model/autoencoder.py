"""The autoencoder: 8x smaller latents with 8 channels, trained on crops."""

import time

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL

from checkpoints import Checkpoint, say
from data import store
from optimiser import Pair
from precision import autocast

LATENT_CHANNELS = 8
RATES = 0.01, 1.5e-3  # of Muon and AdamW, at their peak
# Eight groups, not 32: with as many groups as channels every channel's mean would be
# normalised away at full resolution, and with it the picture's overall colour.
CONFIG = dict(
    in_channels=3,
    out_channels=3,
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(32, 32, 64, 96),
    layers_per_block=1,
    latent_channels=LATENT_CHANNELS,
    norm_num_groups=8,
    sample_size=256,
    mid_block_add_attention=False,
    act_fn="silu",
)


def build():
    torch.manual_seed(11)
    return AutoencoderKL(**CONFIG).to(memory_format=torch.channels_last)


def crops(pictures, generator, batch, side):
    """Random crops [batch, 3, side, side] in -1..1, flipped at random."""
    n, size = pictures.shape[0], pictures.shape[1]
    pick = torch.randint(0, n, (batch,), generator=generator).tolist()
    corner = torch.randint(0, size - side + 1, (batch, 2), generator=generator).tolist()
    out = torch.stack([torch.from_numpy(pictures[i, y : y + side, x : x + side].copy()) for i, (y, x) in zip(pick, corner)])
    out = out.permute(0, 3, 1, 2).float() / 127.5 - 1
    if torch.rand(1, generator=generator) < 0.5:
        out = out.flip(3)
    return out.contiguous(memory_format=torch.channels_last)


def spectrum(x, window=16):
    """Magnitudes of the Fourier transform of overlapping windows: how much detail is where."""
    hann = torch.hann_window(window, periodic=False, dtype=x.dtype)
    patches = x.unfold(2, window, window // 2).unfold(3, window, window // 2)
    return torch.fft.rfft2(patches * (hann[:, None] * hann[None, :])).abs() / window


def loss_terms(out, target):
    """L1 and squares, L1 of the gradients, L1 between the spectra of patches, L1 of the colour of 8x8 blocks."""
    pixel = (out - target).abs().mean() + (out - target).square().mean()
    edges = ((out - target).diff(dim=2)).abs().mean() + ((out - target).diff(dim=3)).abs().mean()
    detail = (spectrum(out) - spectrum(target)).abs().mean()
    tint = F.avg_pool2d(out - target, 8).abs().mean()
    return pixel, edges, detail, tint


def psnr(a, b):
    return float(10 * torch.log10(4 / F.mse_loss(a, b)))


def train(team, work, pictures, minutes, batch=8, side=64, detail_weight=0.6):
    """Train for `minutes` in all, over however many runs; the rate falls with the time used.

    `pictures` names the set in `work`; each member of the team takes `batch` crops a step.
    """
    pictures, _ = store.load(work, pictures)
    model = build()
    optimiser = Pair([model], team, *RATES)
    state = Checkpoint(work / "autoencoder.pt", model=model, optimiser=optimiser)
    state.restore()
    generator = torch.Generator().manual_seed(1000 + state.step * team.size + team.rank)
    held_out = crops(pictures[-64:], torch.Generator().manual_seed(5), 32, 128)
    started, spent = time.monotonic(), state.seconds
    parameters = list(model.parameters())
    sums, count = torch.zeros(5), 0
    while state.seconds < minutes * 60:
        progress = state.seconds / (minutes * 60)
        rate = min(1, (state.step + 1) / 100) * max(0.02, 1 - progress)
        optimiser.set_rate(rate)
        # now and then a larger crop: the norms see statistics more like a whole picture's
        large = state.step % 4 == 0
        target = crops(pictures, generator, batch // 4 if large else batch, side * 2 if large else side)
        with autocast():
            posterior = model.encode(target).latent_dist
            out = model.decode(posterior.sample()).sample
        out = out.float()
        pixel, edges, detail, tint = loss_terms(out, target)
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = pixel + 2 * tint + 0.5 * edges + detail_weight * max(0.0, (progress - 0.35) / 0.65) * detail + 2e-4 * kl
        optimiser.zero_grad()
        loss.backward()
        terms = torch.stack([pixel, edges, detail, tint, kl]).detach()
        terms, state.seconds = team.combine(parameters, terms, spent + time.monotonic() - started)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        state.step += 1
        sums, count = sums + terms, count + 1
        if not team.leads:
            continue
        if state.step % 100 == 0:
            means = (sums / count).tolist()
            sums, count = torch.zeros(5), 0
            say(f"autoencoder step {state.step} {state.seconds / 60:.1f} min rate {rate:.2f} "
                "pixel {:.4f} edges {:.4f} detail {:.4f} tint {:.4f} kl {:.2f}".format(*means))
        if state.step % 500 == 0:
            say(f"autoencoder step {state.step} held-out PSNR {reconstruction_psnr(model, held_out):.2f} dB")
        if state.due():
            state.save()
    if not team.leads:
        return
    state.save()
    say(f"autoencoder done: step {state.step} {state.seconds / 60:.1f} min, PSNR {reconstruction_psnr(model, held_out):.2f} dB")


@torch.no_grad()
def reconstruction_psnr(model, pictures):
    with autocast():
        out = model.decode(model.encode(pictures).latent_dist.mode()).sample
    return psnr(out.float().clamp(-1, 1), pictures)


def load(work):
    """The trained autoencoder, in f32, ready to encode."""
    model = build()
    model.load_state_dict(torch.load(work / "autoencoder.pt", weights_only=True)["model"])
    return model.eval().requires_grad_(False)
