"""Between a target and a drafter with another tokenizer: which tokens both have, and texts from one to the other.

Two lossless ways (Timor et al., 2502.05202). Intersection (TLI): the drafter's law restricted to the tokens that both
have and renormalised is a law over the target's ids like any other. String matching (SLEM): the drafter's text is
tokenised by the target's tokenizer and proposed as point masses. The first keeps the drafter's whole law, the second
needs no common token.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ..errors import OptionError, VocabularyError
from .vocab import common_vocabulary

MODES = ("auto", "intersection", "string", "off")
_ENOUGH = 0.5  # share of the drafter's own entries that the target must have for the intersection
_ALIKE = 0.5  # share of equally numbered entries from which two vocabularies were meant to be one
_TAIL = 8  # tokens of context that a text is joined to before it is tokenised
_SPACE = "\u2581"  # SentencePiece's mark
_DAMAGED = "\ufffd"


class Bridge:
    """Two tokenizers and what they share.

    Args:
        target, draft: transformers tokenizers.
        target_size, draft_size: only ids below these are shared.

    Attributes:
        target_ids, draft_ids: the shared tokens' ids in either vocabulary, in one order (ascending target ids).
        overlap: share of the drafter's entries that the target has.
    """

    def __init__(self, target: Any, draft: Any, target_size: int, draft_size: int):
        self.target, self.draft = target, draft
        mine = _spellings(draft)
        pairs = [(t, mine[s]) for s, t in _spellings(target).items() if s in mine]
        pairs = sorted((t, d) for t, d in pairs if t < target_size and d < draft_size)
        self.target_ids = [t for t, _ in pairs]
        self.draft_ids = [d for _, d in pairs]
        self.overlap = len(pairs) / max(1, len(mine))
        self._to_draft = dict(pairs)
        self._opening = list(draft("")["input_ids"])  # what the tokenizer puts before every text

    def to_draft(self, token: int) -> int:
        """The drafter's id of a shared token."""
        return self._to_draft[token]

    def context(self, tokens: Sequence[int]) -> list[int]:
        """A text in the drafter's tokens, special tokens by their names; empty if it ends inside a character."""
        text = _decoded(self.target, tokens)
        if text.endswith(_DAMAGED):
            return []
        return [*self._opening, *_encoded(self.draft, text)]

    def to_target(self, tokens: Sequence[int], context: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """What the drafter said after `context`, as the target's tokens after `tokens` (the same text)."""
        before = _decoded(self.draft, context[-_TAIL:])
        text = _decoded(self.draft, [*context[-_TAIL:], *drafted])
        said = text[len(before) :] if text.startswith(before) else _decoded(self.draft, drafted)
        said = said.rstrip(_DAMAGED)
        tail = list(tokens[-_TAIL:])
        joined = _encoded(self.target, _decoded(self.target, tail) + said)
        return joined[len(tail) :] if joined[: len(tail)] == tail else _encoded(self.target, said)


def find_bridge(
    target_tokenizer: Any | None,
    draft_tokenizer: Any | None,
    target_size: int,
    draft_size: int,
    target_name: str = "the target",
    draft_name: str = "the drafter",
    mode: str = "auto",
) -> tuple[int, Bridge | None, bool]:
    """How a drafter's tokens become the target's.

    Args:
        mode: "intersection" or "string" where the vocabularies differ; "off" refuses such a pair; "auto" chooses, and
            refuses a pair whose numbering agrees for the most part: one of two files that were meant to be equal is
            not what it should be.

    Returns:
        The number of leading ids in common (`vocab.common_vocabulary`), the bridge if that is not how tokens are
        matched, and whether the bridge goes by strings.

    Raises:
        VocabularyError: a pair that is refused; names both models, the first differing id and its two texts.
        OptionError: no token in common.
    """
    try:
        common = common_vocabulary(target_tokenizer, draft_tokenizer, target_size, draft_size, target_name, draft_name)
        return common, None, False
    except VocabularyError as error:
        if mode == "off":
            raise
        if mode == "auto" and _alike(target_tokenizer, draft_tokenizer):
            raise VocabularyError(f"{error}, or translate between the two with cross_vocab=intersection") from None
    bridge = Bridge(target_tokenizer, draft_tokenizer, target_size, draft_size)
    if mode == "string" or (mode == "auto" and bridge.overlap < _ENOUGH):
        return target_size, bridge, True
    if not bridge.target_ids:
        raise OptionError(f"{target_name} and {draft_name} have no token in common: use cross_vocab=string")
    return target_size, bridge, False


def _alike(one: Any, other: Any) -> bool:
    """Whether most entries have the same number in both."""
    ours, theirs = one.get_vocab(), other.get_vocab()
    same = sum(theirs.get(entry) == number for entry, number in ours.items())
    return same >= _ALIKE * min(len(ours), len(theirs))


def _spellings(tokenizer: Any) -> dict[Hashable, int]:
    """What each id stands for: the bytes of ordinary entries, the name of special ones."""
    added = tokenizer.added_tokens_decoder
    to_bytes = _byte_level if _is_byte_level(tokenizer) else _sentence_piece
    spellings: dict[Hashable, int] = {}
    for entry, number in tokenizer.get_vocab().items():
        spelling: Hashable = str(entry) if number in added else to_bytes(entry)
        spellings[spelling] = min(number, spellings.get(spelling, number))
    return spellings


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether its entries spell bytes in GPT-2's alphabet."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    return decoder is not None and b"ByteLevel" in decoder.__getstate__()


def _alphabet() -> dict[str, int]:
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


_BYTES = _alphabet()


def _byte_level(entry: str) -> bytes:
    return b"".join(bytes([_BYTES[c]]) if c in _BYTES else c.encode() for c in entry)


def _sentence_piece(entry: str) -> bytes:
    if len(entry) == 6 and entry.startswith("<0x") and entry.endswith(">"):
        return bytes([int(entry[3:5], 16)])
    return entry.replace(_SPACE, " ").encode()


def _decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
