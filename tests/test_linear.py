"""Weight formats: equal to the dense form up to rounding, int8 within its bound, rows independent of each other."""

from __future__ import annotations

import pytest
import torch

from draftproof.errors import OptionError
from draftproof.models.linear import FORMATS, DenseLinear, Int8Linear, available, maker

CPU = torch.device("cpu")
SHAPES = [(96, 64), (1, 32), (257, 33), (512, 128)]


def layer(shape, dtype, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator).to(dtype)
    return weight, torch.randn(shape[0], generator=generator).to(dtype) if bias else None


def rows(num, width, dtype, seed=1):
    return (torch.randn(num, width, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_packed_equals_dense_up_to_rounding(shape, dtype, bias):
    weight, b = layer(shape, dtype, bias)
    x, add = rows(5, shape[1], dtype), rows(5, shape[0], dtype, 2)
    exact = DenseLinear(weight.double(), None if b is None else b.double())
    packed = maker("packed", dtype, CPU)[1](weight, b)
    for addend in (None, add):
        right = exact(x.double(), None if addend is None else addend.double())
        scale = float(right.abs().max())
        assert (packed(x, addend).double() - right).abs().max() <= scale * 8 * torch.finfo(dtype).eps
        assert packed(x, addend).dtype == dtype


def int8_bound(weight, x):
    """The bound in the module's docstring, `[M, N]`; s_x at its largest, max|x| / 125."""
    w, v = weight.double().abs(), x.double().abs()
    s_w, s_x = w.amax(1) / 127, v.amax(1) / 125
    return v.sum(1)[:, None] * s_w / 2 + s_x[:, None] * w.sum(1) / 2 + w.shape[1] * s_x[:, None] * s_w / 4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["plain", "outliers", "zero row", "huge", "tiny"])
def test_int8_stays_within_its_error_bound(shape, dtype, kind):
    weight, bias = layer(shape, dtype)
    x = rows(4, shape[1], dtype)
    if kind == "outliers":
        x[1, 3], weight[0, 5] = 300, -40
    if kind == "zero row":
        x[2], weight[0] = 0, 0
    if kind in ("huge", "tiny"):
        x *= 1e4 if kind == "huge" else 1e-4
    add = rows(4, shape[0], dtype, 2)
    for b, addend in ((None, None), (bias, None), (None, add), (bias, add)):
        made = Int8Linear(weight, b)
        y = made(x, addend).double()
        right = DenseLinear(weight.double(), None if b is None else b.double())(
            x.double(), None if addend is None else addend.double()
        )
        rounding = 3 * torch.finfo(dtype).eps * (right.abs() + 10 + right.abs().amax(1, keepdim=True))
        assert torch.isfinite(y).all()
        assert ((y - right).abs() <= int8_bound(weight, x) + rounding).all()


def test_int8_leaves_its_input_alone():
    weight, _ = layer((96, 64), torch.float32)
    x = rows(3, 64, torch.float32)
    before = x.clone()
    Int8Linear(weight)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["packed", "int8"])
def test_a_row_has_the_same_bits_whatever_number_of_rows_shares_the_product(name, dtype):
    weight, bias = layer((384, 256), dtype)
    made = maker(name, dtype, CPU)[1](weight, bias)
    x, add = rows(40, 256, dtype), rows(40, 384, dtype, 2)
    whole, summed = made(x), made(x, add)
    for num in range(made.min_rows, 40):
        assert torch.equal(made(x[:num]), whole[:num])
        assert torch.equal(made(x[:num], add[:num]), summed[:num])


def test_formats_are_chosen_and_refused_with_a_reason():
    for name in FORMATS:
        assert maker(name, torch.float32, CPU)[0] == name
    assert maker("auto", torch.bfloat16, CPU)[0] == "packed"
    assert maker("auto", torch.float64, CPU)[0] == "dense"
    assert maker("auto", torch.float32, torch.device("meta"))[0] == "dense"
    assert "need the CPU" in available("packed", torch.float32, torch.device("cuda"))
    with pytest.raises(OptionError, match="packed weights need bfloat16 or float32, not float16"):
        maker("packed", torch.float16, CPU)
    with pytest.raises(OptionError, match="unknown weights 'int4'"):
        maker("int4", torch.float32, CPU)
