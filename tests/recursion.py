"""The subtree recursion over plain lists, slow and obvious: the oracle of the production rules, and the stock that
broken ones are cut from by overriding one part.
"""

import torch

from draftproof.types import Verification


class Recursion:
    """A verifier. `at_once` decides each child before what follows it is seen: the token rule."""

    def __init__(self, at_once=False):
        self.at_once = at_once

    def __call__(self, draft, p, source):
        self.draft, self.source = draft, source
        self.p = p.to_dense().tolist()
        self.q = [] if draft.probs is None else draft.probs.to_dense().tolist()
        path, token = self.visit(-1, 1.0, self.p[0])
        last = path[-1] if path else -1
        kind = "residual" if draft.children[last + 1] else "bonus"
        return Verification(tuple(path), token, kind, draft.num_nodes)

    def visit(self, node, w, p):
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

    def order(self, node, p):
        return list(self.draft.children[node + 1])

    def law(self, node, tokens, j):
        """The law that the j-th of these siblings came from."""
        drawn = self.draft.drawn
        if drawn == "fixed" or (drawn == "hybrid" and j > 0):
            return [float(y == tokens[j]) for y in range(len(self.p[0]))]
        q = self.q[node + 1]
        if drawn == "independent":
            return q
        left_out = tokens[:j] if drawn == "without_replacement" else tokens[1:]
        return normalised([0.0 if y in left_out else value for y, value in enumerate(q)])

    def accept(self, w, p_x, q_x):
        return min(1.0, w * p_x / q_x)

    def refuse(self, w, p, q):
        left = [max(0.0, w * a - b) for a, b in zip(p, q)]
        mass = sum(left)
        if mass == 0:
            return p, float(w == 1)
        return normalised(left), mass / (mass + (1 - w))

    def emit(self, p):
        return self.source.categorical(torch.tensor(p, dtype=torch.float64), "emit")


def normalised(weights):
    total = sum(weights)
    return [value / total for value in weights]
