"""Where a text ends: end-of-text ids, stop strings, exact budgets, whole characters (cases H07, H08, H09, H10)."""

from __future__ import annotations

import pytest

from draftproof import SamplingParams
from draftproof.testing import ByteTokenizer, ChainTarget, FnTarget, OracleDrafter, SilentDrafter
from engines import GREEDY, engine, reference

CODEC = ByteTokenizer()


def spelling(text: bytes, eos: bool = True) -> FnTarget:
    """A target that spells `text` after a prompt of one token, whatever the token; then end of text, or x forever."""

    def logits(prefix):
        row = [0.0] * 257
        at = len(prefix) - 1
        row[text[at] if at < len(text) else (256 if eos else ord("x"))] = 10.0
        return row

    return FnTarget(logits, 257)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("offset", range(9))
def test_h07_end_of_text_anywhere_in_a_block_ends_it_there(offset, temperature):
    """At temperature 1 the chain has probability 1 (its logit stands alone)."""
    # a chain 10 -> 11 -> ... that reaches the end-of-text id 2 after `offset` tokens and goes on if allowed
    following = list(range(1, 41)) + [0]
    following[9 + offset] = 2
    target = FnTarget(lambda prefix: [100.0 * (following[prefix[-1]] == t) for t in range(41)], 41)
    drafter = OracleDrafter(target)
    params = SamplingParams(temperature=temperature, max_new_tokens=30, seed=0)
    for eos in ([2], [2, 40]):
        run = engine(target, drafter, max_draft=8, eos_ids=eos)
        events = list(run.stream([9], params))
        tokens = [t for event in events for t in event.token_ids]
        assert tokens == [*range(10, 10 + offset), 2]
        assert events[-1].finish_reason == "stop" and all(e.finish_reason is None for e in events[:-1])
        assert target.held(target.scored[-1][0][0]) == [9, *tokens][:-1], "nothing beyond the stop stays in the cache"
        assert target.num_busy == 0 and run.num_running == 0
        result = run.generate([[9]], params)[0]
        assert result.stats.num_tokens == len(result.token_ids) == offset + 1
        assert result.stats.num_accepted == sum(result.stats.accepted_at) <= offset + 1
    ignoring = SamplingParams(temperature=temperature, max_new_tokens=30, seed=0, ignore_eos=True)
    result = engine(target, drafter, max_draft=8, eos_ids=[2]).generate([[9]], ignoring)[0]
    assert len(result.token_ids) == 30 and result.finish_reason == "length"
    stopping = SamplingParams(temperature=temperature, max_new_tokens=30, seed=0, ignore_eos=True, stop_token_ids=(2,))
    assert engine(target, drafter, max_draft=8).generate([[9]], stopping)[0].token_ids[-1] == 2


@pytest.mark.parametrize("k", range(17))
def test_h08_a_stop_string_at_the_head_of_a_long_block_is_found(k):
    target = spelling(b"ab STOP cdefghijklmnop")
    run = engine(target, OracleDrafter(target) if k else SilentDrafter(), CODEC, max_draft=k, eos_ids=[256])
    params = SamplingParams(temperature=0, max_new_tokens=40, stop=("STOP",))
    result = run.generate([[0]], params)[0]
    assert (result.text, result.finish_reason) == ("ab ", "stop")
    assert result.token_ids == list(b"ab STOP")
    assert "".join(event.text for event in run.stream([0], params)) == "ab "
    two = SamplingParams(temperature=0, max_new_tokens=40, stop=("fgh", "P c", "zzz"))
    assert run.generate([[0]], two)[0].text == "ab STO"
    never = SamplingParams(temperature=0, max_new_tokens=40, stop=("STOPPED", "nopq"))
    result = run.generate([[0]], never)[0]
    assert (result.text, result.finish_reason) == ("ab STOP cdefghijklmnop", "stop")


def test_the_earliest_of_two_stop_strings_that_one_token_completes_wins():
    from draftproof.engine.text import StopStrings

    assert StopStrings(("b", "d")).push("abcd") == StopStrings(("d", "b")).push("abcd") == ("a", True)
    stops = StopStrings(("abc", "bx"))
    assert [stops.push(c) for c in "zab"] == [("z", False), ("", False), ("", False)]
    assert stops.push("x") == ("a", True)


@pytest.mark.parametrize("prompt", [[4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("budget", range(1, 10))
def test_h09_the_token_budget_is_exact(prompt, budget):
    target = ChainTarget([(i + 1) % 31 for i in range(31)], 31)
    drafter = OracleDrafter(target)
    params = SamplingParams(temperature=0, max_new_tokens=budget)
    result = engine(target, drafter, max_draft=6).generate([prompt], params)[0]
    assert result.token_ids == reference(target, prompt, params) == list(range(5, 5 + budget))
    assert result.finish_reason == "length"
    if budget == 1:
        assert result.stats.num_drafted == 0, "one token needs no draft"
    ended = engine(target, drafter, max_draft=6, eos_ids=[5]).generate([prompt], params)[0]
    assert (ended.token_ids, ended.finish_reason) == ([5], "stop")


def test_the_context_limit_ends_a_text_like_a_budget():
    target = ChainTarget([(i + 1) % 31 for i in range(31)], 31, max_length=12)
    for k in range(7):
        result = engine(target, OracleDrafter(target), max_draft=k).generate([[0, 1, 2]], GREEDY)[0]
        assert result.token_ids == list(range(3, 12)) and result.finish_reason == "length"


WORDS = "žluť 삼겹살 🙂 é".encode()


@pytest.mark.parametrize("k", range(1, 13))
def test_h10_streamed_text_has_whole_characters_only(k):
    target = spelling(WORDS)
    run = engine(target, OracleDrafter(target), CODEC, max_draft=k, eos_ids=[256])
    events = list(run.stream([0], SamplingParams(temperature=0, max_new_tokens=99)))
    assert all("\ufffd" not in event.text for event in events)
    assert all("\ufffd" not in piece.text for event in events for piece in event.pieces)
    assert "".join(event.text for event in events) == WORDS.decode()
    assert all("".join(piece.text for piece in event.pieces) == event.text for event in events)


@pytest.mark.parametrize("length", range(1, len(WORDS)))
def test_h10_a_text_cut_inside_a_character_ends_in_one_replacement(length):
    target = spelling(WORDS)
    run = engine(target, OracleDrafter(target), CODEC, max_draft=3, eos_ids=[256])
    params = SamplingParams(temperature=0, max_new_tokens=length)
    deltas = [event.text for event in run.stream([0], params)]
    text = WORDS[:length].decode(errors="replace")
    assert "".join(deltas) == text == run.generate([[0]], params)[0].text
    assert text.count("\ufffd") <= 1 and all("\ufffd" not in delta for delta in deltas[:-1])


def test_byte_fallback_tokenizers_stream_whole_characters_too():
    """SentencePiece-style ids <0xNN> decode to one U+FFFD a byte until the character is complete."""
    from tokenizers import Tokenizer, decoders, models

    from draftproof.engine.text import Detokenizer

    vocab = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "▁a": 257, "b": 258}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    for text in ("b€b", "🙂", "é", "b🙂"):
        ids = [258 if char == "b" else byte + 1 for char in text for byte in (char.encode() if char != "b" else b"b")]
        detokenizer = Detokenizer(inner.decode)
        deltas = [detokenizer.push(i) for i in ids]
        assert "".join(deltas) == text and not any("\ufffd" in delta for delta in deltas)
    for raw in ("🙂" * 6 + "bbb", "é" * 20 + "b", "b€" * 30):
        ids = [258 if char == "b" else byte + 1 for char in raw for byte in (char.encode() if char != "b" else b"b")]
        detokenizer = Detokenizer(inner.decode)
        assert "".join(detokenizer.push(i) for i in ids) + detokenizer.flush() == raw == inner.decode(ids)
    detokenizer = Detokenizer(inner.decode)
    shown = [detokenizer.push(i) for i in (0x0A + 1, 0xF0 + 1, 0x9F + 1, *[258] * 30)]
    assert shown[0] == "\n" and "".join(shown).endswith("b" * 30), "text after invalid bytes is not lost"
    detokenizer = Detokenizer(inner.decode)
    endless = "".join(detokenizer.push(0xFF + 1) for _ in range(1000)) + detokenizer.flush()
    assert endless == "\ufffd" * 1000
    detokenizer = Detokenizer(inner.decode)
    cut = [detokenizer.push(i) for i in (258, 0xE2 + 1, 0x82 + 1)]
    assert cut == ["b", "", ""] and detokenizer.flush() == inner.decode([258, 0xE2 + 1, 0x82 + 1])[1:]


def test_invalid_bytes_inside_a_text_are_shown_once_they_are_certain():
    raw = b"a\xff\xfe\xffb\xf0\x9f\x99c\xe2\x82"
    target = spelling(raw)
    run = engine(target, OracleDrafter(target), CODEC, max_draft=4, eos_ids=[256])
    assert run.generate([[0]], GREEDY)[0].text == raw.decode(errors="replace")
