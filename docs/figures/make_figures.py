"""The figure of docs/how-it-works.md, drawn from numbers: one round in time, and why its law is the target's.

python docs/figures/make_figures.py        writes one_round.svg, one_round-dark.svg and one_round.png beside itself
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

HERE = Path(__file__).resolve().parent

# A schematic round: times in units of one target pass over one token, a drafter of a tenth, four drafted tokens.
DRAFT_TIME, VERIFY_TIME = 0.14, 1.12
DRAFTED = ("sat", "on", "the", "sofa")
NUM_ACCEPTED = 3
CORRECTION = "mat"

# One position: the target's law p and the draft's law q over five words.
WORDS = ("mat", "sofa", "chair", "roof", "fence")
P = (0.42, 0.20, 0.18, 0.14, 0.06)
Q = (0.22, 0.40, 0.22, 0.06, 0.10)


@dataclass(frozen=True)
class Palette:
    paper: str
    ink: str
    faint: str
    target: str
    draft: str
    kept: str
    drawn_again: str
    refused: str
    on_fill: str


LIGHT = Palette("#ffffff", "#1f2933", "#7b8794", "#c9d3e0", "#f2d7a6", "#2f9e62", "#3a6fd8", "#d1495b", "#ffffff")
DARK = Palette("#0d1117", "#e6edf3", "#8b98a5", "#34455a", "#6b5526", "#3fb950", "#6ea8fe", "#ff7b86", "#0d1117")


def box(ax: Any, x: float, y: float, width: float, height: float, colour: str, edge: str = "none") -> None:
    shape = FancyBboxPatch(
        (x + 0.012, y), width - 0.024, height, boxstyle="round,pad=0,rounding_size=0.035", fc=colour, ec=edge, lw=1.2
    )
    ax.add_patch(shape)


def chip(ax: Any, x: float, y: float, word: str, colour: str, ink: str) -> None:
    """One emitted token."""
    label = {"boxstyle": "round,pad=0.32,rounding_size=0.3", "fc": colour, "ec": "none"}
    ax.text(x, y, word, ha="center", va="center", fontsize=10.5, color=ink, bbox=label, family="DejaVu Sans Mono")


def draw_time(ax: Any, c: Palette) -> None:
    """Plain decoding above, one round of drafting and verifying below, on one time axis."""
    emitted = [*DRAFTED[:NUM_ACCEPTED], CORRECTION]
    ax.set_xlim(-0.78, len(emitted) + 0.12)
    ax.set_ylim(-0.92, 2.2)
    ax.axis("off")

    y = 1.45
    ax.text(-0.1, y + 0.2, "plain\ndecoding", ha="right", va="center", fontsize=11, color=c.ink)
    for i, word in enumerate(emitted):
        box(ax, i, y, 1, 0.4, c.target)
        ax.text(i + 0.5, y + 0.2, "target pass", ha="center", va="center", fontsize=9.5, color=c.ink)
        chip(ax, i + 1 - 0.2, y - 0.27, word, c.target, c.ink)

    y, start = 0.0, len(DRAFTED) * DRAFT_TIME
    end = start + VERIFY_TIME
    ax.text(-0.1, y + 0.2, "draft\nand verify", ha="right", va="center", fontsize=11, color=c.ink)
    for i in range(len(DRAFTED)):
        box(ax, i * DRAFT_TIME, y, DRAFT_TIME, 0.4, c.draft)
    ax.text(start / 2, y + 0.47, "4 cheap guesses", ha="center", va="bottom", fontsize=9.5, color=c.ink)
    box(ax, start, y, VERIFY_TIME, 0.4, c.target)
    ax.text(
        (start + end) / 2,
        y + 0.2,
        "one target pass\nchecks all four",
        ha="center",
        va="center",
        fontsize=9,
        color=c.ink,
    )

    for i, word in enumerate(DRAFTED):
        accepted = i < NUM_ACCEPTED
        x = 0.12 + 0.4 * i + 0.04 * (i == NUM_ACCEPTED)
        chip(ax, x, y - 0.27, word, c.kept if accepted else c.paper, c.on_fill if accepted else c.refused)
    ax.plot([x - 0.19, x + 0.19], [y - 0.265, y - 0.265], color=c.refused, lw=1.6, zorder=9)
    chip(ax, x + 0.46, y - 0.27, CORRECTION, c.drawn_again, c.on_fill)
    for at, text, colour in (
        (0.52, "accepted", c.kept),
        (x, "refused", c.refused),
        (x + 0.46, "drawn again", c.drawn_again),
    ):
        ax.text(at, y - 0.58, text, ha="center", va="center", fontsize=9, color=colour)

    gain = len(emitted) / end
    ax.annotate(
        "",
        xy=(len(emitted), y + 0.2),
        xytext=(end + 0.03, y + 0.2),
        arrowprops={"arrowstyle": "<|-|>", "color": c.faint, "lw": 1.1},
    )
    ax.text(
        (end + len(emitted)) / 2,
        y + 0.29,
        f"the same {len(emitted)} tokens, {gain:.1f} times sooner",
        ha="center",
        va="bottom",
        fontsize=10.5,
        color=c.ink,
    )
    for x in (end, len(emitted)):
        ax.plot([x, x], [y - 0.06, y + 0.46], color=c.faint, lw=1, ls=(0, (2, 2)))
    ax.annotate(
        "",
        xy=(len(emitted) + 0.1, -0.82),
        xytext=(0, -0.82),
        arrowprops={"arrowstyle": "-|>", "color": c.faint, "lw": 1},
    )
    ax.text(len(emitted) + 0.08, -0.73, "time", ha="right", va="bottom", fontsize=9, color=c.faint)


def style_bars(ax: Any, c: Palette, title: str, text: str) -> None:
    ax.set_ylim(0, 0.5)
    ax.set_xlim(-0.6, len(WORDS) - 0.4)
    ax.set_xticks(range(len(WORDS)), WORDS, fontsize=9, color=c.ink, family="DejaVu Sans Mono")
    ax.set_yticks([])
    ax.tick_params(length=0)
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(c.faint)
    ax.set_facecolor("none")
    ax.set_title(title, fontsize=11.5, color=c.ink, loc="left", pad=26, fontweight="bold")
    ax.text(-0.6, 0.525, text, fontsize=9.5, color=c.faint, ha="left", va="bottom")


def outline(ax: Any, values: tuple[float, ...], colour: str, label: str, word: int) -> None:
    """A law as empty bars, labelled at one of them."""
    for i, value in enumerate(values):
        ax.plot([i - 0.36, i - 0.36, i + 0.36, i + 0.36], [0, value, value, 0], color=colour, lw=1.5)
    ax.text(word, values[word] + 0.012, label, ha="center", va="bottom", fontsize=11, color=colour, style="italic")


def draw_law(axes: Any, c: Palette) -> None:
    """Guess from q and keep min(p, q); draw again where p exceeds q; the two together are p."""
    at = range(len(WORDS))
    kept = [min(p, q) for p, q in zip(P, Q)]
    refused = [q - k for q, k in zip(Q, kept)]
    again = [p - k for p, k in zip(P, kept)]

    style_bars(axes[0], c, "1  Guess from q", f"keep x with chance min(1, p/q): {sum(kept):.0%}")
    axes[0].bar(at, kept, width=0.72, color=c.kept)
    axes[0].bar(at, refused, width=0.72, bottom=kept, color="none", edgecolor=c.refused, hatch="////", lw=0)
    outline(axes[0], Q, c.ink, "q", 1)
    axes[0].text(1.46, 0.31, "refused", fontsize=9.5, color=c.refused, va="center")
    axes[0].text(1, 0.1, "kept", fontsize=9.5, color=c.on_fill, va="center", ha="center")

    style_bars(axes[1], c, "2  Refused? Draw again", f"where p exceeds q: the other {sum(again):.0%}")
    axes[1].bar(at, again, width=0.72, color=c.drawn_again)
    axes[1].text(
        0, again[0] + 0.015, "p − q", ha="center", va="bottom", fontsize=10.5, color=c.drawn_again, style="italic"
    )

    style_bars(axes[2], c, "3  Together: exactly p", "min(p, q) + max(0, p − q) = p")
    axes[2].bar(at, kept, width=0.72, color=c.kept)
    axes[2].bar(at, again, width=0.72, bottom=kept, color=c.drawn_again)
    outline(axes[2], P, c.ink, "p", 0)


def draw_round(c: Palette) -> Any:
    figure = plt.figure(figsize=(10, 6.5), facecolor=c.paper)
    draw_time(figure.add_axes((0.02, 0.475, 0.96, 0.47)), c)
    draw_law([figure.add_axes((0.045 + 0.325 * i, 0.07, 0.275, 0.265)) for i in range(3)], c)
    figure.text(0.02, 0.955, "One round", fontsize=14, color=c.ink, fontweight="bold")
    figure.text(0.137, 0.9555, "three guesses right, the fourth corrected", fontsize=11, color=c.faint)
    return figure


def main() -> None:
    plt.rcParams.update({"svg.hashsalt": "draftproof", "hatch.linewidth": 1.1, "font.family": "DejaVu Sans"})
    for name, palette in (("one_round", LIGHT), ("one_round-dark", DARK)):
        plt.rcParams["hatch.color"] = palette.refused
        figure = draw_round(palette)
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
        if palette is LIGHT:
            figure.savefig(HERE / f"{name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
