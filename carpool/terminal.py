"""Prints text that others wrote, with control characters escaped: no terminal executes them.

Records, manifests, answers and error messages have such text. Every console and every line of JSON
of Carpool is made here.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from schemas.record import well_formed

_JOINERS = "\u200c\u200d"
"""Characters without width inside words of Persian and Hindi, and inside emoji."""

_PASSWORD = re.compile(r"(\w://[^/?#\s:@]*):[^/?#\s]*@")
_QUERY = re.compile(r"(\w://[^?#\s,]*)\?[^#\s,'\"\\]+")


def harmless(text: str) -> str:
    """Returns `text` with control characters escaped, such as `\\x1b`; line feeds stay.

    Characters that reverse text (bidirectional controls), that are not assigned, and lone
    surrogates are escaped too. Spaces of every script stay.
    """
    return _escaped(text, lambda char: char.encode("unicode_escape").decode())


def harmless_json(text: str) -> str:
    """Returns JSON with the same meaning, in which `harmless` would change nothing."""
    return _escaped(text, lambda char: json.dumps(char)[1:-1])


def without_password(text: str) -> str:
    """Returns `text` with stars for the password and the query of every URL: either may be a key.

    Such as http://name:********@host/v1?********.
    """
    return _QUERY.sub(r"\1?********", _PASSWORD.sub(r"\1:********@", text))


def fit_terminal() -> None:
    """Makes standard output take all text: what it cannot encode is escaped as in JSON."""
    codecs.register_error("escape", _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="escape")


def print_json(value: Any) -> None:
    """Prints a value as indented JSON on standard output."""
    print_plain(harmless_json(msgspec.json.format(_json(value), indent=2)))


def print_json_line(value: Any) -> None:
    """Prints a value as one line of JSON on standard output, and flushes it."""
    print_plain(harmless_json(_json(value)))


def print_plain(text: str) -> None:
    """Prints `text` and a line feed on standard output without wrapping, and flushes it."""
    sys.stdout.write(harmless(text) + "\n")
    sys.stdout.flush()


class TerminalConsole(Console):
    """A console that escapes control characters in all that it prints.

    Markup such as `[red]` and codes such as `:smile:` are plain text; use `rich.text.Text` or
    `style`.
    """

    def __init__(self, **options: Any) -> None:
        """Takes the options of `rich.console.Console` without `markup`, `emoji`, `highlight`."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments of `renderable`; the text of each is harmless."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def _stays(char: str) -> bool:
    return (
        char.isprintable() or char == "\n" or char in _JOINERS or unicodedata.category(char) == "Zs"
    )


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(char if _stays(char) else escape(char) for char in text)


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is for output only"
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # the name of a file that is not UTF-8
        return well_formed(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))
