"""What a running server's speculation counters say: vLLM's, SGLang's and llama.cpp's Prometheus text, read twice.

Counters are compared between two scrapes, so only what happened in between counts; labels (engines, replicas) are
summed. SGLang publishes gauges instead, which are averages already.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import OptionError

Samples = dict[str, list[tuple[dict[str, str], float]]]
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_COUNTERS = {"vllm": "vllm:spec_decode", "llama.cpp": "llamacpp:spec_decode"}


def parse(text: str) -> Samples:
    """Prometheus text: by metric, its samples with their labels; a counter's `_total` is left off its name."""
    samples: Samples = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.match(line)
        if found:
            labels = dict(_LABEL.findall(found[2] or ""))
            try:
                samples.setdefault(found[1].removesuffix("_total"), []).append((labels, float(found[3])))
            except ValueError:
                continue
    return samples


@dataclass(frozen=True)
class Observation:
    """What a server did between two scrapes.

    Fields:
        server: "vllm", "sglang" or "llama.cpp".
        num_drafts, num_drafted, num_accepted: rounds with a draft, drafted and accepted tokens; None where the server
            publishes averages only.
        acceptance_length: tokens a round, the bonus token included; None where nothing was drafted.
        acceptance_rate: accepted of drafted.
        marginal: P(accepted at i), by position.
        running: sequences at work at the second scrape.
    """

    server: str
    num_drafts: float | None
    num_drafted: float | None
    num_accepted: float | None
    acceptance_length: float | None
    acceptance_rate: float | None
    marginal: list[float] = field(default_factory=list)
    running: float | None = None

    @property
    def conditional(self) -> list[float]:
        """Given that the position before was accepted."""
        return [own / before for own, before in zip(self.marginal, [1.0, *self.marginal]) if before]

    def survival(self, max_draft: int) -> list[float]:
        """P(accepted >= k), k = 1..max_draft: as counted by position, and on from there at the last conditional rate;
        where nothing is known by position, with every token accepted alike so that the mean length comes out.
        """
        known = self.marginal[:max_draft]
        if not known:
            rate = constant_rate(self.acceptance_length or 1.0, max_draft)
            return [rate ** (i + 1) for i in range(max_draft)]
        onward = self.conditional[-1] if self.conditional else 0.0
        while len(known) < max_draft:
            known.append(known[-1] * onward)
        return known

    def to_dict(self) -> dict[str, object]:
        return {
            "server": self.server,
            "num_drafts": self.num_drafts,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "marginal": self.marginal,
            "conditional": self.conditional,
            "running": self.running,
        }


def observe(before: Samples, after: Samples) -> Observation:
    """What happened between two scrapes of one server.

    Raises:
        OptionError: none of the known servers' speculation metrics are there.
    """
    for server, prefix in _COUNTERS.items():
        if f"{prefix}_num_drafts" in after or f"{prefix}_num_draft_tokens" in after:
            return _from_counters(server, prefix, before, after)
    if any(name.startswith("sglang:spec_") for name in after):
        length, rate = _mean(after, "sglang:spec_accept_length"), _mean(after, "sglang:spec_accept_rate")
        running = _total(after, "sglang:num_running_reqs")
        return Observation("sglang", None, None, None, length or None, rate, running=running)
    raise OptionError(
        "this server publishes no speculation counters (vllm:spec_decode_*, sglang:spec_*, llamacpp:spec_decode_*): "
        "start it with speculation and metrics on"
    )


def best_draft(
    survival: list[float], draft_cost: float, verify: Mapping[int, float] | None = None
) -> tuple[int, float]:
    """The number of tokens with the highest speed-up, and that; (0, 1.0) where none is above 1.

    Args:
        draft_cost: c, a drafted token over a token of the target.
        verify: v(M) by number of tokens; None is 1 throughout, as where weights are the bottleneck.
    """
    best, chosen, length = 1.0, 0, 1.0
    for num, share in enumerate(survival, 1):
        length += share
        cost = num * draft_cost + (verify.get(num + 1, max(verify.values())) if verify else 1.0)
        if length / cost > best:
            best, chosen = length / cost, num
    return chosen, best


def constant_rate(length: float, max_draft: int) -> float:
    """The a for which 1 + a + ... + a^K is the length, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**k for k in range(max_draft + 1)) < length:
            low = middle
        else:
            high = middle
    return low


def scrape(url: str, timeout: float = 10.0) -> Samples:
    """The metrics of a server; `/metrics` is added to a bare address.

    Raises:
        OptionError: no http address, no answer, or none of text.
    """
    if not re.match(r"https?://", url):
        raise OptionError(f"observe needs an http address such as http://localhost:8000, not {url!r}")
    address = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            return parse(answer.read().decode("utf-8", errors="replace"))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise OptionError(f"{address} gave no metrics: {getattr(error, 'reason', None) or error}") from None


def _from_counters(server: str, prefix: str, before: Samples, after: Samples) -> Observation:
    def grown(name: str, **labels: str) -> float:
        now, then = (_total(samples, f"{prefix}_{name}", **labels) or 0.0 for samples in (after, before))
        return now if now < then else now - then  # a restarted server counts from 0 again

    drafts, drafted, accepted = (grown(name) for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"))
    places = {labels.get("position") for labels, _ in after.get(f"{prefix}_num_accepted_tokens_per_pos", [])}
    by_position = [
        grown("num_accepted_tokens_per_pos", position=place)
        for place in sorted((p for p in places if p is not None), key=int)
    ]
    running = _total(after, "vllm:num_requests_running" if server == "vllm" else "llamacpp:requests_processing")
    return Observation(
        server,
        drafts,
        drafted,
        accepted,
        1 + accepted / drafts if drafts else None,
        accepted / drafted if drafted else None,
        [count / drafts for count in by_position] if drafts else [],
        running,
    )


def _total(samples: Samples, name: str, **labels: str) -> float | None:
    found = [value for own, value in samples.get(name, []) if labels.items() <= own.items()]
    return sum(found) if found else None


def _mean(samples: Samples, name: str) -> float | None:
    found = [value for _, value in samples.get(name, [])]
    return sum(found) / len(found) if found else None
