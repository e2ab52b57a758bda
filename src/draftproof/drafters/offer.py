"""What a drafter expects of its own draft, and how far a repeated context can be trusted.

A drafter that can say so has a method `offers(requests) -> list[Offer]` beside `propose`; it must be cheap, and the
drafts must be fixed, because a cascade asks for them and then may use another drafter's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Draft


@dataclass(frozen=True)
class Offer:
    """A draft, and how many of its tokens the drafter expects to be accepted (the sum of path probabilities)."""

    draft: Draft
    expected: float


def discount(size: int) -> float:
    """What to take off the count of a token that followed a context of `size` tokens, before dividing by all counts.

    Absolute discounting (Ney, Essen and Kneser, 1994), where the discount falls with the length of the context: text
    that has agreed for long goes on agreeing. The constants fit code, prose and documentation: a context of 1, 5, 10
    or 20 tokens seen once was followed by the same token 20, 60, 80 and 93 times in a hundred.
    """
    return 2 / (size + 1.5)
