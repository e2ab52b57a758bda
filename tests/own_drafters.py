"""Drafters as users write them: a bigram model, and the same with the faults that people make."""

from __future__ import annotations

import random

import torch

from draftproof import sampling
from draftproof.types import Draft


class Bigrams:
    """Draws chains from a table by last token; says truly how."""

    name = "bigrams"
    dtype = torch.float32

    def __init__(self, context):
        chance = torch.Generator().manual_seed(7)
        self.table = torch.rand(context.vocab_size, context.vocab_size, generator=chance, dtype=torch.float64) + 0.1

    def law(self, token, params):
        return sampling.probs(self.table[token].log()[None].to(self.dtype), params)

    def draw(self, law, generator):
        return sampling.draw(law, 0, generator, "draft")

    def propose(self, requests):
        return [self.chain(request) for request in requests]

    def chain(self, request):
        tokens, laws = [], []
        for _ in range(request.max_nodes):
            law = self.law((request.tokens[-1], *tokens)[-1], request.params)
            tokens.append(self.draw(law, request.generator))
            laws.append(self.stated(law, request.params))
        return self.made(tokens, laws)

    def stated(self, law, params):
        return law

    def made(self, tokens, laws):
        return Draft.chain(tokens, sampling.Probs.stack(laws), "independent") if tokens else Draft((), ())

    def release(self, sequence_id):
        pass


class Precise(Bigrams):
    """Sound, in float64."""

    dtype = torch.float64


class ForgetsTheTemperature(Bigrams):
    """Draws at temperature 0.5 and states the law at 1: a q that was never drawn from."""

    def draw(self, law, generator):
        sharp = law.to_dense(0) ** 2
        return generator.categorical(sharp, "draft")


class DropsUnlikely(Bigrams):
    """Stops before a drawn token that turns out unlikely."""

    def made(self, tokens, laws):
        length = next((i for i, (t, law) in enumerate(zip(tokens, laws)) if law.prob(0, t) < 0.3), len(tokens))
        return super().made(tokens[:length], laws[:length])


class Rounds(Bigrams):
    """States its laws in bfloat16."""

    def stated(self, law, params):
        values = law.to_dense(0).bfloat16().float()
        return sampling.Probs.dense((values / values.sum())[None])


class OwnChance(Bigrams):
    """Draws from Python's global generator."""

    def draw(self, law, generator):
        return random.choices(range(law.vocab_size), law.to_dense(0).tolist())[0]


class Argmax(Bigrams):
    """Always the most likely token, declared as chosen without randomness."""

    def draw(self, law, generator):
        return int(law.to_dense(0).argmax())

    def made(self, tokens, laws):
        return Draft.chain(tokens)


class ArgmaxAsDrawn(Argmax):
    """Always the most likely token, declared as drawn."""

    made = Bigrams.made


class Remembers(Bigrams):
    """Drafts shorter and shorter, whatever it is asked."""

    calls = 0

    def chain(self, request):
        self.calls += 1
        return super().chain(request) if self.calls % 3 else Draft((), ())


class TooLong(Bigrams):
    """Ignores max_nodes."""

    def chain(self, request):
        draft = super().chain(request)
        return Draft.chain([*draft.tokens, *draft.tokens])


class Crashes(Bigrams):
    """Has a bug."""

    def chain(self, request):
        return request.nodes


class NeedsRoom(Bigrams):
    """Never thought of max_nodes = 0."""

    def made(self, tokens, laws):
        return Draft.chain(tokens, sampling.Probs.stack(laws), "independent")
