"""How many tokens may be drafted for each sequence in the next round: as many as there is room for, or as many as pay.

A round over B sequences with n drafted tokens takes T_draft + T(B + n) and gives B tokens and the accepted ones. The
adaptive budget asks for the drafts with the most expected tokens per second of the whole batch (goodput, SmartSpec
2406.14066; TurboSpec), none included. It is decided before anything of the round is drawn, from earlier rounds alone,
so it is exact for every drafter. Tokens that were chosen without randomness are a function of the text, so of these
some may be left out afterwards too, by how likely their drafter calls them. A drawn token is never withheld: whether
it is kept would depend on its value, and what is kept would no longer follow q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ..types import Draft, SequenceState
from .acceptance import Acceptance, Part
from .prices import Prices
from .step import Round

Free = Literal["none", "some", "all"]
_MARGIN = 0.97  # what the gain of a sequence that is not drafted for counts, so that it is not taken on for noise
_PROBE = 2  # tokens of such a draft
_HOPELESS = 0.97  # no further than where the rate has fallen to this share of the best
_CLEAR, _CLOSE_CALL, _CLEAR_CALL = 1.5, 24, 120  # a gain beyond doubt; rounds before one without drafts
_HORIZON = 128  # tokens over which a drafter's catching up has to be earned back


def room(sequence: SequenceState, max_length: int) -> int:
    """Tokens the sequence may still grow by: its own budget or the context, whichever is less."""
    return min(sequence.params.max_new_tokens - sequence.num_new, max_length - len(sequence.tokens))


def most_nodes(sequence: SequenceState, max_draft: int, max_length: int) -> int:
    """Nodes that can be of use: a round always adds one token beyond the accepted ones."""
    return max(0, min(max_draft, room(sequence, max_length) - 1))


class Budget(Protocol):
    """Decides how much is drafted; called by the engine around every round.

    paid: after `plan`, how much of it where drafting takes passes of a model (for cascades); None is all of it.
    """

    paid: Sequence[int] | None

    def plan(self, sequences: Sequence[SequenceState], most: Sequence[int]) -> list[int]:
        """Nodes to ask for, at most `most` of each sequence."""
        ...

    def cut(self, sequences: Sequence[SequenceState], drafts: Sequence[Draft]) -> list[Draft]:
        """What of the drafts is verified."""
        ...

    def learn(self, sequences: Sequence[SequenceState], rounds: Sequence[Round], seconds: float) -> None:
        """What came of the round, before its tokens are committed, and how long all of it took."""
        ...

    def release(self, sequence_id: int) -> None:
        """The sequence has ended."""
        ...


class FixedBudget:
    """As many as there is room for."""

    paid: Sequence[int] | None = None

    def plan(self, sequences: Sequence[SequenceState], most: Sequence[int]) -> list[int]:
        return list(most)

    def cut(self, sequences: Sequence[SequenceState], drafts: Sequence[Draft]) -> list[Draft]:
        return list(drafts)

    def learn(self, sequences: Sequence[SequenceState], rounds: Sequence[Round], seconds: float) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        pass


class AdaptiveBudget:
    """As many as pay. A sampled text with a seed of its own always gets all it may, so that the seed fixes it whatever
    the clock says and whatever shares the batch.

    Args:
        prices: what rounds take.
        free: drafts that say how likely their tokens are cost next to nothing, so all of them are asked for and cut
            afterwards: "all" drafts are such, "some" (a cascade), or "none".
        probing: share of the time that may go into trying drafts that do not seem to pay.
    """

    def __init__(self, prices: Prices, *, free: Free = "none", probing: float = 0.01):
        self.prices = prices
        self.paid: Sequence[int] | None = None
        self._free, self._probing = free, probing
        self._acceptance = Acceptance()
        self._asked: list[int] = []
        self._most: Sequence[int] = ()
        self._stated: list[bool] = []  # whose drafts said how likely they were
        self._seen: dict[int, int] = {}  # tokens of each sequence that the drafter has read
        self._drafted, self._patience = 0, 3  # rounds with drafts since one without, and how many there may be
        self._credit = self._wanted = 0.0  # seconds that may go into probing, and what the next probe would take

    def plan(self, sequences: Sequence[SequenceState], most: Sequence[int]) -> list[int]:
        self._most, self._stated = most, [False] * len(sequences)
        if self._free == "all":
            self._asked = list(most)
            return self._asked
        self._asked = self._worth(sequences, most)
        if self._free == "none":
            return self._asked
        self.paid = self._asked
        return list(most)

    def _worth(self, sequences: Sequence[SequenceState], most: Sequence[int]) -> list[int]:
        """Nodes worth passes of the drafter, by position."""
        options, asked = [], []
        for sequence, own in zip(sequences, most):
            fixed = _is_reproduced(sequence)
            parts = self._acceptance.outlook(sequence.id, sequence.params.greedy, own) if own else []
            asked.append(own if fixed else 0)
            options.append(Option(len(sequence.tokens), given=parts) if fixed else self._option(sequence, own, parts))
        chosen, gain = best_parts(options, self.prices)
        for place, part in enumerate(chosen):
            if part is not None:
                asked[place] = part.budget
        if self._compares(asked, options, gain):
            asked = [0] * len(asked)
        elif not all(asked):
            self._probe(sequences, options, asked, most)
        return asked

    def cut(self, sequences: Sequence[SequenceState], drafts: Sequence[Draft]) -> list[Draft]:
        self._stated = [bool(draft.survival) for draft in drafts]
        cuttable = [
            d.drawn == "fixed" and bool(d.survival) and not _is_reproduced(s) for s, d in zip(sequences, drafts)
        ]
        if not any(cuttable):
            return list(drafts)
        options = []
        for sequence, draft, can in zip(sequences, drafts, cuttable):
            if draft.survival:
                chances = self._acceptance.chances(sequence.id, sequence.params.greedy, draft)
                parts = [Part(chance, 1.0, 0, node + 1) for node, chance in enumerate(chances)]
            else:  # its passes are over; what they bring is part of the round whatever becomes of the others
                parts = self._acceptance.outlook(sequence.id, sequence.params.greedy, draft.num_nodes)
            options.append(Option(len(sequence.tokens), *((parts, ()) if can else ((), parts))))
        chosen, _ = best_parts(options, self.prices)
        kept = [part.budget if part else 0 for part in chosen]
        table = self.prices.passes(len(drafts) + 1)
        for place, (can, option) in enumerate(zip(cuttable, options)):
            if can and not kept[place] and option.parts:
                cost = table[len(drafts) + 1] - table[len(drafts)]
                if self._spend(cost):
                    kept[place] = 1
        return [first_nodes(d, num) if can else d for d, can, num in zip(drafts, cuttable, kept)]

    def learn(self, sequences: Sequence[SequenceState], rounds: Sequence[Round], seconds: float) -> None:
        drafting, passing = rounds[0].draft_seconds, rounds[0].verify_seconds
        num_tokens = len(rounds) + sum(r.draft.num_nodes for r in rounds)
        beyond = sum((len(s.tokens) - self.prices.context) * (r.draft.num_nodes + 1) for s, r in zip(sequences, rounds))
        self.prices.learn_pass(num_tokens, beyond, passing, seconds - drafting - passing)
        layers = num_rows = unread = 0
        for place, (sequence, asked, round) in enumerate(zip(sequences, self._asked, rounds)):
            drafted_for = asked and not self._stated[place]
            if drafted_for:
                layers = max(layers, max(round.draft.depths, default=0))
                num_rows += 1
                unread += max(0, len(sequence.tokens) - self._seen.get(sequence.id, 0) - self._most[place] - 1)
                self._seen[sequence.id] = len(sequence.tokens)
            if drafted_for or round.draft.survival:
                path = round.verification.path
                self._acceptance.learn(sequence.id, sequence.params.greedy, asked, round.draft, path)
        self.prices.learn_draft(layers, num_rows, unread, drafting)
        if self.prices.fixed:
            seconds = self.prices.passes(num_tokens)[num_tokens] + self.prices.drafting(layers, num_rows)
        self._credit = min(self._credit + self._probing * seconds, max(seconds, self._wanted))

    def release(self, sequence_id: int) -> None:
        self._acceptance.release(sequence_id)
        self._seen.pop(sequence_id, None)

    def _compares(self, asked: Sequence[int], options: Sequence[Option], gain: float) -> bool:
        """Whether to do without drafts once, where they seem to pay: else it would never be seen that they do not, for
        a pass over many tokens says nothing of what one over few would take.
        """
        if not any(asked) or any(option.given for option in options):
            self._drafted = 0
            return False
        self._drafted += 1
        if self._drafted < self._patience:
            return False
        self._drafted, self._patience = 0, _CLOSE_CALL if gain < _CLEAR else _CLEAR_CALL
        return True

    def _option(self, sequence: SequenceState, most: int, parts: list[Part]) -> Option:
        """Of a sequence that was not drafted for of late, the gain has to make up for what the drafter must read."""
        unseen = len(sequence.tokens) - self._seen.get(sequence.id, 0)
        if unseen <= most + 1:
            return Option(len(sequence.tokens), parts)
        if sequence.id in self._seen:
            parts = [part._replace(gain=_MARGIN * part.gain) for part in parts]
        left = min(_HORIZON, sequence.params.max_new_tokens - sequence.num_new)
        a_round = 1 + sum(part.gain for part in parts)
        return Option(len(sequence.tokens), parts, joining=self.prices.reading(unseen) * min(1.0, a_round / left))

    def _probe(
        self, sequences: Sequence[SequenceState], options: Sequence[Option], asked: list[int], most: Sequence[int]
    ) -> None:
        """Draft a little for who is not drafted for, longest unheard of first, while the credit lasts."""
        table = self.prices.passes(2 * len(options) + sum(asked) + _PROBE)
        drafting = any(asked)
        waiting = [i for i, (own, option) in enumerate(zip(asked, options)) if not own and option.parts]
        for place in sorted(waiting, key=lambda i: self._seen.get(sequences[i].id, 0) - len(sequences[i].tokens)):
            num = min(_PROBE, most[place])
            before = len(options) + sum(asked)
            unseen = len(sequences[place].tokens) - self._seen.get(sequences[place].id, 0)
            cost = table[before + num] - table[before] + self.prices.reading(unseen)
            cost += 0.0 if drafting else self.prices.drafting(num, 1)
            if not self._spend(cost):
                return
            asked[place], drafting = num, True

    def _spend(self, cost: float) -> bool:
        """Take it from the credit, if there is as much."""
        self._wanted = cost
        if cost > self._credit:
            return False
        self._credit -= max(0.0, cost)
        return True


@dataclass(frozen=True)
class Option:
    """What can be asked for one sequence.

    Fields:
        length: tokens of its text.
        parts: to choose from, in order; gains and nodes of each are those of its last token.
        given: what is part of the round in any case.
        joining: seconds that any of the parts costs beside its passes.
    """

    length: int
    parts: Sequence[Part] = ()
    given: Sequence[Part] = ()
    joining: float = 0.0


def best_parts(options: Sequence[Option], prices: Prices) -> tuple[list[Part | None], float]:
    """For each sequence the part up to which it pays to go, or None: the choice with the most tokens per second; and
    how much faster that is than none.

    For every number of draft passes, tokens of all sequences are taken in the order of what they bring for what they
    cost, and the best place to stop is kept; in a batch of one that is every choice there is.
    """
    given = [part for option in options for part in option.given]
    num = len(options)
    tokens, gain = num + sum(part.nodes for part in given), num + sum(part.gain for part in given)
    least = max((part.layers for part in given), default=0)
    num_rows = sum(1 for option in options if option.parts or option.given)
    table = prices.passes(int(tokens) + sum(option.parts[-1].budget for option in options if option.parts) + 1)
    seconds = sum((option.length - prices.context) * prices.per_context for option in options)
    ranked = _ranked(options, prices)
    best = base = gain / (_at(table, tokens) + seconds + prices.drafting(least, num_rows))
    reached: dict[int, float] = {}  # by layer, the chance that a draft is not ended before it
    for item in ranked:
        reached[item.layers] = max(reached.get(item.layers, 0.0), min(1.0, item.nodes))
    peak, chosen = 0.0, ranked[:0]
    for layers in sorted({max(least, item.layers) for item in ranked}):
        items = [item for item in ranked if item.layers <= layers]
        passes = least + sum(reached.get(layer, 1.0) for layer in range(least + 1, layers + 1))
        rate, count = _best_stop(items, table, tokens, gain, seconds + prices.drafting(passes, num_rows))
        if rate > best:
            best, chosen = rate, items[:count]
        peak = max(peak, rate)
        if rate < _HOPELESS * peak:
            break
    result: list[Part | None] = [None] * num
    for item in chosen:
        result[item.place] = options[item.place].parts[item.number]
    return result, best / base


class _Item(NamedTuple):
    """One part of one option: what it adds to a round."""

    rank: float
    number: int
    place: int
    gain: float
    nodes: float
    seconds: float
    layers: int


def _ranked(options: Sequence[Option], prices: Prices) -> list[_Item]:
    """All parts, by the tokens they bring for those they cost; those of one option in order."""
    items = []
    for place, option in enumerate(options):
        worth, more = 1.0, (option.length - prices.context) * prices.per_context
        seconds = option.joining
        for index, (gain, nodes, layers, _) in enumerate(option.parts):
            worth = min(worth, gain / nodes) if nodes else worth
            items.append(_Item(-worth, index, place, gain, nodes, seconds + nodes * more, layers))
            seconds = 0.0
    items.sort()
    return items


def _best_stop(
    items: Sequence[_Item], table: Sequence[float], tokens: float, gain: float, seconds: float
) -> tuple[float, int]:
    """The highest rate on the way through the items, and after how many of them."""
    best, chosen = 0.0, 0
    for count, item in enumerate(items, 1):
        tokens += item.nodes
        gain += item.gain
        seconds += item.seconds
        rate = gain / (seconds + _at(table, tokens))
        if rate > best:
            best, chosen = rate, count
        elif rate < _HOPELESS * best:
            break
    return best, chosen


def _at(table: Sequence[float], tokens: float) -> float:
    whole = int(tokens)
    return table[whole] + (tokens - whole) * (table[whole + 1] - table[whole])


def first_nodes(draft: Draft, num: int) -> Draft:
    """The first nodes of a draft whose tokens were chosen without randomness.

    Raises:
        ValueError: drawn tokens, which may not be withheld.
    """
    if num >= draft.num_nodes:
        return draft
    if draft.drawn != "fixed":
        raise ValueError("a drawn token may not be withheld: what is kept would no longer follow its law")
    return Draft(draft.tokens[:num], draft.parents[:num], draft.probs, draft.drawn, draft.survival[:num])


def _is_reproduced(sequence: SequenceState) -> bool:
    return sequence.params.seed is not None and not sequence.params.greedy
