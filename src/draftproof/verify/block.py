"""Block verification of chains (Sun et al., 2403.10444): whole prefixes are accepted, not single tokens.

Never shorter on average than the token rule, for the same inputs. With the ratios p/q along the path, the chance that
at least i tokens are accepted is a_i = min(1, a_(i-1) ratio_i), a walk reflected at 1. The law is that of the walk in
`tree` on a chain; here the a_i of all positions come at once, in log space, and positions are tested from the last one
down, so that vocabulary-sized work is done only at the positions whose test is reached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import OptionError
from ..interfaces import RandomSource
from ..sampling import draw
from ..types import Draft, Probs, Verification
from .proposal import Proposal
from .residual import residual
from .tree import token_rule


def block_rule(draft: Draft, p: Probs, source: RandomSource) -> Verification:
    """Accept the longest prefix whose test succeeds: a_K for the whole chain, S / (S + 1 - a_i) for i tokens.

    S is the mass of (a_i p - q)+ after token i, and the law of the token that follows is this, normalised. A chain
    chosen without randomness goes to the token rule: all its ratios are at most 1, so both rules are the same.

    Args:
        draft: a chain of N tokens; may be empty.
        p: N+1 rows; row 0 is the target's law after the root, row i+1 after node i.

    Raises:
        OptionError: the draft is a tree.
        DrafterError, ValueError: draft and laws do not fit each other (see `Proposal`).
    """
    if not draft.is_chain:
        raise OptionError("verifier block takes chains and the drafter proposed a tree: use auto, token or traversal")
    if draft.drawn == "fixed":
        return token_rule(draft, p, source)
    proposal, num = Proposal(draft, p), draft.num_nodes
    ratios = [p_x / proposal.q_x(node) for node, p_x in enumerate(proposal.p_x)]
    chances = [1.0, *path_chances(torch.tensor(ratios, dtype=torch.float64)).tolist()]
    if source.bernoulli(chances[num], "accept"):
        return Verification(tuple(range(num)), draw(p, num, source, "bonus"), "bonus", num)
    for i in reversed(range(num)):
        if chances[i] <= 0:
            continue
        law, mass = residual(p, proposal.q, i, chances[i])
        if chances[i] >= 1 or source.bernoulli(mass / (mass + (1 - chances[i])), "accept"):
            break
    return Verification(tuple(range(i)), draw(law, 0, source, "residual"), "residual", num)


def path_chances(ratios: Tensor) -> Tensor:
    """a_1..a_K `[..., K]`, P(at least i tokens accepted | the drafted path), from p/q along the path `[..., K]`.

    log a_i = L_i - max(0, L_1, ..., L_i) with L the running sum of the ratios' logarithms: nothing can underflow before
    the walk has recovered.
    """
    walk = ratios.log().cumsum(-1)
    return (walk - walk.cummax(-1).values.clamp(min=0)).exp()
