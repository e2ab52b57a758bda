"""The page: self-contained, whole without plots or data, and readable without seeing the plots."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from draftproof.bench import figures, run
from draftproof.bench.report import render
from draftproof.cli import main
from test_cli import ROW
from tiny import TEXT_VOCAB, save_tiny, tiny_llama


def row(task: str, drafter: str = "ngram", batch: int = 1, **changes: Any) -> dict[str, Any]:
    entry = dict.fromkeys(ROW)
    entry |= {"task": task, "batch": batch, "drafter": drafter, "max_draft": 8, "tok_s": 20.0, "speedup": 1.5}
    entry |= {"acceptance_length": 2.5, "acceptance_rate": 0.3, "accepted_at": [5, 2], "identical": True}
    entry |= {"ttft_ms": 20.0, "tpot_ms": 30.0, "draft": "adaptive", "temperature": 0.0, "goodput": 20.0}
    entry |= {"marginal": [0.5, 0.25], "conditional": [0.5, 0.5], "intervals": {"speedup": (1.25, 1.75)}}
    if drafter == "none":
        entry |= {"speedup": 1.0, "draft": "", "marginal": [], "conditional": [], "acceptance_length": 1.0}
    return {**entry, **changes}


COSTS = [
    {"model": "big", "role": "target", "t_ms": {"1": 10.0, "2": 10.5, "8": 12.0}, "floor_ms": 9.0},
    {"model": "small", "role": "drafter", "t_ms": {"1": 2.0, "8": 3.0}, "floor_ms": 1.5, "c": 0.2},
]
FULL = {
    "machine": {"cpu": "A & B <fast>", "cores": 2},
    "config": {"target": "big", "params": {"temperature": 0}, "repeats": 3},
    "rows": [
        *(row(task, drafter, batch) for task in ("code", "chat") for batch in (1, 4) for drafter in ("none", "ngram")),
        row("code", "model:small", speedup=0.8),
    ],
    "costs": COSTS,
    "texts": [
        {
            "task": "code",
            "drafter": "ngram",
            "draft": "adaptive",
            "pieces": [["if a", False], [" <b", True], ["> c", True]],
        }
    ],
}


class Page(HTMLParser):
    """Checks that elements are closed in order, and gathers text, headings, ids and outside references."""

    VOID = {"meta", "br", "link", "img", "hr", "use", "path", "rect"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.labels: list[str] = []
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.labels += [known["aria-label"] or ""] if tag == "svg" and "aria-label" in known else []
        self.outside += [v or "" for k, v in attributes if k in ("src", "href") and v and not v.startswith("#")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_says_everything_by_itself() -> None:
    text = render(FULL)
    page = Page(text)
    assert not page.outside and "@import" not in text and "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert len(page.ids) == len(set(page.ids)), "ids of several drawings must not clash"
    headings = re.findall(r"<h[12][^>]*>([^<]+)</h", text)
    assert headings[0].startswith("ngram (adaptive): 1.50 times the speed on code"), "the verdict comes first"
    for title in ("Speed-up by task", "What a pass costs", "Acceptance by position", "What a draft costs"):
        assert any(heading.startswith(title) for heading in headings)
    assert "1.50 (1.25 to 1.75)" in text, "intervals stand in the table"
    assert "A &amp; B &lt;fast&gt;" in text
    assert "if a<mark> &lt;b&gt; c</mark>" in text, "neighbouring accepted tokens share a mark"
    assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_every_plot_is_described_and_has_its_table() -> None:
    page = Page(text := render(FULL))
    assert len(page.labels) >= 5
    assert text.count("<details") >= len({label.split(" of ")[0] for label in page.labels})
    for section in re.findall(r"<section.*?</section>", text, flags=re.S):
        if "<svg" in section:
            assert "<table>" in section
    assert figures._INK not in text, "text in plots has the page's colour"


def test_without_matplotlib_the_tables_say_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)
    text = render(FULL)
    Page(text)
    assert "<svg" not in text and "matplotlib is not installed" in text
    assert "<details open>" in text and "1.50 (1.25 to 1.75)" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"rows": []}, "Nothing was compared"),
        ({"rows": [row("code", "none")]}, "No drafter was measured"),
        ({"rows": [row("code", marginal=[], conditional=[], accepted_at=[])]}, "Nothing was drafted"),
        ({"rows": [row("code", intervals={})]}, "1.50"),
        ({"rows": FULL["rows"][:3], "config": {"interrupted": True}}, "was interrupted"),
        ({"rows": [row("code", speedup=0.9)]}, "No drafter was faster"),
        ({"rows": [row("code", drafter, b) for drafter, b in (("ngram", 1), ("suffix", 4))]}, "–"),
        ({"verdict": "do not speculate", "reason": "draft too slow", "predicted": [row("all")]}, "Do not speculate"),
    ],
    ids=["nothing", "plain only", "nothing drafted", "one prompt", "interrupted", "slower", "missing cells", "advice"],
)
def test_missing_parts_give_a_sensible_page(content: dict[str, Any], said: str) -> None:
    text = render(content)
    Page(text)
    assert said in text and "None" not in text and "nan" not in text.lower().replace("dominant", "")


def test_bench_writes_a_page_and_an_interrupted_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_llama(vocab_size=TEXT_VOCAB, max_position_embeddings=2048)
    model, page, written = str(save_tiny(tmp_path / "tiny", tiny)), tmp_path / "page.html", tmp_path / "rows.json"
    options = ["--target", model, "--repeats", "1", "-n", "4", "--limit", "1", "--no-adaptive", "--draft", "2"]
    options += ["--draft", "adaptive", "--temperature", "0", "--temperature", "0.8", "--report", str(page)]
    real = run._timed
    calls = 0

    def stops(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 3 * 2 * 2:  # two tasks at two temperatures with none and two ways of drafting
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(run, "_timed", stops)
    assert main(["bench", *options, "--json", str(written)]) == 130
    assert "interrupted" in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    Page(text)
    assert "was interrupted" in text and "ngram (2)" in text and "temperature 0.8" in text
    import json

    rows = json.loads(written.read_text())["rows"]
    assert [(r["task"], r["temperature"], r["drafter"], r["draft"]) for r in rows] == [
        (task, temperature, drafter, draft)
        for task in ("code", "json")
        for temperature in (0.0, 0.8)
        for drafter, draft in (("none", ""), ("ngram", "2"), ("ngram", "adaptive"))
    ]
