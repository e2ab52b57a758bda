"""`audit law`: coverage, drafters of one's own and what is said of them, the documents it leaves."""

from __future__ import annotations

import json

import pytest
import torch

import own_drafters
from draftproof import cli
from draftproof.api import VERIFIERS
from draftproof.audit import combinations, mutants, own, rules
from draftproof.audit.mutants import EXACT
from draftproof.audit.own import FLOAT32
from draftproof.errors import OptionError


def audited(name, **options):
    return own.audit(name, lambda size: own.build(f"own_drafters:{name}", size), list(VERIFIERS), **options)


def test_every_verifier_and_way_of_drawing_is_in_the_table_and_exact():
    """Block verification refuses trees, so it has fewer cases; everything else has all of them."""
    table = rules.coverage(["auto", "block"])
    assert {(row.verifier, row.drawn) for row in table} == {(v, d) for v in ("auto", "block") for d in rules.DRAWN}
    assert all(row.max_tv < EXACT for row in table)
    assert min(row.num_cases for row in table if row.verifier == "auto") > 80
    assert min(row.num_cases for row in table if row.verifier == "block") > 40


def test_the_processors_combined_are_all_there_are():
    """A new field of SamplingParams that changes the law must join the combinations."""
    from dataclasses import fields

    from draftproof import SamplingParams

    no_law = {"max_new_tokens", "stop", "stop_token_ids", "ignore_eos", "seed", "logprobs", "n", "caller"}
    laws = {field.name for field in fields(SamplingParams)} - no_law
    assert laws == {"temperature", *(key for entry in combinations.PROCESSORS.values() for key in entry)}
    sets = list(combinations.processor_sets())
    assert len(sets) == 2 * 2**8 + 2**5
    assert len({repr(params) for params in sets}) == len(sets)


@pytest.mark.parametrize("name", ["Bigrams", "Precise", "Argmax"])
def test_a_sound_drafter_of_ones_own_passes_as_exactly_as_its_laws_are_stated(name):
    found = audited(name)
    assert found.is_exact and found.faults == []
    assert found.tolerance == (FLOAT32 if name == "Bigrams" else EXACT)
    assert found.max_tv < found.tolerance
    assert {row.verifier for row in found.rows} == set(VERIFIERS)
    assert found.num_drafts > 30


FAULTS = {
    "ForgetsTheTemperature": ["the stated law is not the one the token was drawn from", "states q = 0.561"],
    "DropsUnlikely": ["withheld because of their own value", "Hand over every token drawn"],
    "Rounds": ["the stated law is not the one"],
    "ArgmaxAsDrawn": ["comes with probability 1.000", "drawn='fixed'"],
    "OwnChance": ["chance of its own", "request.generator"],
    "Remembers": ["drafted differently"],
    "TooLong": ["asked for at most 1 tokens", "it drafted 2"],
    "NeedsRoom": ["asked for at most 0 tokens", "ValueError"],
    "Crashes": ["AttributeError", "'nodes'"],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_drafter_is_caught_and_told_what_is_wrong(name):
    found = audited(name)
    assert not found.is_exact
    for words in FAULTS[name]:
        assert words in found.faults[0]


def test_trees_with_a_sibling_pruned_are_told_which_law_it_misses():
    class Pruning(own_drafters.Precise):
        def chain(self, request):
            from draftproof.types import Draft, Probs

            if request.max_nodes < 2:
                return Draft((), ())
            law = self.law(request.tokens[-1], request.params)
            tokens = own_drafters.sampling.draw_distinct(law, 0, 2, request.generator, "draft")
            best = max(tokens, key=lambda token: law.prob(0, token))
            return Draft((best,), (-1,), Probs.stack([law]), "without_replacement")

    class Context:
        vocab_size = 3

    found = own.audit("pruning", lambda size: Pruning(Context), ["token"])
    assert "the stated law is not the one the token was drawn from" in found.faults[0]


def test_a_drafter_that_cannot_be_made_is_one_line(capsys):
    with pytest.raises(OptionError, match="no 'Missing'"):
        own.build("own_drafters:Missing", 3)
    assert cli.main(["audit", "law", "own_drafters:Missing"]) == 2
    assert cli.main(["audit", "law", "--verifier", "best"]) == 2
    assert "unknown verifier 'best': use all, auto" in capsys.readouterr().err


def test_the_command_line_says_what_is_wrong_and_leaves_both_documents(tmp_path, capsys, monkeypatch):
    """The other tables are cut short here, which are tested above."""
    monkeypatch.setattr(combinations, "coverage", lambda progress: [rules.Coverage("cut short", 1, 0.0)])
    monkeypatch.setattr(rules, "CHAINS", rules.CHAINS[:2])
    monkeypatch.setattr(rules, "TREES", {})
    monkeypatch.setattr(mutants, "MUTANTS", mutants.MUTANTS[:3])
    files = ["--json", str(tmp_path / "law.json"), "--html", str(tmp_path / "law.html")]
    assert cli.main(["audit", "law", "own_drafters:DropsUnlikely", "--verifier", "token", *files]) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("NOT lossless: drafter own_drafters:DropsUnlikely: temperature 1: the emitted law is off")
    document = json.loads((tmp_path / "law.json").read_text())
    assert document["verdict"] == "not lossless"
    assert {"verifier", "drawn", "max_tv"} <= set(document["rules"][0])
    assert {"name", "caught"} <= set(document["mutants"][0])
    assert all(mutant["caught"] for mutant in document["mutants"])
    page = (tmp_path / "law.html").read_text()
    assert "withheld because of their own value" in page and "http" not in page.split("</style>")[0]
    assert cli.main(["audit", "law", "--verifier", "token", "--json", str(tmp_path / "law.json")]) == 0
    assert json.loads((tmp_path / "law.json").read_text())["verdict"] == "lossless"


def test_a_law_stated_in_float32_does_not_excuse_a_wrong_one():
    """The tolerance for rounding is hundreds of times smaller than the faintest fault above."""
    assert audited("Rounds").max_tv > 500 * FLOAT32
    assert own_drafters.Rounds.dtype == torch.float32
