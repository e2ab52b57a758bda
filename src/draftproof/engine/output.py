"""What one sequence shows the world: committed tokens become text, stops are found, counts are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from ..types import FinishReason, GenerationResult, Piece, SequenceState, StreamEvent
from .budget import room
from .step import Round
from .text import Detokenizer, StopStrings


class Output:
    """Commits rounds to its sequence, token by token, so a stop anywhere inside an accepted block ends it there.

    Args:
        sequence: the state to commit to.
        decode: ids to text, or None where there is no tokenizer (text stays empty).
        eos_ids: the model's own end-of-text ids.
        max_length: the context limit.
        prompt_index, index: whose continuation this is.
    """

    def __init__(
        self,
        sequence: SequenceState,
        decode: Callable[[Sequence[int]], str] | None,
        eos_ids: Collection[int],
        max_length: int,
        prompt_index: int = 0,
        index: int = 0,
    ):
        self.sequence = sequence
        self.prompt_index = prompt_index
        self.index = index
        self._max_length = max_length
        self._stop_ids = set(sequence.params.stop_token_ids)
        if not sequence.params.ignore_eos:
            self._stop_ids |= set(eos_ids)
        self._detokenizer = Detokenizer(decode) if decode else None
        self._stops = StopStrings(sequence.params.stop)
        self._text: list[str] = []
        self._queued = time.perf_counter()

    def commit(self, round: Round) -> StreamEvent:
        """Append the round's tokens up to the first stop; returns what can be shown."""
        sequence, stats = self.sequence, self.sequence.stats
        if not stats.num_tokens:
            stats.first_token_seconds = time.perf_counter() - self._queued
        num_path = len(round.verification.path)
        pieces = []
        for position, token in enumerate(round.tokens):
            sequence.tokens.append(token)
            text, sequence.finish = self._read(token)
            pieces.append(Piece(text, position < num_path))
            if sequence.finish:
                break
        accepted = sum(piece.accepted for piece in pieces)
        if sequence.params.logprobs is not None:
            sequence.logprobs.extend(round.logprobs[: len(pieces)])
        stats.num_tokens += len(pieces)
        stats.num_rounds += 1
        stats.num_drafted += round.draft.num_nodes
        stats.num_accepted += accepted
        count_up_to(stats.accepted_at, accepted)
        count_up_to(stats.drafted_at, max(round.draft.depths, default=0))
        stats.draft_seconds += round.draft_seconds
        stats.verify_seconds += round.verify_seconds
        return self._event(round.tokens[: len(pieces)], accepted, pieces)

    def abort(self) -> StreamEvent:
        """End where we are."""
        self.sequence.finish = "abort"
        return self._event((), 0, [])

    def _read(self, token: int) -> tuple[str, FinishReason | None]:
        """The text a token makes certain, and whether it ends the sequence."""
        if token in self._stop_ids:
            return "", "stop"
        text, stopped = "", False
        if self._detokenizer:
            text, stopped = self._stops.push(self._detokenizer.push(token))
        if stopped:
            self._detokenizer = None  # nothing may follow a stop string
            return text, "stop"
        return text, "length" if room(self.sequence, self._max_length) <= 0 else None

    def _event(self, tokens: Sequence[int], accepted: int, pieces: list[Piece]) -> StreamEvent:
        finish = self.sequence.finish
        if finish and self._detokenizer:
            rest, stopped = self._stops.push(self._detokenizer.flush())
            rest += "" if stopped else self._stops.flush()
            self._detokenizer = None
            if rest:
                pieces.append(Piece(rest, False))
        text = "".join(piece.text for piece in pieces)
        self._text.append(text)
        stats = self.sequence.stats if finish else None
        return StreamEvent(text, tuple(tokens), accepted, tuple(pieces), finish, stats, self.prompt_index, self.index)

    def result(self) -> GenerationResult:
        """The finished continuation."""
        sequence = self.sequence
        assert sequence.finish is not None
        return GenerationResult(
            text="".join(self._text),
            token_ids=sequence.tokens[sequence.num_prompt :],
            finish_reason=sequence.finish,
            logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
            stats=sequence.stats,
            prompt_index=self.prompt_index,
            index=self.index,
        )


def count_up_to(counts: list[int], depth: int) -> None:
    """One more round that reached each of the first `depth` positions."""
    counts += [0] * (depth - len(counts))
    for position in range(depth):
        counts[position] += 1
