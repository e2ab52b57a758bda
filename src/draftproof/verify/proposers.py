"""Drafts drawn every way from a law of context, for enumeration and for test doubles."""

from __future__ import annotations

from ..interfaces import RandomSource
from ..sampling import draw
from ..types import EMPTY_DRAFT, Draft, Drawn, Probs
from .law import Prefix, PrefixLaw, Proposer, row_of
from .residual import without


def sampled_chain(law: PrefixLaw, num_tokens: int) -> Proposer:
    """Proposes chains drawn token by token from `law`, with their true q."""
    return tree_of(law, range(-1, num_tokens - 1), "independent")


def argmax_chain(law: PrefixLaw, num_tokens: int) -> Proposer:
    """Proposes the most likely token of `law` at each position, a point mass without probabilities."""
    return tree_of(law, range(-1, num_tokens - 1), "fixed")


def tree_of(law: PrefixLaw, parents: tuple[int, ...] | range, drawn: Drawn) -> Proposer:
    """Proposes trees of one shape, the siblings drawn together in the way named, by the production `sampling.draw`.

    Args:
        law: q of every context.
        parents: the shape, as in `Draft`. Children that the law cannot supply (its support is exhausted) are left out
            with all that hangs below them.
        drawn: as in `Draft`; fixed children are the most likely ones.
    """
    shape = Draft((0,) * len(parents), tuple(parents))

    def propose(prefix: Prefix, source: RandomSource) -> Draft:
        tokens: dict[int, int] = {}
        rows: dict[int, Probs] = {}
        paths: dict[int, Prefix] = {-1: ()}
        for parent in range(-1, shape.num_nodes):
            if parent not in paths:
                continue
            rows[parent] = row_of(law, prefix + paths[parent])
            siblings = shape.children[parent + 1]
            for node, token in zip(siblings, _siblings(rows[parent], len(siblings), drawn, source)):
                tokens[node], paths[node] = token, (*paths[parent], token)
        if not tokens:
            return EMPTY_DRAFT
        nodes = sorted(tokens)
        place = {-1: -1, **{node: i for i, node in enumerate(nodes)}}
        probs = None if drawn == "fixed" else Probs.stack([rows[node] for node in (-1, *nodes)])
        new_parents = tuple(place[shape.parents[node]] for node in nodes)
        return Draft(tuple(tokens[node] for node in nodes), new_parents, probs, drawn)

    return propose


def _siblings(q: Probs, num: int, drawn: Drawn, source: RandomSource) -> list[int]:
    """Up to `num` children's tokens from one row of q, in drafting order."""
    if not num:
        return []
    if drawn == "independent":
        return [draw(q, 0, source, "draft") for _ in range(num)]
    num = min(num, int((q.values > 0).sum()))
    if drawn == "without_replacement":
        tokens: list[int] = []
        for _ in range(num):
            tokens.append(draw(without(q, 0, tokens), 0, source, "draft"))
        return tokens
    best = q.to_dense(0).sort(descending=True, stable=True).indices.tolist()
    if drawn == "fixed":
        return best[:num]
    return [draw(without(q, 0, best[: num - 1]), 0, source, "draft"), *best[: num - 1]]
