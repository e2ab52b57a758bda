"""The target's tokenizer as the engine needs it: text or chat to ids, ids to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import PromptError


class Codec:
    """Wraps a Hugging Face tokenizer.

    Args:
        name: the model's, for messages.
        template_flags: variables of the chat template besides the messages, such as whether to think aloud.
    """

    def __init__(self, tokenizer: Any, name: str, template_flags: Mapping[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.name = name
        self.template_flags = dict(template_flags or {})

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Ids of a raw text, with the special tokens the tokenizer itself adds."""
        return list(self.tokenizer(text)["input_ids"])

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation in the model's chat template, ready for the assistant's next turn.

        Raises:
            PromptError: no template, or messages it refuses.
        """
        return list(self.tokenizer(self.lay_out(messages), add_special_tokens=False)["input_ids"])

    def lay_out(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text whose ids `encode_chat` gives.

        Raises:
            PromptError: as `encode_chat`.
        """
        if not self.has_chat_template:
            raise PromptError(f"{self.name} has no chat template: give the prompt as plain text")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise PromptError(f"a message needs a role and a content, both strings, not {dict(message)!r:.80}")
        if not messages:
            raise PromptError("the conversation is empty: give at least one message")
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False, **self.template_flags
            )
        except Exception as error:  # templates are programs and raise what they like
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise PromptError(f"the chat template of {self.name} refuses these messages: {reason[0]}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; an unfinished character shows as U+FFFD."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
