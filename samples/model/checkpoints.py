"""Saving and restoring a training run, and telling what it does."""

import os
import time
from datetime import datetime, timezone

import torch


def say(message):
    print(f"{datetime.now(timezone.utc):%H:%M:%S} {message}", flush=True)


class Checkpoint:
    """Named modules and optimisers, the step, and the seconds spent, kept in one file.

    The file is replaced in one move, so a run that is killed leaves the one before.
    """

    def __init__(self, path, every=180, **parts):
        self.path, self.every, self.parts = path, every, parts
        self.step, self.seconds = 0, 0.0
        self._saved = time.monotonic()

    def restore(self):
        if not self.path.exists():
            return False
        stored = torch.load(self.path, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(stored[name])
        self.step, self.seconds = stored["step"], stored["seconds"]
        say(f"{self.path.name}: resumed at step {self.step}, {self.seconds / 60:.1f} min")
        return True

    def due(self):
        return time.monotonic() - self._saved > self.every

    def save(self):
        state = {name: part.state_dict() for name, part in self.parts.items()}
        partial = self.path.with_suffix(".partial")
        torch.save({**state, "step": self.step, "seconds": self.seconds}, partial)
        os.replace(partial, self.path)
        self._saved = time.monotonic()
