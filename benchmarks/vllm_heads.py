"""Do EAGLE-3 and Medusa heads that we write run in vLLM, and does it accept what we accept?

    python benchmarks/vllm_heads.py write HEADS [--target smollm2-135m]
    VLLM/bin/python benchmarks/vllm_heads.py vllm TARGET_FOLDER HEADS/eagle3-speculators
    python benchmarks/vllm_heads.py ours TARGET_FOLDER HEADS/eagle3-speculators

`write` makes random but valid heads for a target: EAGLE-3 in the speculators and the original layout, Medusa in vLLM's.
The other two generate greedily with one of them, by vLLM (its own environment) or by draftproof, both in bfloat16, and
print one JSON line with the number of drafted and accepted tokens.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

PROMPTS = ["The capital of France is", "1 2 3 4 5 6 7 8 9", "def add(a, b):\n    return", "the the the the the the the"]
NUM_DRAFTED, NUM_TOKENS = 3, 48


def write(folder: Path, target: str) -> None:
    """Heads that copy what the target knows at a late layer, with random attention: wrong mostly, right sometimes."""
    import torch

    from draftproof.models.hf import load_model
    from draftproof.nets.eagle import EagleConfig, EagleNet
    from draftproof.nets.eagle_files import EagleCheckpoint, write_eagle
    from draftproof.nets.medusa import MedusaConfig, MedusaNet
    from draftproof.nets.medusa_files import MedusaCheckpoint, write_medusa

    torch.manual_seed(0)
    model = load_model(target, device="cpu").model
    known, output = model.config, model.get_output_embeddings().weight.data
    hidden, vocab = known.hidden_size, known.vocab_size
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    layer = {key: getattr(known, key) for key in (*keys, "rms_norm_eps", "max_position_embeddings")}
    layer |= {"model_type": "llama", "num_hidden_layers": 1, "rope_theta": 10000.0, "hidden_act": "silu"}
    ids = torch.arange(0, vocab, 2)
    net = EagleNet(EagleConfig(3, layer, hidden, len(ids), own_embedding=False))
    for name, weight in net.named_parameters():
        torch.nn.init.ones_(weight) if "norm" in name else torch.nn.init.normal_(weight, std=0.02)
    net.fc.weight.data[:, 2 * hidden :] += torch.eye(hidden)
    net.norm.weight.data = model.model.norm.weight.data.float()  # type: ignore[union-attr]
    net.lm_head.weight.data = output[ids].float()  # type: ignore[union-attr]
    tensors = {name: t.to(torch.bfloat16) for name, t in net.state_dict().items()}
    mask = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    eagle = EagleCheckpoint(net.config, {**tensors, "d2t": ids - torch.arange(len(ids)), "t2d": mask})
    write_eagle(eagle, folder / "eagle3-speculators", "speculators", target=target)
    write_eagle(eagle, folder / "eagle3-original", "original", target=target)

    heads = MedusaNet(MedusaConfig(NUM_DRAFTED, 1, hidden, vocab, vocab))
    for name, weight in heads.named_parameters():
        weight.data = output.clone() if "lm_heads" in name else 0.02 * torch.randn_like(weight)
    tensors = {name: t.to(torch.bfloat16) for name, t in heads.state_dict().items()}
    write_medusa(MedusaCheckpoint(heads.config, tensors), folder / "medusa-vllm", "vllm", target=target)


def vllm(target: str, head: Path) -> dict[str, Any]:
    """Greedy text and counts from vLLM on the CPU."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM, SamplingParams

    method = "medusa" if "medusa" in head.name else "eagle3"
    speculative = {"method": method, "model": str(head), "num_speculative_tokens": NUM_DRAFTED}
    llm = LLM(
        model=target,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        speculative_config=speculative,
        disable_log_stats=False,
    )
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
    counts = {
        m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode") and hasattr(m, "value")
    }
    return {
        "texts": [o.outputs[0].token_ids[:12] for o in outputs],
        "drafted": counts.get("vllm:spec_decode_num_draft_tokens"),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens"),
    }


def ours(target: str, head: Path) -> dict[str, Any]:
    """The same from draftproof."""
    import draftproof as dp

    name = "medusa" if "medusa" in head.name else "eagle"
    options = {"max_draft": NUM_DRAFTED, "dtype": "bfloat16", "draft_weights": "dense", "adaptive": False}
    engine = dp.load(target, f"{name}:{head}", **options)  # type: ignore[arg-type]
    params = dp.SamplingParams(temperature=0, max_new_tokens=NUM_TOKENS, ignore_eos=True)
    results = engine.generate(PROMPTS, params)
    return {
        "texts": [r.token_ids[:12] for r in results],
        "drafted": sum(r.stats.num_drafted for r in results),
        "accepted": sum(r.stats.num_accepted for r in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("heads", type=Path)
    writing.add_argument("--target", default="smollm2-135m")
    for name in ("vllm", "ours"):
        running = commands.add_parser(name)
        running.add_argument("target")
        running.add_argument("head", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write(arguments.heads, arguments.target)
        return
    run = {"vllm": vllm, "ours": ours}[arguments.command]
    result = run(arguments.target, arguments.head)
    print(json.dumps({"engine": arguments.command, "head": arguments.head.name, **result}), flush=True)


if __name__ == "__main__":
    main()
