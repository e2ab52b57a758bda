"""The same-family pair on real questions: is greedy text identical, and is acceptance what theory says?

    python benchmarks/pair.py identity QUESTIONS.jsonl    # float32: model: and ngram against none, batch 1 and 4
    python benchmarks/pair.py acceptance QUESTIONS.jsonl  # T = 1, top-p 0.9: accepted share against sum min(p, q)
    python benchmarks/pair.py overhead QUESTIONS.jsonl    # share of a round outside the model passes
    python benchmarks/pair.py bitexact QUESTIONS.jsonl    # bf16 and int8: every drafter, K and batch against none
    python benchmarks/pair.py verifiers QUESTIONS.jsonl   # T = 1: acceptance length of block beside token verification
    python benchmarks/pair.py int8 QUESTIONS.jsonl        # how far the int8 target is from the bf16 one

QUESTIONS is Spec-Bench's question.jsonl or a part of it. Prints one JSON line per run. Models: Qwen2.5-Coder 1.5B
(target) and 0.5B (drafter), fetched on first use (1.6 GB).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import draftproof as dp
from draftproof.bench.intervals import cluster_interval
from draftproof.interfaces import RandomSource
from draftproof.types import Draft, Probs, Verification
from draftproof.verify import analysis, token_rule

TARGET, DRAFTER = "qwen2.5-coder-1.5b", "model:qwen2.5-coder-0.5b"
GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag")  # the rest are MT-bench's categories


def questions(path: Path, per_group: int = 3, total: int = 20, shortest: bool = False) -> list[dict[str, Any]]:
    """The first (or shortest) `per_group` of each of Spec-Bench's five tasks, then MT-bench questions up to `total`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["category"] if row["category"] in GROUPS else "mt_bench"].append(row)
    if shortest:
        for group in groups.values():
            group.sort(key=lambda row: len(row["turns"][0]))
    chosen = [row for name in GROUPS for row in groups[name][:per_group]]
    step = max(1, len(groups["mt_bench"]) // (total - len(chosen)))
    return (chosen + groups["mt_bench"][::step])[:total]


def chats(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": row["turns"][0]}] for row in rows]


def report(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def identity(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Greedy texts of every drafter at batch 1 and 4 against drafter none at batch 1."""
    plain = dp.load(TARGET, dtype=dtype, max_batch=len(rows))  # a row each, so that a prompt is read once for all runs
    params = dp.SamplingParams(temperature=0, max_new_tokens=num_tokens)
    expected: list[list[int]] = []
    for name, max_draft in (("none", 0), (DRAFTER, 4), ("ngram", 4)):
        engine = dp.load(plain, name, max_draft=max_draft, adaptive=False)
        for batch in (1, 4):
            started = time.perf_counter()
            results = []
            prompts = chats(rows)
            for i in range(0, len(prompts), batch):
                results += engine.generate(prompts[i : i + batch], params)
            texts = [result.token_ids for result in results]
            expected = expected or texts
            differing = [row["question_id"] for row, a, b in zip(rows, texts, expected) if a != b]
            rounds = sum(result.stats.num_rounds for result in results)
            report(
                drafter=name,
                max_draft=max_draft,
                batch=batch,
                dtype=dtype,
                texts=len(texts),
                differing=differing,
                tokens=sum(map(len, texts)),
                acceptance_length=round(sum(map(len, texts)) / rounds, 3),
                seconds=round(time.perf_counter() - started, 1),
            )


class Recorder:
    """The token rule, noting for every tested position whether it was accepted and what min(p, q) sums to."""

    def __init__(self) -> None:
        self.accepted: list[bool] = []
        self.overlap: list[float] = []

    def __call__(self, draft: Draft, p: Probs, source: RandomSource) -> Verification:
        verification = token_rule(draft, p, source)
        tested = min(len(verification.path) + 1, draft.num_nodes)
        if tested and draft.probs is not None:
            for row in range(tested):
                one, other = (Probs.dense(law.to_dense(row)[None]) for law in (p, draft.probs))
                self.overlap.append(float(analysis.acceptance_rate(one, other)))
            self.accepted += [row < len(verification.path) for row in range(tested)]
        return verification


def acceptance(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Accepted share of tested positions against the mean of sum(min(p, q)) over the same positions."""
    engine = dp.load(TARGET, DRAFTER, dtype=dtype, max_draft=4, adaptive=False)
    recorder = Recorder()
    engine.verify = recorder
    for i, prompt in enumerate(chats(rows)):
        engine.generate([prompt], dp.SamplingParams(temperature=1, top_p=0.9, max_new_tokens=num_tokens, seed=i))
    n = len(recorder.accepted)
    share, theory = sum(recorder.accepted) / n, statistics.fmean(recorder.overlap)
    error = (sum(a * (1 - a) for a in recorder.overlap) / n**2) ** 0.5
    report(
        dtype=dtype,
        positions=n,
        accepted=round(share, 4),
        mean_overlap=round(theory, 4),
        difference=round(share - theory, 4),
        standard_error=round(error, 4),
    )


class Timed:
    """A forward that adds up the time spent in its passes."""

    def __init__(self, forward: Any):
        self.forward, self.seconds = forward, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        output = self.forward(*arguments, **options)
        self.seconds += time.perf_counter() - started
        return output


def overhead(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Everything but the passes of target and draft model, as a share of the decoding time; medians over prompts."""
    plain = dp.load(TARGET, dtype=dtype, max_batch=1)
    plain.target.forward = Timed(plain.target.forward)
    for name, max_draft in (("none", 0), ("ngram", 4), (DRAFTER, 4)):
        engine = dp.load(plain, name, max_draft=max_draft, adaptive=False)
        timers = [plain.target.forward]
        if name == DRAFTER:
            engine.drafter.lm.forward = Timed(engine.drafter.lm.forward)
            timers.append(engine.drafter.lm.forward)
        for settings in ({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9, "seed": 1}):
            shares, rounds = [], []
            for prompt in chats(rows[:6]):
                engine.target.forget()
                params = dp.SamplingParams(max_new_tokens=num_tokens, **settings)
                before = sum(timer.seconds for timer in timers)
                stats = engine.generate([prompt], params)[0].stats
                passes = sum(timer.seconds for timer in timers) - before
                decode = stats.total_seconds - stats.prefill_seconds
                shares.append((stats.total_seconds - passes) / decode)
                rounds.append(1000 * decode / stats.num_rounds)
            report(
                drafter=name,
                dtype=dtype,
                **settings,
                overhead_percent=round(100 * statistics.median(shares), 2),
                round_ms=round(statistics.median(rounds), 1),
            )


def bitexact(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Differing texts over 40 prompts, for both exact formats, drafters ngram and model:, K 1, 4, 8, batch 1 and 4."""
    params = dp.SamplingParams(temperature=0, max_new_tokens=num_tokens)
    prompts = chats(rows)
    for weights in ("packed", "int8"):
        plain = dp.load(TARGET, dtype="bfloat16", weights=weights, bitwise=True, max_batch=len(rows))
        expected: list[list[int]] = []
        drafters = {"none": plain.drafter, DRAFTER: dp.load(plain, DRAFTER).drafter, "ngram": "ngram"}
        runs = [("none", 0), *((name, k) for name in (DRAFTER, "ngram") for k in (8, 4, 1))]
        for name, max_draft in runs:
            engine = dp.load(plain, drafters[name], max_draft=max_draft, adaptive=False)
            for batch in (1, 4):
                started = time.perf_counter()
                results = []
                for i in range(0, len(prompts), batch):
                    results += engine.generate(prompts[i : i + batch], params)
                texts = [result.token_ids for result in results]
                expected = expected or texts
                report(
                    weights=weights,
                    drafter=name,
                    max_draft=max_draft,
                    batch=batch,
                    texts=len(texts),
                    differing=sum(a != b for a, b in zip(texts, expected)),
                    acceptance_length=round(sum(map(len, texts)) / sum(r.stats.num_rounds for r in results), 2),
                    seconds=round(time.perf_counter() - started, 1),
                )
        del plain, engine


def verifiers(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Acceptance lengths at temperature 1 by token and by block, and their ratio with its interval over prompts."""
    plain = dp.load(TARGET, dtype=dtype, max_batch=8)
    drafter = dp.load(plain, DRAFTER).drafter
    prompts = chats(rows)
    for max_draft in (4, 8):
        sums = [[0.0] * 4 for _ in prompts]  # tokens and rounds by token, tokens and rounds by block
        for seed in (0, 1):
            for place, rule in ((0, "token"), (2, "block")):
                engine = dp.load(plain, drafter, max_draft=max_draft, adaptive=False, verifier=rule)
                first = 1000 * (2 * seed + place)
                params = [
                    dp.SamplingParams(temperature=1, max_new_tokens=num_tokens, seed=first + i)
                    for i in range(len(prompts))
                ]
                for i in range(0, len(prompts), 8):
                    for own, result in zip(sums[i : i + 8], engine.generate(prompts[i : i + 8], params[i : i + 8])):
                        own[place] += result.stats.num_tokens
                        own[place + 1] += result.stats.num_rounds
        whole = [sum(column) for column in zip(*sums)]
        interval = cluster_interval(sums, lambda s: s[:, 2] / s[:, 3] / (s[:, 0] / s[:, 1]))
        assert interval is not None
        report(
            max_draft=max_draft,
            tokens=[whole[0], whole[2]],
            token_length=round(whole[0] / whole[1], 3),
            block_length=round(whole[2] / whole[3], 3),
            ratio=round(whole[2] / whole[3] / (whole[0] / whole[1]), 4),
            interval=[round(value, 4) for value in interval],
        )


def int8(rows: list[dict[str, Any]], dtype: str, num_tokens: int) -> None:
    """Mean KL(bf16 || int8) and top-1 agreement along the bf16 target's own greedy answers."""
    import torch

    from draftproof.models.masks import Block

    params = dp.SamplingParams(temperature=0, max_new_tokens=num_tokens)
    engine = dp.load(TARGET, dtype="bfloat16", max_batch=1)
    texts, laws = [], []
    for prompt, result in zip(chats(rows), (engine.generate([p], params)[0] for p in chats(rows))):
        texts.append((engine.codec.encode_chat(prompt), result.token_ids))
    for weights in ("packed", "int8"):
        engine = dp.load(TARGET, dtype="bfloat16", weights=weights, max_batch=1)
        row = engine.target.open(())
        for i, (prompt, answer) in enumerate(texts):
            engine.target.prefill(row, prompt[:-1])
            logits = engine.target.forward([Block(row, len(prompt) - 1, [prompt[-1], *answer[:-1]])], "all").logits
            law = torch.log_softmax(logits.float(), -1)
            if weights == "packed":
                laws.append(law.half())
            else:
                p = laws[i].float()
                laws[i] = ((p.exp() * (p - law)).sum(-1), p.argmax(-1) == law.argmax(-1))
    divergence, same = (torch.cat([entry[part].float() for entry in laws]) for part in (0, 1))
    report(positions=len(same), mean_kl=round(float(divergence.mean()), 5), top1_agreement=round(float(same.mean()), 4))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("identity", "acceptance", "overhead", "bitexact", "verifiers", "int8"))
    parser.add_argument("questions", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    run = {
        "identity": identity,
        "acceptance": acceptance,
        "overhead": overhead,
        "bitexact": bitexact,
        "verifiers": verifiers,
        "int8": int8,
    }[arguments.what]
    whole = arguments.what in ("bitexact", "verifiers")
    size: dict[str, Any] = {"per_group": 6, "total": 40, "shortest": True} if whole else {}
    run(questions(arguments.questions, **size), arguments.dtype, arguments.tokens)
