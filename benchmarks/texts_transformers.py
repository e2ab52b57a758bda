"""Texts of transformers' assisted generation, and of its plain decoding, for `draftproof audit texts`.

    python texts_transformers.py TARGET_FOLDER DRAFT_FOLDER|lookup|none IDS.json OUT.json [--temperature 1]
        [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--dtype float32] [--seed 0]

Needs torch and transformers. One text at a time: assisted generation refuses batches. `none` is the baseline.
"""

from __future__ import annotations

import torch
import transformers
from peer_texts import Texts, law, parse, read_ids, rounds
from transformers import AutoModelForCausalLM

given = parse(__doc__, "target", "draft", "prompts", "out", dtype="float32", num_assistant_tokens=4)

transformers.logging.set_verbosity_error()
torch.set_grad_enabled(False)


def load(folder: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, given.dtype)).eval()


target = load(given.target)
ends = {name: getattr(target.generation_config, name) for name in ("eos_token_id", "pad_token_id")}
target.generation_config = transformers.GenerationConfig(**ends)  # no penalty or filter that the checkpoint suggests
options: dict[str, object] = {}
if given.draft == "lookup":
    options["prompt_lookup_num_tokens"] = given.num_assistant_tokens
elif given.draft != "none":
    assistant = load(given.draft)
    assistant.generation_config.num_assistant_tokens = given.num_assistant_tokens
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    options["assistant_model"] = assistant
if given.temperature > 0:  # top_k is 50 unless it is turned off
    options |= {"do_sample": True, "temperature": given.temperature, "top_p": given.top_p, "top_k": 0}
else:
    options["do_sample"] = False

prompts = read_ids(given.prompts)
arm = {"none": "plain", "lookup": "prompt lookup"}.get(given.draft, f"draft model, K = {given.num_assistant_tokens}")
texts = Texts(given.out, f"transformers {transformers.__version__}, {given.dtype}", arm, law(given))
for seeds in rounds(texts, given, len(prompts)):
    for number, (ids, seed) in enumerate(zip(prompts, seeds)):
        torch.manual_seed(seed)
        prompt = torch.tensor([ids])
        made = target.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=given.max_new_tokens, **options
        )
        texts.add(number, ids, made[0, len(ids) :].tolist())
