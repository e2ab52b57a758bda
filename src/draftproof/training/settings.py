"""How a drafter is trained: what all recipes share. Every value is checked when the record is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..errors import OptionError
from ..models.linear import multiplies_bfloat16
from .losses import LOSSES


@dataclass(frozen=True)
class Settings:
    """Args:
    length: tokens of a row; longer texts are cut.
    rows: rows of a batch; a batch is what lies in memory at once.
    accumulate: batches to a step of the optimiser.
    epochs: passes over the texts.
    max_steps: at most this many steps, or None.
    lr, warmup, floor: the learning rate rises over `warmup` of all steps and falls as a cosine to `floor` of its peak.
    weight_decay, clip: AdamW's decay; the norm gradients are cut to.
    precision: "bf16" (arithmetic in bfloat16, weights in float32) or "fp32"; "auto" is the faster here.
    loss, eta: see `losses`; eta is of "lk".
    temperature: of the target's law.
    on_policy: share of the batches whose answers a draft model writes itself.
    seed: of the order of the texts, of noise and of new weights.
    held_out: texts kept from training and measured on.
    depth: drafted tokens per round in that measure.
    eval_every, save_every, log_every: steps between measures, checkpoints and log lines.
    patience: measures without a better one before it stops; 0 never does.
    checkpointing: compute activations anew instead of keeping them, for less memory.
    """

    length: int = 512
    rows: int = 4
    accumulate: int = 1
    epochs: int = 1
    max_steps: int | None = None
    lr: float = 1e-3
    warmup: float = 0.03
    floor: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    precision: str = "auto"
    loss: str = "lk"
    eta: float = 3.0
    temperature: float = 1.0
    on_policy: float = 0.0
    seed: int = 0
    held_out: int = 48
    depth: int = 4
    eval_every: int = 200
    save_every: int = 50
    log_every: int = 10
    patience: int = 0
    checkpointing: bool = False

    def __post_init__(self) -> None:
        wholes = {"length": 4, "rows": 1, "accumulate": 1, "epochs": 1, "seed": 0, "held_out": 0, "depth": 1}
        wholes |= {"eval_every": 1, "save_every": 1, "log_every": 1, "patience": 0}
        for name, lowest in wholes.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise OptionError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        if self.max_steps is not None and (not isinstance(self.max_steps, int) or self.max_steps < 1):
            raise OptionError(f"max_steps must be a whole number of at least 1, not {self.max_steps!r}")
        for name in ("lr", "clip", "eta", "temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        for name in ("warmup", "floor", "on_policy"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} must be a share from 0 to 1, not {getattr(self, name)!r}")
        if self.weight_decay < 0:
            raise OptionError(f"weight_decay must be at least 0, not {self.weight_decay!r}")
        if self.precision == "auto":
            object.__setattr__(self, "precision", faster_precision())
        if self.precision not in ("bf16", "fp32"):
            raise OptionError(f"precision must be auto, bf16 or fp32, not {self.precision!r}")
        if self.loss not in LOSSES:
            raise OptionError(f"unknown loss {self.loss!r}: use {', '.join(LOSSES)}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def must_match(self) -> dict[str, Any]:
        """What a run that is continued must have been begun with: all but how often things are written down."""
        free = ("save_every", "log_every")
        return {name: value for name, value in asdict(self).items() if name not in free}


def faster_precision() -> str:
    """bfloat16 on a GPU, or a CPU with instructions for it; on other CPUs it takes six times as long."""
    return "bf16" if torch.cuda.is_available() or multiplies_bfloat16() else "fp32"
