"""Tiny random models and toy tokenizers for tests: built from configs, no network, a few milliseconds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedTokenizerFast

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
TEXT_VOCAB = len(BYTES) + len(SPECIALS)  # 259: the smallest vocabulary that can hold any text
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ 'assistant' if message['role'] == 'assistant' else 'user' }}|>"
    "{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_llama(seed: int = 0, **overrides: Any) -> Any:
    """A random Llama: vocab 128, hidden 64, 2 layers, 4 heads, 2 KV heads, 256 positions, fp32, CPU, no end-of-text."""
    settings: dict[str, Any] = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return tiny_model(LlamaConfig(**{**settings, **overrides}), seed)


def tiny_model(config: PretrainedConfig, seed: int = 0) -> Any:
    """The causal language model of any config with random weights that depend on `seed` alone; fp32, CPU, eval."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def byte_tokenizer(
    extra: tuple[str, ...] = (),
    *,
    merges: tuple[tuple[str, str], ...] = (),
    specials: tuple[str, ...] = SPECIALS,
    order: list[str] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: 256 bytes (in `order`), merged pairs, `extra` ordinary entries, then the specials.

    Without arguments it has TEXT_VOCAB ids, of which the first special, `<|end|>` (256), is the end of text.
    """
    entries = [*(order or BYTES), *(left + right for left, right in merges), *extra]
    vocab = {text: i for i, text in enumerate(entries)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(list(specials))
    eos = specials[0] if specials else None
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = chat_template
    return tokenizer


def save_tiny(folder: Path | str, model: Any, tokenizer: Any = True) -> Path:
    """Write a model folder as transformers lays it out; `tokenizer`: True (the byte tokenizer), one of yours, or False.

    With the byte tokenizer the model needs a vocabulary of at least TEXT_VOCAB ids.
    """
    folder = Path(folder)
    model.save_pretrained(folder)
    if tokenizer is True:
        if model.config.get_text_config().vocab_size < TEXT_VOCAB:
            raise ValueError(f"the byte tokenizer has {TEXT_VOCAB} ids; give the model vocab_size={TEXT_VOCAB} or more")
        tokenizer = byte_tokenizer()
    if tokenizer:
        tokenizer.save_pretrained(folder)
    return folder
