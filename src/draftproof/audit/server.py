"""Texts from any server that speaks the OpenAI completions protocol.

Prompts go as token ids, so that no template or tokenizer of the server takes part; servers that refuse ids get text.
Ids of what was generated are asked for in the ways vLLM, SGLang and llama.cpp know; without them only whole texts can
be compared.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from ..engine.engine import TextCodec
from ..errors import ServerError
from ..params import SamplingParams
from .texts import Arm, Text

EXTRAS = {"return_token_ids": True, "return_tokens": True}
"""Asks vLLM and llama.cpp for ids; left out for servers that refuse what they do not know."""
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class _Reply:
    text: str
    token_ids: tuple[int, ...] | None
    finish: str | None


class Server:
    """One server.

    Args:
        url: with or without `/v1`.
        model: its name there; None takes the first it lists.
        key: for servers that want one.
        timeout: seconds for one continuation.

    Raises:
        ServerError: it cannot be reached, or lists no model.
    """

    def __init__(self, url: str, model: str | None = None, key: str | None = None, timeout: float = 600.0):
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key, self._timeout = key, timeout
        self._as_text = self._plain = False
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        listed = self._call("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ServerError(f"server {self.url} lists no model: name one by --model") from None

    def complete(self, prompt_ids: Sequence[int], prompt: str, params: SamplingParams) -> _Reply:
        """One continuation; what the server refuses (ids as prompt, asking for ids) is left out from then on."""
        while True:
            body = self._body(prompt_ids, prompt, params)
            try:
                return _read(self._call("/v1/completions", body), self.url)
            except _RefusedError as refusal:
                if not self._plain:
                    self._plain = True
                elif not self._as_text:
                    self._as_text = True
                else:
                    raise ServerError(f"server {self.url} refuses to complete: {refusal}") from None

    def _body(self, prompt_ids: Sequence[int], prompt: str, params: SamplingParams) -> dict[str, Any]:
        defaults = SamplingParams()
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt if self._as_text else list(prompt_ids),
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
        }
        body |= {f: getattr(params, f) for f in FIELDS if getattr(params, f) != getattr(defaults, f)}
        return body if self._plain else {**body, **EXTRAS}

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            said = " ".join(error.read().decode(errors="replace").split())[:200]
            if error.code in (400, 422) and body is not None:
                raise _RefusedError(f"{error.code} {said}") from None
            raise ServerError(f"server {self.url}{path} answered {error.code}: {said}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerError(f"server {self.url} cannot be used: {reason}") from None


class _RefusedError(Exception):
    """The server did not take the request as it was."""


def _read(reply: Any, url: str) -> _Reply:
    try:
        choice = reply["choices"][0]
        text = choice["text"]
    except (KeyError, IndexError, TypeError):
        raise ServerError(f"server {url} answered without choices: {json.dumps(reply)[:120]}") from None
    return _Reply(str(text), _ids(choice), choice.get("finish_reason"))


def _ids(choice: dict[str, Any]) -> tuple[int, ...] | None:
    """Token ids in one of the forms servers give them in."""
    for key in ("token_ids", "tokens"):
        value = choice.get(key)
        if isinstance(value, list) and value and all(isinstance(i, int) for i in value):
            return tuple(value)
    named = (choice.get("logprobs") or {}).get("tokens")
    if named and all(isinstance(name, str) and name.startswith("token_id:") for name in named):
        return tuple(int(name.removeprefix("token_id:")) for name in named)
    return None


@dataclass(frozen=True)
class Collected:
    """An arm from a server, and whether its ids are the server's own."""

    arm: Arm
    with_ids: bool


def collect(
    server: Server,
    name: str,
    prompts: Sequence[Sequence[int]],
    codec: TextCodec,
    eos_ids: Collection[int],
    params: SamplingParams,
    tokens: int,
    seed: int,
    at_once: int = 8,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> Collected:
    """Continuations of all prompts in turn until there are enough tokens, at least two of each.

    The end-of-text id is added where a text ended by itself and the server left it out: that a text ended is part of
    what is tested.

    Raises:
        ServerError: the server fails.
    """
    texts: list[Text] = []
    with_ids, num_tokens = True, 0
    rounds = 1 if params.greedy else 2
    with ThreadPoolExecutor(at_once) as pool:
        while num_tokens < tokens or len(texts) < rounds * len(prompts):
            jobs = [
                pool.submit(server.complete, ids, codec.decode(ids), replace(params, seed=seed + len(texts) + i))
                for i, ids in enumerate(prompts)
            ]
            for i, job in enumerate(jobs):
                reply = job.result()
                with_ids &= reply.token_ids is not None
                made = reply.token_ids or tuple(codec.encode(reply.text))
                if reply.finish == "stop" and eos_ids and (not made or made[-1] not in eos_ids):
                    made = (*made, min(eos_ids))
                texts.append(Text(i, tuple(prompts[i]), made))
                num_tokens += len(made)
                progress(min(num_tokens, tokens), tokens, f"tokens of {name}")
            if params.greedy:
                break
    return Collected(Arm(server.url, name, params, texts, {"model": server.model}), with_ids)
