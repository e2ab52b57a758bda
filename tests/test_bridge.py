"""Drafts from a model with another tokenizer: common tokens, texts both ways, exact law, same text (H12's kind).

The tokenizers are built here: other numbering, other merges, another way of spelling bytes.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import draftproof as dp
from draftproof import SamplingParams, sampling
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.growth import TreeOption
from draftproof.errors import OptionError, VocabularyError
from draftproof.models import shrink
from draftproof.models.bridge import Bridge, find_bridge
from draftproof.models.cached_lm import CachedLM
from draftproof.models.plugged import PluggedForward
from draftproof.sampling import SeededSource
from draftproof.types import DraftRequest
from draftproof.verify.law import exact_law, total_variation
from engines import ModelTarget, lm, reference
from test_draft_trees import Counting, engine
from tiny import BYTES, byte_tokenizer, save_tiny, tiny_llama

TARGET = byte_tokenizer(merges=(("h", "e"), ("l", "l"), ("Ġ", "t"), ("he", "ll"), ("Ġt", "he")))
DRAFT = byte_tokenizer(
    order=BYTES[::-1],
    merges=(("e", "r"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("o", "o")),
    specials=("<|end|>", "<s>"),
)
TEXT = "the other hello, tooth: äöü €\n"


def pieces_tokenizer():
    """As SentencePiece spells: spaces as U+2581, bytes as <0x41>; a start-of-text token before every text."""
    entries = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "h", "e", "he", "\u2581he", "ä"]
    merges = [("h", "e"), ("\u2581", "he")]
    inner = Tokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(entries)}, merges=merges, byte_fallback=True, unk_token="<unk>"
        )
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    from tokenizers.processors import TemplateProcessing

    inner_backend = tokenizer.backend_tokenizer
    inner_backend.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return tokenizer


class Letters:
    """A tokenizer of single letters, for vocabularies small enough to enumerate."""

    added_tokens_decoder: dict = {}

    def __init__(self, letters):
        self.letters = letters

    def get_vocab(self):
        return {letter: i for i, letter in enumerate(self.letters)}

    def decode(self, ids, **options):
        return "".join(self.letters[i] for i in ids)

    def __call__(self, text, **options):
        return {"input_ids": [self.letters.index(c) for c in text if c in self.letters]}


def test_common_tokens_are_those_with_the_same_text():
    bridge = Bridge(TARGET, DRAFT, 264, 263)
    merged = {"he", "Ġt", "Ġthe"}
    assert {TARGET.convert_ids_to_tokens(t) for t in bridge.target_ids} == {*BYTES, *merged, "<|end|>"}
    for t, d in zip(bridge.target_ids, bridge.draft_ids):
        assert TARGET.decode([t]) == DRAFT.decode([d]) and bridge.to_draft(t) == d
    assert bridge.target_ids == sorted(bridge.target_ids)
    assert bridge.overlap == 260 / 263
    assert max(Bridge(TARGET, DRAFT, 200, 263).target_ids) < 200, "only ids that the models know"
    assert max(Bridge(TARGET, DRAFT, 264, 200).draft_ids) < 200


def test_common_tokens_are_found_between_two_ways_of_spelling():
    pieces = pieces_tokenizer()
    bridge = Bridge(TARGET, pieces, 264, 268)
    texts = {pieces.convert_ids_to_tokens(d): TARGET.convert_ids_to_tokens(t) for t, d in
             zip(bridge.target_ids, bridge.draft_ids)}  # fmt: skip
    assert len(texts) == 257, "every byte once, and one merge"
    assert (texts["he"], texts["<0x0A>"], texts["<0xC3>"]) == ("he", "Ċ", "Ã")
    for piece, entry in texts.items():
        if piece.startswith("<0x") and int(piece[3:5], 16) < 128:
            assert TARGET.decode([TARGET.convert_tokens_to_ids(entry)]) == chr(int(piece[3:5], 16))


@pytest.mark.parametrize("draft", [DRAFT, pieces_tokenizer()], ids=["bytes", "pieces"])
def test_a_text_is_the_same_in_both_tokenizers(draft):
    bridge = Bridge(TARGET, draft, 264, 268)
    ids = TARGET(TEXT)["input_ids"]
    context = bridge.context(ids)
    assert draft.decode(context, skip_special_tokens=True) == TEXT
    assert context == draft(TEXT)["input_ids"], "with what the tokenizer itself puts before a text"
    assert bridge.context(TARGET("ä")["input_ids"][:1]) == [], "inside a character nothing can be said"


@pytest.mark.parametrize("draft", [DRAFT, pieces_tokenizer()], ids=["bytes", "pieces"])
def test_what_the_drafter_said_is_tokenised_as_the_target_would(draft):
    bridge = Bridge(TARGET, draft, 264, 268)
    tokens = TARGET("say: ")["input_ids"]
    context = bridge.context(tokens)
    for said in ("hello there", "e", " the", "€", "x" * 40):
        drafted = draft(said, add_special_tokens=False)["input_ids"]
        assert bridge.to_target(tokens, context, drafted) == TARGET(said)["input_ids"]
    assert bridge.to_target(tokens, context, draft("€", add_special_tokens=False)["input_ids"][:-1]) == []


def test_the_way_across_is_chosen_by_what_is_in_common():
    assert find_bridge(TARGET, TARGET, 264, 264) == (264, None, False)
    common, bridge, by_string = find_bridge(TARGET, DRAFT, 264, 263)
    assert (common, by_string) == (264, False) and bridge.target_ids
    few = Letters("vwxyzh")
    assert find_bridge(TARGET, few, 264, 6, mode="auto")[2] is False, "all of its tokens are the target's"
    strange = Letters(["h", *(chr(0x4E00 + i) for i in range(9))])
    assert find_bridge(TARGET, strange, 264, 10)[2] is True
    assert find_bridge(TARGET, strange, 264, 10, mode="intersection")[2] is False
    assert find_bridge(TARGET, DRAFT, 264, 263, mode="string")[2] is True
    with pytest.raises(OptionError, match="no token in common"):
        find_bridge(TARGET, Letters(["\u4e00"]), 264, 1, mode="intersection")


def test_h12_vocabularies_that_are_nearly_the_same_are_refused_unless_asked_for():
    order = list(BYTES)
    order[17], order[18] = order[18], order[17]
    for other in (byte_tokenizer(order=order), byte_tokenizer(merges=(("a", "b"),))):
        for mode in ("auto", "off"):
            with pytest.raises(VocabularyError, match=r"token \d+ is .* in big but .* in small") as raised:
                find_bridge(byte_tokenizer(), other, 259, 260, "big", "small", mode)
            assert "\n" not in str(raised.value)
        assert find_bridge(byte_tokenizer(), other, 259, 260, mode="intersection")[1].overlap > 0.98
    with pytest.raises(VocabularyError):
        find_bridge(TARGET, DRAFT, 264, 263, mode="off")


def crossing(model, bridge, by_string=False, option=None, vocab_size=264, confidence=0.0):
    if not by_string:
        shrink.keep_outputs(model, bridge.draft_ids)
    return ModelDrafter(
        CachedLM(PluggedForward(model, 256), 4),
        vocab_size,
        vocab_size,
        kept=None if by_string else bridge.target_ids,
        tree=TreeOption.parse(option),
        bridge=bridge,
        by_string=by_string,
        confidence=confidence,
    )


def ask(drafter, tokens, max_nodes=5, **settings):
    request = DraftRequest(0, tuple(tokens), 1, SamplingParams(**settings), SeededSource(0), max_nodes)
    return drafter.propose([request])[0]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6, "top_p": 0.9}, {"repetition_penalty": 1.4}], ids=str)
@pytest.mark.parametrize("option", [None, "3,2,1"])
def test_q_is_the_drafters_law_on_the_common_tokens_renormalised(option, settings):
    bridge, plain = Bridge(TARGET, DRAFT, 264, 263), ModelTarget(tiny_llama(1, vocab_size=263))
    drafter = crossing(tiny_llama(1, vocab_size=263), bridge, option=option)
    tokens = TARGET(TEXT)["input_ids"]
    for _ in range(2):
        draft = ask(drafter, tokens, 9, **settings)
        assert draft.num_nodes == 9
        for parent in set(draft.parents):
            path = [draft.tokens[i] for i in draft.path(parent)]
            own = plain.next_logits([*bridge.context(tokens), *map(bridge.to_draft, path)])
            logits = torch.full((1, 264), -torch.inf)
            logits[0, bridge.target_ids] = own[bridge.draft_ids]
            text = [*tokens, *path]
            law = sampling.probs(logits, SamplingParams(**settings), text, 1)
            torch.testing.assert_close(draft.probs.to_dense(parent + 1), law.to_dense(0), rtol=1e-3, atol=1e-5)
            assert float(draft.probs.to_dense(parent + 1).sum()) == pytest.approx(1, abs=1e-5)
        assert set(draft.tokens) <= set(bridge.target_ids)
        tokens = [*tokens, *TARGET(" there")["input_ids"]]


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"temperature": 0.7, "presence_penalty": 0.5},
        {"option": "2,1"},
        {"option": "3", "repetition_penalty": 1.3},
        {"by_string": True},
        {"by_string": True, "temperature": 0.5},
        {"temperature": 0.0, "option": "2,1"},
    ],
    ids=str,
)
def test_the_law_is_exactly_the_targets_across_vocabularies(case):
    """Vocabularies abcd and dxab: three letters in common, all numbered differently; every draw enumerated, three
    tokens in two or three rounds. The forwards agree to about 1e-7 and the law to that."""
    settings = dict(case)
    option, by_string = settings.pop("option", None), settings.pop("by_string", False)
    params = SamplingParams(max_new_tokens=3, **settings)
    big, small = (tiny_llama(seed, vocab_size=4, initializer_range=0.5).double() for seed in (5, 6))
    bridge = Bridge(Letters("abcd"), Letters("dxab"), 4, 4)
    assert (bridge.target_ids, bridge.draft_ids) == ([0, 1, 3], [2, 3, 0])
    drafter, target = crossing(small, bridge, by_string, option, 4), lm(big, 1)

    def run(source):
        made = engine(target, drafter, max_draft=4, make_source=lambda seed, index: source)
        return tuple(made.generate([[0]], params)[0].token_ids)

    plain, expected = ModelTarget(big), {}
    plain.dtype = torch.float64
    for text in itertools.product(range(4), repeat=3):
        weight = 1.0
        for i in range(3):
            law = sampling.probs(plain.next_logits((0, *text[:i]))[None], params, (0, *text[:i]), 1)
            weight *= law.prob(0, text[i])
        expected[text] = weight
    assert total_variation(exact_law(run), expected) < 1e-6


def test_string_drafts_are_point_masses_and_stop_at_the_budget_and_where_the_drafter_is_unsure():
    bridge = Bridge(TARGET, DRAFT, 264, 263)
    drafter = crossing(tiny_llama(1, vocab_size=263), bridge, by_string=True)
    plain = ModelTarget(tiny_llama(1, vocab_size=263))
    tokens = TARGET(TEXT)["input_ids"]
    draft = ask(drafter, tokens, 4, temperature=0.9)
    text = bridge.context(tokens)
    own = reference(plain, text, SamplingParams(temperature=0, max_new_tokens=4))
    assert draft.tokens == tuple(bridge.to_target(tokens, text, own)[:4])
    assert draft.drawn == "fixed" and draft.probs is None
    assert ask(drafter, [*tokens, *TARGET("ä")["input_ids"][:1]], 4).num_nodes == 0, "inside a character"
    drafter._confidence = 1.0
    assert ask(drafter, tokens, 4).num_nodes <= 1


@pytest.mark.parametrize("by_string", [False, True], ids=["intersection", "string"])
def test_greedy_text_is_the_same_with_a_drafter_of_another_vocabulary(by_string):
    plain = ModelTarget(tiny_llama(0, vocab_size=264))
    bridge = Bridge(TARGET, DRAFT, 264, 263)
    params = SamplingParams(temperature=0, max_new_tokens=40)
    prompts = [TARGET(text)["input_ids"] for text in (TEXT, "the", "x", "hello")]
    for option in (None,) if by_string else (None, "2,2", "dynamic"):
        drafter = crossing(tiny_llama(1, vocab_size=263), bridge, by_string, option)
        run = engine(lm(plain.model), drafter, max_draft=4, max_batch=4)
        assert [r.token_ids for r in run.generate(prompts, params)] == [reference(plain, p, params) for p in prompts]


def test_the_draft_models_cache_lives_on_by_the_longest_common_prefix_of_its_own_ids():
    bridge = Bridge(TARGET, DRAFT, 264, 263)
    drafter = crossing(tiny_llama(1, vocab_size=263), bridge)
    counting = drafter.lm.forward = Counting(drafter.lm.forward)
    tokens = TARGET("tell me of the other tooth and more")["input_ids"]
    draft = ask(drafter, tokens, 4, temperature=0)
    counting.passes.clear()
    grown = [*tokens, *draft.tokens[:3], *TARGET("!")["input_ids"]]
    ask(drafter, grown, 20, temperature=0)  # so many that the rest of the text is one pass with the first
    held, context = list(drafter.lm.held(0)), bridge.context(grown)
    assert held[: len(context)] == context, "the row holds the text as the drafter's own tokenizer splits it"
    known = [*bridge.context(tokens), *map(bridge.to_draft, draft.tokens[:3])]
    same = next((i for i, (a, b) in enumerate(zip(known, context)) if a != b), min(len(known), len(context)))
    assert same >= len(bridge.context(tokens)) - 1 and counting.passes[0] == [len(context) - same]


@pytest.fixture
def folders(tmp_path):
    target = save_tiny(tmp_path / "target", tiny_llama(0, vocab_size=264), TARGET)
    draft = save_tiny(tmp_path / "draft", tiny_llama(1, vocab_size=263), DRAFT)
    return str(target), str(draft)


def test_load_wires_a_drafter_of_another_vocabulary(folders):
    target, draft = folders
    plain = dp.load(target)
    params = SamplingParams(temperature=0, max_new_tokens=24)
    expected = plain.generate([TEXT, "the"], params)
    for mode in ("auto", "intersection", "string"):
        made = dp.load(plain, f"model:{draft}", cross_vocab=mode, max_draft=4, adaptive=False)
        results = made.generate([TEXT, "the"], params)
        assert [r.token_ids for r in results] == [r.token_ids for r in expected]
        assert sum(r.stats.num_drafted for r in results) > 0
        sampled = made.generate([TEXT], SamplingParams(temperature=0.8, seed=1, max_new_tokens=12))[0]
        assert len(sampled.token_ids) == 12


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cross_vocab": "off"}, VocabularyError, "must share a vocabulary"),
        ({"cross_vocab": "tli"}, OptionError, "cross_vocab must be one of auto, intersection, string, off"),
        ({"cross_vocab": "string", "draft_tree": "2,1"}, OptionError, "matching strings, which makes chains"),
        ({"draft_vocab": 50}, OptionError, "draft_vocab needs a drafter with the target's own vocabulary"),
        ({"draft_tree": "bushy"}, OptionError, "draft_tree must be"),
        ({"draft_costs": "/no/file"}, OptionError, "bench --costs --json"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_cannot_be_combined_is_one_line(folders, options, error, message):
    with pytest.raises(error, match=message) as raised:
        dp.load(folders[0], f"model:{folders[1]}", **options)
    assert "\n" not in str(raised.value)
