"""Every way to draft on one pair and the same questions: acceptance length and tokens per second, at T = 0 and T = 1.

    python benchmarks/drafters.py QUESTIONS.jsonl [--prompts 40] [--tokens 128] [--weights auto] [--layers 14]

QUESTIONS is Spec-Bench's question.jsonl or a part of it. One run: every prompt is answered by every drafter before the
next prompt is, the order turned by one place from prompt to prompt. Trees have as many nodes as the long chain. Prints
one JSON line per drafter and temperature; tok_s is of decoding alone (neither model's reading of the prompt counts)
over all prompts, speedup its ratio to drafter none in this run. Models: Qwen2.5-Coder 1.5B (target) and 0.5B (drafter),
fetched on first use (1.6 GB).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pair import DRAFTER, TARGET, chats, questions, report

import draftproof as dp
from draftproof.drafters import cascade, catalog
from draftproof.drafters.draft_model import ModelDrafter
from draftproof.drafters.growth import Costs, TreeOption
from draftproof.interfaces import Drafter


@dataclass
class Entry:
    """One drafter at one temperature, with sums over the prompts answered so far."""

    drafter: str
    engine: dp.Engine
    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    seconds: float = 0.0
    texts: list[list[int]] = field(default_factory=list)

    def answer(self, prompt: list[int], params: dp.SamplingParams) -> None:
        """The draft model has read the prompt before, as the target's reading of it is not counted either."""
        lm = getattr(self.engine.drafter, "lm", None)
        if lm is not None:
            row = lm.open(prompt[:-1])
            lm.prefill(row, prompt[:-1])
            lm.free(row)
        result = self.engine.generate([prompt], params)[0]
        stats = result.stats
        self.num_tokens += stats.num_tokens
        self.num_rounds += stats.num_rounds
        self.num_drafted += stats.num_drafted
        self.num_accepted += stats.num_accepted
        self.seconds += stats.total_seconds - stats.prefill_seconds
        self.texts.append(result.token_ids)

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds

    def report(self, temperature: float, none: Entry, config: dict[str, Any]) -> None:
        report(
            drafter=self.drafter,
            temperature=temperature,
            weights=config["weights"],
            bitwise=config["bitwise"],
            texts=len(self.texts),
            tokens=self.num_tokens,
            acceptance_length=round(self.num_tokens / self.num_rounds, 3),
            drafted=self.num_drafted,
            accepted=self.num_accepted,
            tok_s=round(self.speed, 2),
            speedup=round(self.speed / none.speed, 3),
            differing=sum(a != b for a, b in zip(self.texts, none.texts)) if temperature == 0 else None,
        )


def entries(
    plain: dp.Engine, model: ModelDrafter, reduced: ModelDrafter, arguments: argparse.Namespace, sampled: bool
) -> list[Entry]:
    """Engines over one target; none first. Chains of K = 4 and 8 (8 where no K is named), trees of 8 nodes; the
    cheaper draft model has a reduced vocabulary.
    """
    context = plain.parts.context
    costs = None if arguments.costs is None else Costs.read(arguments.costs)
    drafters: dict[str, tuple[Drafter | str, int, str]] = {
        "none": ("none", 0, "auto"),
        "ngram": ("ngram", 8, "auto"),
        "suffix": ("suffix", 8, "auto"),
        "suffix:tree": ("suffix:tree", 16, "auto"),
        f"self:{arguments.layers}": (f"self:{arguments.layers}", 4, "auto"),
        "suffix,model": (cascade.build([catalog.build("suffix", context), model], context), 8, "auto"),
        "suffix,reduced model": (cascade.build([catalog.build("suffix", context), reduced], context), 8, "auto"),
        "suffix,reduced model K=4": (cascade.build([catalog.build("suffix", context), reduced], context), 4, "auto"),
        "reduced model chain K=8": (reduced, 8, "auto"),
        "model tree dynamic": (model.shaped(TreeOption("dynamic")), 8, "auto"),
        "model tree optimal": (model.shaped(TreeOption("optimal"), costs), 8, "auto"),
    }
    for size in (4, 8):
        for rule in ("token", "block") if sampled else ("auto",):
            drafters[f"model chain K={size} {rule}"] = (model, size, rule)
    if arguments.only:
        drafters = {name: entry for name, entry in drafters.items() if name == "none" or name in arguments.only}
    made = [
        Entry(n, dp.load(plain, d, max_draft=size, verifier=rule, adaptive=False))
        for n, (d, size, rule) in drafters.items()
    ]
    best = "suffix,reduced model"
    if best in drafters:
        made.append(Entry(f"{best} adaptive", dp.load(plain, drafters[best][0], max_draft=8)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--drafter", default=DRAFTER)
    parser.add_argument("--draft-vocab", type=int, default=32768, help="of the reduced draft model")
    parser.add_argument("--layers", type=int, default=14, help="N of self:N")
    parser.add_argument("--only", nargs="+", help="these drafters and none")
    parser.add_argument(
        "--costs", type=Path, help="what bench --costs --json wrote: optimal trees of the size that pays"
    )
    arguments = parser.parse_args()
    rows = questions(arguments.questions, arguments.prompts // 6 or 1, arguments.prompts, shortest=True)
    plain = dp.load(arguments.target, dtype="bfloat16", weights=arguments.weights, max_batch=1)
    model = dp.load(plain, arguments.drafter).drafter
    reduced = dp.load(plain, arguments.drafter, draft_vocab=arguments.draft_vocab).drafter
    runs = {temperature: entries(plain, model, reduced, arguments, temperature > 0) for temperature in (0.0, 1.0)}
    prompts = [plain.codec.encode_chat(chat) for chat in chats(rows)]
    for found in runs.values():
        for entry in found:
            entry.engine.generate(prompts[:1], dp.SamplingParams(temperature=0, max_new_tokens=8))  # warm-up
    for number, prompt in enumerate(prompts):
        for temperature, found in runs.items():
            params = dp.SamplingParams(temperature=temperature, max_new_tokens=arguments.tokens, seed=number)
            first = number % len(found)
            for entry in (*found[first:], *found[:first]):
                entry.answer(prompt, params)
    for temperature, found in runs.items():
        for entry in found:
            entry.report(temperature, found[0], plain.config)


if __name__ == "__main__":
    main()
