"""Systems with a planted fault, for auditors to find."""

from __future__ import annotations

from draftproof.sampling import draw
from draftproof.types import Verification
from draftproof.verify import auto_rule


def leaking(share):
    """Now and then the first drafted token is emitted without being verified: y from (1 - share) p + share q."""

    def verify(draft, p, source):
        if draft.num_nodes and source.bernoulli(share, "leak"):
            return Verification((0,), draw(p, 1, source, "bonus"), "bonus", draft.num_nodes)
        return auto_rule(draft, p, source)

    return verify


class SharedNoise:
    """One stream for everything, restarted for every kind of draw: draft and residual see the same numbers."""

    def __init__(self, seed, index):
        from draftproof.sampling import SeededSource

        self._sources = {}
        self._made = lambda: SeededSource(seed, index)

    def _source(self, stream):
        if stream not in self._sources:
            self._sources[stream] = self._made()
        return self._sources[stream]

    def bernoulli(self, prob, stream):
        return self._source(stream).bernoulli(prob, "shared")

    def categorical(self, weights, stream):
        return self._source(stream).categorical(weights, "shared")
