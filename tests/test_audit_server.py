"""`audit server` against servers in this process: sound, leaking, without ids, picky, broken."""

from __future__ import annotations

import json

import pytest

import draftproof as dp
from draftproof import SamplingParams, cli
from draftproof.api import Engine
from draftproof.audit.server import Server, collect
from draftproof.errors import ServerError
from leaks import leaking
from servers import serving
from tiny import save_tiny, tiny_llama


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A target over text and a draft model that is often wrong, and prompts."""
    root = tmp_path_factory.mktemp("server")
    for name, seed in (("target", 1), ("draft", 2)):
        save_tiny(root / name, tiny_llama(seed, vocab_size=259, initializer_range=0.12))
    prompts = "".join(json.dumps({"prompt": f"prompt number {i}"}) + "\n" for i in range(4))
    (root / "prompts.jsonl").write_text(prompts)
    return root


@pytest.fixture(scope="module")
def plain(root) -> Engine:
    return dp.load(str(root / "target"), max_batch=4)


def drafting(plain, root, verify=None) -> Engine:
    made = dp.load(plain, f"model:{root / 'draft'}", max_draft=2)
    made.verify = verify or made.verify
    return made


def audited(root, *urls, more=(), tokens=700, out=None):
    arguments = ["audit", "server", *urls, "--target", str(root / "target"), "--raw", "-n", "32"]
    arguments += ["--tokens", str(tokens), "--prompts", str(root / "prompts.jsonl"), "--tv", "0.15", *more]
    return cli.main([*arguments, "--json", str(out or root / "out.json")])


def document(root):
    return json.loads((root / "out.json").read_text())


def test_a_sound_server_is_lossless_with_and_without_a_baseline(root, plain):
    """Ten tests in all, at a false-alarm rate of 1e-3 each time."""
    drafter = ("--drafter", f"model:{root / 'draft'}")
    with serving(drafting(plain, root)) as url, serving(plain) as other:
        assert audited(root, url, more=drafter) == 0
        assert document(root)["verdict"] == "lossless"
        assert audited(root, url, other, more=drafter) == 0
        assert document(root)["baseline"] == "baseline"
        assert all(isinstance(body["prompt"], list) for body in url.requests)
        seeds = [body["seed"] for body in (*url.requests[-10:], *other.requests[-10:])]
        assert len(set(seeds)) == len(seeds)


def test_a_leaking_server_is_caught(root, plain):
    """Half of the rounds leak; TV(p, q) is near .6, so the drift is some .15 a token over 2 000 tokens."""
    with serving(drafting(plain, root, leaking(0.5))) as url, serving(plain) as other:
        more = ("--drafter", f"model:{root / 'draft'}")
        assert audited(root, url, tokens=2000, more=more) == 1
        assert document(root)["verdict"] == "not lossless"
        assert audited(root, url, other, tokens=2000, more=more) == 1
        assert document(root)["verdict"] == "not lossless"


def test_greedy_text_of_a_server_is_judged_by_its_gaps(root, plain):
    with serving(drafting(plain, root)) as url:
        assert audited(root, url, more=("--temperature", "0")) == 0
        assert "lossless at temperature 0" in document(root)["sentence"]

    def off_by_one(draft, p, source):
        from draftproof.types import Verification

        return Verification((), (int(p.at(0, None).argmax()) + 1) % 256, "residual", draft.num_nodes)

    with serving(drafting(plain, root, off_by_one)) as url:
        assert audited(root, url, more=("--temperature", "0")) == 1
        assert "below the highest" in document(root)["sentence"]


def test_a_server_without_ids_is_compared_by_whole_texts(root, plain):
    with serving(drafting(plain, root), ids=False) as url, serving(plain, ids=False) as other:
        assert audited(root, url, other) == 1
        found = document(root)
        assert found["verdict"] == "undecided" and found["tv_bound"] is None and len(found["tests"]) == 1
        assert "no token ids" in found["notes"][0]


def test_a_picky_server_is_asked_again_with_less(plain):
    with serving(plain, strict=True, text_only=True) as url:
        server = Server(f"{url}/v1/", key="secret")
        reply = server.complete([104, 105], "hi", SamplingParams(max_new_tokens=4, seed=1))
        assert reply.token_ids is None and reply.text
        assert [isinstance(body["prompt"], str) for body in url.requests][-1]
        assert len(url.requests) == 3
        server.complete([104, 105], "hi", SamplingParams(max_new_tokens=4, seed=1))
        assert len(url.requests) == 4, "what was refused is not tried again"


def test_an_end_of_text_that_a_server_leaves_out_is_put_back():
    class Ends:
        url, model = "test", "test"

        def complete(self, ids, prompt, params):
            from draftproof.audit.server import _Reply

            return _Reply("x", (7,), "stop") if params.seed % 2 else _Reply("xy", (7, 8), "length")

    class NoCodec:
        def decode(self, ids):
            return ""

    got = collect(Ends(), "arm", [[1]], NoCodec(), {99}, SamplingParams(), 4, 0)
    assert sorted(text.token_ids for text in got.arm.texts) == [(7, 8), (7, 99)]
    assert got.with_ids


FAULTS = {
    "answered 500: boom": {"broken": (500, "boom")},
    "answered without choices": {"broken": (200, {"error": "none"})},
    "refuses to complete: 400": {"broken": (400, {"error": "never"})},
}


@pytest.mark.parametrize("said", FAULTS)
def test_a_broken_server_is_one_line(said, plain, root, capsys):
    with serving(plain, **FAULTS[said]) as url:
        assert audited(root, url) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert said.split(":")[0] in lines[-1] and lines[-1].startswith("draftproof: server http")


def test_a_server_that_is_not_there_is_one_line(root, capsys):
    with pytest.raises(ServerError, match="cannot be used"):
        Server("http://127.0.0.1:9")
    assert audited(root, "http://127.0.0.1:9") == 2
    assert "Traceback" not in capsys.readouterr().err
