"""The subtree recursion over plain lists, slow and obvious: the oracle of the production rules, and the stock that
broken ones are cut from by overriding one part.
"""

from __future__ import annotations

import torch

from ..interfaces import RandomSource
from ..types import Draft, Probs, Verification

Row = list[float]


class Recursion:
    """A verifier. `at_once` decides each child before what follows it is seen: the token rule."""

    def __init__(self, at_once: bool = False):
        self.at_once = at_once

    def __call__(self, draft: Draft, p: Probs, source: RandomSource) -> Verification:
        self.draft, self.source = draft, source
        self.p: list[Row] = p.to_dense().tolist()
        self.q: list[Row] = [] if draft.probs is None else draft.probs.to_dense().tolist()
        found = self.visit(-1, 1.0, self.p[0])
        assert found is not None, "the root is visited with w = 1"
        path, token = found
        last = path[-1] if path else -1
        return Verification(tuple(path), token, "residual" if draft.children[last + 1] else "bonus", draft.num_nodes)

    def visit(self, node: int, w: float, p: Row) -> tuple[list[int], int] | None:
        """Path below `node` and the token after it, with probability w; else None."""
        siblings = self.order(node, p)
        for j, child in enumerate(siblings):
            x = self.draft.tokens[child]
            q = self.law(node, [self.draft.tokens[s] for s in siblings], j)
            w_x = self.accept(w, p[x], q[x])
            if self.at_once:
                w_x = float(self.source.bernoulli(w_x, "accept"))
            found = self.visit(child, w_x, self.p[child + 1]) if w_x > 0 else None
            if found:
                return [child, *found[0]], found[1]
            p, w = self.refuse(w, p, q)
        return ([], self.emit(p)) if self.source.bernoulli(w, "accept") else None

    def order(self, node: int, p: Row) -> list[int]:
        """The children in the order they are tried."""
        return list(self.draft.children[node + 1])

    def law(self, node: int, tokens: list[int], j: int) -> Row:
        """The law that the j-th of these siblings came from."""
        drawn = self.draft.drawn
        if drawn == "fixed" or (drawn == "hybrid" and j > 0):
            return [float(y == tokens[j]) for y in range(len(self.p[0]))]
        q = self.q[node + 1]
        if drawn == "independent":
            return q
        left_out = tokens[:j] if drawn == "without_replacement" else tokens[1:]
        return normalised([0.0 if y in left_out else value for y, value in enumerate(q)])

    def accept(self, w: float, p_x: float, q_x: float) -> float:
        return min(1.0, w * p_x / q_x)

    def refuse(self, w: float, p: Row, q: Row) -> tuple[Row, float]:
        """p and w after a failure."""
        left = [max(0.0, w * a - b) for a, b in zip(p, q)]
        mass = sum(left)
        if mass == 0:
            return p, float(w == 1)
        return normalised(left), mass / (mass + (1 - w))

    def emit(self, p: Row) -> int:
        return self.source.categorical(torch.tensor(p, dtype=torch.float64), "emit")


def normalised(weights: Row) -> Row:
    total = sum(weights)
    return [value / total for value in weights]
