"""A recommendation in the words of those who run it: our own TOML, vLLM's and SGLang's options, an exchange format.

Keys are those of vLLM 0.32 (`speculative_config`), of SGLang's server arguments and of `speculation_profile.json`
(schema 1.0 of Model-Optimizer's specdec_bench). A drafter that an engine does not have gives None there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .predict import Texts

_NGRAM = (2, 5)  # the lengths our look-up takes unless told otherwise


def toml(options: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Options as `--config` reads them, under their long names; None is left out."""
    lines = [f"# {comment}" for comment in comments]
    lines += [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in options.items() if value is not None
    ]
    return "\n".join(lines) + "\n"


def vllm(drafter: str, max_draft: int, by_batch: Mapping[int, int] | None = None) -> dict[str, Any] | None:
    """vLLM's `speculative_config`.

    Args:
        by_batch: the best number of tokens at each batch size; where it changes, vLLM is told so.
    """
    name, _, argument = drafter.partition(":")
    config: dict[str, Any] = {"num_speculative_tokens": max_draft}
    if name == "ngram":
        shortest, longest = _ngram(argument)
        config |= {"method": "ngram", "prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    elif name == "suffix":
        config |= {"method": "suffix"}
    elif name == "model":
        config |= {"method": "draft_model", "model": argument}
    elif name == "eagle":
        config |= {"method": "eagle3", "model": argument}
    elif name == "medusa":
        config |= {"method": "medusa", "model": argument}
    else:
        return None
    if by_batch and len(set(by_batch.values())) > 1:
        config["num_speculative_tokens_per_batch_size"] = ranges(by_batch)
    return config


def ranges(by_batch: Mapping[int, int]) -> list[list[int]]:
    """Numbers by batch size as [first, last, number], from 1 on; between two sizes the smaller one's number holds."""
    sizes = sorted(by_batch)
    found: list[list[int]] = []
    for size, following in zip(sizes, [*sizes[1:], sizes[-1] + 1]):
        first = 1 if not found else size
        if found and found[-1][2] == by_batch[size]:
            found[-1][1] = following - 1
        else:
            found.append([first, following - 1, by_batch[size]])
    return found


def sglang(drafter: str, max_draft: int) -> list[str] | None:
    """SGLang's server arguments."""
    name, _, argument = drafter.partition(":")
    if name in ("ngram", "suffix"):
        return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(max_draft + 1)]
    if name not in ("model", "eagle"):
        return None
    algorithm = "STANDALONE" if name == "model" else "EAGLE3"
    chain = ["--speculative-num-steps", str(max_draft), "--speculative-eagle-topk", "1"]
    return [
        *("--speculative-algorithm", algorithm, "--speculative-draft-model-path", argument),
        *chain,
        *("--speculative-num-draft-tokens", str(max_draft + 1)),
    ]


def speculation_profile(texts: Texts, max_draft: int) -> dict[str, Any]:
    """Acceptance for other planners: rates by position, and the mean length with the bonus token."""
    sums = texts.sums()
    rounds, accepted = sums[0], sums[3 : 3 + min(max_draft, texts.depth)]
    marginal = [count / rounds if rounds else 0.0 for count in accepted]
    before = [rounds, *accepted]
    return {
        "schema_version": "1.0",
        "conditional_accept_rates": [own / other if other else 0.0 for own, other in zip(accepted, before)],
        "marginal_accept_rates": marginal,
        "mean_accept_length": 1 + sum(marginal),
        "accept_length_model": "chain_analytic",
    }


def _ngram(argument: str) -> tuple[int, int]:
    if not argument:
        return _NGRAM
    shortest, _, longest = argument.rpartition("-")
    return int(shortest or min(_NGRAM[0], int(longest))), int(longest)
