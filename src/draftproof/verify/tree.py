"""The one verification core: every exact rule for chains and trees is this walk.

A visit (v, w, p) of a node keeps a contract: given that v was drafted, it succeeds with probability exactly w, and
given success the next token follows p, the law still owed there, and the rest the target. Children are tried in
drafting order. Child x, drawn from the known law q, is itself visited with w_x = min(1, w p(x) / q(x)); if it fails,

    S = sum of (w p - q)+,    p <- (w p - q)+ / S,    w <- S / (S + 1 - w),

and the next child is tried; when none is left the visit succeeds with probability w and emits a token from p. The root
is visited with w = 1 and p the target's law, so what comes out follows the target. Why: success through x contributes
min(q(y), w p(y)) to first token y, failure has mass 1 - w + S, and the two add up to w p(y).

The cases: on a chain this is block verification (Sun et al., 2403.10444), on a tree traversal verification
(2505.12398). Deciding each child at once, by a test with probability w_x, makes every w 1 and gives the token rule: on
a chain speculative sampling (Leviathan et al., 2211.17192; Chen et al., 2302.01318), on a tree recursive rejection
(SpecInfer for independent siblings, Jeon et al., 2402.14160, without replacement). A child chosen without randomness
is the law q with all mass on it, and greedy decoding the law p with all mass on one token. A hybrid node lists its
drawn child first, because the law it came from leaves the fixed ones out: so p is kept whole on those.
"""

from __future__ import annotations

from ..interfaces import RandomSource
from ..sampling import draw
from ..types import Draft, Probs, Verification
from .proposal import Proposal
from .residual import residual, without


def token_rule(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """Accept or refuse each drafted token by itself, from the root down; exact for every draft.

    Args:
        draft: N nodes; may be empty, which is plain decoding.
        p: N+1 rows; row 0 is the target's law after the root, row i+1 after node i.

    Raises:
        DrafterError, ValueError: draft and laws do not fit each other (see `Proposal`).
    """
    return _walk(Proposal(draft, p), source, at_once=True)


def traversal_rule(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """Accept whole paths, leaves first; exact for every draft.

    On a chain never shorter on average than the token rule (2403.10444); on no tree enumerated in the tests either.

    Arguments and errors as for `token_rule`.
    """
    return _walk(Proposal(draft, p), source, at_once=False)


def _walk(proposal: Proposal, source: RandomSource, at_once: bool) -> Verification:
    """The visits still open are the path. at_once: decide each child before what follows it is seen."""
    path = [_Visit(proposal, -1, 1.0)]
    while True:
        visit = path[-1]
        if visit.child is None:
            if visit.chance >= 1 or source.bernoulli(visit.chance, "accept"):
                break
            path.pop()
            path[-1].refuse()
            continue
        chance = visit.offer()
        if at_once:
            chance = float(source.bernoulli(chance, "accept"))
        if chance > 0:
            path.append(_Visit(proposal, visit.child, chance))
        else:
            visit.refuse()
    nodes = tuple(open_visit.node for open_visit in path[1:])
    last = path[-1]
    stream = "residual" if last.children else "bonus"
    return Verification(nodes, draw(last.left(), 0, source, stream), stream, proposal.draft.num_nodes)  # type: ignore[arg-type]


class _Visit:
    """One node while its children are tried.

    Fields:
        chance: w, with which the visit is to succeed.
        law: p as one row, after the drawn children refused so far; None while it is the target's own row.
        removed: the tokens of fixed children refused after that, still in `law`; `mass` is what `law` has without.
    """

    def __init__(self, proposal: Proposal, node: int, chance: float):
        self.proposal, self.node, self.chance = proposal, node, chance
        self.children = proposal.draft.children[node + 1]
        self.law: Probs | None = None
        self.removed: list[int] = []
        self.mass = 1.0
        self._num_tried = 0

    @property
    def child(self) -> int | None:
        """The child to be tried next; None when none is left or none could succeed."""
        if self._num_tried == len(self.children) or self.chance <= 0:
            return None
        return self.children[self._num_tried]

    def offer(self) -> float:
        """w_x of the next child."""
        child = self.children[self._num_tried]
        return min(1.0, self.chance * self._prob(child) / self.proposal.q_x(child))

    def refuse(self) -> None:
        """Go on without the next child, which has failed."""
        child = self.children[self._num_tried]
        if self.proposal.is_point_mass(child):
            share = self._prob(child)
            self.removed.append(self.proposal.draft.tokens[child])
            self.mass -= share * self.mass
            left = self.chance * (1 - share)
        else:
            self.law, left = residual(self._law(), self.proposal.law(child), 0, self.chance)
        if self.chance < 1:  # else it stays 1, also where rounding has left nothing
            self.chance = left / (left + (1 - self.chance))
        self._num_tried += 1

    def left(self) -> Probs:
        """p after all refusals, as one row."""
        return without(self._law(), 0, self.removed)

    def _law(self) -> Probs:
        return self.proposal.p.row(self.node + 1) if self.law is None else self.law

    def _prob(self, child: int) -> float:
        """p(x) of a child, from the values fetched at the start as long as they hold."""
        token = self.proposal.draft.tokens[child]
        if token in self.removed or self.mass <= 0:
            return 0.0
        value = self.proposal.p_x[child] if self.law is None else self.law.prob(0, token)
        return min(1.0, value / self.mass)
