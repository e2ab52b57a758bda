"""The demo's four prompts, from much to copy (edit) to nothing to copy (story)."""

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

TASKS = {"code": _CODE, "edit": _EDIT, "summary": _SUMMARY, "story": _STORY}
WARM_UP = "Go on counting: one, two, three, one, two, three, one, two, three, one, two, three, one,"  # drafts happen
