"""Weight formats behind one interface: y = x W^T + b, with an optional addend.

    dense    torch's own layer; runs anywhere; the oracle of the others
    packed   oneDNN's blocked layout, bf16 and fp32 on the CPU; exact, and on this kernel each row of the result is
             bit-identical for every number of rows from 2 on
    int8     per-channel weights, per-token dynamic activations (VNNI); reads half the bytes of bf16

int8 error: with weights rounded to s_w q_w, |q_w| <= 127, and activations to s_x q_x, an output differs from the
dense one by at most  sum_k ( |x_k| s_w / 2 + |w_k| s_x / 2 + s_w s_x / 4 )  before the result itself is rounded to its
dtype; s_w = max|w| / 127 per output channel, s_x <= max|x| / 125 per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import OptionError

FORMATS = ("dense", "packed", "int8")


class Linear(Protocol):
    """One linear map over the rows of x."""

    num_bytes: int  # read per pass
    min_rows: int  # with fewer rows another kernel may run: pad

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x `[M, K]`, add `[M, N]` or None; returns `[M, N]` in x's dtype."""
        ...


class DenseLinear:
    """Plain `F.linear`."""

    min_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        """weight `[N, K]`, bias `[N]` or None."""
        self.weight, self.bias = weight, bias
        self.num_bytes = weight.numel() * weight.element_size()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        y = torch.nn.functional.linear(x, self.weight, self.bias)
        return y if add is None else y.add_(add)


class PackedLinear:
    """oneDNN's blocked weight layout, the addend fused into the product."""

    min_rows = 2

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.num_bytes = weight.numel() * weight.element_size()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = bias

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if add is None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(x, add, self._packed, self._bias, "add")


class Int8Linear:
    """8-bit weights with a scale per output channel; activations are rounded to 8 bits token by token.

    The token's scale is a value of x's own dtype, so multiplying the result by it adds no error of its own.
    """

    min_rows = 1

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        rows = weight.float()
        scale = rows.abs().amax(dim=1).clamp_(min=1e-12) / 127
        rounded = (rows / scale[:, None]).round_().to(torch.int8)
        self.num_bytes = rounded.numel()
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._scale = scale
        self._zero = torch.zeros(len(scale), dtype=torch.long)
        self._bias = bias
        self._centre = torch.tensor(128.5)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        token = x.abs().amax(dim=-1, keepdim=True).mul_(1 / 126).clamp_(min=1e-12)  # vector_norm(inf) is 7 times slower
        levels = torch.addcmul(self._centre, x.float(), token.float().reciprocal()).to(torch.uint8)
        y = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, 128, self._packed, self._scale, self._zero, None, 1.0, 0, x.dtype, "none", [], ""
        )
        if self._bias is not None:
            y = torch.addcmul(self._bias, y, token)
            return y if add is None else y.add_(add)
        return y.mul_(token) if add is None else torch.addcmul(add, y, token)


def available(weights: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """None if the format can be used, otherwise the reason why not."""
    if weights == "dense":
        return None
    if device.type != "cpu":
        return f"{weights} weights need the CPU, not {device.type}"
    if not torch.backends.mkldnn.is_available():
        return f"{weights} weights need a torch built with oneDNN"
    if dtype not in (torch.bfloat16, torch.float32):
        return f"{weights} weights need bfloat16 or float32, not {str(dtype).removeprefix('torch.')}"
    if weights == "packed" and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "packed bfloat16 weights need a CPU with AVX-512"
    return None


def maker(weights: str, dtype: torch.dtype, device: torch.device, *, fallback: str = "packed") -> tuple[str, Any]:
    """Choose a format: "auto" is `fallback` where it can be used and dense elsewhere.

    Returns:
        The format's name, and a function (weight, bias) -> Linear.

    Raises:
        OptionError: an unknown format, or one that cannot be used here.
    """
    makers: dict[str, Callable[[Tensor, Tensor | None], Linear]]
    makers = {"dense": DenseLinear, "packed": PackedLinear, "int8": Int8Linear}
    if weights == "auto":
        weights = next(f for f in (fallback, "packed", "dense") if available(f, dtype, device) is None)
    if weights not in makers:
        raise OptionError(f"unknown weights {weights!r}: use auto, {', '.join(makers)}")
    if reason := available(weights, dtype, device):
        raise OptionError(reason)
    return weights, makers[weights]
