"""The model card of a trained drafter: what it is for, what was measured, how it was made."""

from __future__ import annotations

from typing import Any

from .settings import Settings

_WHAT = {
    "distill": "a draft model distilled from",
    "medusa": "Medusa heads for",
    "eagle": "an EAGLE head for",
}


def card(manifest: dict[str, Any], settings: Settings, name: str) -> str:
    """Markdown."""
    measured, target = manifest["measured"], manifest["target"]["target"]
    greedy, sampled = measured["greedy"], measured["sampled"]
    lines = [
        f"# {name}: {_WHAT[manifest['kind']]} {target}",
        "",
        "```bash",
        f'draftproof generate "..." --target {target} --drafter {manifest["drafter"]}:{name}',
        "```",
        "",
        "Drafts change how fast the target writes, never what it writes.",
        "",
        "## Measured on held-out text",
        "",
        f"{measured['num_tokens']:,} answer tokens of texts it was not trained on, rounds of up to {settings.depth} "
        "drafted tokens, by teacher forcing. Plain decoding has an acceptance length of 1.",
        "",
        "| | acceptance length | " + " | ".join(f"position {i + 1}" for i in range(len(greedy["conditional"]))) + " |",
        "|---|---|" + "---|" * len(greedy["conditional"]),
        _row("0", greedy),
        _row(f"{settings.temperature:g}", sampled),
    ]
    before = manifest.get("before", {}).get("greedy_length")
    lines += ["", "Rates are of the tokens at that position given that those before were accepted."]
    if before is not None:
        lines[-1] += f" Before training the length at temperature 0 was {before:.2f}."
    if measured["by_category"]:
        lines += ["", "| text | acceptance length at temperature 0 |", "|---|---|"]
        lines += [f"| {kind} | {found['acceptance_length']:.2f} |" for kind, found in measured["by_category"].items()]
    begun = manifest["begun_with"]
    vocab = begun["draft_vocab"]
    lines += [
        "",
        "![learning curve](curve.png)",
        "",
        "## How it was made",
        "",
        f"- {manifest['tokens']:,} tokens, {manifest['supervised']:,} of them supervised, {manifest['steps']:,} steps, "
        f"{manifest['seconds'] / 60:.0f} minutes; stopped: {manifest['stopped']}",
        f"- {manifest['trained_weights'] / 1e6:.1f} million trained weights; "
        + ("the whole vocabulary" if vocab is None else f"{vocab[0]} draft tokens"),
        f"- loss {settings.loss}, learning rate {settings.lr:g}, {settings.rows} x {settings.length} tokens a batch, "
        f"{settings.accumulate} to a step, seed {settings.seed}, {settings.precision}",
        f"- recipe options: {', '.join(f'{k} = {v}' for k, v in begun['options'].items()) or 'none'}",
        f"- target: weights {begun['identity']['weights']}, tokenizer {begun['identity']['tokenizer']}, template "
        f"{begun['identity']['template']}",
        f"- versions: {', '.join(f'{k} {v}' for k, v in manifest['versions'].items())}",
        "",
        "Everything is in `manifest.json`; each step is in `log.csv`.",
        "",
    ]
    return "\n".join(lines)


def _row(temperature: str, found: dict[str, Any]) -> str:
    rates = " | ".join(f"{value:.2f}" for value in found["conditional"])
    return f"| temperature {temperature} | {found['acceptance_length']:.2f} | {rates} |"
