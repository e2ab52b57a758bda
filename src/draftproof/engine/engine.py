"""The engine: sequences in, text out. It holds objects that satisfy the protocols and knows none of their kinds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

from ..errors import OptionError, PromptError
from ..interfaces import Drafter, RandomSource, Target, Verifier
from ..sampling import SeededSource
from ..types import GenerationResult, SamplingParams, SequenceState, StreamEvent
from .budget import Budget, FixedBudget, most_nodes
from .output import Output
from .scheduler import Scheduler
from .step import step

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


class TextCodec(Protocol):
    """The target's tokenizer, as the engine needs it."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Engine:
    """Batched, continuous, lossless generation. Threads may share an engine: rounds are taken one at a time.

    Args:
        target: scores drafts; has at least `max_batch` rows.
        drafter: proposes them.
        verify: the exact rule.
        codec: text to ids and back; None allows prompts of ids only.
        eos_ids: the model's own end-of-text ids.
        max_draft: at most this many nodes per sequence and round.
        max_batch: at most this many sequences at a time; more wait.
        config: what was loaded, for reports.
        budget: how much of that; None is as much as there is room for.
        make_source: seed and index of a continuation to its source of chance.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        verify: Verifier,
        codec: TextCodec | None = None,
        *,
        eos_ids: Collection[int] = (),
        max_draft: int = 8,
        max_batch: int = 8,
        config: dict[str, Any] | None = None,
        budget: Budget | None = None,
        make_source: Callable[[int, int], RandomSource] = SeededSource,
    ):
        for name, value, lowest in (("max_draft", max_draft, 0), ("max_batch", max_batch, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise OptionError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        self.target = target
        self.drafter = drafter
        self.verify = verify
        self.codec = codec
        self.eos_ids = frozenset(eos_ids)
        self.max_draft = max_draft
        self.max_batch = max_batch
        self.config = config or {}
        self.budget: Budget = FixedBudget() if budget is None else budget
        self._make_source = make_source
        self._lock = getattr(target, "lock", None) or threading.RLock()  # engines over one target share its lock
        self._scheduler = Scheduler(max_batch)
        self._mailboxes: dict[int, deque[StreamEvent]] = {}
        self._next_id = 0

    # -- the whole job ------------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[GenerationResult]:
        """Continue every prompt.

        Args:
            prompts: a string, a list of strings, of chat message lists, or of token id lists; a single id list or
                message list is one prompt.
            params: one for all, or one per prompt; None is `SamplingParams()`.

        Returns:
            Results in input order; with `n` above 1, a prompt's continuations follow each other.

        Raises:
            PromptError: an empty prompt, or one longer than the context.
            OptionError: impossible parameters.
        """
        outputs = self._queue(self._checked(prompts, params))
        try:
            while any(output.sequence.finish is None for output in outputs):
                self.step()
        finally:
            for output in outputs:
                self.abort(output.sequence.id)
        return [output.result() for output in outputs]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamEvent]:
        """Continue one prompt, an event per round; closing the iterator aborts it.

        Raises:
            PromptError, OptionError: as `generate`, before the first event.
        """
        return self._events(self._checked([prompt], params))

    def _events(self, checked: list[tuple[list[int], SamplingParams]]) -> Iterator[StreamEvent]:
        outputs = self._queue(checked)
        mailbox: deque[StreamEvent] = deque()
        self._mailboxes.update((output.sequence.id, mailbox) for output in outputs)
        try:
            while mailbox or any(output.sequence.finish is None for output in outputs):
                if mailbox:
                    yield mailbox.popleft()
                else:
                    self.step()
        finally:
            for output in outputs:
                self.abort(output.sequence.id)
                del self._mailboxes[output.sequence.id]

    # -- one sequence at a time ---------------------------------------------------------------------------------

    def add(self, prompt: Prompt, params: SamplingParams | None = None, prompt_index: int = 0) -> list[int]:
        """Queue one prompt; it joins the batch between two rounds. Returns the ids of its n continuations."""
        checked = self._checked([prompt], params)
        return [output.sequence.id for output in self._queue(checked, prompt_index)]

    def step(self) -> list[tuple[int, StreamEvent]]:
        """Admit what fits, run one round for all running sequences; returns (sequence id, event) pairs.

        If anything raises, no sequence has moved: every row is brought back to its tokens, and the next call repeats
        the round.
        """
        with self._lock:
            return self._step()

    def _step(self) -> list[tuple[int, StreamEvent]]:
        started = time.perf_counter()
        while output := self._scheduler.admit():
            self._start(output)
        running = list(self._scheduler.running)
        if not running:
            return []
        sequences = [output.sequence for output in running]
        begun = time.perf_counter()
        try:
            most = [most_nodes(s, self.max_draft, self.target.max_length) for s in sequences]
            asked = self.budget.plan(sequences, most)
            rounds = step(sequences, asked, self.drafter, self.target, self.verify, self.budget.cut, self.budget.paid)
            self.budget.learn(sequences, rounds, time.perf_counter() - begun)
        except BaseException:
            for sequence in sequences:
                self._settle(sequence)
            raise
        events = []
        for output, round in zip(running, rounds):
            event = output.commit(round)
            if event.finish_reason:
                self._scheduler.remove(output.sequence.id)
                self._release(output)
            events.append(self._deliver(output, event))
        seconds = time.perf_counter() - started
        for sequence in sequences:
            sequence.stats.total_seconds += seconds
        return events

    def abort(self, sequence_id: int) -> StreamEvent | None:
        """End a sequence now, running or waiting; unknown ids are ignored."""
        with self._lock:
            output = self._scheduler.remove(sequence_id)
            if output is None:
                return None
            self._release(output)
            return self._deliver(output, output.abort())[1]

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    # -- inside -------------------------------------------------------------------------------------------------

    def _start(self, output: Output) -> None:
        """Give the sequence a row that holds all but its last token."""
        sequence, started = output.sequence, time.perf_counter()
        try:
            sequence.row = self.target.open(sequence.tokens[:-1])
            self.target.prefill(sequence.row, sequence.tokens[:-1])
        except BaseException:
            self.abort(sequence.id)
            raise
        sequence.stats.prefill_seconds = time.perf_counter() - started

    def _deliver(self, output: Output, event: StreamEvent) -> tuple[int, StreamEvent]:
        """Whoever calls `step`, a stream gets its own events."""
        if output.sequence.id in self._mailboxes:
            self._mailboxes[output.sequence.id].append(event)
        return output.sequence.id, event

    def _settle(self, sequence: SequenceState) -> None:
        """Make the row hold all but the last token again; it holds no less, so nothing is fed."""
        if sequence.row is not None:
            self.target.prefill(sequence.row, sequence.tokens[:-1])

    def _release(self, output: Output) -> None:
        if output.sequence.row is not None:
            self._settle(output.sequence)  # an accepted block may reach beyond the stop
            self.target.free(output.sequence.row)
            output.sequence.row = None
        self.drafter.release(output.sequence.id)
        self.budget.release(output.sequence.id)

    def _checked(
        self, prompts: Any, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[tuple[list[int], SamplingParams]]:
        """Check everything first, so that nothing is queued if one prompt is bad."""
        listed = as_prompts(prompts)
        given = [params] if isinstance(params, SamplingParams) or params is None else params
        if not isinstance(given, Sequence) or not all(isinstance(p, SamplingParams | None) for p in given):
            raise OptionError(f"params must be one SamplingParams or a list of them, not {params!r:.60}")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(listed)
        if len(params) != len(listed):
            raise OptionError(f"give one SamplingParams or one per prompt: {len(params)} for {len(listed)} prompts")
        if self.codec is None and any(p.stop for p in params):
            raise OptionError("stop strings need a tokenizer, and this model has none: use stop_token_ids")
        if any(len(set(p.banned_tokens)) >= self.target.vocab_size for p in params):
            raise OptionError(f"banned_tokens leaves none of the {self.target.vocab_size} tokens: ban fewer")
        return [(self._ids(prompt), p) for prompt, p in zip(listed, params)]

    def _queue(self, checked: Sequence[tuple[list[int], SamplingParams]], first: int = 0) -> list[Output]:
        """One waiting sequence for each of the n continuations of each prompt."""
        with self._lock:
            return self._queue_all(checked, first)

    def _queue_all(self, checked: Sequence[tuple[list[int], SamplingParams]], first: int) -> list[Output]:
        outputs = []
        decode = self.codec.decode if self.codec else None
        for prompt_index, (tokens, params) in enumerate(checked, first):
            seed = SeededSource().seed if params.seed is None else params.seed
            for index in range(params.n):
                source = self._make_source(seed, index)
                state = SequenceState(self._next_id, list(tokens), len(tokens), params, source)
                outputs.append(Output(state, decode, self.eos_ids, self.target.max_length, prompt_index, index))
                self._next_id += 1
        for output in outputs:
            self._scheduler.add(output)
        return outputs

    def _ids(self, prompt: Prompt) -> list[int]:
        """Any form of prompt to checked ids."""
        if is_ids(prompt):
            tokens = list(cast("Sequence[int]", prompt))
        elif self.codec is None:
            raise PromptError("this model has no tokenizer: give the prompt as a list of token ids")
        elif isinstance(prompt, str):
            try:
                tokens = self.codec.encode(prompt)
            except (TypeError, ValueError) as error:
                raise PromptError(f"the prompt {prompt!r:.60} is not valid text: {error}") from None
        else:
            tokens = self.codec.encode_chat(cast("Sequence[Mapping[str, str]]", prompt))
        if not tokens:
            raise PromptError("the prompt is empty: give at least one token")
        if len(tokens) >= self.target.max_length:
            raise PromptError(
                f"the prompt has {len(tokens)} tokens, but the context holds {self.target.max_length}, one new token "
                "included: shorten it"
            )
        wrong = next((token for token in tokens if not 0 <= token < self.target.vocab_size), None)
        if wrong is not None:
            raise PromptError(f"token id {wrong} is outside the target's vocabulary of {self.target.vocab_size}")
        return tokens


def is_ids(prompt: object) -> bool:
    """Whether this is one list of token ids (the empty list counts)."""
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(isinstance(t, int) for t in prompt)


def as_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        listed: list[Prompt] = [prompts]
    elif prompts and (is_ids(prompts) or all(isinstance(p, Mapping) for p in prompts)):
        listed = [prompts]
    else:
        listed = list(prompts)
    for prompt in listed:
        chat = isinstance(prompt, Sequence) and all(isinstance(p, Mapping) for p in prompt)
        if not (isinstance(prompt, str) or is_ids(prompt) or chat):
            raise PromptError(f"a prompt is a string, a list of messages or a list of token ids, not {prompt!r:.60}")
    return listed
