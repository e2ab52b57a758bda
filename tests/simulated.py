"""Many texts at once of a system with a known law: tables by last token, and a leak of draft tokens if wanted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Tables:
    """p and q `[V, V]` by last token; every row of q is at the same total variation from p's."""

    p: np.ndarray
    q: np.ndarray


def tables(vocab_size=8, tv=0.3, seed=0):
    chance = np.random.default_rng(seed)
    p = chance.dirichlet(np.ones(vocab_size), vocab_size)
    q = p.copy()
    for row in range(vocab_size):
        distance = 0.0
        while distance <= tv:
            far = chance.dirichlet(np.full(vocab_size, 0.3))
            distance = np.abs(far - p[row]).sum() / 2
        q[row] += (far - p[row]) * tv / distance
    return Tables(p, q)


@dataclass
class Texts:
    """What an auditor reads from texts `[R, T]`: was each token one the draft prefers, the target's chance of that, and
    its transform.
    """

    tokens: np.ndarray
    hits: np.ndarray
    masses: np.ndarray
    u: np.ndarray


def texts(made, num_texts, length, leak=0.0, seed=0, noise=None):
    """`num_texts` texts from (1 - leak) p + leak q. noise: the uniforms that pick tokens, if not fresh ones."""
    chance = np.random.default_rng(seed)
    law = (1 - leak) * made.p + leak * made.q
    liked = made.q > made.p
    rank = np.argsort(np.argsort(made.p / made.q, axis=1), axis=1)  # by falling preference of the draft
    tokens = np.zeros((num_texts, length), dtype=int)
    hits, masses, u = (np.zeros((num_texts, length)) for _ in range(3))
    last = chance.integers(0, len(law), num_texts)
    for t in range(length):
        uniforms = chance.random(num_texts) if noise is None else noise[:, t]
        row = law[last].cumsum(1)
        y = np.minimum((uniforms[:, None] >= row).sum(1), len(law) - 1)
        tokens[:, t], hits[:, t] = y, liked[last, y]
        masses[:, t] = (made.p[last] * liked[last]).sum(1)
        below = (made.p[last] * (rank[last] < rank[last, y][:, None])).sum(1)
        u[:, t] = below + chance.random(num_texts) * made.p[last, y]
        last = y
    return Texts(tokens, hits.astype(bool), masses, u)
