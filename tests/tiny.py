"""Toy tokenizers and model folders for tests, and the tiny random models of the auditor: no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.audit.tiny import tiny_llama as tiny_llama
from draftproof.audit.tiny import tiny_model as tiny_model

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
TEXT_VOCAB = len(BYTES) + len(SPECIALS)  # 259: the smallest vocabulary that can hold any text
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ 'assistant' if message['role'] == 'assistant' else 'user' }}|>"
    "{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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
