"""Three prompts - code, prose, edit - greedy, 128 tokens, batch 1: plain and speculative, in both target formats.

    python benchmarks/three_prompts.py PROMPTS.json [--weights auto int8] [--repeats 5] [--tasks prose]

PROMPTS is a JSON object of name to text. Drafters take turns with drafter none, in an order that is turned round from
repeat to repeat; medians over the repeats, of tokens/s and of the ratio to drafter none in the same repeat (the
machine's speed drifts). One JSON line per cell. Models: Qwen2.5-Coder 1.5B and 0.5B.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import draftproof as dp

TARGET, DRAFTER = "qwen2.5-coder-1.5b", "model:qwen2.5-coder-0.5b"


def drafters(plain: dp.Engine, vocab: int) -> dict[str, dp.Engine]:
    """Name to engine; all share the target."""
    found = {"none": plain}
    for name, max_draft in (("ngram", 8), ("suffix", 24)):
        found[f"{name} K={max_draft}"] = dp.load(plain, name, max_draft=max_draft)
    for name, size in (("model", None), (f"model, {vocab} tokens", vocab)):
        model = dp.load(plain, DRAFTER, draft_vocab=size)
        found[f"{name} K=8"] = dp.load(plain, model.drafter, max_draft=8)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--weights", nargs="+", default=["auto", "int8"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--tasks", nargs="+", help="these prompts only")
    parser.add_argument("--draft-vocab", type=int, default=32768)
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))
    params = dp.SamplingParams(temperature=0, max_new_tokens=arguments.tokens)
    warm_up = dp.SamplingParams(temperature=0, max_new_tokens=16)
    for weights in arguments.weights:
        plain = dp.load(TARGET, dtype="bfloat16", weights=weights, max_batch=1)
        engines = drafters(plain, arguments.draft_vocab)
        for task, text in ((t, prompts[t]) for t in arguments.tasks or prompts):
            chat = [[{"role": "user", "content": text}]]
            speeds: dict[str, list[float]] = {name: [] for name in engines}
            results = {}
            for repeat in range(arguments.repeats + 1):
                for name, engine in sorted(engines.items(), reverse=bool(repeat % 2)):
                    engine.target.forget()
                    result = engine.generate(chat, params if repeat else warm_up)[0]
                    stats = result.stats
                    if repeat:
                        speeds[name].append(stats.num_tokens / (stats.total_seconds - stats.prefill_seconds))
                        results[name] = result
            for name, result in results.items():
                speed = statistics.median(speeds[name])
                cell = {
                    "weights": plain.config["weights"],
                    "bitwise": plain.config["bitwise"],
                    "task": task,
                    "drafter": name,
                    "tok_s": round(speed, 2),
                    "speedup": round(statistics.median(a / b for a, b in zip(speeds[name], speeds["none"])), 3),
                    "acceptance_length": round(result.stats.acceptance_length, 2),
                    "identical": result.token_ids == results["none"].token_ids,
                }
                print(json.dumps(cell), flush=True)
        del plain, engines


if __name__ == "__main__":
    main()
