"""Built-in prompts, from much to copy (edit) to nothing to copy (prose, story)."""

from __future__ import annotations

_CODE = (
    "Write a Python class Stack with the methods push, pop, peek, size and is_empty. "
    "Add a one-line docstring to each method."
)

_EDIT = """\
Correct the spelling mistakes in this text and write the corrected text again in full.

The library on Mill Street opens at seven in the morning. On Saturdays the libary opens an hour later, and on Sundays \
it stays closed. Children under twelve may visit the library with a parent. The library was bilt in 1904 by two \
sisters, Clara and Edith Moss, who lived above it for thirty years. Today the library belongs to the town, and \
everyone who works in the libary lives within walking distance."""

_SUMMARY = """\
Summarize the text below.

The harbour ferry carried 412,000 passengers last year, eleven percent more than the year before. Most of the growth \
came in the summer months, when the new electric boats ran every fifteen minutes. The electric boats are quieter than \
the old diesel boats and use a third of the energy. Repairs to the north pier closed two of the five stops in October \
and November, and passenger numbers fell by half in those weeks. The council has agreed to buy two more electric boats \
and to reopen the north pier before Easter. Ticket prices will stay the same until the end of the year."""

_STORY = "Tell me a bedtime story about a small owl who is afraid of the dark."

_CODE_2 = (
    "Write a Python function merge_intervals(intervals) that joins overlapping (start, end) pairs and returns them "
    "sorted. Use type hints, and show two examples as assertions."
)

_PROSE = "Describe a rainy morning at a small railway station, as the opening of a novel."
_PROSE_2 = "Explain to a curious ten-year-old why the moon seems to change its shape."

_EDIT_2 = """\
Change the variable name `n` to `count` in this program and write the whole program again.

def report(words):
    n = {}
    for word in words:
        n[word] = n.get(word, 0) + 1
    for word in sorted(n, key=n.get, reverse=True):
        print(word, n[word])
    return n
"""

DEMO = {"code": _CODE, "edit": _EDIT, "summary": _SUMMARY, "story": _STORY}
BENCH = {"code": (_CODE, _CODE_2), "prose": (_PROSE, _PROSE_2), "edit": (_EDIT, _EDIT_2)}
WARM_UP = "Go on counting: one, two, three, one, two, three, one, two, three, one, two, three, one,"  # drafts happen
