"""Trees in the making: one layer for each request per pass of whatever model drafts them.

Greedy requests get each node's most likely children (point masses), others children drawn without replacement from the
drafter's own processed law q, which goes into the draft as it was drawn from. Shapes are `growth`'s, and every drawn
node stays: exact for any drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .. import sampling
from ..types import EMPTY_DRAFT, Draft, DraftRequest, Probs, SamplingParams
from . import growth

Law = Callable[[Tensor, DraftRequest, Sequence[Sequence[int]], SamplingParams], Probs]


@dataclass
class Growth:
    """A sequence's tree while it grows, and until the next round shows what came of it.

    Fields:
        max_depth: no node is deeper.
        expanded: the nodes that get children next, with how many each.
        fed: the nodes that were fed to the drafter, in that order; the last `len(expanded)` of them are being fed.
        laws: q at the root (-1) and at every node that was expanded, one row each.
        draft: what was proposed.
    """

    request: DraftRequest
    plan: growth.Plan
    max_depth: int
    tree: growth.Growing = field(default_factory=growth.Growing)
    expanded: dict[int, int] = field(default_factory=dict)
    fed: list[int] = field(default_factory=list)
    laws: dict[int, Probs] = field(default_factory=dict)
    draft: Draft = EMPTY_DRAFT

    @property
    def num_done(self) -> int:
        """How many of the fed nodes earlier passes fed."""
        return len(self.fed) - len(self.expanded)

    def fed_tokens(self) -> list[int]:
        return [self.tree.tokens[node] for node in self.fed]

    def fed_parents(self) -> list[int]:
        """The parents of the fed nodes, numbered in feeding order; -1 = the root."""
        place = {-1: -1, **{node: i for i, node in enumerate(self.fed)}}
        return [place[self.tree.parents[node]] for node in self.fed]


class Trees:
    """The trees of one drafter, round after round.

    Args:
        option: what shape.
        law: logits `[R, V']`, the request, R paths of drafted tokens and the settings to q, over the target's ids.
        eos_ids: nodes with one of these get no children.
        confidence: of dynamic trees, see `growth.DynamicPlan`.
        costs: let optimal trees have only as many nodes and layers as pay.
    """

    def __init__(
        self,
        option: growth.TreeOption,
        law: Law,
        eos_ids: frozenset[int] = frozenset(),
        confidence: float = 0.0,
        costs: growth.Costs | None = None,
    ):
        self._option, self._law = option, law
        self._eos_ids, self._confidence, self._costs = eos_ids, confidence, costs
        self._last: dict[int, Growth] = {}
        self._acceptance: dict[int, growth.RankAcceptance] = {}

    def last(self, request: DraftRequest) -> Growth | None:
        """The sequence's last tree, until the next one is started."""
        return self._last.get(request.id)

    def start(self, request: DraftRequest, max_depth: int) -> Growth:
        """A new tree, planned with what came of the last one."""
        known = self._acceptance.setdefault(request.id, growth.RankAcceptance())
        if last := self._last.pop(request.id, None):
            known.observe(last.draft.tokens, last.draft.parents, request.tokens[len(last.request.tokens) :])
        plan = growth.plan(
            self._option,
            request.max_nodes,
            drawn=not request.params.greedy,
            acceptance=known,
            costs=self._costs,
            confidence=self._confidence,
        )
        return Growth(request, plan, max_depth)

    def grow(
        self,
        growing: Sequence[Growth],
        begin: Callable[[Sequence[Growth]], Tensor],
        feed: Callable[[Sequence[Growth]], Sequence[Tensor]],
    ) -> None:
        """Layer by layer: each plan names the nodes to expand, one pass feeds them all, each gets its children.

        Args:
            begin: logits `[B, V']` after each text.
            feed: logits `[n, V']` after each tree's nodes that are being fed.
        """
        active = [g for g in growing if self._expand(g)]
        logits: Sequence[Tensor] = begin(active).split(1) if active else ()
        while active:
            for g, own in zip(active, logits):
                self._add_layer(g, own)
            active = [g for g in active if self._expand(g)]
            for g in active:
                g.fed.extend(g.expanded)
            logits = feed(active) if active else ()
        for g in growing:
            self._finish(g)

    def release(self, sequence_id: int) -> None:
        self._last.pop(sequence_id, None)
        self._acceptance.pop(sequence_id, None)

    def _expand(self, g: Growth) -> bool:
        """Whether the tree gets another layer: what the plan expands next, without nodes that end the text."""
        wanted = g.plan.expand(g.tree) if len(g.tree.layers) <= g.max_depth else {}
        g.expanded = {n: num for n, num in wanted.items() if n < 0 or g.tree.tokens[n] not in self._eos_ids}
        return bool(g.expanded)

    def _add_layer(self, g: Growth, logits: Tensor) -> None:
        """Children of each expanded node from its logits `[n, V']`: the most likely, or drawn without replacement."""
        params, children = g.request.params, {}
        if params.greedy:
            params = replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        law = self._law(logits, g.request, [g.tree.path(node) for node in g.expanded], params)
        for row, (node, num) in enumerate(g.expanded.items()):
            g.laws[node] = law.row(row)
            if g.request.params.greedy:
                children[node] = law.top(row, num)
                continue
            tokens = sampling.draw_distinct(law, row, num, g.request.generator, "draft")
            children[node] = list(zip(tokens, law.at(row, torch.tensor(tokens, device=logits.device)).tolist()))
        g.tree.add_layer(children)

    def _finish(self, g: Growth) -> None:
        kept = g.plan.kept(g.tree)
        if not kept:
            return
        tokens = tuple(g.tree.tokens[node] for node in kept)
        parents = growth.subtree(g.tree.parents, kept)
        if g.request.params.greedy:
            g.draft = Draft(tokens, parents)
        else:  # every node stays; the law of a node without children is never looked at
            rows = [g.laws.get(node, g.laws[-1]) for node in range(-1, max(parents) + 1)]
            g.draft = Draft(tokens, parents, Probs.stack(rows), "without_replacement")
        g.laws.clear()
        self._last[g.request.id] = g
