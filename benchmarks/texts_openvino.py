"""Texts of OpenVINO GenAI, with a draft model, prompt lookup or neither, for `draftproof audit texts`.

    python -m venv ov && ov/bin/pip install openvino-genai openvino-tokenizers optimum-intel nncf
    ov/bin/optimum-cli export openvino --model TARGET_FOLDER --task text-generation-with-past \\
        --weight-format fp16 ov-target
    ov/bin/python texts_openvino.py ov-target ov-draft|lookup|none IDS.json OUT.json
        [--temperature 1] [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--precision bf16] [--seed 0]

The baseline (`none`) runs through the same continuous-batching pipeline, so that only speculation differs.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino_genai as genai
from peer_texts import Texts, ended, eos_of, law, parse, read_ids, rounds

given = parse(__doc__, "target", "draft", "prompts", "out", precision="bf16", num_assistant_tokens=4)

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
texts = Texts(given.out, f"OpenVINO GenAI {genai.get_version()}, {given.precision}", arm, law(given))
for seeds in rounds(texts, given, len(prompts)):
    for number, (ids, seed) in enumerate(zip(prompts, seeds)):
        config.rng_seed = seed
        ids_tensor = ov.Tensor(np.array([ids], dtype=np.int64))
        inputs = genai.TokenizedInputs(ids_tensor, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
        result = pipeline.generate(inputs, config)
        made = list(result.tokens[0])
        finish = "stop" if len(made) < given.max_new_tokens else "length"
        texts.add(number, ids, ended(made, finish, eos_ids))
