"""`dp.load` wires the parts: names and folders in, an engine out; anything impossible is one line."""

from __future__ import annotations

import shutil
import warnings

import pytest
import transformers as tf

import draftproof as dp
from draftproof.cli import main
from draftproof.errors import DraftproofError, ModelError, OptionError, PromptError, VocabularyError
from draftproof.testing import SilentDrafter
from tiny import TEXT_VOCAB, byte_tokenizer, save_tiny, tiny_llama, tiny_model

GREEDY = dp.SamplingParams(temperature=0, max_new_tokens=24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    save_tiny(root / "target", tiny_llama(0, vocab_size=TEXT_VOCAB))
    save_tiny(root / "small", tiny_llama(1, vocab_size=TEXT_VOCAB + 5, max_position_embeddings=64))
    save_tiny(root / "ids only", tiny_llama(0), tokenizer=False)
    save_tiny(root / "no template", tiny_llama(0, vocab_size=TEXT_VOCAB), byte_tokenizer(chat_template=None))
    save_tiny(root / "foreign", tiny_llama(1, vocab_size=TEXT_VOCAB), byte_tokenizer(order=byte_order()))
    mamba = tf.MambaConfig(vocab_size=TEXT_VOCAB, hidden_size=64, num_hidden_layers=2)
    save_tiny(root / "mamba", tiny_model(mamba))
    return root


def byte_order():
    from tiny import BYTES

    return [BYTES[1], BYTES[0], *BYTES[2:]]


@pytest.fixture(scope="module")
def plain(folders):
    return dp.load(str(folders / "target"))


def test_text_chat_and_ids_are_prompts_and_results_come_in_order(plain):
    chat = [{"role": "user", "content": "hello"}]
    results = plain.generate(["hello", chat, list(b"hello")], GREEDY)
    assert len(results) == 3
    assert results[0].text == plain.codec.decode(results[0].token_ids)
    assert plain.generate(chat, GREEDY)[0].token_ids == results[1].token_ids, "one conversation is one prompt"
    assert plain.generate("hello", GREEDY)[0].token_ids == results[0].token_ids
    assert plain.codec.decode(plain.codec.encode_chat(chat)) == "hello", "special tokens are not text"


def test_drafters_share_a_loaded_target_and_agree(plain, folders):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small = dp.load(plain, f"model:{folders / 'small'}", max_draft=3)
    assert "64 positions, the target 256" in str(caught[0].message)
    assert small.target is plain.target and small.config["drafter"].startswith("model:")
    expected = plain.generate(["ab ab ab ab", "x"], GREEDY)
    for engine in (small, dp.load(plain, "ngram"), dp.load(plain, SilentDrafter())):
        assert [r.token_ids for r in engine.generate(["ab ab ab ab", "x"], GREEDY)] == [r.token_ids for r in expected]
        events = list(engine.stream("ab ab ab ab", GREEDY))
        assert "".join(e.text for e in events) == expected[0].text
        assert sum(len(e.token_ids) for e in events) == len(expected[0].token_ids)


def test_a_model_without_tokenizer_takes_ids_only(folders):
    engine = dp.load(str(folders / "ids only"), f"model:{folders / 'ids only'}", draft_weights="packed", adaptive=False)
    result = engine.generate([[1, 2, 3]], GREEDY)[0]
    assert result.text == "" and result.stats.acceptance_rate == 1
    with pytest.raises(PromptError, match="no tokenizer"):
        engine.generate("hello", GREEDY)


def test_h12_other_vocabularies_are_refused_before_anything_runs(plain, folders):
    with pytest.raises(VocabularyError) as caught:
        dp.load(plain, f"model:{folders / 'foreign'}")
    message = str(caught.value)
    assert str(folders / "target") in message and str(folders / "foreign") in message and "0" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drafter": "oracle"}, OptionError, "unknown drafter 'oracle'"),
        ({"verifier": "typical"}, OptionError, "unknown verifier 'typical': use auto, token, block, traversal"),
        ({"weights": "int3"}, OptionError, "unknown weights 'int3'"),
        ({"draft_weights": "int3"}, OptionError, "unknown draft_weights"),
        ({"bitwise": True, "weights": "dense"}, OptionError, "bitwise=True cannot be promised"),
        ({"max_draft": -1}, OptionError, "max_draft must be"),
        ({"max_batch": 0}, OptionError, "max_batch must be"),
        ({"max_length": 1}, OptionError, "max_length must be"),
        ({"draft_max_length": "x"}, OptionError, "draft_max_length must be"),
        ({"draft_confidence": 1.5}, OptionError, "draft_confidence must be"),
        ({"dtype": "int7"}, OptionError, "int7"),
        ({"device": "abacus"}, OptionError, "abacus"),
        ({"target": "/no/such/model"}, ModelError, "/no/such/model"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_impossible_options_are_one_line(folders, options, error, message):
    with pytest.raises(error, match=message) as caught:
        dp.load(**{"target": str(folders / "target"), **options})
    assert isinstance(caught.value, DraftproofError) and "\n" not in str(caught.value)


def test_options_of_the_target_cannot_be_changed_where_it_is_shared(plain):
    for options in ({"dtype": "bfloat16"}, {"weights": "int8"}, {"max_length": 40}, {"bitwise": True}):
        with pytest.raises(OptionError, match=f"{next(iter(options))} belongs to the loaded target"):
            dp.load(plain, "ngram", **options)
    assert dp.load(plain, "ngram", max_batch=2).max_batch == 2
    with pytest.raises(OptionError, match="must have methods propose and release"):
        dp.load(plain, 5)


def test_a_chat_needs_a_template_and_well_formed_messages(plain, folders):
    with pytest.raises(PromptError, match="no chat template"):
        dp.load(str(folders / "no template")).generate([{"role": "user", "content": "x"}], GREEDY)
    for messages, word in (([{"role": "user"}], "content"), ([{"content": "x"}], "role")):
        with pytest.raises(PromptError, match=word):
            plain.generate([messages], GREEDY)


def test_the_context_limit_can_be_lowered(folders):
    engine = dp.load(str(folders / "target"), max_length=10)
    result = engine.generate([[1, 2, 3]], dp.SamplingParams(temperature=0, ignore_eos=True))[0]
    assert len(result.token_ids) == 7 and result.finish_reason == "length"
    with pytest.raises(PromptError, match="the context holds 10"):
        engine.generate([[1] * 10], GREEDY)


def test_a_damaged_folder_is_one_line(folders, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folders / "target", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError) as caught:
        dp.load(str(broken))
    assert "\n" not in str(caught.value)


class Spy(SilentDrafter):
    """Proposes nothing and remembers the texts it was asked about."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def propose(self, requests):
        self.asked += [request.tokens for request in requests]
        return super().propose(requests)


def test_h12_the_targets_template_is_the_only_one(folders, tmp_path):
    """A drafter whose folder has another template gets the ids that the target's template makes."""
    other = byte_tokenizer(chat_template="<<{{ messages[0]['content'] }}>>")
    draft = save_tiny(tmp_path / "draft", tiny_llama(1, vocab_size=TEXT_VOCAB), other)
    chat = [{"role": "user", "content": "hello"}]
    plain = dp.load(str(folders / "target"))
    spy = Spy()
    dp.load(plain, spy).generate(chat, GREEDY)
    prompt = tuple(plain.codec.encode_chat(chat))
    assert spy.asked[0] == prompt
    speculative = dp.load(plain, f"model:{draft}", adaptive=False)
    fed = []
    extend = speculative.drafter.lm.extend
    speculative.drafter.lm.extend = lambda rows, feeds: fed.extend(map(tuple, feeds)) or extend(rows, feeds)
    result = speculative.generate(chat, GREEDY)[0]
    assert result.token_ids == plain.generate(chat, GREEDY)[0].token_ids and result.stats.num_drafted > 0
    held = speculative.drafter.lm.held(0)
    assert tuple(held[: len(prompt)]) == prompt, "what the drafter read begins with the same ids"
    assert fed


def test_h12_h15_impossible_pairs_and_models_end_the_command_at_once(folders, capsys):
    """One line, status 2, before anything is generated."""
    mamba = folders / "mamba"
    cases = [
        ([str(folders / "target"), f"model:{folders / 'foreign'}"], "token 0 is"),
        ([str(mamba), "none"], "cannot be rewound: layer 0 is linear_attention"),
        ([str(mamba), "ngram"], "cannot be rewound: layer 0 is linear_attention"),
        ([str(folders / "target"), f"model:{mamba}"], "cannot be rewound: layer 0 is linear_attention"),
    ]
    for (target, drafter), message in cases:
        assert main(["generate", "hi", "--target", target, "--drafter", drafter]) == 2
        shown = capsys.readouterr()
        assert not shown.out and len(shown.err.splitlines()) == 1 and message in shown.err, shown.err


def test_h04_nothing_lossy_is_offered(plain):
    for name in ("typical", "lenience", "threshold"):
        with pytest.raises(OptionError, match=f"unknown verifier '{name}': use auto, token, block, traversal"):
            dp.load(plain, "ngram", verifier=name)
    assert plain.config["verifier"] == "auto"
