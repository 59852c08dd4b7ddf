"""The number type of training: bf16 where the processor multiplies it, else f32.

Without such instructions torch imitates bf16, which is seven times slower than f32.
"""

import torch


FAST = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=FAST == torch.bfloat16)
