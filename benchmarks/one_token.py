"""One token after a context, again and again: transformers' own forward beside ours, turn by turn.

    python benchmarks/one_token.py [--model smollm2-135m] [--dtype bfloat16] [--context 256] [--repeats 25]

The cache holds the context; each turn runs one more token through the whole model with transformers (its cache is
cut back afterwards) and with ours. Medians in ms, and the median of the ratio within a turn. Also how long loading took
and the most memory that was resident. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import draftproof as dp
from draftproof.models.masks import Block
from draftproof.models.sources import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()

    started = time.perf_counter()
    engine = dp.load(arguments.model, dtype=arguments.dtype, max_batch=1)
    loading = time.perf_counter() - started
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    theirs = AutoModelForCausalLM.from_pretrained(resolve(arguments.model), dtype=getattr(torch, arguments.dtype))

    text = torch.randint(0, 1000, (arguments.context + 1,), generator=torch.Generator().manual_seed(0)).tolist()
    target = engine.target
    row = target.open(())
    target.prefill(row, text[:-1])
    cache = DynamicCache(config=theirs.config)
    turns: list[tuple[float, float]] = []
    with torch.inference_mode():
        theirs(input_ids=torch.tensor([text[:-1]]), past_key_values=cache, logits_to_keep=1)
        for _ in range(arguments.repeats + 3):
            started = time.perf_counter()
            target.forward([Block(row, arguments.context, text[-1:])], "all")
            between = time.perf_counter()
            theirs(input_ids=torch.tensor([text[-1:]]), past_key_values=cache)
            turns.append((between - started, time.perf_counter() - between))
            cache.crop(-1)
    turns = turns[3:]
    ours, other = (statistics.median(side) * 1000 for side in zip(*turns))
    ratio = statistics.median(a / b for a, b in turns)
    found = {"model": arguments.model, "dtype": arguments.dtype, "context": arguments.context, "repeats": len(turns)}
    found |= {"ours_ms": round(ours, 2), "transformers_ms": round(other, 2), "ratio": round(ratio, 3)}
    print(json.dumps(found | {"loading_s": round(loading, 1), "peak_after_loading_gib": round(resident, 2)}))


if __name__ == "__main__":
    main()
