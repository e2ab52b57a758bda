"""`draftproof chat`: a conversation in the terminal, the target's cache kept warm from turn to turn.

Reads standard input, so a conversation can be piped in: one line, one message.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config import ConfigFile
from .document import Document
from .options import JsonFile, ModelOptions, SamplingOptions
from .prompts import has_chat_template

if TYPE_CHECKING:
    from .. import Engine, SamplingParams
    from .show import Reply

HELP = "/reset forgets the conversation, /stats shows the last answer's figures, /exit (or end of input) leaves."


def chat(
    model: ModelOptions,
    sampling: SamplingOptions,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    config: ConfigFile = None,
    json: JsonFile = None,
) -> None:
    """Talk with a model; drafted and accepted tokens are green.

    Lines beginning with a slash are commands: /reset, /stats, /exit.
    """
    document = Document(json)
    params = sampling.params()

    from ..errors import ModelError
    from . import show
    from .generate import sampling_entry

    engine = model.load()
    if not has_chat_template(engine):
        raise ModelError(
            f"chat needs a model with a chat template, and {model.target!r} has none: use `draftproof generate --raw`"
        )
    conversation = Conversation(engine, params, system)
    if sys.stdin.isatty():
        show.err().print(HELP, style="dim")
    conversation.run()
    document.write({"results": conversation.results, "config": {**engine.config, "params": sampling_entry(params)}})


class Conversation:
    """The messages so far, and what each answer took."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None = None):
        from . import show

        self._engine, self._params, self._show = engine, params, show
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._last: Reply | None = None
        self._console = show.out()
        self._interactive = sys.stdin.isatty()
        self.results: list[dict[str, Any]] = []

    def run(self) -> None:
        """Read lines until /exit or the end of input."""
        if self._interactive:
            import readline  # noqa: F401  # gives input() history and editing
        while True:
            try:
                line = input("> " if self._interactive else "").strip()
            except EOFError:
                return
            if line == "/exit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        if line == "/reset":
            self._messages = list(self._opening)
            self._tell("the conversation starts anew")
        elif line == "/stats":
            self._tell(self._last.closing() if self._last else "nothing has been answered yet")
        else:
            self._tell(f"no command {line.split()[0]}. {HELP}")

    def _answer(self, line: str) -> None:
        """Ctrl-C ends the answer and keeps what came; an answer that cannot be given leaves no message behind."""
        from ..errors import DraftproofError

        messages = [*self._messages, {"role": "user", "content": line}]
        reply = self._show.Reply(self._engine.stream(messages, self._params))
        try:
            for event in reply:
                self._show.tokens(self._console, event)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            reply.close()
        except DraftproofError as error:
            if not self._interactive:
                raise
            self._tell(f"{error} (/reset forgets the conversation)")
            return
        self._console.print()
        self._messages = [*messages, {"role": "assistant", "content": reply.text}]
        self._last = reply
        self.results.append(
            {
                "prompt": line,
                "text": reply.text,
                "token_ids": reply.token_ids,
                "finish_reason": reply.finish_reason,
                "stats": reply.stats.to_dict(),
                "tok_s": self._show.rate(reply.stats.num_tokens, reply.stats.total_seconds),
            }
        )

    def _tell(self, text: str) -> None:
        self._show.err().print(text, style="dim", markup=False)
