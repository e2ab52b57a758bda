"""Training text is serving text; data, caches and runs of another target are never taken for this one's (H26)."""

from __future__ import annotations

import json
import random

import pytest

import draftproof as dp
from draftproof.cli import main
from draftproof.errors import PromptError, TrainingError
from draftproof.models.codec import Codec
from draftproof.models.hf import load_model
from draftproof.training.capture import Capture
from draftproof.training.corpus import Corpus, CorpusFolder, Sample, count, read_unit
from draftproof.training.data import Answered, Answering, PublicText, SelfWritten, user_turn
from draftproof.training.eagle import EagleRecipe
from draftproof.training.identity import identify
from draftproof.training.making import Excluded, make
from draftproof.training.recipe import frequent
from draftproof.training.run import train
from tiny import CHAT_TEMPLATE, byte_tokenizer, save_tiny, tiny_llama
from training_runs import FUSED, loaded, plan, samples, settings, teacher_of, tiny_target, write_corpus

THINKING = CHAT_TEMPLATE.replace(
    "<|assistant|>{% endif %}", "<|assistant|>{% if thinking %}Let me think. {% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("data") / "target")


@pytest.fixture(scope="module")
def engine(target):
    return dp.load(str(target), dtype="float32", max_batch=8)


def manifest(target, *sources):
    identity = identify(str(target), load_model(target).tokenizer)
    return {"identity": identity.to_dict(), "settings": {source.name: source.settings for source in sources}}


def test_what_is_learned_from_is_what_a_server_would_send(target, engine):
    tokenizer = load_model(target).tokenizer
    before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    talks = [("a", [], ["Hello", "And then?"]), ("b", before, ["z"])]
    made = Answered(engine, Answering((0.0,), max_new_tokens=10, unit=4), talks).make(0)
    by = {kind: [m.sample for m in made if m.sample.category == kind] for kind in ("a", "b")}
    (only,) = by["b"]
    history = [*before, {"role": "user", "content": "z"}]
    first = only.answer.index(True)
    sent = tokenizer.apply_chat_template(history, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert list(only.ids[:first]) == list(sent) and all(only.answer[first:]) and not any(only.answer[:first])
    served = engine.generate([history], dp.SamplingParams(temperature=0, max_new_tokens=10))[0]
    assert list(only.ids[first:]) == list(served.token_ids)
    turn = [{"role": "user", "content": "Hello"}]
    sent = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert list(by["a"][0].ids[: len(sent)]) == list(sent)
    assert sum(sample.num_answer for sample in by["a"]) == 20  # both turns, each once


def test_a_turn_that_begins_with_all_before_it_is_one_text_with_it():
    class Echo:
        """Says the same printable word always, so that its words are laid out again as they were."""

        codec = Codec(byte_tokenizer(), "echo")

        def generate(self, prompts, params):
            said = [*self.codec.encode("yes"), 256]
            return [dp.GenerationResult("yes", said, "stop", None, None) for _ in prompts]

        target = None

    (made,) = Answered(Echo(), Answering((0.0,), unit=4), [("a", [], ["Hello", "More"])]).make(0)
    text = Echo.codec.tokenizer.decode(made.sample.ids)
    assert text == "<|user|>Hello<|end|><|assistant|>yes<|end|><|user|>More<|end|><|assistant|>yes<|end|>"
    assert made.sample.num_answer == 2 * 4


def test_a_flag_of_the_template_is_part_of_text_and_identity(tmp_path):
    tokenizer = byte_tokenizer(chat_template=THINKING)
    plain, thinking = Codec(tokenizer, "t"), Codec(tokenizer, "t", {"thinking": True})
    talk = [{"role": "user", "content": "Hi"}]
    assert thinking.lay_out(talk) == plain.lay_out(talk) + "Let me think. "
    assert thinking.encode_chat(talk) == list(
        tokenizer.apply_chat_template(talk, add_generation_prompt=True, thinking=True, tokenize=True)["input_ids"]
    )
    assert user_turn(plain) == ("<|user|>", "") and user_turn(thinking)[0] == "<|user|>"


def test_every_change_gives_another_cache_entry_and_none_finds_an_old_one(tmp_path, target):
    model = tiny_llama(3, vocab_size=259, num_hidden_layers=4)
    tokenizers = {
        "plain": byte_tokenizer(),
        "template": byte_tokenizer(chat_template=THINKING),
        "tokenizer": byte_tokenizer(order=sorted(byte_tokenizer().get_vocab())[3:][::-1]),
    }
    folders = {name: save_tiny(tmp_path / name, model, tokenizer) for name, tokenizer in tokenizers.items()}
    folders["weights"] = save_tiny(tmp_path / "weights", tiny_llama(4, vocab_size=259, num_hidden_layers=4))
    folders["size"] = save_tiny(tmp_path / "size", tiny_llama(3, vocab_size=264, num_hidden_layers=4))
    corpus = Corpus(tuple(samples(8)), {}, "texts")

    def entry(name="plain", flags=None, length=48, draft=64, layers=FUSED, k=16, temperature=1.0, texts="texts"):
        vocab = frequent(corpus.frequencies(), draft, 259, ())
        recipe = EagleRecipe(loaded(folders[name]).model, vocab, layers=layers)
        teacher = teacher_of(recipe, folders[name], temperature)
        who = identify(str(folders[name]), load_model(folders[name]).tokenizer, flags)
        return Capture(tmp_path / "cache", teacher, corpus.samples, who, texts, length=length, k=k).folder

    entries = [
        entry(), entry(flags={"thinking": True}), entry("template"), entry("tokenizer"), entry("weights"),
        entry("size"), entry(length=40), entry(draft=32), entry(draft=None), entry(layers=(0, 1, 3)), entry(k=8),
        entry(temperature=0.7), entry(texts="others"),
    ]  # fmt: skip
    assert len(set(entries)) == len(entries)
    assert entry() == entries[0]  # and the same settings find it again
    copy = save_tiny(tmp_path / "copy", model, tokenizers["plain"])
    folders["copy"] = copy
    assert entry("copy") == entries[0]  # wherever the same model lies


def test_data_and_caches_of_another_target_are_refused(tmp_path, target):
    data = write_corpus(tmp_path / "data", target)
    other = tiny_target(tmp_path / "other", seed=4)
    with pytest.raises(TrainingError, match=r"the data in .*data was made with .*target and is of another model than"):
        train(plan("medusa", other, data), settings(max_steps=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(TrainingError, match="laid out by another chat template, or with other template flags"):
        train(plan("medusa", target, data, template_flags={"thinking": True}), settings(max_steps=2), tmp_path / "run")
    recipe = EagleRecipe(loaded(target).model, None, layers=FUSED)
    who = identify(str(target), load_model(target).tokenizer)
    capture = Capture(tmp_path / "cache", teacher_of(recipe, target), samples(8), who, "t", length=48, k=8)
    capture.fill()
    stated = json.loads((capture.folder / "manifest.json").read_text())
    stated["identity"]["weights"] = "0123"
    (capture.folder / "manifest.json").write_text(json.dumps(stated))
    with pytest.raises(TrainingError, match="is of another model than"):
        capture.fill()


def test_a_folder_goes_on_with_the_same_settings_only_and_grows_with_larger_counts(tmp_path, target, engine):
    def written(num, **changes):
        answering = Answering(**{"temperatures": (0.0,), "max_new_tokens": 8, "max_length": 60, "unit": 4, **changes})
        source = SelfWritten(engine, answering, num, {"free": ("say ",)})
        folder = CorpusFolder(tmp_path / "data", manifest(target, source))
        return make(folder, [source], Excluded(()))

    written(8)
    first = [path.read_bytes() for path in sorted((tmp_path / "data").glob("self-*"))]
    written(13)
    after = [path.read_bytes() for path in sorted((tmp_path / "data").glob("self-*"))]
    assert after[:2] == first and len(after) == 4  # whole units
    with pytest.raises(TrainingError, match=r"was made with self seed = 0, now 7: give the same settings to add to it"):
        written(16, seed=7)
    other = identify(str(tiny_target(tmp_path / "other", seed=9)), load_model(target).tokenizer)
    with pytest.raises(TrainingError, match="is of another model than"):
        CorpusFolder(tmp_path / "data", {"identity": other.to_dict(), "settings": {}})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(TrainingError, match=r"holds no manifest\.json: choose a new folder"):
        CorpusFolder(tmp_path / "full", {"identity": other.to_dict(), "settings": {}})


def test_no_text_comes_twice_and_none_shares_words_with_what_is_excluded(tmp_path, target):
    words = [f"w{random.Random(i).randrange(10**6)}" for i in range(400)]
    secret = "what did the old man in the boat say to the two boys from the town by the sea"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(" ".join(words[:40]))
    (tmp_path / "text" / "b.txt").write_text(" ".join(words[:40]).upper())
    (tmp_path / "text" / "c.txt").write_text(
        f"{' '.join(words[40:60])} WHAT did the old man, in the boat: say to the two boys from?"
    )
    (tmp_path / "text" / "d.txt").write_text(f"{' '.join(words[60:80])} what did the old man in the boat say to")
    (tmp_path / "text" / "e.bin").write_bytes(b"\0\1\2")
    codec = Codec(load_model(target).tokenizer, "tiny")
    source = PublicText(codec, tmp_path / "text", max_tokens=None, length=1000)
    counts = make(CorpusFolder(tmp_path / "data", manifest(target, source)), [source], Excluded([secret, "who is it"]))
    (found,) = counts.values()
    assert (found["all"]["samples"], found["duplicates"], found["excluded"]) == (2, 1, 1)
    assert "who is it?" in Excluded(["Who is it"]) and "I know who is it" not in Excluded(["Who is it"])
    corpus = Corpus.read([tmp_path / "data"])
    assert count(corpus.samples)["all"] == found["all"]
    assert all(s.answer[0] is False and all(s.answer[1:]) for s in corpus.samples)
    decoded = {codec.decode(s.ids) for s in corpus.samples}
    assert any(text.endswith("say to") for text in decoded) and not any("two boys" in text for text in decoded)


def test_public_text_ends_when_there_is_enough(tmp_path, target):
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.py").write_text(f"# file {number}\n" + "x = 1\n" * 30)
    codec = Codec(load_model(target).tokenizer, "tiny")
    source = PublicText(codec, tmp_path / "text", max_tokens=500, length=100, files=2)
    counts = make(CorpusFolder(tmp_path / "data", manifest(target, source)), [source], Excluded(()))
    (found,) = counts.values()
    assert 500 <= found["all"]["tokens"] < 1000 and found["units"] < 10
    with pytest.raises(TrainingError, match="holds no text: expected files ending in"):
        PublicText(codec, tmp_path / "data" / "nothing", max_tokens=None, length=100)


def test_a_target_without_a_template_cannot_talk_to_itself(tmp_path, engine):
    codec = Codec(byte_tokenizer(chat_template=None), "plain")
    with pytest.raises(PromptError, match="plain has no chat template"):
        user_turn(codec)
    shouting = Codec(byte_tokenizer(chat_template="{{ messages[0]['content'] | upper }}"), "loud")
    with pytest.raises(PromptError, match="changes a user's words"):
        user_turn(shouting)


def test_held_out_texts_are_the_same_whatever_is_added():
    given = samples(60)
    training, held = Corpus(tuple(given), {}, "").split(8, 48)
    again = Corpus(tuple(reversed(given)), {}, "").split(8, 48)[1]
    assert {s.ids for s in held} == {s.ids for s in again} and len(held) == 8
    assert not {s.ids for s in held} & {s.ids for s in training} and len(training) == 52
    assert len(Corpus(tuple(given[:10]), {}, "").split(8, 48)[1]) == 2  # at most a fifth


def test_the_draft_vocabulary_is_the_answers_most_frequent_tokens(target):
    given = [
        Sample((5, 9, 9, 7, 7, 7, 3), (False, True, True, True, True, True, True)),
        Sample((5, 5, 5, 5), (False,) * 4),
    ]
    found = frequent(Corpus(tuple(given), {}, "").frequencies(), 4, 259, (256,))
    assert found.tolist() == [3, 7, 9, 256]
    assert frequent({}, None, 259, ()) is None and frequent({}, 259, 259, ()) is None


def test_the_command_line_makes_shows_and_adds(tmp_path, target, capsys):
    (tmp_path / "prompts.jsonl").write_text(
        '{"turns": ["one please", "two please"], "category": "told"}\n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, '
        '{"role": "assistant", "content": "dropped"}]}\n'
    )
    options = ["-t", str(target), "--dtype", "float32", "-n", "6", "--max-length", "80", "--unit", "4", "--batch", "4"]
    call = ["train", "data", str(tmp_path / "data"), *options, "--prompts", str(tmp_path / "prompts.jsonl")]
    assert main([*call, "--show", "2", "--json", str(tmp_path / "made.json")]) == 0
    out = capsys.readouterr()
    assert "<|user|>one please<|end|><|assistant|>" in out.out and "tokens/s" in out.err
    counts = json.loads((tmp_path / "made.json").read_text())["counts"]
    ((_, found),) = counts.items()
    assert found["told"]["answer_tokens"] == 12 and found["prompts"]["answer_tokens"] == 6
    unit = sorted((tmp_path / "data").glob("prompts-*"))[0]
    texts = [load_model(target).tokenizer.decode(s.ids) for s in read_unit(unit)[0]]
    assert not any("dropped" in text for text in texts) and any("q<|end|><|assistant|>" in text for text in texts)
    assert main(call) == 0 and "made before" in capsys.readouterr().err
    for wrong, said in (
        (
            ["train", "data", str(tmp_path / "d2"), "-t", str(target)],
            "give --conversations N, --prompts FILE or --text",
        ),
        ([*call, "--domain", "sports"], "unknown domain 'sports': use free, writing"),
        ([*call, "--template-flag", "thinking"], "--template-flag needs NAME=VALUE"),
        (["train", "eagle", str(tmp_path / "run"), "-t", str(target)], "give --data FOLDER"),
        (["train", "eagle", str(tmp_path / "run"), "-t", str(target), "--data", "nowhere"], "holds no training data"),
        (["train", "eagle", str(tmp_path / "run"), "--fuse", "a,b", "--data", "x"], "--fuse needs whole numbers"),
        (["train", "eagle", str(tmp_path / "run"), "--lr", "0", "--data", "x"], "lr must be a number above 0"),
    ):
        assert main(wrong) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.strip().splitlines()) == 1
