"""Counters of other servers, read from a small HTTP server that grows them between two scrapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from draftproof.advisor.observe import Observation, best_draft, constant_rate, observe, parse, scrape
from draftproof.cli import main
from draftproof.errors import OptionError
from test_cli import last_json


def vllm(factor: int, engines: int = 2) -> str:
    """Per engine: 100 drafts of 3 tokens, 80, 60 and 30 accepted by position; `factor` times that."""
    text = (
        "# HELP vllm:spec_decode_num_drafts_total Number of drafts.\n# TYPE vllm:spec_decode_num_drafts_total counter\n"
    )
    for engine in range(engines):
        label = f'engine="{engine}",model_name="a \\"b\\", c"'
        text += f"vllm:spec_decode_num_drafts_total{{{label}}} {100.0 * factor}\n"
        text += f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {3e2 * factor}\n"
        text += f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {170.0 * factor} 1700000000000\n"
        for position, count in enumerate((80, 60, 30)):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            text += f'{name}{{{label},position="{position}"}} {count * factor}\n'
        text += f"vllm:num_requests_running{{{label}}} 3\n"
    return text + "nonsense line\nvllm:broken{} NotANumber\n"


SGLANG = """\
sglang:spec_accept_length{engine_type="unified",model_name="m"} 2.5
sglang:spec_accept_rate{engine_type="unified",model_name="m"} 0.5
sglang:spec_num_steps{model_name="m"} 3
sglang:num_running_reqs{model_name="m"} 7
"""


def llamacpp(factor: int) -> str:
    lines = [("num_drafts", 10), ("num_draft_tokens", 40), ("num_accepted_tokens", 25)]
    text = "".join(f"llamacpp:spec_decode_{name} {count * factor}\n" for name, count in lines)
    for position, count in enumerate((9, 8, 5, 3)):
        text += f'llamacpp:spec_decode_num_accepted_tokens_per_pos{{position="{position}"}} {count * factor}\n'
    return text


class Server:
    """Answers /metrics with each text in turn, the last one for good."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/metrics":
                    self.send_error(404)
                    return
                text = outer.texts.pop(0) if len(outer.texts) > 1 else outer.texts[0]
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_only_what_happened_between_two_scrapes_counts() -> None:
    found = observe(parse(vllm(5)), parse(vllm(7)))
    assert (found.server, found.num_drafts, found.num_drafted, found.num_accepted) == ("vllm", 400, 1200, 680)
    assert found.acceptance_length == pytest.approx(2.7)
    assert found.acceptance_rate == pytest.approx(17 / 30)
    assert found.marginal == pytest.approx([0.8, 0.6, 0.3])
    assert found.conditional == pytest.approx([0.8, 0.75, 0.5])
    assert found.running == 6


def test_a_server_that_was_restarted_and_one_where_nothing_happened() -> None:
    assert observe(parse(vllm(9)), parse(vllm(1))).num_drafts == 200
    idle = observe(parse(vllm(3)), parse(vllm(3)))
    assert (idle.acceptance_length, idle.acceptance_rate, idle.marginal) == (None, None, [])


def test_sglang_and_llamacpp() -> None:
    found = observe({}, parse(SGLANG))
    assert (found.server, found.acceptance_length, found.acceptance_rate, found.running) == ("sglang", 2.5, 0.5, 7)
    survival = found.survival(4)
    assert 1 + sum(survival) == pytest.approx(2.5)
    found = observe(parse(llamacpp(1)), parse(llamacpp(3)))
    assert (found.server, found.num_drafts) == ("llama.cpp", 20)
    assert found.marginal == pytest.approx([0.9, 0.8, 0.5, 0.3])
    assert found.survival(6)[4] == pytest.approx(0.3 * 0.6), "beyond what is known the last conditional rate goes on"


def test_the_best_length_is_where_the_next_token_no_longer_pays() -> None:
    survival = [0.8**k for k in range(1, 17)]
    number, speedup = best_draft(survival, 0.1)
    by_hand = {k: (1 + sum(survival[:k])) / (1 + 0.1 * k) for k in range(1, 17)}
    assert (number, speedup) == (max(by_hand, key=lambda k: by_hand[k]), pytest.approx(max(by_hand.values())))
    assert best_draft([0.05] * 4, 0.2) == (0, 1.0)
    assert best_draft([0.9, 0.8], 0.0, {2: 2.0, 3: 3.0}) == (0, 1.0), "passes over more tokens are dear"
    assert constant_rate(1.0, 4) == pytest.approx(0, abs=1e-9)


def test_the_command_reads_twice_and_says_what_is_best(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.texts = [vllm(1), vllm(2)]
    assert main(["observe", server.url, "--seconds", "0.01", "--max-draft", "3", "--json", "-"]) == 0
    shown = capsys.readouterr().out
    document = last_json(shown)
    assert (document["server"], document["num_drafts"]) == ("vllm", 200)
    assert document["best_max_draft"] == 3
    assert document["predicted_speedup"] == pytest.approx(2.7 / 1.3)
    assert "acceptance length 2.70" in shown


def test_the_command_since_the_server_started_and_where_nothing_was_drafted(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.texts = [SGLANG]
    assert main(["observe", f"{server.url}/metrics", "--seconds", "0", "--json", "-"]) == 0
    assert last_json(capsys.readouterr().out)["acceptance_length"] == 2.5
    server.texts = [vllm(4)]
    assert main(["observe", server.url, "--seconds", "0.01"]) == 0
    assert "nothing was drafted" in capsys.readouterr().out


def test_what_cannot_be_observed_is_one_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.texts = ["process_cpu_seconds_total 3\n"]
    for url, said in (
        (server.url, "no speculation counters"),
        (f"{server.url}/other/metrics", "gave no metrics"),
        ("http://127.0.0.1:9", "gave no metrics"),
        ("localhost:8000", "needs an http address"),
    ):
        assert main(["observe", url, "--seconds", "0"]) == 2
        shown = capsys.readouterr().err
        assert said in shown and shown.count("\n") == 1
    with pytest.raises(OptionError):
        scrape("file:///etc/hosts")


def test_an_observation_without_counts_is_valid_json() -> None:
    import json

    empty = Observation("sglang", None, None, None, None, None)
    assert json.loads(json.dumps(empty.to_dict(), allow_nan=False))["conditional"] == []
    assert empty.survival(2) == pytest.approx([0, 0], abs=1e-9)
