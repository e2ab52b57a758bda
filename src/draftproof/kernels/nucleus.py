"""Top-k, top-p and min-p by our own kernel: two passes over a row of logits, and a sort of the few that may stay."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .library import library, reason

_WIDTH = 256  # tokens a row that there is room for at first


class _Settings(ctypes.Structure):
    _fields_ = [
        ("half", ctypes.c_int64),
        ("vocab", ctypes.c_int64),
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
    ]


def unsupported(logits: Tensor) -> str | None:
    """Why the kernel cannot take these; None if it can."""
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.bfloat16):
        return f"the kernel needs float32 or bfloat16 on the CPU, not {logits.dtype} on {logits.device.type}"
    return reason()


def nucleus(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor, bool]:
    """What `sampling.probs` keeps of each row `[R, V]`, up to rounding, with the most likely first; ties by id.

    Args:
        temperature: positive.
        top_k, top_p, min_p: 0, 1 and 0 are off.

    Returns:
        Their law float32 and ids int64 `[R, W]`, padded with zeros, and whether the highest logit of every row is
        finite; otherwise there is no law.
    """
    logits = logits.contiguous()
    rows, vocab = logits.shape
    settings = _Settings(logits.dtype == torch.bfloat16, vocab, temperature, top_k or vocab, top_p, min_p)
    counts = torch.empty(rows, dtype=torch.int64)
    width = min(_WIDTH, vocab)
    while True:
        values = torch.empty(rows, width)
        ids = torch.empty(rows, width, dtype=torch.int64)
        library().draftproof_nucleus(
            *(ctypes.addressof(settings), logits.data_ptr(), rows, width),
            *(values.data_ptr(), ids.data_ptr(), counts.data_ptr(), torch.get_num_threads()),
        )
        found = counts.tolist()
        widest = max(found, default=1)
        if widest <= width:
            return values[:, : max(1, widest)], ids[:, : max(1, widest)], min(found, default=0) >= 0
        width = widest
