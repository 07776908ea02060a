"""Transcript tests: text files of commands, each followed by its output, which is indented.

A line is a command, a comment (`# ...`) or blank. `pytest --rewrite` writes the output anew: read
the difference before you commit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

INDENT = "  "
Execute = Callable[[str], Iterable[str]]
"""Executes one command, and returns the lines of its output."""


def check_transcript(path: Path, execute: Execute, *, rewrite: bool) -> None:
    """Executes the commands of `path` in order, and compares or rewrites their output."""
    expected = path.read_text()
    lines: list[str] = []
    for line in expected.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [INDENT + output for output in execute(line)]
    found = "\n".join(lines) + "\n"
    if rewrite:
        path.write_text(found)
    else:
        assert found == expected, f"{path.name} differs; --rewrite renews it"
