"""Does a token's result depend on what shares the pass? Tried out on the model itself, bit for bit.

Greedy text with a drafter equals plain text token for token only if a pass over several tokens, rows or lengths gives
each token the very bits that a pass over it alone gives. Kernels promise no such thing in writing, so it is measured:
the same text is fed token by token, in blocks of many sizes, as a path of trees, and beside other rows.
"""

from __future__ import annotations

import torch

from ..types import Draft
from .attention import TorchAttention
from .cached_lm import CachedLM
from .lean import LeanForward
from .masks import Block
from .passes import Forward

_BLOCKS = (2, 3, 5, 8, 9, 17)
_ALONE = 10  # tokens that are also read one at a time; the others only lengthen blocks


def secure(forward: LeanForward) -> str | None:
    """Put a forward into bit-exact mode if it holds there; otherwise leave it out and say why."""
    forward.bitwise = True
    reason = attention_fault(forward) or fault(forward)
    forward.bitwise = reason is None
    return reason


@torch.inference_mode()
def attention_fault(forward: LeanForward) -> str | None:
    """None if attention at lengths up to 1,500 gives each query the bits it gets alone; made-up keys, some 0.2 s.

    Our own kernel does so by its making (it adds slots up in the order of their positions): only torch's is tried.
    """
    attention = forward.attention
    if not isinstance(attention, TorchAttention):
        return None
    heads, kv_heads, width = attention.shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((1600, heads, width), (1, kv_heads, 2048, width), (1, kv_heads, 2048, width))
    queries, keys, values = (
        torch.randn(size, generator=generator).to(forward.dtype).to(forward.device) for size in sizes
    )

    def attend(start: int, num: int) -> torch.Tensor:
        block = Block(0, start, [0] * num)
        span, mask = attention.sight(block, block.sees(), 0, num)
        return attention.attend(queries[start : start + num], keys[:, :, :span], values[:, :, :span], mask)

    for start in range(20, 1500, 61):
        alone = torch.cat([attend(start + i, 1) for i in range(16)])
        for num in (2, 3, 5, 8, 9, 11, 16):
            if not torch.equal(attend(start, num), alone[:num]):
                return f"attention for {num} tokens after {start} has other bits than for each alone"
    return None


@torch.inference_mode()
def fault(forward: Forward) -> str | None:
    """None if every result is bit-identical; otherwise where the first difference was seen.

    Takes some thirty short passes.
    """
    limit = min(forward.vocab_size, 9973)
    length = min(38, forward.max_length - 2)
    text = [(11 + 37 * i * i) % limit for i in range(length)]
    lm = CachedLM(forward, 3)
    rows = [lm.open(()) for _ in range(3)]
    begin = length // 2
    lm.prefill(rows[0], text[:begin])
    alone = []
    for token in text[begin : begin + _ALONE]:
        alone.append(lm.extend(rows[:1], [[token]])[0].clone())
    for size in _BLOCKS:
        if begin + size > length:
            break
        lm.prefill(rows[0], text[:begin])
        draft = Draft.chain(text[begin + 1 : begin + size])
        logits = lm.score(rows[:1], [text[begin]], [draft])[0].logits
        for i in range(min(size, _ALONE)):
            if not torch.equal(logits[i], alone[i]):
                return f"token {i + 1} of {size} in one pass has other bits than alone"
    reason = _tree_fault(lm, rows[0], text, begin, alone)
    if reason is not None:
        return reason
    lm.prefill(rows[0], text[:begin])
    lm.prefill(rows[1], text[: begin - 3])
    lm.prefill(rows[2], text[:2])
    drafts = [Draft.chain(text[begin + 1 : begin + 4]), Draft((), ()), Draft.chain(text[3:9])]
    outputs = lm.score(rows, [text[begin], text[begin - 3], text[2]], drafts)
    for i in range(min(4, length - begin)):
        if not torch.equal(outputs[0].logits[i], alone[i]):
            return f"token {i + 1} beside two other rows has other bits than alone"
    for row in rows:
        lm.prefill(row, ())
    lm.prefill(rows[1], text[:7])
    lm.prefill(rows[1], text[:begin])  # the same prompt in two pieces
    if not torch.equal(lm.extend(rows[1:2], [[text[begin]]])[0], alone[0]):
        return "a prompt fed in two pieces has other bits than in one"
    return None


def _tree_fault(lm: CachedLM, row: int, text: list[int], begin: int, alone: list[torch.Tensor]) -> str | None:
    """The text as a path of trees, with other branches at every node before and after it; then what `keep` gathered."""
    limit, size = lm.vocab_size, min(5, len(alone) - 2)
    if size < 1:
        return None
    for before, after in ((1, 0), (0, 2), (2, 1)):
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        last = -1
        for token in text[begin + 1 : begin + 1 + size]:
            first = len(tokens)
            tokens += [(token + 1 + i) % limit for i in range(before + 1 + after)]
            parents += [last] * (before + 1 + after)
            tokens[first + before] = token
            last = first + before
            path.append(last)
        lm.prefill(row, text[:begin])
        logits = lm.score([row], [text[begin]], [Draft(tuple(tokens), tuple(parents))])[0].logits
        for depth, node in enumerate([-1, *path]):
            if not torch.equal(logits[node + 1], alone[depth]):
                return f"a token {depth} deep in a tree of {len(tokens)} has other bits than alone"
        lm.keep(row, begin + 1, path)
        if not torch.equal(lm.extend([row], [[text[begin + 1 + size]]])[0], alone[size + 1]):
            return f"a token after the kept path of a tree of {len(tokens)} has other bits than alone"
    return None
