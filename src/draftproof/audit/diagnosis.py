"""What a drafter does wrong: the law its tokens really follow, next to the law it states for them.

Drafts are grouped by everything that was settled before a token: the nodes before it, where it hangs, and the law
stated for it. Within a group the token must follow that law, given that it is there at all. If it does not, either the
law is misstated, or tokens were drawn from it and some held back because of what they were: then no token comes more
often than stated, counting the drafts that end before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from ..types import Draft, Probs
from ..verify.law import Prefix
from ..verify.proposal import Proposal


@dataclass(frozen=True)
class Drafted:
    """All drafts after one prompt within one budget, and their probabilities.

    `unrepeatable` says that a second walk gave other drafts, and how that was noticed.
    """

    prompt: Prefix
    max_nodes: int
    drafts: Sequence[Draft]
    chances: Sequence[float]
    unrepeatable: str | None = None


@dataclass
class _Group:
    """Drafts that agree before node n and in the law stated for it.

    Fields:
        stated: q, dense.
        found: chance of each token as node n.
        ended: chance of the drafts that agree before node n and have no such node.
    """

    where: str
    stated: list[float]
    found: dict[int, float] = field(default_factory=dict)
    ended: float = 0.0

    def shift(self) -> float:
        """How far the token's law, given that it is there, is from the stated one."""
        there = sum(self.found.values())
        return max(abs(self.found.get(x, 0.0) / there - q) for x, q in enumerate(self.stated))

    def sentence(self, tolerance: float) -> str:
        there = sum(self.found.values())
        total = there + self.ended
        kept = {x: self.found.get(x, 0.0) / total / q for x, q in enumerate(self.stated) if q > tolerance}
        if self.ended > tolerance and all(share <= 1 + tolerance for share in kept.values()):
            least, most = min(kept, key=kept.__getitem__), max(kept, key=kept.__getitem__)
            return (
                f"{self.where}, token {most} is handed over in {kept[most]:.0%} of the cases in which the stated law "
                f"draws it and token {least} in {kept[least]:.0%}: drawn tokens are withheld because of their own "
                "value, so those that are kept no longer follow q. Hand over every token drawn; whether to draw on may "
                "depend on earlier tokens and on laws, not on the token itself"
            )
        worst = max(range(len(self.stated)), key=lambda x: abs(self.found.get(x, 0.0) / there - self.stated[x]))
        return (
            f"{self.where}, token {worst} comes with probability {self.found.get(worst, 0.0) / there:.3f} where the "
            f"draft states q = {self.stated[worst]:.3f}: the stated law is not the one the token was drawn from. State "
            "the very law that was drawn from, after its temperature and truncation, or drawn='fixed' without probs if "
            "nothing was drawn"
        )


def find_fault(drafted: Sequence[Drafted], tolerance: float) -> str | None:
    """The worst disagreement between a stated law and the drawn tokens as one sentence; None if there is none."""
    groups = [group for one in drafted for group in _groups(one)]
    worst = max(groups, key=_Group.shift, default=None)
    return None if worst is None or worst.shift() <= tolerance else worst.sentence(tolerance)


def _groups(drafted: Drafted) -> Iterator[_Group]:
    groups: dict[Hashable, _Group] = {}
    ends: dict[Hashable, float] = {}
    histories: dict[Hashable, Hashable] = {}
    for draft, chance in zip(drafted.drafts, drafted.chances):
        for node in range(draft.num_nodes + 1):
            history = (draft.tokens[:node], draft.parents[:node])
            if node == draft.num_nodes:
                ends[history] = ends.get(history, 0.0) + chance
            elif draft.drawn != "fixed":
                _add(groups, histories, drafted, draft, node, history, chance)
    for key, group in groups.items():
        group.ended = ends.get(histories[key], 0.0)
        yield group


def _add(
    groups: dict[Hashable, _Group],
    histories: dict[Hashable, Hashable],
    drafted: Drafted,
    draft: Draft,
    node: int,
    history: Hashable,
    chance: float,
) -> None:
    assert draft.probs is not None
    width = draft.probs.vocab_size
    uniform = Probs.dense(draft.probs.values.new_full((draft.num_nodes + 1, width), 1 / width))
    proposal = Proposal(draft, uniform)  # checks the draft; its p is of no matter here
    if proposal.is_point_mass(node):
        return
    stated = proposal.law(node).to_dense(0).tolist()
    parent = draft.parents[node]
    key = (history, parent, tuple(round(value, 6) for value in stated))
    if key not in groups:
        path = [draft.tokens[i] for i in draft.path(parent)]
        text = [*drafted.prompt, *path]
        place = f"draft position {len(path) + 1}" if draft.is_chain else f"node {node}"
        groups[key] = _Group(f"after the text {text} ({place}, max_nodes {drafted.max_nodes})", stated)
        histories[key] = history
    found = groups[key].found
    found[draft.tokens[node]] = found.get(draft.tokens[node], 0.0) + chance
