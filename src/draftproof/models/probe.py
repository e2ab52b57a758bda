"""A look before the leap: does this model, run over slots with our masks and positions, say what it says by itself?

Models differ in how they read masks, positions and windows. Rather than trust a list of names, every model is asked
once at load: a few tokens fed as prompt, tree and ragged batch must give the logits of one plain pass. A model that
fails is refused; it is never silently wrong.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..types import Draft
from .cached_lm import CachedLM
from .hf import sliding_window
from .passes import Forward

_WINDOW = 5  # a sliding window is narrowed to this for the probe, so that a few tokens reach beyond it


def check_forward(forward: Forward, model: Any, name: str = "the model") -> float:
    """Compare the slotted forward with the model's own pass over the same texts.

    Returns:
        The largest relative difference seen (root mean square over the vocabulary).

    Raises:
        ModelError: they disagree beyond rounding.
    """
    config = model.config.get_text_config(decoder=True)
    window = sliding_window(config)
    tolerance = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2}.get(model.dtype, 8e-2)
    try:
        if window is not None:
            config.sliding_window = _WINDOW
            forward.window = _WINDOW  # type: ignore[attr-defined]
        worst = _largest_difference(forward, model)
    finally:
        if window is not None:
            config.sliding_window = window
            forward.window = window  # type: ignore[attr-defined]
    if not worst <= tolerance:
        raise ModelError(
            f"{name} ({type(model).__name__}) cannot be run exactly over slots: its logits differ by {worst:.2g} from "
            f"a plain pass (at most {tolerance:g} is rounding); choose another model"
        )
    return worst


@torch.inference_mode()
def _largest_difference(forward: Forward, model: Any) -> float:
    limit = min(forward.vocab_size, 997)
    a = [(7 + 13 * i) % limit for i in range(9)]
    b = [(5 + 17 * i) % limit for i in range(6)]
    tree = Draft(tuple((3 + 11 * i) % limit for i in range(4)), (-1, 0, 0, 2))  # two branches, one two deep
    lm = CachedLM(forward, 2)
    rows = [lm.open(()), lm.open(())]
    lm.prefill(rows[0], a[:-1])
    lm.prefill(rows[1], b[:-1])
    chain = Draft.chain(tree.tokens[:1])
    scored = lm.score(rows, [a[-1], b[-1]], [tree, chain])
    pairs = [(scored[0].logits[[0, 1, 3, 4]], _plain(model, [*a, *(tree.tokens[i] for i in (0, 2, 3))])[len(a) - 1 :])]
    pairs.append((scored[0].logits[2], _plain(model, [*a, tree.tokens[0], tree.tokens[1]])[-1]))
    pairs.append((scored[1].logits, _plain(model, [*b, *chain.tokens])[len(b) - 1 :]))
    lm.keep(rows[0], len(a), (0, 2, 3))
    text = [*a, *(tree.tokens[i] for i in (0, 2, 3)), 2 % limit]
    pairs.append((lm.extend(rows[:1], [text[-1:]])[0], _plain(model, text)[-1]))
    return max(float((x - y).float().norm() / y.float().norm()) for x, y in pairs)


def _plain(model: Any, tokens: list[int]) -> Tensor:
    """The model's own logits `[T, V]` of one text, without a cache."""
    return model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False).logits[0]
