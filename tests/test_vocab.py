"""Which pairs share a vocabulary: padded sizes and added tokens pass, ordinary differences are refused by name."""

from __future__ import annotations

import time

import pytest

from draftproof.errors import VocabularyError
from draftproof.models.vocab import common_vocabulary
from tiny import BYTES, SPECIALS, byte_tokenizer


class Listed:
    """A tokenizer of which only the vocabulary matters."""

    def __init__(self, size: int, added: tuple[str, ...] = (), changed: dict[int, str] | None = None, pads: int = 0):
        texts = [f"t{i}" for i in range(size)]
        for token_id, text in (changed or {}).items():
            texts[token_id] = text
        self.added_tokens_decoder = {size + i: text for i, text in enumerate(added)}
        texts += list(added)
        texts += [f"[PAD{i}]" for i in range(len(texts), len(texts) + pads)]
        self._vocab = {text: i for i, text in enumerate(texts)}
        self._texts = texts

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocab)

    def decode(self, ids: list[int]) -> str:
        return "".join(self._texts[i] for i in ids)


def test_the_same_vocabulary_is_common_whatever_the_embedding_sizes() -> None:
    tokenizer = byte_tokenizer()
    assert common_vocabulary(tokenizer, byte_tokenizer(), 272, 288, "a", "b") == 259
    assert common_vocabulary(tokenizer, byte_tokenizer(), 288, 272, "a", "b") == 259


def test_real_sizes_of_one_family_pass_quickly() -> None:
    target, draft = Listed(151643, tuple(f"<|{i}|>" for i in range(22))), Listed(151643, ("<|0|>", "<|1|>", "<|2|>"))
    start = time.perf_counter()
    assert common_vocabulary(target, target, 151936, 152064, "a", "b") == 151665
    assert common_vocabulary(target, draft, 152064, 151936, "a", "b") == 151646
    assert time.perf_counter() - start < 3, "two comparisons take about 0.3 s on an idle core"


def test_an_embedding_smaller_than_the_tokenizer_limits_the_common_part() -> None:
    assert common_vocabulary(byte_tokenizer(), byte_tokenizer(), 259, 200, "a", "b") == 200


def test_another_chat_template_is_no_reason_to_refuse() -> None:
    other = byte_tokenizer(chat_template="{{ messages[0]['content'] }}")
    assert common_vocabulary(byte_tokenizer(), other, 259, 259, "a", "b") == 259


def test_added_tokens_at_the_end_of_one_are_outside_the_common_part() -> None:
    more = byte_tokenizer(specials=(*SPECIALS, "<|tool|>"))
    assert common_vocabulary(byte_tokenizer(), more, 259, 260, "a", "b") == 259
    assert common_vocabulary(more, byte_tokenizer(), 260, 259, "a", "b") == 259


def test_renamed_special_tokens_at_the_end_are_outside_the_common_part() -> None:
    renamed = byte_tokenizer(specials=("<|end|>", "<|human|>", "<|assistant|>"))
    assert common_vocabulary(byte_tokenizer(), renamed, 259, 259, "a", "b") == 257


def test_padding_entries_of_gguf_files_are_no_difference() -> None:
    plain, padded = Listed(100, ("<|end|>",)), Listed(100, ("<|end|>",), pads=19)
    assert common_vocabulary(padded, plain, 120, 112, "a", "b") == 101
    assert common_vocabulary(plain, padded, 120, 112, "a", "b") == 101
    assert common_vocabulary(padded, padded, 120, 120, "a", "b") == 101


def test_without_a_tokenizer_only_the_sizes_count() -> None:
    assert common_vocabulary(None, None, 128, 100, "a", "b") == 100
    assert common_vocabulary(byte_tokenizer(), None, 259, 272, "a", "b") == 259


def test_an_id_that_decodes_differently_is_refused_with_both_texts() -> None:
    order = list(BYTES)
    order[17], order[18] = order[18], order[17]
    with pytest.raises(VocabularyError) as raised:
        common_vocabulary(byte_tokenizer(), byte_tokenizer(order=order), 259, 259, "big-model", "small-model")
    message = str(raised.value)
    assert f"token 17 is {BYTES[17]!r} in big-model but {BYTES[18]!r} in small-model" in message
    assert "\n" not in message


def test_an_extra_merge_is_refused() -> None:
    merged = byte_tokenizer(merges=(("a", "b"),))
    with pytest.raises(VocabularyError, match=r"token 256 is '<\|end\|>' in big but 'ab' in small"):
        common_vocabulary(byte_tokenizer(), merged, 259, 260, "big", "small")


def test_an_extra_ordinary_entry_at_the_very_end_is_refused() -> None:
    with pytest.raises(VocabularyError, match=r"token 100 is nothing in big but 't100' in small"):
        common_vocabulary(Listed(100), Listed(101), 128, 128, "big", "small")


def test_a_renamed_special_token_before_ordinary_ones_is_refused() -> None:
    with pytest.raises(VocabularyError, match="token 3 "):
        common_vocabulary(Listed(100), Listed(100, changed={3: "<pad>"}), 128, 128, "big", "small")


def test_entries_that_decode_alike_are_told_apart_by_their_raw_text() -> None:
    order = list(BYTES)
    order[250], order[251] = order[251], order[250]  # both are halves of a character: U+FFFD
    with pytest.raises(VocabularyError) as raised:
        common_vocabulary(byte_tokenizer(), byte_tokenizer(order=order), 259, 259, "big", "small")
    assert f"{BYTES[250]!r} in big but {BYTES[251]!r} in small" in str(raised.value)
