"""Tokens to text, a token at a time, without broken characters and without text beyond a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_CONTEXT = 6  # tokens of known text kept in front, for decoders that look at their neighbours
_PATIENCE = 64  # tokens after which a run of U+FFFD is taken for what it is


class Detokenizer:
    """Incremental decoding. A trailing U+FFFD may be a character still arriving, so it waits (byte-fallback
    tokenizers show one per missing byte, so a run of them waits together).

    Args:
        decode: ids to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._window: list[int] = []
        self._given = ""  # text of the window already handed out

    def push(self, token: int) -> str:
        """Add a token; returns the text that is now certain."""
        self._window.append(token)
        text = self._decode(self._window)
        certain = text.rstrip("\ufffd") if len(self._window) < _PATIENCE else text
        if certain == text:
            new = self._beyond(text)
            self._trim(text)
            return new
        if not certain.startswith(self._given):  # an unfinished character hides what was given: wait for its end
            return ""
        new = certain[len(self._given) :]
        self._given = certain
        return new

    def flush(self) -> str:
        """The rest, an unfinished character as U+FFFD."""
        return self._beyond(self._decode(self._window))

    def _beyond(self, text: str) -> str:
        """What `text` has beyond what was given. Bytes that turned out invalid may have changed the text before;
        given text is not taken back, so the rest goes on where it ends.
        """
        new = text[len(self._given) :]
        self._given = text
        return new

    def _trim(self, text: str) -> None:
        """Forget tokens in front, where the rest decodes to the same text without them."""
        if len(self._window) <= 2 * _CONTEXT:
            return
        for size in range(_CONTEXT, len(self._window)):
            rest = self._decode(self._window[-size:])
            if rest and text.endswith(rest) and not rest.startswith("\ufffd"):
                self._window, self._given = self._window[-size:], rest
                return
        if len(self._window) >= _PATIENCE:
            self._window, self._given = [], ""


class StopStrings:
    """Finds the earliest stop string in a growing text, holding back what might become one.

    Args:
        stops: the strings; empty means that nothing is ever held back.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Returns the text that may be shown, and whether a stop string ended it."""
        if not self._stops:
            return text, False
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        wait = max(self._overlap(stop) for stop in self._stops)
        cut = len(self._held) - wait
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        for size in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:size]):
                return size
        return 0
