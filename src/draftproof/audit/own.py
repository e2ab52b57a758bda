"""A drafter of one's own under the exact audit: is the law kept, and if not, what does the drafter do wrong?

The drafter is made as `draftproof.load` would make it, for a target with a small vocabulary and a known law, and asked
through the engine's own records. All its draws go through `request.generator`, so every draft it can propose is walked
through with its probability. Whether the law is kept is then decided by the production verifiers alone; `diagnosis`
only explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import torch

from ..api import VERIFIERS
from ..drafters import catalog
from ..drafters.context import DraftContext
from ..errors import DrafterError, DraftproofError
from ..interfaces import Drafter, RandomSource
from ..testing import RandomTable
from ..types import Draft, DraftRequest, SamplingParams
from ..verify.law import HiddenChance, Prefix, Proposer, distance_from_target, exact_law
from .diagnosis import Drafted, find_fault
from .exact import engine_distance
from .laws import processed
from .mutants import EXACT
from .rules import Progress, silent

FLOAT32 = 1e-6
"""Laws stated in float32 round at 6e-8 a value; over a draft's outcomes that stays below this."""

SETTINGS = {
    "temperature 1": SamplingParams(),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top-k 2": SamplingParams(top_k=2),
    "greedy": SamplingParams(temperature=0),
}
PROMPTS: tuple[Prefix, ...] = ((0,), (1, 0), (0, 1, 0, 1))


@dataclass(frozen=True)
class OwnRow:
    """The drafter with one verifier under one setting: cases enumerated and the largest total variation."""

    verifier: str
    setting: str
    num_cases: int
    max_tv: float


@dataclass
class OwnAudit:
    """Fields:
    spec: the drafter as the user named it.
    rows: what the verifiers emit with it.
    tolerance: above this total variation the law is broken; depends on the dtype of the stated laws.
    faults: what is wrong, one sentence each; empty if the law is kept.
    num_drafts: how many different drafts were walked through.
    """

    spec: str
    rows: list[OwnRow] = field(default_factory=list)
    tolerance: float = EXACT
    faults: list[str] = field(default_factory=list)
    num_drafts: int = 0

    @property
    def is_exact(self) -> bool:
        return not self.faults

    @property
    def max_tv(self) -> float:
        return max((row.max_tv for row in self.rows), default=0.0)

    def to_dict(self) -> dict[str, object]:
        rows = [
            {"verifier": row.verifier, "setting": row.setting, "max_tv": row.max_tv, "cases": row.num_cases}
            for row in self.rows
        ]
        return {
            "drafter": self.spec,
            "exact": self.is_exact,
            "max_tv": self.max_tv,
            "tolerance": self.tolerance,
            "drafts": self.num_drafts,
            "faults": self.faults,
            "rows": rows,
        }


def build(spec: str, vocab_size: int) -> Drafter:
    """The drafter a user names, for a target of `vocab_size` ids without a tokenizer.

    Raises:
        OptionError: nothing of that name, or it cannot be made.
    """
    context = DraftContext(
        target_name="audit", vocab_size=vocab_size, tokenizer=None, eos_ids=frozenset(), max_batch=1, max_length=1 << 20
    )
    return catalog.build(spec, context)


def audit(
    spec: str,
    make: Callable[[int], Drafter],
    verifiers: list[str],
    vocab_size: int = 3,
    max_draft: int = 2,
    progress: Progress = silent,
) -> OwnAudit:
    """Walk through everything the drafter can propose after a few prompts, under every verifier.

    Args:
        spec: how the drafter is called in messages.
        make: vocabulary size to a new drafter.
        verifiers: names out of `api.VERIFIERS`.
        max_draft: most tokens of a draft; outcomes grow as vocab_size to this power.
    """
    found = OwnAudit(spec)
    drafter = _Asked(make(vocab_size))
    for done, (setting, params) in enumerate(SETTINGS.items()):
        progress(done, len(SETTINGS), setting)
        try:
            drafted = list(_drafted(drafter, params, max_draft))
            if fault := _unrepeatable(drafted):
                found.faults.append(f"{setting}: {fault}")
                return found
            _compare(found, drafter, setting, params, verifiers, vocab_size, max_draft, drafted)
        except DrafterError as error:
            found.faults.append(f"{setting}: {error}")
            return found
    return found


def _compare(
    found: OwnAudit,
    drafter: Drafter,
    setting: str,
    params: SamplingParams,
    verifiers: list[str],
    vocab_size: int,
    max_draft: int,
    drafted: list[Drafted],
) -> None:
    """Fill in the rows of one setting, and the fault that explains the first row that is off."""
    found.num_drafts += sum(len(one.drafts) for one in drafted)
    drafts = [draft for one in drafted for draft in one.drafts]
    if any(d.probs is not None and d.probs.values.dtype != torch.float64 for d in drafts):
        found.tolerance = FLOAT32
    chains = all(draft.is_chain for draft in drafts)
    worst = 0.0
    for name in verifiers:
        if name == "block" and not chains:
            continue
        distances = []
        for seed in (1, 2):
            law = processed(RandomTable(vocab_size, seed), params)
            for prompt in PROMPTS:
                propose = _proposer(drafter, params, max_draft)
                distances.append(distance_from_target(law, propose, VERIFIERS[name], prefix=prompt))
        whole = replace(params, max_new_tokens=max_draft + 1)
        table = RandomTable(vocab_size, 1)
        distances.append(engine_distance(table, drafter, whole, VERIFIERS[name], max_draft=max_draft))
        found.rows.append(OwnRow(name, setting, len(distances), max(distances)))
        worst = max(worst, *distances)
    if worst > found.tolerance:
        tolerance = 1e-9 if found.tolerance == EXACT else 1e-7
        why = find_fault(drafted, tolerance) or (
            "each drafted token by itself follows the law stated for it; which tokens are drafted together, or the "
            "shape of the draft, must then depend on tokens drawn later"
        )
        found.faults.append(f"{setting}: the emitted law is off by a total variation of {worst:.2g}: {why}")


_ids = count(1)


class _Asked:
    """The user's drafter, whose failures become one line that says what it was asked."""

    def __init__(self, drafter: Drafter):
        self._drafter, self.name = drafter, drafter.name

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        asked = f"asked for at most {requests[0].max_nodes} tokens after {list(requests[0].tokens)}"
        try:
            drafts = self._drafter.propose(requests)
        except (DraftproofError, HiddenChance):
            raise
        except Exception as error:
            raise DrafterError(f"{asked}, propose failed with {type(error).__name__}: {error}") from error
        if len(drafts) != 1 or not isinstance(drafts[0], Draft):
            raise DrafterError(f"{asked}, propose must return a list of one Draft, not {drafts!r:.60}")
        if drafts[0].num_nodes > requests[0].max_nodes:
            raise DrafterError(f"{asked}, it drafted {drafts[0].num_nodes}")
        return drafts

    def release(self, sequence_id: int) -> None:
        self._drafter.release(sequence_id)


def _proposer(drafter: Drafter, params: SamplingParams, max_nodes: int) -> Proposer:
    """The drafter asked for one draft of a sequence it does not know."""

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        request = DraftRequest(next(_ids), prefix, 1, params, source, max_nodes)
        (draft,) = drafter.propose([request])
        drafter.release(request.id)
        return draft

    return propose


def _drafted(drafter: Drafter, params: SamplingParams, max_draft: int) -> Iterator[Drafted]:
    """Every draft after every prompt within every budget, each walked through twice."""
    for prompt in PROMPTS:
        for max_nodes in range(max_draft + 1):
            propose = _proposer(drafter, params, max_nodes)
            walks: list[list[Draft]] = []
            chances: list[float] = []
            error = None
            try:
                for _ in range(2):
                    walk: list[Draft] = []
                    law = exact_law(lambda source: _append(walk, propose(prompt, source)))  # noqa: B023
                    walks.append(walk)
                    chances = list(law.values())
            except HiddenChance as failure:
                error = str(failure)
            yield Drafted(prompt, max_nodes, walks[0] if walks else [], chances, error or _differing(walks))


def _append(walk: list[Draft], draft: Draft) -> int:
    walk.append(draft)
    return len(walk)


def _differing(walks: list[list[Draft]]) -> str | None:
    """Whether the same answers led to other drafts."""
    one, other = ([(d.tokens, d.parents, d.drawn) for d in walk] for walk in walks)
    return None if one == other else "the drafts differed"


def _unrepeatable(drafted: list[Drafted]) -> str | None:
    failed = next((one for one in drafted if one.unrepeatable), None)
    if failed is None:
        return None
    return (
        f"asked twice for the same text {list(failed.prompt)} and given the same answers, it drafted differently: it "
        "has chance of its own (torch, random, numpy) or remembers what release should have made it forget. Draw from "
        "request.generator, with draftproof.sampling.draw; then seeds fix the text, and its law can be checked"
    )
