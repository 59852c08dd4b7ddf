"""Muon for the weight matrices, AdamW for all else: fewer steps to the same loss than AdamW alone."""

import torch


def orthogonal(matrices):
    """The nearest orthogonal matrices [n, rows, cols], roughly, by five Newton-Schulz steps (Keller Jordan's numbers)."""
    x = matrices.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(list(parameters), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(state["momentum"], group["momentum"]).reshape(1, len(p), -1)
                update = orthogonal(update) * max(1, update.shape[1] / update.shape[2]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.reshape(p.shape).to(p.dtype), alpha=-group["lr"])


class Pair:
    """Both optimisers as one; `set_rate` takes a factor of their peak rates."""

    def __init__(self, modules, matrix_rate, other_rate, keep_out=("conv_in", "conv_out", "embedding")):
        named = [item for m in modules for item in m.named_parameters()]
        inner = [p for name, p in named if p.ndim >= 2 and not any(k in name for k in keep_out)]
        chosen = {id(p) for p in inner}
        outer = [p for _, p in named if id(p) not in chosen]
        self.parts = [
            (Muon(inner, matrix_rate, weight_decay=0.01), matrix_rate),
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
