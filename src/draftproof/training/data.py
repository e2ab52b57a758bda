"""Where training text comes from: the target's own conversations, its answers to given prompts, and public text.

Conversations go through the engine that serves, in its chat template, so that what is learned from is what is served,
token for token; the mask is on the answers. Public text is read as it is, and counts everywhere.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine import Engine
from ..errors import OptionError, PromptError, TrainingError
from ..models.codec import Codec
from ..params import SamplingParams
from .corpus import Sample
from .files import digest
from .making import Made, key_of

_MARK = "\u2983draft\u2984"
_SHORTEST, _LONGEST = 8, 4000  # characters of a question
_READ = 400_000  # characters of a file
SUFFIXES = (".py", ".md", ".rst", ".txt", ".c", ".h", ".cpp", ".js", ".ts", ".java", ".go", ".rs", ".html", ".tex")

Message = Mapping[str, str]


@dataclass(frozen=True)
class Answering:
    """How answers are drawn.

    Fields:
        temperatures: each conversation has one of them, by chance; 0 is greedy.
        max_new_tokens: of an answer.
        max_length: tokens of a conversation; longer ones end there.
        unit: conversations of a unit.
        seed: of everything.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7)
    max_new_tokens: int = 384
    max_length: int = 1024
    unit: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise OptionError("give at least one temperature for the answers")
        for name, lowest in (("max_new_tokens", 1), ("max_length", 16), ("unit", 1), ("seed", 0)):
            if getattr(self, name) < lowest:
                raise OptionError(f"{name} must be at least {lowest}, not {getattr(self, name)!r}")

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "temperatures": list(self.temperatures)}


class _Talk:
    """Conversations of a unit, turn by turn, in one engine."""

    def __init__(self, engine: Engine, answering: Answering, name: str):
        self._engine, self._answering, self._name = engine, answering, name
        self.codec = _codec(engine)

    def answer(self, talks: Sequence[_Conversation], first: int) -> None:
        """Let the target answer each talk's next turn; `first` is the first one's number among all."""
        prompts, params, asked = [], [], []
        for place, talk in enumerate(talks):
            if not talk.waiting:
                continue
            ids = self.codec.encode_chat(talk.next_messages())
            room = min(self._answering.max_length, getattr(self._engine.target, "max_length", 1 << 30)) - len(ids)
            if room < 8:
                talk.waiting.clear()
                continue
            number, turn = first + place, len(talk.history)
            choices = self._answering.temperatures
            temperature = choices[_seed(self._answering.seed, "temperature", number) % len(choices)]
            prompts.append(ids)
            asked.append(talk)
            params.append(
                SamplingParams(
                    temperature=temperature,
                    max_new_tokens=min(self._answering.max_new_tokens, room),
                    seed=_seed(self._answering.seed, self._name, number, turn),
                )
            )
        results = self._engine.generate(prompts, params) if prompts else []
        for talk, ids, result in zip(asked, prompts, results):
            talk.answered(ids, list(result.token_ids), result.text)


class _Conversation:
    """One conversation: turns that wait for an answer, what was said, and the samples it gives.

    A turn whose ids begin with all of the conversation before it is one sample with it; where the template lays earlier
    turns out differently (as templates do that drop an answer's thoughts), each is a sample of its own.
    """

    def __init__(self, messages: Sequence[Message], turns: Sequence[str], category: str):
        self.history: list[Message] = list(messages)
        self.waiting = list(turns)
        self._category = category
        self._question = "\n".join([*(m["content"] for m in messages if m["role"] != "assistant"), *turns])
        self._done: list[tuple[list[int], list[bool]]] = []

    def next_messages(self) -> list[Message]:
        return [*self.history, {"role": "user", "content": self.waiting[0]}]

    def answered(self, prompt: list[int], answer: list[int], text: str) -> None:
        self.history = [*self.next_messages(), {"role": "assistant", "content": text}]
        del self.waiting[0]
        before, mask = self._done[-1] if self._done else ([], [])
        if before and prompt[: len(before)] == before:
            self._done.pop()
        else:
            before, mask = [], []
        mask = [*mask, *[False] * (len(prompt) - len(before)), *[True] * len(answer)]
        self._done.append(([*prompt, *answer], mask))

    def made(self) -> list[Made]:
        text = "\n".join(m["content"] for m in self.history)
        return [
            Made(Sample(tuple(ids), tuple(mask), self._category, f"{key_of(self._question)}{part or ''}"), text)
            for part, (ids, mask) in enumerate(self._done)
        ]


class SelfWritten:
    """Questions the target writes itself in an empty or begun user turn, and its answers (Magpie, 2406.08464).

    Args:
        engine: over the target.
        num: how many conversations, rounded up to whole units.
        openers: how user turns may begin, by domain; conversations take turns with the domains.
        question_temperature: of the questions.
    """

    name = "self"

    def __init__(
        self,
        engine: Engine,
        answering: Answering,
        num: int,
        openers: Mapping[str, Sequence[str]],
        question_temperature: float = 1.0,
    ):
        if not openers or not all(openers.values()):
            raise OptionError("self-written conversations need at least one domain with an opener")
        self._engine, self._answering, self._temperature = engine, answering, question_temperature
        self._talk = _Talk(engine, answering, self.name)
        self._openers = {domain: tuple(some) for domain, some in openers.items()}
        self._num_units = -(-num // answering.unit)
        self._before, self._after = user_turn(self._talk.codec)
        openers_digest = digest({k: list(v) for k, v in self._openers.items()})
        self.settings = {
            **answering.to_dict(), "domains": sorted(openers), "openers": openers_digest,
            "question_temperature": question_temperature,
        }  # fmt: skip

    def enough(self, number: int, num_tokens: int) -> bool:
        return number >= self._num_units

    def make(self, number: int) -> list[Made]:
        """A unit's questions in one batch, then its answers."""
        _forget(self._engine)
        unit, seed, domains = self._answering.unit, self._answering.seed, list(self._openers)
        first = number * unit
        begun, prompts, params = [], [], []
        for n in range(first, first + unit):
            domain = domains[n % len(domains)]
            choice = random.Random(_seed(seed, "opener", n)).choice(self._openers[domain])
            begun.append((domain, choice))
            prompts.append(self._talk.codec.tokenizer(self._before + choice, add_special_tokens=False)["input_ids"])
            params.append(
                SamplingParams(
                    temperature=self._temperature, top_p=0.95, max_new_tokens=self._answering.max_length // 3,
                    seed=_seed(seed, "question", n), stop=(self._after,) if self._after.strip() else (),
                )
            )  # fmt: skip
        results = self._engine.generate(prompts, params)
        talks = []
        for (domain, choice), result in zip(begun, results):
            question = (choice + result.text).strip()
            good = result.finish_reason == "stop" and _SHORTEST <= len(question) <= _LONGEST
            talks.append(_Conversation([], [question] if good else [], domain))
        self._talk.answer(talks, first)
        return [made for talk in talks for made in talk.made()]


class Answered:
    """The target's answers to given prompts.

    Args:
        prompts: (category, messages so far, user turns still to be answered) of each conversation.
        repeats: answers of each, by other seeds.
    """

    def __init__(
        self,
        engine: Engine,
        answering: Answering,
        prompts: Sequence[tuple[str, Sequence[Message], Sequence[str]]],
        repeats: int = 1,
    ):
        if not prompts:
            raise PromptError("expected prompts to answer and got none")
        stated = digest([[c, [dict(m) for m in messages], list(turns)] for c, messages, turns in prompts])
        self.name = f"prompts-{stated[:8]}"
        self.settings = {**answering.to_dict(), "prompts": stated}
        self._engine, self._unit = engine, answering.unit
        self._talk = _Talk(engine, answering, self.name)
        self._prompts = [prompt for _ in range(repeats) for prompt in prompts]
        self._once = len(prompts)

    def enough(self, number: int, num_tokens: int) -> bool:
        return number * self._unit >= len(self._prompts)

    def make(self, number: int) -> list[Made]:
        _forget(self._engine)
        first = number * self._unit
        some = self._prompts[first : first + self._unit]
        talks = [_Conversation(messages, turns, category or "prompts") for category, messages, turns in some]
        while any(talk.waiting for talk in talks):
            self._talk.answer(talks, first)
        made = []
        for place, talk in enumerate(talks):
            repeat = (first + place) // self._once
            for one in talk.made():
                sample = one.sample
                key = f"{sample.key}#{repeat}" if repeat else sample.key
                made.append(Made(Sample(sample.ids, sample.answer, sample.category, key), one.text))
        return made


class PublicText:
    """Files of a folder as they are, cut into pieces; the target's law of every token counts.

    Args:
        codec: of the target.
        folder: searched for text files by suffix, or one file.
        max_tokens: enough is enough; None takes all.
        length: tokens of a piece.
        files: files of a unit.
    """

    def __init__(
        self, codec: Codec, folder: Path, *, max_tokens: int | None, length: int, seed: int = 0, files: int = 64
    ):
        found = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES)
        found = [path for path in found if path.is_file()]
        if not found:
            raise TrainingError(f"{folder} holds no text: expected files ending in {', '.join(SUFFIXES)}")
        names = [str(path.relative_to(folder)) if path != folder else path.name for path in found]
        random.Random(seed).shuffle(order := list(range(len(found))))
        self._files, self._root = [found[i] for i in order], folder
        self._codec, self._most, self._length, self._per_unit = codec, max_tokens, length, files
        stated = digest([names, [path.stat().st_size for path in found]])
        self.name = f"text-{stated[:8]}"
        self.settings = {"files": len(found), "digest": stated, "length": length, "seed": seed, "per_unit": files}

    def enough(self, number: int, num_tokens: int) -> bool:
        return number * self._per_unit >= len(self._files) or (self._most is not None and num_tokens >= self._most)

    def make(self, number: int) -> list[Made]:
        made = []
        for path in self._files[number * self._per_unit : (number + 1) * self._per_unit]:
            try:
                text = path.read_text(encoding="utf-8")[:_READ]
            except (OSError, UnicodeDecodeError):
                continue  # not text after all
            if "\0" in text or not text.strip():
                continue
            ids = self._codec.encode(text)
            for start in range(0, len(ids), self._length):
                piece = ids[start : start + self._length]
                if len(piece) < 32:
                    continue
                said = self._codec.decode(piece)
                mask = (False, *(True,) * (len(piece) - 1))
                made.append(Made(Sample(tuple(piece), mask, f"text {path.suffix}", key_of(said)), said))
        return made


def user_turn(codec: Codec) -> tuple[str, str]:
    """What the chat template puts before a user's words, and the visible text after them.

    Raises:
        PromptError: there is no template, or it changes the words.
    """
    if not codec.has_chat_template:
        raise PromptError(
            f"{codec.name} has no chat template, so it cannot write conversations: give --prompts or --text"
        )
    text = codec.lay_out([{"role": "user", "content": _MARK}])
    before, found, after = text.partition(_MARK)
    if not found:
        raise PromptError(f"the chat template of {codec.name} changes a user's words: give --prompts or --text instead")
    visible = codec.decode(codec.tokenizer(after, add_special_tokens=False)["input_ids"])
    return before, visible


def _codec(engine: Engine) -> Codec:
    if not isinstance(engine.codec, Codec):
        raise PromptError("this target has no tokenizer, so it cannot write conversations")
    return engine.codec


def _forget(engine: Engine) -> None:
    """Let a unit not depend on what earlier ones left in the cache."""
    forget = getattr(engine.target, "forget", None)
    if forget is not None:
        forget()


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")
