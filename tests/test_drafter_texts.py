"""Greedy text is the same token for token with every drafter that needs no other model, alone and in a ragged batch.

Bit-exact passes, in bfloat16 too, where near-ties are common; so no seed had to be chosen.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from draftproof import SamplingParams
from draftproof.audit.exact import plain_law
from draftproof.drafters.cascade import CascadeDrafter
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.early_exit import EarlyExitDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.none import NoDrafter
from draftproof.drafters.suffix import Memory, SuffixDrafter
from draftproof.engine import Engine
from draftproof.models.cached_lm import CachedLM
from draftproof.models.forwards import make_forward
from draftproof.sampling import draw
from draftproof.testing import RandomTable, TableTarget
from draftproof.types import Verification
from draftproof.verify.law import exact_law, total_variation
from engines import engine
from test_lean import loaded
from tiny import tiny_llama

PARAMS = SamplingParams(temperature=0, max_new_tokens=50, caller="ann")
PROMPTS = [random.Random(n).choices(range(96), k=n) for n in (1, 2, 5, 9, 17, 30)] + [[7, 8, 9] * 12, [3, 4] * 5]


@cache
def target(dtype):
    return CachedLM(make_forward(loaded(tiny_llama(0, vocab_size=96).to(dtype)), bitwise=True), 8)


@cache
def expected(dtype):
    plain = engine(target(dtype), NoDrafter())
    return [plain.generate([prompt], PARAMS)[0].token_ids for prompt in PROMPTS]


def small(dtype):
    model = tiny_llama(1, vocab_size=96).to(dtype)
    return ModelDrafter(CachedLM(make_forward(loaded(model), weights="int8"), 8), 96, 96)


MAKERS = {
    "suffix": lambda dtype: SuffixDrafter(),
    "suffix:shared": lambda dtype: SuffixDrafter(memory=Memory()),
    "self:1": lambda dtype: EarlyExitDrafter(target(dtype).forward, 1),
    "self:2": lambda dtype: EarlyExitDrafter(target(dtype).forward, 2),
    "suffix,model": lambda dtype: CascadeDrafter([SuffixDrafter(), small(dtype)]),
    "ngram,self:1": lambda dtype: CascadeDrafter([NgramDrafter(1), EarlyExitDrafter(target(dtype).forward, 1)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_greedy_text_is_the_same_alone_and_in_a_ragged_batch_of_eight(name, dtype):
    for batch in (1, 8):
        run = engine(target(dtype), MAKERS[name](dtype), max_draft=5, max_batch=batch)
        results = run.generate(PROMPTS, PARAMS)
        assert [r.token_ids for r in results] == expected(dtype)
        assert sum(r.stats.num_accepted for r in results) > 0
        assert target(dtype).num_busy == 0


def test_memory_of_the_same_answers_makes_them_cheap():
    """The second time every answer is known to the caller's memory."""
    drafter = SuffixDrafter(memory=Memory())
    run = engine(target(torch.float32), drafter, max_draft=5)
    first, second = (run.generate(PROMPTS, PARAMS) for _ in range(2))
    assert [r.token_ids for r in second] == [r.token_ids for r in first] == expected(torch.float32)
    assert sum(r.stats.num_rounds for r in second) < 0.6 * sum(r.stats.num_rounds for r in first)


def descend(draft, p, source):
    """The rule for fixed trees, in its plainest form: draw from the target at a node, go down while a child has it."""
    path, node = [], -1
    while True:
        token = draw(p, node + 1, source, "bonus")
        node = next((child for child in draft.children[node + 1] if draft.tokens[child] == token), None)
        if node is None:
            return Verification(tuple(path), token, "bonus", draft.num_nodes)
        path.append(node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_greedy_text_with_suffix_trees_is_the_same_too(dtype):
    for batch in (1, 8):
        run = Engine(target(dtype), SuffixDrafter(8, floor=0.02), descend, max_draft=12, max_batch=batch)
        results = run.generate(PROMPTS, PARAMS)
        assert [r.token_ids for r in results] == expected(dtype)
        assert sum(r.stats.num_accepted for r in results) > 0


def test_the_law_is_exact_with_suffix_trees():
    p, params = RandomTable(3, 4), SamplingParams(max_new_tokens=3)
    prompt, trees = (1, 2, 1, 0, 1), []  # 2 and 0 have followed 1, and nothing longer says which comes now

    class Watched(SuffixDrafter):
        def propose(self, requests):
            drafts = super().propose(requests)
            trees.extend(draft for draft in drafts if not draft.is_chain)
            return drafts

    def run(source):
        made = Engine(
            TableTarget(p, dtype=torch.float64), Watched(8, 0), descend, make_source=lambda seed, index: source
        )
        return tuple(made.generate([list(prompt)], params)[0].token_ids)

    law = plain_law(lambda prefix: p((*prompt, *prefix[1:])), params)
    assert total_variation(exact_law(run), law) < 1e-12 and trees
