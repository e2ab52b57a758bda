"""Texts of transformers' assisted generation, and of its plain decoding, for `draftproof audit texts`.

    python texts_transformers.py TARGET_FOLDER DRAFT_FOLDER|lookup|none IDS.json OUT.json [--temperature 1]
        [--top-p 1] [--tokens 30000] [--max-new-tokens 128] [--dtype float32] [--seed 0]

Needs torch and transformers. One text at a time: assisted generation refuses batches. `none` is the baseline.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from peer_texts import Texts, read_ids
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("target")
parser.add_argument("draft")
parser.add_argument("prompts")
parser.add_argument("out")
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--top-p", type=float, default=1.0)
parser.add_argument("--tokens", type=int, default=30_000)
parser.add_argument("--max-new-tokens", type=int, default=128)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--num-assistant-tokens", type=int, default=4)
given = parser.parse_args()

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
greedy = given.temperature == 0
if not greedy:  # top_k is 50 unless it is turned off
    options |= {"do_sample": True, "temperature": given.temperature, "top_p": given.top_p, "top_k": 0}
else:
    options["do_sample"] = False

prompts = read_ids(given.prompts)
arm = {"none": "plain", "lookup": "prompt lookup"}.get(given.draft, f"draft model, K = {given.num_assistant_tokens}")
law = {"temperature": given.temperature} if greedy else {"temperature": given.temperature, "top_p": given.top_p}
texts = Texts(given.out, f"transformers {transformers.__version__}, {given.dtype}", arm, law)
rounds = 0
while texts.num_tokens < given.tokens or rounds < (1 if greedy else 2):
    for number, ids in enumerate(prompts):
        torch.manual_seed(given.seed + rounds * len(prompts) + number)
        prompt = torch.tensor([ids])
        made = target.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=given.max_new_tokens, **options
        )
        texts.add(number, ids, made[0, len(ids) :].tolist())
    rounds += 1
    texts.save(rounds=rounds)
    if greedy:
        break
