"""Which forward runs a loaded model, and in which weight format.

The lean forward where it supports the architecture, transformers' own over our slots otherwise; with packed or int8
weights the latter gets its linear layers replaced one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import OptionError
from . import invariance
from .hf import LoadedModel, check_rewindable
from .lean import LeanForward, unsupported
from .linear import Linear, choose, maker
from .passes import Forward
from .plugged import PluggedForward
from .probe import check_forward


def make_forward(
    loaded: LoadedModel, *, weights: str = "auto", bitwise: bool | None = None, lean: bool | None = None
) -> Forward:
    """The fastest exact forward of a loaded model; the model's weights may be taken out of it.

    Args:
        weights: "auto" (the fastest exact format), "dense", "packed", "int8" or "int4".
        bitwise: True demands bit-exact passes, False does without, None takes them where the kernels allow.
        lean: True demands the lean forward, False transformers' own, None takes the lean one where it can run.

    Raises:
        ModelError: the model cannot be run exactly over slots.
        OptionError: a format or mode that cannot be had here, with the reason.
    """
    check_rewindable(loaded.model, loaded.name)
    reason = unsupported(loaded.model)
    if lean and reason:
        raise OptionError(f"the lean forward cannot run {loaded.name}: {reason}")
    if lean is False or reason:
        if bitwise:
            raise OptionError(f"bitwise=True needs the lean forward: {reason or 'it was turned off'}")
        forward = PluggedForward(loaded.model, loaded.max_length)
        check_forward(forward, loaded.model, loaded.name)
        forward.weights = replace_linears(loaded.model, weights, forward.dtype, forward.device)
        return forward
    made = LeanForward(loaded.model, loaded.max_length, weights)
    if bitwise is not False and (fault := invariance.secure(made)) and bitwise:
        raise OptionError(f"bitwise=True cannot be promised for {loaded.name} with {made.weights} weights: {fault}")
    return made


class FormatLinear(nn.Module):
    """A linear layer of a transformers model in one of our weight formats."""

    def __init__(self, linear: Linear, out_features: int):
        super().__init__()
        self.linear, self.out_features = linear, out_features

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        num = len(rows)
        if num < self.linear.min_rows:
            rows = torch.nn.functional.pad(rows, (0, 0, 0, self.linear.min_rows - num))
        return self.linear(rows)[:num].view(*x.shape[:-1], self.out_features)


def draft_format(weights: str, forward: Forward) -> str:
    """The format of a head's weights: "auto" is int8 where there is such a kernel."""
    return choose(weights, forward.dtype, forward.device, ("int8",))


def replace_linears(model: nn.Module, weights: str, dtype: torch.dtype, device: torch.device) -> str:
    """Replace every plain `nn.Linear`; layers of other kinds stay. Returns the format's name."""
    name, make = maker(weights, dtype, device)
    if name == "dense":
        return name
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                bias = None if child.bias is None else child.bias.detach()
                setattr(module, child_name, FormatLinear(make(child.weight.detach(), bias), child.out_features))
    return name
