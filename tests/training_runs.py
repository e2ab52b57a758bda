"""Tiny targets, texts and runs for the tests of training: a few thousand tokens, a second or two each."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

import draftproof as dp
from draftproof.models.forwards import make_forward
from draftproof.models.hf import LoadedModel, load_model
from draftproof.training.batch import Batch, collate, pack
from draftproof.training.corpus import CorpusFolder, Sample
from draftproof.training.identity import identify
from draftproof.training.recipe import Recipe
from draftproof.training.run import Plan
from draftproof.training.settings import Settings
from draftproof.training.teacher import Teacher
from tiny import TEXT_VOCAB, save_tiny, tiny_llama

FUSED = (0, 2, 3)
SETTINGS: dict[str, Any] = {
    "length": 48, "rows": 2, "lr": 3e-3, "precision": "fp32", "held_out": 6, "depth": 3, "eval_every": 8,
    "save_every": 3, "log_every": 1,
}  # fmt: skip


def tiny_target(folder: Path, seed: int = 3, **overrides: Any) -> Path:
    """Four layers, a vocabulary of bytes, weights that make sharp laws."""
    own = {"vocab_size": TEXT_VOCAB, "num_hidden_layers": 4, "eos_token_id": 256, "rms_norm_eps": 1e-5}
    return save_tiny(folder, tiny_llama(seed, **{**own, "initializer_range": 0.2, **overrides}))


def samples(num: int = 40, seed: int = 0, longest: int = 40) -> list[Sample]:
    """Texts of a small alphabet with some regularity, each a prompt and an answer."""
    chance = random.Random(seed)
    made = []
    for _ in range(num):
        size = chance.randrange(12, longest)
        start = chance.randrange(60, 90)
        ids = tuple((start + i * i % 7 + chance.randrange(2)) % 120 for i in range(size))
        prompt = chance.randrange(3, 8)
        mask = tuple(i >= prompt for i in range(size))
        made.append(Sample(ids, mask, f"kind {size % 2}", str(len(made))))
    return made


def answers(target, temperature, num=24, size=24) -> list[Sample]:
    """What the target says to beginnings of these texts."""
    engine = dp.load(str(target), dtype="float32", weights="dense", bitwise=False)
    prompts = [list(s.ids[:6]) for s in samples(num)]
    params = [
        dp.SamplingParams(temperature=temperature, max_new_tokens=size, ignore_eos=True, seed=i) for i in range(num)
    ]
    results = engine.generate(prompts, params)
    return [
        Sample((*p, *r.token_ids), (False,) * len(p) + (True,) * len(r.token_ids)) for p, r in zip(prompts, results)
    ]


def write_corpus(folder: Path, target: Path, given: list[Sample] | None = None) -> Path:
    """A data folder of these samples, as if the target had made them."""
    tokenizer = load_model(target).tokenizer
    made = CorpusFolder(folder, {"identity": identify(str(target), tokenizer).to_dict(), "settings": {}})
    made.write("self", 0, given or samples(), {"duplicates": 0, "excluded": 0})
    return folder


def loaded(target: Path) -> LoadedModel:
    return load_model(target, dtype="float32")


def teacher_of(recipe: Recipe, target: Path, temperature: float = 1.0) -> Teacher:
    forward = make_forward(loaded(target), weights="dense", bitwise=False)
    return Teacher(forward, recipe.taps, recipe.vocab, temperature)


def batch_of(given: list[Sample], length: int = 48) -> Batch:
    """One batch of them all."""
    return collate([[given[i] for i in row] for row in pack(given, length, range(len(given)))], length)


def plan(kind: str, target: Path, data: Path, **changes: Any) -> Plan:
    options = {"eagle": {"layers": FUSED, "num_steps": 3}, "medusa": {"num_heads": 3}, "distill": {"layers": 2}}[kind]
    given: dict[str, Any] = {
        "kind": kind, "target": str(target), "data": (data,), "options": options, "draft_vocab": 64,
        "load": {"dtype": "float32", "device": "cpu"}, "weights": "dense",
    }  # fmt: skip
    return Plan(**{**given, **changes})


def settings(**changes: Any) -> Settings:
    return Settings(**{**SETTINGS, **changes})


def rounded(net: torch.nn.Module) -> None:
    """Weights that survive being written in bfloat16."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16().float())
