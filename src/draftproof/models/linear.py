"""Weight formats behind one interface: y = x W^T + b, with an optional addend.

    dense    torch's own layer; runs anywhere; the oracle of the others
    packed   a blocked layout, exact: bfloat16 by our own kernel where it can be had, else oneDNN's (and its float32);
             on CPUs that do not multiply bfloat16, bfloat16 weights are held in float32
    int8     8-bit weights and activations: our own kernel (a scale per output and group of 64 inputs, activations
             rounded per token and group), else oneDNN's (a scale per output, activations rounded per token, to 7 bits
             on CPUs without VNNI)
    int4     4-bit weights with a scale and zero point per output and group of 32 inputs, 8-bit activations per token
             and group; our own kernel only

Each row of a packed, int8 or int4 product is bit-identical for every number of rows from `min_rows` on.

Errors: with weights rounded to within e_w and activations to within s_x / 2, an output differs from the dense one by at
most  sum_k ( |x_k| e_w + |w_k| s_x / 2 + e_w s_x / 2 )  before the result itself is rounded to its dtype. int8: e_w =
s_w / 2, s_w <= 1.006 max|w| / 127 over the group or channel, s_x <= max|x| / 125 over the group or token (/ 62 for
oneDNN's without VNNI). int4: e_w = 17/32 s_w, s_w <= 1.006 (max(w, 0) - min(w, 0)) / 15 over the group, s_x = max|x|
/ 127 over the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from ..errors import OptionError
from ..kernels import library
from .native.product import NativeLinear

FORMATS = ("dense", "packed", "int8", "int4")


class Linear(Protocol):
    """One linear map over the rows of x, perhaps behind a norm or a gate."""

    num_bytes: int  # read per pass
    min_rows: int  # with fewer rows another kernel may run: pad

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x `[M, K]` (behind a gate `[M, 2 K]`), add `[M, N]` or None; returns `[M, N]` in x's dtype."""
        ...


class Make(Protocol):
    """Makes a linear map from weight `[N, K]`, or several to stand below one another, and bias `[N]` or None."""

    def __call__(
        self,
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None,
        *,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear:
        """norm: x is first divided by its root mean square (with this eps) and multiplied by a scale `[K]`.

        gated: x is `[M, 2 K]`, the map reads silu of its first half times its second.
        """
        ...


class Prepared:
    """A linear map behind a norm or a gate, in torch's own operators."""

    def __init__(self, inner: Linear, norm: tuple[Tensor, float] | None, gated: bool):
        self._inner, self._norm, self._gated = inner, norm, gated
        self.num_bytes, self.min_rows = inner.num_bytes, inner.min_rows

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if self._norm is not None:
            scale, eps = self._norm
            x = rms_norm(x, scale.shape, scale, eps)
        if self._gated:
            gate, up = x.chunk(2, dim=-1)
            x = silu(gate).mul_(up)
        return self._inner(x, add)


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

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        self.min_rows = 4 if multiplies_bfloat16() else 2  # fewer take longer, and one row may have bits of its own
        self._dtype = weight.dtype if multiplies_bfloat16() else torch.float32
        self.num_bytes = weight.numel() * self._dtype.itemsize
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(self._dtype).contiguous())
        self._bias = None if bias is None else bias.to(self._dtype)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        wide = x.to(self._dtype)
        if add is None:
            y = torch.ops.mkldnn._linear_pointwise(wide, self._packed, self._bias, "none", [], "")
        else:
            added = add.to(self._dtype)
            y = torch.ops.mkldnn._linear_pointwise.binary(wide, added, self._packed, self._bias, "add")
        return y.to(x.dtype)


class Int8Linear:
    """oneDNN's 8-bit product: a scale per output channel; activations are rounded to 8 bits token by token.

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
        # Without VNNI products are added in pairs, in 16 bits: with 8-bit activations the sum would be cut off.
        self._middle = 128 if torch.cpu._is_vnni_supported() else 64
        self._centre = torch.tensor(self._middle + 0.5)
        # A bfloat16 result takes 200 times as long on other CPUs.
        self._dtype = weight.dtype if multiplies_bfloat16() else torch.float32

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        token = x.abs().amax(dim=-1, keepdim=True)  # vector_norm(inf) is 7 times slower
        token = token.mul_(1 / (self._middle - 2)).clamp_(min=1e-12)
        levels = torch.addcmul(self._centre, x.float(), token.float().reciprocal()).to(torch.uint8)
        y = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, self._middle, self._packed, self._scale, self._zero, None, 1.0, 0, self._dtype, "none", [], ""
        )
        if self._bias is not None:
            y = torch.addcmul(self._bias, y, token)
            y = y if add is None else y.add_(add)
        else:
            y = y.mul_(token) if add is None else torch.addcmul(add, y, token)
        return y.to(x.dtype)


def multiplies_bfloat16() -> bool:
    """Whether torch's kernels have instructions for it on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


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
    if weights == "int4" and (reason := library.reason()):
        return f"int4 weights cannot be had: {reason}"
    return None


def choose(weights: str, dtype: torch.dtype, device: torch.device, preferred: Sequence[str] = ()) -> str:
    """The format's name: "auto" is the first of `preferred`, packed and dense that can be used here."""
    if weights != "auto":
        return weights
    return next(f for f in (*preferred, "packed", "dense") if available(f, dtype, device) is None)


def maker(weights: str, dtype: torch.dtype, device: torch.device) -> tuple[str, Make]:
    """What makes linear maps in a format; "auto" is the fastest exact one.

    Returns:
        The format's name, and what makes linear maps in it.

    Raises:
        OptionError: an unknown format, or one that cannot be used here.
    """
    weights = choose(weights, dtype, device)
    if weights not in FORMATS:
        raise OptionError(f"unknown weights {weights!r}: use auto, {', '.join(FORMATS)}")
    if reason := available(weights, dtype, device):
        raise OptionError(reason)
    bits = {"int8": 8, "int4": 4}.get(weights, 16 if weights == "packed" and dtype == torch.bfloat16 else 0)
    if bits and library.reason() is None:
        return weights, partial(NativeLinear, bits)
    plain: dict[str, Callable[[Tensor, Tensor | None], Linear]]
    plain = {"dense": DenseLinear, "packed": PackedLinear, "int8": Int8Linear}

    def make(
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None,
        *,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear:
        made = plain[weights](weight if isinstance(weight, Tensor) else torch.cat(list(weight)), bias)
        return Prepared(made, norm, gated) if norm or gated else made

    return weights, make
