"""Weight formats: equal to the dense form up to rounding, int8 within its bound, rows independent of each other."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from draftproof.errors import OptionError
from draftproof.kernels import library
from draftproof.models.linear import FORMATS, DenseLinear, Int8Linear, PackedLinear, Prepared, available, maker
from draftproof.models.native import arena
from draftproof.models.native.product import NativeLinear

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


native = pytest.mark.skipif(library.reason() is not None, reason=str(library.reason()))
with_tiles = pytest.mark.skipif(
    library.reason() is not None or not library.has_tiles(), reason="this CPU has no matrix unit (AMX)"
)


def bound(weight, x, bits, group):
    """The bound in the module's docstring, `[M, N]`, group by group (None: oneDNN's one group); s_x at its largest."""
    levels = {8: 125, 4: 127}[bits] if group or torch.cpu._is_vnni_supported() else 62
    total = 0.0
    group = group or weight.shape[1]
    for w, v in zip(weight.double().split(group, 1), x.double().split(group, 1)):
        s_x = v.abs().amax(1) / levels
        if bits == 8:
            e_w = 1.006 * w.abs().amax(1) / 127 / 2
        else:
            e_w = 1.006 * (w.amax(1).clamp(min=0) - w.amin(1).clamp(max=0)) / 15 * 17 / 32
        v, w = v.abs(), w.abs()
        total = total + v.sum(1)[:, None] * e_w + s_x[:, None] * w.sum(1) / 2 + w.shape[1] * s_x[:, None] * e_w / 2
    return total


FORMS = [
    pytest.param(Int8Linear, 8, None, id="int8 oneDNN"),
    pytest.param(partial(NativeLinear, 8), 8, 64, id="int8 native", marks=native),
    pytest.param(partial(NativeLinear, 4), 4, 32, id="int4 native", marks=native),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["plain", "outliers", "zero row", "huge", "tiny", "positive weights"])
@pytest.mark.parametrize(("form", "bits", "group"), FORMS)
def test_rounded_weights_stay_within_their_error_bound(shape, dtype, kind, form, bits, group):
    weight, bias = layer(shape, dtype)
    x = rows(4, shape[1], dtype)
    if kind == "outliers":
        x[1, 3], weight[0, 5] = 300, -40
    if kind == "zero row":
        x[2], weight[0] = 0, 0
    if kind == "positive weights":
        weight = weight.abs() + 1
    if kind in ("huge", "tiny"):
        x *= 1e4 if kind == "huge" else 1e-4
    add = rows(4, shape[0], dtype, 2)
    for b, addend in ((None, None), (bias, None), (None, add), (bias, add)):
        made = form(weight, b)
        y = made(x, addend).double()
        right = DenseLinear(weight.double(), None if b is None else b.double())(
            x.double(), None if addend is None else addend.double()
        )
        rounding = 3 * torch.finfo(dtype).eps * (right.abs() + 10 + right.abs().amax(1, keepdim=True))
        assert torch.isfinite(y).all()
        assert ((y - right).abs() <= bound(weight, x, bits, group) + rounding).all()


@pytest.mark.parametrize(("form", "bits", "group"), FORMS)
def test_a_product_leaves_its_input_alone(form, bits, group):
    weight, _ = layer((96, 64), torch.float32)
    x = rows(3, 64, torch.float32)
    before = x.clone()
    form(weight)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("tiled", [False, pytest.param(True, marks=with_tiles)])
@native
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_native_bfloat16_product_is_exact_up_to_rounding(shape, tiled):
    weight, bias = layer(shape, torch.bfloat16)
    x, add = rows(11, shape[1], torch.bfloat16), rows(11, shape[0], torch.bfloat16, 2)
    right = x.double() @ weight.double().T + bias.double() + add.double()
    y = NativeLinear(16, weight, bias, tiled=tiled)(x, add)
    assert (
        (y.double() - right).abs() <= right.abs() * 2**-8 + 1e-5 * (x.double().abs() @ weight.double().abs().T)
    ).all()


@native
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("kind", ["norm", "gate"])
def test_a_norm_or_gate_inside_the_native_product_is_the_one_of_torch(bits, kind):
    """Against torch's operators in front of the same product, to the rounding of their bfloat16 result."""
    weight, bias = layer((96, 80), torch.bfloat16)
    x = rows(5, 80 if kind == "norm" else 160, torch.bfloat16)
    norm = ((1 + 0.1 * torch.randn(80, generator=torch.Generator().manual_seed(3))).bfloat16(), 1e-5)
    options = {"norm": norm, "gated": False} if kind == "norm" else {"norm": None, "gated": True}
    inside = NativeLinear(bits, weight, bias, **options)(x).double()
    around = Prepared(NativeLinear(bits, weight, bias), **options)(x).double()
    assert (inside - around).abs().max() <= 0.02 * around.abs().max()


@native
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("heights", [(96, 32, 48), (32, 20, 7)], ids=str)
def test_several_weights_below_one_another_are_one(bits, heights):
    weight, bias = layer((sum(heights), 80), torch.bfloat16)
    x = rows(3, 80, torch.bfloat16)
    whole = NativeLinear(bits, weight, bias)
    pieces = NativeLinear(bits, weight.split(heights), bias)
    assert torch.equal(pieces(x), whole(x)) and pieces.num_bytes == whole.num_bytes


def test_weights_have_memory_of_their_own():
    """Each piece on a cache line of its own, the values those of the original."""
    made = [arena.copy(torch.full((3, 11), float(i))) for i in range(4)] + [arena.copy(torch.ones(1 << 25))]
    made[1].fill_(9)
    assert [float(piece.max()) for piece in made] == [0, 9, 2, 3, 1] and made[0].shape == (3, 11)
    assert all(piece.data_ptr() % 64 == 0 for piece in made)


def test_without_the_kernels_torchs_own_do_the_work(monkeypatch):
    monkeypatch.setattr(library, "reason", lambda: "there is no compiler")
    weight, bias = layer((96, 64), torch.bfloat16)
    assert type(maker("packed", torch.bfloat16, CPU)[1](weight, bias)) is PackedLinear
    assert type(maker("int8", torch.bfloat16, CPU)[1](weight, bias)) is Int8Linear
    with pytest.raises(OptionError, match="int4 weights cannot be had: there is no compiler"):
        maker("int4", torch.bfloat16, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "own"),
    [
        pytest.param("packed", True, marks=native),
        pytest.param("int8", True, marks=native),
        pytest.param("int4", True, marks=native),
        ("packed", False),
        ("int8", False),
    ],
)
def test_a_row_has_the_same_bits_whatever_number_of_rows_shares_the_product(name, dtype, own, monkeypatch):
    if not own:
        monkeypatch.setattr(library, "reason", lambda: "turned off")
    weight, bias = layer((384, 256), dtype)
    made = maker(name, dtype, CPU)[1](weight, bias)
    x, add = rows(40, 256, dtype), rows(40, 384, dtype, 2)
    whole, summed = made(x), made(x, add)
    for num in range(made.min_rows, 40):
        assert torch.equal(made(x[:num]), whole[:num])
        assert torch.equal(made(x[:num], add[:num]), summed[:num])


SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80)


@pytest.mark.parametrize("tiled", [False, pytest.param(True, marks=with_tiles)])
@native
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("shape", [(16, 64), (400, 200), (33, 576), (1040, 96)], ids=str)
def test_with_and_without_the_matrix_unit_a_rows_bits_are_its_own(shape, bits, tiled):
    weight, bias = layer(shape, torch.bfloat16)
    made = NativeLinear(bits, weight, bias, tiled=tiled)
    x, add = rows(80, shape[1], torch.bfloat16), rows(80, shape[0], torch.bfloat16, 2)
    whole = made(x, add)
    for num in SIZES:
        assert torch.equal(made(x[:num], add[:num]), whole[:num])
        assert torch.equal(made(x[80 - num :], add[80 - num :]), whole[80 - num :])


@with_tiles
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(16, 64), (400, 200), (33, 576)], ids=str)
def test_integers_add_up_to_the_same_bits_in_the_matrix_unit(shape, bits):
    weight, bias = layer(shape, torch.bfloat16)
    x, add = rows(40, shape[1], torch.bfloat16), rows(40, shape[0], torch.bfloat16, 2)
    with_it, without = (NativeLinear(bits, weight, bias, tiled=tiled)(x, add) for tiled in (True, False))
    assert torch.equal(with_it, without)


def test_formats_are_chosen_and_refused_with_a_reason():
    for name in FORMATS if library.reason() is None else FORMATS[:-1]:
        assert maker(name, torch.float32, CPU)[0] == name
    assert maker("auto", torch.bfloat16, CPU)[0] == "packed"
    assert maker("auto", torch.float64, CPU)[0] == "dense"
    assert maker("auto", torch.float32, torch.device("meta"))[0] == "dense"
    assert "need the CPU" in available("packed", torch.float32, torch.device("cuda"))
    with pytest.raises(OptionError, match="packed weights need bfloat16 or float32, not float16"):
        maker("packed", torch.float16, CPU)
    with pytest.raises(OptionError, match="unknown weights 'int3'"):
        maker("int3", torch.float32, CPU)


@native
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_weights_and_activations_stay_visible(bits, bad):
    """Nothing that is not finite is rounded to an innocent number: the check of the logits must see it."""
    weight, _ = layer((96, 64), torch.bfloat16)
    x = rows(5, 64, torch.bfloat16)
    x[2, 7] = bad
    y = NativeLinear(bits, weight)(x)
    assert not torch.isfinite(y[2]).any() and torch.isfinite(y[[0, 1, 3, 4]]).all()
    weight[33, 5] = bad
    y = NativeLinear(bits, weight)(rows(5, 64, torch.bfloat16))
    assert not torch.isfinite(y[:, 33]).any() and torch.isfinite(y[:, :33]).all()
