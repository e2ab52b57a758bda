"""Verification of trees with one part of the recursion replaced, or with a draft read as drawn another way."""

from __future__ import annotations

from ...interfaces import RandomSource, Verifier
from ...types import Draft, Drawn, Probs, Verification
from ...verify import traversal_rule, tree_of
from ..recursion import Recursion, Row
from .mutant import P_TREE, Q_TREE, TREE, broken_rule


class NoRenormalising(Recursion):
    """Siblings drawn without replacement: removed from q, which is not made a law again."""

    def law(self, node: int, tokens: list[int], j: int) -> Row:
        return [0.0 if y in tokens[:j] else value for y, value in enumerate(self.q[node + 1])]


class SortedOrder(Recursion):
    """Tests siblings by falling draft probability, whatever the order they were drawn in."""

    def order(self, node: int, p: Row) -> list[int]:
        return sorted(super().order(node, p), key=lambda child: -self.q[node + 1][self.draft.tokens[child]])


class OrderByTarget(Recursion):
    """Tests siblings by falling target probability."""

    def order(self, node: int, p: Row) -> list[int]:
        return sorted(super().order(node, p), key=lambda child: -p[self.draft.tokens[child]])


class OrderByAge(Recursion):
    """Tests siblings in the reverse of the order they were drawn in."""

    def order(self, node: int, p: Row) -> list[int]:
        return super().order(node, p)[::-1]


class SameTarget(Recursion):
    """Goes on with p after a failure, instead of the residual."""

    def refuse(self, w: float, p: Row, q: Row) -> tuple[Row, float]:
        return p, super().refuse(w, p, q)[1]


class SameChance(Recursion):
    """Leaves w as it was after a failure."""

    def refuse(self, w: float, p: Row, q: Row) -> tuple[Row, float]:
        return super().refuse(w, p, q)[0], w


class UnscaledResidual(Recursion):
    """(p - q)+ where (w p - q)+ is owed."""

    def refuse(self, w: float, p: Row, q: Row) -> tuple[Row, float]:
        return super().refuse(1.0, p, q)[0], super().refuse(w, p, q)[1]


class UnscaledOffer(Recursion):
    """Accepts with min(1, p/q), forgetting w."""

    def accept(self, w: float, p_x: float, q_x: float) -> float:
        return min(1.0, p_x / q_x)


class LeafIsSure(Recursion):
    """A visit without children left always succeeds."""

    def visit(self, node: int, w: float, p: Row) -> tuple[list[int], int] | None:
        return super().visit(node, 1.0 if w > 0 and not self.draft.children[node + 1] else w, p)


def claiming(drawn: Drawn) -> Verifier:
    """Reads the draft as drawn another way."""

    def verify(draft: Draft, p: Probs, source: RandomSource) -> Verification:
        paths = [tuple(draft.tokens[j] for j in draft.path(i)) for i in range(-1, draft.num_nodes)]
        q = Probs.stack([Probs.dense(Q_TREE(path)[None]) for path in paths])
        return traversal_rule(Draft(draft.tokens, draft.parents, q, drawn), p, source)

    return verify


TREES: dict[str, tuple[Verifier, Drawn]] = {
    "without replacement, earlier siblings not removed": (claiming("independent"), "without_replacement"),
    "without replacement, q not renormalised": (NoRenormalising(), "without_replacement"),
    "without replacement, q not renormalised, token by token": (NoRenormalising(at_once=True), "without_replacement"),
    "without replacement, tested in sorted order": (SortedOrder(), "without_replacement"),
    "without replacement, tested in sorted order, token by token": (SortedOrder(at_once=True), "without_replacement"),
    "without replacement, siblings in the target's order": (OrderByTarget(), "without_replacement"),
    "independent, siblings in the target's order": (OrderByTarget(), "independent"),
    "without replacement, last drawn tested first": (OrderByAge(), "without_replacement"),
    "softmax stated for deterministic top-k children": (claiming("independent"), "fixed"),
    "softmax without replacement stated for top-k children": (claiming("without_replacement"), "fixed"),
    "hybrid, fixed siblings not left out of q": (claiming("independent"), "hybrid"),
    "hybrid taken for without replacement": (claiming("without_replacement"), "hybrid"),
    "same p after a failure": (SameTarget(), "independent"),
    "same p after a failure of a fixed child": (SameTarget(), "fixed"),
    "same p after a failure, token by token": (SameTarget(at_once=True), "independent"),
    "same w after a failure": (SameChance(), "independent"),
    "residual without w": (UnscaledResidual(), "independent"),
    "offer without w": (UnscaledOffer(), "independent"),
    "leaves always succeed": (LeafIsSure(), "independent"),
}

MUTANTS = [
    broken_rule(name, rule, P_TREE, tree_of(Q_TREE, TREE, drawn), traversal_rule)
    for name, (rule, drawn) in TREES.items()
]
