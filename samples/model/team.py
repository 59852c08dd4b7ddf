"""Several processes that train one model, one thread each.

On a shared machine this loses less than one process with several threads: the members
wait for one another once a step, not at every operation.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Team:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    @property
    def leads(self):
        return self.rank == 0

    def sum(self, values):
        """Replace `values` by their sum over the team."""
        if self.size > 1:
            dist.all_reduce(values)

    def combine(self, parameters, values, clock):
        """Average gradients and `values` over the team; everyone gets the leader's `clock`.

        Returns (averaged values, clock).
        """
        if self.size == 1:
            return values, clock
        grads = [p.grad for p in parameters]
        ticks = torch.tensor([clock * self.size if self.leads else 0.0])
        flat = torch.cat([g.reshape(-1) for g in grads] + [values, ticks])
        self.sum(flat)
        flat /= self.size
        at = 0
        for g in grads:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()
        return flat[at : at + len(values)].clone(), float(flat[-1])


ALONE = Team(0, 1)


def _member(rank, size, meeting, work, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    work(Team(rank, size), *arguments)
    dist.destroy_process_group()


def run(size, work, *arguments):
    """Call work(team, *arguments) in `size` processes and wait for all of them."""
    if size == 1:
        torch.set_num_threads(1)
        work(ALONE, *arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_member, (size, Path(folder) / "meeting", work, arguments), nprocs=size)
