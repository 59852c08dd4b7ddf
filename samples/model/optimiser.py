"""Muon for the weight matrices, AdamW for all else: fewer steps to the same loss than AdamW alone."""

import torch

from precision import FAST


def orthogonal(matrices):
    """The nearest orthogonal matrices [n, rows, cols], roughly, by five Newton-Schulz steps (Keller Jordan's numbers)."""
    x = matrices.to(FAST)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def cost(p):
    """Of making `p`'s update orthogonal, to share the work out by."""
    return p.numel() * min(len(p), p.numel() // len(p))


class Muon(torch.optim.Optimizer):
    """Each member of `team` makes its share of the updates orthogonal; all apply all of them."""

    def __init__(self, parameters, team, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(sorted(parameters, key=cost), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.team = team

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            parameters = group["params"]
            flat = torch.zeros(sum(p.numel() for p in parameters))
            updates = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in parameters]), parameters)]
            for i, (p, update) in enumerate(zip(parameters, updates)):
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                if i % self.team.size == self.team.rank:
                    made = p.grad.lerp(state["momentum"], group["momentum"]).reshape(1, len(p), -1)
                    made = orthogonal(made) * max(1, made.shape[1] / made.shape[2]) ** 0.5
                    update.copy_(made.view_as(p))
            self.team.sum(flat)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class Pair:
    """Both optimisers as one; `set_rate` takes a factor of their peak rates."""

    def __init__(self, modules, team, matrix_rate, other_rate, keep_out=("conv_in", "conv_out", "embedding")):
        named = [item for m in modules for item in m.named_parameters()]
        inner = [p for name, p in named if p.ndim >= 2 and not any(k in name for k in keep_out)]
        chosen = {id(p) for p in inner}
        outer = [p for _, p in named if id(p) not in chosen]
        self.parts = [
            (Muon(inner, team, matrix_rate, weight_decay=0.01), matrix_rate),
            (torch.optim.AdamW(outer, other_rate, betas=(0.9, 0.98), weight_decay=1e-4), other_rate),
        ]

    def set_rate(self, factor):
        for part, peak in self.parts:
            for group in part.param_groups:
                group["lr"] = peak * factor

    def zero_grad(self):
        for part, _ in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self):
        for part, _ in self.parts:
            part.step()

    def state_dict(self):
        return {"parts": [part.state_dict() for part, _ in self.parts]}

    def load_state_dict(self, state):
        for (part, _), stored in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(stored)
