"""How draft trees grow: pure shaping over numbers, for every drafter that drafts more than a chain.

A shape is a parent vector as in `Draft`: parents[i] < i, -1 = the root. Children of a node are ranked in the order in
which they are drafted. Three ways to choose a shape:

static     given: so many children at each depth.
dynamic    EAGLE-2 (2406.16858): expand the most probable nodes of each layer, then keep the best by path product.
           Nodes are dropped because of what they are, so it is for point masses only (drawn = "fixed").
optimal    Sequoia (2402.12374): the shape with the largest expected length, given how often a child of each rank is
           accepted; with measured costs also the number of nodes and the depth.

A static or optimal shape is fixed before anything is drawn, and every drawn node stays: exact for sampled children.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from ..costs import Curve
from ..errors import OptionError
from ..types import Draft

Parents = tuple[int, ...]
_PRIOR = (0.6, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)  # acceptance by rank before anything was seen
_PRIOR_WEIGHT = 16  # counts as so many rounds


@dataclass(frozen=True)
class TreeOption:
    """What the user asked for: kind, children per depth (static), nodes per layer and children per node (dynamic)."""

    kind: Literal["static", "dynamic", "optimal"]
    widths: tuple[int, ...] = ()
    width: int = 4

    @staticmethod
    def parse(text: str | None) -> TreeOption | None:
        """None or "chain", "dynamic", "dynamic:WIDTH", "optimal", or children per depth such as "4,2,1".

        Raises:
            OptionError: anything else.
        """
        if text is None or text == "chain":
            return None
        name, _, argument = str(text).partition(":")
        if name == "dynamic" and (not argument or (argument.isdecimal() and int(argument) > 0)):
            return TreeOption("dynamic", width=int(argument or 4))
        if text == "optimal":
            return TreeOption("optimal")
        parts = str(text).split(",")
        if all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            return TreeOption("static", tuple(map(int, parts)))
        raise OptionError(
            f"draft_tree must be chain, dynamic, optimal or children per depth such as 4,2,1, not {text!r}"
        )


def layered(widths: Sequence[int], max_nodes: int) -> Parents:
    """widths[d] children for every node of depth d, layer by layer; at most `max_nodes` nodes.

    Where there are too many, the nodes with the smallest ranks along their path stay: first of all the first child of
    the first child. That looks at ranks alone, so it is exact for drawn children.
    """
    parents: list[int] = []
    order: list[tuple[int, int]] = []  # rank sum, depth
    layer = [-1]
    for depth, width in enumerate(widths):
        following = []
        for node in layer[:max_nodes]:  # later ones have max_nodes better nodes before them in their own layer
            base = order[node][0] if node >= 0 else 0
            for rank in range(min(width, max_nodes)):
                following.append(len(parents))
                parents.append(node)
                order.append((base + rank, depth + 1))
        layer = sorted(following, key=lambda node: (order[node], node))[:max_nodes]
    kept = sorted(range(len(parents)), key=lambda node: (order[node], node))[:max_nodes]
    return subtree(parents, sorted(kept))


def subtree(parents: Sequence[int], nodes: Sequence[int]) -> Parents:
    """The parents of the given nodes, renumbered; `nodes` ascends and holds every node's parent."""
    place = {-1: -1, **{node: i for i, node in enumerate(nodes)}}
    return tuple(place[parents[node]] for node in nodes)


def best_nodes(values: Sequence[float], num: int) -> list[int]:
    """The `num` nodes of largest value, ascending. Values never grow along a path, so ancestors come along."""
    return sorted(sorted(range(len(values)), key=lambda node: (-values[node], node))[:num])


def expected_length(parents: Sequence[int], acceptance: Sequence[float]) -> float:
    """Expected tokens of a round, the residual or bonus token included, if the child of rank r is accepted with
    probability acceptance[r] whenever its parent is (0 beyond the last rank).
    """
    reach: list[float] = []
    seen: dict[int, int] = {}
    for parent in parents:
        rank = seen.get(parent, 0)
        seen[parent] = rank + 1
        share = acceptance[rank] if rank < len(acceptance) else 0.0
        reach.append((reach[parent] if parent >= 0 else 1.0) * share)
    return 1.0 + sum(reach)


@lru_cache(maxsize=64)
def _best_lengths(acceptance: tuple[float, ...], num_nodes: int, max_depth: int) -> list[list[list[float]]]:
    """Sequoia's recursion. Entry [d][r][m]: the most that m nodes can add below a node whose descendants reach at most
    d deep, if they go to its children of rank r and later: a child of rank r with s nodes adds
    acceptance[r] * (1 + [d - 1][0][s - 1]).
    """
    num_ranks = len(acceptance)
    table = [[[0.0] * (num_nodes + 1) for _ in range(num_ranks + 1)]]
    for depth in range(1, max_depth + 1):
        below, forest = table[depth - 1][0], [[0.0] * (num_nodes + 1) for _ in range(num_ranks + 1)]
        for rank in reversed(range(num_ranks)):
            later = forest[rank + 1]
            forest[rank] = [
                max((acceptance[rank] * (1 + below[s - 1]) + later[m - s] for s in range(1, m + 1)), default=0.0)
                for m in range(num_nodes + 1)
            ]
        table.append(forest)
        if forest[0] == below:  # deeper trees gain nothing more
            break
    return table


@lru_cache(maxsize=1024)
def optimal(acceptance: tuple[float, ...], num_nodes: int, max_depth: int | None = None) -> Parents:
    """The shape of `num_nodes` nodes with the largest `expected_length`; fewer nodes only where more cannot help.

    Args:
        acceptance: of each rank, in [0, 1] and never growing.
        max_depth: at most so deep; None is no limit.
    """
    table = _best_lengths(acceptance, num_nodes, num_nodes if max_depth is None else min(max_depth, num_nodes))
    parents: list[int] = []

    def place(parent: int, depth: int, num: int) -> None:
        depth = min(depth, len(table) - 1)
        forest, below = table[depth], table[max(depth - 1, 0)][0]
        for rank, share in enumerate(acceptance):
            if forest[rank][num] <= 0:
                return
            later = forest[rank + 1]
            size = max(range(1, num + 1), key=lambda s: share * (1 + below[s - 1]) + later[num - s])
            node = len(parents)
            parents.append(parent)
            place(node, depth - 1, size - 1)
            num -= size

    place(-1, num_nodes if max_depth is None else max_depth, num_nodes)
    return tuple(parents)


@dataclass(frozen=True)
class Costs:
    """What a round costs here, in passes of the target over one token.

    Fields:
        verify: pairs (M, v(M)) with v(M) = T(M) / T(1) of the target, as measured, ascending; straight lines between.
        draft: c, one pass of the drafter, which drafts one layer of a tree.
    """

    verify: tuple[tuple[int, float], ...]
    draft: float = 0.0

    def verifying(self, num_tokens: int) -> float:
        """v(M), on the line through the nearest two measurements."""
        return Curve(self.verify).at(num_tokens)

    @staticmethod
    def read(document: Any) -> Costs:
        """From what `draftproof bench --costs --json` writes, the file or its content: the target's v, the first
        drafter's c.

        Raises:
            OptionError: it is no such document.
        """
        try:
            if isinstance(document, (str, os.PathLike)):
                document = json.loads(Path(document).read_text(encoding="utf-8"))
            target = next(row for row in document["costs"] if row["role"] == "target")
            draft = next((float(row["c"]) for row in document["costs"] if row["role"] == "drafter"), 0.0)
            verify = tuple(sorted((int(m), float(v)) for m, v in target["v"].items()))
        except (OSError, KeyError, TypeError, ValueError, StopIteration, AttributeError):
            verify, draft = (), 0.0
        if not verify or min(v for _, v in verify) <= 0 or draft < 0:
            raise OptionError("draft_costs must be what draftproof bench --costs --json writes, with the target's v")
        return Costs(verify, draft)


@lru_cache(maxsize=1024)
def best_budget(acceptance: tuple[float, ...], costs: Costs, max_nodes: int) -> tuple[int, int]:
    """Number of nodes and depth with the most expected tokens per unit of time; (0, 0) where drafting does not pay.

    A round with n nodes in d layers takes d * c + v(n + 1) and gives the expected length of the best such shape
    (Sequoia, 2402.12374, section 4: the tree that fits the hardware).
    """
    table = _best_lengths(acceptance, max_nodes, max_nodes)
    best, chosen = 1 / costs.verifying(1), (0, 0)
    for depth in range(1, len(table)):
        for num in range(1, max_nodes + 1):
            rate = (1 + table[depth][0][num]) / (depth * costs.draft + costs.verifying(num + 1))
            if rate > best:
                best, chosen = rate, (num, depth)
    return chosen


class RankAcceptance:
    """How often the child of each rank was accepted in one sequence's rounds so far, with a prior.

    Looks at earlier rounds of the same sequence only, so what is drafted does not depend on what shares the batch.
    """

    def __init__(self) -> None:
        self._tested = [0] * len(_PRIOR)
        self._accepted = [0] * len(_PRIOR)

    def observe(self, tokens: Sequence[int], parents: Sequence[int], emitted: Sequence[int]) -> None:
        """A draft (its tokens and parents), and the tokens that its round emitted."""
        node = -1
        for token in emitted:
            children = [i for i, parent in enumerate(parents) if parent == node][: len(_PRIOR)]
            hit = next((rank for rank, child in enumerate(children) if tokens[child] == token), None)
            for rank in range(len(children)):
                self._tested[rank] += 1
            if hit is None:
                return
            self._accepted[hit] += 1
            node = children[hit]

    def estimate(self) -> tuple[float, ...]:
        """Per rank, never growing, to two digits (so that shapes are worked out rarely)."""
        shares, least = [], 1.0
        for prior, accepted, tested in zip(_PRIOR, self._accepted, self._tested):
            least = min(least, (prior * _PRIOR_WEIGHT + accepted) / (_PRIOR_WEIGHT + tested))
            shares.append(round(least, 2))
        return tuple(shares)


@dataclass
class Growing:
    """A tree being drafted, layer by layer.

    Fields:
        tokens, parents: as in `Draft`.
        values: the product of the drafter's probabilities along the path to each node.
        layers: the nodes of each finished layer, the root (-1) first.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=lambda: [[-1]])

    def value(self, node: int) -> float:
        return self.values[node] if node >= 0 else 1.0

    def add_layer(self, children: Mapping[int, Sequence[tuple[int, float]]]) -> None:
        """For each expanded node its children in drafting order, as (token, the drafter's probability)."""
        layer = []
        for parent, drawn in children.items():
            for token, prob in drawn:
                layer.append(len(self.tokens))
                self.tokens.append(token)
                self.parents.append(parent)
                self.values.append(self.value(parent) * prob)
        self.layers.append(layer)

    def path(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`."""
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


class Plan(Protocol):
    """Decides what a tree grows next."""

    def expand(self, tree: Growing) -> dict[int, int]:
        """Nodes of the last layer to expand, with how many children each; empty: the tree is done."""
        ...

    def kept(self, tree: Growing) -> list[int]:
        """The nodes to propose, ascending, with every node's parent."""
        ...


class FixedPlan:
    """A shape that is known beforehand; a node with fewer children than planned leaves the rest out."""

    def __init__(self, shape: Parents):
        self._children = Draft((0,) * len(shape), shape).children
        self._places = [-1]  # of the root and every node in the shape

    def expand(self, tree: Growing) -> dict[int, int]:
        ranks: dict[int, int] = {}
        for node in range(len(self._places) - 1, len(tree.tokens)):
            parent = tree.parents[node]
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            self._places.append(self._children[self._places[parent + 1] + 1][rank])
        counts = {node: len(self._children[self._places[node + 1] + 1]) for node in tree.layers[-1]}
        return {node: count for node, count in counts.items() if count}

    def kept(self, tree: Growing) -> list[int]:
        return list(range(len(tree.tokens)))


class DynamicPlan:
    """EAGLE-2's expansion and reranking; for children that are chosen, not drawn.

    Args:
        width: nodes expanded per layer, and children of each.
        max_nodes: how many are kept.
        confidence: no further layer once the last one's values sum to less: the drafter's own chance that the text
            gets so far (with one node a layer, the threshold of a chain).
    """

    def __init__(self, width: int, max_nodes: int, confidence: float = 0.0):
        self._width, self._max_nodes, self._confidence = width, max_nodes, confidence

    def expand(self, tree: Growing) -> dict[int, int]:
        layer = tree.layers[-1]
        best = sorted(layer, key=lambda node: (-tree.value(node), node))[: self._width]
        if not best or len(tree.layers) > self._max_nodes or sum(map(tree.value, layer)) < self._confidence:
            return {}
        if len(tree.values) >= self._max_nodes:  # a descendant is worth no more than its ancestor: can any be kept?
            least = sorted(tree.values, reverse=True)[self._max_nodes - 1]
            best = [node for node in best if tree.value(node) > least]
        return dict.fromkeys(best, self._width)

    def kept(self, tree: Growing) -> list[int]:
        return best_nodes(tree.values, self._max_nodes)


def plan(
    option: TreeOption,
    max_nodes: int,
    *,
    drawn: bool,
    acceptance: RankAcceptance,
    costs: Costs | None = None,
    confidence: float = 0.0,
) -> Plan:
    """The plan for one round of one sequence.

    Args:
        drawn: children will be sampled, so that a dynamic tree, which drops nodes, gives way to an optimal one.
        acceptance: what was seen of this sequence.
        costs: let an optimal tree have only as many nodes and layers as pay.
        confidence: of a dynamic tree.
    """
    if option.kind == "static":
        return FixedPlan(layered(option.widths, max_nodes))
    if option.kind == "dynamic" and not drawn:
        return DynamicPlan(option.width, max_nodes, confidence)
    shares = acceptance.estimate()
    if costs is None:
        return FixedPlan(optimal(shares, max_nodes))
    return FixedPlan(optimal(shares, *best_budget(shares, costs, max_nodes)))
