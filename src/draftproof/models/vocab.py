"""Do target and drafter number their tokens alike? Answered from the two vocabularies, before anything is generated.

Embedding sizes padded differently are fine, and so are different chat templates or added tokens at the end: only ids
below the common number are ever drafted. Ordinary entries must be the same, id by id.
"""

from __future__ import annotations

from typing import Any

from ..errors import VocabularyError


def common_vocabulary(
    target_tokenizer: Any | None,
    draft_tokenizer: Any | None,
    target_vocab_size: int,
    draft_vocab_size: int,
    target_name: str = "the target",
    draft_name: str = "the drafter",
) -> int:
    """The number of leading ids that mean the same in both models.

    Args:
        target_tokenizer, draft_tokenizer: transformers tokenizers; where one is missing only the sizes are compared.
        target_vocab_size, draft_vocab_size: logits per position, padding included.

    Raises:
        VocabularyError: an ordinary entry differs; names both models, the first such id and its two texts.
    """
    smaller = min(target_vocab_size, draft_vocab_size)
    if target_tokenizer is None or draft_tokenizer is None:
        return smaller
    target, draft = _entries(target_tokenizer), _entries(draft_tokenizer)
    common = _first_difference(target, draft)
    if common == max(len(target), len(draft)):
        return min(common, smaller)
    added = (_added_ids(target_tokenizer), _added_ids(draft_tokenizer))
    for entries, names in zip((target, draft), added):
        for token_id in range(common, len(entries)):
            if entries[token_id] is not None and token_id not in names:
                texts = [_text(target_tokenizer, target, common), _text(draft_tokenizer, draft, common)]
                if texts[0] == texts[1]:
                    texts = [repr(_entry(target, common)), repr(_entry(draft, common))]
                raise VocabularyError(
                    f"target and drafter must share a vocabulary: token {common} is {texts[0]} in {target_name} "
                    f"but {texts[1]} in {draft_name}; choose a drafter of the target's family, or ngram or suffix"
                )
    return min(common, smaller)


def _entries(tokenizer: Any) -> list[str | None]:
    """Each id's entry; None for ids without one; padding at the end is left out."""
    vocab = tokenizer.get_vocab()
    entries: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
    for text, token_id in vocab.items():
        entries[token_id] = text
    while entries and _is_padding(entries[-1], len(entries) - 1):
        entries.pop()
    return entries


def _is_padding(entry: str | None, token_id: int) -> bool:
    """GGUF files fill a padded embedding with entries like [PAD151935]."""
    return entry is None or entry == f"[PAD{token_id}]"


def _first_difference(target: list[str | None], draft: list[str | None]) -> int:
    shared = min(len(target), len(draft))
    if target[:shared] == draft[:shared]:
        return shared
    return next(i for i in range(shared) if target[i] != draft[i])


def _added_ids(tokenizer: Any) -> set[int]:
    """Ids added on top of the ordinary vocabulary: special tokens, chat and tool markers."""
    return set(tokenizer.added_tokens_decoder)


def _entry(entries: list[str | None], token_id: int) -> str | None:
    return entries[token_id] if token_id < len(entries) else None


def _text(tokenizer: Any, entries: list[str | None], token_id: int) -> str:
    """What the id decodes to, quoted; "nothing" where there is no entry."""
    if _entry(entries, token_id) is None:
        return "nothing"
    return repr(tokenizer.decode([token_id]))
