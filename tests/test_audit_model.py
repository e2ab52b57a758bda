"""`audit model` and `audit texts`: reading by the target, verdicts, kept arms, documents."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from draftproof import SamplingParams, cli, sampling
from draftproof.audit import foreign, model
from draftproof.audit.findings import pooled
from draftproof.audit.reading import Reader
from draftproof.audit.texts import Arm, Text, read_arm
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.errors import OptionError, PromptError
from draftproof.testing import LawDrafter, RandomTable, SilentDrafter, TableTarget
from draftproof.types import TargetOutput, Verification
from draftproof.verify import auto_rule
from engines import engine, lm, model_drafter
from leaks import leaking
from test_early_exit import target_of
from test_heads import build
from tiny import save_tiny, tiny_llama

V = 6
ROWS = torch.stack([RandomTable(V, 3)((i,)) for i in range(V)])
FAR = torch.stack([RandomTable(V, 40)((i,)) for i in range(V)])
F64 = {"dtype": torch.float64}


def by_last(rows):
    return lambda prefix: rows[prefix[-1]]


def engines(verify=auto_rule, target=None, drafter=None, **options):
    """Plain and drafted, over one target; q is far from p."""
    target = target or TableTarget(ROWS, **F64)
    drafter = drafter or LawDrafter(FAR, 1)
    made = {"max_draft": 1, **options}
    return engine(target, SilentDrafter(), **made), engine(target, drafter, verify=verify, **made)


PROMPTS = [[i % V, (i + 1) % V] for i in range(8)]


def plan(**changes):
    """A few thousand tokens, so the bound asked for is wide."""
    settings = {"T = 1": SamplingParams()}
    return model.Plan(**{"tokens": 1200, "max_new_tokens": 40, "settings": settings, "tv": 0.1, **changes})


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(presence_penalty=0.7, top_k=4)],
    ids=["plain", "top-p", "penalty, top-k"],
)
def test_a_reading_is_what_the_laws_say_by_hand(params):
    """40 tokens, more than two blocks, position by position from the tables alone."""
    target = TableTarget(ROWS, **F64)
    text = (
        engine(target, SilentDrafter())
        .generate([[0, 1]], SamplingParams(**{**vars(params), "max_new_tokens": 40, "seed": 3}))[0]
        .token_ids
    )
    (reading,) = Reader(target, params, LawDrafter(FAR, 3), seed=5).read([Text(0, (0, 1), tuple(text))])
    noise = np.random.default_rng(5)
    tokens = [0, 1, *text]
    for i, y in enumerate(text):
        known = tokens[: 2 + i]
        logits = ROWS[known[-1]].log()[None]
        p = sampling.probs(logits, params, known, 2).to_dense(0)
        q = FAR[known[-1]]
        liked = q > p
        assert reading.hits[i] == bool(liked[y])
        assert reading.masses[i] == pytest.approx(float(p[liked].sum()), abs=1e-12)
        assert reading.tv[i] == pytest.approx(float((p - q).abs().sum() / 2), abs=1e-12)
        ratio, xi = p / q, noise.random()
        below = float(p[(ratio < ratio[y]) & (p > 0)].sum())
        assert reading.u[i] == pytest.approx(below + xi * float(p[y]), abs=1e-12)
        penalised = sampling.penalise(logits, params, known, 2)[0]
        assert reading.gaps[i] == pytest.approx(float(penalised.max() - penalised[y]), abs=1e-12)
    assert all(reading.drafted) and reading.impossible == 0 and target.num_busy == 0


def test_without_a_drafter_the_likeliest_token_stands_in_and_silence_directs_nothing():
    target = TableTarget(ROWS, **F64)
    text = Text(0, (0,), (1, 2, 3))
    (alone,) = Reader(target, SamplingParams()).read([text])
    assert alone.masses == pytest.approx([float(ROWS[i].max()) for i in (0, 1, 2)])
    assert alone.hits == [int(ROWS[i].argmax()) == y for i, y in ((0, 1), (1, 2), (2, 3))]
    (silent,) = Reader(target, SamplingParams(), SilentDrafter()).read([text])
    assert silent.masses == [0, 0, 0] and silent.hits == [False] * 3 and not any(silent.drafted)
    (fixed,) = Reader(target, SamplingParams(), LawDrafter(FAR, fixed=True)).read([text])
    assert fixed.masses == pytest.approx([float(ROWS[i][int(FAR[i].argmax())]) for i in (0, 1, 2)])


def test_tokens_the_target_excludes_are_counted_and_foreign_ids_refused():
    target = TableTarget(ROWS, **F64)
    likeliest = int(ROWS[0].argmin())
    (reading,) = Reader(target, SamplingParams(top_k=1)).read([Text(0, (0,), (likeliest,))])
    assert reading.impossible == 1
    with pytest.raises(PromptError, match="another model's"):
        Reader(target, SamplingParams()).read([Text(0, (0,), (V,))])
    with pytest.raises(PromptError, match="context holds 4"):
        Reader(TableTarget(ROWS, max_length=4), SamplingParams()).read([Text(0, (0,), (1,) * 4)])


class Noting:
    """Passes everything on and keeps the law stated for the first token after each text."""

    def __init__(self, drafter):
        self.drafter, self.name, self.laws = drafter, drafter.name, {}

    def propose(self, requests):
        drafts = self.drafter.propose(requests)
        for request, draft in zip(requests, drafts):
            if draft.num_nodes:
                self.laws[tuple(request.tokens)] = draft.probs.to_dense(0)
        return drafts

    def release(self, sequence_id):
        self.drafter.release(sequence_id)


@pytest.mark.parametrize("kind", ["model", "self", "eagle1", "eagle3 original"])
def test_every_kind_of_drafter_says_under_reading_what_it_says_when_it_drafts(kind, tmp_path):
    """Caches, the target's row and its hidden states are what a drafter sees while generating."""
    if kind == "model":
        target, drafter = lm(tiny_llama(0)), model_drafter(tiny_llama(1))
    elif kind == "self":
        target = target_of(tiny_llama(9), 4)
        drafter = EarlyExitDrafter(target.forward, 1)
    else:
        target, drafter = build(kind, tmp_path / "head")
    noting = Noting(drafter)
    params = SamplingParams(temperature=0.8, max_new_tokens=40, seed=1)
    results = engine(target, noting, max_draft=3, max_batch=4).generate([[1, 2, 3], [7, 5]], params)
    drafted = dict(noting.laws)
    noting.laws.clear()
    texts = [Text(i, tuple(p), tuple(r.token_ids)) for i, (p, r) in enumerate(zip(([1, 2, 3], [7, 5]), results))]
    readings = Reader(target, params, noting, batch=4).read(texts)
    assert len(drafted) > 20 and len(noting.laws) == 80
    for text, law in drafted.items():
        assert noting.laws[text].tolist() == pytest.approx(law.tolist(), abs=1e-5)
    assert all(all(reading.drafted) for reading in readings) and target.num_busy == 0


# -- verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_system_is_lossless_within_the_bound_it_reached(seed):
    """Eight tests at a false-alarm rate of 1e-3 in all."""
    found = model.audit(*engines(), PROMPTS, plan(seed=seed))
    assert found.verdict.kind == "lossless"
    assert found.verdict.sentence.startswith("lossless within TV <= 0.0")
    assert found.verdict.tv_bound <= 0.1 and found.verdict.confidence == pytest.approx(0.999)
    assert found.greedy.differences == {} and found.greedy.control == 0
    document = found.to_dict()
    assert document["tokens"] >= 1200 and document["greedy"]["differing"] == 0
    assert {"name", "statistic", "p_value", "power"} <= set(document["tests"][0])


def test_a_leak_is_found_and_named():
    """A third of the rounds leak: a drift of some .05 a token over 3 000 tokens, z near 6 or more."""
    found = model.audit(*engines(leaking(0.35)), PROMPTS, plan(tokens=3000, greedy=False))
    assert found.verdict.kind == "not lossless"
    assert "drift towards the draft" in found.verdict.sentence or "uniform transforms" in found.verdict.sentence
    assert found.evidence[0].p_value < 1e-6 and found.evidence[0].statistic > 0
    assert found.control[0].drift.p_value > 1e-4
    page = found.report().html()
    assert "NOT lossless" in page and "<svg" in page


def test_a_drafter_without_probabilities_is_audited_too():
    table = torch.eye(V, dtype=torch.float64).roll(1, 0) * 0.5 + ROWS * 0.5
    plain, drafted = engines(target=TableTarget(table, **F64), drafter=NgramDrafter(), max_draft=4)
    found = model.audit(plain, drafted, PROMPTS, plan(greedy=False))
    assert found.verdict.kind == "lossless" and 0.2 < found.drafted[0].drafted < 1
    leaky = model.audit(
        *engines(leaking(0.5), TableTarget(table, **F64), NgramDrafter(), max_draft=4), PROMPTS, plan(greedy=False)
    )
    assert leaky.verdict.kind == "not lossless"


def test_too_few_tokens_are_undecided_and_say_how_many_are_missing():
    found = model.audit(*engines(), PROMPTS, plan(tokens=300, tv=0.015))
    assert found.verdict.kind == "undecided"
    assert found.verdict.sentence.startswith(f"undecided: need {found.verdict.needed} more tokens")
    assert 1000 < found.verdict.needed < 60_000


def test_a_wrong_greedy_text_is_shown_with_its_place_and_margin():
    def skipping(draft, p, source):
        made = auto_rule(draft, p, source)
        if len(made.path) == 1:
            return Verification((0,), (made.next_token + 1) % V, "bonus", draft.num_nodes)
        return made

    found = model.audit(*engines(skipping, drafter=LawDrafter(ROWS, 1, fixed=True)), PROMPTS, plan())
    assert found.verdict.kind == "not lossless"
    assert "differs from plain decoding: NOT a numerical tie at index" in found.verdict.sentence
    assert found.greedy.control == 0 and len(found.greedy.faults) == len(PROMPTS)


def test_where_plain_decoding_fails_the_tests_nothing_is_said_of_speculation():
    """The reading passes see other laws than the ones that generate: both arms drift, and the control says so."""

    class Warped(TableTarget):
        warped = False

        def score(self, rows, roots, drafts):
            outputs = super().score(rows, roots, drafts)
            return [TargetOutput(o.logits * (0.5 if d.num_nodes > 4 else 1.0)) for o, d in zip(outputs, drafts)]

    plain, drafted = engines(target=Warped(ROWS, **F64))
    found = model.audit(plain, drafted, PROMPTS, plan(tokens=2000, greedy=False))
    assert found.verdict.kind == "undecided" and "plain decoding fails the same tests" in found.verdict.sentence


def test_arms_are_kept_as_soon_as_they_are_finished(tmp_path):
    """The second sampled setting fails; what was finished before it is on disk, whole and readable."""
    kept = []

    def keep(arm):
        kept.append(arm.save(tmp_path))
        if len(kept) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.audit(*engines(), PROMPTS, plan(tokens=400), keep=keep)
    assert [path.name for path in kept[:3]] == [
        "arm-greedy--plain.json",
        "arm-greedy--drafted.json",
        "arm-greedy--plain-one-by-one.json",
    ]
    arm = read_arm(str(kept[3]))
    assert arm.num_tokens >= 400 and arm.params == SamplingParams() and len(arm.texts[0].prompt_ids) == 2
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*"))


# -- texts of other engines ---------------------------------------------------------------------------------------


def arm_of(verify=auto_rule, name="drafted", target=None, seed=0, params=None, tokens=1500):
    plain, drafted = engines(verify, target)
    made = drafted if name == "drafted" else plain
    return model.sample(made, name, PROMPTS, params or SamplingParams(), plan(tokens=tokens), seed, lambda *_: None)


def read(arm, baseline=None, drafter=True, target=None, **options):
    target = target or TableTarget(ROWS, **F64)
    guide = LawDrafter(FAR, 1) if drafter else None
    return foreign.audit(target, arm, baseline, guide, **{"tv": 0.1, **options})


def test_texts_of_a_sound_engine_pass_and_of_a_leaking_one_do_not():
    assert read(arm_of()).verdict.kind == "lossless"
    assert read(arm_of(), arm_of(name="plain", seed=1 << 40)).verdict.kind == "lossless"
    leaky = read(arm_of(leaking(0.5), tokens=3000))
    assert leaky.verdict.kind == "not lossless" and "precision" in leaky.notes[0]
    assert read(arm_of(leaking(0.5), tokens=3000), arm_of(name="plain", seed=1 << 40)).verdict.kind == "not lossless"


def test_another_precision_is_told_from_speculation_by_the_baseline():
    """The engine runs a blurred model: alone it fails, next to its own plain text it passes, unless it leaks."""
    blurred = (ROWS + 0.15) / (ROWS + 0.15).sum(1, keepdim=True)
    sound = arm_of(target=TableTarget(blurred, **F64), tokens=6000)
    plain = arm_of(name="plain", target=TableTarget(blurred, **F64), seed=1 << 40, tokens=6000)
    assert read(sound).verdict.kind == "not lossless"
    both = read(sound, plain)
    assert both.verdict.kind == "lossless" and "baseline itself differs" in both.notes[0]
    leaky = read(arm_of(leaking(0.6), target=TableTarget(blurred, **F64), tokens=6000), plain)
    assert leaky.verdict.kind == "not lossless"


def test_greedy_texts_must_be_the_highest_or_within_rounding():
    greedy = SamplingParams(temperature=0)
    sound = arm_of(params=greedy, tokens=300)
    found = read(sound, tv=0.1)
    assert found.verdict.kind == "lossless" and found.gaps[0].not_highest == 0
    texts = list(sound.texts)
    second = int(ROWS[texts[0].prompt_ids[-1]].topk(2).indices[1])
    texts[0] = Text(texts[0].prompt, texts[0].prompt_ids, (second, *texts[0].token_ids[1:]))
    wrong = read(Arm("other", "greedy", greedy, texts))
    assert wrong.verdict.kind == "not lossless" and "below the highest" in wrong.verdict.sentence
    assert "give a baseline" in wrong.verdict.sentence
    excused = read(Arm("other", "greedy", greedy, texts), Arm("other", "plain", greedy, texts))
    assert excused.verdict.kind == "lossless" and excused.identical == len(texts)


def test_text_without_ids_is_compared_as_a_whole_and_never_gets_a_bound():
    sound = read(arm_of(), arm_of(name="plain", seed=1 << 40), with_ids=False)
    assert sound.verdict.kind == "undecided" and sound.verdict.tv_bound is None
    always = read(arm_of(leaking(1.0), tokens=6000), arm_of(name="plain", seed=1 << 40, tokens=6000), with_ids=False)
    assert always.verdict.kind == "not lossless" and "two samples alike" in always.verdict.sentence


BAD = {
    "[]": "the key texts",
    '{"texts": []}': "hold none",
    '{"texts": [3]}': "text 1: expected an object",
    '{"texts": [{"prompt": 0, "prompt_ids": [1], "token_ids": ["a"]}]}': "token_ids must be a list of token ids",
    '{"texts": [{"prompt": 0, "prompt_ids": [], "token_ids": [1]}]}': "prompt_ids is empty",
    '{"texts": [{"prompt_ids": [1], "token_ids": [1]}]}': "number of the prompt",
    '{"params": {"beam": 3}, "texts": [1]}': "params has 'beam'",
    "{": "not JSON",
}


@pytest.mark.parametrize("content", BAD)
def test_bad_files_of_texts_are_one_line(content, tmp_path):
    (tmp_path / "arm.json").write_text(content)
    with pytest.raises(OptionError, match=BAD[content]):
        read_arm(str(tmp_path / "arm.json"))


# -- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    for name, seed in (("target", 1), ("draft", 2)):
        save_tiny(root / name, tiny_llama(seed, vocab_size=259, eos_token_id=256))
    return root


def test_the_command_line_audits_a_pair_and_leaves_every_document(folders, tmp_path, capsys):
    """The bound asked for is wide, as tokens are few; no test may reject, but for a chance of 1e-3."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"prompt {i}"}) + "\n" for i in range(4)))
    arguments = ["audit", "model", "--target", str(folders / "target"), "--drafter", f"model:{folders / 'draft'}"]
    arguments += ["--temperature", "0", "--temperature", "0.8", "--top-p", "1", "--top-p", "0.95", "--raw"]
    arguments += [
        "--tokens",
        "300",
        "-n",
        "24",
        "--prompts",
        str(prompts),
        "--tv",
        "0.3",
        "--save",
        str(tmp_path / "arms"),
    ]
    files = ["--json", str(tmp_path / "audit.json"), "--html", str(tmp_path / "audit.html")]
    assert cli.main([*arguments, *files]) == 0
    assert "lossless within TV <= 0." in capsys.readouterr().out
    document = json.loads((tmp_path / "audit.json").read_text())
    assert document["verdict"] == "lossless" and document["greedy"]["texts"] == 4 and document["tokens"] >= 300
    names = sorted(path.name for path in (tmp_path / "arms").iterdir())
    assert len(names) == 5 and names[-1].startswith("arm-t---0.8--top-p-0.95")
    assert "drift towards the draft" in (tmp_path / "audit.html").read_text()
    drafted, plain = (str(tmp_path / "arms" / name) for name in names[-2:])
    again = ["audit", "texts", drafted, "--baseline", plain, "--target", str(folders / "target"), "--tv", "0.3"]
    assert cli.main([*again, "--dtype", "float32", "--drafter", f"model:{folders / 'draft'}"]) == 0
    assert cli.main([*again[:2], "missing.json", *again[3:]]) == 2


def test_pooled_findings_of_nothing_are_no_evidence():
    found = pooled("empty", [])
    assert found.num_tokens == 0 and all(test.p_value == 1 for test in found.evidence(1e-3))
    assert math.isinf(found.evidence(1e-3)[0].detectable)


def test_a_caches_reading_of_a_tiny_pair_is_its_generation(folders):
    """Real forwards: reading in blocks gives the laws that generation saw, so top-p excludes nothing."""
    target = lm(tiny_llama(0), 4)
    drafted = engine(target, model_drafter(tiny_llama(1)), max_draft=3, max_batch=4)
    params = SamplingParams(temperature=0.7, top_p=0.6)
    arm = model.sample(drafted, "drafted", [[1, 2, 3], [4, 5]], params, plan(tokens=200), 0, lambda *_: None)
    readings = Reader(target, params, drafted.drafter, batch=4).read(arm.texts)
    assert sum(reading.impossible for reading in readings) == 0
    assert all(len(reading.u) == len(text.token_ids) for reading, text in zip(readings, arm.texts))
    assert target.num_busy == 0
