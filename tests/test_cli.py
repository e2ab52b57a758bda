"""The command line on a tiny model folder: what it prints, what it writes, and one line for every mistake."""

from __future__ import annotations

import inspect
import io
import json
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from draftproof.bench.costs import CostCurve
from draftproof.bench.rows import FURTHER, Row
from draftproof.cli import demo as demo_module
from draftproof.cli import main, show
from draftproof.cli.document import Document
from draftproof.cli.options import ModelOptions, SamplingOptions
from draftproof.errors import DraftproofError
from draftproof.models.shrink import frequent_ids
from draftproof.types import Piece, SamplingParams, StreamEvent
from tiny import TEXT_VOCAB, byte_tokenizer, save_tiny, tiny_llama

STATS = {
    "num_tokens",
    "num_rounds",
    "num_drafted",
    "num_accepted",
    "acceptance_length",
    "acceptance_rate",
    "accepted_at",
    "draft_seconds",
    "verify_seconds",
    "total_seconds",
}
ROW = {
    "task",
    "batch",
    "drafter",
    "max_draft",
    "tok_s",
    "speedup",
    "acceptance_length",
    "acceptance_rate",
    "accepted_at",
    "identical",
    "ttft_ms",
    "tpot_ms",
    *FURTHER,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama with a chat template."""
    tiny = tiny_llama(vocab_size=TEXT_VOCAB, max_position_embeddings=2048)
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", tiny))


@pytest.fixture(scope="module")
def raw_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without a chat template."""
    tiny = tiny_llama(vocab_size=TEXT_VOCAB, max_position_embeddings=2048)
    return str(save_tiny(tmp_path_factory.mktemp("models") / "raw", tiny, byte_tokenizer(chat_template=None)))


@pytest.fixture
def greedy(model: str) -> list[str]:
    return ["--target", model, "--temperature", "0", "--max-new-tokens", "12"]


def last_json(text: str) -> Any:
    return json.loads(text.rstrip("\n").split("\n")[-1])


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


# -- starting up ------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from draftproof.cli import main; status = main(['--help']); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules); sys.exit(status)"
    )
    best = 1e9
    for _ in range(4):  # the best of some, since the machine may be busy
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        best = min(best, time.perf_counter() - started)
        assert done.returncode == 0, done.stderr
        assert all(command in done.stdout for command in ("generate", "chat", "bench", "demo"))
        if best < 0.5:
            break
    assert best < 3, "torch alone takes longer to import"


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "generate" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import draftproof

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == draftproof.__version__


def test_defaults_are_those_of_the_library() -> None:
    """Only the target (none in the library) and the drafter (n-gram here) differ."""
    from draftproof import load

    params, arguments = SamplingParams(), inspect.signature(load).parameters
    for field in fields(SamplingOptions):
        assert field.default in (getattr(params, field.name), None), field.name
    for field in fields(ModelOptions):
        if field.name not in ("target", "drafter"):
            assert (field.default or ()) == (arguments[field.name].default or ()), field.name


def test_ctrl_c_ends_with_130_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftproof.cli.prompts.collect", interrupted)
    assert main(["generate", "hello"]) == 130
    assert "Traceback" not in capsys.readouterr().err


# -- bad input --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "unknown command": (["generat"], "generat"),
    "unknown option": (["generate", "hi", "--tempratur", "0"], "--tempratur"),
    "option that is no number": (["generate", "hi", "--top-k", "many"], "--top-k"),
    "unknown drafter": (["generate", "hi", "-t", "MODEL", "--drafter", "crystal-ball"], "crystal-ball"),
    "drafter without its model": (["generate", "hi", "-t", "MODEL", "--drafter", "model:"], "model"),
    "drafter folder missing": (["generate", "hi", "-t", "MODEL", "--drafter", "model:TMP/nowhere"], "nowhere"),
    "unknown weights": (["generate", "hi", "-t", "MODEL", "--weights", "lead"], "lead"),
    "unknown verifier": (["generate", "hi", "-t", "MODEL", "--verifier", "typical"], "typical"),
    "unknown dtype": (["generate", "hi", "-t", "MODEL", "--dtype", "float13"], "float13"),
    "unknown device": (["generate", "hi", "-t", "MODEL", "--device", "abacus"], "abacus"),
    "missing model folder": (["generate", "hi", "-t", "TMP/nowhere"], "nowhere"),
    "empty model folder": (["generate", "hi", "-t", "TMP"], "config.json"),
    "negative temperature": (["generate", "hi", "--temperature", "-1"], "temperature"),
    "temperature that is no number": (["generate", "hi", "--temperature", "nan"], "temperature"),
    "top-p of 0": (["generate", "hi", "--top-p", "0"], "top_p"),
    "negative top-k": (["generate", "hi", "--top-k", "-3"], "top_k"),
    "min-p above 1": (["generate", "hi", "--min-p", "2"], "min_p"),
    "no new tokens": (["generate", "hi", "--max-new-tokens", "0"], "max_new_tokens"),
    "negative seed": (["generate", "hi", "--seed", "-1"], "seed"),
    "empty stop": (["generate", "hi", "--stop", ""], "stop"),
    "negative max-draft": (["generate", "hi", "-t", "MODEL", "--max-draft", "-1"], "max_draft"),
    "no batch": (["generate", "hi", "-t", "MODEL", "--max-batch", "0"], "max_batch"),
    "context of nothing": (["generate", "hi", "-t", "MODEL", "--max-length", "1"], "max_length"),
    "prompt longer than the context": (["generate", "x" * 90, "-t", "MODEL", "--max-length", "60"], "60"),
    "empty prompt": (["generate", ""], "prompt 1 is empty"),
    "blank prompt": (["generate", "hi", " \n"], "prompt 2 is empty"),
    "missing prompts file": (["generate", "--prompts", "TMP/none.jsonl"], "none.jsonl"),
    "missing corpus": (["generate", "hi", "-t", "MODEL", "--draft-corpus", "TMP/none.txt"], "none.txt"),
    "binary corpus": (["generate", "hi", "-t", "MODEL", "--draft-corpus", "TMP/binary.jsonl"], "UTF-8"),
    "folder as prompts file": (["generate", "--prompts", "TMP"], "--prompts"),
    "binary prompts file": (["generate", "--prompts", "TMP/binary.jsonl"], "UTF-8"),
    "empty prompts file": (["generate", "--prompts", "TMP/empty.jsonl"], "empty.jsonl"),
    "bad line": (["generate", "--prompts", "TMP/bad.jsonl"], "bad.jsonl line 3"),
    "line without a prompt": (["generate", "--prompts", "TMP/keyless.jsonl"], "keyless.jsonl line 1"),
    "line with bad messages": (["generate", "--prompts", "TMP/roleless.jsonl"], "roleless.jsonl line 1"),
    "line with an empty prompt": (["generate", "--prompts", "TMP/blank.jsonl"], "blank.jsonl line 2"),
    "json into a folder that is not there": (["generate", "hi", "--json", "TMP/no/where.json"], "--json"),
    "json into a folder": (["generate", "hi", "--json", "TMP"], "--json"),
    "json below a file": (["generate", "hi", "--json", "TMP/empty.jsonl/out.json"], "--json"),
    "chat without a template": (["chat", "-t", "RAW"], "chat template"),
    "demo with an unknown drafter": (["demo", "-t", "MODEL", "-d", "crystal-ball", "-n", "2"], "crystal-ball"),
    "demo without tokens": (["demo", "-t", "MODEL", "-n", "0"], "max_new_tokens"),
}


@pytest.fixture
def bad_files(tmp_path: Path) -> Path:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b"\n')
    (tmp_path / "keyless.jsonl").write_text('{"question": "a"}\n')
    (tmp_path / "roleless.jsonl").write_text('{"messages": [{"content": "a"}]}\n')
    (tmp_path / "blank.jsonl").write_text('{"turns": ["a"]}\n{"turns": [""]}\n')
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gives_one_line_and_status_2(
    mistake: str, bad_files: Path, model: str, raw_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, word = MISTAKES[mistake]
    before = sorted(bad_files.rglob("*"))
    real = [a.replace("TMP", str(bad_files)).replace("MODEL", model).replace("RAW", raw_model) for a in arguments]
    assert main(real) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1, shown
    assert shown[0].startswith("draftproof: ")
    assert word in shown[0]
    assert sorted(bad_files.rglob("*")) == before, "nothing may be left behind"


def test_no_prompt_at_all_is_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    type_in(monkeypatch, "")
    assert main(["generate"]) == 2
    assert "empty" in capsys.readouterr().err


def test_a_real_process_prints_one_line_too(tmp_path: Path) -> None:
    code = "import sys; from draftproof.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "generate", "hi", "--target", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("draftproof: ")


# -- generate ---------------------------------------------------------------------------------------------------------


def test_generate_prints_the_text_and_one_json_line(greedy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "bye", *greedy, "--json", "-"]) == 0
    document = last_json(capsys.readouterr().out)
    assert document.keys() == {"results", "config"}
    assert [result["prompt"] for result in document["results"]] == ["hello", "bye"]
    for result in document["results"]:
        assert result.keys() == {"prompt", "text", "token_ids", "finish_reason", "stats", "tok_s"}
        assert result["stats"].keys() >= STATS
        assert result["stats"]["num_tokens"] == len(result["token_ids"])
        assert len(result["token_ids"]) == 12 or result["finish_reason"] == "stop"
        assert result["tok_s"] > 0
    assert document["config"]["drafter"] == "ngram"
    assert document["config"]["params"]["max_new_tokens"] == 12


def test_the_drafter_does_not_change_the_text(greedy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for drafter in ("none", "ngram", f"model:{greedy[1]}"):
        assert main(["generate", "abcabcabcabc", *greedy, "--drafter", drafter, "--json", "-"]) == 0
        texts.append([result["token_ids"] for result in last_json(capsys.readouterr().out)["results"]])
    assert texts[0] == texts[1] == texts[2]


def test_a_corpus_says_which_tokens_a_small_vocabulary_keeps(
    greedy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drafter is the target itself, so whatever it may propose is right; the text stays the same."""
    (tmp_path / "corpus.txt").write_text("xyz" * 50)
    results = []
    for corpus in ([], ["--draft-corpus", str(tmp_path / "corpus.txt")]):
        small = ["--drafter", f"model:{greedy[1]}", "--draft-vocab", "5", *corpus]
        assert main(["generate", "abcabcabcabc", *greedy, *small, "--json", "-"]) == 0
        results.append(last_json(capsys.readouterr().out)["results"][0])
    assert results[0]["token_ids"] == results[1]["token_ids"]
    known = frequent_ids(5, TEXT_VOCAB, [byte_tokenizer().encode("xyz" * 50)])
    assert set(byte_tokenizer().encode("xyz")) <= set(known)


def test_json_goes_to_a_file_and_nothing_else_is_left(
    greedy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", *greedy, "--json", str(tmp_path / "out.json")]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert capsys.readouterr().out == show.printable(result["text"]) + "\n"


def test_a_failed_write_leaves_the_old_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    document = Document(str(file))

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DraftproofError, match="No space left"):
        document.write({"results": []})
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_device_as_json_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    Document(str(link)).write({"rows": []})
    assert link.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_prompts_come_from_a_file_in_every_format(
    greedy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"prompt": "one"},
        {"question_id": 81, "category": "writing", "turns": ["two", "and then"]},
        {"messages": [{"role": "user", "content": "three"}]},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    assert main(["generate", "--prompts", str(file), *greedy, "--json", "-"]) == 0
    results = last_json(capsys.readouterr().out)["results"]
    assert [result["prompt"] for result in results] == ["one", "two", lines[2]["messages"]]
    assert main(["generate", "one", "two", "three", *greedy, "--json", "-"]) == 0
    typed = last_json(capsys.readouterr().out)["results"]
    assert [result["token_ids"] for result in typed] == [result["token_ids"] for result in results]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_prompt_comes_from_standard_input(
    arguments: list[str], greedy: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "two\nlines\n")
    assert main(["generate", *arguments, *greedy, "--json", "-"]) == 0
    assert last_json(capsys.readouterr().out)["results"][0]["prompt"] == "two\nlines"


def test_raw_skips_the_chat_template(greedy: list[str], raw_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    ids = []
    for arguments in ([*greedy, "--raw"], [*greedy, "--chat"], [*greedy], [*greedy, "--target", raw_model]):
        assert main(["generate", "hello", *arguments, "--json", "-"]) == 0
        ids.append(last_json(capsys.readouterr().out)["results"][0]["token_ids"])
    assert ids[0] == ids[3] != ids[1] == ids[2]


def test_chat_on_a_model_without_a_template_is_a_mistake(raw_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--chat", "--target", raw_model]) == 2
    assert "chat template" in capsys.readouterr().err


def test_a_stop_string_ends_the_text_before_it(greedy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", *greedy, "--raw", "--json", "-"]) == 0
    whole = last_json(capsys.readouterr().out)["results"][0]["text"]
    stop = whole[4:6]
    assert main(["generate", "hello", *greedy, "--raw", "--stop", stop, "--json", "-"]) == 0
    result = last_json(capsys.readouterr().out)["results"][0]
    assert result["finish_reason"] == "stop"
    assert result["text"] == whole[: whole.index(stop)]


def test_one_prompt_on_a_terminal_streams_the_same_text(
    greedy: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", *greedy]) == 0
    whole = capsys.readouterr()
    monkeypatch.setattr(show, "is_terminal", lambda: True)
    assert main(["generate", "hello", *greedy]) == 0
    streamed = capsys.readouterr()
    assert streamed.out == whole.out
    for shown in (whole.err, streamed.err):
        assert "tok/s" in shown
        assert "acceptance length" in shown


# -- chat -------------------------------------------------------------------------------------------------------------


def test_chat_goes_on_over_several_turns(
    greedy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "hello\n\n/stats\nand then?\n/reset\nhello\n/exit\nnever read\n")
    assert main(["chat", *greedy, "--json", "-"]) == 0
    shown = capsys.readouterr()
    first, second, third = last_json(shown.out)["results"]
    assert [entry["prompt"] for entry in (first, second, third)] == ["hello", "and then?", "hello"]
    assert first["token_ids"] == third["token_ids"], "/reset starts anew"
    assert "acceptance length" in shown.err
    messages = [("user", "hello"), ("assistant", first["text"]), ("user", "and then?")]
    file = tmp_path / "so-far.jsonl"
    file.write_text(json.dumps({"messages": [{"role": role, "content": text} for role, text in messages]}))
    assert main(["generate", "--prompts", str(file), *greedy, "--json", "-"]) == 0
    assert last_json(capsys.readouterr().out)["results"][0]["token_ids"] == second["token_ids"]


def test_chat_names_its_commands_when_one_is_unknown(
    greedy: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "/dance\n/stats\n")
    assert main(["chat", *greedy]) == 0
    shown = capsys.readouterr().err
    assert "/dance" in shown
    assert "/reset" in shown
    assert "nothing has been answered" in shown


def test_a_piped_chat_that_outgrows_the_context_is_a_mistake(
    greedy: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "x" * 500 + "\n")
    assert main(["chat", *greedy, "--max-length", "64"]) == 2
    assert "64" in capsys.readouterr().err


# -- demo -------------------------------------------------------------------------------------------------------------


def test_demo_shows_every_task_with_every_drafter(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "demo.json"
    arguments = ["--target", model, "--drafter", "ngram", "--drafter", f"model:{model}", "--max-new-tokens", "10"]
    assert main(["demo", *arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {(row["task"], row["drafter"]) for row in rows} == {
        (task, drafter)
        for task in ("code", "edit", "summary", "story")
        for drafter in ("none", "ngram", f"model:{model}")
    }
    for row in rows:
        assert row.keys() == ROW
        assert row["identical"] is True
        assert row["tok_s"] > 0
        if row["drafter"] == "none":
            assert (row["speedup"], row["acceptance_length"], row["max_draft"]) == (1, 1, 0)
        if row["drafter"].startswith("model:"):
            assert 0 <= row["acceptance_rate"] <= 1, "a drafter as dear as the target is left alone"
    shown = capsys.readouterr().out
    assert shown.count("yes") == len(rows)
    assert "All 8 texts" in shown


CURVE = CostCurve("mine", "target", "float32", "dense", 256, 10**9, 20.0, {1: 50.0, 4: 56.0})


def a_row(**changes: Any) -> Row:
    values = {"task": "edit", "batch": 1, "drafter": "ngram", "max_draft": 8, "tok_s": 20.0, "speedup": 2.0}
    values |= {"acceptance_length": 2.5, "acceptance_rate": 0.3, "accepted_at": [5, 2], "identical": True}
    values |= {"num_rounds": 10, "num_drafted": 15, "draft_ms": 5.0}
    return Row(**{**values, "ttft_ms": 50.0, "tpot_ms": 50.0, **changes})


def test_demo_ends_with_status_1_if_a_text_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [a_row(drafter="none", speedup=1.0), a_row(identical=False)]
    monkeypatch.setattr(demo_module, "measure", lambda *_: (rows, CURVE))
    assert main(["demo"]) == 1
    assert "NOT the same text as plain decoding: edit with ngram." in capsys.readouterr().out
    rows[1].difference = {"tie": True}
    assert main(["demo"]) == 0, "rounding is no fault"
    assert "numerical tie in edit with ngram" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ([], (demo_module.PAIR_TARGET, ["ngram", demo_module.PAIR_DRAFTER], "bfloat16")),
        (["--small"], ("smollm2-135m", ["ngram"], "float32")),
        (["--target", "mine", "--dtype", "float16"], ("mine", ["ngram"], "float16")),
        (["--drafter", "none", "--drafter", "model:x"], (demo_module.PAIR_TARGET, ["model:x"], "bfloat16")),
    ],
)
def test_demo_runs_the_pair_unless_told_otherwise(
    arguments: list[str], asked: tuple[str, list[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def measure(*given: Any) -> Any:
        seen.append(given)
        return [a_row(drafter="none", speedup=1.0), a_row()], CURVE

    monkeypatch.setattr(demo_module, "measure", measure)
    monkeypatch.setattr("draftproof.kernels.library.reason", lambda: "there is no compiler")
    assert main(["demo", *arguments]) == 0
    assert seen[0][:3] == asked
    assert seen[0][3] == SamplingParams(temperature=0, max_new_tokens=128)


def test_the_small_demo_runs_in_the_dtype_the_kernels_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(demo_module, "measure", lambda *given: seen.append(given) or ([a_row(), a_row()], CURVE))
    monkeypatch.setattr("draftproof.kernels.library.reason", lambda: None)
    assert main(["demo", "--small"]) == 0
    assert seen[0][2] == "bfloat16"


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((2.0, 1.1), ("2.0 times the speed", "the least gain")),
        ((2.0, 1.0), ("2.0 times the speed", "no gain")),
        ((0.9, 0.5), ("No drafter was faster", "a loss")),
    ],
)
def test_the_closing_sentences_say_what_was_measured(speedups: tuple[float, float], said: tuple[str, str]) -> None:
    rows = [a_row(speedup=speedups[0]), a_row(task="story", speedup=speedups[1])]
    closing = demo_module.sentences(rows, CURVE)
    assert len(closing) == 5
    assert said[0] in closing[1]
    assert said[1] in closing[4]


def test_the_demo_says_in_three_sentences_why_it_was_fast() -> None:
    """1.5 drafted a round: v(2.5) lies half-way between 50 and 56 ms, c is 5 of 50 ms, 2.5 tokens come out."""
    v, c, length = demo_module.why(a_row(), CURVE)
    assert v.endswith("over 2.5 tokens takes 53 ms, over one 50 ms, so v(2.5) = 1.06.")
    assert c == "Each round drafted 1.5 tokens for 5.0 ms apiece, so c = 0.10."
    assert "2.50 / (1.5 x 0.10 + 1.06) = 2.07 times the speed was to be expected, and 2.00 was measured." in length


# -- what people see --------------------------------------------------------------------------------------------------


def painted(**options: Any) -> str:
    console = Console(file=io.StringIO(), highlight=False, soft_wrap=True, **options)
    pieces = (Piece("drafted", True), Piece(" [b]own[/b]\x1b[2J", False))
    show.tokens(console, StreamEvent("drafted own", (1, 2), 1, pieces))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_accepted_tokens_are_green_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted(force_terminal=True, color_system="standard").startswith("\x1b[32mdrafted\x1b[0m [b]own[/b]")
    assert painted(force_terminal=False) == "drafted [b]own[/b]\N{REPLACEMENT CHARACTER}[2J"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in painted(force_terminal=True)


def test_fetching_reports_size_and_speed_and_is_silent_for_a_model_that_is_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show.Loading("loading") as progress:
        progress(94_000_000, 94_000_000)
    assert capsys.readouterr().err == ""
    with show.Loading("loading") as progress:
        for done in range(0, 95, 5):
            progress(done * 1_000_000, 94_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fetching the model: 94 MB"
    assert 5 <= len(lines) <= 12
    assert all("MB/s" in line for line in lines[1:])
