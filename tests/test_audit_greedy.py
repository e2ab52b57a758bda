"""A difference between greedy texts is told apart: fault or numerical tie (second part of H01)."""

from __future__ import annotations

import torch

from draftproof import SamplingParams
from draftproof.audit.greedy import first_difference
from draftproof.testing import FnTarget, OracleDrafter, SilentDrafter
from draftproof.types import TargetOutput
from engines import engine, lm
from tiny import tiny_llama


class RoundsDifferently(FnTarget):
    """Tokens 3 and 5 are tied after seven tokens; in a pass of several rows 5 gets `extra` more."""

    def __init__(self, extra: float):
        self.extra = extra
        super().__init__(self._row, 8, dtype=torch.float64)

    def _row(self, prefix):
        row = [0.0] * 8
        row[(len(prefix)) % 8] = 1.0
        if len(prefix) == 7:
            row = [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
        return row

    def score(self, rows, roots, drafts):
        outputs = super().score(rows, roots, drafts)
        for i, draft in enumerate(drafts):
            if draft.num_nodes:
                logits = outputs[i].logits.clone()
                tied = (logits[:, 3] == 1) & (logits[:, 5] == 1)
                logits[tied, 5] += self.extra
                outputs[i] = TargetOutput(logits)
        return outputs


def texts(target):
    params = SamplingParams(temperature=0, max_new_tokens=12)
    plain = engine(target, SilentDrafter()).generate([[0]], params)[0].token_ids
    other = engine(target, OracleDrafter(target), max_draft=4).generate([[0]], params)[0].token_ids
    return plain, other


def test_a_tie_that_rounding_breaks_is_reported_as_a_tie_with_its_margin():
    target = RoundsDifferently(1e-7)
    plain, other = texts(target)
    assert plain != other
    found = first_difference(target, [0], plain, other)
    assert found.is_tie and found.index == 6 and found.tokens == (3, 5)
    assert str(found).startswith("numerical tie at index 6, margin 0")


def test_a_real_fault_is_not_excused_as_a_tie():
    target = lm(tiny_llama(0))
    params = SamplingParams(temperature=0, max_new_tokens=12)
    plain = engine(target, SilentDrafter()).generate([[1, 2]], params)[0].token_ids
    wrong = [*plain[:5], (plain[5] + 1) % 128, *plain[6:]]
    found = first_difference(target, [1, 2], plain, wrong)
    assert (found.index, found.is_tie) == (5, False) and str(found).startswith("NOT a numerical tie at index 5")
    assert found.margin > 1e-3 and target.num_busy == 0
    assert not first_difference(target, [1, 2], plain, plain[:-1]).is_tie, "a text cut short is no tie"


def test_a_small_margin_without_noise_is_no_tie():
    from draftproof.audit.greedy import Difference

    assert not Difference(0, (1, 2), margin=5e-4, noise=0.0).is_tie
    assert Difference(0, (1, 2), margin=5e-4, noise=3e-4).is_tie


def test_identical_texts_have_no_difference():
    target = lm(tiny_llama(0))
    assert first_difference(target, [1], [2, 3], [2, 3]) is None
