"""Texts of OpenVINO GenAI, with a draft model, prompt lookup or neither, for `draftproof audit texts`.

    python -m venv ov && ov/bin/pip install openvino-genai openvino-tokenizers optimum-intel nncf
    ov/bin/optimum-cli export openvino --model TARGET_FOLDER --task text-generation-with-past \\
        --weight-format fp16 ov-target
    ov/bin/python texts_openvino.py ov-target ov-draft|lookup|none IDS.json OUT.json
        [--temperature 1] [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--precision bf16] [--seed 0]

The baseline (`none`) runs through the same continuous-batching pipeline, so that only speculation differs.
"""

from __future__ import annotations

import argparse

import numpy as np
import openvino as ov
import openvino_genai as genai
from peer_texts import Texts, ended, eos_of, read_ids

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("target")
parser.add_argument("draft")
parser.add_argument("prompts")
parser.add_argument("out")
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--top-p", type=float, default=1.0)
parser.add_argument("--tokens", type=int, default=30_000)
parser.add_argument("--max-new-tokens", type=int, default=128)
parser.add_argument("--precision", default="bf16")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--num-assistant-tokens", type=int, default=4)
given = parser.parse_args()

hint = {"INFERENCE_PRECISION_HINT": given.precision}
options: dict[str, object] = {"scheduler_config": genai.SchedulerConfig()}
if given.draft == "lookup":
    options["prompt_lookup"] = True
elif given.draft != "none":
    options["draft_model"] = genai.draft_model(given.draft, "CPU", **hint)
pipeline = genai.LLMPipeline(given.target, "CPU", **hint, **options)

config = genai.GenerationConfig()
config.apply_chat_template = False
config.max_new_tokens = given.max_new_tokens
config.do_sample = given.temperature > 0
if config.do_sample:
    config.temperature, config.top_p, config.top_k = given.temperature, given.top_p, np.iinfo(np.int64).max
if given.draft != "none":
    config.num_assistant_tokens = given.num_assistant_tokens
if given.draft == "lookup":
    config.max_ngram_size = 4
eos_ids = eos_of(given.target)
config.stop_token_ids = set(eos_ids)

prompts = read_ids(given.prompts)
arm = {"none": "plain", "lookup": "prompt lookup"}.get(given.draft, f"draft model, K = {given.num_assistant_tokens}")
greedy = given.temperature == 0
law = {"temperature": given.temperature} if greedy else {"temperature": given.temperature, "top_p": given.top_p}
texts = Texts(given.out, f"OpenVINO GenAI {genai.get_version()}, {given.precision}", arm, law)
rounds = 0
while texts.num_tokens < given.tokens or rounds < (1 if greedy else 2):
    for number, ids in enumerate(prompts):
        config.rng_seed = given.seed + rounds * len(prompts) + number
        ids_tensor = ov.Tensor(np.array([ids], dtype=np.int64))
        inputs = genai.TokenizedInputs(ids_tensor, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
        result = pipeline.generate(inputs, config)
        made = list(result.tokens[0])
        finish = "stop" if len(made) < given.max_new_tokens else "length"
        texts.add(number, ids, ended(made, finish, eos_ids))
    rounds += 1
    texts.save(rounds=rounds)
    if greedy:
        break
